//! An init for containers: as PID 1, `tenure serve` starts the server as its child, passes signals
//! on to it, reaps orphans, and exits with the server's exit code.
//!
//! The kernel makes PID 1 the parent of all orphans, and only a parent can reap a zombie. An
//! embedded PostgreSQL that is killed leaves one for each session. The server itself cannot reap
//! all children: it would take the exit statuses of programs that it waits for.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

const PASSED_ON: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];
/// Added to the number of the signal that ended the server, as in shells.
const SIGNALLED: i32 = 128;

pub(super) fn is_needed() -> bool {
    getpid() == Pid::from_raw(1)
}

/// Signals that [`run`] waits for. It blocks them first, so that none is lost.
fn awaited() -> SigSet {
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Unblocks the signals that PID 1 has blocked, which its child inherits.
pub(super) fn unblock_signals() -> io::Result<()> {
    awaited().thread_unblock().map_err(io::Error::from)
}

/// Runs this program with these arguments as a child, to its end. Call it before any thread starts.
pub(super) fn run(args: &[OsString]) -> io::Result<ExitCode> {
    let signals = awaited();
    signals.thread_block()?;
    // A terminal sends Ctrl-C to the whole process group. In the same group the server would
    // receive two signals, and the second one cuts the drain short.
    let child = Command::new(std::env::current_exe()?).args(args).process_group(0).spawn()?;
    let server = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(code) = reap(server)? {
                    return Ok(code);
                }
            }
            signal => match kill(server, signal) {
                // The server has just ended; SIGCHLD follows.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
}

/// Reaps ended children. Returns the exit code if the server is one.
fn reap(server: Pid) -> io::Result<Option<ExitCode>> {
    let mut ended = None;
    loop {
        let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, code),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, SIGNALLED + signal as i32),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(ended),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if pid == server {
            ended = Some(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
        }
    }
}
