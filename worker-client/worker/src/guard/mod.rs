//! The process around each command, and how the command comes to be.
//!
//! The worker starts its own program anew as a *guard*, with an empty environment, and sends it a [`Spec`] over a
//! socket. The guard starts the command and is the parent of whatever the command leaves, because it is a child
//! subreaper: a process that detaches itself stays below its guard. When the command has ended, when the worker says
//! so, and when the worker is gone (the socket ends, even after SIGKILL), the guard kills all that is below it.
//!
//! The program is started a second time as the command's user, asks for a death signal in case the guard is killed, and
//! becomes the command. Both steps are programs of their own because what runs between fork and exec would be unsafe
//! code. Without Linux there is neither a subreaper nor a death signal: the guard kills the command's process group.

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

/// The subcommand that is a guard.
pub(super) const GUARD: &str = "guard";
/// The subcommand that becomes the command.
#[cfg(target_os = "linux")]
const BECOME: &str = "become";
/// Asks a guard to end all that is below it.
pub(super) const END: u8 = b't';
/// Asks a guard to kill all that is below it.
pub(super) const KILL: u8 = b'k';

/// What a guard is to run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    pub dir: OsString,
    /// Whom to run it as, if not as the worker.
    pub user: Option<Ids>,
    /// Where to put it, if the machine has cgroups.
    pub cgroup: Option<OsString>,
}

/// The numbers of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// What a guard reports, one line each.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum GuardReport {
    /// The command runs as this process.
    Started(i32),
    /// It could not be started, with this error number.
    NotStarted(i32),
    /// It has ended with this wait status, and so has all that it left. None if the status is not known.
    Ended(Option<i32>),
}

/// What the worker has requested.
#[derive(Default)]
struct Wishes {
    /// What is below gets its time to end.
    end: AtomicBool,
    kill: AtomicBool,
}

/// Runs one command for the worker at the other end of standard input, and ends with everything that it left.
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
        // The worker is gone already.
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
    // A worker that is gone is noticed below, where it matters.
    let _worker_gone = send(&mut to, &GuardReport::Started(command.as_raw()));
    let of_worker = Arc::clone(&wishes);
    std::thread::spawn(move || obey(from, command, &of_worker));
    let status = reap(command, &wishes);
    let _worker_gone = send(&mut to, &GuardReport::Ended(status));
    Ok(())
}

/// Closes what the worker has inherited from where it was started: it is none of the task's business.
fn close_inherited() {
    // Without /proc they cannot be found.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The directory that was read is among them, and closed already.
        let _closed = nix::unistd::close(number);
    }
}

/// Makes this process hard to look into, and the parent of all orphans below it.
fn protect() {
    // Signals from a terminal are for the worker, and so is the hangup that stopped processes get when it is gone. It
    // could only fail for the leader of a process group, which this is not.
    let _refused = nix::unistd::setsid();
    #[cfg(target_os = "linux")]
    {
        use nix::sys::prctl;
        // A command that kills all workers by name would otherwise kill what clears up after them. All of this is best done
        // and can be missed: without it a guard still kills what it can see.
        let _refused = std::fs::write("/proc/self/comm", "tenure-guard");
        let _refused = prctl::set_dumpable(false);
        let _refused = prctl::set_child_subreaper(true);
    }
}

/// Takes what standard input is and puts nothing in its place; commands do not inherit it.
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

/// Starts the command in a process group of its own, with this process's standard output and error.
fn start(spec: &Spec) -> io::Result<Pid> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut command = becoming(spec);
    command.env_clear().envs(spec.env.iter().map(|(name, value)| (name, value))).current_dir(&spec.dir);
    if let Some(Ids { uid, gid }) = spec.user {
        // The standard library drops the supplementary groups with them.
        command.uid(uid).gid(gid);
    }
    let child = command.process_group(0).stdin(OwnedFd::from(theirs)).spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    // It has the other end of the socket.
    drop(command);
    let mut message = String::new();
    // The socket ends when the process becomes the command.
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
    // The program itself, even if its file was replaced or is where the task's user may not look.
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

/// Becomes the command, which dies when its guard does. Returns only if it cannot.
pub fn become_command(guard: i32, argv: &[OsString]) -> ExitCode {
    let error = match take_stdin() {
        Ok(report) => {
            let error = replace(guard, argv);
            let number = error.raw_os_error().unwrap_or(nix::libc::EIO);
            // A guard that is gone needs no answer.
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
    // Had the guard ended before that, nothing would show it.
    if nix::unistd::getppid().as_raw() != guard {
        return Errno::ESRCH.into();
    }
    match argv {
        [program, arguments @ ..] => Command::new(program).args(arguments).exec(),
        [] => Errno::EINVAL.into(),
    }
}

/// Does what the worker requests, until it is gone: then nothing may go on without it.
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

/// Waits until nothing is below this process any more; the answer is the command's status.
fn reap(command: Pid, wishes: &Wishes) -> Option<i32> {
    let mut status = None;
    let mut ended = false;
    loop {
        // A process that is killed leaves its children here before it can be waited for, so that none is missed.
        if wishes.kill.load(Ordering::SeqCst) || ended && !wishes.end.load(Ordering::SeqCst) {
            tree::signal_below(getpid(), command, Signal::SIGKILL);
        }
        match waitpid(None::<Pid>, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => status = Some(code << 8),
            Ok(WaitStatus::Signaled(pid, signal, core)) if pid == command => {
                status = Some(signal as i32 | if core { 0x80 } else { 0 });
            }
            // Also EINVAL: some process was ended by a real-time signal, whose name is not known.
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(_nothing_is_left) => return status,
        }
        ended = ended || status.is_some() || !tree::runs(command);
    }
}
