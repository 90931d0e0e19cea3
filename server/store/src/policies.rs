//! The table `queue_policies`, and the pauses of queues in `task_queues`.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_api::states::{LateResult, OnDuplicate, OnSchedulerLoss};
use tenure_domain::events::note::Note;
use tenure_domain::policy::document::Policy;
use tenure_domain::policy::options::Options;
use tenure_domain::policy::pause::Paused;
use tenure_domain::policy::refile::Stage;
use tenure_domain::policy::terms::Terms;

use super::refile::read_stage;
use super::session::idle_briefly;
use super::{admission, schedulers};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPolicy {
    /// Increases with each change.
    pub version: i64,
    /// JSON text.
    pub policy: String,
    pub updated: DateTime<Utc>,
    /// The client that changed it last.
    pub client_id: String,
    /// Refiling progress of its runs.
    pub stage: Stage,
}

struct PolicyRow {
    version: i64,
    policy: String,
    updated: DateTime<Utc>,
    client_id: String,
    refile_stage: i16,
}

impl TryFrom<PolicyRow> for StoredPolicy {
    type Error = sqlx::Error;

    fn try_from(row: PolicyRow) -> Result<Self, sqlx::Error> {
        let PolicyRow { version, policy, updated, client_id, refile_stage } = row;
        Ok(Self { version, policy, updated, client_id, stage: read_stage(refile_stage)? })
    }
}

pub async fn find(conn: &mut PgConnection, queue: i32) -> Result<Option<StoredPolicy>, sqlx::Error> {
    let row = sqlx::query_as!(
        PolicyRow,
        r#"-- get_policy
        SELECT version, policy AS "policy!", updated, client_id, refile_stage FROM queue_policies
        WHERE queue = $1 AND policy IS NOT NULL"#,
        queue
    )
    .fetch_optional(conn)
    .await?;
    row.map(StoredPolicy::try_from).transpose()
}

/// Locks a queue against other changes of policy and pause; hot statements only read its row. True
/// if it exists. First lock runs whose accept time may restart ([`admission::lock_given`]).
pub async fn lock_queue(transaction: &mut PgConnection, queue: i32) -> Result<bool, sqlx::Error> {
    let locked = sqlx::query!("-- lock_queue\nSELECT FROM task_queues WHERE id = $1 FOR NO KEY UPDATE", queue)
        .fetch_optional(transaction)
        .await?;
    Ok(locked.is_some())
}

/// Stores the policy of a locked queue and starts refiling. Also returns the sessions with
/// unaccepted runs if the accept time changed: their runs are announced again.
pub async fn put(
    transaction: &mut PgConnection,
    queue: i32,
    policy: &Policy,
    client_id: &str,
) -> Result<(StoredPolicy, Vec<i64>), sqlx::Error> {
    let Change { version, sessions } = set(transaction, queue, policy).await?;
    let row = sqlx::query_as!(
        PolicyRow,
        r#"-- put_policy
        INSERT INTO queue_policies AS p
            (queue, version, policy, updated, client_id, retry_first, retry_factor, retry_most, refile_stage)
        SELECT $1, $2 /* version */, $3 /* policy */, db_now.now, $4 /* client */, $5 /* first */, $6 /* factor */, $7 /* most */,
               1 /* Stage::Older */
        FROM db_now
        ON CONFLICT (queue) DO UPDATE SET version = EXCLUDED.version, policy = EXCLUDED.policy,
            updated = GREATEST(p.updated, EXCLUDED.updated), client_id = EXCLUDED.client_id,
            retry_first = EXCLUDED.retry_first, retry_factor = EXCLUDED.retry_factor, retry_most = EXCLUDED.retry_most,
            refile_stage = EXCLUDED.refile_stage, refile_since = NULL, refile_cursor = NULL
        RETURNING version, policy AS "policy!", updated, client_id, refile_stage"#,
        queue,
        version,
        policy.text(),
        client_id,
        policy.retry_delay.map(|delay| delay.first.as_seconds_f64()),
        policy.retry_delay.map(|delay| delay.factor),
        policy.retry_delay.map(|delay| delay.most.as_seconds_f64())
    )
    .fetch_one(transaction)
    .await?;
    Ok((row.try_into()?, sessions))
}

/// Removes the policy of a locked queue and starts refiling. Returns the new version, if there was
/// a policy.
pub async fn delete(transaction: &mut PgConnection, queue: i32, client_id: &str) -> Result<Option<i64>, sqlx::Error> {
    let removed = sqlx::query!(
        "-- delete_policy
        UPDATE queue_policies SET version = version + 1, policy = NULL, updated = GREATEST(updated, db_now.now), client_id = $2,
            retry_first = NULL, retry_factor = NULL, retry_most = NULL, refile_stage = 1 /* Stage::Older */,
            refile_since = NULL, refile_cursor = NULL
        FROM db_now WHERE queue = $1 AND policy IS NOT NULL",
        queue,
        client_id
    )
    .execute(&mut *transaction)
    .await?;
    if removed.rows_affected() == 0 {
        return Ok(None);
    }
    Ok(Some(set(transaction, queue, &Policy::none()).await?.version))
}

struct Change {
    version: i64,
    /// Sessions whose accept times change.
    sessions: Vec<i64>,
}

/// Copies the parts of a policy that run statements read to the queue's row.
async fn set(transaction: &mut PgConnection, queue: i32, policy: &Policy) -> Result<Change, sqlx::Error> {
    let admission = policy.admission();
    let was_fair = is_fair_now(transaction, queue).await?;
    let terms = Terms::of(policy, &Options::default());
    let seconds = |time: TimeDelta| (!time.is_zero()).then(|| time.as_seconds_f64());
    let retained = |time: Option<TimeDelta>| time.map_or(f64::INFINITY, TimeDelta::as_seconds_f64);
    let row = sqlx::query!(
        r#"-- set_policy
        UPDATE task_queues q SET policy_version = policy_version + 1, delay = $3 /* seconds */, traits = $2 /* Traits::code */,
            complete_time = $4 /* seconds */, claim_timeout = $5 /* seconds */,
            key_by = $6 /* KeyBy::code */, accept_time = $7 /* seconds */, deadline_after = $8 /* seconds */,
            retain_completed = $9 /* seconds */, retain_failed = $10 /* seconds */,
            on_duplicate = $11 /* OnDuplicate::code */, backlog_tasks = $12 /* count */, backlog_bytes = $16 /* count */,
            late_results = $13 /* first wins */, dead_letters = $14 /* listed */,
            partition = (SELECT g.id FROM partition_groups g WHERE g.name = $15 /* group */)
        FROM (SELECT id, accept_time FROM task_queues WHERE id = $1) o
        WHERE q.id = o.id
        RETURNING q.policy_version, q.accept_time IS DISTINCT FROM o.accept_time AS "accept_time_changed!""#,
        queue,
        // Not null with a limit: the statements of simple creates leave such queues to `create_task`.
        terms.traits(None).code().or(policy.backlog.map(|_| 0)),
        seconds(policy.delay),
        seconds(policy.complete_time),
        policy.claim_timeout.map(TimeDelta::as_seconds_f64),
        admission.as_ref().map(|admission| admission.key_by.code()),
        admission.as_ref().and_then(|admission| admission.accept_time).map(TimeDelta::as_seconds_f64),
        policy.deadline_after.map(TimeDelta::as_seconds_f64),
        policy.retain.map(|retain| retained(retain.completed)),
        policy.retain.map(|retain| retained(retain.failed)),
        policy.on_duplicate.map(OnDuplicate::code),
        policy.backlog.and_then(|limit| limit.tasks),
        (policy.late_result == LateResult::FirstWins).then_some(true),
        policy.dead_letters.then_some(true),
        policy.partition.as_deref(),
        policy.backlog.and_then(|limit| limit.bytes)
    )
    .fetch_one(&mut *transaction)
    .await?;
    let is_fair = admission.as_ref().is_some_and(|admission| admission.fair);
    restart_admission(transaction, queue, policy, was_fair != Some(is_fair)).await?;
    let assigns = admission.is_some_and(|admission| admission.assign);
    let sessions = if assigns && row.accept_time_changed {
        admission::restart_assigned(transaction, queue).await?
    } else {
        Vec::new()
    };
    Ok(Change { version: row.policy_version, sessions })
}

async fn is_fair_now(transaction: &mut PgConnection, queue: i32) -> Result<Option<bool>, sqlx::Error> {
    let stored = find(transaction, queue).await?;
    // An unreadable policy is replaced, and turns restart.
    let policy = stored.and_then(|stored| Policy::from_stored(&stored.policy).ok());
    Ok(policy.and_then(|policy| policy.admission()).map(|admission| admission.fair))
}

/// Announces all keys of a queue for new limits. Locks the queue first, like admission and its
/// removal. So neither waits for heads of the other, no key is checked by the old limits, and the
/// row survives. With `order`, turns restart, since positions and virtual times are not comparable.
async fn restart_admission(
    transaction: &mut PgConnection,
    queue: i32,
    policy: &Policy,
    order: bool,
) -> Result<(), sqlx::Error> {
    // No run is admitted meanwhile, and the scheduler cannot change.
    idle_briefly(transaction).await?;
    let admission = policy.admission();
    if admission.is_some() {
        sqlx::query!(
            "-- begin_admission
            INSERT INTO admission_queues AS a (queue, term) SELECT id, last_term FROM task_queues WHERE id = $1
            ON CONFLICT (queue) DO UPDATE SET least = a.least -- which locks it
            ",
            queue
        )
        .execute(&mut *transaction)
        .await?;
    }
    let assigns = admission.is_some_and(|admission| admission.assign);
    let reassigns = policy.on_scheduler_loss == OnSchedulerLoss::Reassign;
    schedulers::follow_policy(transaction, queue, assigns, reassigns).await?;
    // Here the queue is locked, even without limits.
    if order {
        sqlx::query!("-- reset_admission\nUPDATE admission_state SET least = DEFAULT WHERE queue = $1", queue)
            .execute(&mut *transaction)
            .await?;
    }
    sqlx::query!(
        "-- announce_all_keys
        WITH heads AS (
            UPDATE admission_heads SET vtime = 0 /* count */ WHERE queue = $1 AND $2 /* order */
        )
        -- Not only those that have a head: of runs that were claimed when limits came, retries are ready that never waited.
        INSERT INTO admission_work (queue, key_id) SELECT $1::int, id FROM admission_keys WHERE queue = $1",
        queue,
        order
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// True if runs of a queue wait for a decision, or sessions receive them.
pub async fn is_limited(conn: &mut PgConnection, queue: i32) -> Result<bool, sqlx::Error> {
    let limited = sqlx::query_scalar!(
        r#"-- is_limited
        SELECT key_by IS NOT NULL AS "limited!" FROM task_queues WHERE id = $1"#,
        queue
    )
    .fetch_optional(conn)
    .await?;
    Ok(limited.unwrap_or(false))
}

pub async fn find_pause(conn: &mut PgConnection, queue: i32) -> Result<Option<Paused>, sqlx::Error> {
    sqlx::query_as!(
        Paused,
        r#"-- get_pause
        SELECT paused AS "since!", paused_by AS "by!", pause_reason AS reason, paused_until AS until
        FROM task_queues WHERE id = $1 AND paused IS NOT NULL"#,
        queue
    )
    .fetch_optional(conn)
    .await
}

/// Stores or ends the pause of a locked queue. On end, returns the sessions with unaccepted runs,
/// which are announced again.
pub async fn set_pause(
    transaction: &mut PgConnection,
    queue: i32,
    pause: Option<&Paused>,
) -> Result<Vec<i64>, sqlx::Error> {
    #[cfg(feature = "test-util")]
    let pause = pause.filter(|_| !crate::breakage::strikes(crate::breakage::Breakage::LeakPause));
    sqlx::query!(
        "-- set_pause
        UPDATE task_queues SET paused = $2 /* since */, paused_by = $3 /* by */, pause_reason = $4 /* reason */,
            paused_until = $5 /* until */
        WHERE id = $1",
        queue,
        pause.map(|pause| pause.since),
        pause.map(|pause| pause.by.as_str()),
        pause.and_then(|pause| pause.reason.as_deref()),
        pause.and_then(|pause| pause.until)
    )
    .execute(&mut *transaction)
    .await?;
    if pause.is_some() {
        return Ok(Vec::new());
    }
    admission::restart_assigned(transaction, queue).await
}

/// Lists up to `limit` queues whose pause is over.
pub async fn list_over(conn: &mut PgConnection, limit: i64) -> Result<Vec<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- pauses_over
        SELECT id FROM task_queues WHERE paused_until <= (SELECT now FROM db_now) ORDER BY paused_until LIMIT $1",
        limit
    )
    .fetch_all(conn)
    .await
}

/// Locks a queue whose pause is still over, and returns its name. None if locked.
pub async fn lock_over(transaction: &mut PgConnection, queue: i32) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- lock_pause_over
        SELECT name FROM task_queues WHERE id = $1 AND paused_until <= (SELECT now FROM db_now)
        FOR NO KEY UPDATE SKIP LOCKED",
        queue
    )
    .fetch_optional(transaction)
    .await
}

/// Writes a note to the event log, in the transaction of the change.
pub async fn emit(transaction: &mut PgConnection, note: &Note) -> Result<(), sqlx::Error> {
    let details = note.details().map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    sqlx::query!(
        "-- emit_note
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details)
        SELECT now, 1 /* count */, '{14}' /* note::KIND */, '{0}' /* seq */, '{0}' /* run */, '{0}' /* count */, ARRAY[$1::text]
        FROM db_now",
        details
    )
    .execute(transaction)
    .await?;
    Ok(())
}
