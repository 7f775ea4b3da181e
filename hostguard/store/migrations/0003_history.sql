-- How the host was, some ten minutes a row, and when its disk was in trouble: see history.py. Times as above.
CREATE TABLE points (
    at INTEGER PRIMARY KEY,
    level INTEGER NOT NULL,    -- 0 calm, 1 strained, 2 stalled
    cap INTEGER,               -- how many turns might run; NULL: any number
    turns INTEGER NOT NULL,
    held INTEGER NOT NULL,
    await_ms INTEGER,
    first INTEGER NOT NULL     -- 1: the guard had just been started
);

CREATE TABLE incidents (
    at INTEGER PRIMARY KEY,
    until INTEGER,             -- NULL: it was not over
    level INTEGER NOT NULL,
    evidence TEXT NOT NULL,
    cap INTEGER,               -- the lowest
    configured INTEGER,
    frozen INTEGER NOT NULL,   -- turns, at a time
    tightened INTEGER          -- bytes/s
);
