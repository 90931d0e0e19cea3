//! The directory of a task, with its log.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use tenure_api::ids::{RunId, TaskId};

use super::Settings;
use super::guard::Spec;
use super::leftovers::Record;
use super::log::Log;
use super::removal::remove;
use super::user::TaskUser;

/// Prefixes of the worker's own variables, which are hidden from tasks: they hold its secrets, and the
/// span that started it is not that of a run.
const WORKER_VARIABLES: [&str; 3] = ["TASKCLUSTER_", "TENURE_", "TRACEPARENT"];
/// Closed to other users.
pub(super) const DIRECTORY_MODE: u32 = 0o700;

pub(super) struct WorkDirectory {
    dir: PathBuf,
    log: Log,
    record: Record,
    env: Vec<(&'static str, OsString)>,
    user: Option<TaskUser>,
}

impl WorkDirectory {
    /// Renames a kept directory of the same run: with the poll API a run may come again after its
    /// worker was killed. Any other existing entry is an error. On failure everything created is
    /// removed.
    pub(super) fn create(settings: &Settings, task_id: TaskId, run_id: RunId) -> io::Result<Self> {
        let work_dir = std::path::absolute(&settings.work_dir)?;
        let name = format!("{task_id}-{run_id}");
        let dir = work_dir.join(&name);
        match std::fs::create_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_kept(&work_dir, &name, &dir) => {
                put_aside(&dir)?;
                std::fs::create_dir(&dir)?;
            }
            made => made?,
        }
        Self::furnish(settings, &work_dir, &name, &dir, (task_id, run_id)).inspect_err(|_| {
            if let Err(error) = remove(&dir) {
                tracing::warn!(directory = %dir.display(), %error, "a task's directory could not be removed");
            }
        })
    }

    fn furnish(
        settings: &Settings,
        work_dir: &Path,
        name: &str,
        dir: &Path,
        (task_id, run_id): (TaskId, RunId),
    ) -> io::Result<Self> {
        // Without symlinks, for comparison with the real location of a file.
        let dir = dir.canonicalize()?;
        let log = Log::create(&dir, settings.limits.log_bytes)?;
        let me = &settings.name;
        log.try_note(&format!("task {task_id} run {run_id}, on worker {}/{}", me.group, me.id))?;
        let record = Record::create(work_dir, name, &dir)?;
        let env = vec![
            ("TASK_ID", task_id.to_string().into()),
            ("RUN_ID", run_id.to_string().into()),
            ("TASKCLUSTER_ROOT_URL", settings.client.root_url().into()),
            ("TASK_WORKDIR", dir.clone().into()),
        ];
        let directory = Self { dir, log, record, env, user: settings.task_user.clone() };
        if let Some(TaskUser { ids, .. }) = &directory.user {
            std::fs::set_permissions(&directory.dir, Permissions::from_mode(DIRECTORY_MODE))?;
            lchown(&directory.dir, Some(ids.uid), Some(ids.gid))?;
        }
        Ok(directory)
    }

    /// Gives the span of the run to the commands of the task.
    pub(super) fn traced(mut self, traceparent: Option<&str>) -> Self {
        self.env.extend(traceparent.map(|value| ("TRACEPARENT", value.into())));
        self
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    pub(super) fn note(&self, line: &str) {
        self.log.note(line);
    }

    /// Gives the contents to the task's user. No command may have run yet.
    pub(super) fn hand_over(&self) -> io::Result<()> {
        let Some(TaskUser { ids, .. }) = &self.user else { return Ok(()) };
        let mut to_do = vec![self.dir.clone()];
        while let Some(dir) = to_do.pop() {
            for entry in std::fs::read_dir(&dir)? {
                let entry = entry?;
                if entry.file_name() == super::log::LOG_FILE && dir == self.dir {
                    continue;
                }
                lchown(entry.path(), Some(ids.uid), Some(ids.gid))?;
                if entry.file_type()?.is_dir() {
                    to_do.push(entry.path());
                }
            }
        }
        Ok(())
    }

    pub(super) fn command<'a>(&self, argv: &[String], env: impl IntoIterator<Item = (&'a String, &'a String)>) -> Spec {
        let mut all: std::collections::BTreeMap<OsString, OsString> = std::env::vars_os()
            .filter(|(name, _)| {
                !WORKER_VARIABLES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
            })
            .collect();
        if let Some(TaskUser { name, home, .. }) = &self.user {
            all.extend([("USER".into(), name.into()), ("LOGNAME".into(), name.into()), ("HOME".into(), home.into())]);
        }
        all.extend(env.into_iter().map(|(name, value)| (name.into(), value.into())));
        // Last, so that a payload cannot pretend to be another task.
        all.extend(self.env.iter().map(|(name, value)| (name.into(), value.clone())));
        Spec {
            argv: argv.to_vec(),
            env: all.into_iter().collect(),
            dir: self.dir.clone().into(),
            user: self.user.as_ref().map(|user| user.ids),
            cgroup: self.record.cgroup(),
        }
    }

    /// Ends remaining processes; then removes the directory, or completes its log if it is kept.
    pub(super) fn close(&self, keep: bool) -> io::Result<()> {
        self.record.end();
        if let Some(bytes) = self.log.missing() {
            tracing::warn!(
                directory = %self.dir.display(), bytes,
                "part of a task's log is missing, because it could not be written"
            );
        }
        let settled = if keep { self.log.finish() } else { remove(&self.dir) };
        // Last: a directory without a record would never be removed. A kept directory needs none:
        // with a record it could not be renamed when the run comes again.
        let removed = if keep || settled.is_ok() { self.record.remove() } else { Ok(()) };
        settled.and(removed)
    }
}

/// True for a directory without a worker.
fn is_kept(work_dir: &Path, name: &str, dir: &Path) -> bool {
    std::fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir()) && !Record::exists(work_dir, name)
}

/// Appends the first free number to the name.
fn put_aside(dir: &Path) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut path = dir.as_os_str().to_owned();
        path.push(format!(".{number}"));
        PathBuf::from(path)
    };
    let aside = (1..).map(numbered).find(|path| std::fs::symlink_metadata(path).is_err());
    let aside = aside.ok_or(io::ErrorKind::AlreadyExists)?;
    tracing::warn!(
        directory = %dir.display(), now = %aside.display(),
        "an earlier directory of the same run was moved aside"
    );
    std::fs::rename(dir, aside)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn kept_directory_with_incomplete_log_can_be_renamed() {
        let (work, name) = (TempDir::new().unwrap(), "9HrBC1jMQ3KlZw4CssPUeQ-0");
        let dir = work.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        let log = Log::create(&dir, 1000).unwrap();
        log.fill_up(&dir).unwrap();
        let record = Record::create(work.path(), name, &dir).unwrap();
        let directory = WorkDirectory { dir: dir.clone(), log, record, env: Vec::new(), user: None };
        assert!(!is_kept(work.path(), name, &dir), "directory in use counts as kept");
        assert!(directory.close(true).is_err());
        assert!(is_kept(work.path(), name, &dir));
        put_aside(&dir).unwrap();
        assert!(work.path().join(format!("{name}.1")).exists());
    }
}
