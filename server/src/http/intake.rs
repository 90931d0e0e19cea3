//! What every request passes: authentication, the clocks, and the limits of bodies, reads and heavy work.

use std::sync::Arc;

use super::budget::{Budget, Share};
use super::heavy::{Heavy, LARGE_MIN};
use super::read_slots::ReadSlots;
use crate::auth::{AuthError, AuthFailure, Authenticator, Now, Principal, RequestParts};
use tenure_engine::clock;
use tenure_engine::engine::Engine;

/// The part of the server that the requests of all areas share.
pub struct Intake {
    pub engine: Arc<Engine>,
    pub authenticator: Authenticator,
    /// The memory budget of bodies that are being read.
    pub bodies: Arc<Budget>,
    /// Limits the requests that use the connection pool at once.
    pub read_slots: ReadSlots,
    /// Does the work on large bodies.
    pub heavy: Heavy,
    /// True if the clock may be moved.
    pub manual_clock: bool,
}

impl Intake {
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
