-- The queue itself: tasks, their runs, counts and events. ARCHITECTURE.md explains the statements that use these tables.

SET LOCAL lock_timeout = '5s';

-- ---------------------------------------------------------------------------------------------------------- the clock

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

CREATE VIEW moment AS SELECT clock_timestamp() + clock_offset AS now FROM clock;
COMMENT ON VIEW moment IS 'tenure_now() as a row: the planner can look into it, which saves a hot statement the call.';
COMMENT ON COLUMN moment.now IS 'What time it is. Read it once a statement, through a materialized CTE.';

CREATE TABLE settings (
    name  text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE settings IS 'Facts about this database that every server must agree on.';
COMMENT ON COLUMN settings.name IS 'What the fact is called.';
COMMENT ON COLUMN settings.value IS 'The fact.';

-- ------------------------------------------------------------------------------------------------------ queues, groups

CREATE TABLE task_queues (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text NOT NULL UNIQUE,
    mark_generation bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE task_queues IS 'Task queues; a row is made when the first task or worker names one.';
COMMENT ON COLUMN task_queues.id IS 'The short key that hot tables use.';
COMMENT ON COLUMN task_queues.name IS 'provisionerId/workerType.';
COMMENT ON COLUMN task_queues.mark_generation IS
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

-- --------------------------------------------------------------------------------------------------------------- tasks

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
    id           uuid PRIMARY KEY,
    seq          bigint NOT NULL DEFAULT nextval('task_seq'),
    queue        integer NOT NULL,
    task_group   uuid NOT NULL,
    state        smallint NOT NULL,
    priority     smallint NOT NULL,
    retries_left smallint NOT NULL,
    hand_backs   smallint NOT NULL DEFAULT 0,
    run          smallint,
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
    hidden_until   timestamptz
);
COMMENT ON TABLE pending IS 'One row per pending run. Claiming a run deletes its row.';
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
COMMENT ON COLUMN pending.hidden_until IS 'Not claimable before; null when ready.';
CREATE INDEX pending_ready ON pending (queue, priority, ord) WHERE hidden_until IS NULL;
CREATE INDEX pending_hidden ON pending (hidden_until) WHERE hidden_until IS NOT NULL;

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
COMMENT ON COLUMN claims.ord IS 'The place that the run had in its queue, for a hand-back.';
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
    retries_left smallint[] NOT NULL
);
COMMENT ON TABLE outbox IS
    'Transitions, many per row, written by the transaction that made them (invariant I5). Payloads are rendered when read.';
COMMENT ON COLUMN outbox.id IS 'Order of writing, not of commit; outbox_order has the positions.';
COMMENT ON COLUMN outbox.at IS 'When the transitions happened.';
COMMENT ON COLUMN outbox.taken_until IS 'For claims: when they end.';
COMMENT ON COLUMN outbox.kinds IS
    '1 created and pending; 2 claimed; 3 completed; 4 failed; 5 exception; 6 exception, and the next run is pending.';
COMMENT ON COLUMN outbox.seqs IS 'tasks.seq of each transition.';
COMMENT ON COLUMN outbox.runs IS 'The run that each transition is about.';
COMMENT ON COLUMN outbox.retries_left IS 'retries_left of the task after each transition.';

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

-- Dead rows, not depth, slow a claim down: vacuum the churning tables early and at full speed.
ALTER TABLE tasks SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE pending SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE claims SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE counter_deltas SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE outbox_new SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE counters SET (fillfactor = 50);
