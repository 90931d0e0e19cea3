-- The schema of the first release, by subject: clock and settings · facts that servers remember · queues and groups ·
-- tasks and their runs · counts · events · dependencies · clients and roles · workers · submissions · artifacts ·
-- purge-cache requests · storage.
-- docs/internals/statements.md says which statements use these tables.

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
COMMENT ON COLUMN db_now.now IS 'What time it is. Read it once a statement, through a materialized CTE.';

CREATE TABLE settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE settings IS 'Facts about this database that every server must agree on.';
COMMENT ON COLUMN settings.name IS 'What the fact is called.';
COMMENT ON COLUMN settings.value IS 'The fact.';

-- --------------------------------------------------------------------------------------- facts that servers remember

CREATE TABLE fact_generations (
    name       text PRIMARY KEY,
    generation bigint NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE fact_generations IS
    'Small facts that every server remembers. Servers look at all generations twice a second, and read again what differs.';
COMMENT ON COLUMN fact_generations.name IS 'What the fact is called.';
COMMENT ON COLUMN fact_generations.generation IS 'Another one after each change of the fact, in the same transaction.';
INSERT INTO fact_generations (name, generation) VALUES ('quarantines', 1), ('removals', 1), ('roles', 1);

CREATE FUNCTION raise_fact(fact text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN
    UPDATE fact_generations SET generation = generation + 1 WHERE name = fact;
    PERFORM pg_notify('tenure_facts', fact);
END $$;
COMMENT ON FUNCTION raise_fact(text) IS 'Part of every change of a fact: servers read it again once the change has committed.';

-- --------------------------------------------------------------------------------------------------- queues and groups

CREATE TABLE task_queues (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text NOT NULL UNIQUE,
    cursor_epoch bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE task_queues IS 'Task queues; a row is made when the first task or worker names one.';
COMMENT ON COLUMN task_queues.id IS 'The short key that hot tables use.';
COMMENT ON COLUMN task_queues.name IS 'provisionerId/workerType.';
COMMENT ON COLUMN task_queues.cursor_epoch IS
    'Raised by a transaction that puts a row below a low-water mark; marks of an older generation are ignored.';

CREATE TABLE task_groups (
    id        uuid PRIMARY KEY,
    scheduler text NOT NULL,
    expires   timestamptz NOT NULL,
    sealed    timestamptz
);
COMMENT ON TABLE task_groups IS 'Groups of tasks, each owned by one scheduler.';
COMMENT ON COLUMN task_groups.id IS 'taskGroupId.';
COMMENT ON COLUMN task_groups.scheduler IS 'schedulerId of every task in the group.';
COMMENT ON COLUMN task_groups.expires IS 'Past the expiry of every task in it; rounded up to the hour, only ever raised.';
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
COMMENT ON TABLE task_definitions IS 'What the submitter said. Written once, never changed.';
COMMENT ON COLUMN task_definitions.seq IS 'Internal number of the task.';
COMMENT ON COLUMN task_definitions.id IS 'taskId.';
COMMENT ON COLUMN task_definitions.scheduler IS 'schedulerId.';
COMMENT ON COLUMN task_definitions.project IS 'projectId.';
COMMENT ON COLUMN task_definitions.task_group IS 'taskGroupId.';
COMMENT ON COLUMN task_definitions.deadline IS 'When the task is given up.';
COMMENT ON COLUMN task_definitions.expires IS 'When the task is forgotten.';
COMMENT ON COLUMN task_definitions.scopes IS 'JSON text of what the task''s own credentials may do.';
COMMENT ON COLUMN task_definitions.routes IS 'JSON text of the extra routing keys of the task''s events.';
COMMENT ON COLUMN task_definitions.tags IS 'JSON text of the tags; events repeat them.';
COMMENT ON COLUMN task_definitions.definition IS 'JSON text after defaults, given back byte for byte.';

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
COMMENT ON TABLE tasks IS 'The slim row that every writer but the claim locks first. No index on a column that changes.';
COMMENT ON COLUMN tasks.id IS 'taskId.';
COMMENT ON COLUMN tasks.seq IS 'The key of the task in every other table.';
COMMENT ON COLUMN tasks.queue IS 'task_queues.id.';
COMMENT ON COLUMN tasks.task_group IS 'taskGroupId.';
COMMENT ON COLUMN tasks.state IS
    '0 unscheduled; 1 unresolved, with its last run in pending or in claims; 3 completed; 4 failed; 5 exception.';
COMMENT ON COLUMN tasks.priority IS '0 highest to 6 lowest.';
COMMENT ON COLUMN tasks.retries_left IS 'How often the task may still be tried again.';
COMMENT ON COLUMN tasks.hand_backs IS 'How often an undelivered claim was given back without using up a retry.';
COMMENT ON COLUMN tasks.run IS 'Number of the last run; null while there is none.';
COMMENT ON COLUMN tasks.resolved_before IS 'Whether a rerun began after the task had been resolved.';
-- A task whose group is named after it is found by its id, so that a task without a group of its own costs nothing here.
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
COMMENT ON COLUMN pending.ord IS 'Order of service within queue and priority; a retry takes a new one, at the end.';
COMMENT ON COLUMN pending.deadline IS 'A run past it is not claimed.';
COMMENT ON COLUMN pending.scheduled IS 'When the run became pending.';
COMMENT ON COLUMN pending.reason_created IS 'Why the run was made; codes of ReasonCreated.';
COMMENT ON COLUMN pending.retries_left IS 'As in tasks.';
COMMENT ON COLUMN pending.hidden_until IS 'Until then no poller gets the message; null when it is visible.';
COMMENT ON COLUMN pending.message IS 'Which message of this run it is; a message that is deleted too early is replaced by the next.';
COMMENT ON COLUMN pending.dequeued IS 'How often pollers got this message.';
COMMENT ON COLUMN pending.receipt IS 'The number in the pop receipt that is valid; null until somebody gets the message.';
COMMENT ON COLUMN pending.reserved_until IS
    'Until then claimWork leaves the run to the poller that got its message; null when it is claimable. Never after hidden_until.';
-- The age of a run is kept within both kinds: those whose message is visible, and those whose message is hidden. Pollers
-- scan one kind, claimWork both, and whoever adds a run writes to one index only.
CREATE INDEX pending_ready ON pending (queue, priority, (hidden_until IS NOT NULL), ord) WHERE reserved_until IS NULL;
CREATE INDEX pending_hidden ON pending (hidden_until) WHERE hidden_until IS NOT NULL;
CREATE INDEX pending_reserved ON pending (reserved_until) WHERE reserved_until IS NOT NULL;
-- Tiny: only messages that nobody ever gets done with.
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
COMMENT ON TABLE claims IS 'One row per running claim. Ending the claim, however it ends, deletes its row.';
COMMENT ON COLUMN claims.seq IS 'tasks.seq.';
COMMENT ON COLUMN claims.id IS 'taskId.';
COMMENT ON COLUMN claims.run IS 'Number of the run; with id the fencing token.';
COMMENT ON COLUMN claims.queue IS 'task_queues.id.';
COMMENT ON COLUMN claims.ord IS 'The place that the run had in its queue, for a requeue.';
COMMENT ON COLUMN claims.deadline IS 'The task''s deadline; a claim is not renewed past it.';
COMMENT ON COLUMN claims.scheduled IS 'When the run became pending.';
COMMENT ON COLUMN claims.reason_created IS 'Why the run was made.';
COMMENT ON COLUMN claims.retries_left IS 'As in tasks.';
COMMENT ON COLUMN claims.started IS 'When the run was claimed.';
COMMENT ON COLUMN claims.taken_until IS 'When the claim ends unless it is renewed.';
COMMENT ON COLUMN claims.worker_group IS 'Who holds it.';
COMMENT ON COLUMN claims.worker_id IS 'Who holds it.';
COMMENT ON COLUMN claims.batch IS 'The batch that made it: after a lost connection the server finds here what was committed.';
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
COMMENT ON COLUMN runs.worker_group IS 'Who held it.';
COMMENT ON COLUMN runs.worker_id IS 'Who held it.';

CREATE TABLE task_times (
    seq      bigint NOT NULL,
    id       uuid NOT NULL,
    deadline timestamptz,
    expires  timestamptz NOT NULL
);
COMMENT ON TABLE task_times IS 'When something is due for a task. Apart from tasks, where an index would slow every transition.';
COMMENT ON COLUMN task_times.seq IS 'tasks.seq.';
COMMENT ON COLUMN task_times.id IS 'taskId.';
COMMENT ON COLUMN task_times.deadline IS 'When the task is given up; null once the deadline pass has dealt with it.';
COMMENT ON COLUMN task_times.expires IS 'When the task is forgotten.';
CREATE INDEX task_times_deadline ON task_times (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX task_times_expires ON task_times (expires);

-- -------------------------------------------------------------------------------------------------------------- counts

CREATE TABLE counters (
    queue   integer PRIMARY KEY,
    pending bigint NOT NULL DEFAULT 0,
    claimed bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE counters IS 'Folded counts. The true count is this plus the deltas that are not folded yet (invariant I4).';
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
COMMENT ON COLUMN counter_deltas.id IS 'Order of writing; readers skip what they know to be folded.';
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
    'Transitions, many per row, written by the transaction that made them (invariant I5). Payloads are rendered when read.';
COMMENT ON COLUMN outbox.id IS 'Order of writing, not of commit; outbox_order has the positions.';
COMMENT ON COLUMN outbox.at IS 'When the transitions happened.';
COMMENT ON COLUMN outbox.taken_until IS 'For claims: when they end.';
COMMENT ON COLUMN outbox.kinds IS
    '1 created and pending; 2 claimed; 3 completed; 4 failed; 5 exception; 6 exception, and the next run is pending; '
    '7 created and unscheduled; 8 a run is pending; 9 the priority was changed; 10 every task of the group is resolved; '
    '11 the group was sealed; 12 the priority of the group''s tasks was changed; 13 an artifact can be read.';
COMMENT ON COLUMN outbox.seqs IS 'tasks.seq of each transition; 0 for 11 and 12, whose details name the group.';
COMMENT ON COLUMN outbox.runs IS 'The run that each transition is about.';
COMMENT ON COLUMN outbox.retries_left IS 'retries_left of the task after each transition.';
COMMENT ON COLUMN outbox.details IS 'JSON text of what else a transition''s events say, one for each; null where they say no more.';
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
COMMENT ON TABLE outbox_order IS 'The event log: positions 1, 2, 3, …, given out in an order that respects each task''s.';
COMMENT ON COLUMN outbox_order.first IS 'Position of the row''s first event.';
COMMENT ON COLUMN outbox_order.events IS 'How many positions the row takes.';
COMMENT ON COLUMN outbox_order.outbox_id IS 'outbox.id.';

CREATE TABLE log_readers (
    name     text PRIMARY KEY,
    position bigint NOT NULL
);
COMMENT ON TABLE log_readers IS 'Passes that act on the event log, and how far each has come.';
COMMENT ON COLUMN log_readers.name IS 'What the pass is called.';
COMMENT ON COLUMN log_readers.position IS 'Every event up to this position has been acted on.';
INSERT INTO log_readers (name, position) VALUES ('dependencies', 0), ('groups', 0);

-- -------------------------------------------------------------------------------------------------------- dependencies

CREATE TABLE dependencies (
    required  bigint NOT NULL,
    dependent uuid NOT NULL,
    any_end   boolean NOT NULL,
    satisfied boolean NOT NULL,
    PRIMARY KEY (required, dependent)
);
COMMENT ON TABLE dependencies IS 'One row per pair of tasks of which one waits for the other. Kept until either expires.';
COMMENT ON COLUMN dependencies.required IS 'tasks.seq of the task that is waited for.';
COMMENT ON COLUMN dependencies.dependent IS 'tasks.id of the task that waits.';
COMMENT ON COLUMN dependencies.any_end IS 'True for all-resolved, false for all-completed.';
COMMENT ON COLUMN dependencies.satisfied IS 'Set once the required task has ended as it must, and never taken back: not by a rerun either.';
CREATE INDEX dependencies_unsatisfied ON dependencies (required, any_end, dependent) WHERE NOT satisfied;
CREATE INDEX dependencies_of ON dependencies (dependent, satisfied);

CREATE TABLE dependency_work (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq  bigint NOT NULL,
    kind smallint NOT NULL CHECK (kind IN (3, 4, 5, 7))
);
COMMENT ON TABLE dependency_work IS
    'Transitions that dependencies wait for, taken from the event log; a row goes when its dependencies are settled.';
COMMENT ON COLUMN dependency_work.id IS 'Order of work.';
COMMENT ON COLUMN dependency_work.seq IS 'tasks.seq: of a task that was resolved, or was created and waits.';
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
COMMENT ON COLUMN clients.client_id IS 'What the client calls itself. No client can have the name of the server''s own issuer.';
COMMENT ON COLUMN clients.token IS 'The access token, AES-256-GCM under a key derived from the secret key: nonce, ciphertext, tag.';
COMMENT ON COLUMN clients.scopes IS 'What the client may do, before expansion.';
COMMENT ON COLUMN clients.description IS 'For people.';
COMMENT ON COLUMN clients.expires IS 'From when on the client is refused; null: never.';
COMMENT ON COLUMN clients.disabled IS 'Whether the client is refused for now.';
COMMENT ON COLUMN clients.created IS 'When the client was made.';
COMMENT ON COLUMN clients.last_modified IS 'When anything about the client was last changed, its token included.';
COMMENT ON COLUMN clients.delete_on_expiration IS 'Whether the row may go when the client has expired.';
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
COMMENT ON TABLE roles IS 'Names for sets of scopes: whoever holds assume:<role_id> holds these scopes too.';
COMMENT ON COLUMN roles.role_id IS 'What is assumed. With a star at its end it matches every name that begins like it.';
COMMENT ON COLUMN roles.scopes IS 'What the role gives, before expansion; <..> stands for what a star at the end of role_id matched.';
COMMENT ON COLUMN roles.description IS 'For people.';
COMMENT ON COLUMN roles.created IS 'When the role was made.';
COMMENT ON COLUMN roles.last_modified IS 'When anything about the role was last changed.';

CREATE FUNCTION roles_changed() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM raise_fact('roles'); RETURN NULL; END $$;
COMMENT ON FUNCTION roles_changed() IS 'Whoever changes roles, by whatever means: servers notice.';
CREATE TRIGGER roles_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON roles
    FOR EACH STATEMENT EXECUTE FUNCTION roles_changed();

-- What callers without credentials may do. Operators may change or delete it; no release adds to it.
INSERT INTO roles (role_id, scopes, description)
VALUES (
    'anonymous',
    ARRAY[
        'auth:current-scopes',
        'auth:expand-scopes',
        -- What purge-cache requests there are, which workers ask before each task.
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
    'What every caller may do, with credentials or without. Made at the first start; without scopes, reading is closed.'
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
    'Queues that workers have asked for work. Apart from task_queues, whose rows hot statements read and which never expire.';
COMMENT ON COLUMN queue_views.queue IS 'task_queues.id.';
COMMENT ON COLUMN queue_views.name IS 'task_queues.name, which never changes; here in the order in which lists are paged.';
COMMENT ON COLUMN queue_views.provisioner IS 'The part of the name before the slash.';
COMMENT ON COLUMN queue_views.last_seen IS 'When a worker was last seen there.';
COMMENT ON COLUMN queue_views.expires IS 'From then on the queue is not shown; only ever raised.';
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
    'Submissions that came with an Idempotency-Key; a row is written with the tasks, and forgotten after a day.';
COMMENT ON COLUMN idempotency_keys.client_id IS 'Who submitted; each client has keys of its own.';
COMMENT ON COLUMN idempotency_keys.key IS 'The header''s value.';
COMMENT ON COLUMN idempotency_keys.digest IS 'SHA-256 of the body, whatever its spacing and the order of its keys.';
COMMENT ON COLUMN idempotency_keys.task_group IS 'The group that the answer named.';
COMMENT ON COLUMN idempotency_keys.tasks IS 'The tasks of the answer, in the order of the request.';
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
COMMENT ON TABLE artifacts IS 'Artifacts of runs. A row is written while its task is locked, and goes before its task does.';
COMMENT ON COLUMN artifacts.seq IS 'tasks.seq.';
COMMENT ON COLUMN artifacts.run IS 'Number of the run that made it.';
COMMENT ON COLUMN artifacts.name IS 'Its name within the run; lists are in the order of its bytes.';
COMMENT ON COLUMN artifacts.storage_type IS '1 s3: bytes stored under its name; 2 object; 3 reference; 4 link; 5 error.';
COMMENT ON COLUMN artifacts.content_type IS 'As whoever made it said.';
COMMENT ON COLUMN artifacts.content_length IS 'As whoever made it said, before any compression; null if they did not.';
COMMENT ON COLUMN artifacts.expires IS 'Until when it can be read. Only ever raised, and never past the expiry of its task.';
COMMENT ON COLUMN artifacts.removable IS
    'When row and bytes may go: not before it expires, and not while an upload may still be on its way.';
COMMENT ON COLUMN artifacts.present IS 'False only for an object whose upload has not been finished.';
COMMENT ON COLUMN artifacts.url IS 'Of a reference: where it leads.';
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
COMMENT ON COLUMN objects.name IS 'Its name, of which there is one in the whole service.';
COMMENT ON COLUMN objects.project IS 'projectId of whoever uploads it.';
COMMENT ON COLUMN objects.upload IS 'uploadId; another one cannot take the name.';
COMMENT ON COLUMN objects.expires IS 'Until when it can be read; that of the artifact, once it is one.';
COMMENT ON COLUMN objects.removable IS
    'When row and bytes may go: not before it expires, and not while an upload may still be on its way.';
COMMENT ON COLUMN objects.finished IS 'Whether the upload is finished, so that the object can be read.';
COMMENT ON COLUMN objects.sha256 IS 'Digest in hexadecimal, as the uploader said; compared with the bytes at the end of the upload.';
COMMENT ON COLUMN objects.sha512 IS 'Digest in hexadecimal, as the uploader said.';
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
    'A row for each generation of bytes in the store of artifacts: written before the bytes are, and deleted after them, so that no bytes are forgotten.';
COMMENT ON COLUMN blobs.id IS 'What the bytes are called in the store.';
COMMENT ON COLUMN blobs.name IS 'What they are called outside: artifact/<taskId>/<runId>/<name> or object/<name>.';
COMMENT ON COLUMN blobs.state IS
    '0 being uploaded; 1 current, what readers of the name get; 2 dropped: replaced, deleted, or an upload that was given up.';
COMMENT ON COLUMN blobs.content_type IS 'As the uploader said.';
COMMENT ON COLUMN blobs.content_encoding IS 'As the uploader said, such as gzip; null if it said nothing.';
COMMENT ON COLUMN blobs.size IS 'How many bytes there are; null before they are whole.';
COMMENT ON COLUMN blobs.sha256 IS 'Their SHA-256; null before they are whole.';
COMMENT ON COLUMN blobs.began IS 'When the upload began.';
COMMENT ON COLUMN blobs.stored IS 'When the bytes became the current ones of their name; null before.';
COMMENT ON COLUMN blobs.due IS
    'When bytes and row are to be removed: an uploader puts it off while it works. Null exactly while they are current.';
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
COMMENT ON TABLE purge_requests IS 'Caches that workers of a pool are to purge before their next use. A row is ignored a day after it was asked for.';
COMMENT ON COLUMN purge_requests.worker_pool IS 'workerPoolId, which is also the name of a task queue.';
COMMENT ON COLUMN purge_requests.cache_name IS 'The cache, whatever kind of cache it is.';
COMMENT ON COLUMN purge_requests.purge_before IS 'When it was last asked for: caches from before that are stale.';
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
