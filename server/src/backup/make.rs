//! Makes a backup.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tenure_api::dates::Timestamp;
use uuid::Uuid;

use super::manifest::{Manifest, StoredArtifacts, StoredFile};
use super::{
    ARTIFACT_SUMS, ARTIFACTS, BackupError, DUMP, PAGE, ROOT_CREDENTIALS, SECRET_KEY, blocking, contents, files,
    io_error,
};
use crate::config::{ARTIFACTS_SETTING, SettingError};
use tenure_embedded::DumpTools;
use tenure_engine::blobs::settings::ArtifactsPlace;
use tenure_engine::ops::objects::hex;
use tenure_store::backup::{self, Snapshot};
use tenure_store::blobs::{self, CurrentBlob};
use tenure_store::{clock, cluster, settings};

/// Each pass copies only new artifacts, so the last passes are short.
const PASSES_MAX: u32 = 5;

/// What to back up.
pub struct Source {
    pub pool: PgPool,
    pub database: PgConnectOptions,
    pub pg_bin: Option<PathBuf>,
    pub artifacts: ArtifactsPlace,
    pub keys: Keys,
}

/// Contents of the files with secrets; none with `--no-keys`.
#[derive(Default)]
pub struct Keys {
    pub secret_key: Option<Vec<u8>>,
    pub root_credentials: Option<Vec<u8>>,
}

/// Artifacts of one snapshot.
#[derive(Default)]
struct Pass {
    /// Ids of copied bytes, sorted.
    ids: Vec<Uuid>,
    bytes: u64,
    /// Ids whose bytes the artifact folder does not have, or not completely.
    absent: Vec<Uuid>,
}

/// Makes a backup in a directory that is absent or empty.
pub async fn make(source: &Source, dir: &Path) -> Result<Manifest, BackupError> {
    files::check_vacant("the directory of the backup", dir)?;
    let postgresql = cluster::get_major_version(&source.pool).await?;
    let tools = DumpTools::find(source.pg_bin.as_deref(), postgresql).await?;
    files::make_dir(dir)?;
    let (snapshot, artifacts) = store_artifacts(source, dir).await?;
    let about = snapshot.about.clone();
    tools.dump(&source.database, &about.name, &dir.join(DUMP)).await?;
    drop(snapshot);
    // The dump has the tables of the snapshot, but read their definitions later.
    if backup::get_migration(&source.pool).await? != about.migration {
        return Err(BackupError::Migrated);
    }
    let finished = clock::get_real_now(&mut *source.pool.acquire().await?).await?;
    let mut manifest = Manifest::new(about.migration, (postgresql, tools.major()), Timestamp::new(about.taken));
    manifest.finished = Timestamp::new(finished);
    manifest.artifacts = artifacts;
    write_keys(&source.keys, dir)?;
    let dir = dir.to_owned();
    let manifest = blocking(move || {
        for name in [DUMP, ARTIFACT_SUMS, SECRET_KEY, ROOT_CREDENTIALS] {
            if dir.join(name).exists() {
                manifest.files.push(StoredFile::of(&dir, name)?);
            }
        }
        manifest.write(&dir)?;
        Ok(manifest)
    })
    .await?;
    // For the metrics. A standby cannot store it.
    drop(settings::note_backup(&source.pool).await);
    Ok(manifest)
}

fn write_keys(keys: &Keys, dir: &Path) -> Result<(), BackupError> {
    for (name, contents) in [(SECRET_KEY, &keys.secret_key), (ROOT_CREDENTIALS, &keys.root_credentials)] {
        if let Some(contents) = contents {
            files::write(&dir.join(name), contents)?;
        }
    }
    Ok(())
}

/// Returns a snapshot whose artifacts the backup has.
async fn store_artifacts(source: &Source, dir: &Path) -> Result<(Snapshot, StoredArtifacts), BackupError> {
    let ArtifactsPlace::Folder(folder) = &source.artifacts else { return count_in_bucket(source).await };
    for _ in 0..PASSES_MAX {
        let mut snapshot = Snapshot::take(&source.pool).await?;
        let pass = copy_all(&mut snapshot, folder, dir).await?;
        // Other absent bytes were removed since the snapshot.
        let lost = blobs::filter_current(&source.pool, &pass.absent).await?;
        if lost.len() < pass.absent.len() {
            continue;
        }
        if pass.ids.is_empty() && !lost.is_empty() {
            let fix = format!(
                "the database names {} artifacts, and none is there; name the store of the servers: a folder, or a bucket",
                lost.len()
            );
            return Err(SettingError::new(ARTIFACTS_SETTING, folder.display(), fix).into());
        }
        let artifacts = StoredArtifacts {
            bucket: None,
            count: pass.ids.len() as u64,
            bytes: pass.bytes,
            missing: lost.iter().map(ToString::to_string).collect(),
        };
        return Ok((snapshot, artifacts));
    }
    Err(BackupError::ArtifactsRemoved(PASSES_MAX))
}

async fn count_in_bucket(source: &Source) -> Result<(Snapshot, StoredArtifacts), BackupError> {
    let mut snapshot = Snapshot::take(&source.pool).await?;
    let mut artifacts = StoredArtifacts { bucket: Some(source.artifacts.to_string()), ..StoredArtifacts::default() };
    let mut after = Uuid::nil();
    loop {
        let page = snapshot.list_blobs(after, PAGE).await?;
        let Some(last) = page.last() else { return Ok((snapshot, artifacts)) };
        after = last.id;
        artifacts.count += page.len() as u64;
        artifacts.bytes += page.iter().map(size).sum::<u64>();
    }
}

/// Copies the artifacts of a snapshot that the backup does not have, and removes others.
async fn copy_all(snapshot: &mut Snapshot, folder: &Path, dir: &Path) -> Result<Pass, BackupError> {
    let sums = dir.join(ARTIFACT_SUMS);
    files::write(&sums, b"")?;
    let (mut pass, mut after) = (Pass::default(), Uuid::nil());
    loop {
        let page = snapshot.list_blobs(after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.id;
        let (folder, dir) = (folder.to_owned(), dir.to_owned());
        let copied = blocking(move || copy_page(&folder, &dir, &page)).await?;
        pass.ids.extend(copied.ids);
        pass.bytes += copied.bytes;
        pass.absent.extend(copied.absent);
    }
    let artifacts = dir.join(ARTIFACTS);
    blocking(move || {
        files::sync(&sums)?;
        remove_others(&artifacts, &pass.ids)?;
        Ok(pass)
    })
    .await
}

fn copy_page(folder: &Path, dir: &Path, page: &[CurrentBlob]) -> Result<Pass, BackupError> {
    let (mut pass, mut sums) = (Pass::default(), String::new());
    for blob in page {
        let from = folder.join(tenure_engine::blobs::path_in_folder(blob.id));
        if copy_bytes(&from, &contents::artifact(dir, blob.id), size(blob))? {
            sums.push_str(&contents::line(blob.id, &hex(&blob.sha256)));
            pass.ids.push(blob.id);
            pass.bytes += size(blob);
        } else {
            pass.absent.push(blob.id);
        }
    }
    files::append(&dir.join(ARTIFACT_SUMS), sums.as_bytes())?;
    Ok(pass)
}

/// Returns false if the bytes are missing or cut off, so that the server could not send them.
fn copy_bytes(from: &Path, to: &Path, size: u64) -> Result<bool, BackupError> {
    let is_whole = || fs::metadata(to).is_ok_and(|found| found.len() == size);
    // From an earlier pass: bytes with an id never change.
    if is_whole() {
        return Ok(true);
    }
    if let Some(parent) = to.parent().filter(|parent| !parent.is_dir()) {
        files::make_dir(parent)?;
    }
    match files::link_or_copy(from, to) {
        Ok(()) if is_whole() => Ok(true),
        Ok(()) => fs::remove_file(to).map(|()| false).map_err(io_error("remove", to)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("copy", from)(error)),
    }
}

/// Removes bytes that only an earlier snapshot named, and flushes the directories.
fn remove_others(artifacts: &Path, ids: &[Uuid]) -> Result<(), BackupError> {
    if !artifacts.is_dir() {
        return Ok(());
    }
    for folder in list(artifacts)? {
        for path in list(&folder)? {
            let id = path.file_name().and_then(|name| Uuid::try_parse(name.to_str()?).ok());
            if id.is_none_or(|id| ids.binary_search(&id).is_err()) {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
        }
        files::sync(&folder)?;
    }
    files::sync(artifacts)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, BackupError> {
    let read = || -> io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
    read().map_err(io_error("read", folder))
}

fn size(blob: &CurrentBlob) -> u64 {
    u64::try_from(blob.size).expect("a constraint keeps it from being negative")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(id: u128, size: i64) -> CurrentBlob {
        CurrentBlob { id: Uuid::from_u128(id), size, sha256: vec![7; 32] }
    }

    #[test]
    fn page_has_whole_bytes_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (store, dir) = (folder.path().join("store"), folder.path().join("backup"));
        let blobs = [blob(1, 5), blob(2, 5), blob(3 << 120, 9)];
        let path = |blob: &CurrentBlob| store.join(tenure_engine::blobs::path_in_folder(blob.id));
        for (stored, bytes) in [(&blobs[0], "whole"), (&blobs[2], "cut off")] {
            fs::create_dir_all(path(stored).parent().unwrap()).unwrap();
            fs::write(path(stored), bytes).unwrap();
        }
        files::make_dir(&dir).unwrap();
        files::write(&dir.join(ARTIFACT_SUMS), b"").unwrap();
        let pass = copy_page(&store, &dir, &blobs).unwrap();
        assert_eq!((pass.ids.as_slice(), pass.bytes), ([blobs[0].id].as_slice(), 5));
        assert_eq!(pass.absent, [blobs[1].id, blobs[2].id]);
        let sums = fs::read_to_string(dir.join(ARTIFACT_SUMS)).unwrap();
        assert_eq!(sums, contents::line(blobs[0].id, &"07".repeat(32)));

        // Removed from the store, and from the next snapshot.
        fs::remove_file(path(&blobs[0])).unwrap();
        assert_eq!(copy_page(&store, &dir, &blobs[..1]).unwrap().ids, [blobs[0].id]);
        remove_others(&dir.join(ARTIFACTS), &[blobs[0].id]).unwrap();
        assert!(contents::artifact(&dir, blobs[0].id).exists());
        remove_others(&dir.join(ARTIFACTS), &[]).unwrap();
        assert!(!contents::artifact(&dir, blobs[0].id).exists());
    }
}
