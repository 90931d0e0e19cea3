//! currentScopes.

use tenure_api::auth::Scopes;

use crate::http::api::prelude::*;

/// `GET /scopes/current`
pub fn endpoint() -> Endpoint {
    Endpoint::get("currentScopes", current_scopes).no_pool().scopes(Scope("auth:current-scopes")).described(
        "auth",
        "Read the caller's scopes",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation.answers::<Scopes>("The scopes, expanded", &json!({"scopes": ["queue:create-task:*"]}))
}

async fn current_scopes(_: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&Scopes { scopes: call.principal()?.scopes.iter().map(str::to_owned).collect() })
}
