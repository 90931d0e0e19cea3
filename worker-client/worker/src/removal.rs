//! Removes the directory of a task. Nested directories may be deeper than the limits of a path, of
//! a stack and of open descriptors. So removal never descends: subdirectories are moved to the top
//! before they are emptied.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc::{O_DIRECTORY, O_NOFOLLOW};
use uuid::Uuid;

use super::work_directory::DIRECTORY_MODE;

/// Works without write permission for the owner too. Symlinks are not followed.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // The task has replaced it.
        Ok(found) if !found.is_dir() => return std::fs::remove_file(dir),
        _ => {}
    }
    let top = Dir::open(dir.to_owned())?;
    let mut full = VecDeque::from(top.clear()?);
    // Consecutive directories not fully moved.
    let mut put_off = 0;
    while let Some(name) = full.pop_back() {
        let path = top.path.join(&name);
        match move_up(&path, &top, &mut full) {
            Ok(()) => {
                std::fs::remove_dir(path)?;
                put_off = 0;
            }
            // A full disk may have no space for another name until other directories were removed.
            Err(error) if error.kind() == io::ErrorKind::StorageFull && put_off < full.len() => {
                put_off += 1;
                full.push_front(name);
            }
            Err(error) => return Err(error),
        }
    }
    drop(top);
    std::fs::remove_dir(dir)
}

/// Moves non-empty subdirectories to the top and removes the rest.
fn move_up(path: &Path, top: &Dir, full: &mut VecDeque<OsString>) -> io::Result<()> {
    let below = Dir::open(path.to_owned())?;
    for name in below.clear()? {
        let from = below.path.join(name);
        // Moving a directory needs write permission for it.
        drop(Dir::open(from.clone())?);
        let name = OsString::from(Uuid::new_v4().to_string());
        std::fs::rename(from, top.path.join(&name))?;
        full.push_back(name);
    }
    Ok(())
}

/// On Linux its path stays valid even if a process of the task replaces it by a symlink.
struct Dir {
    path: PathBuf,
    _file: File,
}

impl Dir {
    /// Makes the directory writable for its owner; some tools leave it read-only.
    fn open(path: PathBuf) -> io::Result<Self> {
        let open = || OpenOptions::new().read(true).custom_flags(O_DIRECTORY | O_NOFOLLOW).open(&path);
        let mode = Permissions::from_mode(DIRECTORY_MODE);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                std::fs::set_permissions(&path, mode.clone())?;
                open()?
            }
            file => file?,
        };
        // The directory may be another user's. If it is empty, that does not matter.
        let _refused = file.set_permissions(mode);
        let path =
            if cfg!(target_os = "linux") { PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())) } else { path };
        Ok(Self { path, _file: file })
    }

    /// Returns the names of non-empty directories, which stay.
    fn clear(&self) -> io::Result<Vec<OsString>> {
        let mut full = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                std::fs::remove_file(entry.path())?;
            } else if std::fs::remove_dir(entry.path()).is_err() {
                full.push(entry.file_name());
            }
        }
        Ok(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, create_dir_all, rename, set_permissions, write};
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// Above the limits of open files and stack frames.
    const DEPTH: usize = 10_000;

    #[test]
    fn deep_directory_is_removed() {
        let outer = TempDir::new().unwrap();
        let dir = outer.path().join("task");
        let (deep, around) = (dir.join("deep"), dir.join("around"));
        create_dir_all(&deep).unwrap();
        write(deep.join("file"), "").unwrap();
        // No path is long enough.
        for _ in 0..DEPTH {
            create_dir(&around).unwrap();
            rename(&deep, around.join("deep")).unwrap();
            rename(&around, &deep).unwrap();
        }
        remove(&dir).unwrap();
        assert!(!dir.exists());
        remove(&dir).unwrap();
    }

    #[test]
    fn readonly_directory_is_removed_and_symlink_target_stays() {
        let outer = TempDir::new().unwrap();
        let (dir, other) = (outer.path().join("task"), outer.path().join("other"));
        let (closed, hidden) = (dir.join("a/closed"), dir.join("a/closed/hidden"));
        create_dir_all(&hidden).unwrap();
        create_dir_all(&other).unwrap();
        for file in [other.join("file"), hidden.join("file"), closed.join("file")] {
            write(file, "").unwrap();
        }
        symlink(&other, dir.join("way")).unwrap();
        symlink(&other, hidden.join("way")).unwrap();
        set_permissions(&hidden, Permissions::from_mode(0o000)).unwrap();
        set_permissions(&closed, Permissions::from_mode(0o500)).unwrap();
        remove(&dir).unwrap();
        assert!(!dir.exists());
        symlink(&other, &dir).unwrap();
        remove(&dir).unwrap();
        assert!(dir.symlink_metadata().is_err());
        assert!(other.join("file").exists());
    }
}
