//! Moves unscheduled tasks to pending.

mod dependents;

use sqlx::PgConnection;
use tenure_api::states::ReasonCreated;
use uuid::Uuid;

use crate::hot::statement::row;

pub use dependents::{DEPENDENTS_MAX, schedule_dependents};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// No dependency is unsatisfied.
    Ready,
    Always,
}

row! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Scheduled {
        pub queue: i32,
        /// True if no worker can claim its run yet.
        pub held: bool,
    }
}

impl Scheduled {
    #[must_use]
    pub fn claimable(self) -> Option<i32> {
        (!self.held).then_some(self.queue)
    }
}

/// True if the dependency pass alone schedules, because a breakage strikes there.
#[cfg(feature = "test-util")]
#[must_use]
pub fn is_left_to_pass() -> bool {
    use crate::breakage::{Breakage, is_on};
    is_on(Breakage::LoseDependent) || is_on(Breakage::ScheduleEarly)
}

/// Schedules unscheduled tasks and returns them. An earlier statement has locked their rows.
pub async fn schedule(conn: &mut PgConnection, locked: &[Uuid], when: When) -> Result<Vec<Scheduled>, sqlx::Error> {
    sqlx::query_as!(
        Scheduled,
        r#"-- schedule_tasks
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        ready AS MATERIALIZED (
            SELECT t.id, t.seq, t.queue, t.priority, t.retries_left, d.deadline,
                   run_traits(q.traits, o.delivery, o.complete_time, o.retry_first, o.retry_most, o.retry_failed) AS traits,
                   CASE WHEN start.ready > db_now.now AND d.deadline > db_now.now THEN LEAST(start.ready, d.deadline) END
                       AS held_until,
                   admission_key_id(t.queue, run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group)) AS key_id
            FROM unnest($1::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id JOIN task_definitions d ON d.seq = t.seq
            JOIN task_queues q ON q.id = t.queue LEFT JOIN task_options o ON o.seq = t.seq
            CROSS JOIN db_now
            CROSS JOIN LATERAL (SELECT COALESCE(o.not_before, db_now.now + make_interval(
                                           secs => NULLIF(COALESCE(o.delay, q.delay), 0 /* count */))) AS ready) start
            WHERE t.state = 0 /* State::Unscheduled */
              -- Even by hand, not before its unique name is free.
              AND NOT EXISTS (SELECT FROM dependencies e WHERE e.dependent = t.id AND e.fixed AND NOT e.satisfied)
              AND ($2 OR NOT EXISTS (SELECT FROM dependencies e WHERE e.dependent = t.id AND NOT e.satisfied))
            ORDER BY t.seq
        ),
        moved AS (UPDATE tasks t SET state = 1 /* State::Unresolved */, run = 0 /* run */ FROM ready WHERE t.id = ready.id),
        runs_pending AS (
            INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                 hold, held_until, reserved_until, hidden_until)
            SELECT seq, id, 0 /* run */, queue, priority, deadline, db_now.now, $3, retries_left, traits, key_id,
                   CASE WHEN held_until IS NOT NULL THEN 1 /* Hold::Delay */ WHEN key_id IS NOT NULL THEN 2 /* Hold::Waiting */ END,
                   held_until, held.always, held.always
            FROM ready, db_now,
                 LATERAL (SELECT CASE WHEN held_until IS NOT NULL OR key_id IS NOT NULL THEN timestamptz '3000-01-01' END AS always) held
            ORDER BY seq
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(n - delayed) AS pending, array_agg(0 /* count */) AS claimed,
                   CASE WHEN sum(delayed) > 0 /* count */ THEN array_agg(delayed) END AS delayed,
                   CASE WHEN sum(waiting) > 0 /* count */ THEN array_agg(waiting) END AS waiting
            FROM (SELECT queue, count(*)::int AS n, count(held_until)::int AS delayed,
                         (count(key_id) FILTER (WHERE held_until IS NULL))::int AS waiting
                  FROM ready GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed, delayed,
                                    waiting)
            SELECT min(db_now.now), count(*), array_agg(8 /* Kind::Scheduled */::smallint), array_agg(seq),
                   array_agg(0 /* run */::smallint), array_agg(retries_left), array_agg(priority),
                   min(counts.queues), min(counts.pending), min(counts.claimed), min(counts.delayed), min(counts.waiting)
            FROM ready, db_now, counts HAVING count(*) > 0
        )
        SELECT queue, (held_until IS NOT NULL OR key_id IS NOT NULL) AS "held!" FROM ready"#,
        locked,
        when == When::Always,
        ReasonCreated::Scheduled.code()
    )
    .fetch_all(conn)
    .await
}
