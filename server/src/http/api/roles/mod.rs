//! Roles over the API.

pub mod create_role;
pub mod delete_role;
pub mod list_role_ids;
pub mod list_roles;
pub mod list_roles2;
pub mod role;
pub mod update_role;

use axum::response::Response;
use serde_json::{Value, json};
use tenure_api::auth::{Role, RoleRequest};

use super::ok;
use super::pages::Page;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::Sample;
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, Scope};
use tenure_domain::roles::{ASSUME, Resolver, valid_role_id};
use tenure_engine::ops::roles as ops;
use tenure_store::roles::{self, NewRole, RoleInfo};

/// For every list of them.
const LISTING: Template = Scope("auth:list-roles");
const NO_ROLE: &str = "there is no such role";
const CHANGING: &str = "The caller needs every scope that the role gets and did not have.";
const CIRCLE: &str = "roles would assume each other in a circle, or be too large together";

async fn page(app: &App, call: &Call) -> Result<(Vec<RoleInfo>, Option<String>), ApiError> {
    call.authorize_by_path()?;
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

async fn answer(app: &App, role: &RoleInfo) -> Result<Response, ApiError> {
    let resolver = app.authenticator.roles().await?;
    ok(&shown(&resolver, role))
}

/// Works them out one after the other, so that others have turns in between.
async fn shown_all<'a>(resolver: &Resolver, roles: &'a [RoleInfo]) -> Vec<Role<'a>> {
    let mut all = Vec::with_capacity(roles.len());
    for role in roles {
        all.push(shown(resolver, role));
        tokio::task::yield_now().await;
    }
    all
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

/// The body that makes the role of the examples.
fn new_role() -> Value {
    json!({"description": "What submitters may do.", "scopes": ["queue:create-task:*"]})
}

/// The role of the examples.
fn a_role(sample: &Sample) -> Value {
    let mut role = new_role();
    role["roleId"] = "submitter".into();
    role["created"] = sample.after(0);
    role["lastModified"] = sample.after(0);
    role["expandedScopes"] = json!(["assume:submitter", "queue:create-task:*"]);
    role
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::api::scopes::expand_scopes;

    #[test]
    fn what_follows_roles_is_done_apart_from_the_event_loop() {
        let endpoints = [
            create_role::endpoint(),
            update_role::endpoint(),
            role::endpoint(),
            list_roles::endpoint(),
            list_roles2::endpoint(),
            expand_scopes::endpoint(),
        ];
        for endpoint in endpoints {
            assert!(endpoint.has_large_answer, "{}", endpoint.name);
        }
    }
}
