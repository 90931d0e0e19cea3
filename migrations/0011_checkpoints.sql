-- What the worker of a task stores for the next one, and what others want of it meanwhile.
SET LOCAL lock_timeout = '5s';

CREATE TABLE checkpoints (
    seq        bigint PRIMARY KEY,
    run        smallint NOT NULL,
    checkpoint text NOT NULL,
    updated    timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE checkpoints IS
    'How far tasks have come, as their workers said last: for people, and for the next run. Kept with the task. Half of each page is free, and nothing that changes is in an index.';
COMMENT ON COLUMN checkpoints.seq IS 'tasks.seq.';
COMMENT ON COLUMN checkpoints.run IS 'The run whose worker stored it.';
COMMENT ON COLUMN checkpoints.checkpoint IS 'Compact JSON, at most 65,536 bytes.';
COMMENT ON COLUMN checkpoints.updated IS 'When it was stored.';

CREATE SEQUENCE task_command_id;
COMMENT ON SEQUENCE task_command_id IS 'task_commands.id.';
CREATE TABLE task_commands (
    seq          bigint PRIMARY KEY,
    id           bigint NOT NULL,
    command      smallint NOT NULL,
    wanted_until timestamptz,
    sent         timestamptz NOT NULL,
    client_id    text NOT NULL
);
COMMENT ON TABLE task_commands IS
    'The last command for a task, until its worker has carried it out, or for a week. Deleted with the task too.';
COMMENT ON COLUMN task_commands.seq IS 'tasks.seq.';
COMMENT ON COLUMN task_commands.id IS 'Tells commands apart; a later one of the same task has a higher one.';
COMMENT ON COLUMN task_commands.command IS 'Codes of TaskCommand.';
COMMENT ON COLUMN task_commands.wanted_until IS 'Until when the task is to sleep; null with other commands.';
COMMENT ON COLUMN task_commands.sent IS 'When it was given.';
COMMENT ON COLUMN task_commands.client_id IS 'clientId that gave it.';
CREATE INDEX task_commands_sent ON task_commands (sent);
