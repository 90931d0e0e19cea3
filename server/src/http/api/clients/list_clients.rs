//! listClients.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};
use tenure_api::auth::Client;

use super::{a_client, expanded, shown};
use crate::http::api::ok;
use crate::http::api::pages::{PAGE_MAX, Page};
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::Sample;
use crate::http::docs::operation::Operation;
use crate::http::docs::parameters::{client_prefix, page_of, paged};
use crate::http::endpoint::Endpoint;
use crate::http::error::ApiError;
use crate::http::scopes::Template::{self, Scope};
use tenure_domain::scopes::ScopeSet;
use tenure_engine::ops::clients as ops;
use tenure_store::clients;

/// `GET /clients/`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listClients", list_clients).scopes(SCOPES).described("auth", "List clients", describe)
}

const SCOPES: Template = Scope("auth:list-clients");

fn describe(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .query("prefix", "Only clients whose ids begin with this", &client_prefix(), &Value::Null)
        .answers_with(
            200,
            "A page, in the order of the ids; with a token if there are more",
            "application/json",
            &page_of("clients", &json!({"$ref": "#/components/schemas/Client"})),
            &json!({"clients": [a_client(sample)]}),
        )
}

async fn list_clients(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        clients: Vec<Client<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuation_token: Option<String>,
    }
    call.authorize_by_path()?;
    let query = call.query(&["prefix", "continuationToken", "limit"])?;
    let page = Page::read(&query)?;
    let prefix = query.iter().find(|(name, _)| name == "prefix").map_or("", |(_, value)| value.as_str());
    if !prefix.is_empty() {
        let wrong = |error| ApiError::arguments(format!("the query parameter `prefix`: {error}"));
        ops::check_client_id(prefix).map_err(wrong)?;
    }
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut rows = clients::list(&app.engine.pool, prefix, page.after.as_deref(), Some(Page::rows(limit))).await?;
    let continuation_token = Page::cut(limit, &mut rows, |client| &client.client_id);
    let roles = app.authenticator.roles().await?;
    let expanded: Vec<ScopeSet> = rows.iter().map(|client| expanded(&roles, client)).collect();
    let clients = rows.iter().zip(&expanded).map(|(client, expanded)| shown(client, expanded, None)).collect();
    ok(&Body { clients, continuation_token })
}
