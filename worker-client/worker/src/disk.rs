//! Finds and opens the files that a task's commands left in its directory, without leaving that
//! directory.
//!
//! A file is found without opening it, then checked through the handle, so that later changes
//! cannot lead the worker out of the directory. It is opened last, because opening a device or pipe
//! may have effects.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::libc::{ELOOP, ENXIO, O_NOCTTY, O_NONBLOCK};

use super::log::LOG_FILE;
use tenure_client::UnusableBecause;

#[cfg(target_os = "linux")]
const FIND: i32 = nix::libc::O_PATH;
/// Without `/proc` the location of a file is unknown, so none becomes an artifact.
#[cfg(not(target_os = "linux"))]
const FIND: i32 = O_NONBLOCK | O_NOCTTY;
const FILES_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unusable {
    pub because: UnusableBecause,
    pub message: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Sorted relative paths, of symlinks too unless they lead to directories.
    pub files: Vec<PathBuf>,
    /// Pipes, sockets, devices, and symlinks to directories.
    pub left_out: Vec<PathBuf>,
}

fn unusable(because: UnusableBecause, path: &Path, problem: &str) -> Unusable {
    Unusable { because, message: format!("{} {problem}", path.display()) }
}

/// Opens a file of up to `most` bytes below `dir`, a canonical path.
pub(super) fn open_file(dir: &Path, path: &Path, most: u64) -> Result<File, Unusable> {
    let (file, metadata) = open(dir, path)?;
    if !metadata.is_file() {
        return Err(unusable(UnusableBecause::Invalid, path, "is not a file"));
    }
    if metadata.len() > most {
        let problem = format!("has {} bytes; this worker uploads at most {most}", metadata.len());
        return Err(unusable(UnusableBecause::TooLarge, path, &problem));
    }
    Ok(file)
}

/// Omits the worker's own log.
pub(super) fn list(dir: &Path, path: &Path) -> Result<Listing, Unusable> {
    let (_file, metadata) = open(dir, path)?;
    if !metadata.is_dir() {
        return Err(unusable(UnusableBecause::Invalid, path, "is not a directory"));
    }
    let root = dir.join(path);
    let mut listing = Listing::default();
    let mut to_do = vec![PathBuf::new()];
    while let Some(below) = to_do.pop() {
        let shown = path.join(&below);
        for entry in std::fs::read_dir(root.join(&below)).map_err(|error| of_error(&shown, &error))? {
            let entry = entry.map_err(|error| of_error(&shown, &error))?;
            let found = below.join(entry.file_name());
            let kind = entry.file_type().map_err(|error| of_error(&shown, &error))?;
            if path.join(&found) == Path::new(LOG_FILE) {
                continue;
            }
            if kind.is_dir() {
                to_do.push(found);
            } else if kind.is_file() || kind.is_symlink() && !entry.path().is_dir() {
                listing.files.push(found);
            } else {
                listing.left_out.push(found);
            }
            if listing.files.len() + listing.left_out.len() + to_do.len() > FILES_MAX {
                let problem = format!("has more than {FILES_MAX} files; pack them");
                return Err(unusable(UnusableBecause::Invalid, path, &problem));
            }
        }
    }
    listing.files.sort();
    listing.left_out.sort();
    Ok(listing)
}

fn open(dir: &Path, path: &Path) -> Result<(File, std::fs::Metadata), Unusable> {
    let open = |at: &Path, flags| OpenOptions::new().read(true).custom_flags(flags).open(at);
    let found = open(&dir.join(path), FIND).map_err(|error| of_error(path, &error))?;
    let place = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    if !std::fs::read_link(&place).map_err(|error| of_error(path, &error))?.starts_with(dir) {
        return Err(unusable(UnusableBecause::Invalid, path, "leads outside the task's directory"));
    }
    // Otherwise a pipe would block, and a terminal could become the controlling one.
    let file = open(&place, O_NONBLOCK | O_NOCTTY).map_err(|error| of_error(path, &error))?;
    let metadata = file.metadata().map_err(|error| of_error(path, &error))?;
    Ok((file, metadata))
}

fn of_error(path: &Path, error: &io::Error) -> Unusable {
    let because = match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _) => UnusableBecause::Missing,
        // A cycle of symlinks, or a socket.
        (_, Some(ELOOP | ENXIO)) => UnusableBecause::Invalid,
        _ => UnusableBecause::NotReadable,
    };
    unusable(because, path, &format!("cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    const MOST: u64 = 10;

    struct Task {
        _outer: TempDir,
        dir: PathBuf,
    }

    /// A task's directory beside a file that the task must not reach.
    fn task() -> Task {
        let outer = TempDir::new().unwrap();
        let dir = outer.path().canonicalize().unwrap().join("task");
        std::fs::create_dir_all(dir.join("sub/deep")).unwrap();
        std::fs::write(dir.join("../secret"), "s").unwrap();
        std::fs::create_dir(dir.join("../task-2")).unwrap();
        std::fs::write(dir.join("../task-2/secret"), "s").unwrap();
        std::fs::write(dir.join("live.log"), "log").unwrap();
        std::fs::write(dir.join("sub/file"), "ten bytes.").unwrap();
        std::fs::write(dir.join("sub/deep/live.log"), "log").unwrap();
        std::fs::write(dir.join("sub/large"), "more than ten").unwrap();
        Task { _outer: outer, dir }
    }

    fn refused(dir: &Path, path: &str) -> UnusableBecause {
        open_file(dir, path.as_ref(), MOST).unwrap_err().because
    }

    #[test]
    fn only_files_within_the_directory_are_opened() {
        let Task { dir, _outer } = task();
        symlink("file", dir.join("sub/inside")).unwrap();
        symlink(dir.join("sub/file"), dir.join("sub/absolute")).unwrap();
        symlink("../../secret", dir.join("sub/out")).unwrap();
        symlink("../task-2", dir.join("next")).unwrap();
        symlink("sub/nowhere", dir.join("broken")).unwrap();
        symlink("circle", dir.join("circle")).unwrap();
        nix::unistd::mkfifo(&dir.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _listener = UnixListener::bind(dir.join("socket")).unwrap();
        for path in ["sub/file", "sub/inside", "sub/absolute"] {
            assert!(open_file(&dir, path.as_ref(), MOST).is_ok(), "{path}");
        }
        for (path, because) in [
            ("nothing", UnusableBecause::Missing),
            ("sub/file/below", UnusableBecause::Missing),
            ("broken", UnusableBecause::Missing),
            ("sub/out", UnusableBecause::Invalid),
            ("next/secret", UnusableBecause::Invalid),
            ("circle", UnusableBecause::Invalid),
            ("pipe", UnusableBecause::Invalid),
            ("socket", UnusableBecause::Invalid),
            ("sub", UnusableBecause::Invalid),
            ("sub/large", UnusableBecause::TooLarge),
        ] {
            assert_eq!(refused(&dir, path), because, "{path}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn file_outside_directory_is_not_opened() {
        let Task { dir, _outer } = task();
        let pipe = dir.join("../pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink(&pipe, dir.join("way")).unwrap();
        let (said, heard) = std::sync::mpsc::channel();
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                said.send(nix::unistd::gettid()).unwrap();
                let opened = OpenOptions::new().write(true).open(pipe);
                said.send(nix::unistd::gettid()).unwrap();
                drop(opened);
            }
        });
        let thread = heard.recv().unwrap();
        // The thread sleeps until a reader opens the pipe.
        let sleeps = || std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap().contains(") S ");
        while !sleeps() {
            std::thread::yield_now();
        }
        assert_eq!(refused(&dir, "way"), UnusableBecause::Invalid);
        assert!(heard.recv_timeout(std::time::Duration::from_millis(100)).is_err(), "the pipe was opened");
        let _reader = OpenOptions::new().read(true).open(pipe).unwrap();
        writer.join().unwrap();
    }

    #[test]
    fn unreadable_file_differs_from_missing_file() {
        for (kind, because) in [
            (io::ErrorKind::PermissionDenied, UnusableBecause::NotReadable),
            (io::ErrorKind::NotFound, UnusableBecause::Missing),
            (io::ErrorKind::Other, UnusableBecause::NotReadable),
        ] {
            assert_eq!(of_error(Path::new("p"), &kind.into()).because, because);
        }
    }

    #[test]
    fn listing_omits_log_and_special_files() {
        let Task { dir, _outer } = task();
        symlink("../../secret", dir.join("sub/out")).unwrap();
        symlink("deep", dir.join("sub/again")).unwrap();
        nix::unistd::mkfifo(&dir.join("sub/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let whole = list(&dir, Path::new("")).unwrap();
        assert_eq!(whole.files, paths(&["sub/deep/live.log", "sub/file", "sub/large", "sub/out"]));
        assert_eq!(whole.left_out, paths(&["sub/again", "sub/pipe"]));
        let sub = list(&dir, Path::new("sub")).unwrap();
        assert_eq!(sub.files, paths(&["deep/live.log", "file", "large", "out"]));
        symlink("..", dir.join("up")).unwrap();
        for (path, because) in [
            ("nothing", UnusableBecause::Missing),
            ("sub/file", UnusableBecause::Invalid),
            ("up", UnusableBecause::Invalid),
        ] {
            assert_eq!(list(&dir, path.as_ref()).unwrap_err().because, because, "{path}");
        }
    }

    #[test]
    fn too_many_files_are_refused() {
        let Task { dir, _outer } = task();
        for file in 0..=FILES_MAX {
            std::fs::write(dir.join("sub/deep").join(file.to_string()), "").unwrap();
        }
        assert_eq!(list(&dir, Path::new("sub")).unwrap_err().because, UnusableBecause::Invalid);
    }
}
