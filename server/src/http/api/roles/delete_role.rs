//! deleteRole.

use super::role_id;
use crate::http::api::prelude::*;
use tenure_store::roles;

/// `DELETE /roles/:roleId`: whether there is one or not.
pub fn endpoint() -> Endpoint {
    Endpoint::delete("deleteRole", delete_role).scopes(Scope("auth:delete-role:<roleId>")).described(
        "auth",
        "Delete a role",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation.about("Whether there is one or not.").answers_empty(204, "There is no such role any more", &[])
}

async fn delete_role(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = role_id(&call)?;
    call.no_query()?;
    roles::delete(&app.engine.pool, id).await?;
    app.intake.authenticator.roles_changed();
    Ok(nothing())
}
