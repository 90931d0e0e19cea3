//! currentScopes.

use std::sync::Arc;

use axum::response::Response;
use serde_json::json;
use tenure_api::auth::Scopes;

use crate::http::api::ok;
use crate::http::api::state::{Api, Endpoint};
use crate::http::call::Call;
use crate::http::docs::operation::Operation;
use crate::http::docs::sample::Sample;
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, Scope};

/// `GET /scopes/current`
pub fn endpoint() -> Endpoint {
    Endpoint::get("currentScopes", current_scopes).no_pool().scopes(SCOPES).described(
        "auth",
        "What the caller may do",
        describe,
    )
}

const SCOPES: Template = Scope("auth:current-scopes");

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation.answers::<Scopes>("The scopes, expanded", &json!({"scopes": ["queue:create-task:*"]}))
}

async fn current_scopes(_: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&Scopes { scopes: call.principal()?.scopes.iter().map(str::to_owned).collect() })
}
