-- Fewer rows for a task: one row of what is due for all tasks that a statement creates, and no row for the group of a task that is
-- alone in it.
SET LOCAL lock_timeout = '5s';

CREATE TABLE due (
    deadline timestamptz,
    expires  timestamptz,
    seqs     bigint[] NOT NULL
);
COMMENT ON TABLE due IS
    'When something is due for tasks, many per row; their own dates are in their definitions. A task is in one row, first in one with a deadline.';
COMMENT ON COLUMN due.deadline IS
    'The earliest deadline of these tasks, none of which was dealt with; null in a row of tasks that wait for their expiry.';
COMMENT ON COLUMN due.expires IS
    'When the first of these tasks may be purged, all of which had their deadline; null in a row of tasks that wait for it.';
COMMENT ON COLUMN due.seqs IS 'tasks.seq of the tasks.';

INSERT INTO due (deadline, seqs)
SELECT min(deadline), array_agg(seq ORDER BY deadline)
FROM (SELECT seq, deadline, row_number() OVER (ORDER BY deadline) AS n FROM task_times WHERE deadline IS NOT NULL) x
GROUP BY n / 100;
INSERT INTO due (expires, seqs)
SELECT min(expires), array_agg(seq ORDER BY expires)
FROM (SELECT seq, expires, row_number() OVER (ORDER BY expires) AS n FROM task_times WHERE deadline IS NULL) x
GROUP BY n / 100;
DROP TABLE task_times;

-- A row is in one of them.
CREATE INDEX due_deadline ON due (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX due_expires ON due (expires) WHERE expires IS NOT NULL;
ALTER TABLE due SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE tasks ADD COLUMN lone boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN tasks.lone IS
    'Whether the task is alone in the group that is named after it, which then has no row in task_groups. Not again once it has one.';
COMMENT ON TABLE task_groups IS
    'Groups of tasks, each owned by one scheduler. The group of a lone task has no row before another task is added or it is sealed.';

CREATE FUNCTION group_expires(task_expires timestamptz) RETURNS timestamptz LANGUAGE sql STABLE RETURN
    CASE WHEN task_expires < '9999-12-31T22:00:00.001Z'
         THEN to_timestamp(ceil(extract(epoch FROM task_expires + interval '1 hour') / 3600) * 3600) ELSE task_expires END;
COMMENT ON FUNCTION group_expires IS 'Until when the group of a task is kept at least: group_expires of the rules.';

CREATE VIEW known_groups AS
SELECT id, scheduler, expires, sealed FROM task_groups
UNION ALL
SELECT t.id, d.scheduler, group_expires(d.expires), NULL FROM tasks t JOIN task_definitions d ON d.seq = t.seq WHERE t.lone;
COMMENT ON VIEW known_groups IS 'All groups, also those without a row. To be read by id.';
COMMENT ON COLUMN known_groups.id IS 'As in task_groups.';
COMMENT ON COLUMN known_groups.scheduler IS 'As in task_groups.';
COMMENT ON COLUMN known_groups.expires IS 'As in task_groups.';
COMMENT ON COLUMN known_groups.sealed IS 'As in task_groups.';

-- What a statement sees is older than the locks that it takes; a function sees what was committed until it got them. And a lock
-- is kept until the transaction ends: what gets one of these before another statement looks, is seen by it.
CREATE FUNCTION lock_free_groups(ids uuid[], own boolean) RETURNS boolean[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked boolean[] := ARRAY(SELECT pg_try_advisory_xact_lock(uuid_hash_extended(i.id, 0)) FROM unnest(ids) AS i(id));
BEGIN
    RETURN ARRAY(
        SELECT i.locked AND NOT EXISTS (SELECT FROM task_groups g WHERE g.id = i.id)
               AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = i.id AND (own OR t.lone))
        FROM unnest(ids, locked) AS i(id, locked));
END $$;
COMMENT ON FUNCTION lock_free_groups IS
    'Locks the groups until the transaction ends, without waiting. True for those that it got and that nothing exists of: no row, no lone task; for a task''s own group also no task.';
