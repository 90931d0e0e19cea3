//! Requests to purge workers' caches. Rows older than a day are ignored until purged.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};

use super::advisory;
use tenure_domain::purge_cache::{PURGE_KEPT, PURGES_MAX};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRow {
    pub worker_pool: String,
    pub cache_name: String,
    /// Older caches are stale.
    pub purge_before: DateTime<Utc>,
}

/// Requests a purge, again if repeated. False if the pool has reached its limit.
pub async fn ask(pool: &PgPool, worker_pool: &str, cache_name: &str) -> Result<bool, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    // Serializes requests of a worker pool, so that each counts earlier ones.
    sqlx::query!(
        r#"-- lock_purge_requests
        SELECT pg_advisory_xact_lock($1, hashtext($2)) AS "locked: ()""#,
        advisory::PURGE_REQUESTS,
        worker_pool
    )
    .fetch_one(&mut *transaction)
    .await?;
    let asked = sqlx::query!(
        "-- ask_for_purge
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO purge_requests AS p (worker_pool, cache_name, purge_before)
        SELECT $1, $2, db_now.now FROM db_now
        WHERE $4 > (
            SELECT count(*) FROM purge_requests o, db_now
            WHERE o.worker_pool = $1 AND o.cache_name <> $2
              AND o.purge_before > db_now.now - make_interval(secs => $3)
        )
        ON CONFLICT (worker_pool, cache_name) DO UPDATE
            SET purge_before = GREATEST(p.purge_before, EXCLUDED.purge_before)",
        worker_pool,
        cache_name,
        PURGE_KEPT.as_secs_f64(),
        PURGES_MAX as i64
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(asked.rows_affected() > 0)
}

/// Lists requests for a worker pool, all or since `since`, by cache.
pub async fn list_of_pool(
    conn: &mut PgConnection,
    worker_pool: &str,
    since: Option<DateTime<Utc>>,
) -> Result<Vec<PurgeRow>, sqlx::Error> {
    sqlx::query_as!(
        PurgeRow,
        "-- list_purge_requests
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT p.worker_pool, p.cache_name, p.purge_before FROM purge_requests p, db_now
        WHERE p.worker_pool = $1 AND p.purge_before > db_now.now - make_interval(secs => $2)
          AND ($3::timestamptz IS NULL OR p.purge_before >= $3)
        ORDER BY p.cache_name",
        worker_pool,
        PURGE_KEPT.as_secs_f64(),
        since
    )
    .fetch_all(conn)
    .await
}

/// Lists up to `limit` requests after this pool and cache, in order.
pub async fn list_all(conn: &mut PgConnection, after: (&str, &str), limit: i64) -> Result<Vec<PurgeRow>, sqlx::Error> {
    sqlx::query_as!(
        PurgeRow,
        "-- list_all_purge_requests
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT p.worker_pool, p.cache_name, p.purge_before FROM purge_requests p, db_now
        WHERE (p.worker_pool, p.cache_name) > ($1, $2)
          AND p.purge_before > db_now.now - make_interval(secs => $3)
        ORDER BY p.worker_pool, p.cache_name LIMIT $4",
        after.0,
        after.1,
        PURGE_KEPT.as_secs_f64(),
        limit
    )
    .fetch_all(conn)
    .await
}

/// Purges up to `limit` ignored requests.
pub async fn purge(conn: &mut PgConnection, from: DateTime<Utc>, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_old_purge_requests
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        old AS MATERIALIZED (
            SELECT p.worker_pool, p.cache_name FROM purge_requests p
            WHERE p.purge_before >= $3 AND p.purge_before <= (SELECT now FROM db_now) - make_interval(secs => $1)
            ORDER BY p.purge_before LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM purge_requests p USING old
        WHERE p.worker_pool = old.worker_pool AND p.cache_name = old.cache_name",
        PURGE_KEPT.as_secs_f64(),
        limit,
        from
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::due_marks::START;
    use crate::testing::with_clients;

    #[tokio::test]
    async fn concurrent_requests_respect_limit_of_pool() {
        with_clients(|pool| async move {
            let fill =
                "INSERT INTO purge_requests SELECT 'a/b', 'cache-' || n, tenure_now() FROM generate_series(5, $1) n";
            let filled = sqlx::query(fill).bind(PURGES_MAX as i64).execute(&pool).await.unwrap();
            assert_eq!(filled.rows_affected(), PURGES_MAX as u64 - 4);
            let names: Vec<String> = (0..12).map(|number| format!("new-{number}")).collect();
            let asked = join_all(names.iter().map(|name| ask(&pool, "a/b", name))).await;
            assert_eq!(asked.into_iter().filter(|asked| *asked.as_ref().unwrap()).count(), 4);
            // Existing requests may be repeated, and other pools have their own limit.
            assert!(ask(&pool, "a/b", "cache-7").await.unwrap() && ask(&pool, "a/c", "new").await.unwrap());
            assert!(!ask(&pool, "a/b", "newer").await.unwrap());
            let mut conn = pool.acquire().await.unwrap();
            assert_eq!(list_of_pool(&mut conn, "a/b", None).await.unwrap().len(), PURGES_MAX);
            // A day later, without any pass, there is capacity again.
            sqlx::raw_sql("UPDATE purge_requests SET purge_before = tenure_now() - interval '24 hours'")
                .execute(&mut *conn)
                .await
                .unwrap();
            assert!(ask(&pool, "a/b", "newer").await.unwrap());
            let [only] = &list_of_pool(&mut conn, "a/b", None).await.unwrap()[..] else { panic!("one counts") };
            assert_eq!(only.cache_name, "newer");
            assert_eq!(list_all(&mut conn, ("", ""), 10).await.unwrap(), std::slice::from_ref(only));
            assert_eq!(purge(&mut conn, START, 10_000).await.unwrap(), PURGES_MAX as u64 + 1);
            assert_eq!(purge(&mut conn, START, 10_000).await.unwrap(), 0);
            assert_eq!(list_all(&mut conn, ("", ""), 10).await.unwrap(), std::slice::from_ref(only));
        })
        .await;
    }
}
