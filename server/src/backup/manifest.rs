//! The manifest of a backup.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tenure_api::dates::Timestamp;

use super::{ARTIFACT_SUMS, BackupError, DUMP, MANIFEST, ROOT_CREDENTIALS, SECRET_KEY, files, io_error};

const FORMAT: u32 = 1;
const UNFINISHED: &str = "manifest.json.unfinished";
/// Names that a manifest may have.
const NAMES: [&str; 4] = [DUMP, ARTIFACT_SUMS, SECRET_KEY, ROOT_CREDENTIALS];

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    format: u32,
    /// Release that made the backup.
    pub tenure: String,
    /// Last migration of the database.
    pub migration: i64,
    /// Major version of the database.
    pub postgresql: u32,
    /// Major version of the program that wrote the dump. Older ones cannot restore it.
    pub pg_dump: u32,
    /// Time of the state in the backup.
    pub snapshot: Timestamp,
    pub finished: Timestamp,
    pub files: Vec<StoredFile>,
    pub artifacts: StoredArtifacts,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredFile {
    pub name: String,
    pub size: u64,
    pub sha256: String,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct StoredArtifacts {
    /// Bucket with the bytes, which its versioning must retain. None if the backup has the bytes.
    pub bucket: Option<String>,
    pub count: u64,
    pub bytes: u64,
    /// Ids of bytes that the artifact folder had already lost.
    pub missing: Vec<String>,
}

impl StoredFile {
    pub(super) fn of(dir: &Path, name: &str) -> Result<Self, BackupError> {
        let path = dir.join(name);
        let (size, sha256) = files::sum(&path).map_err(io_error("read", &path))?;
        Ok(Self { name: name.to_owned(), size, sha256 })
    }
}

impl Manifest {
    /// A manifest without files, of a backup that is being made.
    pub(super) fn new(migration: i64, (postgresql, pg_dump): (u32, u32), snapshot: Timestamp) -> Self {
        Self {
            format: FORMAT,
            tenure: env!("CARGO_PKG_VERSION").to_owned(),
            migration,
            postgresql,
            pg_dump,
            snapshot,
            finished: snapshot,
            files: Vec::new(),
            artifacts: StoredArtifacts::default(),
        }
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), BackupError> {
        let mut text = serde_json::to_vec_pretty(self).expect("numbers, texts and lists are always JSON");
        text.push(b'\n');
        let (unfinished, path) = (dir.join(UNFINISHED), dir.join(MANIFEST));
        files::write(&unfinished, &text)?;
        fs::rename(&unfinished, &path).map_err(io_error("write", &path))?;
        files::sync(dir)
    }

    pub(super) fn read(dir: &Path) -> Result<Self, BackupError> {
        #[derive(Deserialize)]
        struct AnyFormat {
            format: u32,
            tenure: String,
        }
        let path = dir.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && !dir.exists() => {
                return Err(BackupError::unusable(dir, "does not exist; name the directory of a backup"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let problem =
                    format!("has no {MANIFEST}: it is no backup, or one that did not finish; make another one");
                return Err(BackupError::unusable(dir, problem));
            }
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let damaged = |problem: &dyn std::fmt::Display| {
            BackupError::unusable(&path, format!("is damaged ({problem}); use another backup"))
        };
        let any: AnyFormat = serde_json::from_slice(&text).map_err(|error| damaged(&error))?;
        if any.format != FORMAT {
            let problem =
                format!("has format {}, and this release reads format {FORMAT}; use tenure {}", any.format, any.tenure);
            return Err(BackupError::unusable(&path, problem));
        }
        let manifest: Self = serde_json::from_slice(&text).map_err(|error| damaged(&error))?;
        match manifest.files.iter().find(|file| !NAMES.contains(&file.name.as_str())) {
            Some(file) => Err(damaged(&format!("it names {:?}", file.name))),
            None if !manifest.has(DUMP) => Err(damaged(&format!("it does not name {DUMP}"))),
            None => Ok(manifest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(dir: &Path) -> Manifest {
        files::write(&dir.join(DUMP), b"dump").unwrap();
        let snapshot: Timestamp = serde_json::from_str("\"2026-10-03T04:05:06.789Z\"").unwrap();
        let mut manifest = Manifest::new(27, (16, 17), snapshot);
        manifest.files.push(StoredFile::of(dir, DUMP).unwrap());
        manifest
    }

    #[test]
    fn written_manifest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = manifest(folder.path());
        manifest.write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), manifest);
        assert!(manifest.has(DUMP) && !manifest.has(SECRET_KEY));
        assert!(!folder.path().join(UNFINISHED).exists());
        let text = fs::read_to_string(folder.path().join(MANIFEST)).unwrap();
        for part in
            ["\"format\": 1", "\"pgDump\": 17", "\"snapshot\": \"2026-10-03T04:05:06.789Z\"", "\"bucket\": null"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn unusable_manifest_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |part: &str| {
            let line = Manifest::read(folder.path()).unwrap_err().to_string();
            assert!(line.contains(part) && !line.contains('\n'), "{line}");
        };
        refused("did not finish");
        manifest(folder.path()).write(folder.path()).unwrap();
        let path = folder.path().join(MANIFEST);
        let whole = fs::read_to_string(&path).unwrap();
        for (from, to, part) in [
            ("\"format\": 1", "\"format\": 2", "this release reads format 1; use tenure"),
            ("database.dump", "../../etc/passwd", "etc/passwd"),
            ("database.dump", "secret-key", "does not name database.dump"),
            ("\"pgDump\"", "\"other\"", "is damaged"),
            ("{", "", "is damaged"),
        ] {
            fs::write(&path, whole.replacen(from, to, 1)).unwrap();
            refused(part);
        }
        let line = Manifest::read(&folder.path().join("absent")).unwrap_err().to_string();
        assert!(line.contains("does not exist"), "{line}");
    }
}
