//! The files of a finished backup, compared with their sums.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::{ARTIFACT_SUMS, ARTIFACTS, BackupError, Manifest, blocking, files, io_error};
use tenure_engine::blobs::path_in_folder;

/// Sums of the bytes of artifacts by id.
pub(super) type ArtifactSums = BTreeMap<Uuid, String>;

/// Compares a file with its sum. Returns the problem.
pub(super) fn find_damage(path: &Path, sha256: &str) -> Result<Option<String>, BackupError> {
    match files::sum(path) {
        Ok((_, found)) if found == sha256 => Ok(None),
        Ok(_) => Ok(Some(format!("{} was changed: its sum differs", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(format!("{} is missing", path.display()))),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// Compares the files that the manifest names with their sums. Returns the problems.
pub(super) async fn find_damaged_files(dir: &Path, manifest: &Manifest) -> Result<Vec<String>, BackupError> {
    let files: Vec<(PathBuf, String)> =
        manifest.files.iter().map(|file| (dir.join(&file.name), file.sha256.clone())).collect();
    blocking(move || {
        let found = files.iter().map(|(path, sha256)| find_damage(path, sha256));
        found.filter_map(Result::transpose).collect()
    })
    .await
}

/// Reads the sums of the artifacts; empty if the backup has no artifacts.
pub(super) fn read_artifact_sums(dir: &Path, manifest: &Manifest) -> Result<ArtifactSums, BackupError> {
    if !manifest.has(ARTIFACT_SUMS) {
        return Ok(ArtifactSums::new());
    }
    let path = dir.join(ARTIFACT_SUMS);
    let text = fs::read_to_string(&path).map_err(io_error("read", &path))?;
    let sums: Option<ArtifactSums> = text.lines().map(parse_line).collect();
    sums.ok_or_else(|| BackupError::unusable(&path, "is damaged; use another backup"))
}

/// The inverse of [`parse_line`].
pub(super) fn line(id: Uuid, sha256: &str) -> String {
    format!("{sha256}  {ARTIFACTS}/{}\n", path_in_folder(id))
}

/// Accepts only paths that [`line`] writes.
fn parse_line(text: &str) -> Option<(Uuid, String)> {
    let (sha256, path) = text.split_once("  ")?;
    let (_, name) = path.rsplit_once('/')?;
    let id = Uuid::try_parse(name).ok()?;
    (line(id, sha256).trim_end() == text).then(|| (id, sha256.to_owned()))
}

/// Path of the bytes in the backup.
pub(super) fn artifact(dir: &Path, id: Uuid) -> PathBuf {
    dir.join(ARTIFACTS).join(path_in_folder(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_parsed_unless_its_path_is_another() {
        let id = Uuid::from_u128(0xab12 << 112);
        let sum = "0".repeat(64);
        let written = line(id, &sum);
        assert_eq!(written, format!("{sum}  artifacts/ab/ab120000000000000000000000000000\n"));
        assert_eq!(parse_line(written.trim_end()), Some((id, sum.clone())));
        for wrong in [
            "",
            "artifacts/ab/ab120000000000000000000000000000",
            &format!("{sum}  artifacts/ac/ab120000000000000000000000000000"),
            &format!("{sum}  artifacts/ab/../ab/ab120000000000000000000000000000"),
            &format!("{sum}  artifacts/ab/ab12"),
        ] {
            assert_eq!(parse_line(wrong), None, "{wrong}");
        }
    }
}
