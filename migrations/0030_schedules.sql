-- Schedules: tasks at the times of a cron pattern.
CREATE TABLE schedules (
    name text COLLATE "C" PRIMARY KEY,
    cron text NOT NULL,
    timezone text NOT NULL,
    task text COMPRESSION lz4 NOT NULL,
    deadline_after double precision,
    expires_after double precision,
    catch_up smallint NOT NULL,
    paused boolean NOT NULL,
    next_at timestamptz,
    try_at timestamptz,
    client_id text NOT NULL,
    created timestamptz NOT NULL,
    changed timestamptz NOT NULL,
    last_at timestamptz,
    last_outcome smallint,
    last_task uuid,
    error text
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON schedules (try_at) WHERE NOT paused;
COMMENT ON TABLE schedules IS 'Schedules by name.';
COMMENT ON COLUMN schedules.name IS 'The name, unique in the database.';
COMMENT ON COLUMN schedules.cron IS 'The cron pattern, as given.';
COMMENT ON COLUMN schedules.timezone IS 'The time zone of the pattern: a name of the IANA database.';
COMMENT ON COLUMN schedules.task IS 'JSON: the tasks to create, as in a submission.';
COMMENT ON COLUMN schedules.deadline_after IS 'Seconds from the creation of a task to its deadline; null: as for a submitted task without deadline.';
COMMENT ON COLUMN schedules.expires_after IS 'Seconds from the creation of a task until it expires; null: as for a submitted task without expiry.';
COMMENT ON COLUMN schedules.catch_up IS 'What happens to times at which no server ran: 0 none, 1 last, 2 all.';
COMMENT ON COLUMN schedules.paused IS 'True: no tasks are created.';
COMMENT ON COLUMN schedules.next_at IS 'The time of the pattern to be made next, possibly in the past; null if there is no further one.';
COMMENT ON COLUMN schedules.try_at IS 'When the pass reads the row: at next_at, or later to try again. Never stored earlier than db_now.';
COMMENT ON COLUMN schedules.client_id IS 'The client that stored it last, whose scopes count each time.';
COMMENT ON COLUMN schedules.created IS 'When it was first stored.';
COMMENT ON COLUMN schedules.changed IS 'When it was last stored, paused or resumed.';
COMMENT ON COLUMN schedules.last_at IS 'The last time of the pattern that was handled; null if none was.';
COMMENT ON COLUMN schedules.last_outcome IS 'What happened then: 1 created, 2 skipped, 3 failed.';
COMMENT ON COLUMN schedules.last_task IS 'The task of that time, or the one that had its unique name; null if there is none.';
COMMENT ON COLUMN schedules.error IS 'Why no task could be created the last time; null if one was.';
