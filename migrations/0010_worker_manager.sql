-- Workers that register themselves, and workers that are gone. ARCHITECTURE.md explains who reads and writes it.

SET LOCAL lock_timeout = '5s';

CREATE TABLE registered_workers (
    pool              text NOT NULL,
    worker_group      text NOT NULL,
    worker_id         text NOT NULL,
    static_secret     text NOT NULL,
    capacity          integer NOT NULL CHECK (capacity > 0),
    config            text NOT NULL,
    created           timestamptz NOT NULL,
    last_modified     timestamptz NOT NULL,
    expires           timestamptz NOT NULL,
    next_secret       text,
    used_secret       text,
    used              timestamptz,
    credentials_until timestamptz,
    removed           timestamptz,
    PRIMARY KEY (pool, worker_group, worker_id)
);
COMMENT ON TABLE registered_workers IS
    'Workers that a provisioner has made known, so that they can register and get credentials. Kept until they expire.';
COMMENT ON COLUMN registered_workers.pool IS 'The worker pool: the name of a task queue, which need not exist yet.';
COMMENT ON COLUMN registered_workers.worker_group IS 'The worker''s group.';
COMMENT ON COLUMN registered_workers.worker_id IS 'The worker within its group.';
COMMENT ON COLUMN registered_workers.static_secret IS
    'Keyed digest of the secret with which the worker registers; the secret itself is not kept.';
COMMENT ON COLUMN registered_workers.capacity IS 'How many tasks the worker runs at once, as its provisioner says.';
COMMENT ON COLUMN registered_workers.config IS 'JSON text: what the worker gets as its configuration.';
COMMENT ON COLUMN registered_workers.created IS 'When it was made known. Credentials that began earlier are not its own.';
COMMENT ON COLUMN registered_workers.last_modified IS 'When anything about it was last changed.';
COMMENT ON COLUMN registered_workers.expires IS 'When it is no longer let in, and soon after forgotten.';
COMMENT ON COLUMN registered_workers.next_secret IS
    'Keyed digest of the secret with which the worker can register again; null until it has registered.';
COMMENT ON COLUMN registered_workers.used_secret IS
    'Keyed digest of the one before, for a worker that never got the answer which had next_secret.';
COMMENT ON COLUMN registered_workers.used IS 'When used_secret was exchanged for next_secret.';
COMMENT ON COLUMN registered_workers.credentials_until IS
    'When the last credentials end that the worker got; the row is kept until then, so that nobody inherits them.';
COMMENT ON COLUMN registered_workers.removed IS 'When somebody said that the worker is gone; null while it is not.';
CREATE INDEX registered_workers_expires ON registered_workers (expires);

CREATE TABLE worker_removals (
    queue        integer NOT NULL,
    worker_group text NOT NULL,
    worker_id    text NOT NULL,
    removed      timestamptz NOT NULL,
    for_good     boolean NOT NULL,
    looks        smallint NOT NULL DEFAULT 0,
    next_look    timestamptz NOT NULL,
    PRIMARY KEY (queue, worker_group, worker_id)
);
COMMENT ON TABLE worker_removals IS
    'Workers that are gone, for as long as one of their claims may still appear. A pass ends those claims.';
COMMENT ON COLUMN worker_removals.queue IS 'task_queues.id.';
COMMENT ON COLUMN worker_removals.worker_group IS 'The worker''s group.';
COMMENT ON COLUMN worker_removals.worker_id IS 'The worker within its group.';
COMMENT ON COLUMN worker_removals.removed IS 'Claims that began until then are ended.';
COMMENT ON COLUMN worker_removals.for_good IS
    'Whether later claims are ended too: nobody else can have the name of a registered worker that was removed.';
COMMENT ON COLUMN worker_removals.looks IS 'How often the claims were looked for, and none was left.';
COMMENT ON COLUMN worker_removals.next_look IS 'When to look for claims the next time.';
