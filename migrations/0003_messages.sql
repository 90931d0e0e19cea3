-- The message plane: every pending run is a message too.
SET LOCAL lock_timeout = '5s';

ALTER TABLE pending
    ADD COLUMN message        integer NOT NULL DEFAULT 0,
    ADD COLUMN dequeued       integer NOT NULL DEFAULT 0,
    ADD COLUMN receipt        bigint,
    ADD COLUMN reserved_until timestamptz;
COMMENT ON TABLE pending IS 'One row per pending run, which is also its message. Claiming a run deletes its row.';
COMMENT ON COLUMN pending.hidden_until IS 'Until then no poller gets the message; null when it is visible.';
COMMENT ON COLUMN pending.message IS 'Which message of this run it is; a message that is deleted too early is replaced by the next.';
COMMENT ON COLUMN pending.dequeued IS 'How often pollers got this message.';
COMMENT ON COLUMN pending.receipt IS 'The number in the pop receipt that is valid; null until somebody gets the message.';
COMMENT ON COLUMN pending.reserved_until IS
    'Until then claimWork leaves the run to the poller that got its message; null when it is claimable. Never after hidden_until.';

-- The age of a run is kept within both kinds: those whose message is visible, and those whose message is hidden. Pollers
-- scan one kind, claimWork both, and whoever adds a run writes to one index only.
DROP INDEX pending_ready;
CREATE INDEX pending_ready ON pending (queue, priority, (hidden_until IS NOT NULL), ord) WHERE reserved_until IS NULL;
CREATE INDEX pending_reserved ON pending (reserved_until) WHERE reserved_until IS NOT NULL;
-- Tiny: only messages that nobody ever gets done with.
CREATE INDEX pending_alarming ON pending (dequeued) WHERE dequeued >= 10;
