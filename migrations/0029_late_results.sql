-- Late results of runs that were taken from their workers.
SET LOCAL lock_timeout = '5s';

ALTER TABLE task_queues ADD COLUMN late_results boolean;
COMMENT ON COLUMN task_queues.late_results IS
    'True if the result of a run that was taken from its worker may count: `lateResult` of the policy; null otherwise.';
COMMENT ON COLUMN runs.late_of IS
    'The run whose late result this is, which was made for it; null for all others. The artifacts stay with the reported run.';
