//! A command under its guard ([`super::guard`]), from the worker's side. Its output goes through a
//! pipe into the log, to limit its size while it is written.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::guard::{END, GUARD, GuardReport, Ids, KILL, Spec, tree};
use super::leftovers::Record;
use super::log::Log;
use tenure_client::artifacts::blocking;

const KILLED_WITHIN: Duration = Duration::from_secs(10);
/// Interval of checks for killed orphans.
const LOOK: Duration = Duration::from_millis(20);
/// The capacity of a pipe.
const PIPE_BYTES: usize = 64 * 1024;

#[derive(Clone, Default)]
pub(super) struct Guards(Arc<Mutex<BTreeSet<i32>>>);

/// A command under its guard. Dropping it ends all its processes.
pub(super) struct Process {
    guard: Child,
    id: i32,
    guards: Guards,
    reports: Lines<BufReader<OwnedReadHalf>>,
    wishes: OwnedWriteHalf,
    output: JoinHandle<()>,
}

#[derive(Debug)]
pub(super) enum NotStarted {
    Command(io::Error),
    /// An earlier step failed.
    Worker(io::Error),
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> Self {
        Self::Worker(error)
    }
}

impl Process {
    /// The guard is recorded before the command runs.
    pub(super) async fn start(
        program: &Path,
        spec: &Spec,
        log: &Log,
        guards: &Guards,
        record: &Record,
    ) -> Result<Self, NotStarted> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (output, output_of_command) = output_pipe(spec.user)?;
        let mut command = Command::new(program);
        // Without the environment of the worker or task: a guard may have more rights than the
        // task.
        command.arg(GUARD).env_clear().current_dir("/").stdin(OwnedFd::from(theirs));
        command.stdout(output_of_command.try_clone()?).stderr(output_of_command);
        let (guard, id) = guards.spawn(&mut command)?;
        // `command` holds the other ends.
        drop(command);
        let output = tokio::spawn(copy(output, log.clone()));
        let (reports, wishes) = UnixStream::from_std(ours)?.into_split();
        let reports = BufReader::new(reports).lines();
        let mut process = Self { guard, id, guards: guards.clone(), reports, wishes, output };
        record.add(id)?;
        let mut line = serde_json::to_vec(spec).map_err(io::Error::from)?;
        line.push(b'\n');
        process.wishes.write_all(&line).await?;
        match process.next().await? {
            Some(GuardReport::Started(command)) => {
                record.add(command)?;
                Ok(process)
            }
            Some(GuardReport::NotStarted(error)) => {
                process.close().await;
                Err(NotStarted::Command(io::Error::from_raw_os_error(error)))
            }
            Some(GuardReport::Ended(_)) | None => {
                process.close().await;
                Err(NotStarted::Worker(io::Error::other("the guard of the command has ended")))
            }
        }
    }

    /// Waits until all the command's processes have ended, as the guard's next report says. May be
    /// dropped and called again before that.
    pub(super) async fn next(&mut self) -> io::Result<Option<GuardReport>> {
        let line = self.reports.next_line().await?;
        line.map(|line| serde_json::from_str(&line).map_err(io::Error::from)).transpose()
    }

    /// Returns none if the status is unknown.
    pub(super) async fn ended(mut self, report: Option<GuardReport>) -> io::Result<Option<ExitStatus>> {
        self.close().await;
        match report {
            Some(GuardReport::Ended(status)) => Ok(status.map(ExitStatus::from_raw)),
            Some(GuardReport::Started(_) | GuardReport::NotStarted(_)) | None => {
                Err(io::Error::other("the process that guards the command was killed"))
            }
        }
    }

    /// Asks all processes to end, and kills the rest after `grace`.
    pub(super) async fn stop(mut self, grace: Duration) {
        // If this fails the guard is gone; the report shows it.
        let _gone = self.wishes.write_all(&[END]).await;
        if timeout(grace, self.next()).await.is_err() {
            let _gone = self.wishes.write_all(&[KILL]).await;
            if timeout(KILLED_WITHIN, self.next()).await.is_err() {
                tracing::error!(guard = self.id, "the processes of a task could not be killed; its guard is");
            }
        }
        self.close().await;
    }

    /// Collects the guard, ends its leftovers, and reads the rest of the output.
    async fn close(&mut self) {
        if timeout(KILLED_WITHIN, self.guard.wait()).await.is_err() {
            let _gone = self.guard.kill().await;
        }
        self.guards.end_orphans(self.id).await;
        // Normally no process is left that could write.
        if timeout(KILLED_WITHIN, &mut self.output).await.is_err() {
            self.output.abort();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.guards.lock().remove(&self.id);
    }
}

impl Guards {
    /// Starts a guard under the lock, so that it is not taken for an orphan.
    fn spawn(&self, command: &mut Command) -> io::Result<(Child, i32)> {
        let mut running = self.lock();
        let guard = command.spawn()?;
        let id = guard.id().and_then(|id| i32::try_from(id).ok());
        let id = id.expect("a child that was not waited for has a process id, and Linux keeps those below 2^22");
        running.insert(id);
        Ok((guard, id))
    }

    /// Ends orphans of a killed guard, if this process adopts them.
    async fn end_orphans(&self, ended: i32) {
        self.lock().remove(&ended);
        if !adopts() {
            return;
        }
        let deadline = Instant::now() + KILLED_WITHIN;
        while self.orphans_are_left() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn orphans_are_left(&self) -> bool {
        let running = self.lock();
        let guards: Vec<i32> = running.iter().copied().collect();
        tree::end_orphans(Pid::this(), &guards)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<i32>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves no partial state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if orphans become children of this process. Its other children are then all guards.
fn adopts() -> bool {
    #[cfg(target_os = "linux")]
    let adopts = nix::sys::prctl::get_child_subreaper().unwrap_or(false);
    #[cfg(not(target_os = "linux"))]
    let adopts = false;
    adopts
}

/// The command may open its output by names such as `/dev/stdout`.
fn output_pipe(user: Option<Ids>) -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    let writer = OwnedFd::from(writer);
    if let Some(Ids { uid, gid }) = user {
        nix::unistd::fchown(&writer, Some(uid.into()), Some(gid.into()))?;
    }
    Ok((pipe::Receiver::from_owned_fd(reader.into())?, writer))
}

async fn copy(mut from: pipe::Receiver, log: Log) {
    let mut buffer = vec![0; PIPE_BYTES];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                let (log, chunk) = (log.clone(), buffer[..read].to_vec());
                let written = blocking(move || log.write(&chunk)).await;
                if let Err(error) = written {
                    // A line in the log will mention the gap.
                    tracing::warn!(%error, "the task's log could not be written; from here on only its end is kept");
                }
            }
        }
    }
}
