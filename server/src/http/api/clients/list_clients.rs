//! listClients.

use tenure_api::auth::Client;

use super::{a_client, expanded, shown};
use crate::http::api::pages::{EXPANDED_MAX, fitting, size_of_scopes};
use crate::http::api::prelude::*;
use crate::http::docs::parameters::{client_prefix, page_of};
use tenure_domain::roles::Resolver;
use tenure_domain::scopes::ScopeSet;
use tenure_engine::ops::clients as ops;
use tenure_store::clients::{self, ClientInfo};

/// `GET /clients/`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listClients", list_clients).scopes(Scope("auth:list-clients")).large_answer().described(
        "auth",
        "List clients",
        describe,
    )
}

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

async fn list_clients(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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
    let listed = &rows[..rows.len().min(limit)];
    let roles = app.intake.authenticator.roles().await?;
    let expanded = expand(&roles, listed, EXPANDED_MAX).await;
    let continuation_token = Page::cut(expanded.len(), &mut rows, |client| &client.client_id);
    let clients = rows.iter().zip(&expanded).map(|(client, expanded)| shown(client, expanded, None)).collect();
    ok(&Body { clients, continuation_token })
}

/// What the clients of a page may do, of as many as fit into an answer.
async fn expand(roles: &Resolver, clients: &[ClientInfo], max: usize) -> Vec<ScopeSet> {
    fitting(clients, max, |client| expanded(roles, client), |scopes| size_of_scopes(scopes.iter())).await
}

#[cfg(test)]
mod tests {
    use tenure_api::dates::Timestamp;

    use super::*;
    use tenure_domain::roles::RoleScopes;
    use tenure_engine::clock::real_now;

    #[tokio::test]
    async fn a_page_ends_where_the_scopes_of_its_clients_are_too_much_for_an_answer() {
        assert!(endpoint().declaration.has_large_answer);
        let now = Timestamp::new(real_now());
        let client = |client_id: &str| ClientInfo {
            client_id: client_id.to_owned(),
            scopes: vec!["assume:large".to_owned()],
            description: String::new(),
            expires: None,
            delete_on_expiration: false,
            disabled: false,
            created: now,
            last_modified: now,
            last_rotated: now,
            last_date_used: now,
        };
        let scopes = (0..100).map(|n| format!("{n}:{}", "x".repeat(100))).collect();
        let roles = Resolver::new([RoleScopes { role_id: "large".to_owned(), scopes }]);
        let clients = ["a", "b", "c"].map(client);
        for (max, fit) in [(1, 1), (20_000, 1), (30_000, 2), (1 << 20, 3)] {
            assert_eq!(expand(&roles, &clients, max).await.len(), fit, "{max}");
        }
        assert!(expand(&roles, &[], 1).await.is_empty());
    }
}
