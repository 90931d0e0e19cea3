-- Runs of limited queues wait until a claim is decided: none is ready before a worker takes it.
--
-- Servers of the release before may go on meanwhile. They start no waiting run, because a trigger refuses what their pass does, and claim
-- none, because none is ready. A policy must not be changed through them. Their statements name admission_claims and task_queues.rated,
-- which stay for that, unused, until the next release.
SET LOCAL lock_timeout = '5s';

-- In the order in which claims lock them.
LOCK TABLE pending, claims IN ACCESS EXCLUSIVE MODE;

DROP TRIGGER claims_begin ON claims;
DROP FUNCTION note_rated_claim;
DROP TRIGGER pending_freed ON pending;
COMMENT ON FUNCTION announce_end IS 'A run of a key has ended, or is another one now.';
DELETE FROM admission_claims;
UPDATE task_queues SET rated = false WHERE rated;
COMMENT ON TABLE admission_claims IS 'Unused: servers of the release before name it.';
COMMENT ON COLUMN task_queues.rated IS 'Unused: servers of the release before name it.';

CREATE FUNCTION refuse_ready() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run % of task % waits until a claim is decided; this server is of an earlier release', OLD.run, OLD.id;
END $$;
COMMENT ON FUNCTION refuse_ready IS 'A server of the release before would make a run ready that is to wait.';
CREATE TRIGGER pending_ready BEFORE UPDATE OF hold ON pending FOR EACH ROW
    WHEN (OLD.hold = 2 AND NEW.hold IS NULL AND NEW.key_id IS NOT NULL) EXECUTE FUNCTION refuse_ready();

COMMENT ON COLUMN task_queues.key_by IS
    'Codes of KeyBy: what the key of a run is. Null in a queue without limits; otherwise each run waits until a claim is decided.';
COMMENT ON COLUMN pending.waited IS 'The place that an assigned run had, should it have to wait again; null of others.';
COMMENT ON COLUMN counters.waiting IS 'Pending runs that wait for admission.';
COMMENT ON TABLE admission_queues IS
    'Limited queues. The transaction that has locked a row is the only one that starts runs of the queue.';
COMMENT ON COLUMN admission_heads.ready IS 'Whether it has a waiting run and the limits of its key allow one more.';

-- The next run of a task waits: for the servers of the release before, which read it from the run.
UPDATE task_queues SET traits = COALESCE(traits, 0) | 16 WHERE key_by IS NOT NULL AND COALESCE(traits, 0) & 16 = 0;
UPDATE claims c SET traits = COALESCE(c.traits, 0) | 16 FROM task_queues q
WHERE q.id = c.queue AND q.key_by IS NOT NULL AND c.key_id IS NOT NULL AND COALESCE(c.traits, 0) & 16 = 0;

-- Ready runs wait again at their old places. Receipts that pollers hold for them are void. The trigger announces each run.
WITH waiting AS (
    UPDATE pending p SET hold = 2, ord = COALESCE(p.waited, p.ord), waited = NULL, session = NULL,
        reserved_until = '3000-01-01 00:00Z', hidden_until = '3000-01-01 00:00Z', message = p.message + 1, receipt = NULL, dequeued = 0
    FROM task_queues q
    WHERE q.id = p.queue AND q.key_by IS NOT NULL AND p.key_id IS NOT NULL AND p.hold IS NULL
    RETURNING p.queue
)
INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed, waiting)
SELECT now(), 0, '{}', '{}', '{}', '{}', ARRAY[queue], ARRAY[0], ARRAY[0], ARRAY[count(*)::int] FROM waiting GROUP BY queue;
-- And all keys are looked at: claims may have ended, and times of rates have another meaning.
INSERT INTO admission_work (queue, key_id) SELECT queue, id FROM admission_keys;

-- For the operator's page: the first waiting runs of a queue.
CREATE INDEX pending_waiting_queue ON pending (queue, priority, ord) WHERE hold = 2;

INSERT INTO settings (name, value) VALUES ('needed-migration', '25') ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value;
