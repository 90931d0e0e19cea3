//! Clients of the auth API.

use tenure_api::auth::{Client, ClientRequest};
use tenure_api::credentials::AccessToken;

use crate::auth::role_of_client;
use crate::http::api::pages::{EXPANDED_MAX, fitting, size_of_scopes};
use crate::http::api::prelude::*;
use crate::http::docs::parameters::{client_prefix, page_of};
use tenure_domain::roles::{Resolver, added};
use tenure_domain::scopes::ScopeSet;
use tenure_engine::ops::{OpError, clients as ops};
use tenure_store::clients::{self, ClientChange, ClientInfo, NewClient};

/// Expiry shown for clients without one, in milliseconds since 1970: the year 3000. The field is
/// required.
pub(crate) const NEVER_MS: i64 = 32_503_680_000_000;

const NO_CLIENT: &str = "the client does not exist";
const CHANGING: &str = "The caller needs every scope that the client gains.";

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
    // A client whose scopes cannot be expanded is unusable, but shown to let the operator see why.
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

pub(super) fn timestamp(ms: i64) -> Option<Timestamp> {
    chrono::DateTime::from_timestamp_millis(ms).map(Timestamp::new)
}

fn new_client(sample: &Sample) -> Value {
    json!({"description": "Submits tasks.", "expires": sample.after(90 * 24 * 60), "scopes": ["queue:create-task:*"]})
}

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

fn with_token(sample: &Sample) -> Value {
    let mut client = a_client(sample);
    client["accessToken"] = "three-dozen-characters-only-the-client-knows".into();
    client
}

/// `GET /clients/:clientId`
pub fn client() -> Endpoint {
    Endpoint::get("client", handle_client).scopes(Scope("auth:get-client:<clientId>")).large_answer().described(
        "auth",
        "Show a client",
        describe_client,
    )
}

fn describe_client(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<Client<'_>>("The client; its token is not shown", &a_client(sample))
        .refuses(ResourceNotFound, NO_CLIENT)
}

async fn handle_client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = client_id(&call)?;
    call.no_query()?;
    answer(&app, id, clients::find(&app.engine.pool, id).await?, None).await
}

/// `PUT /clients/:clientId`
pub fn create_client() -> Endpoint {
    Endpoint::put("createClient", handle_create_client)
        .scopes(AllOf(&[
            Scope("auth:create-client:<clientId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .large_answer()
        .described("auth", "Create a client", describe_create_client)
}

fn describe_create_client(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(&format!(
            "{CHANGING} Only this response contains the token: store it. A repeat of the request within 15 minutes \
             returns the same token."
        ))
        .takes::<ClientRequest>(&new_client(sample))
        .names(&[("clientId", "$response.body#/clientId")])
        .answers::<Client<'_>>("The client with its token", &with_token(sample))
        .refuses(RequestConflict, "a client of this name exists with another definition or for longer than 15 minutes")
}

async fn handle_create_client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = client_id(&call)?;
    call.no_query()?;
    let ClientRequest { expires, description, scopes, delete_on_expiration } = call.json()?;
    let scopes = scopes.unwrap_or_default();
    ops::check(&description, &scopes).map_err(ApiError::body)?;
    call.authorize(&Values::of_path().list("scopesThatAreNew", added(None, &scopes, &[])))?;
    let expires = Some(expires.time());
    let new = NewClient { client_id: id.to_owned(), scopes, description, expires, delete_on_expiration };
    let token = ops::create(&app.engine.pool, app.intake.authenticator.keys(), &call.actor()?, &new).await??;
    app.intake.authenticator.client_changed(id);
    answer(&app, id, clients::find(&app.engine.pool, id).await?, Some(&token)).await
}

/// `DELETE /clients/:clientId`: idempotent.
pub fn delete_client() -> Endpoint {
    Endpoint::delete("deleteClient", handle_delete_client).scopes(Scope("auth:delete-client:<clientId>")).described(
        "auth",
        "Delete a client",
        describe_delete_client,
    )
}

fn describe_delete_client(operation: Operation, _: &Sample) -> Operation {
    operation.about("Also succeeds if the client does not exist.").answers_empty(
        204,
        "The client does not exist any more",
        &[],
    )
}

async fn handle_delete_client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = client_id(&call)?;
    call.no_query()?;
    ops::delete(&app.engine.pool, &call.actor()?, id).await?;
    app.intake.authenticator.client_changed(id);
    Ok(nothing())
}

/// `GET /clients/`
pub fn list_clients() -> Endpoint {
    Endpoint::get("listClients", handle_list_clients).scopes(Scope("auth:list-clients")).large_answer().described(
        "auth",
        "List clients",
        describe_list_clients,
    )
}

fn describe_list_clients(operation: Operation, sample: &Sample) -> Operation {
    paged(operation).query("prefix", "Only clients with this prefix", &client_prefix(), &Value::Null).answers_with(
        200,
        "A page, sorted by id; with a token if there are more",
        "application/json",
        &page_of("clients", &json!({"$ref": "#/components/schemas/Client"})),
        &json!({"clients": [a_client(sample)]}),
    )
}

async fn handle_list_clients(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        clients: Vec<Client<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuation_token: Option<String>,
    }
    call.authorize_by_path()?;
    let query = call.query(&["prefix", "continuationToken", "limit"])?;
    let page = Page::read(&query)?;
    let prefix = query.iter().find(|(name, _)| name == "prefix").map_or("", |(_, value)| value.as_str());
    if !prefix.is_empty() {
        let wrong = |error| ApiError::arguments(format!("the query parameter `prefix`: {error}"));
        ops::check_client_id(prefix).map_err(wrong)?;
    }
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut rows = clients::list(&app.engine.pool, prefix, page.after.as_deref(), Some(Page::rows(limit))).await?;
    let listed = &rows[..rows.len().min(limit)];
    let roles = app.intake.authenticator.roles().await?;
    let expanded = expand(&roles, listed, EXPANDED_MAX).await;
    let continuation_token = Page::cut(expanded.len(), &mut rows, |client| &client.client_id);
    let clients = rows.iter().zip(&expanded).map(|(client, expanded)| shown(client, expanded, None)).collect();
    ok(&Body { clients, continuation_token })
}

/// Expands the first clients' scopes, as many as fit into one response.
async fn expand(roles: &Resolver, clients: &[ClientInfo], max: usize) -> Vec<ScopeSet> {
    fitting(clients, max, |client| expanded(roles, client), |scopes| size_of_scopes(scopes.iter())).await
}

/// `POST /clients/:clientId/reset`
pub fn reset_access_token() -> Endpoint {
    Endpoint::post("resetAccessToken", handle_reset_access_token)
        .scopes(Scope("auth:reset-access-token:<clientId>"))
        .large_answer()
        .described("auth", "Give a client a new token", describe_reset_access_token)
}

fn describe_reset_access_token(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("The old token is refused afterwards. Only this response contains the new token.")
        .answers::<Client<'_>>("The client with its new token", &with_token(sample))
        .refuses(ResourceNotFound, NO_CLIENT)
}

async fn handle_reset_access_token(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = client_id(&call)?;
    call.no_query()?;
    let token = ops::reset_token(&app.engine.pool, app.intake.authenticator.keys(), &call.actor()?, id).await?;
    app.intake.authenticator.client_changed(id);
    answer(&app, id, clients::find(&app.engine.pool, id).await?, token.as_ref()).await
}

/// `POST /clients/:clientId/enable`
pub fn enable_client() -> Endpoint {
    Endpoint::post("enableClient", |app, call| set_disabled(app, call, false))
        .scopes(Scope("auth:enable-client:<clientId>"))
        .large_answer()
        .described("auth", "Enable a client", |operation, sample| described(operation, &a_client(sample)))
}

/// `POST /clients/:clientId/disable`
pub fn disable_client() -> Endpoint {
    Endpoint::post("disableClient", |app, call| set_disabled(app, call, true))
        .scopes(Scope("auth:disable-client:<clientId>"))
        .large_answer()
        .described("auth", "Disable a client", |operation, sample| {
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
    let client = ops::set_disabled(&app.engine.pool, &call.actor()?, id, disabled).await?;
    app.intake.authenticator.client_changed(id);
    answer(&app, id, client, None).await
}

/// `POST /clients/:clientId`
pub fn update_client() -> Endpoint {
    Endpoint::post("updateClient", handle_update_client)
        .scopes(AllOf(&[
            Scope("auth:update-client:<clientId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .early_check(may_update)
        .large_answer()
        .described("auth", "Change a client", describe_update_client)
}

fn describe_update_client(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(&format!("{CHANGING} Without `scopes` the scopes do not change. The token never changes."))
        .takes::<ClientRequest>(&new_client(sample))
        .answers::<Client<'_>>("The client", &a_client(sample))
        .refuses(ResourceNotFound, NO_CLIENT)
        .refuses(RequestConflict, "another request changed the client at the same time")
}

async fn handle_update_client(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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
    // Exactly the scopes added to `existing.scopes` were authorized, so a concurrent change must
    // fail.
    let changed = ops::update(&app.engine.pool, &call.actor()?, id, Some(&existing.scopes), &change).await?;
    app.intake.authenticator.client_changed(id);
    if changed.is_none() {
        let message = format!("client {id:?} was changed by another request at the same time; read it and try again");
        return Err(OpError::Conflict(message).into());
    }
    answer(&app, id, changed, None).await
}

/// The checks that do not depend on the change.
fn may_update(call: &Call) -> Result<(), ApiError> {
    client_id(call)?;
    call.no_query()?;
    authorize(call, Vec::new())
}

fn authorize(call: &Call, scopes_that_are_new: Vec<String>) -> Result<(), ApiError> {
    call.authorize(&Values::of_path().list("scopesThatAreNew", scopes_that_are_new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_domain::roles::RoleScopes;
    use tenure_engine::clock::real_now;

    #[test]
    fn client_endpoints_are_large_answers() {
        let endpoints = [
            client(),
            create_client(),
            list_clients(),
            reset_access_token(),
            enable_client(),
            disable_client(),
            update_client(),
        ];
        for endpoint in endpoints {
            assert!(endpoint.declaration.has_large_answer, "{}", endpoint.declaration.name);
        }
    }

    #[tokio::test]
    async fn client_page_ends_at_limit_of_expanded_scopes() {
        assert!(list_clients().declaration.has_large_answer);
        let now = Timestamp::new(real_now());
        let client = |client_id: &str| ClientInfo {
            client_id: client_id.to_owned(),
            scopes: vec!["assume:large".to_owned()],
            description: String::new(),
            expires: None,
            delete_on_expiration: false,
            disabled: false,
            created: now,
            last_modified: now,
            last_rotated: now,
            last_date_used: now,
        };
        let scopes = (0..100).map(|n| format!("{n}:{}", "x".repeat(100))).collect();
        let roles = Resolver::new([RoleScopes { role_id: "large".to_owned(), scopes }]);
        let clients = ["a", "b", "c"].map(client);
        for (max, fit) in [(1, 1), (20_000, 1), (30_000, 2), (1 << 20, 3)] {
            assert_eq!(expand(&roles, &clients, max).await.len(), fit, "{max}");
        }
        assert!(expand(&roles, &[], 1).await.is_empty());
    }
}
