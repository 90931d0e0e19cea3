//! client.

use tenure_api::auth::Client;

use super::{NO_CLIENT, a_client, answer, client_id};
use crate::http::api::prelude::*;
use tenure_store::clients;

/// `GET /clients/:clientId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("client", client).scopes(Scope("auth:get-client:<clientId>")).large_answer().described(
        "auth",
        "Show a client",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<Client<'_>>("The client; its token is not shown", &a_client(sample))
        .refuses(ResourceNotFound, NO_CLIENT)
}

async fn client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = client_id(&call)?;
    call.no_query()?;
    answer(&app, id, clients::find(&app.engine.pool, id).await?, None).await
}
