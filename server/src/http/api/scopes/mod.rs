//! What scopes and credentials amount to: for callers themselves, for other services, and for tests of clients.

pub mod authenticate_hawk;
pub mod current_scopes;
pub mod expand_scopes;
pub mod test_authenticate;

use std::sync::Arc;

use axum::response::Response;

use super::pages::size_of_scopes;
use crate::heavy::Heavy;
use crate::http::error::ApiError;
use tenure_domain::scopes::ScopeSet;

/// An answer with these scopes, which is written apart from the event loop if they are many: roles may give them to a request
/// that is small itself.
async fn listing(
    heavy: &Heavy,
    scopes: Arc<ScopeSet>,
    write: impl FnOnce(&ScopeSet) -> Result<Response, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    heavy.run(size_of_scopes(scopes.iter()), move || write(&scopes)).await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::heavy::LARGE_MIN;
    use crate::http::api::ok;

    #[tokio::test]
    async fn many_scopes_are_written_apart_from_the_event_loop() {
        let heavy = Heavy::with_turns(1);
        // Its only turn is taken.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut other = pin!(heavy.run(LARGE_MIN, move || released.recv().is_err()));
        assert!(futures_util::poll!(other.as_mut()).is_pending());
        let list = |count: usize| {
            let scopes = ScopeSet::new((0..count).map(|number| format!("scope:{number}")));
            listing(&heavy, Arc::new(scopes), |scopes| ok(&scopes.iter().collect::<Vec<_>>()))
        };
        let (mut many, mut few) = (pin!(list(LARGE_MIN / size_of::<String>())), pin!(list(10)));
        assert!(futures_util::poll!(many.as_mut()).is_pending());
        assert!(futures_util::poll!(few.as_mut()).is_ready());
        drop(release);
        other.await;
        assert!(many.await.is_ok());
    }
}
