//! listRoles2.

use tenure_api::auth::Role;

use super::{LISTING, a_role, page, shown_page};
use crate::http::api::pages::EXPANDED_MAX;
use crate::http::api::prelude::*;
use crate::http::docs::parameters::page_of;

/// `GET /roles2/`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listRoles2", list_roles2).scopes(LISTING).large_answer().described("auth", "List roles", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    paged(operation).answers_with(
        200,
        "A page; without `limit` all of them",
        "application/json",
        &page_of("roles", &json!({"$ref": "#/components/schemas/Role"})),
        &json!({"roles": [a_role(sample)]}),
    )
}

async fn list_roles2(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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
