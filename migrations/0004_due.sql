-- When something is due for tasks: one row for the tasks that a statement creates, instead of one for each of them.
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
