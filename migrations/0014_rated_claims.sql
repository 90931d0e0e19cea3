-- Claims of runs that had a token of a rate; and since when a run waits that was delayed before.
SET LOCAL lock_timeout = '5s';

ALTER TABLE pending ADD COLUMN waits_since timestamptz;
COMMENT ON COLUMN pending.waits_since IS 'When its delay ended and it began to wait for admission; null of a run that was not delayed.';

ALTER TABLE task_queues ADD COLUMN rated boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN task_queues.rated IS 'Whether the policy, or the rules of a key, have a rate: then its claims are noted in admission_claims.';
-- Whether a key of a queue has a rate is asked at each change of its rules.
CREATE INDEX queue_keys_rated ON queue_keys (queue) WHERE rate_count IS NOT NULL;
-- Runs of a queue in which only keys have rates waited for admission once and not again; they are refiled.
WITH rated AS (
    UPDATE task_queues q SET rated = true, traits = COALESCE(q.traits, 0) | 16
    FROM queue_policies p
    WHERE p.queue = q.id AND q.key_by IS NOT NULL
      AND (p.policy::jsonb ? 'rate' OR EXISTS (SELECT FROM queue_keys x WHERE x.queue = q.id AND x.rate_count IS NOT NULL))
    RETURNING q.id
)
UPDATE queue_policies p SET refile_stage = 1, refile_since = NULL, refile_cursor = NULL FROM rated r WHERE p.queue = r.id;

CREATE TABLE admission_claims (
    queue  integer NOT NULL,
    key_id bigint NOT NULL,
    id     bigint GENERATED ALWAYS AS IDENTITY,
    at     timestamptz NOT NULL,
    PRIMARY KEY (queue, key_id, id)
);
COMMENT ON TABLE admission_claims IS
    'Claims since the last look at a queue with a rate. Until then their runs kept their tokens: the next start conforms only after them.';
COMMENT ON COLUMN admission_claims.queue IS 'task_queues.id.';
COMMENT ON COLUMN admission_claims.key_id IS 'admission_keys.id.';
COMMENT ON COLUMN admission_claims.id IS 'Order of insertion, not of commit.';
COMMENT ON COLUMN admission_claims.at IS 'When the claim was made.';
ALTER TABLE admission_claims SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

CREATE FUNCTION note_rated_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO admission_claims (queue, key_id, at)
    SELECT NEW.queue, NEW.key_id, NEW.started FROM task_queues q WHERE q.id = NEW.queue AND q.rated;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION note_rated_claim IS 'A run was claimed that may have had a token of a rate.';
-- The bit says that the next run waits for admission again: the queue assigns its runs, or has a rate, or a key of it has one.
CREATE TRIGGER claims_begin AFTER INSERT ON claims FOR EACH ROW WHEN (NEW.key_id IS NOT NULL AND NEW.traits & 16 <> 0)
    EXECUTE FUNCTION note_rated_claim();
