-- Dead letters: failed tasks that wait for somebody to run them again.
SET LOCAL lock_timeout = '5s';

ALTER TABLE task_queues ADD COLUMN dead_letters boolean;
COMMENT ON COLUMN task_queues.dead_letters IS
    'True if tasks that fail become dead letters: `deadLetters` of the policy; null otherwise.';

ALTER TABLE failed_runs ADD COLUMN dead boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN failed_runs.dead IS
    'True for a dead letter: its task failed with this run, and was neither run again nor copied since. Such a row is kept as long as its task.';
COMMENT ON TABLE failed_runs IS
    'Runs that ended as failed or exception, retried or not, copied from the event log and kept for 14 days, dead letters longer. Completed runs write nothing here.';
CREATE INDEX failed_runs_dead ON failed_runs (queue, resolved, seq) WHERE dead;
-- A purge or a rerun knows the task only.
CREATE INDEX failed_runs_dead_task ON failed_runs (seq) WHERE dead;
-- The purge skips dead letters, however many there are.
CREATE INDEX failed_runs_old ON failed_runs (resolved) WHERE NOT dead;
