-- Policies and pauses of queues, options and results of tasks, and what of them is stamped on runs. What is null or absent is as
-- without a policy.
SET LOCAL lock_timeout = '5s';

CREATE TABLE queue_policies (
    queue         integer PRIMARY KEY,
    version       bigint NOT NULL,
    policy        text,
    updated       timestamptz NOT NULL,
    client_id     text NOT NULL,
    retry_first   double precision,
    retry_factor  double precision,
    retry_most    double precision,
    refile_stage  smallint NOT NULL DEFAULT 0,
    refile_since  timestamptz,
    refile_cursor bigint
);
COMMENT ON TABLE queue_policies IS 'What queues say about their runs. A queue without a row has no policy.';
COMMENT ON COLUMN queue_policies.queue IS 'task_queues.id.';
COMMENT ON COLUMN queue_policies.version IS 'Grows with each change, also over a removal.';
COMMENT ON COLUMN queue_policies.policy IS 'JSON text, as it is shown; null once it was removed, until all runs are refiled.';
COMMENT ON COLUMN queue_policies.updated IS 'When it was changed last.';
COMMENT ON COLUMN queue_policies.client_id IS 'clientId that changed it last.';
COMMENT ON COLUMN queue_policies.retry_first IS 'Seconds before the first retry of a task; null without retryDelay.';
COMMENT ON COLUMN queue_policies.retry_factor IS 'By how much each wait is longer than the one before.';
COMMENT ON COLUMN queue_policies.retry_most IS 'The longest wait in seconds.';
COMMENT ON COLUMN queue_policies.refile_stage IS 'Codes of refile::Stage: how far the runs that exist are stamped anew.';
COMMENT ON COLUMN queue_policies.refile_since IS 'Stage 1 waits for the transactions that began before it; null until that stage has begun.';
COMMENT ON COLUMN queue_policies.refile_cursor IS 'The last ord or seq that the stage has dealt with; null at its beginning.';
CREATE INDEX queue_policies_refiling ON queue_policies (queue) WHERE refile_stage <> 0;

CREATE TABLE queue_keys (
    queue        integer NOT NULL,
    key          text NOT NULL,
    concurrency  integer,
    rate_count   integer,
    rate_seconds integer,
    rate_burst   integer,
    weight       double precision,
    PRIMARY KEY (queue, key)
);
COMMENT ON TABLE queue_keys IS 'Limits of single keys of a queue. Nothing uses it yet.';
COMMENT ON COLUMN queue_keys.queue IS 'task_queues.id.';
COMMENT ON COLUMN queue_keys.key IS 'The key.';
COMMENT ON COLUMN queue_keys.concurrency IS 'How many of its runs may be ready or claimed.';
COMMENT ON COLUMN queue_keys.rate_count IS 'How many of its runs may start …';
COMMENT ON COLUMN queue_keys.rate_seconds IS '… in so many seconds.';
COMMENT ON COLUMN queue_keys.rate_burst IS 'How many of them may start at once.';
COMMENT ON COLUMN queue_keys.weight IS 'Its share beside other keys.';

ALTER TABLE task_queues
    ADD COLUMN policy_version bigint NOT NULL DEFAULT 0,
    ADD COLUMN traits         smallint,
    ADD COLUMN delay          double precision,
    ADD COLUMN complete_time  double precision,
    ADD COLUMN claim_timeout  double precision,
    ADD COLUMN paused         timestamptz,
    ADD COLUMN paused_until   timestamptz,
    ADD COLUMN paused_by      text,
    ADD COLUMN pause_reason   text;
COMMENT ON COLUMN task_queues.policy_version IS 'The version that its policy has, or that the last one had which was removed.';
COMMENT ON COLUMN task_queues.traits IS
    'Traits::code of the policy, for runs of tasks without options; null without one. The statements that make, claim and end runs read what they need of a policy here, in the row that they join anyway.';
COMMENT ON COLUMN task_queues.delay IS 'Seconds before the first run of a task is ready; null if it is so at once.';
COMMENT ON COLUMN task_queues.complete_time IS 'Seconds that a claim may last, however often it is renewed; null without a limit.';
COMMENT ON COLUMN task_queues.claim_timeout IS 'Seconds of a lease; null for those of the server.';
COMMENT ON COLUMN task_queues.paused IS 'Since when workers get nothing of the queue; null while they do. Claims and polls test it in their statements.';
COMMENT ON COLUMN task_queues.paused_until IS 'When the queue resumes by itself; null if it does not.';
COMMENT ON COLUMN task_queues.paused_by IS 'clientId that paused it.';
COMMENT ON COLUMN task_queues.pause_reason IS 'Why, for people; null if none was given.';
CREATE INDEX task_queues_paused_until ON task_queues (paused_until) WHERE paused_until IS NOT NULL;

ALTER TABLE pending
    ADD COLUMN hold       smallint,
    ADD COLUMN held_until timestamptz,
    ADD COLUMN traits     smallint,
    ADD COLUMN key_id     bigint,
    ADD COLUMN session    bigint,
    ADD COLUMN slot       smallint,
    ADD COLUMN bytes      integer;
COMMENT ON COLUMN pending.hold IS
    'Codes of Hold: no worker may claim the run. Null if it is ready. Not null exactly if reserved_until and hidden_until are the year 3000, and then there is no receipt.';
COMMENT ON COLUMN pending.held_until IS 'When the hold ends.';
COMMENT ON COLUMN pending.traits IS 'Traits::code: what is special about the run''s end; null for nothing.';
COMMENT ON COLUMN pending.key_id IS 'Not used yet: the key whose limits hold for the run.';
COMMENT ON COLUMN pending.session IS 'Not used yet: the session that the run is assigned to.';
COMMENT ON COLUMN pending.slot IS 'Not used yet: the slot of a partition.';
COMMENT ON COLUMN pending.bytes IS 'Not used yet: what the run counts for in a backlog that is limited by bytes.';
CREATE INDEX pending_held ON pending (queue, ord) WHERE hold IS NOT NULL;
CREATE INDEX pending_due ON pending (held_until) WHERE held_until IS NOT NULL;

ALTER TABLE claims
    ADD COLUMN traits      smallint,
    ADD COLUMN key_id      bigint,
    ADD COLUMN session     bigint,
    ADD COLUMN slot        smallint,
    ADD COLUMN bytes       integer,
    ADD COLUMN complete_by timestamptz;
COMMENT ON COLUMN claims.traits IS 'As in pending.';
COMMENT ON COLUMN claims.key_id IS 'As in pending.';
COMMENT ON COLUMN claims.session IS 'Not used yet: the session that holds the run.';
COMMENT ON COLUMN claims.slot IS 'As in pending.';
COMMENT ON COLUMN claims.bytes IS 'As in pending.';
COMMENT ON COLUMN claims.complete_by IS 'The claim ends then, however often it is renewed; null without a completeTime.';
CREATE INDEX claims_complete ON claims (complete_by) WHERE complete_by IS NOT NULL;

ALTER TABLE tasks
    ADD COLUMN losses    smallint NOT NULL DEFAULT 0,
    ADD COLUMN free_runs smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN tasks.losses IS 'How many workers in a row were lost with the task.';
COMMENT ON COLUMN tasks.free_runs IS 'How many of its runs ended without using up a retry: released, or lost under at-least-once.';
ALTER TABLE tasks RENAME COLUMN hand_backs TO requeues;
COMMENT ON COLUMN tasks.requeues IS 'How often a claim of the task was requeued because its answer was not delivered.';

ALTER TABLE runs
    ADD COLUMN ended_by smallint,
    ADD COLUMN late_of  smallint;
COMMENT ON COLUMN runs.ended_by IS 'Codes of EndedBy; null if reason_resolved says it all.';
COMMENT ON COLUMN runs.late_of IS 'Not used yet: the run whose late result this is.';

CREATE TABLE task_options (
    seq          bigint PRIMARY KEY,
    delivery     smallint,
    key          text,
    unique_name  text,
    delay        double precision,
    not_before   timestamptz,
    complete_time double precision,
    retry_first  double precision,
    retry_factor double precision,
    retry_most   double precision,
    worker_group text,
    worker_id    text,
    worker_wait  integer
);
COMMENT ON TABLE task_options IS 'What tasks say about their runs, beside the policy of their queue. A task without options has no row.';
COMMENT ON COLUMN task_options.seq IS 'tasks.seq.';
COMMENT ON COLUMN task_options.delivery IS 'Codes of Delivery; null: as the policy says.';
COMMENT ON COLUMN task_options.key IS 'Not used yet: the key whose limits hold for its runs.';
COMMENT ON COLUMN task_options.unique_name IS 'Not used yet: the name that no other task of the queue may have.';
COMMENT ON COLUMN task_options.delay IS 'As in task_queues; null: as the policy says, unless there is not_before.';
COMMENT ON COLUMN task_options.not_before IS 'When its first run is ready at the earliest.';
COMMENT ON COLUMN task_options.complete_time IS 'As in task_queues, 0 without a limit; null: as the policy says.';
COMMENT ON COLUMN task_options.retry_first IS 'As in queue_policies, 0 for no wait; null: as the policy says.';
COMMENT ON COLUMN task_options.retry_factor IS 'As in queue_policies.';
COMMENT ON COLUMN task_options.retry_most IS 'As in queue_policies.';
COMMENT ON COLUMN task_options.worker_group IS 'Not used yet: the worker that gets the runs first.';
COMMENT ON COLUMN task_options.worker_id IS 'Not used yet, as worker_group.';
COMMENT ON COLUMN task_options.worker_wait IS 'Not used yet: for how many seconds that is so.';

CREATE TABLE results (
    seq    bigint NOT NULL,
    run    smallint NOT NULL,
    result text NOT NULL,
    PRIMARY KEY (seq, run)
);
COMMENT ON TABLE results IS 'What runs returned, written by the statement that resolves them.';
COMMENT ON COLUMN results.seq IS 'tasks.seq.';
COMMENT ON COLUMN results.run IS 'Number of the run.';
COMMENT ON COLUMN results.result IS 'Compact JSON.';

ALTER TABLE counters
    ADD COLUMN delayed bigint NOT NULL DEFAULT 0,
    ADD COLUMN waiting bigint NOT NULL DEFAULT 0,
    ADD COLUMN bytes   bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN counters.pending IS 'Pending runs that are not delayed.';
COMMENT ON COLUMN counters.delayed IS 'Pending runs that are delayed.';
COMMENT ON COLUMN counters.waiting IS 'Not used yet: pending runs that wait for admission.';
COMMENT ON COLUMN counters.bytes IS 'Not used yet: what the pending runs have in bytes.';

ALTER TABLE outbox_new ADD COLUMN delayed integer[];
COMMENT ON COLUMN outbox_new.delayed IS 'Changes of counters.delayed, as pending; null for none.';
COMMENT ON COLUMN outbox.seqs IS
    'tasks.seq of each transition; 0 for 11, 12 and 14, whose details say what they are about.';

-- The seconds that the n-th retry of a task waits; null counts as no wait. A power that is too large for a number is cut before.
CREATE FUNCTION retry_wait(first double precision, factor double precision, most double precision, n bigint)
RETURNS double precision LANGUAGE sql IMMUTABLE RETURN
    CASE WHEN COALESCE(first, 0) = 0 THEN 0
         WHEN (n - 1) * ln(factor) > 20 THEN most
         ELSE LEAST(most, first * power(factor, n - 1)) END;
COMMENT ON FUNCTION retry_wait IS 'How long a retry waits: retry_wait of the rules.';

-- What a task says goes before what its queue says.
CREATE FUNCTION run_traits(of_queue smallint, delivery smallint, complete_time double precision, retry_first double precision,
                           retry_most double precision)
RETURNS smallint LANGUAGE sql IMMUTABLE RETURN
    NULLIF(COALESCE(delivery, of_queue & 3, 0)
           | CASE WHEN retry_first IS NULL THEN COALESCE(of_queue & 4, 0) WHEN retry_first > 0 AND retry_most > 0 THEN 4 ELSE 0 END
           | CASE WHEN complete_time IS NULL THEN 0 ELSE 8 END, 0)::smallint;
COMMENT ON FUNCTION run_traits IS
    'What is stamped on a run, apart from why it is delayed: Terms::traits of the rules, from task_queues.traits and the columns of task_options.';
