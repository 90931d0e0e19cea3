//! listRoles.

use super::{LISTING, a_role, shown_all};
use crate::http::api::pages::EXPANDED_MAX;
use crate::http::api::prelude::*;
use tenure_store::roles;

/// `GET /roles/`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listRoles", list_roles).scopes(LISTING).large_answer().described("auth", "List all roles", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let role = json!({"$ref": "#/components/schemas/Role"});
    operation.about("listRoles2 has pages.").answers_with(
        200,
        "Every role",
        "application/json",
        &json!({"type": "array", "items": role}),
        &json!([a_role(sample)]),
    )
}

async fn list_roles(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let rows = roles::list(&app.engine.pool, None, None).await?;
    let resolver = app.intake.authenticator.roles().await?;
    ok(&shown_all(&resolver, &rows, EXPANDED_MAX).await?)
}
