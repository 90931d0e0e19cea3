//! The socket's directory: below the data directory if possible, so that it is found and removed
//! with the rest.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::account::Account;
use super::error::{EmbeddedError, io_error};

/// Only part of the socket's name: nothing listens on TCP.
pub(super) const PORT: u16 = 5432;
/// The kernel's limit is 107 bytes on Linux and 103 on macOS.
const SOCKET_PATH_MAX: usize = 100;

/// Creates or checks a directory that only `owner` can enter, with a path short enough for a
/// socket.
pub(super) fn make_socket_dir(data_dir: &Path, owner: &Account) -> Result<PathBuf, EmbeddedError> {
    let mut last = None;
    for directory in candidates(data_dir, owner) {
        if directory.join(format!(".s.PGSQL.{PORT}")).as_os_str().len() > SOCKET_PATH_MAX {
            continue;
        }
        match make_or_check(&directory, owner) {
            Ok(()) => return Ok(directory),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("the path in /tmp is always short enough to be tried"))
}

/// Deterministic for a data directory, in every process.
fn candidates(data_dir: &Path, owner: &Account) -> Vec<PathBuf> {
    let digest = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    let name: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let mut all = vec![data_dir.join("run")];
    if owner.is_other() {
        all.push(Path::new("/run").join(format!("tenure-{name}")));
    }
    let name = format!("tenure-{}-{name}", owner.uid());
    all.push(std::env::temp_dir().join(&name));
    all.push(Path::new("/tmp").join(&name));
    all
}

fn make_or_check(directory: &Path, owner: &Account) -> Result<(), EmbeddedError> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => owner.give(directory).map_err(io_error("change the owner of", directory))?,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            // In a world-writable directory, another user may have created it first. A root server
            // killed before the change of owner leaves root's directory.
            let found = fs::symlink_metadata(directory).map_err(io_error("look at", directory))?;
            if found.is_dir() && found.uid() == 0 && owner.is_other() {
                owner.give(directory).map_err(io_error("change the owner of", directory))?;
            } else if !found.is_dir() || found.uid() != owner.uid() {
                return Err(EmbeddedError::ForeignOwner { path: directory.to_owned(), owner: found.uid() });
            }
            if found.mode() & 0o077 != 0 {
                let problem = "is open to other users; remove it or set its mode to 0700";
                return Err(EmbeddedError::BadFile { path: directory.to_owned(), problem });
            }
        }
        Err(error) => return Err(io_error("make", directory)(error)),
    }
    owner.check_can_enter(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_path_moves_socket_to_short_private_directory() {
        let base = tempfile::Builder::new().prefix("tenure-socket").tempdir_in("/tmp").unwrap();
        let account = Account::choose(&base.path().join("pg")).unwrap();
        let short = base.path().join("short");
        let long = base.path().join("long".repeat(25));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        fs::set_permissions(base.path(), mode).unwrap();
        for directory in [&short, &long] {
            fs::create_dir(directory).unwrap();
        }
        assert_eq!(make_socket_dir(&short, &account).unwrap(), short.join("run"));
        let moved = make_socket_dir(&long, &account).unwrap();
        assert!(!moved.starts_with(&long) && moved.as_os_str().len() < 85, "{}", moved.display());
        assert_eq!(make_socket_dir(&long, &account).unwrap(), moved, "the next start must find it again");
        let metadata = fs::metadata(&moved).unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o700, account.uid()));
        fs::remove_dir(moved).unwrap();
    }
}
