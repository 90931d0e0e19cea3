//! Which signals ask a server or a command to end, and how it ends then.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a process that a signal stopped before it was done.
const INTERRUPTED: u8 = 130;
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
}

/// How a process ends that a signal stopped before it was done.
pub(super) fn interrupted() -> ExitCode {
    INTERRUPTED.into()
}

/// From now on signals do not end the process but ask it to end. A terminal that is closed may send SIGHUP several times, and also
/// to a server that is draining already: that is no request to hurry.
pub(super) fn listen() -> io::Result<Asked> {
    let asked = Asked::default();
    let Asked { stop, stop_at_once } = asked.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Who starts a server with nohup wants it to outlive the terminal.
    let mut hang_up = if is_ignored(Signal::SIGHUP) { None } else { Some(signal(SignalKind::hangup())?) };
    tokio::spawn(async move {
        loop {
            let hung_up = async {
                match &mut hang_up {
                    Some(hang_up) => hang_up.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hung_up => {
                    stop.cancel();
                    continue;
                }
            }
            if stop.is_cancelled() {
                stop_at_once.cancel();
                // A thread may be in a call of the system that does not return.
                tokio::time::sleep(DROP_MAX).await;
                std::process::exit(INTERRUPTED.into());
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
