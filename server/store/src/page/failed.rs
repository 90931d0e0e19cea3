//! Latest failed runs in groups, from `failed_runs`. Cancelled runs are left out.

use std::time::Duration;

use sqlx::PgConnection;
use tenure_api::states::ReasonResolved;

/// Latest failed runs read, with cancelled ones.
pub const FAILED_READ: i64 = 2_000;
/// Queues with dead letters, which another index has, and runs of each.
const DEAD_QUEUES_READ: i64 = 200;
const DEAD_READ: i64 = 200;

/// Failed runs that have this in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRow {
    pub queue: i32,
    pub queue_name: String,
    pub reason: ReasonResolved,
    pub exit_code: Option<i32>,
    /// Group and id.
    pub worker: Option<(String, String)>,
    pub number: i64,
}

/// Groups of failed runs.
#[derive(Debug, Clone, Default)]
pub struct FailedRuns {
    pub rows: Vec<FailedRow>,
    /// True if earlier failed runs were not read.
    pub is_cut: bool,
}

/// If all runs that were read are cancelled ones, the only row has just their number.
struct Row {
    queue: Option<i32>,
    queue_name: Option<String>,
    reason: Option<i16>,
    exit_code: Option<i32>,
    worker_group: Option<String>,
    worker_id: Option<String>,
    number: Option<i64>,
    read: i64,
}

impl FailedRuns {
    fn new(rows: Vec<Row>) -> Self {
        let is_cut = rows.first().is_some_and(|row| row.read >= FAILED_READ);
        let rows = rows.into_iter().filter_map(|row| {
            Some(FailedRow {
                queue: row.queue?,
                queue_name: row.queue_name?,
                // A reason of a later release is left out.
                reason: ReasonResolved::from_code(row.reason?)?,
                exit_code: row.exit_code,
                worker: row.worker_group.zip(row.worker_id),
                number: row.number?,
            })
        });
        Self { rows: rows.collect(), is_cut }
    }
}

/// Groups the latest failed runs of all queues within `within`.
pub async fn list_failed(conn: &mut PgConnection, within: Duration) -> Result<FailedRuns, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"-- page_failed
        WITH RECURSIVE dead AS (
            (SELECT f.queue, 1 /* count */::bigint AS n FROM failed_runs f WHERE f.dead ORDER BY f.queue LIMIT 1)
            UNION ALL
            SELECT (SELECT f.queue FROM failed_runs f WHERE f.dead AND f.queue > d.queue ORDER BY f.queue LIMIT 1), d.n + 1
            FROM dead d WHERE d.queue IS NOT NULL AND d.n < $3 /* queues */
        ),
        latest AS MATERIALIZED (
            (SELECT f.queue, f.reason, f.exit_code, f.worker_group, f.worker_id FROM failed_runs f
             WHERE NOT f.dead AND f.resolved >= (SELECT now FROM db_now) - make_interval(secs => $1)
             ORDER BY f.resolved DESC LIMIT $2 /* FAILED_READ */)
            UNION ALL
            (SELECT f.queue, f.reason, f.exit_code, f.worker_group, f.worker_id
             FROM dead d CROSS JOIN LATERAL (
                 SELECT f.* FROM failed_runs f
                 WHERE f.queue = d.queue AND f.dead AND f.resolved >= (SELECT now FROM db_now) - make_interval(secs => $1)
                 ORDER BY f.resolved DESC LIMIT $4 /* runs */
             ) f LIMIT $2)
        ),
        grouped AS MATERIALIZED (
            SELECT l.queue, l.reason, l.exit_code, l.worker_group, l.worker_id, count(*) AS number FROM latest l
            WHERE l.reason <> 3 /* ReasonResolved::Canceled */
            GROUP BY l.queue, l.reason, l.exit_code, l.worker_group, l.worker_id
        )
        SELECT g.queue AS "queue?", q.name AS "queue_name?", g.reason AS "reason?", g.exit_code AS "exit_code?",
               g.worker_group AS "worker_group?", g.worker_id AS "worker_id?", g.number AS "number?", r.read AS "read!"
        FROM (SELECT count(*) AS read FROM latest) r
        LEFT JOIN grouped g ON true LEFT JOIN task_queues q ON q.id = g.queue"#,
        within.as_secs_f64(),
        FAILED_READ,
        DEAD_QUEUES_READ,
        DEAD_READ
    )
    .fetch_all(conn)
    .await?;
    Ok(FailedRuns::new(rows))
}

/// Groups the latest failed runs of one queue within `within`.
pub async fn list_failed_of_queue(
    conn: &mut PgConnection,
    queue: i32,
    within: Duration,
) -> Result<FailedRuns, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"-- page_failed_of_queue
        WITH latest AS MATERIALIZED (
            SELECT f.queue, f.reason, f.exit_code, f.worker_group, f.worker_id FROM failed_runs f
            WHERE f.queue = $1 AND f.resolved >= (SELECT now FROM db_now) - make_interval(secs => $2)
            ORDER BY f.resolved DESC LIMIT $3 /* FAILED_READ */
        ),
        grouped AS MATERIALIZED (
            SELECT l.queue, l.reason, l.exit_code, l.worker_group, l.worker_id, count(*) AS number FROM latest l
            WHERE l.reason <> 3 /* ReasonResolved::Canceled */
            GROUP BY l.queue, l.reason, l.exit_code, l.worker_group, l.worker_id
        )
        SELECT g.queue AS "queue?", q.name AS "queue_name?", g.reason AS "reason?", g.exit_code AS "exit_code?",
               g.worker_group AS "worker_group?", g.worker_id AS "worker_id?", g.number AS "number?", r.read AS "read!"
        FROM (SELECT count(*) AS read FROM latest) r
        LEFT JOIN grouped g ON true LEFT JOIN task_queues q ON q.id = g.queue"#,
        queue,
        within.as_secs_f64(),
        FAILED_READ
    )
    .fetch_all(conn)
    .await?;
    Ok(FailedRuns::new(rows))
}
