//! PostgreSQL's programs for backups, run as the user of this process. They are also used with an
//! external database, so a folder with client programs alone is enough.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;

use super::EmbeddedSettings;
use super::account::Account;
use super::binaries::{Binaries, parse_major, usual_folders};
use super::cluster::main_complaint;
use super::error::{EmbeddedError, io_error};
use super::files;
use tenure_store::libpq;

/// A migration in progress holds locks that a dump waits for.
const LOCK_TIMEOUT: &str = "--lock-wait-timeout=60s";
/// Variables that the programs inherit. `PGOPTIONS` and similar ones would change their effect.
const INHERITED: [&str; 3] = ["PATH", "HOME", "TMPDIR"];

/// `pg_dump` and `pg_restore` of one installation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpTools {
    pg_dump: PathBuf,
    pg_restore: PathBuf,
    major: u32,
}

impl DumpTools {
    /// Returns the oldest installed programs of at least this major version. Archives of a later
    /// version could not be restored by this one.
    pub async fn find(pg_bin: Option<&Path>, least: u32) -> Result<Self, EmbeddedError> {
        let mut oldest: Option<Self> = None;
        let mut newest: Option<u32> = None;
        for folder in pg_bin.map_or_else(usual_folders, |folder| vec![folder.to_owned()]) {
            let Some(tools) = Self::in_folder(&folder).await else { continue };
            newest = newest.max(Some(tools.major));
            if tools.major >= least && oldest.as_ref().is_none_or(|oldest| tools.major < oldest.major) {
                oldest = Some(tools);
            }
        }
        oldest.ok_or_else(|| {
            let found = match (newest, pg_bin) {
                (Some(newest), _) => format!("only pg_dump and pg_restore {newest} were found"),
                (None, Some(folder)) => format!("there is no pg_dump and pg_restore in {}", folder.display()),
                (None, None) => "pg_dump and pg_restore were not found".to_owned(),
            };
            EmbeddedError::NoTools { found, least }
        })
    }

    async fn in_folder(folder: &Path) -> Option<Self> {
        let find = |name: &str| {
            let path = fs::canonicalize(folder.join(name)).ok()?;
            // In /usr/bin Debian has a program that runs one of the installed versions.
            path.ends_with(name).then_some(path)
        };
        let (pg_dump, pg_restore) = (find("pg_dump")?, find("pg_restore")?);
        let output = command(&pg_dump).arg("--version").output().await.ok()?;
        let major = parse_major(&String::from_utf8_lossy(&output.stdout))?;
        Some(Self { pg_dump, pg_restore, major })
    }

    #[must_use]
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Writes the database, as of this snapshot, to a file. Omits extensions, publications and
    /// subscriptions, which an ordinary role cannot restore.
    pub async fn dump(&self, database: &PgConnectOptions, snapshot: &str, file: &Path) -> Result<(), EmbeddedError> {
        let mut command = connected(&self.pg_dump, database);
        command.args(["--format=custom", LOCK_TIMEOUT, "--snapshot", snapshot]);
        command.args(["--no-publications", "--no-subscriptions", "--no-security-labels", "--extension=plpgsql"]);
        command.arg("--file").arg(file);
        run(command, &self.pg_dump).await
    }

    /// Loads a file into an empty database in one transaction. The role owns everything in it.
    pub async fn restore(&self, database: &PgConnectOptions, file: &Path) -> Result<(), EmbeddedError> {
        let mut command = connected(&self.pg_restore, database);
        command.args(["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]);
        command.arg("--dbname").arg(libpq::database(database)).arg(file);
        run(command, &self.pg_restore).await
    }
}

/// Returns the major version of the PostgreSQL that a new cluster in this data directory would
/// have.
pub async fn find_major(settings: &EmbeddedSettings) -> Result<u32, EmbeddedError> {
    let account = Account::choose(&files::pg_dir(&settings.data_dir))?;
    Ok(Binaries::find(settings.pg_bin.as_deref(), None, &account).await?.major)
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

fn connected(program: &Path, database: &PgConnectOptions) -> Command {
    let mut command = command(program);
    command.envs(libpq::variables(database)).arg("--no-password");
    command
}

async fn run(mut command: Command, program: &Path) -> Result<(), EmbeddedError> {
    let output = command.output().await.map_err(io_error("run", program))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = main_complaint(&String::from_utf8_lossy(&output.stderr)).unwrap_or_else(|| output.status.to_string());
    Err(EmbeddedError::Failed { program: program.display().to_string(), reason })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn install(parent: &Path, folder: &str, programs: &[(&str, &str)]) -> PathBuf {
        let folder = parent.join(folder);
        fs::create_dir(&folder).unwrap();
        for (name, version) in programs {
            let script = format!("#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n");
            fs::write(folder.join(name), script).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    #[tokio::test]
    async fn tools_need_both_programs_and_version() {
        let parent = tempfile::tempdir().unwrap();
        let whole = install(parent.path(), "whole", &[("pg_dump", "16.2"), ("pg_restore", "16.2")]);
        let found = DumpTools::find(Some(&whole), 16).await.unwrap();
        assert_eq!((found.major(), found.pg_dump.file_name().unwrap().to_str()), (16, Some("pg_dump")));
        let line = DumpTools::find(Some(&whole), 17).await.unwrap_err().to_string();
        assert!(line.contains("only pg_dump and pg_restore 16") && line.contains("17 or later"), "{line}");

        let half = install(parent.path(), "half", &[("pg_dump", "16.2")]);
        let wrapped = install(parent.path(), "wrapped", &[("pg_wrapper", "16.2")]);
        for name in ["pg_dump", "pg_restore"] {
            std::os::unix::fs::symlink("pg_wrapper", wrapped.join(name)).unwrap();
        }
        for folder in [half, wrapped] {
            let line = DumpTools::find(Some(&folder), 15).await.unwrap_err().to_string();
            assert!(line.contains("no pg_dump and pg_restore in") && line.contains("--pg-bin"), "{line}");
        }
    }
}
