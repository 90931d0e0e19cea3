//! Which signals stop a server.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of a process that a second signal stopped.
const STOPPED_AT_ONCE: i32 = 130;

/// From now on SIGTERM, SIGINT and SIGHUP drain the server, and a second SIGTERM or SIGINT stops it at once. A terminal
/// that is closed may send SIGHUP several times, and also to a server that is draining already: that is no request to
/// hurry.
pub(super) fn drain_on_signals(drain: CancellationToken) -> io::Result<()> {
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
                    drain.cancel();
                    continue;
                }
            }
            if drain.is_cancelled() {
                std::process::exit(STOPPED_AT_ONCE);
            }
            drain.cancel();
        }
    });
    Ok(())
}

/// Whether the process was started to ignore this signal. Only Linux shows it without unsafe code; elsewhere the answer
/// is no.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}
