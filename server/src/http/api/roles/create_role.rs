//! createRole.

use tenure_api::auth::{Role, RoleRequest};

use super::{CHANGING, CIRCLE, a_role, answer, new_role, read};
use crate::http::api::prelude::*;
use tenure_domain::roles::added;
use tenure_engine::ops::roles as ops;

/// `PUT /roles/:roleId`
pub fn endpoint() -> Endpoint {
    Endpoint::put("createRole", create_role)
        .scopes(AllOf(&[
            Scope("auth:create-role:<roleId>"),
            ForEach { item: "scope", list: "scopesThatAreNew", scopes: &["<scope>"] },
        ]))
        .large_answer()
        .described("auth", "Create a role", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(&format!(
            "{CHANGING} A role whose id ends in `*` is for every id that begins so. Sent again, the same request is \
             answered with the role."
        ))
        .takes::<RoleRequest>(&new_role())
        .names(&[("roleId", "$response.body#/roleId")])
        .answers::<Role<'_>>("The role", &a_role(sample))
        .refuses(InputError, CIRCLE)
        .refuses(RequestConflict, "there is a role of this name with another definition")
}

async fn create_role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let role = read(&call)?;
    let id = &role.role_id;
    call.authorize(&Values::of_path().list("scopesThatAreNew", added(Some(id), &role.scopes, &[])))?;
    let made = ops::create(&app.engine.pool, &role).await?;
    app.intake.authenticator.roles_changed();
    answer(&app, &made?).await
}
