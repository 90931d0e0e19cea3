//! Checks of new connections: write access, and settings in effect. A pooler may silently drop
//! settings.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::time::timeout;

use crate::continuity::Incarnation;
use crate::hot::statement::{Run, row, statement};
use crate::session::{Kind, REQUIRED};

/// Comparisons of backends. A pooler with shared idle backends may give a connection the same one
/// by chance.
const COMPARISONS: usize = 3;
/// Timeout of the comparisons. In a pool of one, the second connection has no slot.
const COMPARE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("{name} is {found}, not {asked} as this connection was made with")]
    Setting {
        /// As in PostgreSQL.
        name: &'static str,
        asked: &'static str,
        found: String,
    },
    #[error("{name} is {found}, and Tenure needs it {needed}")]
    Required {
        /// As in PostgreSQL.
        name: &'static str,
        needed: &'static str,
        found: String,
    },
    /// Two transactions of a connection ran in different backends, or a backend served two
    /// connections.
    #[error("the sessions of one connection change between transactions, as in PgBouncer's transaction mode")]
    TransactionPooling,
    /// A standby, or a read-only database. Managed services set this when the disk is nearly full,
    /// so sessions do not override it.
    #[error("it is a standby, or default_transaction_read_only is on")]
    ReadOnly,
    /// A server would create empty tables.
    #[error("Tenure's tables are in the schema {schema}, which search_path does not name")]
    HiddenTables {
        /// Schema of Tenure's tables.
        schema: String,
    },
}

impl Unfit {
    /// Returns the reason for a failed connection, if known.
    pub fn of(error: &sqlx::Error) -> Option<&Self> {
        match error {
            sqlx::Error::Configuration(cause) => cause.downcast_ref(),
            _ => None,
        }
    }
}

impl From<Unfit> for sqlx::Error {
    fn from(unfit: Unfit) -> Self {
        Self::Configuration(Box::new(unfit))
    }
}

/// Checks a new connection, as its first statement, and returns the incarnation of its database.
pub(crate) async fn check(session: &mut impl Run, kind: Kind) -> Result<Incarnation, sqlx::Error> {
    let state = get_state(session, names(kind)).await?;
    let started = state.started;
    judge(kind, state)?;
    Incarnation::new(find_wal_file(session).await?.as_deref(), started)
}

async fn get_state(
    session: &mut impl Run,
    names: impl Iterator<Item = &'static str>,
) -> Result<SessionState, sqlx::Error> {
    let names: Vec<String> = names.map(str::to_owned).collect();
    let statement = statement!(
        SessionState,
        r#"-- check_session
        SELECT ARRAY(SELECT current_setting(s.name) FROM unnest($1::text[]) WITH ORDINALITY AS s(name, position)
                     ORDER BY s.position) AS "settings!",
            pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS "read_only!",
            (SELECT min(relnamespace::regnamespace::text) FROM pg_class
             WHERE relname = 'fact_generations' AND to_regclass('fact_generations') IS NULL) AS hidden_in,
            pg_postmaster_start_time() AS "started!""#,
        &names
    );
    session.run_one(&statement).await?.one()
}

row! {
    struct SessionState {
        /// In the order of the requested names.
        settings: Vec<String>,
        read_only: bool,
        /// Schema of Tenure's tables, if `search_path` omits it.
        hidden_in: Option<String>,
        /// Start of the postmaster.
        started: DateTime<Utc>,
    }
}

fn names(kind: Kind) -> impl Iterator<Item = &'static str> {
    kind.settings().into_iter().chain(REQUIRED).map(|(name, _)| name)
}

/// Rejects sessions with wrong settings, without write access, or without access to the tables.
fn judge(kind: Kind, state: SessionState) -> Result<(), Unfit> {
    let mut settings = state.settings.into_iter();
    for ((name, asked), found) in kind.settings().into_iter().zip(settings.by_ref()) {
        if found != asked {
            return Err(Unfit::Setting { name, asked, found });
        }
    }
    for ((name, needed), found) in REQUIRED.into_iter().zip(settings) {
        if found != needed {
            return Err(Unfit::Required { name, needed, found });
        }
    }
    if state.read_only {
        return Err(Unfit::ReadOnly);
    }
    state.hidden_in.map_or(Ok(()), |schema| Err(Unfit::HiddenTables { schema }))
}

row! {
    struct WalFile {
        file: String,
    }
}

/// Returns the current WAL file; none if a service hides it, such as Amazon Aurora.
async fn find_wal_file(session: &mut impl Run) -> Result<Option<String>, sqlx::Error> {
    let statement = statement!(
        WalFile,
        r#"-- wal_file
        SELECT pg_walfile_name(pg_current_wal_lsn()) AS "file!""#
    );
    match session.run_one(&statement).await {
        Ok(rows) => Ok(Some(rows.one::<WalFile>()?.file)),
        Err(error) if is_not_offered(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if a service refuses a function: wrong prerequisite state, unsupported, or not permitted.
pub(crate) fn is_not_offered(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    matches!(code.as_deref(), Some("55000" | "0A000" | "42501"))
}

/// Rejects transaction pooling, where settings, prepared statements and advisory locks leak between
/// sessions.
///
/// Two connections compare their backends in turns. Directly or with session pooling, each keeps
/// its own backend, so nothing else is rejected. With transaction pooling, the second gets the
/// backend that the first just left, or, in rotation, a different one. This misses only poolers
/// whose backends others take each time in between. They also drop the settings, which [`check`]
/// detects.
pub(crate) async fn refuse_transaction_pooling(
    conn: &mut PgConnection,
    options: &PgConnectOptions,
) -> Result<(), sqlx::Error> {
    // Other checks decide if a connection can be made.
    let Ok(Ok(mut other)) = timeout(COMPARE_MAX, PgConnection::connect_with(options)).await else { return Ok(()) };
    let compared = timeout(COMPARE_MAX, compare(conn, &mut other)).await;
    // Without a reply, the connection is dropped without a clean close.
    match compared {
        Ok(shared) => {
            drop(timeout(COMPARE_MAX, other.close()).await);
            if shared? { Err(Unfit::TransactionPooling.into()) } else { Ok(()) }
        }
        Err(_) => Ok(()),
    }
}

async fn compare(one: &mut PgConnection, other: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let (first, second) = (backend(one).await?, backend(other).await?);
    if first == second {
        return Ok(true);
    }
    for _ in 0..COMPARISONS {
        // Alternate the order: two backends in rotation would match two connections.
        if backend(other).await? != second || backend(one).await? != first {
            return Ok(true);
        }
        if backend(one).await? != first || backend(other).await? != second {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Not prepared, because another backend would not know it.
async fn backend(conn: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn).await?.try_get(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::pipeline::Pipeline;
    use crate::session::Locks;
    use crate::testing::TestDatabase;

    /// Database defaults that differ from each setting.
    const DEFAULTS: [(&str, &str); 15] = [
        ("statement_timeout", "1s"),
        ("idle_in_transaction_session_timeout", "1s"),
        ("lock_timeout", "1s"),
        ("jit", "on"),
        ("plan_cache_mode", "auto"),
        ("TimeZone", "CET"),
        ("default_transaction_isolation", "repeatable read"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_deferrable", "on"),
        ("exit_on_error", "on"),
        ("idle_session_timeout", "1min"),
        ("enable_seqscan", "on"),
        ("enable_bitmapscan", "on"),
        ("enable_hashjoin", "on"),
        ("enable_mergejoin", "on"),
    ];
    const KINDS: [Kind; 3] = [Kind::Cold, Kind::Hot(Locks::Waits), Kind::Hot(Locks::WaitsBriefly)];

    /// Changes a default for later sessions.
    async fn alter(database: &TestDatabase, change: &str) {
        let sql = format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I {}', current_database()); END $$",
            change.replace('\'', "\'\'")
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(database.pool()).await.unwrap();
    }

    #[tokio::test]
    async fn session_with_changed_setting_is_refused() {
        let database = TestDatabase::create().await;
        for kind in KINDS {
            for (setting, asked) in kind.settings() {
                let (_, other) =
                    DEFAULTS.into_iter().find(|(name, _)| *name == setting).expect("every setting is listed");
                let mut conn = PgConnection::connect_with(&kind.options(database.options())).await.unwrap();
                assert!(check(&mut conn, kind).await.is_ok());
                let change = format!("SET {setting} = '{other}'");
                sqlx::raw_sql(sqlx::AssertSqlSafe(change)).execute(&mut conn).await.unwrap();
                let error = check(&mut conn, kind).await.unwrap_err();
                let expected = Unfit::Setting { name: setting, asked, found: other.to_owned() };
                assert_eq!(Unfit::of(&error), Some(&expected), "{error}");
            }
        }
        let mut plain = database.connect().await;
        let error = check(&mut plain, Kind::Cold).await.unwrap_err();
        assert!(matches!(Unfit::of(&error), Some(Unfit::Setting { .. })), "{error}");
        database.finish().await;
    }

    /// [`DEFAULTS`] has each setting, as `session_with_changed_setting_is_refused` checks.
    #[tokio::test]
    async fn database_defaults_change_no_session() {
        let database = TestDatabase::create().await;
        for (name, value) in DEFAULTS {
            alter(&database, &format!("SET {name} = '{value}'")).await;
            let connector = database.connector();
            let is_hot = name.starts_with("enable_");
            let pool = connector.pool();
            let mut sessions = vec![("watch", connector.connect_hot(Locks::Waits).await.unwrap())];
            if !is_hot {
                sessions.push(("pool", pool.acquire().await.unwrap().detach()));
            }
            let show = format!("SELECT current_setting('{name}')");
            for (role, session) in &mut sessions {
                let found: String =
                    sqlx::query_scalar(sqlx::AssertSqlSafe(show.as_str())).fetch_one(session).await.unwrap();
                assert_ne!(found, value, "{name} of {role}");
            }
            let state = get_state(&mut connector.connect_pipeline().await.unwrap(), [name].into_iter()).await.unwrap();
            assert_ne!(state.settings, [value], "{name} of ticks");
            alter(&database, &format!("RESET {name}")).await;
        }
        database.finish().await;
    }

    /// Defaults that sessions do not override: an operator or administrator decides on them.
    #[tokio::test]
    async fn unsuitable_defaults_refuse_every_session() {
        let database = TestDatabase::create().await;
        let silent = |name, needed, found: &str| Unfit::Required { name, needed, found: found.to_owned() };
        let hidden = Unfit::HiddenTables { schema: "public".to_owned() };
        sqlx::raw_sql("CREATE SCHEMA elsewhere").execute(database.pool()).await.unwrap();
        for (name, value, expected) in [
            ("default_transaction_read_only", "on", Unfit::ReadOnly),
            ("track_activities", "off", silent("track_activities", "on", "off")),
            ("session_replication_role", "replica", silent("session_replication_role", "origin", "replica")),
            ("search_path", "elsewhere", hidden.clone()),
            ("search_path", "nowhere", hidden),
        ] {
            alter(&database, &format!("SET {name} = '{value}'")).await;
            for kind in KINDS {
                let options = kind.options(database.options());
                let mut conn = PgConnection::connect_with(&options).await.unwrap();
                let error = check(&mut conn, kind).await.unwrap_err();
                assert_eq!(Unfit::of(&error), Some(&expected), "{name} of {kind:?}: {error}");
                let mut pipeline = Pipeline::connect(&options).await.unwrap();
                let error = check(&mut pipeline, kind).await.unwrap_err();
                assert_eq!(Unfit::of(&error), Some(&expected), "{name} of a pipeline: {error}");
            }
            let error = database.connector().reach().await.unwrap_err();
            assert_eq!(Unfit::of(&error), Some(&expected), "{name} at the start: {error}");
            alter(&database, &format!("RESET {name}")).await;
        }
        database.connector().reach().await.unwrap();
        database.finish().await;
    }

    #[tokio::test]
    async fn search_path_may_name_other_schema() {
        let database = TestDatabase::create().await;
        let own = "CREATE SCHEMA own; ALTER TABLE fact_generations SET SCHEMA own";
        sqlx::raw_sql(own).execute(database.pool()).await.unwrap();
        alter(&database, "SET search_path = own, public").await;
        database.connector().reach().await.unwrap();
        database.finish().await;
    }

    #[tokio::test]
    async fn service_without_wal_position_is_accepted() {
        let database = TestDatabase::create().await;
        let options = Kind::Cold.options(database.options()).options([("role", "pg_read_all_data")]);
        let mut conn = PgConnection::connect_with(&options).await.unwrap();
        let known = check(&mut conn, Kind::Cold).await.unwrap();
        assert!(known.timeline > 0);
        let refuse = "REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC";
        sqlx::raw_sql(refuse).execute(&mut database.connect().await).await.unwrap();
        let silent = check(&mut conn, Kind::Cold).await.unwrap();
        assert_eq!((silent.timeline, silent.started), (0, known.started));
        drop(conn);
        database.finish().await;
    }

    #[tokio::test]
    async fn direct_connection_is_no_transaction_pooling() {
        let database = TestDatabase::create().await;
        let mut conn = database.connect().await;
        refuse_transaction_pooling(&mut conn, database.options()).await.unwrap();
        database.finish().await;
    }
}
