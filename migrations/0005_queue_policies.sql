-- Policies of queues, and pauses.
SET LOCAL lock_timeout = '5s';

CREATE TABLE queue_policies (
    queue     integer PRIMARY KEY,
    version   bigint NOT NULL,
    policy    text NOT NULL,
    updated   timestamptz NOT NULL,
    client_id text NOT NULL
);
COMMENT ON TABLE queue_policies IS 'What queues say about their runs. A queue without a row has no policy.';
COMMENT ON COLUMN queue_policies.queue IS 'task_queues.id.';
COMMENT ON COLUMN queue_policies.version IS 'Grows with each change, also over a removal.';
COMMENT ON COLUMN queue_policies.policy IS 'JSON text, as it is shown.';
COMMENT ON COLUMN queue_policies.updated IS 'When it was changed last.';
COMMENT ON COLUMN queue_policies.client_id IS 'clientId that changed it last.';

ALTER TABLE task_queues
    ADD COLUMN policy_version bigint NOT NULL DEFAULT 0,
    ADD COLUMN paused         timestamptz,
    ADD COLUMN paused_until   timestamptz,
    ADD COLUMN paused_by      text,
    ADD COLUMN pause_reason   text;
COMMENT ON COLUMN task_queues.policy_version IS 'The version that its policy has, or that the last one had which was removed.';
COMMENT ON COLUMN task_queues.paused IS 'Since when workers get nothing of the queue; null while they do. Claims and polls test it in their statements.';
COMMENT ON COLUMN task_queues.paused_until IS 'When the queue resumes by itself; null if it does not.';
COMMENT ON COLUMN task_queues.paused_by IS 'clientId that paused it.';
COMMENT ON COLUMN task_queues.pause_reason IS 'Why, for people; null if none was given.';
CREATE INDEX task_queues_paused_until ON task_queues (paused_until) WHERE paused_until IS NOT NULL;
