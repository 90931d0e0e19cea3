//! Renewing claims. Touches `claims` only.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::hot;

/// The claim that a member wants to renew.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// The task.
    pub id: Uuid,
    /// The run.
    pub run: i16,
}

/// A claim that was renewed.
#[derive(Debug)]
pub struct Renewed {
    /// Which member, from 1.
    pub n: i64,
    /// The task's key.
    pub seq: i64,
    /// The task.
    pub id: Uuid,
    /// The run.
    pub run: i16,
    /// `task_queues.id`.
    pub queue: i32,
    /// Priority.
    pub priority: i16,
    /// When the run became pending.
    pub scheduled: DateTime<Utc>,
    /// Why the run was made.
    pub reason_created: i16,
    /// Retries left.
    pub retries_left: i16,
    /// When it was claimed.
    pub started: DateTime<Utc>,
    /// When the claim ends now.
    pub taken_until: DateTime<Utc>,
    /// The moment.
    pub now: DateTime<Utc>,
    /// Who holds it.
    pub worker_group: String,
    /// Who holds it.
    pub worker_id: String,
    /// The scheduler.
    pub scheduler: String,
    /// The project.
    pub project: String,
    /// The group.
    pub task_group: Uuid,
    /// The deadline.
    pub deadline: DateTime<Utc>,
    /// When the task is forgotten.
    pub expires: DateTime<Utc>,
    /// JSON text of the task's scopes.
    pub scopes: String,
}

impl Renewed {
    /// Which member, from 0.
    #[must_use]
    pub fn member(&self) -> usize {
        hot::member(self.n)
    }
}

/// Moves the end of the claims to `term` from now; never back.
pub async fn renew(
    conn: &mut PgConnection,
    members: &[Member],
    term: std::time::Duration,
) -> Result<Vec<Renewed>, sqlx::Error> {
    let ids: Vec<Uuid> = members.iter().map(|member| member.id).collect();
    let runs: Vec<i16> = members.iter().map(|member| member.run).collect();
    sqlx::query_as!(
        Renewed,
        r#"-- reclaim_task
        WITH moment AS MATERIALIZED (SELECT now FROM moment),
        input AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::smallint[]) WITH ORDINALITY AS i(id, run, n)),
        held AS MATERIALIZED (
            SELECT input.n, t.priority, c.seq FROM input
            JOIN tasks t ON t.id = input.id
            JOIN claims c ON c.seq = t.seq AND c.run = input.run
            WHERE c.deadline > (SELECT now FROM moment)
            FOR UPDATE OF c SKIP LOCKED
        ),
        renewed AS (
            UPDATE claims c SET taken_until = GREATEST(c.taken_until, moment.now + make_interval(secs => $3))
            FROM held, moment WHERE c.seq = held.seq
            RETURNING c.*, held.n, held.priority
        )
        SELECT r.n AS "n!", r.seq, r.id, r.run, r.queue, r.priority, r.scheduled, r.reason_created, r.retries_left,
               r.started, r.taken_until, moment.now AS "now!", r.worker_group, r.worker_id, d.scheduler, d.project,
               d.task_group, d.deadline, d.expires, d.scopes
        FROM renewed r JOIN task_definitions d ON d.seq = r.seq, moment"#,
        &ids,
        &runs,
        term.as_secs_f64(),
    )
    .fetch_all(conn)
    .await
}
