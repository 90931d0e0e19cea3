-- A statement that moves runs writes one row, with its events and its changes of the counts; the sequencer moves the events
-- into the log and adds the changes to the counts. The rows are numbered from the sequence of the pending runs, so that one
-- safe position serves both; not uniquely, because a failover may take the sequence back.
SET LOCAL lock_timeout = '5s';

-- What has no position yet gets one, and what is not folded yet is folded.
WITH next AS (
    SELECT COALESCE((SELECT first + events FROM outbox_order ORDER BY first DESC LIMIT 1), 1) AS position
)
INSERT INTO outbox_order (first, events, outbox_id)
SELECT next.position + sum(n.events) OVER (ORDER BY n.id) - n.events, n.events, n.id FROM outbox_new n, next;
INSERT INTO counters AS c (queue, pending, claimed)
SELECT queue, sum(pending), sum(claimed) FROM counter_deltas GROUP BY queue
ON CONFLICT (queue) DO UPDATE SET pending = c.pending + EXCLUDED.pending, claimed = c.claimed + EXCLUDED.claimed;
DROP TABLE counter_deltas;
DROP TABLE outbox_new;

CREATE TABLE outbox_new (
    id           bigint NOT NULL DEFAULT nextval('pending_ord'),
    at           timestamptz NOT NULL,
    taken_until  timestamptz,
    events       integer NOT NULL,
    kinds        smallint[] NOT NULL,
    seqs         bigint[] NOT NULL,
    runs         smallint[] NOT NULL,
    retries_left smallint[] NOT NULL,
    priorities   smallint[],
    details      text[],
    queues       integer[],
    pending      integer[],
    claimed      integer[]
);
CREATE INDEX outbox_new_id ON outbox_new (id);
COMMENT ON TABLE outbox_new IS
    'What a transaction that moves runs leaves for the sequencer: its events (invariant I5) and its changes of the counts (I4).';
COMMENT ON COLUMN outbox_new.id IS 'Order of insertion, not of commit.';
COMMENT ON COLUMN outbox_new.at IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.taken_until IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.events IS 'How many events the row expands to.';
COMMENT ON COLUMN outbox_new.kinds IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.seqs IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.runs IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.retries_left IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.priorities IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.details IS 'As in outbox.';
COMMENT ON COLUMN outbox_new.queues IS 'The queues whose counts change, each once; null if none do.';
COMMENT ON COLUMN outbox_new.pending IS 'For each of those queues, the change of its pending runs.';
COMMENT ON COLUMN outbox_new.claimed IS 'For each of those queues, the change of its running claims.';
COMMENT ON TABLE counters IS
    'Counts. The exact count is this plus the changes in outbox_new that are not added yet (invariant I4).';
COMMENT ON COLUMN outbox.id IS 'Order in which the rows were moved here; outbox_order has the positions.';
COMMENT ON TABLE outbox IS
    'Transitions, many per row, as the transaction that performed them left them in outbox_new. Payloads are rendered when read.';

CREATE FUNCTION unsequenced(mark bigint) RETURNS SETOF outbox_new LANGUAGE sql STABLE SET enable_seqscan = off
    AS 'SELECT * FROM outbox_new WHERE id > mark';
COMMENT ON FUNCTION unsequenced IS
    'The rows of outbox_new after a mark. Whatever the statistics say, it does not walk over the rows before it, which an old snapshot may keep.';

CREATE VIEW transitions AS
SELECT at, taken_until, kinds, seqs, runs, retries_left, priorities, details FROM outbox
UNION ALL SELECT at, taken_until, kinds, seqs, runs, retries_left, priorities, details FROM outbox_new;
COMMENT ON VIEW transitions IS 'Every transition that is kept, with a position or without. For checks and for people; it reads whole tables.';

ALTER TABLE task_queues ADD COLUMN polled boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN task_queues.polled IS
    'Whether messages of the queue were ever requested: only then can some of its runs have hidden messages. Never taken back.';
UPDATE task_queues SET polled = true WHERE id IN (SELECT queue FROM pending WHERE hidden_until IS NOT NULL OR dequeued > 0);

ALTER TABLE outbox_new SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
