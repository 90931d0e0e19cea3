//! Roles of the auth API.

use tenure_api::auth::{Role, RoleRequest};

use crate::http::api::pages::{EXPANDED_MAX, fitting, size_of_scopes};
use crate::http::api::prelude::*;
use crate::http::docs::parameters::page_of;
use tenure_domain::roles::{ASSUME, Resolver, added, valid_role_id};
use tenure_engine::ops::roles as ops;
use tenure_store::roles::{self, NewRole, RoleInfo};

const LISTING: Template = Scope("auth:list-roles");
const NO_ROLE: &str = "the role does not exist";
const CHANGING: &str = "The caller needs every scope that the role gains.";
const CIRCLE: &str = "roles would assume each other in a cycle, or be too large together";

async fn page(app: &Api, call: &Call) -> Result<(Vec<RoleInfo>, Option<String>), ApiError> {
    call.authorize_by_path()?;
    let page = Page::read(&call.query(&["continuationToken", "limit"])?)?;
    let mut rows = roles::list(&app.engine.pool, page.after.as_deref(), page.limit.map(Page::rows)).await?;
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

/// Expands the first roles, as many as fit into one response.
async fn shown_first<'a>(resolver: &Resolver, roles: &'a [RoleInfo], max: usize) -> Vec<Role<'a>> {
    fitting(roles, max, |role| shown(resolver, role), |role| size_of_scopes(&role.expanded_scopes)).await
}

/// A page cut short gets its own token.
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

/// For a list without pages.
async fn shown_all<'a>(resolver: &Resolver, roles: &'a [RoleInfo], max: usize) -> Result<Vec<Role<'a>>, ApiError> {
    let all = shown_first(resolver, roles, max).await;
    if all.len() < roles.len() {
        return Err(ApiError::arguments(format!(
            "the roles expand to over {max} bytes, too much for one answer; use listRoles2, which has pages"
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
        // Too large to expand: the role grants nothing.
        expanded_scopes: assumed.map(|scopes| scopes.iter().map(str::to_owned).collect()).unwrap_or_default(),
    }
}

fn new_role() -> Value {
    json!({"description": "What submitters may do.", "scopes": ["queue:create-task:*"]})
}

fn a_role(sample: &Sample) -> Value {
    let mut role = new_role();
    role["roleId"] = "submitter".into();
    role["created"] = sample.after(0);
    role["lastModified"] = sample.after(0);
    role["expandedScopes"] = json!(["assume:submitter", "queue:create-task:*"]);
    role
}

/// `PUT /roles/:roleId`
pub fn create_role() -> Endpoint {
    Endpoint::put("createRole", handle_create_role)
        .scopes(AllOf(&[
            Scope("auth:create-role:<roleId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .large_answer()
        .described("auth", "Create a role", describe_create_role)
}

fn describe_create_role(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(&format!(
            "{CHANGING} A role whose id ends in `*` applies to every id with that prefix. A repeat of the same \
             request returns the role."
        ))
        .takes::<RoleRequest>(&new_role())
        .names(&[("roleId", "$response.body#/roleId")])
        .answers::<Role<'_>>("The role", &a_role(sample))
        .refuses(InputError, CIRCLE)
        .refuses(RequestConflict, "a role of this name exists with another definition")
}

async fn handle_create_role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let role = read(&call)?;
    let id = &role.role_id;
    call.authorize(&Values::of_path().list("scopesThatAreNew", added(Some(id), &role.scopes, &[])))?;
    let made = ops::create(&app.engine.pool, &call.actor()?, &role).await?;
    app.intake.authenticator.roles_changed();
    answer(&app, &made?).await
}

/// `DELETE /roles/:roleId`: idempotent.
pub fn delete_role() -> Endpoint {
    Endpoint::delete("deleteRole", handle_delete_role).scopes(Scope("auth:delete-role:<roleId>")).described(
        "auth",
        "Delete a role",
        describe_delete_role,
    )
}

fn describe_delete_role(operation: Operation, _: &Sample) -> Operation {
    operation.about("Also succeeds if the role does not exist.").answers_empty(
        204,
        "The role does not exist any more",
        &[],
    )
}

async fn handle_delete_role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = role_id(&call)?;
    call.no_query()?;
    ops::delete(&app.engine.pool, &call.actor()?, id).await?;
    app.intake.authenticator.roles_changed();
    Ok(nothing())
}

/// `GET /roleids/`
pub fn list_role_ids() -> Endpoint {
    Endpoint::get("listRoleIds", handle_list_role_ids).scopes(LISTING).described(
        "auth",
        "List the ids of roles",
        describe_list_role_ids,
    )
}

fn describe_list_role_ids(operation: Operation, _: &Sample) -> Operation {
    paged(operation).answers_with(
        200,
        "A page, or all roles without `limit`",
        "application/json",
        &page_of("roleIds", &json!({"type": "string"})),
        &json!({"roleIds": ["submitter"]}),
    )
}

async fn handle_list_role_ids(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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

/// `GET /roles/`
pub fn list_roles() -> Endpoint {
    Endpoint::get("listRoles", handle_list_roles).scopes(LISTING).large_answer().described(
        "auth",
        "List all roles",
        describe_list_roles,
    )
}

fn describe_list_roles(operation: Operation, sample: &Sample) -> Operation {
    let role = json!({"$ref": "#/components/schemas/Role"});
    operation.about("listRoles2 has pages.").answers_with(
        200,
        "Every role",
        "application/json",
        &json!({"type": "array", "items": role}),
        &json!([a_role(sample)]),
    )
}

async fn handle_list_roles(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let rows = roles::list(&app.engine.pool, None, None).await?;
    let resolver = app.intake.authenticator.roles().await?;
    ok(&shown_all(&resolver, &rows, EXPANDED_MAX).await?)
}

/// `GET /roles2/`
pub fn list_roles2() -> Endpoint {
    Endpoint::get("listRoles2", handle_list_roles2).scopes(LISTING).large_answer().described(
        "auth",
        "List roles",
        describe_list_roles2,
    )
}

fn describe_list_roles2(operation: Operation, sample: &Sample) -> Operation {
    paged(operation).answers_with(
        200,
        "A page, or all roles without `limit`",
        "application/json",
        &page_of("roles", &json!({"$ref": "#/components/schemas/Role"})),
        &json!({"roles": [a_role(sample)]}),
    )
}

async fn handle_list_roles2(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        roles: Vec<Role<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuation_token: Option<String>,
    }
    let (rows, token) = page(&app, &call).await?;
    let resolver = app.intake.authenticator.roles().await?;
    let (roles, continuation_token) = shown_page(&resolver, (&rows, token), EXPANDED_MAX).await;
    ok(&Body { roles, continuation_token })
}

/// `GET /roles/:roleId`
pub fn role() -> Endpoint {
    Endpoint::get("role", handle_role).scopes(Scope("auth:get-role:<roleId>")).large_answer().described(
        "auth",
        "Show a role",
        describe_role,
    )
}

fn describe_role(operation: Operation, sample: &Sample) -> Operation {
    operation.answers::<Role<'_>>("The role", &a_role(sample)).refuses(ResourceNotFound, NO_ROLE)
}

async fn handle_role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = role_id(&call)?;
    call.no_query()?;
    let role = roles::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    answer(&app, &role).await
}

/// `POST /roles/:roleId`
pub fn update_role() -> Endpoint {
    Endpoint::post("updateRole", handle_update_role)
        .scopes(AllOf(&[
            Scope("auth:update-role:<roleId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .large_answer()
        .described("auth", "Change a role", describe_update_role)
}

fn describe_update_role(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(CHANGING)
        .takes::<RoleRequest>(&new_role())
        .answers::<Role<'_>>("The role", &a_role(sample))
        .refuses(InputError, CIRCLE)
        .refuses(ResourceNotFound, NO_ROLE)
        .refuses(RequestConflict, "another request changed the role at the same time")
}

async fn handle_update_role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let role = read(&call)?;
    let id = &role.role_id;
    call.authorize(&Values::of_path().list("scopesThatAreNew", [""; 0]))?;
    let existing = roles::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    call.authorize(&Values::of_path().list("scopesThatAreNew", added(Some(id), &role.scopes, &existing.scopes)))?;
    // Exactly the scopes added to `existing.scopes` were authorized, so a concurrent change must
    // fail.
    let changed = ops::update(&app.engine.pool, &call.actor()?, &role, Some(&existing.scopes)).await?;
    app.intake.authenticator.roles_changed();
    answer(&app, &changed?).await
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
    async fn unpaged_list_of_large_roles_is_refused() {
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
    fn role_endpoints_are_large_answers() {
        let endpoints = [create_role(), update_role(), role(), list_roles(), list_roles2(), expand_scopes::endpoint()];
        for endpoint in endpoints {
            assert!(endpoint.declaration.has_large_answer, "{}", endpoint.declaration.name);
        }
    }
}
