-- Numbers of queues over time.
CREATE TABLE queue_minutes (
    queue        integer NOT NULL,
    step         smallint NOT NULL,
    minute       timestamptz NOT NULL,
    created      integer NOT NULL,
    started      integer NOT NULL,
    lost         integer NOT NULL,
    reasons      smallint[] NOT NULL,
    ends         integer[] NOT NULL,
    waits        integer[] NOT NULL,
    runs         integer[] NOT NULL,
    pending_most integer NOT NULL,
    claimed_most integer NOT NULL,
    PRIMARY KEY (queue, step, minute)
) WITH (fillfactor = 70);
CREATE INDEX queue_minutes_age ON queue_minutes (step, minute);
COMMENT ON TABLE queue_minutes IS
    'Numbers of a queue in a minute, in older rows in ten minutes or an hour. A time in which nothing was counted has no row.';
COMMENT ON COLUMN queue_minutes.queue IS
    'task_queues.id; 0 for all queues beyond the limit of a server together, -1 for all queues together.';
COMMENT ON COLUMN queue_minutes.step IS 'Minutes that the row covers: 1, 10 or 60.';
COMMENT ON COLUMN queue_minutes.minute IS 'Start of that time.';
COMMENT ON COLUMN queue_minutes.created IS 'New tasks.';
COMMENT ON COLUMN queue_minutes.started IS 'Claimed runs.';
COMMENT ON COLUMN queue_minutes.lost IS 'Runs whose worker was lost.';
COMMENT ON COLUMN queue_minutes.reasons IS 'Codes of ReasonResolved for which tasks were resolved.';
COMMENT ON COLUMN queue_minutes.ends IS 'Number of tasks that were resolved for each of these reasons.';
COMMENT ON COLUMN queue_minutes.waits IS
    'Claimed runs by the seconds that they were pending: up to 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400, and more.';
COMMENT ON COLUMN queue_minutes.runs IS 'Ended runs of workers by their seconds, in the same buckets.';
COMMENT ON COLUMN queue_minutes.pending_most IS 'Most pending runs at once, delayed ones excluded.';
COMMENT ON COLUMN queue_minutes.claimed_most IS 'Most claimed runs at once.';
ALTER TABLE queue_minutes
    ALTER COLUMN reasons SET STATISTICS 0,
    ALTER COLUMN ends SET STATISTICS 0,
    ALTER COLUMN waits SET STATISTICS 0,
    ALTER COLUMN runs SET STATISTICS 0;
