//! deleteClient.

use super::client_id;
use crate::http::api::prelude::*;
use tenure_store::clients;

/// `DELETE /clients/:clientId`: whether there is one or not.
pub fn endpoint() -> Endpoint {
    Endpoint::delete("deleteClient", delete_client).scopes(Scope("auth:delete-client:<clientId>")).described(
        "auth",
        "Delete a client",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation.about("Whether there is one or not.").answers_empty(204, "There is no such client any more", &[])
}

async fn delete_client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = client_id(&call)?;
    call.no_query()?;
    clients::delete(&app.engine.pool, id).await?;
    app.intake.authenticator.client_changed(id);
    Ok(nothing())
}
