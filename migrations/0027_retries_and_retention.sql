-- Retries of failed runs, default deadlines and retention of a queue, and the failures of runs.
SET LOCAL lock_timeout = '5s';

ALTER TABLE task_queues
    ADD COLUMN deadline_after double precision,
    ADD COLUMN retain_completed double precision,
    ADD COLUMN retain_failed double precision;
COMMENT ON COLUMN task_queues.deadline_after IS
    'Seconds from the creation of a submitted task without deadline to its deadline; null without a policy that sets it.';
COMMENT ON COLUMN task_queues.retain_completed IS
    'Seconds from the end of a completed task to its purge, at the latest when it expires: Infinity until then; null without `retain` in the policy.';
COMMENT ON COLUMN task_queues.retain_failed IS 'The same for tasks resolved as failed or exception.';

ALTER TABLE task_options ADD COLUMN retry_failed boolean;
COMMENT ON COLUMN task_options.retry_failed IS 'Whether a run reported as failed is followed by another; null as its queue says.';

ALTER TABLE results ADD COLUMN failure text, ALTER COLUMN result DROP NOT NULL;
COMMENT ON COLUMN results.failure IS 'JSON: why the run failed, as reported; null without.';
COMMENT ON COLUMN results.result IS 'JSON, as reported; null without.';

-- Servers of the release before call the function with five arguments.
CREATE FUNCTION run_traits(of_queue smallint, delivery smallint, complete_time double precision, retry_first double precision,
                           retry_most double precision, retry_failed boolean)
RETURNS smallint LANGUAGE sql IMMUTABLE RETURN
    NULLIF(COALESCE(delivery, of_queue & 3, 0) | COALESCE(of_queue & 16, 0)
           | CASE WHEN retry_first IS NULL THEN COALESCE(of_queue & 4, 0) WHEN retry_first > 0 AND retry_most > 0 THEN 4 ELSE 0 END
           | CASE WHEN complete_time IS NULL THEN 0 ELSE 8 END
           | CASE WHEN retry_failed IS NULL THEN COALESCE(of_queue & 1024, 0) WHEN retry_failed THEN 1024 ELSE 0 END, 0)::smallint;
COMMENT ON FUNCTION run_traits(smallint, smallint, double precision, double precision, double precision, boolean) IS
    'The traits of a run that is not delayed, from those of its queue and the options of its task.';
