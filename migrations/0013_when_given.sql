-- When a run was given to the session of a worker.
SET LOCAL lock_timeout = '5s';

ALTER TABLE pending ADD COLUMN given timestamptz;
COMMENT ON COLUMN pending.given IS 'When the run was given to the session that it is assigned to; without meaning if it is not assigned.';
