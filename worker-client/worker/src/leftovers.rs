//! What an earlier worker left behind, and what this one would.
//!
//! Each run has a record in the work directory: which worker is at it, and which processes it has. A worker that is
//! killed leaves its records; the next one that works in the same directory ends those processes and removes what was
//! theirs before its first claim. Processes are distinguished by number, start time and start of the machine, so that none
//! that merely got the number later is touched. Records of workers that run are left alone: a directory may be shared.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::guard::cgroup;
use super::guard::tree::Identity;
use super::work_directory;

/// Holds the records, below the work directory.
const RECORDS: &str = ".tenure-worker";
/// How long what was killed may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// What there is of a run on this machine.
pub(super) struct Record {
    path: PathBuf,
    entry: Mutex<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    /// None where the system does not say which process is which.
    worker: Option<Identity>,
    /// The run's directory.
    dir: OsString,
    /// Guards and commands.
    processes: Vec<Identity>,
    cgroup: Option<OsString>,
}

impl Record {
    /// Writes down that this worker is at a run with this name, in this directory.
    pub(super) fn create(work_dir: &Path, name: &str, dir: &Path) -> io::Result<Self> {
        let records = work_dir.join(RECORDS);
        DirBuilder::new().recursive(true).mode(0o700).create(&records)?;
        let me = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let cgroup = cgroup::make(name);
        let entry = Entry {
            worker: Identity::of(me),
            dir: dir.into(),
            processes: Vec::new(),
            cgroup: cgroup.map(OsString::from),
        };
        let record = Self { path: records.join(name), entry: Mutex::new(entry) };
        record.write(&record.lock())?;
        Ok(record)
    }

    /// Writes down a process of the run.
    pub(super) fn add(&self, pid: i32) -> io::Result<()> {
        let mut entry = self.lock();
        entry.processes.retain(Identity::runs);
        entry.processes.extend(Identity::of(pid));
        self.write(&entry)
    }

    /// The cgroup of the run's processes.
    pub(super) fn cgroup(&self) -> Option<OsString> {
        self.lock().cgroup.clone()
    }

    /// Ends whatever may still run.
    pub(super) fn end(&self) {
        if !self.lock().end() {
            tracing::error!(record = %self.path.display(), "processes of a task cannot be ended");
        }
    }

    /// Removes the record.
    pub(super) fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    /// In one step, so that no half of a record is ever read.
    fn write(&self, entry: &Entry) -> io::Result<()> {
        let unfinished = self.path.with_extension("unfinished");
        std::fs::write(&unfinished, serde_json::to_vec(entry)?)?;
        std::fs::rename(&unfinished, &self.path)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entry> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Kills what runs of it; answers whether all is gone.
    fn end(&self) -> bool {
        let deadline = Instant::now() + GONE_WITHIN;
        let mut gone = true;
        for process in &self.processes {
            while process.runs() {
                if Instant::now() >= deadline {
                    gone = false;
                    break;
                }
                process.kill_tree();
                std::thread::sleep(LOOK);
            }
        }
        self.cgroup.as_ref().is_none_or(|group| cgroup::end(group.as_ref())) && gone
    }
}

/// Ends and removes what workers left that are gone; directories stay if they are to be kept.
pub(super) fn clear(work_dir: &Path, keep: bool) -> io::Result<()> {
    let entries = match std::fs::read_dir(work_dir.join(RECORDS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        // A file that is no record is none of ours, or was being written when its worker was killed.
        let Some(entry) = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Entry>(&text).ok()) else {
            continue;
        };
        let Some(worker) = &entry.worker else { continue };
        if worker.runs() {
            continue;
        }
        let running = entry.processes.iter().filter(|process| process.runs()).count();
        let dir = Path::new(&entry.dir);
        tracing::warn!(directory = %dir.display(), processes = running, "clearing up after a worker that was killed");
        if !entry.end() {
            tracing::error!(directory = %dir.display(), "processes of a worker that was killed cannot be ended");
            continue;
        }
        if !keep && let Err(error) = work_directory::remove(dir) {
            tracing::warn!(directory = %dir.display(), %error, "a directory of a worker that was killed stays");
        }
        // Another worker may have been quicker.
        let _gone = std::fs::remove_file(&path);
    }
    Ok(())
}
