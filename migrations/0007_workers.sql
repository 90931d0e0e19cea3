-- Who works: what is known of task queues, workers and their quarantines. ARCHITECTURE.md explains who reads and writes it.

SET LOCAL lock_timeout = '5s';

-- -------------------------------------------------------------------------------------------------------------- queues

CREATE TABLE queue_views (
    queue       integer PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE,
    provisioner text COLLATE "C" NOT NULL GENERATED ALWAYS AS (split_part(name, '/', 1)) STORED,
    last_seen   timestamptz NOT NULL,
    expires     timestamptz NOT NULL
) WITH (fillfactor = 70);
COMMENT ON TABLE queue_views IS
    'Queues that workers have asked for work. Apart from task_queues, whose rows hot statements read and which never expire.';
COMMENT ON COLUMN queue_views.queue IS 'task_queues.id.';
COMMENT ON COLUMN queue_views.name IS 'task_queues.name, which never changes; here in the order in which lists are paged.';
COMMENT ON COLUMN queue_views.provisioner IS 'The part of the name before the slash.';
COMMENT ON COLUMN queue_views.last_seen IS 'When a worker was last seen there.';
COMMENT ON COLUMN queue_views.expires IS 'From then on the queue is not shown; only ever raised.';
CREATE INDEX queue_views_provisioner ON queue_views (provisioner, name);

-- ------------------------------------------------------------------------------------------------------------- workers

CREATE TABLE workers (
    queue            integer NOT NULL,
    worker_group     text COLLATE "C" NOT NULL,
    worker_id        text COLLATE "C" NOT NULL,
    first_claim      timestamptz NOT NULL,
    last_seen        timestamptz NOT NULL,
    expires          timestamptz NOT NULL,
    due              timestamptz NOT NULL,
    quarantine_until timestamptz,
    recent_tasks     uuid[] NOT NULL DEFAULT '{}',
    recent_runs      smallint[] NOT NULL DEFAULT '{}',
    recent_claimed   timestamptz[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (queue, worker_group, worker_id)
) WITH (fillfactor = 70);
COMMENT ON TABLE workers IS
    'Workers of each queue. Written every ten seconds from what servers remember, so that no claim pays for it.';
COMMENT ON COLUMN workers.queue IS 'task_queues.id.';
COMMENT ON COLUMN workers.worker_group IS 'workerGroup.';
COMMENT ON COLUMN workers.worker_id IS 'workerId.';
COMMENT ON COLUMN workers.first_claim IS 'When the worker was first seen.';
COMMENT ON COLUMN workers.last_seen IS 'When the worker last asked for work, renewed a claim, or was declared.';
COMMENT ON COLUMN workers.expires IS 'From then on the worker is not shown, unless it is quarantined; only ever raised.';
COMMENT ON COLUMN workers.due IS
    'When the expiry pass looks at the row: not after it may be forgotten. Raised every few hours only, so that most updates touch no index.';
COMMENT ON COLUMN workers.quarantine_until IS 'Until then the worker gets no work; null if it was never quarantined.';
COMMENT ON COLUMN workers.recent_tasks IS 'taskId of the claims that the worker made last, oldest first; at most 20.';
COMMENT ON COLUMN workers.recent_runs IS 'The run of each of them.';
COMMENT ON COLUMN workers.recent_claimed IS 'When each of them was claimed.';
CREATE INDEX workers_due ON workers (due);
CREATE INDEX workers_quarantined ON workers (quarantine_until) WHERE quarantine_until IS NOT NULL;

CREATE TABLE worker_quarantines (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue            integer NOT NULL,
    worker_group     text COLLATE "C" NOT NULL,
    worker_id        text COLLATE "C" NOT NULL,
    client_id        text NOT NULL,
    updated          timestamptz NOT NULL,
    quarantine_until timestamptz NOT NULL,
    info             text
);
COMMENT ON TABLE worker_quarantines IS 'Who quarantined a worker, until when, and why; the last hundred of each worker.';
COMMENT ON COLUMN worker_quarantines.id IS 'Order of writing.';
COMMENT ON COLUMN worker_quarantines.queue IS 'task_queues.id.';
COMMENT ON COLUMN worker_quarantines.worker_group IS 'workerGroup.';
COMMENT ON COLUMN worker_quarantines.worker_id IS 'workerId.';
COMMENT ON COLUMN worker_quarantines.client_id IS 'Who did it.';
COMMENT ON COLUMN worker_quarantines.updated IS 'When.';
COMMENT ON COLUMN worker_quarantines.quarantine_until IS 'Until when the worker was to get no work; a date in the past lifted its quarantine.';
COMMENT ON COLUMN worker_quarantines.info IS 'Why; null if nobody said.';
CREATE INDEX worker_quarantines_of ON worker_quarantines (queue, worker_group, worker_id, id);

CREATE TABLE quarantine_generation (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    generation bigint NOT NULL
);
COMMENT ON TABLE quarantine_generation IS 'One row. Servers look at it twice a second, and read the quarantines again when it has moved.';
COMMENT ON COLUMN quarantine_generation.only_row IS 'Keeps it at one row.';
COMMENT ON COLUMN quarantine_generation.generation IS 'One more with each change of a quarantine.';
INSERT INTO quarantine_generation (generation) VALUES (1);
