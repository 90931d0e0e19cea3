//! The server as PID 1 of a container: a small process that starts the server proper as its child, passes signals on to it, and
//! ends with its exit code.
//!
//! The kernel makes PID 1 the parent of every process that loses its own, and only a parent can remove a process that has ended: an
//! embedded PostgreSQL that is killed leaves one for each session. The server proper waits for the programs that it started, by
//! their ids. If it also waited for any child there is, it would take their exit statuses from itself; a process that has only one
//! child cannot.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// Signals that are for the server.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];
/// What shells add to the number of a signal that ended a process.
const SIGNALLED: i32 = 128;

/// True if this process is the first of a PID namespace.
pub(super) fn is_needed() -> bool {
    getpid() == Pid::from_raw(1)
}

/// The signals that [`run`] waits for, and blocks so that none is lost before it waits.
fn awaited() -> SigSet {
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Lets the signals through again that PID 1 has blocked: a child inherits that.
pub(super) fn unblock_signals() -> io::Result<()> {
    awaited().thread_unblock().map_err(io::Error::from)
}

/// Runs this program again with these arguments, without its name, until that ends. Call it before other threads are started.
pub(super) fn run(args: &[OsString]) -> io::Result<ExitCode> {
    let signals = awaited();
    signals.thread_block()?;
    // In a process group of its own: a terminal sends Ctrl-C to all of a group, and a second one would cut the drain short.
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
                // It has just ended, and a SIGCHLD says so.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
}

/// Removes all children that have ended. Returns the exit code once the server is one of them.
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
