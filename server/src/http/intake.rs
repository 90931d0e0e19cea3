//! What all requests share: authentication, clocks and limits.

use std::sync::Arc;

use super::budget::{Budget, Share};
use super::heavy::{Heavy, LARGE_MIN};
use super::read_slots::ReadSlots;
use crate::auth::{AuthError, AuthFailure, Authenticator, Now, Principal, RequestParts};
use tenure_engine::clock;
use tenure_engine::engine::Engine;

pub struct Intake {
    pub engine: Arc<Engine>,
    pub authenticator: Authenticator,
    pub bodies: Arc<Budget>,
    pub read_slots: ReadSlots,
    pub heavy: Heavy,
    /// True if the clock can be moved by hand.
    pub manual_clock: bool,
}

impl Intake {
    /// Large role expansions run off the event loop, with a permit.
    pub async fn authenticate(&self, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthError> {
        let found = self.authenticator.authenticate_within(request, now, LARGE_MIN).await;
        let Err(AuthError::Failure(AuthFailure::TooLarge(_))) = found else { return found };
        // Boxed, because every request's future has the size of its largest branch.
        let whole = Box::pin(self.authenticator.authenticate(request, now));
        self.heavy.answer(Share::Authenticated, LARGE_MIN, whole).await
    }

    /// Returns both clocks. Queries the database only if the server's clock is manual.
    pub async fn now(&self) -> Result<Now, sqlx::Error> {
        let real_ms = clock::real_now().timestamp_millis();
        if !self.manual_clock {
            // Uses the database's clock, which dates rows, even if this machine's clock is wrong.
            return Ok(Now { real_ms, server_ms: real_ms + self.engine.skew.millis() });
        }
        // Boxed, because every request's future has the size of its largest branch.
        let asking = Box::pin(async {
            let mut conn = self.engine.background_pool.acquire().await?;
            tenure_store::clock::get_now(&mut conn).await
        });
        Ok(Now { real_ms, server_ms: asking.await?.timestamp_millis() })
    }
}
