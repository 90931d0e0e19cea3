//! updateRole.

use tenure_api::auth::{Role, RoleRequest};

use super::{CHANGING, CIRCLE, NO_ROLE, a_role, answer, new_role, read};
use crate::http::api::prelude::*;
use tenure_domain::roles::added;
use tenure_engine::ops::roles as ops;
use tenure_store::roles;

/// `POST /roles/:roleId`
pub fn endpoint() -> Endpoint {
    Endpoint::post("updateRole", update_role)
        .scopes(AllOf(&[
            Scope("auth:update-role:<roleId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .large_answer()
        .described("auth", "Change a role", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(CHANGING)
        .takes::<RoleRequest>(&new_role())
        .answers::<Role<'_>>("The role", &a_role(sample))
        .refuses(InputError, CIRCLE)
        .refuses(ResourceNotFound, NO_ROLE)
        .refuses(RequestConflict, "another request changed the role at the same time")
}

async fn update_role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let role = read(&call)?;
    let id = &role.role_id;
    call.authorize(&Values::of_path().list("scopesThatAreNew", [""; 0]))?;
    let existing = roles::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    call.authorize(&Values::of_path().list("scopesThatAreNew", added(Some(id), &role.scopes, &existing.scopes)))?;
    // What was authorized is what is added to the scopes that were seen.
    let changed = ops::update(&app.engine.pool, &role, Some(&existing.scopes)).await?;
    app.intake.authenticator.roles_changed();
    answer(&app, &changed?).await
}
