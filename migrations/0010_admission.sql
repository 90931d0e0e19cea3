-- Admission: pending runs of queues with limits wait until a pass admits them, or gives them to a worker.
SET LOCAL lock_timeout = '5s';

ALTER TABLE task_queues 
    ADD COLUMN key_by      smallint,
    ADD COLUMN accept_time double precision;
COMMENT ON COLUMN task_queues.key_by IS
    'Codes of KeyBy: what the key of a run is. Null in a queue whose runs need no admission; otherwise each waits for it.';

COMMENT ON COLUMN task_queues.accept_time IS 'Seconds within which a run is to be accepted that was given to a session; null without a limit.';

ALTER TABLE pending ADD COLUMN waited bigint;
COMMENT ON COLUMN pending.waited IS 'The place that a run had which was admitted, should it have to wait again; null without admission.';
COMMENT ON COLUMN pending.key_id IS 'admission_keys.id of the key whose limits hold for the run; null in a queue without admission.';
COMMENT ON COLUMN pending.session IS
    'worker_sessions.epoch: of a run that is assigned, the session; of one that waits, the session that did not accept it.';
CREATE INDEX pending_waiting ON pending (key_id, priority, ord) WHERE hold = 2;
CREATE INDEX pending_key ON pending (key_id, ord) WHERE key_id IS NOT NULL AND hold IS DISTINCT FROM 1 AND hold IS DISTINCT FROM 2;
CREATE INDEX pending_session ON pending (session, ord) WHERE hold = 3;
COMMENT ON COLUMN claims.key_id IS 'As in pending.';
CREATE INDEX claims_key ON claims (key_id, ord) WHERE key_id IS NOT NULL;

COMMENT ON TABLE queue_keys IS 'What holds for single keys of a queue instead of its policy.';
COMMENT ON COLUMN task_options.key IS 'The key of its runs, in a queue where tasks say it.';
COMMENT ON COLUMN task_options.worker_group IS 'The worker that gets its runs first, in a queue that assigns them.';
COMMENT ON COLUMN task_options.worker_id IS 'As worker_group.';
COMMENT ON COLUMN task_options.worker_wait IS 'For how many seconds that worker is waited for.';
COMMENT ON COLUMN counters.pending IS 'Pending runs that are not delayed, those that wait for admission included.';
COMMENT ON COLUMN counters.waiting IS 'Pending runs that wait for admission.';
ALTER TABLE outbox_new ADD COLUMN waiting integer[];
COMMENT ON COLUMN outbox_new.waiting IS 'Changes of counters.waiting, as pending; null for none.';

CREATE TABLE admission_queues (
    queue           integer PRIMARY KEY,
    term            bigint NOT NULL DEFAULT 0,
    server          uuid,
    since           timestamptz,
    reassign_before timestamptz,
    reassign_ord    bigint,
    tat             double precision NOT NULL DEFAULT 0,
    least           double precision[] NOT NULL DEFAULT '{0,0,0,0,0,0,0}'
);
COMMENT ON TABLE admission_queues IS 'Queues whose runs need admission. The transaction that has locked a row is the only one that admits runs of the queue.';
COMMENT ON COLUMN admission_queues.queue IS 'task_queues.id.';
COMMENT ON COLUMN admission_queues.term IS 'Grows each time another server becomes the scheduler of the queue.';
COMMENT ON COLUMN admission_queues.server IS 'servers.id of its scheduler, if it assigns runs.';
COMMENT ON COLUMN admission_queues.since IS 'Since when that is so.';
COMMENT ON COLUMN admission_queues.reassign_before IS 'When its last scheduler was replaced, while runs are taken back that were given out until then.';
COMMENT ON COLUMN admission_queues.reassign_ord IS 'The last place that was given out until then.';
COMMENT ON COLUMN admission_queues.tat IS 'When the rate of the queue has its next token, in seconds since 1970, as GCRA has it.';
COMMENT ON COLUMN admission_queues.least IS 'For each priority the least virtual time of a head that may start.';

CREATE TABLE admission_keys (
    id     bigint PRIMARY KEY,
    queue  integer NOT NULL,
    key    text NOT NULL,
    tat    double precision NOT NULL DEFAULT 0,
    seen   timestamptz NOT NULL,
    UNIQUE (queue, key)
);
COMMENT ON TABLE admission_keys IS 'Keys of runs. A key gets a row when a run of it is looked at, and loses it some time after the last one.';
COMMENT ON COLUMN admission_keys.id IS 'admission_key_id of queue and key.';
COMMENT ON COLUMN admission_keys.queue IS 'task_queues.id.';
COMMENT ON COLUMN admission_keys.key IS 'What its runs have in common; empty for those without a key.';
COMMENT ON COLUMN admission_keys.tat IS 'As in admission_queues, of the key.';
COMMENT ON COLUMN admission_keys.seen IS 'When it was looked at last.';
CREATE INDEX admission_keys_seen ON admission_keys (seen);

CREATE TABLE admission_heads (
    key_id   bigint NOT NULL,
    priority smallint NOT NULL,
    queue    integer NOT NULL,
    vtime    double precision NOT NULL,
    from_ord bigint NOT NULL,
    ready    boolean NOT NULL,
    at       timestamptz,
    PRIMARY KEY (key_id, priority)
);
COMMENT ON TABLE admission_heads IS 'For each key and priority, where its waiting runs begin and whether one of them may be admitted.';
COMMENT ON COLUMN admission_heads.key_id IS 'admission_keys.id.';
COMMENT ON COLUMN admission_heads.priority IS 'Codes of Priority.';
COMMENT ON COLUMN admission_heads.queue IS 'task_queues.id.';
COMMENT ON COLUMN admission_heads.vtime IS 'The head with the least is served first. In a fair queue its virtual time, otherwise the place of its first run.';
COMMENT ON COLUMN admission_heads.from_ord IS 'None of its runs that wait has a lower place: looks begin here, past what was admitted before.';
COMMENT ON COLUMN admission_heads.ready IS 'Whether it has a waiting run and the limits of its key allow one more.';
COMMENT ON COLUMN admission_heads.at IS 'When it is looked at again by itself; null if only an announcement changes something.';
CREATE INDEX admission_heads_ready ON admission_heads (queue, priority, vtime, key_id) WHERE ready;
CREATE INDEX admission_heads_at ON admission_heads (queue, at) WHERE at IS NOT NULL;
-- Each look writes a row; what it leaves behind is to be gone soon.
ALTER TABLE admission_heads SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE admission_work (
    queue    integer NOT NULL,
    id       bigint GENERATED ALWAYS AS IDENTITY,
    key_id   bigint NOT NULL,
    priority smallint,
    ord      bigint,
    seq      bigint,
    PRIMARY KEY (queue, id)
);
COMMENT ON TABLE admission_work IS
    'Keys to look at: a run of it waits, or one has ended. Written by the transaction that does that, so that no key is forgotten.';
COMMENT ON COLUMN admission_work.queue IS 'task_queues.id.';
COMMENT ON COLUMN admission_work.id IS 'Order of insertion, not of commit.';
COMMENT ON COLUMN admission_work.key_id IS 'admission_keys.id.';
COMMENT ON COLUMN admission_work.priority IS 'Codes of Priority, of the run that waits; null if none does.';
COMMENT ON COLUMN admission_work.ord IS 'Its place.';
COMMENT ON COLUMN admission_work.seq IS 'tasks.seq of it.';
ALTER TABLE admission_work SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- Whether the next run waits for admission again is said by the queue alone.
CREATE OR REPLACE FUNCTION run_traits(of_queue smallint, delivery smallint, complete_time double precision, retry_first double precision,
                                      retry_most double precision)
RETURNS smallint LANGUAGE sql IMMUTABLE RETURN
    NULLIF(COALESCE(delivery, of_queue & 3, 0) | COALESCE(of_queue & 16, 0)
           | CASE WHEN retry_first IS NULL THEN COALESCE(of_queue & 4, 0) WHEN retry_first > 0 AND retry_most > 0 THEN 4 ELSE 0 END
           | CASE WHEN complete_time IS NULL THEN 0 ELSE 8 END, 0)::smallint;

-- The key of a run, from what its queue says a key is.
CREATE FUNCTION run_key(key_by smallint, key text, project text, scheduler text, task_group uuid)
RETURNS text LANGUAGE sql IMMUTABLE RETURN
    CASE key_by WHEN 0 THEN COALESCE(key, '') WHEN 1 THEN project WHEN 2 THEN scheduler
                WHEN 3 THEN translate(rtrim(encode(uuid_send(task_group), 'base64'), '='), '+/', '-_') END;
COMMENT ON FUNCTION run_key IS 'The key of a run; null in a queue without admission. A task group is written as in requests.';

-- Worked out and not given out: what makes a run waits for no other that makes one of the same key. Of 64 bits, 100,000 keys of all
-- queues share one with a probability of 1 in 3 billion.
CREATE FUNCTION admission_key_id(queue integer, key text) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN
    ('x' || left(md5(queue || ':' || key), 16))::bit(64)::bigint;
COMMENT ON FUNCTION admission_key_id IS 'admission_keys.id of a key; null for null.';

-- Triggers and not parts of the statements, so that none of the many that move runs can forget it. Without admission they do not run.
CREATE FUNCTION announce_waiting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO admission_work (queue, key_id, priority, ord, seq) VALUES (NEW.queue, NEW.key_id, NEW.priority, NEW.ord, NEW.seq);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION announce_waiting IS 'A run waits for admission.';
CREATE TRIGGER pending_waits AFTER INSERT ON pending FOR EACH ROW WHEN (NEW.hold = 2) EXECUTE FUNCTION announce_waiting();
CREATE TRIGGER pending_waits_now AFTER UPDATE OF hold, priority, key_id ON pending FOR EACH ROW WHEN (NEW.hold = 2)
    EXECUTE FUNCTION announce_waiting();

CREATE FUNCTION announce_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO admission_work (queue, key_id) VALUES (OLD.queue, OLD.key_id);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION announce_end IS 'A run of a key has ended, or is another one now.';
CREATE TRIGGER claims_end AFTER DELETE ON claims FOR EACH ROW WHEN (OLD.key_id IS NOT NULL) EXECUTE FUNCTION announce_end();

CREATE TABLE session_turns (
    epoch bigint PRIMARY KEY,
    at    timestamptz NOT NULL
);
COMMENT ON TABLE session_turns IS 'When sessions were given a run last: of sessions that are equal otherwise, the next one goes to that which has waited longest.';
COMMENT ON COLUMN session_turns.epoch IS 'worker_sessions.epoch.';
COMMENT ON COLUMN session_turns.at IS 'When it was given its last run.';
