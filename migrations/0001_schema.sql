-- The schema of the first release, by subject: clock and settings · facts that servers cache · queues and groups ·
-- tasks and their runs · counts · events · dependencies · clients and roles · workers · submissions · artifacts ·
-- purge-cache requests · storage.
-- docs/internals/statements.md lists the statements that use these tables.

SET LOCAL lock_timeout = '5s';

-- -------------------------------------------------------------------------------------------------- clock and settings

CREATE TABLE clock (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    clock_offset interval NOT NULL DEFAULT '0'
);
COMMENT ON TABLE clock IS 'One row: how far the manual clock is ahead of real time. Always zero in production.';
COMMENT ON COLUMN clock.only_row IS 'Keeps the table to one row.';
COMMENT ON COLUMN clock.clock_offset IS 'Added to the real time by tenure_now().';
INSERT INTO clock DEFAULT VALUES;

CREATE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS
$$ BEGIN RETURN clock_timestamp() + (SELECT clock_offset FROM clock); END $$;
COMMENT ON FUNCTION tenure_now() IS 'The one clock (invariant I3): every time that is stored or compared comes from here.';

CREATE VIEW db_now AS SELECT clock_timestamp() + clock_offset AS now FROM clock;
COMMENT ON VIEW db_now IS 'tenure_now() as a row: the planner can look into it, which saves a hot statement the call.';
COMMENT ON COLUMN db_now.now IS 'The current time. Read it once per statement, through a materialized CTE.';

CREATE TABLE settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE settings IS 'Facts about this database that every server must agree on.';
COMMENT ON COLUMN settings.name IS 'Name of the fact.';
COMMENT ON COLUMN settings.value IS 'The fact.';

-- -------------------------------------------------------------------------------------------- facts that servers cache

CREATE TABLE fact_generations (
    name       text PRIMARY KEY,
    generation bigint NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE fact_generations IS
    'Small facts that every server caches. Servers read all generations twice per second, and reload the facts whose generation differs.';
COMMENT ON COLUMN fact_generations.name IS 'Name of the fact.';
COMMENT ON COLUMN fact_generations.generation IS 'Incremented by each change of the fact, in the same transaction.';
INSERT INTO fact_generations (name, generation) VALUES ('quarantines', 1), ('removals', 1), ('roles', 1);

CREATE FUNCTION raise_fact(fact text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN
    UPDATE fact_generations SET generation = generation + 1 WHERE name = fact;
    PERFORM pg_notify('tenure_facts', fact);
END $$;
COMMENT ON FUNCTION raise_fact(text) IS 'Called by every change of a fact: servers reload the fact once the change has committed.';

-- --------------------------------------------------------------------------------------------------- queues and groups

CREATE TABLE task_queues (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text NOT NULL UNIQUE,
    cursor_epoch    bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE task_queues IS 'Task queues; a row is inserted when the first task or worker names one.';
COMMENT ON COLUMN task_queues.id IS 'The short key that hot tables use.';
COMMENT ON COLUMN task_queues.name IS 'provisionerId/workerType.';
COMMENT ON COLUMN task_queues.cursor_epoch IS
    'Incremented by a transaction that inserts a row below a low-water mark; marks of another epoch are ignored.';

CREATE TABLE task_groups (
    id        uuid PRIMARY KEY,
    scheduler text NOT NULL,
    expires   timestamptz NOT NULL,
    sealed    timestamptz
);
COMMENT ON TABLE task_groups IS 'Groups of tasks, each owned by one scheduler.';
COMMENT ON COLUMN task_groups.id IS 'taskGroupId.';
COMMENT ON COLUMN task_groups.scheduler IS 'schedulerId of every task in the group.';
COMMENT ON COLUMN task_groups.expires IS 'Not before any of its tasks expires; rounded up to the hour, never lowered.';
COMMENT ON COLUMN task_groups.sealed IS 'Since when no task may be added; null while the group is open.';
CREATE INDEX task_groups_expires ON task_groups (expires);

-- ------------------------------------------------------------------------------------------------ tasks and their runs

CREATE SEQUENCE task_seq;
CREATE SEQUENCE pending_ord;

CREATE TABLE task_definitions (
    seq        bigint PRIMARY KEY,
    id         uuid NOT NULL,
    scheduler  text NOT NULL,
    project    text NOT NULL,
    task_group uuid NOT NULL,
    deadline   timestamptz NOT NULL,
    expires    timestamptz NOT NULL,
    scopes     text NOT NULL,
    routes     text NOT NULL,
    tags       text NOT NULL,
    definition text NOT NULL
);
COMMENT ON TABLE task_definitions IS 'Task definitions as submitted, with defaults. Written once, never changed.';
COMMENT ON COLUMN task_definitions.seq IS 'Internal number of the task.';
COMMENT ON COLUMN task_definitions.id IS 'taskId.';
COMMENT ON COLUMN task_definitions.scheduler IS 'schedulerId.';
COMMENT ON COLUMN task_definitions.project IS 'projectId.';
COMMENT ON COLUMN task_definitions.task_group IS 'taskGroupId.';
COMMENT ON COLUMN task_definitions.deadline IS 'When an unresolved task ends as an exception.';
COMMENT ON COLUMN task_definitions.expires IS 'When the task may be purged.';
COMMENT ON COLUMN task_definitions.scopes IS 'JSON text of what the task''s own credentials may do.';
COMMENT ON COLUMN task_definitions.routes IS 'JSON text of the extra routing keys of the task''s events.';
COMMENT ON COLUMN task_definitions.tags IS 'JSON text of the tags, which events include.';
COMMENT ON COLUMN task_definitions.definition IS 'JSON text after defaults, returned byte for byte.';

CREATE TABLE tasks (
    id              uuid PRIMARY KEY,
    seq             bigint NOT NULL DEFAULT nextval('task_seq'),
    queue           integer NOT NULL,
    task_group      uuid NOT NULL,
    state           smallint NOT NULL,
    priority        smallint NOT NULL,
    retries_left    smallint NOT NULL,
    hand_backs      smallint NOT NULL DEFAULT 0,
    run             smallint,
    resolved_before boolean NOT NULL DEFAULT false,
    -- One constraint for all columns: each is read from the catalog again by every statement that writes here.
    CHECK (state IN (0, 1, 3, 4, 5) AND priority BETWEEN 0 AND 6 AND retries_left >= 0 AND (run IS NULL) = (state = 0))
) WITH (fillfactor = 70);
COMMENT ON TABLE tasks IS 'The narrow row that every writer except the claim locks first. No index on a column that changes.';
COMMENT ON COLUMN tasks.id IS 'taskId.';
COMMENT ON COLUMN tasks.seq IS 'The key of the task in every other table.';
COMMENT ON COLUMN tasks.queue IS 'task_queues.id.';
COMMENT ON COLUMN tasks.task_group IS 'taskGroupId.';
COMMENT ON COLUMN tasks.state IS
    '0 unscheduled; 1 unresolved, with its last run in pending or in claims; 3 completed; 4 failed; 5 exception.';
COMMENT ON COLUMN tasks.priority IS '0 highest to 6 lowest.';
COMMENT ON COLUMN tasks.retries_left IS 'How many retries the task has left.';
COMMENT ON COLUMN tasks.hand_backs IS 'How often an undelivered claim was requeued without using up a retry.';
COMMENT ON COLUMN tasks.run IS 'Number of the last run; null while there is none.';
COMMENT ON COLUMN tasks.resolved_before IS 'Whether a rerun began after the task had been resolved.';
-- A task whose taskGroupId is its own id is found by its id, so that it needs no entry here.
CREATE INDEX tasks_group ON tasks (task_group, id) WHERE id <> task_group;

CREATE TABLE pending (
    seq            bigint PRIMARY KEY,
    id             uuid NOT NULL,
    run            smallint NOT NULL,
    queue          integer NOT NULL,
    priority       smallint NOT NULL,
    ord            bigint NOT NULL DEFAULT nextval('pending_ord'),
    deadline       timestamptz NOT NULL,
    scheduled      timestamptz NOT NULL,
    reason_created smallint NOT NULL,
    retries_left   smallint NOT NULL,
    hidden_until   timestamptz,
    message        integer NOT NULL DEFAULT 0,
    dequeued       integer NOT NULL DEFAULT 0,
    receipt        bigint,
    reserved_until timestamptz
);
COMMENT ON TABLE pending IS 'One row per pending run, which is also its message. Claiming a run deletes its row.';
COMMENT ON COLUMN pending.seq IS 'tasks.seq.';
COMMENT ON COLUMN pending.id IS 'taskId.';
COMMENT ON COLUMN pending.run IS 'Number of the run.';
COMMENT ON COLUMN pending.queue IS 'task_queues.id.';
COMMENT ON COLUMN pending.priority IS 'As in tasks.';
COMMENT ON COLUMN pending.ord IS 'Position within queue and priority; a retry takes a new one, at the end.';
COMMENT ON COLUMN pending.deadline IS 'A run is not claimed after it.';
COMMENT ON COLUMN pending.scheduled IS 'When the run became pending.';
COMMENT ON COLUMN pending.reason_created IS 'Codes of ReasonCreated.';
COMMENT ON COLUMN pending.retries_left IS 'As in tasks.';
COMMENT ON COLUMN pending.hidden_until IS 'Until then the message is invisible to pollers; null when it is visible.';
COMMENT ON COLUMN pending.message IS
    'Number of the message within its run; a message that is deleted while its run is pending is replaced by the next.';
COMMENT ON COLUMN pending.dequeued IS 'How often pollers received this message.';
COMMENT ON COLUMN pending.receipt IS 'The number in the valid pop receipt; null until a poller receives the message.';
COMMENT ON COLUMN pending.reserved_until IS
    'Until then the run is reserved for the poller that received its message; null when claimWork may claim it. Never after hidden_until.';
-- Ordered by age within both kinds: runs whose message is visible, and runs whose message is hidden. Pollers scan one
-- kind and claimWork both, and an insert writes to one index only.
CREATE INDEX pending_ready ON pending (queue, priority, (hidden_until IS NOT NULL), ord) WHERE reserved_until IS NULL;
CREATE INDEX pending_hidden ON pending (hidden_until) WHERE hidden_until IS NOT NULL;
CREATE INDEX pending_reserved ON pending (reserved_until) WHERE reserved_until IS NOT NULL;
-- Tiny: only messages that are received again and again without being finished.
CREATE INDEX pending_alarming ON pending (dequeued) WHERE dequeued >= 10;

CREATE TABLE claims (
    seq            bigint PRIMARY KEY,
    id             uuid NOT NULL,
    run            smallint NOT NULL,
    queue          integer NOT NULL,
    ord            bigint NOT NULL,
    deadline       timestamptz NOT NULL,
    scheduled      timestamptz NOT NULL,
    reason_created smallint NOT NULL,
    retries_left   smallint NOT NULL,
    started        timestamptz NOT NULL,
    taken_until    timestamptz NOT NULL,
    worker_group   text NOT NULL,
    worker_id      text NOT NULL,
    batch          uuid NOT NULL
);
COMMENT ON TABLE claims IS 'One row per running claim. However a claim ends, its row is deleted.';
COMMENT ON COLUMN claims.seq IS 'tasks.seq.';
COMMENT ON COLUMN claims.id IS 'taskId.';
COMMENT ON COLUMN claims.run IS 'Number of the run; with id the fencing token.';
COMMENT ON COLUMN claims.queue IS 'task_queues.id.';
COMMENT ON COLUMN claims.ord IS 'The run''s pending.ord, which a requeue restores.';
COMMENT ON COLUMN claims.deadline IS 'The task''s deadline; a claim is not renewed past it.';
COMMENT ON COLUMN claims.scheduled IS 'When the run became pending.';
COMMENT ON COLUMN claims.reason_created IS 'Codes of ReasonCreated.';
COMMENT ON COLUMN claims.retries_left IS 'As in tasks.';
COMMENT ON COLUMN claims.started IS 'When the run was claimed.';
COMMENT ON COLUMN claims.taken_until IS 'When the claim ends unless it is renewed.';
COMMENT ON COLUMN claims.worker_group IS 'workerGroup.';
COMMENT ON COLUMN claims.worker_id IS 'workerId.';
COMMENT ON COLUMN claims.batch IS 'The batch that inserted it: after a lost connection the server finds what was committed by this id.';
CREATE INDEX claims_taken_until ON claims (taken_until);

CREATE TABLE runs (
    seq             bigint NOT NULL,
    run             smallint NOT NULL,
    state           smallint NOT NULL CHECK (state IN (3, 4, 5)),
    reason_created  smallint NOT NULL,
    reason_resolved smallint NOT NULL,
    scheduled       timestamptz NOT NULL,
    started         timestamptz,
    resolved        timestamptz NOT NULL,
    taken_until     timestamptz,
    worker_group    text,
    worker_id       text,
    PRIMARY KEY (seq, run)
);
COMMENT ON TABLE runs IS 'One row per resolved run, never changed. Its key is invariant I1: a run is resolved at most once.';
COMMENT ON COLUMN runs.seq IS 'tasks.seq.';
COMMENT ON COLUMN runs.run IS 'Number of the run.';
COMMENT ON COLUMN runs.state IS '3 completed, 4 failed, 5 exception.';
COMMENT ON COLUMN runs.reason_created IS 'Codes of ReasonCreated.';
COMMENT ON COLUMN runs.reason_resolved IS 'Codes of ReasonResolved.';
COMMENT ON COLUMN runs.scheduled IS 'When it became pending.';
COMMENT ON COLUMN runs.started IS 'When it was claimed, if it was.';
COMMENT ON COLUMN runs.resolved IS 'When it ended.';
COMMENT ON COLUMN runs.taken_until IS 'When its claim would have ended.';
COMMENT ON COLUMN runs.worker_group IS 'workerGroup of the claim, if there was one.';
COMMENT ON COLUMN runs.worker_id IS 'workerId of the claim, if there was one.';

CREATE TABLE task_times (
    seq      bigint NOT NULL,
    id       uuid NOT NULL,
    deadline timestamptz,
    expires  timestamptz NOT NULL
);
COMMENT ON TABLE task_times IS 'When something is due for a task. Separate from tasks, where an index would slow every transition.';
COMMENT ON COLUMN task_times.seq IS 'tasks.seq.';
COMMENT ON COLUMN task_times.id IS 'taskId.';
COMMENT ON COLUMN task_times.deadline IS 'The task''s deadline; null once the deadline pass has handled it.';
COMMENT ON COLUMN task_times.expires IS 'When the task may be purged.';
CREATE INDEX task_times_deadline ON task_times (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX task_times_expires ON task_times (expires);

-- -------------------------------------------------------------------------------------------------------------- counts

CREATE TABLE counters (
    queue   integer PRIMARY KEY,
    pending bigint NOT NULL DEFAULT 0,
    claimed bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE counters IS 'Folded counts. The exact count is this plus the deltas that are not folded yet (invariant I4).';
COMMENT ON COLUMN counters.queue IS 'task_queues.id.';
COMMENT ON COLUMN counters.pending IS 'Pending runs.';
COMMENT ON COLUMN counters.claimed IS 'Running claims.';

CREATE TABLE counter_deltas (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue   integer NOT NULL,
    pending integer NOT NULL,
    claimed integer NOT NULL
);
COMMENT ON TABLE counter_deltas IS 'Changes of the counts, one row per statement and queue; a pass folds them into counters.';
COMMENT ON COLUMN counter_deltas.id IS 'Order of insertion; readers skip deltas that are already folded.';
COMMENT ON COLUMN counter_deltas.queue IS 'task_queues.id.';
COMMENT ON COLUMN counter_deltas.pending IS 'Change of the pending runs.';
COMMENT ON COLUMN counter_deltas.claimed IS 'Change of the running claims.';

-- -------------------------------------------------------------------------------------------------------------- events

CREATE TABLE outbox (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL,
    taken_until  timestamptz,
    kinds        smallint[] NOT NULL,
    seqs         bigint[] NOT NULL,
    runs         smallint[] NOT NULL,
    retries_left smallint[] NOT NULL,
    details      text[],
    priorities   smallint[]
);
COMMENT ON TABLE outbox IS
    'Transitions, many per row, inserted by the transaction that performs them (invariant I5). Payloads are rendered when read.';
COMMENT ON COLUMN outbox.id IS 'Order of insertion, not of commit; outbox_order has the positions.';
COMMENT ON COLUMN outbox.at IS 'When the transitions happened.';
COMMENT ON COLUMN outbox.taken_until IS 'For claims: when they end.';
COMMENT ON COLUMN outbox.kinds IS
    '1 created and pending; 2 claimed; 3 completed; 4 failed; 5 exception; 6 exception, and the next run is pending; '
    '7 created and unscheduled; 8 a run is pending; 9 the priority was changed; 10 every task of the group is resolved; '
    '11 the group was sealed; 12 the priority of the group''s tasks was changed; 13 an artifact can be read.';
COMMENT ON COLUMN outbox.seqs IS 'tasks.seq of each transition; 0 for 11 and 12, whose details name the group.';
COMMENT ON COLUMN outbox.runs IS 'The run that each transition is about.';
COMMENT ON COLUMN outbox.retries_left IS 'retries_left of the task after each transition.';
COMMENT ON COLUMN outbox.details IS 'JSON text of further details per transition; null if there are none.';
COMMENT ON COLUMN outbox.priorities IS
    'Priority of the task after each transition; null in rows of releases before this column, and of events about groups.';

CREATE TABLE outbox_new (
    id     bigint PRIMARY KEY,
    events integer NOT NULL
);
COMMENT ON TABLE outbox_new IS 'Outbox rows that have no position yet.';
COMMENT ON COLUMN outbox_new.id IS 'outbox.id.';
COMMENT ON COLUMN outbox_new.events IS 'How many events the row expands to.';

CREATE TABLE outbox_order (
    first     bigint PRIMARY KEY,
    events    integer NOT NULL,
    outbox_id bigint NOT NULL
);
COMMENT ON TABLE outbox_order IS 'The event log: positions 1, 2, 3, …, assigned in an order that keeps the events of each task in order.';
COMMENT ON COLUMN outbox_order.first IS 'Position of the row''s first event.';
COMMENT ON COLUMN outbox_order.events IS 'How many positions the row takes.';
COMMENT ON COLUMN outbox_order.outbox_id IS 'outbox.id.';

CREATE TABLE log_readers (
    name     text PRIMARY KEY,
    position bigint NOT NULL
);
COMMENT ON TABLE log_readers IS 'Passes that read the event log, and the cursor of each.';
COMMENT ON COLUMN log_readers.name IS 'Name of the pass.';
COMMENT ON COLUMN log_readers.position IS 'Every event up to this position has been processed.';
INSERT INTO log_readers (name, position) VALUES ('dependencies', 0), ('groups', 0);

-- -------------------------------------------------------------------------------------------------------- dependencies

CREATE TABLE dependencies (
    required  bigint NOT NULL,
    dependent uuid NOT NULL,
    any_end   boolean NOT NULL,
    satisfied boolean NOT NULL,
    PRIMARY KEY (required, dependent)
);
COMMENT ON TABLE dependencies IS 'One row per pair of a task and a task that depends on it. Retained until either expires.';
COMMENT ON COLUMN dependencies.required IS 'tasks.seq of the required task.';
COMMENT ON COLUMN dependencies.dependent IS 'tasks.id of the dependent task.';
COMMENT ON COLUMN dependencies.any_end IS 'True for all-resolved, false for all-completed.';
COMMENT ON COLUMN dependencies.satisfied IS 'Set once the required task has ended as required, and never unset, not even by a rerun.';
CREATE INDEX dependencies_unsatisfied ON dependencies (required, any_end, dependent) WHERE NOT satisfied;
CREATE INDEX dependencies_of ON dependencies (dependent, satisfied);

CREATE TABLE dependency_work (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq  bigint NOT NULL,
    kind smallint NOT NULL CHECK (kind IN (3, 4, 5, 7))
);
COMMENT ON TABLE dependency_work IS
    'Transitions from the event log that unsatisfied dependencies wait for; a row is deleted when its dependencies are settled.';
COMMENT ON COLUMN dependency_work.id IS 'Order of work.';
COMMENT ON COLUMN dependency_work.seq IS 'tasks.seq of a task that was resolved, or was created with dependencies.';
COMMENT ON COLUMN dependency_work.kind IS 'As in outbox.kinds.';

-- --------------------------------------------------------------------------------------------------- clients and roles

CREATE TABLE clients (
    client_id            text PRIMARY KEY CHECK (client_id ~ '^[A-Za-z0-9!@/:.+|_-]{1,255}$'),
    token                bytea NOT NULL,
    scopes               text[] NOT NULL,
    description          text NOT NULL DEFAULT '',
    expires              timestamptz,
    disabled             boolean NOT NULL DEFAULT false,
    created              timestamptz NOT NULL DEFAULT tenure_now(),
    last_modified        timestamptz NOT NULL DEFAULT tenure_now(),
    delete_on_expiration boolean NOT NULL DEFAULT false,
    last_rotated         timestamptz,
    last_used            timestamptz
);
COMMENT ON TABLE clients IS 'Clients with a permanent access token; temporary credentials leave no row.';
COMMENT ON COLUMN clients.client_id IS 'clientId. No client can have the name of the server''s own issuer.';
COMMENT ON COLUMN clients.token IS 'The access token, AES-256-GCM under a key derived from the secret key: nonce, ciphertext, tag.';
COMMENT ON COLUMN clients.scopes IS 'What the client may do, before expansion.';
COMMENT ON COLUMN clients.description IS 'For people.';
COMMENT ON COLUMN clients.expires IS 'From when on the client is refused; null: never.';
COMMENT ON COLUMN clients.disabled IS 'Whether the client is refused for now.';
COMMENT ON COLUMN clients.created IS 'When the client was created.';
COMMENT ON COLUMN clients.last_modified IS 'When anything about the client was last changed, its token included.';
COMMENT ON COLUMN clients.delete_on_expiration IS 'Whether the row may be deleted when the client has expired.';
COMMENT ON COLUMN clients.last_rotated IS 'When the access token was last replaced; null: never.';
COMMENT ON COLUMN clients.last_used IS 'When the client last sent a request, to within hours; null: never.';

CREATE TABLE roles (
    role_id       text COLLATE "C" PRIMARY KEY
                  CHECK (length(role_id) <= 1000 AND role_id ~ '^[ -~]+$' AND role_id !~ '[*][*]$'),
    scopes        text[] NOT NULL,
    description   text NOT NULL DEFAULT '',
    created       timestamptz NOT NULL DEFAULT tenure_now(),
    last_modified timestamptz NOT NULL DEFAULT tenure_now()
);
COMMENT ON TABLE roles IS 'Names for sets of scopes: a client with assume:<role_id> has these scopes too.';
COMMENT ON COLUMN roles.role_id IS 'Name of the role. With a star at its end it matches every name with this prefix.';
COMMENT ON COLUMN roles.scopes IS 'What the role gives, before expansion; <..> is replaced by what the star at the end of role_id matched.';
COMMENT ON COLUMN roles.description IS 'For people.';
COMMENT ON COLUMN roles.created IS 'When the role was created.';
COMMENT ON COLUMN roles.last_modified IS 'When anything about the role was last changed.';

CREATE FUNCTION roles_changed() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM raise_fact('roles'); RETURN NULL; END $$;
COMMENT ON FUNCTION roles_changed() IS 'Servers notice every change of roles, also one made by hand in SQL.';
CREATE TRIGGER roles_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON roles
    FOR EACH STATEMENT EXECUTE FUNCTION roles_changed();

-- What callers without credentials may do. Operators may change or delete it; no release adds to it.
INSERT INTO roles (role_id, scopes, description)
VALUES (
    'anonymous',
    ARRAY[
        'auth:current-scopes',
        'auth:expand-scopes',
        -- Workers list purge-cache requests before each task.
        'purge-cache:all-purge-requests',
        'purge-cache:purge-requests:*',
        'queue:get-artifact:public/*',
        'queue:get-provisioner:*',
        'queue:get-task:*',
        'queue:get-worker-type:*',
        'queue:get-worker:*',
        'queue:list-artifacts:*',
        'queue:list-dependent-tasks:*',
        'queue:list-provisioners',
        'queue:list-task-group:*',
        'queue:list-worker-types:*',
        'queue:list-workers:*',
        'queue:pending-count:*',
        'queue:status:*'
    ],
    'What every caller may do, with credentials or without. Created at the first start; without scopes, reading needs credentials.'
);

-- ------------------------------------------------------------------------------------------------------------- workers

CREATE TABLE queue_views (
    queue       integer PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE,
    provisioner text COLLATE "C" NOT NULL GENERATED ALWAYS AS (split_part(name, '/', 1)) STORED,
    last_seen   timestamptz NOT NULL,
    expires     timestamptz NOT NULL
) WITH (fillfactor = 70);
COMMENT ON TABLE queue_views IS
    'Queues that workers have claimed or polled from. Separate from task_queues, whose rows hot statements read and which never expire.';
COMMENT ON COLUMN queue_views.queue IS 'task_queues.id.';
COMMENT ON COLUMN queue_views.name IS 'task_queues.name, which never changes; here in the collation of paged lists.';
COMMENT ON COLUMN queue_views.provisioner IS 'The part of the name before the slash.';
COMMENT ON COLUMN queue_views.last_seen IS 'When a worker was last seen there.';
COMMENT ON COLUMN queue_views.expires IS 'From then on the queue is not listed; never lowered.';
CREATE INDEX queue_views_provisioner ON queue_views (provisioner, name);

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
    'Workers of each queue. Written every ten seconds from the servers'' memory, so that claims do not write here.';
COMMENT ON COLUMN workers.queue IS 'task_queues.id.';
COMMENT ON COLUMN workers.worker_group IS 'workerGroup.';
COMMENT ON COLUMN workers.worker_id IS 'workerId.';
COMMENT ON COLUMN workers.first_claim IS 'When the worker was first seen.';
COMMENT ON COLUMN workers.last_seen IS 'When the worker last requested work, renewed a claim, or was declared.';
COMMENT ON COLUMN workers.expires IS 'From then on the worker is not listed, unless it is quarantined; never lowered.';
COMMENT ON COLUMN workers.due IS
    'When the expiry pass reads the row: at the latest when it may be purged. Raised every few hours only, so that most updates touch no index.';
COMMENT ON COLUMN workers.quarantine_until IS 'Until then the worker gets no work; null if it was never quarantined.';
COMMENT ON COLUMN workers.recent_tasks IS 'taskId of the worker''s latest claims, oldest first; at most 20.';
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
COMMENT ON TABLE worker_quarantines IS 'Quarantines of workers: by which client, until when, and why; the last hundred per worker.';
COMMENT ON COLUMN worker_quarantines.id IS 'Order of insertion.';
COMMENT ON COLUMN worker_quarantines.queue IS 'task_queues.id.';
COMMENT ON COLUMN worker_quarantines.worker_group IS 'workerGroup.';
COMMENT ON COLUMN worker_quarantines.worker_id IS 'workerId.';
COMMENT ON COLUMN worker_quarantines.client_id IS 'clientId that set or lifted it.';
COMMENT ON COLUMN worker_quarantines.updated IS 'When it was set or lifted.';
COMMENT ON COLUMN worker_quarantines.quarantine_until IS 'Until when the worker gets no work; a date in the past lifts the quarantine.';
COMMENT ON COLUMN worker_quarantines.info IS 'The reason; null if none was given.';
CREATE INDEX worker_quarantines_of ON worker_quarantines (queue, worker_group, worker_id, id);

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
    'Workers that a provisioner has created, so that they can register and get credentials. Retained until they expire.';
COMMENT ON COLUMN registered_workers.pool IS 'The worker pool: the name of a task queue, which need not exist yet.';
COMMENT ON COLUMN registered_workers.worker_group IS 'The worker''s group.';
COMMENT ON COLUMN registered_workers.worker_id IS 'The worker within its group.';
COMMENT ON COLUMN registered_workers.static_secret IS
    'Keyed digest of the secret with which the worker registers; the secret itself is not stored.';
COMMENT ON COLUMN registered_workers.capacity IS 'How many tasks the worker runs at once, as declared by its provisioner.';
COMMENT ON COLUMN registered_workers.config IS 'JSON text of the worker''s configuration.';
COMMENT ON COLUMN registered_workers.created IS 'When it was created. Credentials that began earlier belong to an earlier worker of this name.';
COMMENT ON COLUMN registered_workers.last_modified IS 'When anything about it was last changed.';
COMMENT ON COLUMN registered_workers.expires IS 'When it can no longer register; it is purged soon after.';
COMMENT ON COLUMN registered_workers.next_secret IS
    'Keyed digest of the secret with which the worker can register again; null until it has registered.';
COMMENT ON COLUMN registered_workers.used_secret IS
    'Keyed digest of the previous one, for a worker that never received the response with next_secret.';
COMMENT ON COLUMN registered_workers.used IS 'When used_secret was exchanged for next_secret.';
COMMENT ON COLUMN registered_workers.credentials_until IS
    'When the last credentials issued to the worker end; the row is retained until then, so that no other worker inherits them.';
COMMENT ON COLUMN registered_workers.removed IS 'When the worker was removed; null if it was not.';
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
    'Removed workers, for as long as one of their claims may still appear. A pass ends those claims.';
COMMENT ON COLUMN worker_removals.queue IS 'task_queues.id.';
COMMENT ON COLUMN worker_removals.worker_group IS 'The worker''s group.';
COMMENT ON COLUMN worker_removals.worker_id IS 'The worker within its group.';
COMMENT ON COLUMN worker_removals.removed IS 'Claims that started at or before this time are ended.';
COMMENT ON COLUMN worker_removals.for_good IS
    'Whether later claims are ended too: no other worker can have the name of a registered worker that was removed.';
COMMENT ON COLUMN worker_removals.looks IS 'How many times the pass found no claims left.';
COMMENT ON COLUMN worker_removals.next_look IS 'When to look for claims next.';

-- --------------------------------------------------------------------------------------------------------- submissions

CREATE TABLE idempotency_keys (
    client_id  text NOT NULL,
    key        text NOT NULL,
    digest     bytea NOT NULL,
    task_group uuid NOT NULL,
    tasks      uuid[] NOT NULL,
    created    timestamptz NOT NULL,
    PRIMARY KEY (client_id, key)
);
COMMENT ON TABLE idempotency_keys IS
    'Submissions with an Idempotency-Key; a row is inserted with the tasks, and purged after a day.';
COMMENT ON COLUMN idempotency_keys.client_id IS 'clientId of the submitter; keys are separate for each client.';
COMMENT ON COLUMN idempotency_keys.key IS 'The header''s value.';
COMMENT ON COLUMN idempotency_keys.digest IS 'SHA-256 of the body, independent of whitespace and the order of its keys.';
COMMENT ON COLUMN idempotency_keys.task_group IS 'taskGroupId in the response.';
COMMENT ON COLUMN idempotency_keys.tasks IS 'The tasks in the response, in the order of the request.';
COMMENT ON COLUMN idempotency_keys.created IS 'When the tasks were created.';
CREATE INDEX idempotency_keys_created ON idempotency_keys (created);

-- ----------------------------------------------------------------------------------------------------------- artifacts

CREATE TABLE artifacts (
    seq            bigint NOT NULL,
    run            smallint NOT NULL,
    name           text COLLATE "C" NOT NULL,
    storage_type   smallint NOT NULL,
    content_type   text NOT NULL,
    content_length bigint,
    expires        timestamptz NOT NULL,
    removable      timestamptz NOT NULL,
    present        boolean NOT NULL,
    url            text,
    link           text COLLATE "C",
    reason         smallint,
    message        text,
    upload         uuid,
    PRIMARY KEY (seq, run, name),
    CHECK (content_length >= 0 AND removable >= expires),
    -- Each type has its own details and no others.
    CHECK (CASE storage_type
        WHEN 1 THEN present AND num_nonnulls(url, link, reason, message, upload) = 0
        WHEN 2 THEN upload IS NOT NULL AND num_nonnulls(url, link, reason, message) = 0
        WHEN 3 THEN present AND url IS NOT NULL AND num_nonnulls(link, reason, message, upload) = 0
        WHEN 4 THEN present AND link IS NOT NULL AND num_nonnulls(url, reason, message, upload) = 0
        WHEN 5 THEN present AND num_nonnulls(reason, message) = 2 AND num_nonnulls(url, link, upload) = 0
        ELSE false END)
);
COMMENT ON TABLE artifacts IS 'Artifacts of runs. A row is inserted while its task is locked, and deleted before its task is.';
COMMENT ON COLUMN artifacts.seq IS 'tasks.seq.';
COMMENT ON COLUMN artifacts.run IS 'Number of the run that created it.';
COMMENT ON COLUMN artifacts.name IS 'Its name within the run; lists are in the order of its bytes.';
COMMENT ON COLUMN artifacts.storage_type IS '1 s3: bytes stored under its name; 2 object; 3 reference; 4 link; 5 error.';
COMMENT ON COLUMN artifacts.content_type IS 'As declared by its creator.';
COMMENT ON COLUMN artifacts.content_length IS 'As declared by its creator, before any compression; null if not declared.';
COMMENT ON COLUMN artifacts.expires IS 'Until when it can be read. Never lowered, and never past the expiry of its task.';
COMMENT ON COLUMN artifacts.removable IS
    'When row and bytes may be deleted: not before it expires, and not while an upload may still be in progress.';
COMMENT ON COLUMN artifacts.present IS 'False only for an object whose upload has not been finished.';
COMMENT ON COLUMN artifacts.url IS 'Of a reference: its target.';
COMMENT ON COLUMN artifacts.link IS 'Of a link: the name of another artifact of the run.';
COMMENT ON COLUMN artifacts.reason IS 'Of an error: codes of ArtifactErrorReason.';
COMMENT ON COLUMN artifacts.message IS 'Of an error: for people.';
COMMENT ON COLUMN artifacts.upload IS 'Of an object: uploadId.';
CREATE INDEX artifacts_removable ON artifacts (removable);

CREATE TABLE objects (
    name         text COLLATE "C" PRIMARY KEY,
    project      text NOT NULL,
    upload       uuid NOT NULL,
    expires      timestamptz NOT NULL,
    removable    timestamptz NOT NULL,
    finished     boolean NOT NULL DEFAULT false,
    sha256       text,
    sha512       text,
    CHECK (removable >= expires)
);
COMMENT ON TABLE objects IS 'Objects of the object service.';
COMMENT ON COLUMN objects.name IS 'Its name, unique in the whole service.';
COMMENT ON COLUMN objects.project IS 'projectId of the uploader.';
COMMENT ON COLUMN objects.upload IS 'uploadId; another one cannot take the name.';
COMMENT ON COLUMN objects.expires IS 'Until when it can be read; that of the artifact, once it is one.';
COMMENT ON COLUMN objects.removable IS
    'When row and bytes may be deleted: not before it expires, and not while an upload may still be in progress.';
COMMENT ON COLUMN objects.finished IS 'Whether the upload is finished, so that the object can be read.';
COMMENT ON COLUMN objects.sha256 IS 'Digest in hexadecimal, as declared by the uploader; compared with the bytes at the end of the upload.';
COMMENT ON COLUMN objects.sha512 IS 'Digest in hexadecimal, as declared by the uploader.';
CREATE INDEX objects_removable ON objects (removable);

CREATE TABLE blobs (
    id               uuid PRIMARY KEY,
    name             text NOT NULL,
    state            smallint NOT NULL,
    content_type     text NOT NULL,
    content_encoding text,
    size             bigint,
    sha256           bytea,
    began            timestamptz NOT NULL,
    stored           timestamptz,
    due              timestamptz,
    CONSTRAINT blobs_state CHECK (state IN (0, 1, 2)),
    CONSTRAINT blobs_due CHECK ((state = 1) = (due IS NULL)),
    CONSTRAINT blobs_whole CHECK (state <> 1 OR (size >= 0 AND length(sha256) = 32 AND stored IS NOT NULL))
);
COMMENT ON TABLE blobs IS
    'A row for each generation of bytes in the artifact store: inserted before the bytes are written, and deleted after them, so that none are leaked.';
COMMENT ON COLUMN blobs.id IS 'Key of the bytes in the store.';
COMMENT ON COLUMN blobs.name IS 'Their public name: artifact/<taskId>/<runId>/<name> or object/<name>.';
COMMENT ON COLUMN blobs.state IS
    '0 being uploaded; 1 current, what readers of the name get; 2 dropped: replaced, deleted, or an abandoned upload.';
COMMENT ON COLUMN blobs.content_type IS 'As declared by the uploader.';
COMMENT ON COLUMN blobs.content_encoding IS 'As declared by the uploader, such as gzip; null if not declared.';
COMMENT ON COLUMN blobs.size IS 'Number of bytes; null before the upload is complete.';
COMMENT ON COLUMN blobs.sha256 IS 'SHA-256 of the bytes; null before the upload is complete.';
COMMENT ON COLUMN blobs.began IS 'When the upload began.';
COMMENT ON COLUMN blobs.stored IS 'When the bytes became the current ones of their name; null before.';
COMMENT ON COLUMN blobs.due IS
    'When bytes and row are to be deleted; extended while an upload is in progress. Null exactly while they are current.';
CREATE UNIQUE INDEX blobs_current ON blobs (name) WHERE state = 1;
CREATE INDEX blobs_unfinished ON blobs (name) WHERE state = 0;
CREATE INDEX blobs_due ON blobs (due) WHERE due IS NOT NULL;

-- ------------------------------------------------------------------------------------------------ purge-cache requests

CREATE TABLE purge_requests (
    worker_pool  text COLLATE "C" NOT NULL,
    cache_name   text COLLATE "C" NOT NULL,
    purge_before timestamptz NOT NULL,
    PRIMARY KEY (worker_pool, cache_name)
);
COMMENT ON TABLE purge_requests IS 'Caches that workers of a pool are to purge before their next use. A row is ignored a day after the last request.';
COMMENT ON COLUMN purge_requests.worker_pool IS 'workerPoolId, which is also the name of a task queue.';
COMMENT ON COLUMN purge_requests.cache_name IS 'Name of the cache.';
COMMENT ON COLUMN purge_requests.purge_before IS 'Time of the last request: caches from before that are stale.';
CREATE INDEX purge_requests_purge_before ON purge_requests (purge_before);
COMMENT ON INDEX purge_requests_purge_before IS 'Finds the rows that are a day old.';

-- ------------------------------------------------------------------------------------------------------------- storage

-- Dead rows, not depth, slow a claim down: vacuum the churning tables early and at full speed.
ALTER TABLE tasks SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE pending SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE claims SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE counter_deltas SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE outbox_new SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dependencies SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dependency_work SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
-- One row, or few, updated again and again: room for the new version in the same page.
ALTER TABLE counters SET (fillfactor = 50);
ALTER TABLE log_readers SET (fillfactor = 50);
