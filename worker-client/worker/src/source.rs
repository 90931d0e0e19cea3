//! The source of a worker's work, paused while this machine is unhealthy.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::health::Health;
use tenure_client::consumer::source::{Found, Source};
use tenure_client::{Error, RunResult, SessionId, Worked};

/// A worker not refused within this time logs its start.
const STARTED_AFTER: Duration = Duration::from_secs(1);

/// Wraps the calls of a plane.
pub(super) struct Work<Calls> {
    settings: Arc<Settings>,
    health: Health,
    shutdown: CancellationToken,
    calls: Calls,
    /// None once the start is logged.
    say_started_at: Option<Instant>,
}

impl<Calls: Source> Work<Calls> {
    pub(super) fn new(settings: &Arc<Settings>, health: &Health, shutdown: &CancellationToken, calls: Calls) -> Self {
        Self {
            settings: Arc::clone(settings),
            health: health.clone(),
            shutdown: shutdown.clone(),
            calls,
            say_started_at: Some(Instant::now() + STARTED_AFTER),
        }
    }
}

impl<Calls: Source> Source for Work<Calls> {
    /// Logs the worker's start once the first search was not refused for a while.
    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        let mut search = pin!(self.calls.find(room));
        if let Some(at) = self.say_started_at {
            tokio::select! {
                biased;
                answer = &mut search => {
                    if answer.is_ok() {
                        self.say_started_at = None;
                        say_started(&self.settings);
                    }
                    return answer;
                }
                () = tokio::time::sleep_until(at) => {
                    self.say_started_at = None;
                    say_started(&self.settings);
                }
            }
        }
        search.await
    }

    fn join(&mut self, session: Option<SessionId>) {
        self.calls.join(session);
    }

    fn takes_results(&self) -> bool {
        self.calls.takes_results()
    }

    async fn exchange(&mut self, results: &[RunResult], room: usize) -> Result<Worked, Error> {
        self.calls.exchange(results, room).await
    }

    fn not_before(&mut self) -> Option<Instant> {
        let Settings { work_dir, disk_free_min, .. } = &*self.settings;
        self.health.wait_until(work_dir, *disk_free_min)
    }

    fn is_refused(&self, error: &Error) -> bool {
        self.calls.is_refused(error)
    }

    fn rest_until(&self, begun: Instant) -> Instant {
        self.calls.rest_until(begun)
    }

    /// Called for a refused worker too, so that a claim in progress is not awaited forever.
    fn stop(&mut self) {
        self.shutdown.cancel();
    }

    async fn close(&mut self) {
        self.calls.close().await;
    }
}

fn say_started(Settings { queue, name, capacity, plane, .. }: &Settings) {
    tracing::info!(queue.id = %queue, worker.group = %name.group, worker.id = %name.id, capacity, ?plane, "worker started");
}

/// True if the error is about the credentials.
pub(super) fn refuses(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 401 | 403, .. })
}
