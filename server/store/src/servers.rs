//! Servers of a database and their heartbeats. Beats are in real time: moving the manual clock
//! silences no server.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_domain::election::{ACTIVATION, Server};
use uuid::Uuid;

use super::settings;

/// A server's own row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Created at each start.
    pub id: Uuid,
    pub name: String,
    /// The server with the greatest weight becomes scheduler; 0 never does.
    pub weight: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Input of elections.
    pub server: Server,
    /// No name if its release had none.
    pub name: Option<String>,
    pub started: DateTime<Utc>,
}

#[derive(Debug, Clone)]
pub struct Servers {
    /// By name.
    pub servers: Vec<Stored>,
    /// Real time of the database.
    pub now: DateTime<Utc>,
}

/// Writes the beat of a server, and returns true if there are assign queues. Returns after the
/// commit, and so after a synchronous standby. None if the server has no row.
///
/// Inserts no row: an abandoned beat could otherwise bring back a server that has left.
pub async fn beat(conn: &mut PgConnection, server: Uuid) -> Result<Option<bool>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- beat
        UPDATE servers SET beat = clock_timestamp() WHERE id = $1
        RETURNING EXISTS (SELECT FROM admission_queues WHERE assigns) AS "any!""#,
        server
    )
    .fetch_optional(conn)
    .await
}

pub async fn insert(conn: &mut PgConnection, member: &Member, up: Duration) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- insert_server
        INSERT INTO servers (id, name, weight, started, beat)
        SELECT $1, $2, $3, now.now - make_interval(secs => $4), now.now FROM (SELECT clock_timestamp() AS now) now
        ON CONFLICT (id) DO NOTHING",
        member.id,
        member.name,
        i32::from(member.weight),
        up.as_secs_f64()
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Inserts the row of a starting server. Stores the activation time for `why_scheduler`.
pub async fn join(conn: &mut PgConnection, member: &Member) -> Result<(), sqlx::Error> {
    let activation = ACTIVATION.num_milliseconds().to_string();
    settings::put(&mut *conn, settings::SCHEDULER_ACTIVATION, &activation).await?;
    insert(conn, member, Duration::ZERO).await
}

pub async fn list(conn: &mut PgConnection) -> Result<Servers, sqlx::Error> {
    let now =
        sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!" -- get_real_time"#).fetch_one(&mut *conn).await?;
    let rows =
        sqlx::query!("-- list_servers\nSELECT id, name, weight, started, beat FROM servers ORDER BY name, started, id")
            .fetch_all(conn)
            .await?;
    let servers = rows.into_iter().map(|row| Stored {
        server: Server { id: row.id, weight: row.weight.map_or(0, i32::unsigned_abs), beat: row.beat },
        name: row.name,
        started: row.started,
    });
    Ok(Servers { servers: servers.collect(), now })
}

pub async fn leave(conn: &mut PgConnection, server: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!("-- leave\nDELETE FROM servers WHERE id = $1", server).execute(conn).await?;
    Ok(())
}

/// Purges up to `limit` servers silent for `kept`, or whose beat is more than `ahead` in the
/// future. The clock was set back, and such a server would later count as live.
pub async fn purge(conn: &mut PgConnection, kept: Duration, ahead: TimeDelta, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_servers
        WITH old AS MATERIALIZED (
            SELECT s.id FROM servers s
            WHERE s.beat <= clock_timestamp() - make_interval(secs => $1)
               OR s.beat > clock_timestamp() + make_interval(secs => $2)
            ORDER BY s.beat LIMIT $3 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM servers s USING old WHERE s.id = old.id",
        kept.as_secs_f64(),
        ahead.as_seconds_f64(),
        limit
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}

/// True if a server whose last migration is older than `number` is connected to this database.
pub async fn has_older(conn: &mut PgConnection, number: i64) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- has_older_server
        SELECT EXISTS (
            SELECT FROM pg_stat_activity
            WHERE datname = current_database() AND substring(application_name FROM '^tenure/([0-9]{1,9})( |$)')::bigint < $1
        ) AS "any!""#,
        number
    )
    .fetch_one(conn)
    .await
}
