//! The directory of a task, with its log.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tenure_api::ids::{RunId, TaskId};
use tokio::process::Command;

use super::log::Log;

/// The worker's own variables begin like this; they hold its secrets, so tasks do not get them.
const WORKER_VARIABLES: [&str; 2] = ["TASKCLUSTER_", "TENURE_"];

/// The directory of one run of a task.
pub(super) struct Place {
    dir: PathBuf,
    log: Log,
    env: [(&'static str, OsString); 4],
}

impl Place {
    /// Makes the directory; one that exists already belongs to somebody else.
    pub(super) fn create(work_dir: &Path, root_url: &str, task_id: TaskId, run_id: RunId) -> io::Result<Self> {
        let dir = std::path::absolute(work_dir)?.join(format!("{task_id}-{run_id}"));
        std::fs::create_dir(&dir)?;
        // Without symlinks, so that it can be compared with where a file really is.
        let dir = dir.canonicalize()?;
        let log = Log::create(&dir)?;
        let env = [
            ("TASK_ID", task_id.to_string().into()),
            ("RUN_ID", run_id.to_string().into()),
            ("TASKCLUSTER_ROOT_URL", root_url.into()),
            ("TASK_WORKDIR", dir.clone().into()),
        ];
        Ok(Self { dir, log, env })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// Adds a line to the task's log.
    pub(super) fn note(&self, line: &str) {
        self.log.note(line);
    }

    /// A command that runs here, with this environment added, and writes to the log.
    pub(super) fn command<'a>(
        &self,
        argv: &[String],
        env: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> io::Result<Command> {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).current_dir(&self.dir);
        for (name, _) in std::env::vars_os() {
            if WORKER_VARIABLES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
                command.env_remove(name);
            }
        }
        // Last, so that a payload cannot pretend to be another task.
        command.envs(env).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(self.log.output()?).stderr(self.log.output()?);
        Ok(command)
    }
}
