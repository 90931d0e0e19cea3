//! role.

use tenure_api::auth::Role;

use super::{NO_ROLE, a_role, answer, role_id};
use crate::http::api::prelude::*;
use tenure_engine::ops::roles as ops;
use tenure_store::roles;

/// `GET /roles/:roleId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("role", role).scopes(Scope("auth:get-role:<roleId>")).large_answer().described(
        "auth",
        "Show a role",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation.answers::<Role<'_>>("The role", &a_role(sample)).refuses(ResourceNotFound, NO_ROLE)
}

async fn role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = role_id(&call)?;
    call.no_query()?;
    let role = roles::find(&app.engine.pool, id).await?.ok_or_else(|| ops::missing(id))?;
    answer(&app, &role).await
}
