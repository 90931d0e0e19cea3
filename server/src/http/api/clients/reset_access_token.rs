//! resetAccessToken.

use tenure_api::auth::Client;

use super::{NO_CLIENT, answer, client_id, with_token};
use crate::http::api::prelude::*;
use tenure_store::clients;
use tenure_store::secrets::new_access_token;

/// `POST /clients/:clientId/reset`
pub fn endpoint() -> Endpoint {
    Endpoint::post("resetAccessToken", reset_access_token)
        .scopes(Scope("auth:reset-access-token:<clientId>"))
        .large_answer()
        .described("auth", "Give a client a new token", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("The old one is refused from now on. The answer is the only one with the new one.")
        .answers::<Client<'_>>("The client with its new token", &with_token(sample))
        .refuses(ResourceNotFound, NO_CLIENT)
}

async fn reset_access_token(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = client_id(&call)?;
    call.no_query()?;
    let token = new_access_token();
    clients::reset_token(&app.engine.pool, app.intake.authenticator.keys(), id, &token).await?;
    app.intake.authenticator.client_changed(id);
    answer(&app, id, clients::find(&app.engine.pool, id).await?, Some(&token)).await
}
