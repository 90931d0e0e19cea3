-- Sessions of workers, and what they are to know.
SET LOCAL lock_timeout = '5s';

CREATE TABLE worker_sessions (
    epoch        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           uuid NOT NULL UNIQUE,
    queue        integer NOT NULL,
    worker_group text NOT NULL,
    worker_id    text NOT NULL,
    client_id    text NOT NULL,
    ttl          integer NOT NULL,
    until        timestamptz NOT NULL,
    extended     boolean NOT NULL DEFAULT false,
    started      timestamptz NOT NULL,
    ended        timestamptz,
    end_reason   smallint,
    returned     bigint NOT NULL DEFAULT 0,
    weight       integer NOT NULL,
    capacity     integer NOT NULL,
    frozen       boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);
COMMENT ON TABLE worker_sessions IS
    'Sessions of workers: what holds their runs beside the leases. A session that ended is kept for a day. Half of each page is free, and nothing that a renewal changes is in an index, so that renewals write no index.';
COMMENT ON COLUMN worker_sessions.epoch IS 'Grows; claims name their session by it.';
COMMENT ON COLUMN worker_sessions.id IS 'Its name in requests.';
COMMENT ON COLUMN worker_sessions.queue IS 'task_queues.id.';
COMMENT ON COLUMN worker_sessions.worker_group IS 'The worker.';
COMMENT ON COLUMN worker_sessions.worker_id IS 'The worker.';
COMMENT ON COLUMN worker_sessions.client_id IS 'clientId that began it.';
COMMENT ON COLUMN worker_sessions.ttl IS 'For how many seconds it goes on after a renewal.';
COMMENT ON COLUMN worker_sessions.until IS 'It ends then unless it is renewed.';
COMMENT ON COLUMN worker_sessions.extended IS 'Whether an outage of the servers has extended it, and its worker has not renewed it since.';
COMMENT ON COLUMN worker_sessions.started IS 'When it began.';
COMMENT ON COLUMN worker_sessions.ended IS 'When it ended; null while it is live.';
COMMENT ON COLUMN worker_sessions.end_reason IS 'Codes of SessionEnd; null while it is live.';
COMMENT ON COLUMN worker_sessions.returned IS 'How many runs left it because it ended.';
COMMENT ON COLUMN worker_sessions.weight IS 'As the worker said last.';
COMMENT ON COLUMN worker_sessions.capacity IS 'As the worker said last.';
COMMENT ON COLUMN worker_sessions.frozen IS 'As the worker said last: whether it takes no more tasks.';
CREATE UNIQUE INDEX worker_sessions_live ON worker_sessions (queue, worker_group, worker_id) WHERE ended IS NULL;
CREATE INDEX worker_sessions_ended ON worker_sessions (ended) WHERE ended IS NOT NULL;

CREATE SEQUENCE session_inbox_id;
COMMENT ON SEQUENCE session_inbox_id IS 'session_inbox.id.';
CREATE TABLE session_inbox (
    epoch   bigint NOT NULL,
    entry   bigint GENERATED ALWAYS AS IDENTITY,
    id      bigint,
    kind    smallint NOT NULL,
    at      timestamptz NOT NULL,
    seq     bigint,
    run     smallint,
    command smallint,
    task    uuid,
    PRIMARY KEY (epoch, entry)
);
COMMENT ON TABLE session_inbox IS 'What sessions are to know; an item is deleted when its worker acknowledges it, and with its session.';
COMMENT ON COLUMN session_inbox.epoch IS 'worker_sessions.epoch.';
COMMENT ON COLUMN session_inbox.entry IS 'Tells items of a session apart. Transactions do not commit in this order.';
COMMENT ON COLUMN session_inbox.id IS
    'What the worker acknowledges. It is given when the item is read first, so that an item which is committed later has a higher one; null until then.';
COMMENT ON COLUMN session_inbox.kind IS 'Codes of Item.';
COMMENT ON COLUMN session_inbox.at IS 'When it was written.';
COMMENT ON COLUMN session_inbox.seq IS 'tasks.seq of a run that ended.';
COMMENT ON COLUMN session_inbox.run IS 'The run that ended.';
COMMENT ON COLUMN session_inbox.command IS 'Codes of WorkerCommand.';
COMMENT ON COLUMN session_inbox.task IS 'The task that a command is about.';

CREATE TABLE session_clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at  timestamptz NOT NULL
);
COMMENT ON TABLE session_clock IS 'One row, written each second while sessions are looked at: no session ends because the servers were away.';
COMMENT ON COLUMN session_clock.one IS 'Always true.';
COMMENT ON COLUMN session_clock.at IS 'The real time at which a server looked at sessions last, whatever the clock of tests says.';

COMMENT ON COLUMN claims.session IS 'worker_sessions.epoch of the session that holds the run; null if it was claimed without one.';
CREATE INDEX claims_session ON claims (session, ord) WHERE session IS NOT NULL;
