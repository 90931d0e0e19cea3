//! Private files and directories of backups and restores.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::{BackupError, io_error};
use crate::config::SettingError;
use tenure_engine::ops::objects::hex;

const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
/// Part of a new file system.
const LOST_AND_FOUND: &str = "lost+found";
const BUFFER: usize = 256 << 10;

/// Refuses a directory with files in it.
pub(super) fn check_vacant(setting: &str, path: &Path) -> Result<(), BackupError> {
    let refused = |problem: String| {
        let fix = format!("{problem}; name a directory that does not exist, or an empty one");
        SettingError::new(setting, path.display(), fix)
    };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(format!("it cannot be used ({error})")).into()),
    };
    for entry in entries {
        if entry.map_err(io_error("read", path))?.file_name() != LOST_AND_FOUND {
            return Err(refused("it is not empty".to_owned()).into());
        }
    }
    Ok(())
}

/// Creates a directory and its parents if missing, and closes it to other users.
pub(super) fn make_dir(path: &Path) -> Result<(), BackupError> {
    let make = || -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIR).create(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(PRIVATE_DIR))
    };
    make().map_err(io_error("make", path))
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), BackupError> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(io_error("write", path))
}

/// Appends to an existing file, without a flush.
pub(super) fn append(path: &Path, bytes: &[u8]) -> Result<(), BackupError> {
    let append = || OpenOptions::new().append(true).open(path)?.write_all(bytes);
    append().map_err(io_error("write", path))
}

/// Flushes a file, or the names in a directory.
pub(super) fn sync(path: &Path) -> Result<(), BackupError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(io_error("write", path))
}

/// Links a file that never changes, or copies it to another disk. A link needs a later [`sync`] of
/// its directory.
pub(super) fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() != ErrorKind::NotFound => copy(from, to),
        linked => linked,
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(to)?;
    io::copy(&mut source, &mut copy)?;
    copy.sync_all()
}

/// Returns the number of bytes in a file, and their SHA-256 in hexadecimal.
pub(super) fn sum(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut digest, mut size, mut buffer) = (Sha256::new(), 0, vec![0; BUFFER]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((size, hex(&digest.finalize()))),
            Ok(count) => {
                digest.update(&buffer[..count]);
                size += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vacant_directory_is_absent_or_empty() {
        let folder = tempfile::tempdir().unwrap();
        check_vacant("DIR", folder.path()).unwrap();
        check_vacant("DIR", &folder.path().join("absent")).unwrap();
        fs::create_dir(folder.path().join(LOST_AND_FOUND)).unwrap();
        check_vacant("DIR", folder.path()).unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, part) in [(folder.path(), "it is not empty"), (&file, "it cannot be used")] {
            let line = check_vacant("DIR", path).unwrap_err().to_string();
            assert!(line.contains(part) && line.contains("name a directory"), "{line}");
        }
    }

    #[test]
    fn sum_is_sha256_of_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, b"abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sum(&path).unwrap(), (3, abc.to_owned()));
        let long = vec![7; BUFFER + 1];
        write(&path, &long).unwrap();
        assert_eq!(sum(&path).unwrap(), (long.len() as u64, hex(&Sha256::digest(&long))));
    }

    #[test]
    fn link_or_copy_needs_source() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        assert_eq!(link_or_copy(&from, &to).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!to.exists());
        fs::write(&from, "bytes").unwrap();
        link_or_copy(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"bytes");
        copy(&from, &folder.path().join("copy")).unwrap();
        let copied = fs::metadata(folder.path().join("copy")).unwrap();
        assert_eq!((copied.len(), copied.permissions().mode() & 0o777), (5, PRIVATE_FILE));
    }
}
