//! What every handler works with.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{AuthError, AuthFailure, Authenticator, Now, Principal, RequestParts};
use crate::http::api::metrics::Metrics;
use crate::http::blobs::Downloads;
use crate::http::budget::{Budget, Share};
use crate::http::docs::References;
use crate::http::files::Files;
use crate::http::heavy::{Heavy, LARGE_MIN};
use crate::http::page::Pages;
use crate::http::poll::PollUrls;
use crate::http::read_slots::ReadSlots;
use tenure_engine::background::registry::Passes;
use tenure_engine::clock;
use tenure_engine::engine::Engine;
use tenure_store::secrets::WorkerDigests;

/// Shared by all requests; a clone is one reference count.
pub type App = Arc<AppState>;

/// What all requests share: the engine and the parts of the server around it.
pub struct AppState {
    /// Creates, claims and resolves tasks.
    pub engine: Arc<Engine>,
    /// The passes of the engine, with their gauges.
    pub passes: Arc<Passes>,
    /// Authenticates callers.
    pub authenticator: Authenticator,
    /// The poll API's URLs.
    pub poll_urls: PollUrls,
    /// Runs streams; the drain waits for it.
    pub tasks: TaskTracker,
    /// State of the operator's page.
    pub pages: Pages,
    /// References and schemas, made at the first request for one of them.
    pub references: OnceLock<References>,
    /// Documents that are the same for all.
    pub files: Files,
    /// The memory budget of bodies that are being read.
    pub bodies: Arc<Budget>,
    /// The downloads of artifacts that are open.
    pub downloads: Downloads,
    /// Limits the requests that use the connection pool at once.
    pub read_slots: ReadSlots,
    /// Does the work on large bodies.
    pub heavy: Heavy,
    /// How the secrets of workers are stored.
    pub worker_digests: WorkerDigests,
    /// Where clients find the server, without a slash at its end.
    pub root_url: String,
    /// Cancelled when the server drains: requests that wait are answered empty, streams end.
    pub drain: CancellationToken,
    /// Whether the clock may be moved.
    pub manual_clock: bool,
    /// Long poll of claimWork.
    pub claim_work_wait: Duration,
    /// When the server started.
    pub started: Instant,
    /// What `/metrics` prints.
    pub metrics: Metrics,
}

impl AppState {
    /// Who sent this request. Where roles give much to them, what that comes to is worked out apart, and in its turn.
    pub async fn authenticate(&self, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthError> {
        let found = self.authenticator.authenticate_within(request, now, LARGE_MIN).await;
        let Err(AuthError::Failure(AuthFailure::TooLarge(_))) = found else { return found };
        // In a box, so that it makes no request larger that does not need it.
        let whole = Box::pin(self.authenticator.authenticate(request, now));
        self.heavy.answer(Share::Authenticated, LARGE_MIN, whole).await
    }

    /// The two clocks. The database is queried only where they can differ.
    pub async fn now(&self) -> Result<Now, sqlx::Error> {
        let real_ms = clock::real_now().timestamp_millis();
        if !self.manual_clock {
            // What the database dated is compared with its clock, also where this machine's is wrong.
            return Ok(Now { real_ms, server_ms: real_ms + self.engine.skew.millis() });
        }
        // In a box, so that it makes no request larger that does not need it.
        let asking = Box::pin(async {
            let mut conn = self.engine.background_pool.acquire().await?;
            tenure_store::clock::get_now(&mut conn).await
        });
        Ok(Now { real_ms, server_ms: asking.await?.timestamp_millis() })
    }
}
