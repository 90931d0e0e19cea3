//! Restores a backup into a new data directory, or into an empty database.

use std::fs;
use std::path::Path;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use super::contents::{self, ArtifactSums};
use super::{ARTIFACTS, BackupError, DUMP, Manifest, ROOT_CREDENTIALS, SECRET_KEY, blocking, files, io_error};
use crate::config::{ARTIFACTS_SETTING, SettingError};
use crate::server::CLOSE_MAX;
use tenure_embedded::{self as embedded, DumpTools, Embedded, EmbeddedSettings};
use tenure_engine::blobs::settings::ArtifactsPlace;
use tenure_store::connector::Connector;
use tenure_store::{backup, cluster, operator_hints};

const DATA_DIR_SETTING: &str = "--data-dir (TENURE_DATA_DIR)";

/// A backup whose files match their sums. The bytes of artifacts are compared when copied.
struct Checked {
    manifest: Manifest,
    sums: ArtifactSums,
}

impl Checked {
    async fn read(dir: &Path, artifacts: &ArtifactsPlace) -> Result<Self, BackupError> {
        let manifest = Manifest::read(dir)?;
        if let Some(problem) = contents::find_damaged_files(dir, &manifest).await?.into_iter().next() {
            return Err(BackupError::unusable(dir, format!("is damaged ({problem}); use another backup")));
        }
        let sums = contents::read_artifact_sums(dir, &manifest)?;
        match artifacts {
            _ if sums.is_empty() => {}
            ArtifactsPlace::Folder(folder) => files::check_vacant(ARTIFACTS_SETTING, folder)?,
            ArtifactsPlace::Bucket { .. } => {
                let fix = format!(
                    "the backup has its artifacts as files; restore them into a folder with file:///folder, or copy {} \
                     into the bucket with its own tools and restore with an empty folder",
                    dir.join(ARTIFACTS).display()
                );
                return Err(SettingError::new(ARTIFACTS_SETTING, artifacts, fix).into());
            }
        }
        Ok(Self { manifest, sums })
    }

    /// Links or copies the artifacts, and compares them with their sums.
    async fn copy_artifacts(&self, dir: &Path, artifacts: &ArtifactsPlace) -> Result<(), BackupError> {
        let (dir, sums) = (dir.to_owned(), self.sums.clone());
        let ArtifactsPlace::Folder(folder) = artifacts.clone() else { return Ok(()) };
        blocking(move || {
            for (id, sha256) in &sums {
                let from = contents::artifact(&dir, *id);
                let to = folder.join(tenure_engine::blobs::path_in_folder(*id));
                if let Some(parent) = to.parent().filter(|parent| !parent.is_dir()) {
                    files::make_dir(parent)?;
                }
                files::link_or_copy(&from, &to).map_err(io_error("copy", &from))?;
                if let Some(problem) = contents::find_damage(&to, sha256)? {
                    return Err(BackupError::unusable(&dir, format!("is damaged ({problem}); use another backup")));
                }
            }
            sync_all(&folder)
        })
        .await
    }

    fn copy_keys(&self, dir: &Path, data_dir: &Path) -> Result<(), BackupError> {
        for (name, to) in [
            (SECRET_KEY, embedded::secret_key_path(data_dir)),
            (ROOT_CREDENTIALS, embedded::root_credentials_path(data_dir)),
        ] {
            if self.manifest.has(name) {
                let from = dir.join(name);
                files::write(&to, &fs::read(&from).map_err(io_error("read", &from))?)?;
            }
        }
        Ok(())
    }
}

fn sync_all(folder: &Path) -> Result<(), BackupError> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).map_err(io_error("read", folder))? {
        files::sync(&entry.map_err(io_error("read", folder))?.path())?;
    }
    files::sync(folder)
}

/// Creates a data directory that a server can use. Returns none if stopped.
pub async fn into_data_dir(
    dir: &Path,
    settings: &EmbeddedSettings,
    artifacts: &ArtifactsPlace,
    stop: &CancellationToken,
) -> Result<Option<Manifest>, BackupError> {
    files::check_vacant(DATA_DIR_SETTING, &settings.data_dir)?;
    let checked = Checked::read(dir, artifacts).await?;
    let tools = find_tools(settings, dir, &checked.manifest).await?;
    embedded::begin_restore(&settings.data_dir)?;
    let Some(copied) = stop.run_until_cancelled(checked.copy_artifacts(dir, artifacts)).await else { return Ok(None) };
    copied?;
    checked.copy_keys(dir, &settings.data_dir)?;
    let started = stop.run_until_cancelled(Embedded::start_restoring(settings)).await;
    let Some(started) = started.transpose()? else { return Ok(None) };
    let options = started.connect_options();
    let loaded = stop.run_until_cancelled(load(&tools, &options, &dir.join(DUMP))).await;
    started.checkpoint().await;
    started.stop().await;
    if loaded.transpose().map_err(|error| error.of(&options))?.is_none() {
        return Ok(None);
    }
    embedded::end_restore(&settings.data_dir)?;
    Ok(Some(checked.manifest))
}

async fn load(tools: &DumpTools, options: &PgConnectOptions, dump: &Path) -> Result<(), BackupError> {
    tools.restore(options, dump).await?;
    let connector = Connector::new(options.clone());
    let pool = connector.pool();
    let analyzed = analyze(&pool).await;
    let _elapsed = tokio::time::timeout(CLOSE_MAX, pool.close()).await;
    analyzed
}

async fn analyze(pool: &PgPool) -> Result<(), BackupError> {
    let mut conn = pool.acquire().await?.detach();
    backup::remove_time_limits(&mut conn).await?;
    backup::analyze(&mut conn).await?;
    Ok(())
}

/// Loads the database in one transaction, after the artifacts.
pub async fn into_database(
    dir: &Path,
    pool: &PgPool,
    options: &PgConnectOptions,
    pg_bin: Option<&Path>,
    artifacts: &ArtifactsPlace,
) -> Result<Manifest, BackupError> {
    let checked = Checked::read(dir, artifacts).await?;
    if !backup::is_empty(pool).await? {
        return Err(BackupError::NotEmpty(operator_hints::place(options)));
    }
    check_version(dir, &checked.manifest, cluster::get_major_version(pool).await?)?;
    let tools = DumpTools::find(pg_bin, checked.manifest.pg_dump).await?;
    checked.copy_artifacts(dir, artifacts).await?;
    tools.restore(options, &dir.join(DUMP)).await?;
    Ok(checked.manifest)
}

/// Finds the programs that restore a backup into a new cluster, whose PostgreSQL must be new
/// enough.
pub(super) async fn find_tools(
    settings: &EmbeddedSettings,
    dir: &Path,
    manifest: &Manifest,
) -> Result<DumpTools, BackupError> {
    check_version(dir, manifest, embedded::find_major(settings).await?)?;
    Ok(DumpTools::find(settings.pg_bin.as_deref(), manifest.pg_dump).await?)
}

fn check_version(dir: &Path, manifest: &Manifest, postgresql: u32) -> Result<(), BackupError> {
    if postgresql >= manifest.pg_dump {
        return Ok(());
    }
    let needed = manifest.pg_dump;
    let problem = format!(
        "was dumped by pg_dump {needed} and needs PostgreSQL {needed} or later, but this is PostgreSQL {postgresql}; \
         use a later one, in embedded mode with --pg-bin (TENURE_PG_BIN)"
    );
    Err(BackupError::unusable(dir, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::dates::Timestamp;

    #[test]
    fn older_postgresql_is_refused() {
        let snapshot: Timestamp = serde_json::from_str("\"2026-10-03T04:05:06.789Z\"").unwrap();
        let manifest = Manifest::new(27, (15, 17), snapshot);
        let dir = Path::new("/backup");
        for enough in [17, 18] {
            check_version(dir, &manifest, enough).unwrap();
        }
        let line = check_version(dir, &manifest, 16).unwrap_err().to_string();
        assert!(line.contains("/backup") && line.contains("PostgreSQL 17 or later") && line.contains("PostgreSQL 16"));
    }
}
