//! Roles over the API.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::auth::{Role, RoleRequest};

use super::pages::Page;
use super::{nothing, ok};
use crate::domain::roles::{ASSUME, Resolver, added, valid_role_id};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::roles as ops;
use crate::store::roles::{self, NewRole, RoleInfo};

/// `GET /roles/`
pub async fn list_roles(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&may_list())?;
    call.no_query()?;
    let rows = roles::list(&app.engine.pool, None, None).await?;
    let resolver = app.authenticator.roles().await?;
    ok(&rows.iter().map(|role| shown(&resolver, role)).collect::<Vec<_>>())
}

/// `GET /roles2/`
pub async fn list_roles2(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        roles: Vec<Role<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuation_token: Option<String>,
    }
    let (rows, continuation_token) = page(&app, &call).await?;
    let resolver = app.authenticator.roles().await?;
    ok(&Body { roles: rows.iter().map(|role| shown(&resolver, role)).collect(), continuation_token })
}

/// `GET /roleids/`
pub async fn list_role_ids(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body {
        role_ids: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuation_token: Option<String>,
    }
    let (rows, continuation_token) = page(&app, &call).await?;
    ok(&Body { role_ids: rows.into_iter().map(|role| role.role_id).collect(), continuation_token })
}

/// `GET /roles/:roleId`
pub async fn role(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = role_id(&call)?;
    call.authorize(&Expression::from(format!("auth:get-role:{id}")))?;
    call.no_query()?;
    let role = roles::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    answer(&app, &role).await
}

/// `PUT /roles/:roleId`
pub async fn create_role(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let role = read(&call)?;
    let id = &role.role_id;
    let more = added(Some(id), &role.scopes, &[]);
    call.authorize(&needed(format!("auth:create-role:{id}"), more))?;
    let made = ops::create(&app.engine.pool, &role).await?;
    app.authenticator.roles_changed();
    answer(&app, &made?).await
}

/// `POST /roles/:roleId`
pub async fn update_role(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let role = read(&call)?;
    let id = &role.role_id;
    let scope = format!("auth:update-role:{id}");
    call.authorize(&Expression::from(scope.as_str()))?;
    let existing = roles::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    call.authorize(&needed(scope, added(Some(id), &role.scopes, &existing.scopes)))?;
    // What was authorized is what is added to the scopes that were seen.
    let changed = ops::update(&app.engine.pool, &role, Some(&existing.scopes)).await?;
    app.authenticator.roles_changed();
    answer(&app, &changed?).await
}

/// `DELETE /roles/:roleId`: whether there is one or not.
pub async fn delete_role(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = role_id(&call)?;
    call.authorize(&Expression::from(format!("auth:delete-role:{id}")))?;
    call.no_query()?;
    roles::delete(&app.engine.pool, id).await?;
    app.authenticator.roles_changed();
    Ok(nothing())
}

fn may_list() -> Expression {
    Expression::from("auth:list-roles")
}

async fn page(app: &App, call: &Call) -> Result<(Vec<RoleInfo>, Option<String>), ApiError> {
    call.authorize(&may_list())?;
    let page = Page::read(&call.query(&["continuationToken", "limit"])?)?;
    let mut rows = roles::list(&app.engine.pool, page.after.as_deref(), page.limit.map(Page::rows)).await?;
    // Without a limit the list is whole.
    let token = page.limit.and_then(|limit| Page::cut(limit, &mut rows, |role| &role.role_id));
    Ok((rows, token))
}

fn role_id(call: &Call) -> Result<&str, ApiError> {
    let id = call.text_param("roleId");
    if valid_role_id(id) {
        return Ok(id);
    }
    let rule = "must be up to 1000 characters of printable ASCII, and not end in two stars";
    Err(ApiError::arguments(format!("the path parameter `roleId`: {rule}")))
}

fn read(call: &Call) -> Result<NewRole, ApiError> {
    let role_id = role_id(call)?.to_owned();
    call.no_query()?;
    let RoleRequest { description, scopes } = call.json()?;
    let role = NewRole { role_id, scopes, description };
    ops::check(&role).map_err(ApiError::body)?;
    Ok(role)
}

/// The scope of the operation, and whatever it hands out.
fn needed(scope: String, handed_out: Vec<String>) -> Expression {
    Expression::all_of(std::iter::once(scope).chain(handed_out))
}

async fn answer(app: &App, role: &RoleInfo) -> Result<Response, ApiError> {
    let resolver = app.authenticator.roles().await?;
    ok(&shown(&resolver, role))
}

fn shown<'a>(resolver: &Resolver, role: &'a RoleInfo) -> Role<'a> {
    let assumed = resolver.resolve([format!("{ASSUME}{}", role.role_id)]);
    Role {
        role_id: &role.role_id,
        scopes: &role.scopes,
        description: &role.description,
        created: role.created,
        last_modified: role.last_modified,
        // One that is too large gives nothing.
        expanded_scopes: assumed.map(|scopes| scopes.iter().map(str::to_owned).collect()).unwrap_or_default(),
    }
}
