//! The signals that end a server or a command, and their exit codes.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// As in shells: the exit code is this plus the signal's number.
const STOPPED_BY: i32 = 128;
/// Time for running work to be dropped after the second signal.
const DROP_MAX: Duration = Duration::from_secs(1);

/// Requests by signals.
#[derive(Clone, Default)]
pub(super) struct StopRequests {
    /// Orderly end: the first SIGTERM, SIGINT or SIGHUP.
    pub(super) stop: CancellationToken,
    /// Start of a server's drain: `drain_delay` after the first signal, or the second SIGTERM or
    /// SIGINT if that is earlier.
    pub(super) drain: CancellationToken,
    /// Immediate end: the next SIGTERM or SIGINT. Running work is dropped, because dropping an
    /// embedded PostgreSQL asks it to stop.
    pub(super) stop_at_once: CancellationToken,
    last: Arc<AtomicI32>,
}

impl StopRequests {
    /// Exit code of a process stopped before it was done.
    pub(super) fn exit_code(&self) -> ExitCode {
        let last = STOPPED_BY + self.last.load(Ordering::Relaxed);
        ExitCode::from(u8::try_from(last).expect("signals have numbers up to 64"))
    }
}

/// Exits at the first SIGTERM or SIGINT, for commands without clean-up. A process that a signal
/// kills has no exit code.
pub(super) fn exit_at_once() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    // A background command of a script must outlive the Ctrl-C of its terminal.
    let mut interrupt = if is_ignored(Signal::SIGINT) { None } else { Some(signal(SignalKind::interrupt())?) };
    tokio::spawn(async move {
        let by = tokio::select! {
            _ = terminate.recv() => Signal::SIGTERM,
            () = received(&mut interrupt) => Signal::SIGINT,
        };
        std::process::exit(STOPPED_BY + by as i32);
    });
    Ok(())
}

/// Waits for a signal, or forever without one.
async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Turns signals into requests to end. Without `drain_delay`, `drain` follows `stop` at once, and
/// the second signal is an immediate end. SIGHUP never hurries the end: a closing terminal may send
/// several, even to a draining server.
pub(super) fn listen(drain_delay: Duration) -> io::Result<StopRequests> {
    let requests = StopRequests::default();
    let StopRequests { stop, drain, stop_at_once, last } = requests.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // A server started with nohup must outlive the terminal.
    let mut hang_up = if is_ignored(Signal::SIGHUP) { None } else { Some(signal(SignalKind::hangup())?) };
    tokio::spawn(async move {
        loop {
            let by = tokio::select! {
                _ = terminate.recv() => Signal::SIGTERM,
                _ = interrupt.recv() => Signal::SIGINT,
                () = received(&mut hang_up) => Signal::SIGHUP,
            };
            last.store(by as i32, Ordering::Relaxed);
            if !stop.is_cancelled() {
                stop.cancel();
                drain_after(drain_delay, drain.clone());
            } else if by != Signal::SIGHUP && drain.is_cancelled() {
                stop_at_once.cancel();
                // A thread may be blocked in a system call that does not return.
                tokio::time::sleep(DROP_MAX).await;
                std::process::exit(STOPPED_BY + by as i32);
            } else if by != Signal::SIGHUP {
                drain.cancel();
            }
        }
    });
    Ok(requests)
}

fn drain_after(delay: Duration, drain: CancellationToken) {
    // Without a task: the next signal may already be there.
    if delay.is_zero() {
        drain.cancel();
        return;
    }
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        drain.cancel();
    });
}

/// True if the process was started to ignore this signal. Always false outside Linux, where only
/// unsafe code could tell.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}
