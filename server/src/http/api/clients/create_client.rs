//! createClient.

use tenure_api::auth::{Client, ClientRequest};

use super::{CHANGING, answer, client_id, new_client, with_token};
use crate::http::api::prelude::*;
use tenure_domain::roles::added;
use tenure_engine::ops::clients as ops;
use tenure_store::clients::{self, NewClient};

/// `PUT /clients/:clientId`
pub fn endpoint() -> Endpoint {
    Endpoint::put("createClient", create_client)
        .scopes(AllOf(&[
            Scope("auth:create-client:<clientId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .large_answer()
        .described("auth", "Create a client", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(&format!(
            "{CHANGING} The answer is the only one with the token: store it. Sent again within 15 minutes, the same \
             request is answered with the same token."
        ))
        .takes::<ClientRequest>(&new_client(sample))
        .names(&[("clientId", "$response.body#/clientId")])
        .answers::<Client<'_>>("The client with its token", &with_token(sample))
        .refuses(RequestConflict, "there is a client of this name, with another definition or for longer")
}

async fn create_client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.no_query()?;
    let ClientRequest { expires, description, scopes, delete_on_expiration } = call.json()?;
    let scopes = scopes.unwrap_or_default();
    ops::check(&description, &scopes).map_err(ApiError::body)?;
    call.authorize(&Values::of_path().list("scopesThatAreNew", added(None, &scopes, &[])))?;
    let expires = Some(expires.time());
    let new = NewClient { client_id: id.to_owned(), scopes, description, expires, delete_on_expiration };
    let token = ops::create(&app.engine.pool, app.intake.authenticator.keys(), &new).await??;
    app.intake.authenticator.client_changed(id);
    answer(&app, id, clients::find(&app.engine.pool, id).await?, Some(&token)).await
}
