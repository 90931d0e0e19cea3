//! The guard process around each command.
//!
//! The worker starts its own program as a *guard*, with an empty environment, and sends it a
//! [`Spec`] over a socket. The guard starts the command. As a child subreaper it adopts the
//! command's orphans, so a detached process stays below its guard. The guard kills everything below
//! it when the command has ended, when the worker requests it, or when the worker is gone: the
//! socket then closes, even after SIGKILL.
//!
//! To start the command, the program runs again as the command's user, requests a death signal in
//! case the guard is killed, and executes the command. Both steps are separate programs because
//! code between fork and exec would have to be `unsafe`. Other systems than Linux have neither
//! subreaper nor death signal: there the guard kills the command's process group.

pub(super) mod cgroup;
pub(super) mod tree;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use serde::{Deserialize, Serialize};

pub(super) const GUARD: &str = "guard";
/// Subcommand that executes the command.
#[cfg(target_os = "linux")]
const BECOME: &str = "become";
/// Ends all processes below a guard.
pub(super) const END: u8 = b't';
/// Kills all processes below a guard.
pub(super) const KILL: u8 = b'k';

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    pub dir: OsString,
    /// By default the worker's.
    pub user: Option<Ids>,
    pub cgroup: Option<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// A message of the guard, one per line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum GuardReport {
    /// The command's process number.
    Started(i32),
    /// The error number.
    NotStarted(i32),
    /// The wait status, once all processes have ended. None if unknown.
    Ended(Option<i32>),
}

#[derive(Default)]
struct Wishes {
    end: AtomicBool,
    kill: AtomicBool,
}

/// Runs one command for the worker at the other end of standard input. Ends with all the command's
/// processes.
pub fn guard() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is the task's log.
            tree::complain(&format!("the command could not be guarded: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    close_inherited();
    protect();
    let mut to = UnixStream::from(take_stdin()?);
    let mut from = BufReader::new(to.try_clone()?);
    let mut line = Vec::new();
    if from.read_until(b'\n', &mut line)? == 0 {
        return Ok(());
    }
    let spec: Spec = serde_json::from_slice(&line)?;
    if let Some(cgroup) = &spec.cgroup {
        // Without it the processes are still found by their parents.
        let _not_entered = cgroup::enter(cgroup.as_ref());
    }
    let command = match start(&spec) {
        Ok(command) => command,
        Err(error) => return send(&mut to, &GuardReport::NotStarted(error.raw_os_error().unwrap_or(nix::libc::EIO))),
    };
    let wishes = Arc::new(Wishes::default());
    // `obey` notices that the worker is gone.
    let _worker_gone = send(&mut to, &GuardReport::Started(command.as_raw()));
    let of_worker = Arc::clone(&wishes);
    std::thread::spawn(move || obey(from, command, &of_worker));
    let status = reap(command, &wishes);
    let _worker_gone = send(&mut to, &GuardReport::Ended(status));
    Ok(())
}

/// Closes inherited files of the worker, which tasks must not see.
fn close_inherited() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The directory being read is closed already.
        let _closed = nix::unistd::close(number);
    }
}

/// Prevents inspection, and makes this process the parent of orphans below it.
fn protect() {
    // Signals of a terminal are for the worker, as is the hangup for stopped processes when it is
    // gone. Can fail only for a process group leader, which this is not.
    let _refused = nix::unistd::setsid();
    #[cfg(target_os = "linux")]
    {
        use nix::sys::prctl;
        // Otherwise a command that kills all workers by name would kill its guard. All of this is
        // best effort: without it a guard still kills the processes it can see.
        let _refused = std::fs::write("/proc/self/comm", "tenure-guard");
        let _refused = prctl::set_dumpable(false);
        let _refused = prctl::set_child_subreaper(true);
    }
}

/// Replaces standard input, so that commands do not inherit it.
fn take_stdin() -> io::Result<OwnedFd> {
    let given = io::stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(given)
}

fn send(to: &mut UnixStream, report: &GuardReport) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Starts the command in its own process group, with this process's standard output and error.
fn start(spec: &Spec) -> io::Result<Pid> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut command = becoming(spec);
    command.env_clear().envs(spec.env.iter().map(|(name, value)| (name, value))).current_dir(&spec.dir);
    if let Some(Ids { uid, gid }) = spec.user {
        // The standard library drops the supplementary groups too.
        command.uid(uid).gid(gid);
    }
    let child = command.process_group(0).stdin(OwnedFd::from(theirs)).spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    // `command` has the other end of the socket.
    drop(command);
    let mut message = String::new();
    // The socket closes when the process executes the command.
    ours.read_to_string(&mut message)?;
    match message.parse() {
        Ok(error) => {
            let _ended = waitpid(pid, None);
            Err(io::Error::from_raw_os_error(error))
        }
        Err(_said_nothing) => Ok(pid),
    }
}

#[cfg(target_os = "linux")]
fn becoming(spec: &Spec) -> Command {
    // The running program, even if its file was replaced or is not accessible to the task's user.
    let mut command = Command::new("/proc/self/exe");
    command.arg(BECOME).arg(getpid().to_string()).arg("--").args(&spec.argv);
    command
}

#[cfg(not(target_os = "linux"))]
fn becoming(spec: &Spec) -> Command {
    let mut command = Command::new(&spec.argv[0]);
    command.args(&spec.argv[1..]);
    command
}

/// The command dies with its guard. Returns only on failure.
pub fn become_command(guard: i32, argv: &[OsString]) -> ExitCode {
    let error = match take_stdin() {
        Ok(report) => {
            let error = replace(guard, argv);
            let number = error.raw_os_error().unwrap_or(nix::libc::EIO);
            let _guard_gone = write!(UnixStream::from(report), "{number}");
            error
        }
        Err(error) => error,
    };
    tree::complain(&format!("the command could not be started: {error}"));
    ExitCode::FAILURE
}

fn replace(guard: i32, argv: &[OsString]) -> io::Error {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL) {
        return error.into();
    }
    // Otherwise a guard that ended before the request would go unnoticed.
    if nix::unistd::getppid().as_raw() != guard {
        return Errno::ESRCH.into();
    }
    match argv {
        [program, arguments @ ..] => Command::new(program).args(arguments).exec(),
        [] => Errno::EINVAL.into(),
    }
}

/// Executes the worker's requests until it is gone, then kills everything.
fn obey(mut from: BufReader<UnixStream>, command: Pid, wishes: &Wishes) {
    let mut wish = [0];
    while let Ok(()) = from.read_exact(&mut wish) {
        if wish[0] == END {
            wishes.end.store(true, Ordering::SeqCst);
            tree::signal_below(getpid(), command, Signal::SIGTERM);
        } else {
            break;
        }
    }
    wishes.kill.store(true, Ordering::SeqCst);
    tree::signal_below(getpid(), command, Signal::SIGKILL);
}

/// Waits until no process is left below this one. Returns the command's status.
fn reap(command: Pid, wishes: &Wishes) -> Option<i32> {
    let mut status = None;
    let mut ended = false;
    loop {
        // A killed process leaves its children here before it can be reaped, so none is missed.
        if wishes.kill.load(Ordering::SeqCst) || ended && !wishes.end.load(Ordering::SeqCst) {
            tree::signal_below(getpid(), command, Signal::SIGKILL);
        }
        match waitpid(None::<Pid>, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => status = Some(code << 8),
            Ok(WaitStatus::Signaled(pid, signal, core)) if pid == command => {
                status = Some(signal as i32 | if core { 0x80 } else { 0 });
            }
            // EINVAL: a real-time signal, which has no name, ended a process.
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(_nothing_is_left) => return status,
        }
        ended = ended || status.is_some() || !tree::runs(command);
    }
}
