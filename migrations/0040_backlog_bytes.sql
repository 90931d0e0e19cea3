-- A limit of the bytes of pending tasks. Only queues with such a limit count bytes, so that others pay nothing for it.
SET LOCAL lock_timeout = '5s';

ALTER TABLE task_queues ADD COLUMN backlog_bytes bigint;
COMMENT ON COLUMN task_queues.backlog_bytes IS
    'Limit of the bytes of pending runs'' definitions, for creates; null without. A queue with such a limit has bit 8 of traits.';

ALTER TABLE outbox_new ADD COLUMN bytes bigint[];
ALTER TABLE outbox_new ALTER COLUMN bytes SET STATISTICS 0;
COMMENT ON COLUMN outbox_new.bytes IS 'Changes of counters.bytes, as pending; null for none.';
COMMENT ON COLUMN counters.bytes IS
    'octet_length of the definitions of pending runs with bit 8 of traits. A lower bound until the queue is refiled.';

-- Bit 8 passes from queues to runs.
CREATE OR REPLACE FUNCTION run_traits(of_queue smallint, delivery smallint, complete_time double precision, retry_first double precision,
                                      retry_most double precision, retry_failed boolean)
RETURNS smallint LANGUAGE sql IMMUTABLE RETURN
    NULLIF(COALESCE(delivery, of_queue & 3, 0) | COALESCE(of_queue & 16, 0) | COALESCE(of_queue & 256, 0) | COALESCE(of_queue & 512, 0)
           | CASE WHEN retry_first IS NULL THEN COALESCE(of_queue & 4, 0) WHEN retry_first > 0 AND retry_most > 0 THEN 4 ELSE 0 END
           | CASE WHEN complete_time IS NULL THEN 0 ELSE 8 END
           | CASE WHEN retry_failed IS NULL THEN COALESCE(of_queue & 1024, 0) WHEN retry_failed THEN 1024 ELSE 0 END, 0)::smallint;

-- Triggers, so that no statement that makes a run pending or claims one can forget it. The other statements that delete or restamp a
-- pending run count its bytes themselves: a trigger on deletes would make each claim read the row again.
CREATE FUNCTION weigh_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed, bytes)
    SELECT now(), 0, '{}', '{}', '{}', '{}', ARRAY[NEW.queue], ARRAY[0], ARRAY[0], ARRAY[TG_ARGV[0]::bigint * octet_length(d.definition)]
    FROM task_definitions d WHERE d.seq = NEW.seq;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION weigh_run IS 'A run became pending, or was claimed, in a queue that counts bytes; the argument is 1 or -1.';
CREATE TRIGGER pending_weighed AFTER INSERT ON pending FOR EACH ROW WHEN (NEW.traits & 256 <> 0) EXECUTE FUNCTION weigh_run('1');
CREATE TRIGGER claims_weighed AFTER INSERT ON claims FOR EACH ROW WHEN (NEW.traits & 256 <> 0) EXECUTE FUNCTION weigh_run('-1');
