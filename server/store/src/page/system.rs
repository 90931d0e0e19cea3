//! The database on the page about the installation.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{begin_part, end_part};

/// Largest tables.
const TABLES_READ: i64 = 10;
/// Programs with the most connections.
const PROGRAMS_READ: i64 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSize {
    pub name: String,
    /// With indexes and large values.
    pub bytes: i64,
    /// An estimate, like the next one.
    pub live: i64,
    pub dead: i64,
    pub vacuumed: Option<DateTime<Utc>>,
}

/// Lists the largest tables of the schema. PostgreSQL asks the file system about every file. None
/// on timeout, for instance while a table is locked.
pub async fn list_tables(conn: &mut PgConnection) -> Result<Option<Vec<TableSize>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let rows = sqlx::query_as!(
        TableSize,
        r#"-- page_tables
        WITH sized AS MATERIALIZED (
            SELECT s.relname::text AS name, COALESCE(pg_total_relation_size(s.relid), 0 /* count */) AS bytes,
                   s.n_live_tup AS live, s.n_dead_tup AS dead, GREATEST(s.last_vacuum, s.last_autovacuum) AS vacuumed
            FROM pg_stat_user_tables s WHERE s.schemaname = current_schema()
        )
        SELECT s.name AS "name!", s.bytes AS "bytes!", COALESCE(s.live, 0 /* count */) AS "live!",
               COALESCE(s.dead, 0 /* count */) AS "dead!", s.vacuumed AS "vacuumed?"
        FROM sized s ORDER BY s.bytes DESC, s.name LIMIT $1"#,
        TABLES_READ
    )
    .fetch_all(&mut *part)
    .await;
    end_part(part, rows).await
}

/// Connections of a program to this database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// `application_name`, which any client chooses. Servers of Tenure have the number of their last
    /// migration in it.
    pub name: String,
    pub connections: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connections {
    /// Most connections first.
    pub programs: Vec<Program>,
    /// Connections to all databases of the cluster.
    pub open: i64,
    /// `max_connections`.
    pub most: i64,
    /// Of PostgreSQL.
    pub version: String,
}

pub async fn get_connections(conn: &mut PgConnection) -> Result<Connections, sqlx::Error> {
    let programs = sqlx::query_as!(
        Program,
        r#"-- page_programs
        SELECT p.name AS "name!", count(*) AS "connections!"
        FROM (
            SELECT COALESCE(a.application_name, '') AS name FROM pg_stat_activity a WHERE a.datname = current_database()
        ) p
        GROUP BY p.name ORDER BY count(*) DESC, p.name LIMIT $1"#,
        PROGRAMS_READ
    )
    .fetch_all(&mut *conn)
    .await?;
    let row = sqlx::query!(
        r#"-- page_connections
        SELECT COALESCE((SELECT sum(d.numbackends) FROM pg_stat_database d), 0 /* count */)::bigint AS "open!",
               current_setting('max_connections')::bigint AS "most!", current_setting('server_version') AS "version!""#
    )
    .fetch_one(conn)
    .await?;
    Ok(Connections { programs, open: row.open, most: row.most, version: row.version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page;
    use crate::testing::TestDatabase;

    #[tokio::test]
    async fn tables_and_connections_are_read_without_special_rights() {
        let database = TestDatabase::create().await;
        let mut conn = page::begin(database.pool()).await.unwrap();
        let tables = list_tables(&mut conn).await.unwrap().unwrap();
        assert_eq!(tables.len(), 10);
        assert!(tables.is_sorted_by(|a, b| a.bytes >= b.bytes) && tables[0].bytes > 0, "{tables:?}");
        let connections = get_connections(&mut conn).await.unwrap();
        assert!(connections.programs.iter().any(|program| program.connections > 0), "{connections:?}");
        assert!(connections.open > 0 && connections.most >= connections.open, "{connections:?}");
        conn.commit().await.unwrap();
        database.finish().await;
    }

    #[tokio::test]
    async fn locked_table_delays_no_page() {
        let database = TestDatabase::create().await;
        let mut holder = database.connect().await;
        sqlx::raw_sql("BEGIN; LOCK TABLE roles").execute(&mut holder).await.unwrap();
        let mut conn = page::begin(database.pool()).await.unwrap();
        assert_eq!(list_tables(&mut conn).await.unwrap(), None);
        // The transaction goes on.
        get_connections(&mut conn).await.unwrap();
        drop((conn, holder));
        database.finish().await;
    }
}
