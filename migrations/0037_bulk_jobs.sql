-- Jobs: changes of many tasks in the name of a client.
SET LOCAL lock_timeout = '5s';

CREATE TABLE bulk_jobs (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         uuid NOT NULL UNIQUE,
    client_id  text COLLATE "C" NOT NULL,
    trace_id   text COLLATE "C",
    audit      bigint NOT NULL,
    action     smallint NOT NULL,
    priority   smallint,
    filter     jsonb,
    tasks      uuid[],
    cursor     text,
    slices     integer NOT NULL DEFAULT 0,
    seen       integer NOT NULL DEFAULT 0,
    found      integer NOT NULL,
    more       boolean NOT NULL,
    done       integer NOT NULL DEFAULT 0,
    unchanged  integer NOT NULL DEFAULT 0,
    refused    integer NOT NULL DEFAULT 0,
    refusals   jsonb NOT NULL DEFAULT '[]',
    started    timestamptz NOT NULL,
    newest     bigint NOT NULL,
    changed    timestamptz NOT NULL,
    ended      timestamptz,
    stopped_by text COLLATE "C",
    error      text,
    CHECK ((filter IS NULL) <> (tasks IS NULL))
) WITH (fillfactor = 50);
CREATE INDEX bulk_jobs_running ON bulk_jobs (seq) WHERE ended IS NULL;
CREATE INDEX bulk_jobs_ended ON bulk_jobs (ended) WHERE ended IS NOT NULL;
COMMENT ON TABLE bulk_jobs IS
    'Jobs. Each slice changes tasks and moves the position in one transaction. Kept for 14 days after the end.';
COMMENT ON COLUMN bulk_jobs.seq IS 'Order of the starts.';
COMMENT ON COLUMN bulk_jobs.id IS 'The id, chosen by the client or made by the server.';
COMMENT ON COLUMN bulk_jobs.client_id IS 'The client that started the job. Its scopes are checked for each task.';
COMMENT ON COLUMN bulk_jobs.trace_id IS 'Trace id of the request that started the job.';
COMMENT ON COLUMN bulk_jobs.audit IS 'audit.id of the start, whose detail has the progress.';
COMMENT ON COLUMN bulk_jobs.action IS 'What is done to each task: 1 cancel, 2 rerun, 3 priority.';
COMMENT ON COLUMN bulk_jobs.priority IS 'The new priority, for the action priority; null otherwise.';
COMMENT ON COLUMN bulk_jobs.filter IS 'Conditions for tasks; null if the tasks are listed.';
COMMENT ON COLUMN bulk_jobs.tasks IS 'The listed tasks; null with conditions.';
COMMENT ON COLUMN bulk_jobs.cursor IS 'Position after the last slice; null at the beginning.';
COMMENT ON COLUMN bulk_jobs.slices IS 'Number of committed slices. A slice is done only if no other has been since it was read.';
COMMENT ON COLUMN bulk_jobs.seen IS 'Tasks that slices have read; limited.';
COMMENT ON COLUMN bulk_jobs.found IS 'Number of tasks when the job was started.';
COMMENT ON COLUMN bulk_jobs.more IS 'True if counting took too long, so there may be more tasks.';
COMMENT ON COLUMN bulk_jobs.done IS 'Changed tasks.';
COMMENT ON COLUMN bulk_jobs.unchanged IS 'Tasks that needed no change.';
COMMENT ON COLUMN bulk_jobs.refused IS 'Refused tasks.';
COMMENT ON COLUMN bulk_jobs.refusals IS 'The first refused tasks: a JSON array of objects with taskId, code and message.';
COMMENT ON COLUMN bulk_jobs.started IS 'When the job was started. With conditions, tasks that are resolved later are left out.';
COMMENT ON COLUMN bulk_jobs.newest IS 'The highest tasks.seq at the start. With conditions, later tasks are left out.';
COMMENT ON COLUMN bulk_jobs.changed IS 'When the last slice was done. The job that waits longest is next.';
COMMENT ON COLUMN bulk_jobs.ended IS 'When the job ended; null while it runs.';
COMMENT ON COLUMN bulk_jobs.stopped_by IS 'The client that stopped the job; null if none did.';
COMMENT ON COLUMN bulk_jobs.error IS 'Why the job ended before all tasks were tried; null if it did not.';

COMMENT ON COLUMN audit.kind IS
    'Kind of the object: task, task-group, queue, worker, client, role, schedule, subscription, database-role or job.';
