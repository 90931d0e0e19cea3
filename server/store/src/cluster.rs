//! Questions about a PostgreSQL cluster: is it reachable, does it have our database, are its
//! settings safe. Needs no schema.

use std::io;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tokio::time::timeout;

use crate::connector::no_answer;

/// How long a start or a command waits for a missing PostgreSQL.
pub(crate) const REACH_MAX: Duration = Duration::from_secs(5);
pub(crate) const REACH_PAUSE: Duration = Duration::from_millis(200);
/// Minimum duration of the last attempt. A shorter one would hide the errors of earlier attempts.
pub(crate) const REACH_LEAST: Duration = Duration::from_secs(1);
/// Timeout of [`ping`]. A hung PostgreSQL accepts connections but never replies.
const PING_MAX: Duration = Duration::from_secs(10);
const CANNOT_CONNECT_NOW: &str = "57P03";

/// Oldest supported PostgreSQL.
pub const OLDEST_MAJOR: u32 = 15;

/// A setting of an external PostgreSQL that endangers data or speed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    pub setting: String,
    pub value: String,
    /// Effect, and the better value.
    pub advice: &'static str,
}

/// Settings, wrong values and effects. [`crate::replication`] checks `synchronous_commit`.
const QUESTIONABLE: [(&str, &str, &str); 5] = [
    ("fsync", "off", "a power cut can destroy the database; set it to on"),
    ("full_page_writes", "off", "a power cut can leave half-written pages; set it to on"),
    ("autovacuum", "off", "claims become slower and slower; set it to on"),
    ("track_counts", "off", "autovacuum does nothing without it; set it to on"),
    ("jit", "on", "compiling short statements costs more than running them; set it to off"),
];

pub async fn find_warnings(pool: &PgPool) -> Result<Vec<Warning>, sqlx::Error> {
    let names: Vec<String> = QUESTIONABLE.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let rows = sqlx::query!(
        r#"-- cluster_settings
           SELECT name AS "name!", setting AS "setting!" FROM pg_settings WHERE name = ANY($1) ORDER BY name"#,
        &names
    )
    .fetch_all(pool)
    .await?;
    let advice_for = |name: &str, value: &str| {
        QUESTIONABLE.iter().find(|(n, wrong, _)| *n == name && *wrong == value).map(|(.., advice)| *advice)
    };
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let advice = advice_for(&row.name, &row.setting)?;
            Some(Warning { setting: row.name, value: row.setting, advice })
        })
        .collect())
}

/// Returns the size of the database in bytes. PostgreSQL asks the file system about every file.
pub async fn get_size(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- get_database_size
        SELECT pg_database_size(current_database()) AS "bytes!""#
    )
    .fetch_one(conn)
    .await
}

pub async fn get_major_version(pool: &PgPool) -> Result<u32, sqlx::Error> {
    let number = sqlx::query_scalar!(
        r#"-- cluster_version
           SELECT current_setting('server_version_num')::integer AS "number!""#
    )
    .fetch_one(pool)
    .await?;
    Ok(u32::try_from(number).unwrap_or(0) / 10_000)
}

/// Connects once and closes.
pub async fn ping(options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    ping_within(PING_MAX, options).await
}

async fn ping_within(most: Duration, options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let pinged = timeout(most, async { options.connect().await?.close().await }).await;
    pinged.unwrap_or_else(|_| Err(no_answer(most)))
}

/// Writes a checkpoint now, so that the shutdown has less to write.
pub async fn checkpoint(admin: &PgConnectOptions) -> Result<(), sqlx::Error> {
    // It may take long, which deserves no warning.
    let mut connection = admin.clone().disable_statement_logging().connect().await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut connection).await?;
    connection.close().await
}

/// True if a retry may find PostgreSQL started.
pub(crate) fn may_start(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset | io::ErrorKind::NotFound
        ),
        sqlx::Error::Database(error) => error.code().as_deref() == Some(CANNOT_CONNECT_NOW),
        _ => false,
    }
}

/// Creates the database `name`, one of our constants, unless it exists.
pub async fn ensure_database(admin: &PgConnectOptions, name: &'static str) -> Result<(), sqlx::Error> {
    let mut connection = admin.connect().await?;
    let found = sqlx::query_scalar!(
        r#"-- cluster_has_database
           SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1) AS "found!""#,
        name
    )
    .fetch_one(&mut connection)
    .await?;
    if !found {
        // CREATE DATABASE takes no parameter; `name` is never external.
        let statement = sqlx::AssertSqlSafe(format!("CREATE DATABASE \"{name}\""));
        sqlx::raw_sql(statement).execute(&mut connection).await?;
    }
    connection.close().await
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgSslMode;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::connector::Connector;

    /// Chosen so that the last refused attempt begins shortly before the end.
    const REFUSED_AFTER: Duration = Duration::from_millis(240);

    async fn always_starting(listener: TcpListener) {
        let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
        let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
        let refusal = [&b"E"[..], &length[..], &fields[..]].concat();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The startup message is small, and arrives at once.
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            tokio::time::sleep(REFUSED_AFTER).await;
            let _ = stream.write_all(&refusal).await;
        }
    }

    #[tokio::test]
    async fn failed_start_reports_cause_not_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
        let starting = tokio::spawn(always_starting(listener));
        let error = Connector::new(options).reach().await.unwrap_err();
        assert!(error.to_string().contains("is starting up"), "{error}");
        starting.abort();
    }

    #[tokio::test]
    async fn ping_of_hung_postgresql_times_out() {
        // The kernel accepts the connection, and nothing reads from it.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port);
        let pinged = timeout(Duration::from_secs(10), ping_within(Duration::from_millis(100), &options)).await;
        let error = pinged.expect("the ping hung").unwrap_err();
        assert!(matches!(&error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut), "{error}");
    }
}
