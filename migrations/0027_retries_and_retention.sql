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

CREATE FUNCTION kept_until(state smallint, resolved timestamptz, expires timestamptz, retain_completed double precision,
                           retain_failed double precision)
RETURNS timestamptz LANGUAGE sql STABLE RETURN
    LEAST(expires, resolved + make_interval(secs => NULLIF(COALESCE(
        CASE WHEN state = 3 THEN retain_completed ELSE retain_failed END,
        -- As marked by the rules: it was submitted without `expires`. 7 and 30 days.
        CASE WHEN extract(microseconds FROM expires)::bigint % 1000 = 1
             THEN CASE WHEN state = 3 THEN 604800 ELSE 2592000 END END), 'Infinity')));
COMMENT ON FUNCTION kept_until IS
    'Until when a task is kept that was resolved then, in a queue with this retention: kept_until of the rules. An unresolved task: until it expires.';

CREATE FUNCTION purge_date(task_seq bigint, now timestamptz) RETURNS timestamptz LANGUAGE sql STABLE RETURN (
    SELECT CASE WHEN k.date <= now AND d.expires > now
                     AND EXISTS (SELECT FROM dependencies e WHERE e.required = task_seq AND NOT e.satisfied)
                THEN LEAST(d.expires, now + interval '1 hour') ELSE k.date END
    FROM task_definitions d LEFT JOIN tasks t ON t.id = d.id LEFT JOIN task_queues q ON q.id = t.queue
    LEFT JOIN runs r ON r.seq = d.seq AND r.run = t.run
    CROSS JOIN LATERAL (
        SELECT kept_until(t.state, r.resolved, d.expires, q.retain_completed, q.retain_failed) AS date
    ) k
    WHERE d.seq = task_seq);
COMMENT ON FUNCTION purge_date IS
    'When a task may be purged; null if it does not exist. Before it expires not while another task waits for it, which is tested again an hour later.';

CREATE INDEX task_queues_retaining ON task_queues (id) WHERE retain_completed IS NOT NULL;
COMMENT ON TABLE due IS
    'When something is due for tasks, many per row; their own dates are in their definitions. An unresolved task is in one with a deadline, a resolved one may be in several.';
COMMENT ON COLUMN due.deadline IS
    'The earliest deadline of these tasks, none of which was dealt with; null in a row of tasks that wait for their purge.';
COMMENT ON COLUMN due.expires IS 'When the first of these tasks may be purged; null in a row of tasks that wait for their deadline.';
COMMENT ON COLUMN task_definitions.expires IS
    'When the task may be purged at the latest. One microsecond more than the date shown marks a submission without `expires`.';
COMMENT ON COLUMN artifacts.expires IS
    'Until when it can be read: never past the expiry of its task. Lowered only when its task is about to be purged before that.';

COMMENT ON COLUMN outbox.kinds IS
    '1 created and pending; 2 claimed; 3 completed; 4 failed; 5 exception; 6 exception, and the next run is pending; '
    '7 created and unscheduled; 8 a run is pending; 9 the priority was changed; 10 every task of the group is resolved; '
    '11 the group was sealed; 12 the priority of the group''s tasks was changed; 13 an artifact can be read; '
    '15 failed, and the next run is pending.';
