//! The table `worker_removals`: workers that are gone, whose claims are to be ended.
//!
//! A claim that began before its worker was removed may appear later, when its transaction commits. So a removal stays
//! noted for a while, and is looked at again and again.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::facts;

/// When the pass looks for claims the first time: the removal itself looks at once.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// When to look for claims again, in seconds after a look that found none. After the last one, no transaction goes on
/// that began before the removal: none takes as long.
const LOOK_AGAIN_AFTER_SECONDS: [i32; 3] = [4, 15, 60];

/// No look is put off for so long.
const PUT_OFF_MAX: Duration = Duration::from_secs(120);

/// When a removal is certainly purged: after all those looks, and a while.
pub const SETTLED_AFTER: Duration = Duration::from_secs(180);

/// A worker, as claims name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gone {
    /// `task_queues.id`.
    pub queue: i32,
    pub worker_group: String,
    pub worker_id: String,
}

/// Workers that are gone, as a fact that servers remember.
pub const FACT: &str = "removals";

/// Notes that a worker is gone: claims that have begun until now are to be ended, and later ones too if it is gone for
/// good.
pub async fn note(transaction: &mut PgConnection, worker: &Gone, for_good: bool) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- note_removal
        INSERT INTO worker_removals AS r (queue, worker_group, worker_id, removed, for_good, next_look)
        SELECT $1, $2, $3, db_now.now, $4, db_now.now + make_interval(secs => $5) FROM db_now
        ON CONFLICT (queue, worker_group, worker_id) DO UPDATE
            SET removed = EXCLUDED.removed, for_good = r.for_good OR EXCLUDED.for_good, looks = 0,
                next_look = EXCLUDED.next_look",
        worker.queue,
        worker.worker_group,
        worker.worker_id,
        for_good,
        LOOK_AFTER.as_secs_f64()
    )
    .execute(&mut *transaction)
    .await?;
    facts::raise(transaction, FACT).await
}

/// All removals that are noted: who is gone, and since when.
pub async fn list(conn: &mut PgConnection) -> Result<HashMap<Gone, DateTime<Utc>>, sqlx::Error> {
    let rows = sqlx::query!("-- list_removals\nSELECT queue, worker_group, worker_id, removed FROM worker_removals")
        .fetch_all(conn)
        .await?;
    let noted = rows
        .into_iter()
        .map(|row| (Gone { queue: row.queue, worker_group: row.worker_group, worker_id: row.worker_id }, row.removed));
    Ok(noted.collect())
}

/// Has removals looked at by `due` whose next look is further away than it is ever put off: the clock was set back since.
pub async fn bring_forward(conn: &mut PgConnection, due: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- bring_removals_forward
        UPDATE worker_removals SET next_look = $1 WHERE next_look > $1::timestamptz + make_interval(secs => $2)",
        due,
        PUT_OFF_MAX.as_secs_f64()
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Claims of workers that are gone: of one of them, or of all that are to be looked at by `due`. A task past its deadline
/// is left to the deadline pass.
pub async fn list_claims(
    conn: &mut PgConnection,
    worker: Option<&Gone>,
    due: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_claims_of_removed
        SELECT c.id, c.run
        FROM worker_removals r
        JOIN claims c ON c.queue = r.queue AND c.worker_group = r.worker_group AND c.worker_id = r.worker_id
        -- If the removal is to come, the clock was set back since: then what has begun by now may have begun after it.
        WHERE (r.for_good OR (c.started <= r.removed
                   AND (r.removed <= (SELECT now FROM db_now) OR c.started > (SELECT now FROM db_now))))
          AND c.deadline > (SELECT now FROM db_now)
          AND CASE WHEN $1::int IS NULL THEN r.next_look <= $4
                   ELSE r.queue = $1 AND r.worker_group = $2 AND r.worker_id = $3 END
        ORDER BY c.seq LIMIT $5"#,
        worker.map(|worker| worker.queue),
        worker.map_or("", |worker| worker.worker_group.as_str()),
        worker.map_or("", |worker| worker.worker_id.as_str()),
        due,
        limit
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.run)).collect())
}

/// Live sessions of workers that are gone and are to be looked at by `due`: those that began before the removal, and later ones too if
/// the worker is gone for good.
pub async fn list_sessions(conn: &mut PgConnection, due: DateTime<Utc>, limit: i64) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_sessions_of_removed
        SELECT s.epoch
        FROM worker_removals r
        CROSS JOIN LATERAL (
            SELECT s.epoch, s.started FROM worker_sessions s
            WHERE s.queue = r.queue AND s.worker_group = r.worker_group AND s.worker_id = r.worker_id AND s.ended IS NULL LIMIT 1
        ) s
        WHERE (r.for_good OR (s.started <= r.removed
                   AND (r.removed <= (SELECT now FROM db_now) OR s.started > (SELECT now FROM db_now))))
          AND r.next_look <= $1
        ORDER BY s.epoch LIMIT $2",
        due,
        limit
    )
    .fetch_all(conn)
    .await
}

/// A look at everything that was due found nothing left: sets when to look again, and purges what need not be looked at
/// any more.
pub async fn settle(conn: &mut PgConnection, due: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- purge_removals
        WITH deleted AS (
            DELETE FROM worker_removals WHERE next_look <= $1 AND looks >= cardinality($2::int[]) RETURNING queue
        )
        -- Other servers need not hear of it at once. Counted, so that all rows are locked before that of the fact, as in other
        -- changes of removals.
        UPDATE fact_generations SET generation = generation + 1
        WHERE name = $3 AND (SELECT count(*) FROM deleted) > 0 /* count */",
        due,
        &LOOK_AGAIN_AFTER_SECONDS,
        FACT
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "-- look_again_at_removals
        UPDATE worker_removals
        SET looks = looks + 1, next_look = $1::timestamptz + make_interval(secs => ($2::int[])[looks + 1])
        WHERE next_look <= $1",
        due,
        &LOOK_AGAIN_AFTER_SECONDS
    )
    .execute(conn)
    .await?;
    Ok(())
}
