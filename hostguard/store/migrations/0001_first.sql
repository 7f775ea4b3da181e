-- Times are ms since the epoch, UTC; 0 = unset.
CREATE TABLE deliveries (
    id INTEGER PRIMARY KEY,  -- given by the guard, never reused: history keeps the newest row
    mind TEXT NOT NULL,
    session TEXT NOT NULL,
    state TEXT NOT NULL,     -- model.State; a hold is never stored
    kind TEXT NOT NULL,      -- model.Kind
    key TEXT,                -- idempotency key
    sender TEXT,
    channel TEXT,
    created_at INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    turn TEXT,
    started_at INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER NOT NULL DEFAULT 0,
    result TEXT NOT NULL DEFAULT '{}',
    payload INTEGER NOT NULL  -- payloads.id: the first row of a fan-out; the others follow it
);

CREATE UNIQUE INDEX deliveries_key ON deliveries (key, mind) WHERE key IS NOT NULL;

-- Apart, so that a change of state does not rewrite the payload on the card.
CREATE TABLE payloads (
    id INTEGER PRIMARY KEY,
    body BLOB NOT NULL       -- UTF-8 JSON
);

CREATE TABLE settings (      -- what the operator set at run time: pauses, limits
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL      -- JSON
) WITHOUT ROWID;
