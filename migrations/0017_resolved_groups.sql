-- The groups pass emits the end of a group with the first part of the log that shows it, and not again for what it had seen by then:
-- so it need not read on to what comes after a part.
SET LOCAL lock_timeout = '5s';

CREATE TABLE resolved_groups (
    id      uuid PRIMARY KEY,
    through bigint NOT NULL
);
COMMENT ON TABLE resolved_groups IS
    'Groups whose task-group-resolved was emitted before the groups pass had read all of the resolutions that it covers. Nearly empty while the pass does not lag.';
COMMENT ON COLUMN resolved_groups.id IS 'task_groups.id.';
COMMENT ON COLUMN resolved_groups.through IS
    'The event covers the resolutions up to this position of the log; when the pass has read up to there, the row is deleted.';
CREATE INDEX resolved_groups_through ON resolved_groups (through);
ALTER TABLE resolved_groups SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
