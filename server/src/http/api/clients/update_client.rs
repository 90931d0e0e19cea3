//! updateClient.

use tenure_api::auth::{Client, ClientRequest};

use super::{CHANGING, NO_CLIENT, a_client, answer, client_id, new_client};
use crate::http::api::prelude::*;
use tenure_domain::roles::added;
use tenure_engine::ops::{OpError, clients as ops};
use tenure_store::clients::{self, ClientChange};

/// `POST /clients/:clientId`
pub fn endpoint() -> Endpoint {
    Endpoint::post("updateClient", update_client)
        .scopes(AllOf(&[
            Scope("auth:update-client:<clientId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .early_check(may_update)
        .large_answer()
        .described("auth", "Change a client", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(&format!("{CHANGING} Without `scopes` they stay as they are. The token stays in any case."))
        .takes::<ClientRequest>(&new_client(sample))
        .answers::<Client<'_>>("The client", &a_client(sample))
        .refuses(ResourceNotFound, NO_CLIENT)
        .refuses(RequestConflict, "another request changed the client at the same time")
}

async fn update_client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.no_query()?;
    let ClientRequest { expires, description, scopes, delete_on_expiration } = call.json()?;
    ops::check(&description, scopes.as_deref().unwrap_or_default()).map_err(ApiError::body)?;
    authorize(&call, Vec::new())?;
    let existing = clients::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    let more = scopes.as_deref().map(|scopes| added(None, scopes, &existing.scopes)).unwrap_or_default();
    authorize(&call, more)?;
    let change = ClientChange {
        scopes,
        description: Some(description),
        expires: Some(Some(expires.time())),
        delete_on_expiration: Some(delete_on_expiration),
    };
    // What was authorized is what is added to the scopes that were seen.
    let changed = clients::update(&app.engine.pool, id, Some(&existing.scopes), &change).await?;
    app.intake.authenticator.client_changed(id);
    if changed.is_none() {
        let message = format!("the client {id:?} was changed at the same time; look at it and try again");
        return Err(OpError::Conflict(message).into());
    }
    answer(&app, id, changed, None).await
}

/// What updateClient requires, whatever it changes.
fn may_update(call: &Call) -> Result<(), ApiError> {
    client_id(call)?;
    call.no_query()?;
    authorize(call, Vec::new())
}

fn authorize(call: &Call, scopes_that_are_new: Vec<String>) -> Result<(), ApiError> {
    call.authorize(&Values::of_path().list("scopesThatAreNew", scopes_that_are_new))
}
