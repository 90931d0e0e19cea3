//! Reads of a backup, and preparation of a restored copy.
//!
//! A backup reads one exported snapshot: `pg_dump` writes it out, and the backup copies the
//! artifacts that it names.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor, PgPool};
use uuid::Uuid;

use super::blobs::{self, CurrentBlob};

/// A snapshot of the database, valid until dropped.
pub struct Snapshot {
    conn: PgConnection,
    pub about: About,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// For `pg_dump --snapshot`.
    pub name: String,
    /// Last applied migration.
    pub migration: i64,
    /// Time of the snapshot, without the offset of a manual clock.
    pub taken: DateTime<Utc>,
}

impl Snapshot {
    pub async fn take(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let mut conn = pool.acquire().await?.detach();
        remove_time_limits(&mut conn).await?;
        // Servers wait for transactions of sessions with names like theirs, for instance to apply a
        // changed policy. They need not wait for a snapshot, which writes nothing.
        sqlx::raw_sql("SET application_name = 'backup of tenure'").execute(&mut conn).await?;
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut conn).await?;
        let row = sqlx::query!(
            r#"-- take_snapshot
            SELECT pg_export_snapshot() AS "name!", clock_timestamp() AS "taken!""#
        )
        .fetch_one(&mut conn)
        .await?;
        let about = About { name: row.name, migration: get_migration(&mut conn).await?, taken: row.taken };
        Ok(Self { conn, about })
    }

    /// Lists current generations of bytes with ids after `after`.
    pub async fn list_blobs(&mut self, after: Uuid, limit: i64) -> Result<Vec<CurrentBlob>, sqlx::Error> {
        blobs::list_current(&mut self.conn, after, limit).await
    }
}

/// Removes the time limits of a session: a dump or a check may take hours.
pub async fn remove_time_limits(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query_scalar!(
        "-- remove_time_limits
        SELECT set_config(name, '0', false) FROM pg_settings
        WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')"
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}

/// Returns the last applied migration.
pub async fn get_migration(db: impl PgExecutor<'_>) -> Result<i64, sqlx::Error> {
    // Unchecked: the table is not in the migrations, because sqlx creates it.
    sqlx::query_scalar(
        "-- get_migration
        SELECT max(version) FROM _sqlx_migrations",
    )
    .fetch_one(db)
    .await
}

/// True if the database has no tables, views or sequences. Parts of extensions do not count.
pub async fn is_empty(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- database_is_empty
        SELECT NOT EXISTS (
            SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE left(n.nspname, length('pg_')) <> 'pg_' AND n.nspname <> 'information_schema'
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                              AND d.deptype = 'e')
        ) AS "empty!""#
    )
    .fetch_one(pool)
    .await
}

/// Collects statistics, which a dump does not contain.
pub async fn analyze(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ANALYZE").execute(conn).await?;
    Ok(())
}

/// Sets the clock of a restored copy back to a time, so that nothing becomes due while it is
/// checked.
pub async fn set_clock_back(conn: &mut PgConnection, to: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- set_clock_back
        UPDATE clock SET clock_offset = clock_offset - (clock_timestamp() - $1::timestamptz)",
        to
    )
    .execute(conn)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDatabase;
    use crate::{clock, due_marks, refile, schema};

    #[tokio::test]
    async fn snapshot_excludes_later_changes() {
        let database = TestDatabase::create().await;
        let pool = database.pool();
        let insert = "INSERT INTO blobs (id, name, state, content_type, began, size, sha256, stored)
            VALUES (gen_random_uuid(), $1, 1, 'text/plain', now(), 3, decode(repeat('ab', 32), 'hex'), now())";
        sqlx::query(insert).bind("before").execute(pool).await.unwrap();
        let mut snapshot = Snapshot::take(pool).await.unwrap();
        sqlx::query(insert).bind("after").execute(pool).await.unwrap();
        assert_eq!(snapshot.about.migration, schema::version());
        let listed = snapshot.list_blobs(Uuid::nil(), 10).await.unwrap();
        assert_eq!(listed.iter().map(|blob| blob.size).collect::<Vec<_>>(), [3]);
        assert!(snapshot.list_blobs(listed[0].id, 10).await.unwrap().is_empty());

        let mut other = database.connect().await;
        let import =
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{}'", snapshot.about.name);
        sqlx::raw_sql(sqlx::AssertSqlSafe(import)).execute(&mut other).await.unwrap();
        assert_eq!(blobs::list_current(&mut other, Uuid::nil(), 10).await.unwrap(), listed);
        drop(snapshot);

        let all = blobs::list_current(pool, Uuid::nil(), 10).await.unwrap();
        let ids: Vec<Uuid> = all.iter().map(|blob| blob.id).collect();
        assert_eq!(ids.len(), 2);
        sqlx::query("UPDATE blobs SET state = 2, due = now() WHERE name = 'before'").execute(pool).await.unwrap();
        let current = blobs::filter_current(pool, &ids).await.unwrap();
        assert_eq!(current, ids.iter().copied().filter(|id| *id != listed[0].id).collect::<Vec<_>>());
        sqlx::query("DELETE FROM blobs").execute(pool).await.unwrap();
        drop(other);
        database.finish().await;
    }

    #[tokio::test]
    async fn servers_do_not_wait_for_snapshot() {
        let database = TestDatabase::create().await;
        let connector = database.connector();
        let snapshot = Snapshot::take(&connector.pool()).await.unwrap();
        let mut other = database.connect().await;
        let open = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND state = 'idle in transaction'";
        assert_eq!(sqlx::query_scalar::<_, i64>(open).fetch_one(&mut other).await.unwrap(), 1);
        assert!(due_marks::list_transactions(&mut other).await.unwrap().is_empty());
        assert_eq!(refile::find_oldest_open(&mut other).await.unwrap(), None);
        drop((snapshot, other));
        database.finish().await;
    }

    #[tokio::test]
    async fn migrated_database_is_not_empty() {
        let database = TestDatabase::create().await;
        let pool = database.pool();
        assert!(!is_empty(pool).await.unwrap());
        assert_eq!(get_migration(pool).await.unwrap(), schema::version());
        sqlx::raw_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public").execute(pool).await.unwrap();
        assert!(is_empty(pool).await.unwrap());
        sqlx::raw_sql("CREATE TABLE foreign_table ()").execute(pool).await.unwrap();
        assert!(!is_empty(pool).await.unwrap());
        sqlx::raw_sql("DROP TABLE foreign_table").execute(pool).await.unwrap();
        schema::migrate(pool).await.unwrap();
        database.finish().await;
    }

    #[tokio::test]
    async fn clock_of_copy_is_set_back() {
        let database = TestDatabase::create().await;
        let mut conn = database.connect().await;
        let then = clock::get_real_now(&mut conn).await.unwrap() - chrono::TimeDelta::days(3);
        set_clock_back(&mut conn, then).await.unwrap();
        let now = clock::get_now(&mut conn).await.unwrap();
        assert!((then..then + chrono::TimeDelta::minutes(1)).contains(&now), "{now} instead of {then}");
        drop(conn);
        database.finish().await;
    }
}
