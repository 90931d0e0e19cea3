//! Failures of queues and workers within a time, on the operator's page.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;
use tenure_api::states::ReasonResolved;
use tenure_domain::problems::{is_failure, is_tried};

/// Latest failed runs of a queue that are counted.
pub const FAILURES_READ: i64 = 1_000;
/// Rows read for them, with cancelled runs, which may be many.
const ROWS_READ: i64 = 5_000;
/// `queue_minutes.step` of single minutes.
const MINUTE: i16 = 1;

/// Resolved tasks of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndedTasks {
    /// Tried runs: neither cancelled nor superseded.
    pub tried: i64,
    pub failed: i64,
}

/// Counts the tasks of these queues that were resolved within `within`, by name. A queue without
/// any is missing.
pub async fn count_ended(
    conn: &mut PgConnection,
    queues: &[&str],
    within: Duration,
) -> Result<HashMap<String, EndedTasks>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_ended_tasks
        SELECT q.name AS "name!", e.reason AS "reason!", sum(e.ends)::bigint AS "number!"
        FROM unnest($1::text[] /* queues */) AS i(name) JOIN task_queues q ON q.name = i.name COLLATE "C"
        CROSS JOIN LATERAL (
            SELECT m.reasons, m.ends FROM queue_minutes m
            WHERE m.queue = q.id AND m.step = $3 /* minute */
              AND m.minute >= (SELECT now FROM db_now) - make_interval(secs => $2)
        ) m
        CROSS JOIN LATERAL unnest(m.reasons, m.ends) AS e(reason, ends)
        GROUP BY q.name, e.reason"#,
        queues as &[&str],
        within.as_secs_f64(),
        MINUTE
    )
    .fetch_all(conn)
    .await?;
    let mut ended: HashMap<String, EndedTasks> = HashMap::new();
    for row in rows {
        // A reason of a later release is not counted.
        let Some(reason) = ReasonResolved::from_code(row.reason) else { continue };
        let tasks = ended.entry(row.name).or_default();
        tasks.tried += if is_tried(reason) { row.number } else { 0 };
        tasks.failed += if is_failure(reason) { row.number } else { 0 };
    }
    Ok(ended)
}

/// Failed runs of a worker, or of none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureCounts {
    pub queue: i32,
    /// Group and id.
    pub worker: Option<(String, String)>,
    pub number: i64,
}

/// Counts the latest [`FAILURES_READ`] failed runs of each of these queues within `within` by
/// worker. Cancelled runs are left out.
pub async fn count_failed(
    conn: &mut PgConnection,
    queues: &[i32],
    within: Duration,
) -> Result<Vec<FailureCounts>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_failed_runs
        SELECT i.queue AS "queue!", f.worker_group AS "worker_group?", f.worker_id AS "worker_id?", count(*) AS "number!"
        FROM unnest($1::int[]) AS i(queue) CROSS JOIN LATERAL (
            SELECT r.worker_group, r.worker_id FROM (
                SELECT f.resolved, f.reason, f.worker_group, f.worker_id FROM failed_runs f
                WHERE f.queue = i.queue AND f.resolved >= (SELECT now FROM db_now) - make_interval(secs => $2)
                ORDER BY f.resolved DESC LIMIT $4 /* ROWS_READ */
            ) r
            WHERE r.reason <> 3 /* ReasonResolved::Canceled */
            ORDER BY r.resolved DESC LIMIT $3 /* FAILURES_READ */
        ) f
        GROUP BY i.queue, f.worker_group, f.worker_id"#,
        queues,
        within.as_secs_f64(),
        FAILURES_READ,
        ROWS_READ
    )
    .fetch_all(conn)
    .await?;
    let failed = rows.into_iter().map(|row| FailureCounts {
        queue: row.queue,
        worker: row.worker_group.zip(row.worker_id),
        number: row.number,
    });
    Ok(failed.collect())
}

#[cfg(test)]
mod tests {
    use sqlx::Connection as _;

    use super::*;
    use crate::testing::TestDatabase;

    #[tokio::test]
    async fn cancelled_runs_displace_no_failed_ones() {
        let database = TestDatabase::create().await;
        let mut conn = database.connect().await;
        let mut transaction = conn.begin().await.unwrap();
        let fill = "INSERT INTO failed_runs (queue, resolved, seq, run, state, reason, worker_group, worker_id, final, blocks)
                    SELECT 7, now() - n * interval '1 s', n, 0, 5, CASE WHEN n > 1500 THEN 1 /* failed */ ELSE 3 /* canceled */ END,
                           'g', 'w' || n % 2, true, false
                    FROM generate_series(1, 1520) n";
        sqlx::query(fill).execute(&mut *transaction).await.unwrap();
        let failed = count_failed(&mut transaction, &[7], Duration::from_secs(3_600)).await.unwrap();
        let mut numbers: Vec<(Option<(String, String)>, i64)> =
            failed.into_iter().map(|row| (row.worker, row.number)).collect();
        numbers.sort();
        let worker = |id: &str| Some(("g".to_owned(), id.to_owned()));
        assert_eq!(numbers, [(worker("w0"), 10), (worker("w1"), 10)]);
        // Rows without their tasks would break the invariants.
        transaction.rollback().await.unwrap();
        drop(conn);
        database.finish().await;
    }
}
