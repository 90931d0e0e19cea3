//! Explains database errors to operators: place, cause and fix.
//!
//! For starts and commands, which end with one line. Batches and requests classify errors
//! elsewhere.

use std::io;

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgConnectOptions;

use super::schema;
use super::session_check::Unfit;

const SETTING: &str = "--database-url (DATABASE_URL)";

/// One line: database, cause, fix. Never the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("PostgreSQL at {place}: {cause}; {fix}")]
pub struct OperatorHint {
    place: String,
    cause: String,
    fix: String,
}

/// Describes the location of a database and the user.
pub fn place(options: &PgConnectOptions) -> String {
    let server = match options.get_socket() {
        Some(socket) => format!("the socket in {}", socket.display()),
        None if options.get_host().contains(':') => {
            format!("[{}]:{}", options.get_host().trim_matches(['[', ']']), options.get_port())
        }
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    format!("{server} (database {}, user {})", database(options), options.get_username())
}

/// PostgreSQL defaults the database name to the user name.
fn database(options: &PgConnectOptions) -> &str {
    options.get_database().unwrap_or_else(|| options.get_username())
}

impl OperatorHint {
    pub fn new(error: &sqlx::Error, options: &PgConnectOptions) -> Self {
        let (cause, fix) = match error {
            sqlx::Error::Configuration(cause) => match Unfit::of(error) {
                Some(unfit) => (unfit.to_string(), fix_of_unfit(unfit)),
                None => (cause.to_string(), format!("correct {SETTING}")),
            },
            sqlx::Error::Database(refused) => {
                let fix = fix_of_code(refused.code().as_deref().unwrap_or_default(), refused.message(), options);
                (refused.message().to_owned(), fix)
            }
            sqlx::Error::Io(error) => (error.to_string(), fix_of_io(error.kind())),
            sqlx::Error::PoolTimedOut => {
                ("no connection within 5 s".to_owned(), format!("check that it answers, and {SETTING}"))
            }
            sqlx::Error::Tls(error) => {
                (format!("TLS failed ({error})"), format!("correct the certificates, or sslmode in {SETTING}"))
            }
            sqlx::Error::Protocol(problem) => (
                format!("the server that answers is not PostgreSQL ({problem})"),
                format!("correct host and port in {SETTING}"),
            ),
            other => (other.to_string(), "its log may have more".to_owned()),
        };
        let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { place: place(options), cause: one_line(cause), fix }
    }

    pub fn of_migration(error: &MigrateError, options: &PgConnectOptions) -> Self {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Self::new(error, options),
            MigrateError::VersionMismatch(schema::FIRST) => Self {
                place: place(options),
                cause: "its tables were made by a version of Tenure from before the first release, which cannot be \
                        migrated"
                    .to_owned(),
                fix: "use a new database, or run the version that made this one".to_owned(),
            },
            MigrateError::VersionTooOld(known, needed) => Self {
                place: place(options),
                cause: format!(
                    "a later release has migrated it; it needs a program that knows migration {needed}; this one \
                     knows those up to {known}"
                ),
                fix: "run that release, or restore the database from an earlier backup".to_owned(),
            },
            other => Self {
                place: place(options),
                cause: format!("the schema cannot be brought to this release: {other}"),
                fix: "run the release that made this schema, or restore the database from a backup".to_owned(),
            },
        }
    }
}

fn fix_of_io(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            format!("nothing listens there: start PostgreSQL, or correct host and port in {SETTING}")
        }
        io::ErrorKind::TimedOut => format!("check the network and its firewalls, or correct the host in {SETTING}"),
        _ => format!("check that PostgreSQL runs and can be reached, or correct host and port in {SETTING}"),
    }
}

fn fix_of_unfit(unfit: &Unfit) -> String {
    match unfit {
        Unfit::ReadOnly => format!(
            "name the primary in {SETTING}; if it is the primary, find out why it is read-only, then ALTER DATABASE or \
             ALTER ROLE ... RESET default_transaction_read_only"
        ),
        Unfit::HiddenTables { schema } => {
            format!("ALTER DATABASE or ALTER ROLE ... RESET search_path, or name {schema} in it")
        }
        Unfit::Setting { .. } => format!(
            "a pooler, such as PgBouncer with ignore_startup_parameters = options, drops the settings of its clients: {}",
            fix_of_pooler()
        ),
        Unfit::Required { name, needed, .. } => {
            format!(
                "as an administrator: ALTER SYSTEM SET {name} = {needed}; SELECT pg_reload_conf(); where the database or the \
                 role has it set: ALTER DATABASE or ALTER ROLE ... RESET {name}"
            )
        }
        Unfit::TransactionPooling => fix_of_pooler(),
    }
}

fn fix_of_pooler() -> String {
    format!("connect to PostgreSQL itself, without PgBouncer or another pooler, by host and port in {SETTING}")
}

/// Returns the fix by SQLSTATE; see the table of codes in PostgreSQL's manual.
fn fix_of_code(code: &str, message: &str, options: &PgConnectOptions) -> String {
    let (database, user) = (database(options), options.get_username());
    match code {
        "28P01" => format!("correct the user or the password in {SETTING}"),
        "28000" => format!("correct the user in {SETTING}, or let it in by pg_hba.conf"),
        "3D000" => format!(
            "correct the database in {SETTING}, or make it as an administrator: CREATE DATABASE \"{database}\" OWNER \"{user}\""
        ),
        // Tables and functions of another role.
        "42501" if !message.contains("for schema") && !message.contains("for database") => {
            format!("use the role that made the tables in {SETTING}, or make \"{user}\" a member of it by GRANT")
        }
        "42501" => {
            format!("give the role its rights as an administrator: ALTER DATABASE \"{database}\" OWNER TO \"{user}\"")
        }
        "53300" => "end other sessions, or raise max_connections".to_owned(),
        "57P03" => "wait until PostgreSQL is ready".to_owned(),
        "25006" => fix_of_unfit(&Unfit::ReadOnly),
        // PgBouncer's reply to `options` and `extra_float_digits`, unless it ignores them.
        "08P01" if message.contains("startup parameter") => fix_of_pooler(),
        // From a migration and running servers that lock the tables, in either order.
        "40P01" => "other sessions used the tables: start again".to_owned(),
        "55P03" | "57014" => {
            "another session has held a lock on the tables for too long: end it, and start again".to_owned()
        }
        _ => "its log may have more".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> PgConnectOptions {
        url.parse().unwrap()
    }

    #[test]
    fn place_omits_password() {
        let given = options("postgres://me:hunter2@db.example.com:5433/tenure");
        assert_eq!(place(&given), "db.example.com:5433 (database tenure, user me)");
        for address in ["::1", "[::1]"] {
            assert_eq!(place(&given.clone().host(address)), "[::1]:5433 (database tenure, user me)");
        }
        let io = |kind| OperatorHint::new(&sqlx::Error::Io(io::Error::from(kind)), &given).to_string();
        for (kind, fix) in
            [(io::ErrorKind::ConnectionRefused, "start PostgreSQL"), (io::ErrorKind::TimedOut, "firewalls")]
        {
            let line = io(kind);
            assert!(line.contains("db.example.com:5433") && line.contains(fix) && line.contains(SETTING), "{line}");
            assert!(!line.contains("hunter2"), "{line}");
        }
        let busy = OperatorHint::new(&sqlx::Error::PoolTimedOut, &given).to_string();
        assert!(!busy.contains("pool") && busy.contains(SETTING), "{busy}");
    }

    #[test]
    fn incompatible_migrations_are_refused_with_fix() {
        let given = options("postgres://me:hunter2@h/d");
        let old = OperatorHint::of_migration(&MigrateError::VersionMismatch(schema::FIRST), &given).to_string();
        assert!(old.contains("from before the first release") && old.contains("use a new database"), "{old}");
        let changed = OperatorHint::of_migration(&MigrateError::VersionMismatch(schema::FIRST + 1), &given).to_string();
        assert!(changed.contains("has been modified") && changed.contains("run the release"), "{changed}");
        let later = OperatorHint::of_migration(&MigrateError::VersionTooOld(16, 17), &given).to_string();
        assert!(later.contains("migration 17; this one knows those up to 16") && later.contains("backup"), "{later}");
    }

    #[test]
    fn each_postgresql_refusal_has_fix() {
        let given = options("postgres://me:hunter2@h/d");
        for (code, message, fix) in [
            ("28P01", "password authentication failed", "the password in --database-url"),
            ("28000", "role \"me\" does not exist", "the user in --database-url"),
            ("3D000", "database \"d\" does not exist", "CREATE DATABASE \"d\" OWNER \"me\""),
            ("42501", "permission denied for schema public", "ALTER DATABASE \"d\" OWNER TO \"me\""),
            ("42501", "permission denied for table clients", "the role that made the tables"),
            ("42501", "must be owner of table clients", "the role that made the tables"),
            ("53300", "too many clients", "max_connections"),
            ("57P03", "the database system is starting up", "wait"),
            ("25006", "read-only transaction", "primary"),
            ("40P01", "deadlock detected", "start again"),
            ("55P03", "lock timeout", "lock"),
            ("XX000", "?", "log"),
        ] {
            assert!(fix_of_code(code, message, &given).contains(fix), "{code}");
        }
    }
}
