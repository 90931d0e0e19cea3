//! Whether the caller of a stream still has access; checked for as long as the stream lasts.

use std::time::Duration;

use tenure_api::errors::ErrorCode;
use tokio::time::sleep;

use super::app::App;
use super::call::Call;
use super::scopes::Values;

/// How often it is checked.
pub const REAUTHORIZE_EVERY: Duration = Duration::from_secs(3);

/// Waits until the client has no access any more to what only the path decides about.
pub async fn access_ended(app: &App, call: &Call) {
    loop {
        sleep(REAUTHORIZE_EVERY).await;
        if let Err(error) = call.authorize_again(app, &Values::of_path()).await
            && matches!(error.code(), ErrorCode::AuthenticationFailed | ErrorCode::InsufficientScopes)
        {
            return;
        }
        // The signature was good when it came. Temporary credentials expire nevertheless.
        if let Some(end_ms) = call.credentials_end_ms()
            && app.now().await.is_ok_and(|now| end_ms <= now.real_ms.min(now.server_ms))
        {
            return;
        }
    }
}
