-- Every table is STRICT, constrains what can be in it, and ends with the row's checksum: see sums.py, which
-- sets it. Times are ms since the epoch, UTC; 0 = unset.
DROP INDEX deliveries_key;
DROP INDEX deliveries_kept;
ALTER TABLE deliveries RENAME TO old_deliveries;
ALTER TABLE payloads RENAME TO old_payloads;
ALTER TABLE settings RENAME TO old_settings;
ALTER TABLE points RENAME TO old_points;
ALTER TABLE incidents RENAME TO old_incidents;

CREATE TABLE deliveries (
    id INTEGER PRIMARY KEY CHECK (id > 0),  -- given by the guard, never reused: history keeps the newest row
    mind TEXT NOT NULL,
    session TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN (  -- model.State; a hold is never stored
        'queued', 'delivering', 'batching', 'gated', 'done', 'dead', 'cancelled', 'expired', 'batched', 'skipped'
    )),
    kind TEXT NOT NULL CHECK (kind IN (    -- model.Kind
        'message', 'schedule', 'system', 'wake', 'lifecycle', 'notice', 'batch', 'run', 'script', 'file'
    )),
    key TEXT,                -- idempotency key
    sender TEXT,
    channel TEXT,
    created_at INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    turn TEXT,
    started_at INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER NOT NULL DEFAULT 0,
    result TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(result)),
    posted_at INTEGER NOT NULL DEFAULT 0,  -- a resident mind confirmed it
    payload INTEGER NOT NULL,  -- payloads.id: the first row of a fan-out; the others follow it
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Apart, so that a change of state does not rewrite the payload on the card.
CREATE TABLE payloads (
    id INTEGER PRIMARY KEY CHECK (id > 0),
    body BLOB NOT NULL,      -- UTF-8 JSON
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE settings (      -- what was set at run time: pauses, limits, schedules
    name TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL CHECK (json_valid(value)),
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;

-- How the host was, some ten minutes a row, and when its disk was in trouble: see timeline.py.
CREATE TABLE points (
    at INTEGER PRIMARY KEY,
    level INTEGER NOT NULL CHECK (level BETWEEN 0 AND 2),  -- 0 calm, 1 strained, 2 stalled
    cap INTEGER,               -- how many turns might run; NULL: any number
    turns INTEGER NOT NULL,
    held INTEGER NOT NULL,
    await_ms INTEGER,
    first INTEGER NOT NULL,    -- 1: the guard had just been started
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE incidents (
    at INTEGER PRIMARY KEY,
    until INTEGER,             -- NULL: it was not over
    level INTEGER NOT NULL CHECK (level BETWEEN 0 AND 2),
    evidence TEXT NOT NULL,
    cap INTEGER,               -- the lowest
    configured INTEGER,
    frozen INTEGER NOT NULL,   -- turns, at a time
    tightened INTEGER,         -- bytes/s
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO payloads SELECT id, body, row_sum(id, body) FROM old_payloads;
INSERT INTO deliveries
    SELECT id, mind, session, state, kind, key, sender, channel, created_at, not_before, expires_at, attempts, turn,
        started_at, ended_at, result, posted_at, payload,
        row_sum(id, mind, session, state, kind, key, sender, channel, created_at, not_before, expires_at, attempts,
            turn, started_at, ended_at, result, posted_at, payload)
    FROM old_deliveries;
INSERT INTO settings SELECT name, value, row_sum(name, value) FROM old_settings;
INSERT INTO points
    SELECT at, level, cap, turns, held, await_ms, first, row_sum(at, level, cap, turns, held, await_ms, first)
    FROM old_points;
INSERT INTO incidents
    SELECT at, until, level, evidence, cap, configured, frozen, tightened,
        row_sum(at, until, level, evidence, cap, configured, frozen, tightened)
    FROM old_incidents;

DROP TABLE old_deliveries;
DROP TABLE old_payloads;
DROP TABLE old_settings;
DROP TABLE old_points;
DROP TABLE old_incidents;

CREATE UNIQUE INDEX deliveries_key ON deliveries (key, mind) WHERE key IS NOT NULL;

-- Rows that are kept back: few, and looked for by mind and channel.
CREATE INDEX deliveries_kept ON deliveries (mind, channel) WHERE state IN ('batching', 'gated');
