-- The user for whom a row was authorised. That of older rows is not known: no script and no line of a file of
-- theirs is run. The checksum of a damaged row stays wrong, as in 0006.
DROP INDEX deliveries_kept;
ALTER TABLE deliveries RENAME TO old_deliveries;

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
    accepted INTEGER NOT NULL DEFAULT 0,   -- a stamp, as the next two: see core/clock.py
    due INTEGER NOT NULL DEFAULT 0,        -- the end of a pause after a failure
    started INTEGER NOT NULL DEFAULT 0,
    uid INTEGER,             -- what it runs was authorised for this user; NULL: it runs nothing, or an older guard
    payload INTEGER NOT NULL,  -- payloads.id: the first row of a fan-out; the others follow it
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO deliveries
    SELECT id, mind, session, state, kind, key, sender, channel, created_at, not_before, expires_at, attempts, turn,
        started_at, ended_at, result, posted_at, accepted, due, started, NULL, payload,
        CASE WHEN sum = row_sum(id, mind, session, state, kind, key, sender, channel, created_at, not_before, expires_at, attempts, turn,
        started_at, ended_at, result, posted_at, accepted, due, started, payload)
        THEN row_sum(id, mind, session, state, kind, key, sender, channel, created_at, not_before, expires_at, attempts, turn,
        started_at, ended_at, result, posted_at, accepted, due, started, NULL, payload) ELSE sum END
    FROM old_deliveries;

DROP TABLE old_deliveries;

-- Rows that are kept back: few, and looked for by mind and channel.
CREATE INDEX deliveries_kept ON deliveries (mind, channel) WHERE state IN ('batching', 'gated');
