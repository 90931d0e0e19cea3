//! The table `worker_removals`: removed workers whose claims must be ended.
//!
//! A claim begun before the removal may be committed later. So a removal stays noted for a while
//! and is checked repeatedly.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::facts;

/// Delay of the first check by the pass: the removal itself checks at once.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Delays of further checks in seconds, each after a check without claims. They exceed the duration
/// of any transaction that began before the removal.
const LOOK_AGAIN_AFTER_SECONDS: [i32; 3] = [4, 15, 60];

/// Longer than the delay of any check.
const PUT_OFF_MAX: Duration = Duration::from_secs(120);

/// Time after which a removal is certainly purged.
pub const SETTLED_AFTER: Duration = Duration::from_secs(180);

/// A worker, as named by claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gone {
    pub queue: i32,
    pub worker_group: String,
    pub worker_id: String,
}

/// Name of the removals in [`crate::facts`].
pub const FACT: &str = "removals";

/// Records the removal of a worker: claims begun until now must be ended, and later ones too if
/// `for_good`.
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

pub async fn list(conn: &mut PgConnection) -> Result<HashMap<Gone, DateTime<Utc>>, sqlx::Error> {
    let rows = sqlx::query!("-- list_removals\nSELECT queue, worker_group, worker_id, removed FROM worker_removals")
        .fetch_all(conn)
        .await?;
    let noted = rows
        .into_iter()
        .map(|row| (Gone { queue: row.queue, worker_group: row.worker_group, worker_id: row.worker_id }, row.removed));
    Ok(noted.collect())
}

/// Makes removals due if their next check is further away than any delay: the clock was set back.
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

/// Lists claims of one removed worker, or of all that must be checked by `due`. Leaves tasks past
/// their deadline to the deadline pass.
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

/// Lists live sessions of removed workers that must be checked by `due`: sessions begun before the
/// removal, and later ones if it is for good.
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

/// Schedules the next checks after a check that found nothing, and purges settled removals.
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
