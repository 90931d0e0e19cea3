-- An end that a rerun takes back counts for the tasks that waited for it, and not for those that are created after the rerun, however
-- late the dependency pass comes to it.
SET LOCAL lock_timeout = '5s';

ALTER TABLE dependency_work ADD COLUMN dependents_to bigint;
COMMENT ON COLUMN dependency_work.dependents_to IS
    'Of the end of a task: it counts for dependents whose tasks.seq is not higher. Null for all, and of a task that was created.';
