//! `tenure backup` and `tenure restore`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::database::Opened;
use super::print::{complain, finish};
use super::{failed, on_opened, signals, wrong};
use crate::backup::{self, BackupError, Keys, Manifest, Report, SECRET_KEY, Source};
use crate::config::{Database, DatabaseArgs, SecretKeyArgs, SettingError, read_place, read_secret_keys};
use crate::key_check;
use crate::server::StartError;
use tenure_embedded as embedded;
use tenure_engine::blobs::settings::ArtifactsPlace;
use tenure_store::operator_hints;

/// Problems printed by `backup verify`.
const PROBLEMS_PRINTED: usize = 20;

#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
    /// Directory for the backup, which must not exist or be empty
    #[arg(required = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Where the servers store artifacts, as for `tenure serve`. Default: the folder `artifacts` of
    /// the data directory. Artifacts in a bucket stay there
    #[arg(long, env = "TENURE_ARTIFACTS_URL", value_name = "URL")]
    pub artifacts_url: Option<String>,
    #[command(flatten)]
    pub secret_key: SecretKeyArgs,
    /// Leave out the secret key and `root-credentials.json`. Keep the key elsewhere: without it the
    /// backup is useless
    #[arg(long)]
    pub no_keys: bool,
}

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Verify a backup: compare its files with their sums, restore the database into a temporary
    /// PostgreSQL, and check it there
    Verify {
        /// Directory of the backup
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Directory of the backup
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The folder for the artifacts, which must not exist or be empty. Default: the folder
    /// `artifacts` of the data directory
    #[arg(long, env = "TENURE_ARTIFACTS_URL", value_name = "URL")]
    pub artifacts_url: Option<String>,
}

pub(super) async fn backup(database: DatabaseArgs, args: BackupArgs) -> ExitCode {
    let BackupArgs { command, dir, artifacts_url, secret_key, no_keys } = args;
    match (command, dir) {
        (Some(BackupCommand::Verify { dir }), _) => verify(&dir, database.pg_bin).await,
        (None, Some(dir)) => make(&dir, &Servers { database, artifacts_url, secret_key, no_keys }).await,
        (None, None) => unreachable!("clap requires the directory without a subcommand"),
    }
}

/// Settings of the servers to back up.
struct Servers {
    database: DatabaseArgs,
    artifacts_url: Option<String>,
    secret_key: SecretKeyArgs,
    no_keys: bool,
}

async fn make(dir: &Path, servers: &Servers) -> ExitCode {
    let checked = servers.database.database().and_then(|database| {
        let artifacts = read_place(servers.artifacts_url.as_deref(), &servers.database.data_dir)?;
        Ok((database, artifacts))
    });
    let (database, artifacts) = match checked {
        Ok(checked) => checked,
        Err(error) => return wrong(error),
    };
    on_opened(Opened::open_unchanged(&database), async |opened: &Opened| {
        let made = async {
            let keys = if servers.no_keys { Keys::default() } else { find_keys(opened, &database, servers).await? };
            let source = Source {
                pool: opened.pool.clone(),
                database: opened.options().clone(),
                pg_bin: servers.database.pg_bin.clone(),
                artifacts,
                keys,
            };
            backup::make(&source, dir).await
        };
        match made.await {
            Ok(manifest) => report_made(dir, &manifest),
            Err(error) => report(error.of(opened.options())),
        }
    })
    .await
}

/// Returns the contents of the key files. The key must be the database's.
async fn find_keys(opened: &Opened, database: &Database, servers: &Servers) -> Result<Keys, BackupError> {
    let given = servers.secret_key.find()?;
    let data_dir = &servers.database.data_dir;
    let (secret_key, keys, source) = match (&given, database) {
        (Some(secret), _) => {
            let keys = read_secret_keys(Some(secret), database)?.map(|given| given.keys);
            (Some(format!("{}\n", secret.text).into_bytes()), keys, secret.source_name.clone())
        }
        (None, Database::Embedded(settings)) => {
            let path = embedded::secret_key_path(data_dir);
            (read_if_exists(&path)?, embedded::find_secret_keys(settings)?, path.display().to_string())
        }
        (None, Database::External(_)) => {
            let fix = "name the key of the servers, which the backup stores, or leave it out with --no-keys";
            return Err(SettingError::missing("--secret-key (TENURE_SECRET_KEY)", fix).into());
        }
    };
    match keys {
        Some(keys) => drop(key_check::check(&opened.pool, &keys, &source).await.map_err(StartError::from)?),
        None if key_check::needs_key(&opened.pool).await? => {
            let lost = key_check::KeyError::Lost { source_name: source };
            return Err(StartError::from(lost).into());
        }
        None => {}
    }
    let root_credentials = match database {
        Database::Embedded(_) => read_if_exists(&embedded::root_credentials_path(data_dir))?,
        Database::External(_) => None,
    };
    Ok(Keys { secret_key, root_credentials })
}

fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>, BackupError> {
    match fs::read(path) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(BackupError::Io { action: "read", path: path.to_owned(), source }),
    }
}

fn report_made(dir: &Path, manifest: &Manifest) -> ExitCode {
    let lost = manifest.artifacts.missing.len();
    if lost > 0 {
        complain(&format!(
            "tenure: {lost} artifacts that the database names were missing in the artifact folder, or cut off; the backup \
             does not have them"
        ));
    }
    let keys = if manifest.has(SECRET_KEY) { "with the secret key" } else { "without the secret key" };
    finish(&format!("{}: backup of {}, {}, {keys}", dir.display(), manifest.snapshot, artifacts_of(manifest)))
}

fn artifacts_of(manifest: &Manifest) -> String {
    let artifacts = &manifest.artifacts;
    match &artifacts.bucket {
        Some(bucket) => format!("{} artifacts stay in {bucket}, outside of the backup", artifacts.count),
        None => format!("{} artifacts of {} bytes", artifacts.count, artifacts.bytes),
    }
}

async fn verify(dir: &Path, pg_bin: Option<PathBuf>) -> ExitCode {
    let asked = match signals::listen(Duration::ZERO) {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    let verified = asked.stop_at_once.run_until_cancelled(backup::verify(dir, pg_bin, &asked.stop)).await;
    match verified {
        Some(Ok(Some(verified))) => report_verified(dir, &verified),
        Some(Ok(None)) | None => asked.exit_code(),
        Some(Err(error)) => report(error),
    }
}

fn report_verified(dir: &Path, verified: &Report) -> ExitCode {
    let Report { manifest, problems } = verified;
    for problem in problems.iter().take(PROBLEMS_PRINTED) {
        complain(&format!("tenure: {problem}"));
    }
    if problems.len() > PROBLEMS_PRINTED {
        complain(&format!("tenure: and {} more problems", problems.len() - PROBLEMS_PRINTED));
    }
    if !problems.is_empty() {
        complain(&format!("tenure: {} is damaged; use another backup", dir.display()));
        return ExitCode::FAILURE;
    }
    let lost = match manifest.artifacts.missing.len() {
        0 => String::new(),
        lost => format!("; {lost} other artifacts were already missing when it was made"),
    };
    finish(&format!(
        "{}: the backup of {} is whole, {}{lost}",
        dir.display(),
        manifest.snapshot,
        artifacts_of(manifest)
    ))
}

pub(super) async fn restore(args: DatabaseArgs, command: RestoreArgs) -> ExitCode {
    let checked = args.database().and_then(|database| {
        let artifacts = read_place(command.artifacts_url.as_deref(), &args.data_dir)?;
        Ok((database, artifacts))
    });
    let (database, artifacts) = match checked {
        Ok(checked) => checked,
        Err(error) => return wrong(error),
    };
    match &database {
        Database::Embedded(settings) => restore_embedded(&command.dir, settings, &artifacts).await,
        Database::External(_) => {
            on_opened(Opened::connect(&database), async |opened: &Opened| {
                let (pool, options) = (&opened.pool, opened.options());
                let restored =
                    backup::into_database(&command.dir, pool, options, args.pg_bin.as_deref(), &artifacts).await;
                match restored {
                    Ok(manifest) => report_external(&command.dir, &manifest, opened, &artifacts),
                    Err(error) => report(error.of(options)),
                }
            })
            .await
        }
    }
}

async fn restore_embedded(dir: &Path, settings: &embedded::EmbeddedSettings, artifacts: &ArtifactsPlace) -> ExitCode {
    let asked = match signals::listen(Duration::ZERO) {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    let restoring = backup::into_data_dir(dir, settings, artifacts, &asked.stop);
    match asked.stop_at_once.run_until_cancelled(restoring).await {
        Some(Ok(Some(manifest))) => {
            let key = if manifest.has(SECRET_KEY) {
                String::new()
            } else {
                let path = embedded::secret_key_path(&settings.data_dir);
                format!("; put the secret key into {} before a server starts", path.display())
            };
            finish(&format!(
                "{}: restored the backup of {}, {}{key}",
                settings.data_dir.display(),
                manifest.snapshot,
                artifacts_of(&manifest)
            ))
        }
        Some(Ok(None)) | None => asked.exit_code(),
        Some(Err(error)) => report(error),
    }
}

fn report_external(dir: &Path, manifest: &Manifest, opened: &Opened, artifacts: &ArtifactsPlace) -> ExitCode {
    let key = if manifest.has(SECRET_KEY) {
        format!("; the key for --secret-key-file is {}", dir.join(SECRET_KEY).display())
    } else {
        String::new()
    };
    let copied = match manifest.artifacts.bucket {
        None if manifest.artifacts.count > 0 => format!(" in {artifacts}"),
        _ => String::new(),
    };
    finish(&format!(
        "PostgreSQL at {}: restored the backup of {}, {}{copied}{key}",
        operator_hints::place(opened.options()),
        manifest.snapshot,
        artifacts_of(manifest)
    ))
}

/// Prints an error. A wrong argument has the exit code of one.
fn report(error: BackupError) -> ExitCode {
    match error {
        BackupError::Setting(error) => wrong(error),
        error => failed(&error),
    }
}
