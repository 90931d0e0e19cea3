-- Unique names of tasks, and a limit of the pending tasks of a queue.
SET LOCAL lock_timeout = '5s';

ALTER TABLE task_queues
    ADD COLUMN on_duplicate smallint,
    ADD COLUMN backlog_tasks bigint,
    ADD COLUMN backlog_noted timestamptz;
COMMENT ON COLUMN task_queues.on_duplicate IS
    'Codes of OnDuplicate: treatment of a new task while an unresolved task has its name. Null without a policy that sets it.';
COMMENT ON COLUMN task_queues.backlog_tasks IS
    'Limit of pending runs, delayed ones included, for creates; null without. A queue with a limit has traits that are not null.';
COMMENT ON COLUMN task_queues.backlog_noted IS 'Time of the last note about the limit; null before the first.';

COMMENT ON COLUMN task_options.unique_name IS
    'Name that at most one unresolved task of the queue and scheduler has, apart from tasks that wait for it.';

ALTER TABLE dependencies ADD COLUMN fixed boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN dependencies.fixed IS
    'True if the required task has the unique name of the dependent one, which no request may schedule until it has ended.';

CREATE TABLE unique_names (
    id      bigint PRIMARY KEY,
    holders bigint[] NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE unique_names IS 'One row per unique name. Creates and reruns lock the id by an advisory lock first.';
COMMENT ON COLUMN unique_names.id IS 'unique_name_id of the name.';
COMMENT ON COLUMN unique_names.holders IS
    'tasks.seq of all tasks with the name that may be unresolved. Their states say whether they are.';
ALTER TABLE unique_names ALTER COLUMN holders SET STATISTICS 0;

-- By the name of the queue: a submission locks names before its queues have keys.
CREATE FUNCTION unique_name_id(queue text, scheduler text, name text) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN
    ('x' || left(md5(queue || ':' || scheduler || ':' || name), 16))::bit(64)::bigint;
COMMENT ON FUNCTION unique_name_id IS 'unique_names.id of a name; null for null.';
