//! Which signals ask a server or a command to end, and how it ends then.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a process that a signal stopped is this plus the number of the signal, as in shells.
const STOPPED_BY: i32 = 128;
/// How long what is running may take to be dropped after the second signal, before the process ends without that.
const DROP_MAX: Duration = Duration::from_secs(1);

/// What the signals of this process have asked for.
#[derive(Clone, Default)]
pub(super) struct Asked {
    /// To end in order: the first SIGTERM, SIGINT or SIGHUP.
    pub(super) stop: CancellationToken,
    /// To end at once: the second SIGTERM or SIGINT. What runs then is dropped, because an embedded PostgreSQL that is dropped is
    /// asked to stop.
    pub(super) stop_at_once: CancellationToken,
    /// The number of the last signal.
    last: Arc<AtomicI32>,
}

impl Asked {
    /// How the process ends if it was stopped before it was done.
    pub(super) fn exit_code(&self) -> ExitCode {
        let last = STOPPED_BY + self.last.load(Ordering::Relaxed);
        ExitCode::from(u8::try_from(last).expect("signals have numbers up to 64"))
    }
}

/// Exits the process at the first SIGTERM or SIGINT, for commands that have nothing to clean up. A process that a signal
/// kills has no exit code.
pub(super) fn exit_at_once() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    // A command in the background of a script is to outlive the Ctrl-C of its terminal.
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

/// Waits for a signal, for ever if it is none to wait for.
async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// From now on signals do not end the process but ask it to end. A terminal that is closed may send SIGHUP several times, and also
/// to a server that is draining already: that is no request to hurry.
pub(super) fn listen() -> io::Result<Asked> {
    let asked = Asked::default();
    let Asked { stop, stop_at_once, last } = asked.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Who starts a server with nohup wants it to outlive the terminal.
    let mut hang_up = if is_ignored(Signal::SIGHUP) { None } else { Some(signal(SignalKind::hangup())?) };
    tokio::spawn(async move {
        loop {
            let by = tokio::select! {
                _ = terminate.recv() => Signal::SIGTERM,
                _ = interrupt.recv() => Signal::SIGINT,
                () = received(&mut hang_up) => Signal::SIGHUP,
            };
            last.store(by as i32, Ordering::Relaxed);
            if stop.is_cancelled() && by != Signal::SIGHUP {
                stop_at_once.cancel();
                // A thread may be in a call of the system that does not return.
                tokio::time::sleep(DROP_MAX).await;
                std::process::exit(STOPPED_BY + by as i32);
            }
            stop.cancel();
        }
    });
    Ok(asked)
}

/// Whether the process was started to ignore this signal. Only Linux shows it without unsafe code; elsewhere the answer
/// is no.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}
