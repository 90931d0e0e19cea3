//! listRoleIds.

use super::{LISTING, page};
use crate::http::api::prelude::*;
use crate::http::docs::parameters::page_of;

/// `GET /roleids/`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listRoleIds", list_role_ids).scopes(LISTING).described("auth", "List the ids of roles", describe)
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    paged(operation).answers_with(
        200,
        "A page; without `limit` all of them",
        "application/json",
        &page_of("roleIds", &json!({"type": "string"})),
        &json!({"roleIds": ["submitter"]}),
    )
}

async fn list_role_ids(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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
