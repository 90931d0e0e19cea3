//! Verifies a backup: the sums of its files, and the invariants of the database, restored into a
//! throwaway cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::contents::{self, ArtifactSums};
use super::{BackupError, DUMP, Manifest, PAGE, SECRET_KEY, blocking, io_error, restore};
use crate::key_check::{self, KeyError};
use crate::server::CLOSE_MAX;
use tenure_embedded::{DumpTools, Embedded, EmbeddedSettings};
use tenure_engine::ops::objects::hex;
use tenure_store::connector::Connector;
use tenure_store::secrets::SecretKeys;
use tenure_store::{backup, blobs, invariants, schema};

/// A PostgreSQL that is stopping may still create files.
const REMOVALS_MAX: u32 = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(250);

pub struct Report {
    pub manifest: Manifest,
    /// Empty if the backup is usable.
    pub problems: Vec<String>,
}

/// Everything to compare with the database.
struct Backup<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
    sums: &'a ArtifactSums,
}

/// Returns none if stopped.
pub async fn verify(
    dir: &Path,
    pg_bin: Option<PathBuf>,
    stop: &CancellationToken,
) -> Result<Option<Report>, BackupError> {
    let manifest = Manifest::read(dir)?;
    let checked = stop.run_until_cancelled(find_damage(dir, &manifest)).await;
    let Some((mut problems, sums)) = checked.transpose()? else { return Ok(None) };
    // Without sums, the list of artifacts or the dump is damaged.
    let Some(sums) = sums else { return Ok(Some(Report { manifest, problems })) };
    let scratch = Scratch::new();
    let settings = EmbeddedSettings { data_dir: scratch.0.clone(), pg_bin };
    let found = check_copy(&settings, &Backup { dir, manifest: &manifest, sums: &sums }, stop).await;
    scratch.remove().await;
    let Some(found) = found? else { return Ok(None) };
    problems.extend(found);
    Ok(Some(Report { manifest, problems }))
}

/// Compares all files with their sums. Returns the sums of the artifacts unless a file that the
/// further checks need is damaged.
async fn find_damage(dir: &Path, manifest: &Manifest) -> Result<(Vec<String>, Option<ArtifactSums>), BackupError> {
    let mut problems = contents::find_damaged_files(dir, manifest).await?;
    if !problems.is_empty() {
        return Ok((problems, None));
    }
    let sums = contents::read_artifact_sums(dir, manifest)?;
    let dir = dir.to_owned();
    blocking(move || {
        for (id, sha256) in &sums {
            problems.extend(contents::find_damage(&contents::artifact(&dir, *id), sha256)?);
        }
        Ok((problems, Some(sums)))
    })
    .await
}

/// Restores the database into a new cluster and checks it. Returns none if stopped.
async fn check_copy(
    settings: &EmbeddedSettings,
    backup: &Backup<'_>,
    stop: &CancellationToken,
) -> Result<Option<Vec<String>>, BackupError> {
    let tools = restore::find_tools(settings, backup.dir, backup.manifest).await?;
    let Some(embedded) = stop.run_until_cancelled(Embedded::start(settings)).await else { return Ok(None) };
    let embedded = embedded?;
    let options = embedded.connect_options();
    let checked = stop.run_until_cancelled(check_restored(&tools, &options, backup)).await;
    embedded.stop().await;
    checked.transpose().map_err(|error| error.of(&options))
}

async fn check_restored(
    tools: &DumpTools,
    options: &PgConnectOptions,
    backup: &Backup<'_>,
) -> Result<Vec<String>, BackupError> {
    tools.restore(options, &backup.dir.join(DUMP)).await?;
    let connector = Connector::new(options.clone());
    let pool = connector.pool();
    let problems = check_database(&pool, backup).await;
    let _elapsed = tokio::time::timeout(CLOSE_MAX, pool.close()).await;
    problems
}

async fn check_database(pool: &PgPool, backup: &Backup<'_>) -> Result<Vec<String>, BackupError> {
    // As a server does when it starts. The invariants need this release's schema.
    schema::migrate(pool).await?;
    let mut conn = pool.acquire().await?.detach();
    backup::remove_time_limits(&mut conn).await?;
    backup::analyze(&mut conn).await?;
    // Some invariants limit times.
    backup::set_clock_back(&mut conn, backup.manifest.snapshot.time()).await?;
    let mut problems = invariants::list_violations(&mut conn, &[""]).await?;
    problems.extend(find_wrong_key(pool, backup).await?);
    problems.extend(find_wrong_artifacts(&mut conn, backup).await?);
    Ok(problems)
}

/// Checks that the secret key opens the tokens in the database.
async fn find_wrong_key(pool: &PgPool, backup: &Backup<'_>) -> Result<Option<String>, BackupError> {
    if !backup.manifest.has(SECRET_KEY) {
        return Ok(None);
    }
    let path = backup.dir.join(SECRET_KEY);
    let text = fs::read_to_string(&path).map_err(io_error("read", &path))?;
    let source = path.display().to_string();
    let keys = match SecretKeys::parse(text.trim()) {
        Ok(keys) => keys,
        Err(error) => return Ok(Some(format!("{source}: {error}"))),
    };
    match key_check::verify(pool, &keys, &source).await {
        Ok(()) => Ok(None),
        Err(KeyError::Database(error)) => Err(error.into()),
        Err(error) => Ok(Some(error.to_string())),
    }
}

/// Checks that the backup has all bytes that the database names, except those that the artifact
/// folder had lost before.
async fn find_wrong_artifacts(conn: &mut PgConnection, backup: &Backup<'_>) -> Result<Vec<String>, BackupError> {
    if backup.manifest.artifacts.bucket.is_some() {
        return Ok(Vec::new());
    }
    let lost: BTreeSet<&str> = backup.manifest.artifacts.missing.iter().map(String::as_str).collect();
    let (mut problems, mut after) = (Vec::new(), Uuid::nil());
    loop {
        let page = blobs::list_current(&mut *conn, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(problems) };
        after = last.id;
        for blob in &page {
            let path = contents::artifact(backup.dir, blob.id);
            match backup.sums.get(&blob.id) {
                Some(sum) if *sum == hex(&blob.sha256) => {}
                Some(_) => problems.push(format!("{} has another sum in the database", path.display())),
                None if lost.contains(blob.id.to_string().as_str()) => {}
                None => problems.push(format!("{} is named by the database, but not in the backup", path.display())),
            }
        }
    }
}

/// The data directory of the throwaway cluster.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("tenure-verify-{}", Uuid::new_v4().simple())))
    }

    async fn remove(self) {
        for _ in 0..REMOVALS_MAX {
            match fs::remove_dir_all(&self.0) {
                Ok(()) => return,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
                Err(_) => tokio::time::sleep(REMOVAL_PAUSE).await,
            }
        }
        tracing::warn!("the temporary directory {} could not be removed", self.0.display());
    }
}
