//! Processes in a group of their own, so that a command ends together with everything that it started.

use std::collections::BTreeSet;
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How often a group that was asked to end is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// The process groups that a worker has running.
#[derive(Clone, Default)]
pub struct ProcessGroups(Arc<Mutex<BTreeSet<i32>>>);

impl ProcessGroups {
    /// Kills them all, without asking.
    ///
    /// ```
    /// tenure_worker::worker::ProcessGroups::default().kill_all();
    /// ```
    pub fn kill_all(&self) {
        for group in self.lock().iter() {
            signal(Pid::from_raw(*group), Some(Signal::SIGKILL));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<i32>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running command with its group; dropping it kills what is left of the group.
pub(super) struct ProcessGroup {
    child: Child,
    group: Pid,
    groups: ProcessGroups,
}

impl ProcessGroup {
    /// Starts a command as the leader of a new group.
    pub(super) fn spawn(command: &mut Command, groups: &ProcessGroups) -> io::Result<Self> {
        // Locked first: otherwise `kill_all` could miss a group that starts at the same moment.
        let mut running = groups.lock();
        let child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.expect("a child that was not waited for has a process id, and Linux keeps those below 2^22");
        running.insert(id);
        drop(running);
        Ok(Self { child, group: Pid::from_raw(id), groups: groups.clone() })
    }

    /// Waits for the command itself; may be dropped and called again.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Asks the group to end, and kills what is left of it after `grace`.
    pub(super) async fn stop(mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        signal(self.group, Some(Signal::SIGTERM));
        // Its status says nothing about the task any more.
        let _ended = tokio::time::timeout_at(deadline, self.child.wait()).await;
        while Instant::now() < deadline && signal(self.group, None) {
            tokio::time::sleep(LOOK).await;
        }
        signal(self.group, Some(Signal::SIGKILL));
        let _killed = self.child.wait().await;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The number cannot name another group yet: it is free at the earliest when the last member has been
        // waited for, and process numbers come round only after all others.
        signal(self.group, Some(Signal::SIGKILL));
        self.groups.lock().remove(&self.group.as_raw());
    }
}

/// Sends a signal to a group, or none to see whether there is one; answers whether there was.
fn signal(group: Pid, signal: Option<Signal>) -> bool {
    match killpg(group, signal) {
        Ok(()) => true,
        Err(Errno::ESRCH) => false,
        Err(error) => {
            tracing::warn!(group = group.as_raw(), %error, "a process group could not be signalled");
            true
        }
    }
}
