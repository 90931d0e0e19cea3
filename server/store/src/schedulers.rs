//! The scheduler of each assign queue. Each change raises the queue's term and writes notes, in one
//! transaction. It fails if the caller saw another term.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::ServerId;
use tenure_api::states::SchedulerEnd;
use tenure_domain::election::Active;
use tenure_domain::events::note::Note;
use uuid::Uuid;

use super::session::idle_briefly;
use super::{policies, queues};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduled {
    pub active: Active,
    pub name: String,
    /// None before the first scheduler.
    pub since: Option<DateTime<Utc>>,
}

pub async fn list(conn: &mut PgConnection) -> Result<Vec<Scheduled>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_schedulers
        SELECT a.queue, a.server, a.term, a.since, q.name
        FROM admission_queues a JOIN task_queues q ON q.id = a.queue WHERE a.assigns ORDER BY q.name"
    )
    .fetch_all(conn)
    .await?;
    let scheduled = rows.into_iter().map(|row| Scheduled {
        active: Active { queue: row.queue, server: row.server, term: row.term },
        name: row.name,
        since: row.since,
    });
    Ok(scheduled.collect())
}

/// Locks the row of an assign queue. A stopped server loses the lock within a second, because it
/// blocks admission and other schedulers.
pub async fn lock(transaction: &mut PgConnection, queue: i32) -> Result<Option<Scheduled>, sqlx::Error> {
    idle_briefly(transaction).await?;
    let row = sqlx::query!(
        "-- lock_scheduler
        SELECT a.server, a.term, a.since, q.name FROM admission_queues a JOIN task_queues q ON q.id = a.queue
        WHERE a.queue = $1 AND a.assigns FOR UPDATE OF a",
        queue
    )
    .fetch_optional(transaction)
    .await?;
    Ok(row.map(|row| Scheduled {
        active: Active { queue, server: row.server, term: row.term },
        name: row.name,
        since: row.since,
    }))
}

/// Makes another server, or none, the scheduler of a queue, and returns the new term. None if the
/// queue has changed. Positions of a later scheduler exceed those given out by a lost one, whose
/// runs are given out again if the policy requires.
pub async fn change(
    transaction: &mut PgConnection,
    seen: Active,
    to: Option<Uuid>,
    why: SchedulerEnd,
) -> Result<Option<i64>, sqlx::Error> {
    let is_lost = match why {
        SchedulerEnd::Lost | SchedulerEnd::Replaced => true,
        SchedulerEnd::HandedOver | SchedulerEnd::Stopped | SchedulerEnd::PolicyChanged => false,
    };
    // Lock before reading the last position: a running check of the scheduler gives out positions
    // until it ends.
    if lock(transaction, seen.queue).await?.is_none() {
        return Ok(None);
    }
    let changed = sqlx::query!(
        "-- change_scheduler
        UPDATE admission_queues a SET term = a.term + 1, server = $3, since = db_now.now,
            reassign_before = CASE WHEN $4 /* lost */ AND a.reassigns THEN db_now.now ELSE a.reassign_before END,
            reassign_ord = CASE WHEN $4 AND a.reassigns THEN (SELECT last_value FROM pending_ord) ELSE a.reassign_ord END
        FROM db_now, task_queues q
        WHERE a.queue = $1 AND a.term = $2 AND a.assigns AND q.id = a.queue
        RETURNING a.term, q.name",
        seen.queue,
        seen.term,
        to,
        is_lost
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(changed) = changed else { return Ok(None) };
    if let Some(before) = seen.server {
        emit_inactive(transaction, &changed.name, before, seen.term, why).await?;
    }
    if let Some(to) = to {
        let note = Note::scheduler_active(queues::parse_name(&changed.name)?, ServerId::new(to), changed.term);
        policies::emit(transaction, &note).await?;
    }
    Ok(Some(changed.term))
}

/// Applies a policy change to the scheduler, in the same transaction. A queue that no longer
/// assigns runs has none.
pub(super) async fn follow_policy(
    transaction: &mut PgConnection,
    queue: i32,
    assigns: bool,
    reassigns: bool,
) -> Result<(), sqlx::Error> {
    let before = sqlx::query!(
        "-- follow_policy
        WITH before AS MATERIALIZED (SELECT server, term FROM admission_queues WHERE queue = $1 FOR UPDATE)
        UPDATE admission_queues a SET assigns = $2, reassigns = $3,
            term = CASE WHEN $2 OR a.server IS NULL THEN a.term ELSE a.term + 1 END,
            server = CASE WHEN $2 THEN a.server END, since = CASE WHEN $2 THEN a.since END,
            reassign_before = CASE WHEN $2 AND $3 THEN a.reassign_before END,
            reassign_ord = CASE WHEN $2 AND $3 THEN a.reassign_ord END
        FROM before, task_queues q WHERE a.queue = $1 AND q.id = a.queue
        RETURNING before.server, before.term, q.name",
        queue,
        assigns,
        reassigns
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(before) = before else { return Ok(()) };
    match before.server.filter(|_| !assigns) {
        Some(server) => {
            emit_inactive(transaction, &before.name, server, before.term, SchedulerEnd::PolicyChanged).await
        }
        None => Ok(()),
    }
}

async fn emit_inactive(
    transaction: &mut PgConnection,
    queue: &str,
    server: Uuid,
    term: i64,
    why: SchedulerEnd,
) -> Result<(), sqlx::Error> {
    let note = Note::scheduler_inactive(queues::parse_name(queue)?, ServerId::new(server), term, why);
    policies::emit(transaction, &note).await
}
