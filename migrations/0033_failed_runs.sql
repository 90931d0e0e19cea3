-- Failed runs by queue and time, for problems and for lists of failures.
SET LOCAL lock_timeout = '5s';

CREATE TABLE failed_runs (
    queue        integer NOT NULL,
    resolved     timestamptz NOT NULL,
    seq          bigint NOT NULL,
    run          smallint NOT NULL,
    state        smallint NOT NULL,
    reason       smallint NOT NULL,
    ended_by     smallint,
    exit_code    integer,
    worker_group text,
    worker_id    text,
    final        boolean NOT NULL,
    blocks       boolean NOT NULL,
    PRIMARY KEY (queue, resolved, seq, run)
);
COMMENT ON TABLE failed_runs IS 'Runs that ended as failed or exception, retried or not, copied from the event log and kept for 14 days. Completed runs write nothing here.';
COMMENT ON COLUMN failed_runs.queue IS 'task_queues.id.';
COMMENT ON COLUMN failed_runs.resolved IS 'When the run ended.';
COMMENT ON COLUMN failed_runs.seq IS 'tasks.seq. The task may have been purged since.';
COMMENT ON COLUMN failed_runs.run IS 'Number of the run.';
COMMENT ON COLUMN failed_runs.state IS '4 failed, 5 exception.';
COMMENT ON COLUMN failed_runs.reason IS 'Codes of ReasonResolved.';
COMMENT ON COLUMN failed_runs.ended_by IS 'Codes of EndedBy; null if the reason tells it.';
COMMENT ON COLUMN failed_runs.exit_code IS 'Exit code as reported; null without.';
COMMENT ON COLUMN failed_runs.worker_group IS 'workerGroup of the claim; null if there was none.';
COMMENT ON COLUMN failed_runs.worker_id IS 'workerId of the claim; null if there was none.';
COMMENT ON COLUMN failed_runs.final IS 'True if the run resolved its task, false if another run followed.';
COMMENT ON COLUMN failed_runs.blocks IS 'True if unscheduled tasks needed the task to be completed when it ended.';
-- Few rows: most failed tasks have no dependents.
CREATE INDEX failed_runs_blocks ON failed_runs (resolved) WHERE blocks;
INSERT INTO log_readers (name, position)
SELECT 'failures', COALESCE((SELECT first + events - 1 FROM outbox_order ORDER BY first DESC LIMIT 1), 0);

-- Paused queues are few among many. An update of another column touches no entry.
CREATE INDEX task_queues_paused ON task_queues (id) WHERE paused IS NOT NULL;
