ALTER TABLE deliveries ADD COLUMN posted_at INTEGER NOT NULL DEFAULT 0;  -- a resident mind confirmed it

-- Rows that are kept back: few, and looked for by mind and channel.
CREATE INDEX deliveries_kept ON deliveries (mind, channel) WHERE state IN ('batching', 'gated');
