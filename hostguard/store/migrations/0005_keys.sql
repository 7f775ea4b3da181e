-- Idempotency keys: kept with their rows, and for a while after those have left the history: see keys.py.
CREATE TABLE keys (
    delivery INTEGER PRIMARY KEY CHECK (delivery > 0),  -- deliveries.id
    mind TEXT NOT NULL,
    key TEXT NOT NULL,
    owner TEXT NOT NULL CHECK (owner IN ('', 'schedule', 'run')),  -- '': a sender
    request TEXT CHECK (request IS NULL OR json_valid(request)),  -- a digest of each part; NULL: an older guard
    left_at INTEGER,                           -- when the row left the history; NULL: it is there
    ended TEXT CHECK (ended IS NULL OR json_valid(ended)),  -- from then on: what became of the row
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO keys
    SELECT delivery, mind, key, owner, NULL, NULL, NULL, row_sum(delivery, mind, key, owner, NULL, NULL, NULL)
    FROM (
        SELECT id AS delivery, key, mind,
            CASE WHEN kind = 'run' THEN 'run'
                WHEN kind IN ('schedule', 'script') AND key LIKE 'schedule:%' THEN 'schedule'
                ELSE '' END AS owner
        FROM deliveries WHERE key IS NOT NULL
    );

CREATE UNIQUE INDEX keys_key ON keys (key, mind, owner);
CREATE INDEX keys_left ON keys (left_at) WHERE left_at IS NOT NULL;

DROP INDEX deliveries_key;
