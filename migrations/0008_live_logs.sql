-- Logs of runs while they are written. Unlogged: a chunk costs no write-ahead log and no flush, and what a crash of the database
-- loses is only the view of a log that its worker has whole.
CREATE UNLOGGED TABLE live_logs (
    seq     bigint NOT NULL,
    run     smallint NOT NULL,
    next    bigint NOT NULL,
    chunks  integer NOT NULL,
    kept    bigint NOT NULL,
    look_at timestamptz NOT NULL,
    PRIMARY KEY (seq, run)
) WITH (fillfactor = 50);
COMMENT ON TABLE live_logs IS
    'Runs that have a live log. Half of each page is free, and nothing that a chunk changes is in an index.';
COMMENT ON COLUMN live_logs.seq IS 'tasks.seq.';
COMMENT ON COLUMN live_logs.run IS 'The run.';
COMMENT ON COLUMN live_logs.next IS 'The offset behind the last byte.';
COMMENT ON COLUMN live_logs.chunks IS 'How many chunks it has had.';
COMMENT ON COLUMN live_logs.kept IS 'Bytes of the chunks that are kept, and what their rows take.';
COMMENT ON COLUMN live_logs.look_at IS 'When the pass looks next whether the run has ended.';
CREATE INDEX live_logs_look_at ON live_logs (look_at);

CREATE UNLOGGED TABLE live_log_chunks (
    seq    bigint NOT NULL,
    run    smallint NOT NULL,
    start  bigint NOT NULL,
    number integer NOT NULL,
    bytes  bytea NOT NULL,
    PRIMARY KEY (seq, run, start)
);
-- Compressed, a reader of a part would read all of it.
ALTER TABLE live_log_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;
COMMENT ON TABLE live_log_chunks IS 'What was written of live logs. The oldest chunks of a long log are deleted.';
COMMENT ON COLUMN live_log_chunks.seq IS 'tasks.seq.';
COMMENT ON COLUMN live_log_chunks.run IS 'The run.';
COMMENT ON COLUMN live_log_chunks.start IS 'The offset of its first byte in the whole log.';
COMMENT ON COLUMN live_log_chunks.number IS 'Counted from 1 in each log.';
COMMENT ON COLUMN live_log_chunks.bytes IS 'At most 64 KiB.';
