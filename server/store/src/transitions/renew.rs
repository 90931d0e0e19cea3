//! Lease renewal. Touches `claims` only.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use uuid::Uuid;

use crate::decode::{Row, Undecodable, task_columns};
use crate::hot;
use crate::hot::statement::{Run, Statement, row, statement};
use tenure_domain::task::{EndedRun, Granted, Last, Tenancy};
use tenure_domain::worker::WorkerKey;

#[derive(Debug, Clone, Copy)]
pub struct Member {
    pub id: Uuid,
    pub run: i16,
}

row! {
    #[derive(Debug)]
    pub struct Renewed {
        /// From 1.
        n: i64,
        pub seq: i64,
        id: Uuid,
        pub run: i16,
        pub queue: i32,
        priority: i16,
        scheduled: DateTime<Utc>,
        reason_created: i16,
        retries_left: i16,
        started: DateTime<Utc>,
        /// New end of the lease.
        pub taken_until: DateTime<Utc>,
        pub now: DateTime<Utc>,
        worker_group: String,
        worker_id: String,
        scheduler: String,
        project: String,
        task_group: Uuid,
        deadline: DateTime<Utc>,
        expires: DateTime<Utc>,
        scopes: String,
    }
}

impl Renewed {
    /// From 0.
    pub fn member(&self) -> usize {
        hot::member(self.n)
    }

    pub fn worker(&self) -> WorkerKey {
        WorkerKey { queue: self.queue, group: self.worker_group.clone(), id: self.worker_id.clone() }
    }

    /// Returns the claim for the response to its worker.
    pub fn describe(self, queue: TaskQueueId, mut ended: Vec<EndedRun>) -> Result<Granted, Undecodable> {
        let columns = Row { table: "claims", task: self.id };
        let open = columns.open_run(self.run, self.reason_created, self.scheduled)?;
        // `ended` was read after the renewal, and the claim may have ended since.
        ended.retain(|earlier| earlier.run.run < open.run);
        let tenancy = Tenancy {
            worker_group: self.worker_group,
            worker_id: self.worker_id,
            started: self.started,
            taken_until: self.taken_until,
        };
        let last = Last::Running(open, tenancy.clone());
        Ok(Granted {
            run: open.run,
            now: self.now,
            scopes: self.scopes,
            definition: None,
            task: task_columns!(self).task("claims", queue, last, ended)?,
            tenancy,
        })
    }
}

/// Renews leases for the claim timeout of the queue's policy, or `lease`. Never shortens a lease;
/// does not change `complete_by`.
pub async fn renew(conn: &mut PgConnection, members: &[Member], lease: Duration) -> Result<Vec<Renewed>, sqlx::Error> {
    conn.run_one(&statement(members, lease)).await?.decode()
}

pub fn statement(members: &[Member], lease: Duration) -> Statement {
    let ids: Vec<Uuid> = members.iter().map(|member| member.id).collect();
    let runs: Vec<i16> = members.iter().map(|member| member.run).collect();
    statement!(
        Renewed,
        r#"-- reclaim_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        input AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::smallint[]) WITH ORDINALITY AS i(id, run, n)),
        locked AS MATERIALIZED (
            SELECT input.n, t.priority, c.seq FROM input
            JOIN tasks t ON t.id = input.id
            JOIN claims c ON c.seq BETWEEN t.seq AND t.seq AND c.run = input.run
            WHERE c.deadline > (SELECT now FROM db_now)
            FOR UPDATE OF c SKIP LOCKED
        ),
        renewed AS (
            UPDATE claims c SET taken_until = GREATEST(c.taken_until, db_now.now + make_interval(secs => COALESCE(
                (SELECT q.claim_timeout FROM task_queues q WHERE q.id = c.queue), $3 /* lease */)))
            FROM locked, db_now WHERE c.seq BETWEEN locked.seq AND locked.seq
            RETURNING c.*, locked.n, locked.priority
        )
        SELECT r.n AS "n!", r.seq, r.id, r.run, r.queue, r.priority, r.scheduled, r.reason_created, r.retries_left,
               r.started, r.taken_until, db_now.now AS "now!", r.worker_group, r.worker_id, d.scheduler, d.project,
               d.task_group, d.deadline, d.expires, d.scopes
        FROM renewed r JOIN task_definitions d ON d.seq = r.seq, db_now"#,
        &ids,
        &runs,
        lease.as_secs_f64(),
    )
}
