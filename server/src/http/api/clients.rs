//! Clients over the API.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::auth::{Client, ClientRequest};
use tenure_api::credentials::AccessToken;
use tenure_api::dates::Timestamp;

use super::pages::{PAGE_MAX, Page};
use super::{nothing, ok};
use crate::auth::role_of_client;
use crate::domain::roles::{Resolver, added};
use crate::domain::scopes::{Expression, ScopeSet};
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::OpError;
use crate::ops::clients as ops;
use crate::secrets::new_access_token;
use crate::store::clients::{self, ClientChange, ClientInfo, NewClient};

/// What is shown as the end of a client without one: the field must be there, and this is far enough. In milliseconds
/// since 1970, the beginning of the year 3000.
pub(super) const NEVER_MS: i64 = 32_503_680_000_000;

/// `GET /clients/`
pub async fn list_clients(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        clients: Vec<Client<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuation_token: Option<String>,
    }
    call.authorize(&Expression::from("auth:list-clients"))?;
    let query = call.query(&["prefix", "continuationToken", "limit"])?;
    let page = Page::read(&query)?;
    let prefix = query.iter().find(|(name, _)| name == "prefix").map_or("", |(_, value)| value.as_str());
    if !prefix.is_empty() {
        let wrong = |error| ApiError::arguments(format!("the query parameter `prefix`: {error}"));
        ops::check_client_id(prefix).map_err(wrong)?;
    }
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut rows = clients::list(&app.engine.pool, prefix, page.after.as_deref(), Some(Page::rows(limit))).await?;
    let continuation_token = Page::cut(limit, &mut rows, |client| &client.client_id);
    let roles = app.authenticator.roles().await?;
    let expanded: Vec<ScopeSet> = rows.iter().map(|client| expanded(&roles, client)).collect();
    let clients = rows.iter().zip(&expanded).map(|(client, expanded)| shown(client, expanded, None)).collect();
    ok(&Body { clients, continuation_token })
}

/// `GET /clients/:clientId`
pub async fn client(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.authorize(&Expression::from(format!("auth:get-client:{id}")))?;
    call.no_query()?;
    answer(&app, id, clients::find(&app.engine.pool, id).await?, None).await
}

/// `PUT /clients/:clientId`
pub async fn create_client(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.no_query()?;
    let ClientRequest { expires, description, scopes, delete_on_expiration } = call.json()?;
    let scopes = scopes.unwrap_or_default();
    ops::check(&description, &scopes).map_err(ApiError::body)?;
    call.authorize(&needed(format!("auth:create-client:{id}"), added(None, &scopes, &[])))?;
    let expires = Some(expires.time());
    let new = NewClient { client_id: id.to_owned(), scopes, description, expires, delete_on_expiration };
    let token = ops::create(&app.engine.pool, app.authenticator.keys(), &new).await??;
    app.authenticator.client_changed(id);
    answer(&app, id, clients::find(&app.engine.pool, id).await?, Some(&token)).await
}

/// `POST /clients/:clientId`
pub async fn update_client(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.no_query()?;
    let ClientRequest { expires, description, scopes, delete_on_expiration } = call.json()?;
    ops::check(&description, scopes.as_deref().unwrap_or_default()).map_err(ApiError::body)?;
    let scope = format!("auth:update-client:{id}");
    call.authorize(&Expression::from(scope.as_str()))?;
    let existing = clients::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    let more = scopes.as_deref().map(|scopes| added(None, scopes, &existing.scopes)).unwrap_or_default();
    call.authorize(&needed(scope, more))?;
    let change = ClientChange {
        scopes,
        description: Some(description),
        expires: Some(Some(expires.time())),
        delete_on_expiration: Some(delete_on_expiration),
    };
    // What was authorized is what is added to the scopes that were seen.
    let changed = clients::update(&app.engine.pool, id, Some(&existing.scopes), &change).await?;
    app.authenticator.client_changed(id);
    if changed.is_none() {
        let message = format!("the client {id:?} was changed at the same time; look at it and try again");
        return Err(OpError::Conflict(message).into());
    }
    answer(&app, id, changed, None).await
}

/// What updateClient requires, whatever it changes.
pub fn may_update(call: &Call) -> Result<(), ApiError> {
    let id = client_id(call)?;
    call.no_query()?;
    call.authorize(&Expression::from(format!("auth:update-client:{id}")))
}

/// `POST /clients/:clientId/reset`
pub async fn reset_access_token(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.authorize(&Expression::from(format!("auth:reset-access-token:{id}")))?;
    call.no_query()?;
    let token = new_access_token();
    clients::reset_token(&app.engine.pool, app.authenticator.keys(), id, &token).await?;
    app.authenticator.client_changed(id);
    answer(&app, id, clients::find(&app.engine.pool, id).await?, Some(&token)).await
}

/// `POST /clients/:clientId/enable`
pub async fn enable_client(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    set_disabled(&app, &call, "auth:enable-client:", false).await
}

/// `POST /clients/:clientId/disable`
pub async fn disable_client(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    set_disabled(&app, &call, "auth:disable-client:", true).await
}

async fn set_disabled(app: &App, call: &Call, scope: &str, disabled: bool) -> Result<Response, ApiError> {
    let id = client_id(call)?;
    call.authorize(&Expression::from(format!("{scope}{id}")))?;
    call.no_query()?;
    let client = clients::set_disabled(&app.engine.pool, id, disabled).await?;
    app.authenticator.client_changed(id);
    answer(app, id, client, None).await
}

/// `DELETE /clients/:clientId`: whether there is one or not.
pub async fn delete_client(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.authorize(&Expression::from(format!("auth:delete-client:{id}")))?;
    call.no_query()?;
    clients::delete(&app.engine.pool, id).await?;
    app.authenticator.client_changed(id);
    Ok(nothing())
}

fn client_id(call: &Call) -> Result<&str, ApiError> {
    let id = call.text_param("clientId");
    ops::check_client_id(id).map_err(|error| ApiError::arguments(format!("the path parameter `clientId`: {error}")))?;
    Ok(id)
}

/// The scope of the operation, and whatever it hands out.
fn needed(scope: String, handed_out: Vec<String>) -> Expression {
    Expression::all_of(std::iter::once(scope).chain(handed_out))
}

async fn answer(
    app: &App,
    id: &str,
    client: Option<ClientInfo>,
    token: Option<&AccessToken>,
) -> Result<Response, ApiError> {
    let client = client.ok_or_else(|| ops::missing(id))?;
    let roles = app.authenticator.roles().await?;
    ok(&shown(&client, &expanded(&roles, &client), token))
}

fn expanded(roles: &Resolver, client: &ClientInfo) -> ScopeSet {
    let held = || client.scopes.iter().cloned().chain([role_of_client(&client.client_id)]);
    // One that cannot be expanded cannot be used either; it is shown so that somebody sees why.
    roles.resolve(held()).unwrap_or_else(|_| ScopeSet::new(held()))
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
