//! Connection options as environment variables of libpq, for PostgreSQL's own programs. Unlike
//! arguments, other users of the machine cannot see them.

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::hot::link::Secrets;

/// Returns names and values. One value is the password.
pub fn variables(options: &PgConnectOptions) -> Vec<(&'static str, String)> {
    let Secrets { password, root, certificate, key } = Secrets::of(options);
    let host = match options.get_socket() {
        Some(directory) => directory.display().to_string(),
        None => options.get_host().trim_matches(['[', ']']).to_owned(),
    };
    let mode = options.get_ssl_mode();
    // libpq has no certificates of authorities of its own, and the others are the system's.
    let root = root.or_else(|| matches!(mode, PgSslMode::VerifyFull).then(|| "system".to_owned()));
    let given = [
        ("PGHOST", Some(host)),
        ("PGPORT", Some(options.get_port().to_string())),
        ("PGUSER", Some(options.get_username().to_owned())),
        ("PGDATABASE", Some(database(options).to_owned())),
        ("PGPASSWORD", password),
        ("PGOPTIONS", options.get_options().map(str::to_owned)),
        ("PGSSLMODE", Some(ssl_mode(mode).to_owned())),
        ("PGSSLROOTCERT", root),
        ("PGSSLCERT", certificate),
        ("PGSSLKEY", key),
    ];
    given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// PostgreSQL defaults the database name to the user name.
pub fn database(options: &PgConnectOptions) -> &str {
    options.get_database().unwrap_or_else(|| options.get_username())
}

fn ssl_mode(mode: PgSslMode) -> &'static str {
    match mode {
        // As in sqlx, "allow" is "disable".
        PgSslMode::Disable | PgSslMode::Allow => "disable",
        PgSslMode::Prefer => "prefer",
        PgSslMode::Require => "require",
        PgSslMode::VerifyCa => "verify-ca",
        PgSslMode::VerifyFull => "verify-full",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(url: &str, name: &str) -> Option<String> {
        let options: PgConnectOptions = url.parse().unwrap();
        variables(&options).into_iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    #[test]
    fn url_becomes_variables() {
        let url = "postgres://me:hunter%2F2@db.example.com:5433/tasks?sslmode=require&sslrootcert=/etc/ca.crt";
        for (name, value) in [
            ("PGHOST", "db.example.com"),
            ("PGPORT", "5433"),
            ("PGUSER", "me"),
            ("PGDATABASE", "tasks"),
            ("PGPASSWORD", "hunter/2"),
            ("PGSSLMODE", "require"),
            ("PGSSLROOTCERT", "/etc/ca.crt"),
        ] {
            assert_eq!(variable(url, name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(variable(url, "PGSSLKEY"), None);
    }

    #[test]
    fn socket_is_host_and_user_is_default_database() {
        let url = "postgres:///?host=/run/postgresql&user=me&sslmode=verify-full";
        assert_eq!(variable(url, "PGHOST").as_deref(), Some("/run/postgresql"));
        assert_eq!(variable(url, "PGDATABASE").as_deref(), Some("me"));
        assert_eq!(variable(url, "PGSSLROOTCERT").as_deref(), Some("system"));
        let options = PgConnectOptions::new_without_pgpass().host("[::1]").password("a b");
        let found = variables(&options);
        assert!(found.contains(&("PGHOST", "::1".to_owned())) && found.contains(&("PGPASSWORD", "a b".to_owned())));
    }
}
