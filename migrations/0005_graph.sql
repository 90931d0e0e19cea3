-- Dependencies between tasks, what groups of tasks need, and expiry. ARCHITECTURE.md explains who reads and writes them.

SET LOCAL lock_timeout = '5s';

-- -------------------------------------------------------------------------------------------------------- dependencies

CREATE TABLE dependencies (
    required  bigint NOT NULL,
    dependent uuid NOT NULL,
    any_end   boolean NOT NULL,
    satisfied boolean NOT NULL,
    PRIMARY KEY (required, dependent)
);
COMMENT ON TABLE dependencies IS 'One row per pair of tasks of which one waits for the other. Kept until either expires.';
COMMENT ON COLUMN dependencies.required IS 'tasks.seq of the task that is waited for.';
COMMENT ON COLUMN dependencies.dependent IS 'tasks.id of the task that waits.';
COMMENT ON COLUMN dependencies.any_end IS 'True for all-resolved, false for all-completed.';
COMMENT ON COLUMN dependencies.satisfied IS 'Set once the required task has ended as it must, and never taken back: not by a rerun either.';
CREATE INDEX dependencies_unsatisfied ON dependencies (required, any_end, dependent) WHERE NOT satisfied;
CREATE INDEX dependencies_of ON dependencies (dependent, satisfied);

CREATE TABLE dependency_work (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq  bigint NOT NULL,
    kind smallint NOT NULL CHECK (kind IN (3, 4, 5, 7))
);
COMMENT ON TABLE dependency_work IS
    'Transitions that dependencies wait for, taken from the event log; a row goes when its dependencies are settled.';
COMMENT ON COLUMN dependency_work.id IS 'Order of work.';
COMMENT ON COLUMN dependency_work.seq IS 'tasks.seq: of a task that was resolved, or was created and waits.';
COMMENT ON COLUMN dependency_work.kind IS 'As in outbox.kinds.';

-- --------------------------------------------------------------------------------------------------- readers of the log

CREATE TABLE log_readers (
    name     text PRIMARY KEY,
    position bigint NOT NULL
);
COMMENT ON TABLE log_readers IS 'Passes that act on the event log, and how far each has come.';
COMMENT ON COLUMN log_readers.name IS 'What the pass is called.';
COMMENT ON COLUMN log_readers.position IS 'Every event up to this position has been acted on.';
-- What happened before had no dependencies, and nobody was told of groups.
INSERT INTO log_readers
    SELECT name, COALESCE((SELECT max(first + events - 1) FROM outbox_order), 0)
    FROM (VALUES ('dependencies'), ('groups')) AS reader(name);

ALTER TABLE outbox ADD COLUMN details text[];
COMMENT ON COLUMN outbox.details IS 'JSON text of what else a transition''s events say, one for each; null where they say no more.';
COMMENT ON COLUMN outbox.kinds IS
    '1 created and pending; 2 claimed; 3 completed; 4 failed; 5 exception; 6 exception, and the next run is pending; '
    '7 created and unscheduled; 8 a run is pending; 9 the priority was changed; 10 every task of the group is resolved; '
    '11 the group was sealed; 12 the priority of the group''s tasks was changed.';
COMMENT ON COLUMN outbox.seqs IS 'tasks.seq of each transition; 0 for 11 and 12, whose details name the group.';

-- --------------------------------------------------------------------------------------------------- groups and expiry

ALTER TABLE tasks ADD COLUMN resolved_before boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN tasks.resolved_before IS 'Whether a rerun began after the task had been resolved.';

-- A task whose group is named after it is found by its id, so that a task without a group of its own costs nothing here.
CREATE INDEX tasks_group ON tasks (task_group, id) WHERE id <> task_group;
CREATE INDEX task_times_expires ON task_times (expires);
CREATE INDEX task_groups_expires ON task_groups (expires);

ALTER TABLE dependencies SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dependency_work SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE log_readers SET (fillfactor = 50);
