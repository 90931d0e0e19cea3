//! Classifies failed statements by SQLSTATE. Callers decide how to react.

use sqlx::error::DatabaseError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Classes 22 and 23: a value cannot be stored. Nothing happened; a retry fails again.
    BadData,
    /// Classes 40 and 55: a deadlock, serialization failure or lock; also a task or group created
    /// concurrently. Nothing happened; a retry may succeed.
    Contention,
    /// The connection was lost, or the database lacks resources or rejects writes. The statement
    /// may have happened; a later retry may succeed.
    Unavailable,
    /// Our bug; a retry fails again.
    Fault,
}

impl Class {
    #[must_use]
    pub fn is_worth_a_retry(self) -> bool {
        match self {
            Self::Contention | Self::Unavailable => true,
            Self::BadData | Self::Fault => false,
        }
    }
}

pub fn classify(error: &sqlx::Error) -> Class {
    match error {
        sqlx::Error::Database(_) if was_created_meanwhile(error) => Class::Contention,
        sqlx::Error::Database(database) => of_sqlstate(&database.code().unwrap_or_default()),
        // A failure of the connection or pool, not of the statement. `Configuration` is the refusal
        // of a connection.
        sqlx::Error::Io(_)
        | sqlx::Error::Configuration(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Class::Unavailable,
        // An unexpected reply or an invalid request.
        _ => Class::Fault,
    }
}

/// True if a connection was found dead, so that a new one may work.
pub fn is_lost_connection(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::TimedOut,
        // The error of sqlx for a connection closed before the TLS reply, as by a proxy that
        // switches its target.
        sqlx::Error::Protocol(text) => text.contains("unexpected response from SSLRequest: 0x00"),
        // PostgreSQL sends these when it stops.
        sqlx::Error::Database(error) => matches!(error.code().as_deref(), Some("57P01" | "57P02")),
        _ => false,
    }
}

/// True if a statement timed out.
pub fn is_cancelled(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("57014")
}

/// True if the database ended the session: by a stop, a crash or an administrator.
pub fn ends_session(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| code.starts_with("57P") || code.starts_with("25P"))
}

/// True if another transaction created a task or group since the statement began. A retry sees it.
pub fn was_created_meanwhile(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| {
        error.is_unique_violation() && matches!(error.constraint(), Some("tasks_pkey" | "task_groups_pkey"))
    })
}

fn of_sqlstate(code: &str) -> Class {
    match code.get(..2) {
        Some("22" | "23") => Class::BadData,
        Some("40" | "55") => Class::Contention,
        // 08 connection; 25 standby, or idle for too long; 53 resources; 57 shutdown, and 57014,
        // statement timeout; 58 disk and system. 28: the password of a running server was changed,
        // and the operator will fix it.
        Some("08" | "25" | "28" | "53" | "57" | "58") => Class::Unavailable,
        _ => Class::Fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDatabase;

    #[test]
    fn sqlstate_classes_are_classified() {
        let table = [
            ("08006", Class::Unavailable),
            ("0A000", Class::Fault),
            ("22P05", Class::BadData),
            ("23505", Class::BadData),
            ("25006", Class::Unavailable),
            ("25P03", Class::Unavailable),
            ("26000", Class::Fault),
            ("28P01", Class::Unavailable),
            ("40001", Class::Contention),
            ("40P01", Class::Contention),
            ("42P01", Class::Fault),
            ("42501", Class::Fault),
            ("53100", Class::Unavailable),
            ("53300", Class::Unavailable),
            ("54001", Class::Fault),
            ("55P03", Class::Contention),
            ("57014", Class::Unavailable),
            ("57P01", Class::Unavailable),
            ("58030", Class::Unavailable),
            ("P0001", Class::Fault),
            ("XX000", Class::Fault),
            ("", Class::Fault),
        ];
        for (code, class) in table {
            assert_eq!(of_sqlstate(code), class, "{code}");
        }
    }

    #[test]
    fn other_errors_are_unavailable_or_fault() {
        assert_eq!(classify(&sqlx::Error::PoolTimedOut), Class::Unavailable);
        assert_eq!(classify(&sqlx::Error::Io(std::io::ErrorKind::BrokenPipe.into())), Class::Unavailable);
        assert_eq!(classify(&sqlx::Error::Protocol("cut".to_owned())), Class::Unavailable);
        assert_eq!(classify(&crate::session_check::Unfit::ReadOnly.into()), Class::Unavailable);
        assert_eq!(classify(&sqlx::Error::RowNotFound), Class::Fault);
        assert_eq!(classify(&sqlx::Error::Decode("a row".into())), Class::Fault);
        assert_eq!(classify(&sqlx::Error::ColumnNotFound("a column".to_owned())), Class::Fault);
    }

    #[test]
    fn timeout_is_no_lost_connection() {
        assert!(is_lost_connection(&sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into())));
        for other in [sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()), sqlx::Error::PoolTimedOut] {
            assert!(!is_lost_connection(&other), "{other}");
        }
    }

    #[tokio::test]
    async fn connection_closed_during_handshake_is_lost() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            // Closed after a read: otherwise the connection would be reset.
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 8]).await.unwrap();
        });
        let options = sqlx::postgres::PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port);
        let error = <sqlx::PgConnection as sqlx::Connection>::connect_with(&options).await.map(drop).unwrap_err();
        assert!(is_lost_connection(&error), "{error:?}");
    }

    #[tokio::test]
    async fn failed_statement_is_classified_by_sqlstate() {
        let database = TestDatabase::create().await;
        let statements = [
            ("SELECT 1 / 0", Class::BadData),
            ("SELECT 'x'::integer", Class::BadData),
            ("INSERT INTO clock DEFAULT VALUES", Class::BadData),
            ("SELECT nothing FROM nowhere", Class::Fault),
            ("SELECT pg_sleep(5)", Class::Unavailable),
        ];
        let mut conn = database.connect().await;
        sqlx::raw_sql("SET statement_timeout = '50ms'").execute(&mut conn).await.unwrap();
        for (statement, class) in statements {
            let error = sqlx::raw_sql(statement).execute(&mut conn).await.unwrap_err();
            assert_eq!(classify(&error), class, "{statement}: {error}");
        }
        drop(conn);
        database.finish().await;
    }
}
