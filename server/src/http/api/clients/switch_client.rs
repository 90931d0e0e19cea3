//! enableClient, disableClient.

use tenure_api::auth::Client;

use super::{NO_CLIENT, a_client, answer, client_id};
use crate::http::api::prelude::*;
use tenure_store::clients;

/// `POST /clients/:clientId/enable`
pub fn enable_client() -> Endpoint {
    Endpoint::post("enableClient", |app, call| set_disabled(app, call, false))
        .scopes(Scope("auth:enable-client:<clientId>"))
        .large_answer()
        .described("auth", "Let a client in again", |operation, sample| described(operation, &a_client(sample)))
}

/// `POST /clients/:clientId/disable`
pub fn disable_client() -> Endpoint {
    Endpoint::post("disableClient", |app, call| set_disabled(app, call, true))
        .scopes(Scope("auth:disable-client:<clientId>"))
        .large_answer()
        .described("auth", "Refuse a client for now", |operation, sample| {
            let mut client = a_client(sample);
            client["disabled"] = true.into();
            described(operation, &client)
        })
}

fn described(operation: Operation, client: &Value) -> Operation {
    operation.answers::<Client<'_>>("The client", client).refuses(ResourceNotFound, NO_CLIENT)
}

async fn set_disabled(app: Api, call: Arc<Call>, disabled: bool) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = client_id(&call)?;
    call.no_query()?;
    let client = clients::set_disabled(&app.engine.pool, id, disabled).await?;
    app.intake.authenticator.client_changed(id);
    answer(&app, id, client, None).await
}
