//! Roles over the API.

pub mod create_role;
pub mod delete_role;
pub mod list_role_ids;
pub mod list_roles;
pub mod list_roles2;
pub mod role;
pub mod update_role;

use tenure_api::auth::{Role, RoleRequest};

use super::pages::{fitting, size_of_scopes};
use crate::http::api::prelude::*;
use tenure_domain::roles::{ASSUME, Resolver, valid_role_id};
use tenure_engine::ops::roles as ops;
use tenure_store::roles::{self, NewRole, RoleInfo};

/// For every list of them.
const LISTING: Template = Scope("auth:list-roles");
const NO_ROLE: &str = "there is no such role";
const CHANGING: &str = "The caller needs every scope that the role gets and did not have.";
const CIRCLE: &str = "roles would assume each other in a circle, or be too large together";

async fn page(app: &Api, call: &Call) -> Result<(Vec<RoleInfo>, Option<String>), ApiError> {
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

async fn answer(app: &Api, role: &RoleInfo) -> Result<Response, ApiError> {
    let resolver = app.intake.authenticator.roles().await?;
    ok(&shown(&resolver, role))
}

/// Roles with what they expand to, of as many as fit into an answer.
async fn shown_first<'a>(resolver: &Resolver, roles: &'a [RoleInfo], max: usize) -> Vec<Role<'a>> {
    fitting(roles, max, |role| shown(resolver, role), |role| size_of_scopes(&role.expanded_scopes)).await
}

/// A page of them, and the token for the next one: that of these rows unless it ends before.
async fn shown_page<'a>(
    resolver: &Resolver,
    (roles, token): (&'a [RoleInfo], Option<String>),
    max: usize,
) -> (Vec<Role<'a>>, Option<String>) {
    let all = shown_first(resolver, roles, max).await;
    let ends_before = all.len() < roles.len();
    let token = if ends_before { all.last().map(|last| Page::token(last.role_id)) } else { token };
    (all, token)
}

/// All of them, for a list without pages.
async fn shown_all<'a>(resolver: &Resolver, roles: &'a [RoleInfo], max: usize) -> Result<Vec<Role<'a>>, ApiError> {
    let all = shown_first(resolver, roles, max).await;
    if all.len() < roles.len() {
        return Err(ApiError::arguments(format!(
            "the roles expand to over {max} bytes, which is too much for one answer; use listRoles2, which has pages"
        )));
    }
    Ok(all)
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
    use tenure_api::dates::Timestamp;
    use tenure_api::errors::ErrorCode;

    use super::*;
    use crate::http::api::scopes::expand_scopes;
    use tenure_domain::roles::RoleScopes;
    use tenure_engine::clock::real_now;

    #[tokio::test]
    async fn roles_that_expand_to_too_much_together_are_not_listed_at_once() {
        let now = Timestamp::new(real_now());
        let role = |role_id: &str, scopes: Vec<String>| RoleInfo {
            role_id: role_id.to_owned(),
            scopes,
            description: String::new(),
            created: now,
            last_modified: now,
        };
        let large = role("large", (0..100).map(|n| format!("{n}:{}", "x".repeat(100))).collect());
        let rows: Vec<RoleInfo> = ["a", "b", "c"].map(|id| role(id, vec!["assume:large".to_owned()])).into();
        let all = rows.iter().chain([&large]);
        let resolver =
            Resolver::new(all.map(|row| RoleScopes { role_id: row.role_id.clone(), scopes: row.scopes.clone() }));
        let whole = Some("next".to_owned());
        for (max, fit, next) in [(30_000, 2, Some(Page::token("b"))), (1 << 20, 3, whole.clone())] {
            let (page, token) = shown_page(&resolver, (&rows, whole.clone()), max).await;
            assert_eq!((page.len(), token), (fit, next), "{max}");
        }
        let listed = shown_all(&resolver, &rows[..2], 30_000).await.unwrap();
        assert!(listed.iter().all(|role| role.expanded_scopes.len() == 102), "{listed:?}");
        let refused = shown_all(&resolver, &rows, 30_000).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequestArguments);
    }

    #[test]
    fn what_expands_roles_is_done_apart_from_the_event_loop() {
        let endpoints = [
            create_role::endpoint(),
            update_role::endpoint(),
            role::endpoint(),
            list_roles::endpoint(),
            list_roles2::endpoint(),
            expand_scopes::endpoint(),
        ];
        for endpoint in endpoints {
            assert!(endpoint.declaration.has_large_answer, "{}", endpoint.declaration.name);
        }
    }
}
