-- Schedulers: of the servers of a database, the one that gives out the runs of each queue that assigns them.
SET LOCAL lock_timeout = '5s';

ALTER TABLE servers
    ADD COLUMN name   text,
    ADD COLUMN weight integer;
COMMENT ON TABLE servers IS
    'A row for each server, which writes it each second; the write proves that commits are answered. Deleted when the server ends, or a day after the last beat.';
COMMENT ON COLUMN servers.name IS 'For people; null of a server of a release that had no names.';
COMMENT ON COLUMN servers.weight IS
    'The live server of the greatest weight gives out the runs of queues that assign them; 0 never does. Null of a server of a release that knew nothing of that.';
COMMENT ON COLUMN servers.beat IS 'When it wrote this row last, in real time also if the clock is moved by hand.';

ALTER TABLE admission_queues
    ADD COLUMN assigns   boolean NOT NULL DEFAULT false,
    ADD COLUMN reassigns boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN admission_queues.assigns IS 'Whether its runs are given to sessions, by the server that is its scheduler.';
COMMENT ON COLUMN admission_queues.reassigns IS 'Whether the runs that a scheduler has given out are given out again if it is lost.';
UPDATE admission_queues a SET assigns = true FROM queue_policies p
WHERE p.queue = a.queue AND p.policy LIKE '%"dispatch":"assign"%';

ALTER TABLE task_queues ADD COLUMN last_term bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN task_queues.last_term IS
    'The term of its last scheduler when its row of admission_queues was deleted: terms go on growing if it gets another one.';
