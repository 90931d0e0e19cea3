//! Cleans up after killed workers.
//!
//! Each run has a record in the work directory, with its worker and its processes. The next worker
//! in the directory of a killed one ends those processes and removes the directories before its
//! first claim. A process is identified by number, start time and boot id, so that a reused number
//! is never mistaken for it. Records of running workers are left alone: a directory may be shared.
//!
//! A running worker is recognized by a lock. Its process number means nothing in another pid
//! namespace, and workers in several containers may share a directory.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::guard::cgroup;
use super::guard::tree::Identity;
use super::removal;

const RECORDS: &str = ".tenure-worker";
/// Extension of a record's lock file, which its worker has locked.
const LOCK: &str = "lock";
/// Extension of a record that is being written.
const UNFINISHED: &str = "unfinished";
const GONE_WITHIN: Duration = Duration::from_secs(5);
const POLL_EVERY: Duration = Duration::from_millis(10);

pub(super) struct Record {
    path: PathBuf,
    entry: Mutex<RunRecord>,
    /// The system releases the lock however this process ends.
    _held: Option<File>,
}

#[derive(Serialize, Deserialize)]
struct RunRecord {
    /// None where the system does not identify processes.
    worker: Option<Identity>,
    dir: OsString,
    /// Guards and commands.
    processes: Vec<Identity>,
    cgroup: Option<OsString>,
    /// The worker holds the lock beside this record. False on a file system without locks.
    #[serde(default)]
    locked: bool,
    /// Namespace of the process numbers. Missing in records of earlier releases.
    #[serde(default)]
    pid_namespace: Option<String>,
}

impl Record {
    pub(super) fn create(work_dir: &Path, name: &str, dir: &Path) -> io::Result<Self> {
        let records = work_dir.join(RECORDS);
        DirBuilder::new().recursive(true).mode(0o700).create(&records)?;
        let path = records.join(name);
        let me = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let held = hold(&path.with_extension(LOCK))?;
        let cgroup = cgroup::make(name);
        let entry = RunRecord {
            worker: Identity::of(me),
            dir: dir.into(),
            processes: Vec::new(),
            cgroup: cgroup.map(OsString::from),
            locked: held.is_some(),
            pid_namespace: pid_namespace(),
        };
        let record = Self { path, entry: Mutex::new(entry), _held: held };
        let written = record.write(&record.lock());
        if let Err(error) = written {
            record.end();
            let _gone = std::fs::remove_file(record.path.with_extension(LOCK));
            return Err(error);
        }
        Ok(record)
    }

    /// True for records of other workers too.
    pub(super) fn exists(work_dir: &Path, name: &str) -> bool {
        work_dir.join(RECORDS).join(name).exists()
    }

    pub(super) fn add(&self, pid: i32) -> io::Result<()> {
        let mut entry = self.lock();
        entry.processes.retain(Identity::runs);
        entry.processes.extend(Identity::of(pid));
        self.write(&entry)
    }

    pub(super) fn cgroup(&self) -> Option<OsString> {
        self.lock().cgroup.clone()
    }

    pub(super) fn end(&self) {
        if !self.lock().end() {
            tracing::error!(record = %self.path.display(), "processes of a task cannot be ended");
        }
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)?;
        // Second: a record whose lock is free counts as a killed worker's.
        std::fs::remove_file(self.path.with_extension(LOCK))
    }

    /// Atomic: no partial record is ever read, and none stays after a full disk.
    fn write(&self, entry: &RunRecord) -> io::Result<()> {
        let unfinished = self.path.with_extension(UNFINISHED);
        let written = std::fs::write(&unfinished, serde_json::to_vec(entry)?);
        written.and_then(|()| std::fs::rename(&unfinished, &self.path)).inspect_err(|_| {
            let _gone = std::fs::remove_file(&unfinished);
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RunRecord> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunRecord {
    /// Takes the lock if it is free.
    fn worker_runs(&self, lock: Option<&File>) -> bool {
        // Without identities leftovers are unknown too.
        let Some(worker) = &self.worker else { return true };
        if self.locked {
            // If the file is missing, the worker has just removed the record.
            return lock.is_none_or(|lock| lock.try_lock().is_err());
        }
        worker.runs()
    }

    /// Processes in another pid namespace are ended by their guards, or with its first process.
    fn processes_here(&self) -> &[Identity] {
        let is_here = self.pid_namespace.is_none() || self.pid_namespace == pid_namespace();
        if is_here { &self.processes } else { &[] }
    }

    /// Returns true if all processes are gone.
    fn end(&self) -> bool {
        let deadline = Instant::now() + GONE_WITHIN;
        let mut gone = true;
        for process in self.processes_here() {
            while process.runs() {
                if Instant::now() >= deadline {
                    gone = false;
                    break;
                }
                process.kill_tree();
                std::thread::sleep(POLL_EVERY);
            }
        }
        self.cgroup.as_ref().is_none_or(|group| cgroup::end(group.as_ref())) && gone
    }
}

/// Returns none if the file system has no locks.
fn hold(path: &Path) -> io::Result<Option<File>> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::other(format!("{} is locked by another process", path.display())))
        }
        Err(TryLockError::Error(error)) => {
            tracing::debug!(%error, "the file system of the work directory has no locks");
            Ok(None)
        }
    }
}

fn pid_namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str().map(str::to_owned)
}

/// Ends and removes the leftovers of killed workers.
pub(super) fn clear(work_dir: &Path, keep: bool) -> io::Result<()> {
    let entries = match std::fs::read_dir(work_dir.join(RECORDS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let record = path.with_extension("");
        if record != path && record.exists() {
            continue;
        }
        // Not a record, or one being written when its worker was killed.
        let Some(entry) = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<RunRecord>(&text).ok())
        else {
            continue;
        };
        let lock_path = path.with_extension(LOCK);
        // Held until the record is gone, to exclude other workers.
        let lock = File::options().write(true).open(&lock_path).ok();
        // Checked under the lock: the worker may have closed the run itself.
        if entry.worker_runs(lock.as_ref()) || !path.exists() {
            continue;
        }
        let running = entry.processes_here().iter().filter(|process| process.runs()).count();
        let dir = Path::new(&entry.dir);
        tracing::warn!(directory = %dir.display(), processes = running, "cleaning up after a killed worker");
        if !entry.end() {
            tracing::error!(directory = %dir.display(), "processes of a killed worker cannot be ended");
            continue;
        }
        if !keep && let Err(error) = removal::remove(dir) {
            tracing::warn!(directory = %dir.display(), %error, "a directory of a killed worker cannot be removed");
        }
        let _gone = std::fs::remove_file(&path);
        let _gone = std::fs::remove_file(path.with_extension(UNFINISHED));
        let _gone = std::fs::remove_file(&lock_path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use tempfile::TempDir;

    const RUN: &str = "9HrBC1jMQ3KlZw4CssPUeQ-0";

    fn run() -> (TempDir, PathBuf, Record) {
        let work = TempDir::new().unwrap();
        let dir = work.path().join(RUN);
        std::fs::create_dir(&dir).unwrap();
        let record = Record::create(work.path(), RUN, &dir).unwrap();
        (work, dir, record)
    }

    /// Makes the record's process invisible from here.
    fn hide_worker(record: &Record) {
        let mut entry = record.lock();
        entry.worker = Some(Identity { pid: 1, start: u64::MAX, boot: "unseen".to_owned() });
        record.write(&entry).unwrap();
    }

    fn records(work: &Path) -> usize {
        std::fs::read_dir(work.join(RECORDS)).unwrap().count()
    }

    #[test]
    fn run_of_unseen_worker_is_not_cleared() {
        let (work, dir, record) = run();
        hide_worker(&record);
        clear(work.path(), false).unwrap();
        assert!(dir.exists(), "cleared a run of another pid namespace");
        drop(record);
        // A process just forked by another test holds the lock too until it executes its program.
        for _ in 0..1_000 {
            clear(work.path(), false).unwrap();
            if !dir.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!dir.exists());
        assert_eq!(records(work.path()), 0);
    }

    #[test]
    fn record_is_removed_with_its_lock() {
        let (work, _dir, record) = run();
        record.end();
        record.remove().unwrap();
        assert_eq!(records(work.path()), 0);
    }

    #[test]
    fn unwritable_record_leaves_nothing() {
        let (work, dir, record) = run();
        record.end();
        record.remove().unwrap();
        // Prevents renaming a record to its path.
        std::fs::create_dir_all(record.path.join("in the way")).unwrap();
        assert!(Record::create(work.path(), RUN, &dir).is_err());
        assert_eq!(records(work.path()), 1);
    }

    #[test]
    fn process_number_of_other_namespace_is_not_ended() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        for (namespace, ends) in [(Some("pid:[1]".to_owned()), false), (pid_namespace(), true)] {
            let (work, dir, record) = run();
            record.add(pid).unwrap();
            hide_worker(&record);
            let mut entry = record.lock();
            entry.pid_namespace = namespace;
            record.write(&entry).unwrap();
            drop(entry);
            drop(record);
            clear(work.path(), false).unwrap();
            assert!(!dir.exists());
            assert_eq!(child.try_wait().unwrap().is_some(), ends);
        }
        child.wait().unwrap();
    }
}
