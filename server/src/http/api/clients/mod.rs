//! Clients over the API.

pub mod client;
pub mod create_client;
pub mod delete_client;
pub mod list_clients;
pub mod reset_access_token;
pub mod switch_client;
pub mod update_client;

use tenure_api::auth::Client;
use tenure_api::credentials::AccessToken;

use crate::auth::role_of_client;
use crate::http::api::prelude::*;
use tenure_domain::roles::Resolver;
use tenure_domain::scopes::ScopeSet;
use tenure_engine::ops::clients as ops;
use tenure_store::clients::ClientInfo;

/// What is shown as the end of a client without one: the field must be there, and this is far enough. In milliseconds
/// since 1970, the beginning of the year 3000.
pub(super) const NEVER_MS: i64 = 32_503_680_000_000;

const NO_CLIENT: &str = "there is no such client";
const CHANGING: &str = "The caller needs every scope that the client gets and did not have.";

fn client_id(call: &Call) -> Result<&str, ApiError> {
    let id = call.text_param("clientId");
    ops::check_client_id(id).map_err(|error| ApiError::arguments(format!("the path parameter `clientId`: {error}")))?;
    Ok(id)
}

async fn answer(
    app: &Api,
    id: &str,
    client: Option<ClientInfo>,
    token: Option<&AccessToken>,
) -> Result<Response, ApiError> {
    let client = client.ok_or_else(|| ops::missing(id))?;
    let roles = app.intake.authenticator.roles().await?;
    ok(&shown(&client, &expanded(&roles, &client), token))
}

fn expanded(roles: &Resolver, client: &ClientInfo) -> ScopeSet {
    let own_scopes = || client.scopes.iter().cloned().chain([role_of_client(&client.client_id)]);
    // One that cannot be expanded cannot be used either; it is shown so that the operator can see why.
    roles.resolve(own_scopes()).unwrap_or_else(|_| ScopeSet::new(own_scopes()))
}

fn shown<'a>(client: &'a ClientInfo, expanded: &'a ScopeSet, token: Option<&'a AccessToken>) -> Client<'a> {
    Client {
        client_id: &client.client_id,
        description: &client.description,
        expires: client.expires.or_else(|| timestamp(NEVER_MS)).unwrap_or(client.created),
        created: client.created,
        last_modified: client.last_modified,
        last_date_used: client.last_date_used,
        last_rotated: client.last_rotated,
        delete_on_expiration: client.delete_on_expiration,
        scopes: &client.scopes,
        expanded_scopes: expanded.iter().collect(),
        disabled: client.disabled,
        access_token: token.map(AccessToken::expose),
    }
}

/// A time in milliseconds since 1970.
pub(super) fn timestamp(ms: i64) -> Option<Timestamp> {
    chrono::DateTime::from_timestamp_millis(ms).map(Timestamp::new)
}

/// The body that makes the client of the examples.
fn new_client(sample: &Sample) -> Value {
    json!({"description": "Submits tasks.", "expires": sample.after(90 * 24 * 60), "scopes": ["queue:create-task:*"]})
}

/// The client of the examples.
fn a_client(sample: &Sample) -> Value {
    let mut client = new_client(sample);
    client["clientId"] = "ci".into();
    for field in ["created", "lastModified", "lastDateUsed", "lastRotated"] {
        client[field] = sample.after(0);
    }
    client["deleteOnExpiration"] = false.into();
    client["disabled"] = false.into();
    client["expandedScopes"] = json!(["assume:client-id:ci", "queue:create-task:*"]);
    client
}

/// The same with its access token.
fn with_token(sample: &Sample) -> Value {
    let mut client = a_client(sample);
    client["accessToken"] = "three-dozen-characters-only-the-client-knows".into();
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_may_do_is_found_apart_from_the_event_loop() {
        let endpoints = [
            client::endpoint(),
            create_client::endpoint(),
            list_clients::endpoint(),
            reset_access_token::endpoint(),
            switch_client::enable_client(),
            switch_client::disable_client(),
            update_client::endpoint(),
        ];
        for endpoint in endpoints {
            assert!(endpoint.declaration.has_large_answer, "{}", endpoint.declaration.name);
        }
    }
}
