//! Messages to a service manager such as systemd: the server is ready, is stopping, and is alive.
//! Without `$NOTIFY_SOCKET` nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

pub fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// `at_most` is the time until the process ends. It extends a shorter timeout of the manager.
pub fn notify_stopping(at_most: Duration) {
    let microseconds = u32::try_from(at_most.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(microseconds)]);
}

/// Notifies the watchdog, twice per timeout, until `stop`. As a task it shows that the event loop
/// runs. It does not depend on the database, which a restart would not bring back.
pub async fn notify_watchdog(stop: CancellationToken) {
    let Some(timeout) = sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero()) else { return };
    let mut half = tokio::time::interval(timeout / 2);
    while stop.run_until_cancelled(half.tick()).await.is_some() {
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(error = %error, "the service manager cannot be notified");
    }
}
