//! Answers about scopes: all scopes of a client, all clients with a scope, and both together.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;

use super::{LIST_CLIENTS, refused, refused_by, scopes};
use crate::auth::role_of_client;
use crate::http::page::error::PageError;
use crate::http::page::layout::{self, section, table};
use crate::http::page::visit::Visit;
use tenure_domain::roles::{Resolver, Search, Way};
use tenure_domain::scopes::{Expression, valid_pattern};
use tenure_engine::ops::clients::check_client_id;
use tenure_store::clients;
use tenure_store::page::{self, ClientScopes, ListedScopes};

/// Clients that are searched for a scope.
const CLIENTS_READ: usize = 1_000;
const CLIENTS_SHOWN: usize = 40;
/// Roles may form long chains.
const STEPS_SHOWN: usize = 6;
/// Bytes of scopes that an answer goes through, so that it takes milliseconds.
const SEARCHED_MAX: usize = 8 << 20;

/// The question; none of it is empty.
pub(super) struct Asked {
    pub client: Option<String>,
    pub scope: Option<String>,
}

impl Asked {
    pub(super) fn read(visit: &Visit) -> Self {
        let field = |name| visit.query(name).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        Self { client: field("client"), scope: field("scope") }
    }
}

/// Empty without a question.
pub(super) async fn answer(
    conn: &mut PgConnection,
    visit: &Visit,
    asked: &Asked,
    resolver: &Resolver,
    now: DateTime<Utc>,
) -> Result<Markup, PageError> {
    if asked.scope.as_deref().is_some_and(|scope| !valid_pattern(scope)) {
        return Ok(say(&html! { "A scope has only printable ASCII characters." }));
    }
    match (&asked.client, &asked.scope) {
        (None, None) => Ok(html! {}),
        (None, Some(scope)) => who_may(conn, visit, scope, resolver, now).await,
        (Some(id), scope) => of_client(conn, visit, (id, scope.as_deref()), resolver, now).await,
    }
}

fn say(words: &Markup) -> Markup {
    section("Answer", &html! {}, &layout::empty(&html! { p { (words) } }))
}

fn denied(visit: &Visit, required: &Expression) -> Markup {
    section("Answer", &html! {}, &html! { div.note { (layout::denied(visit, required)) } })
}

/// Every client may assume the role that is named after it.
fn own_scopes(client_id: &str, scopes: &[String]) -> impl Iterator<Item = String> {
    scopes.iter().cloned().chain([role_of_client(client_id)])
}

async fn of_client(
    conn: &mut PgConnection,
    visit: &Visit,
    (id, scope): (&str, Option<&str>),
    resolver: &Resolver,
    now: DateTime<Utc>,
) -> Result<Markup, PageError> {
    if let Err(rule) = check_client_id(id) {
        return Ok(say(&html! { "This is no client: " (rule) "." }));
    }
    let required = Expression::from(format!("auth:get-client:{id}"));
    if !visit.may(required.clone()) {
        return Ok(denied(visit, &required));
    }
    let Some(client) = clients::find(conn, id).await? else {
        return Ok(say(&html! { "There is no client " code { (id) } "." }));
    };
    let warning = html! {
        @if let Some(state) = refused(&client, now) { p.warning { "The client is " (state) ": it may do nothing." } }
    };
    let Some(scope) = scope else {
        return Ok(html! { (warning) (scopes::expanded(resolver, own_scopes(id, &client.scopes))) });
    };
    let answer = if resolver.of_every_caller().allows(scope) {
        everyone(scope)
    } else {
        let found = resolver.find_way(own_scopes(id, &client.scopes), scope, SEARCHED_MAX).way;
        html! {
            @match &found {
                Way::Through(way) => { b { "Yes, " code { (id) } " may." } " " (steps(way)) }
                Way::Missing => { b { "No, " code { (id) } " may not." } " It has no scope that covers " (scopes::scope(scope)) "." }
                Way::TooLarge => { "The roles of " code { (id) } " are too large to be searched here." }
            }
        }
    };
    Ok(html! { (warning) (say(&answer)) })
}

fn everyone(scope: &str) -> Markup {
    html! { b { "Everybody may" } ", also without a login: the role " code { "anonymous" } " has " (scopes::scope(scope)) "." }
}

/// The scopes that lead from the client to the answer: the first ones and the last one.
fn steps(way: &[String]) -> Markup {
    let omitted = way.len().saturating_sub(STEPS_SHOWN);
    let last = way.len().saturating_sub(1);
    html! { @for (n, step) in way.iter().enumerate().filter(|(n, _)| *n < STEPS_SHOWN - 1 || *n == last) {
        @if n > 0 { " → " }
        @if n == last && omitted > 0 { (omitted) " more → " }
        (scopes::scope(step))
    } }
}

/// Clients that have a scope.
struct Found {
    clients: Vec<(ClientScopes, Vec<String>)>,
    /// Clients whose roles were too large to be searched.
    skipped: usize,
    searched: usize,
    is_cut: bool,
}

async fn who_may(
    conn: &mut PgConnection,
    visit: &Visit,
    scope: &str,
    resolver: &Resolver,
    now: DateTime<Utc>,
) -> Result<Markup, PageError> {
    let required = Expression::from(LIST_CLIENTS);
    if !visit.may(required.clone()) {
        return Ok(denied(visit, &required));
    }
    if resolver.of_every_caller().allows(scope) {
        return Ok(say(&everyone(scope)));
    }
    let bytes_max = i64::try_from(SEARCHED_MAX).unwrap_or(i64::MAX);
    let listed = page::list_client_scopes(conn, CLIENTS_READ, bytes_max).await?;
    let found = search(listed, scope, resolver).await;
    let note = html! {
        (found.clients.len()) " of " (found.searched) " clients"
        @if found.is_cut { ", the first ones by id" }
        @if found.clients.len() > CLIENTS_SHOWN { "; " (CLIENTS_SHOWN) " are shown" }
        @if found.skipped > 0 { "; " (found.skipped) " with roles too large to be searched" }
    };
    if found.clients.is_empty() {
        return Ok(section("Answer", &note, &layout::empty(&nobody(&found, scope))));
    }
    let cells = |(client, way): &(ClientScopes, Vec<String>)| {
        let id = &client.client_id;
        vec![
            (
                "Client",
                html! {
                    a href=(visit.link_to("client", &[id])) { (id) }
                    @if let Some(state) = refused_by(client.disabled, client.expires, now) { " " (layout::state(state)) }
                },
            ),
            ("By", layout::said(&steps(way))),
        ]
    };
    let rows: Vec<_> = found.clients.iter().take(CLIENTS_SHOWN).map(cells).collect();
    Ok(section("Answer", &note, &table(&rows)))
}

/// Clients that were not searched may have the scope.
fn nobody(found: &Found, scope: &str) -> Markup {
    let answer = if found.is_cut || found.skipped > 0 { "No client that was searched may." } else { "No client may." };
    html! { p { b { (answer) } " None has a scope that covers " (scopes::scope(scope)) "." } }
}

/// Yields after each client.
async fn search(listed: ListedScopes, scope: &str, resolver: &Resolver) -> Found {
    let mut found = Found { clients: Vec::new(), skipped: 0, searched: 0, is_cut: listed.is_cut };
    let mut left = SEARCHED_MAX;
    for client in listed.clients {
        let Search { way, size } = resolver.find_way(own_scopes(&client.client_id, &client.scopes), scope, left);
        // The whole answer, and not only this client, is too large.
        if way == Way::TooLarge && left < SEARCHED_MAX {
            found.is_cut = true;
            break;
        }
        found.searched += 1;
        left = left.saturating_sub(size);
        match way {
            Way::Through(way) => found.clients.push((client, way)),
            Way::Missing => {}
            Way::TooLarge => found.skipped += 1,
        }
        tokio::task::yield_now().await;
    }
    found
}

#[cfg(test)]
mod tests {
    use tenure_domain::roles::RoleScopes;

    use super::*;

    fn client(id: &str, scopes: &[&str]) -> ClientScopes {
        ClientScopes {
            client_id: id.to_owned(),
            scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
            disabled: false,
            expires: None,
        }
    }

    fn listed(clients: impl IntoIterator<Item = ClientScopes>) -> ListedScopes {
        ListedScopes { clients: clients.into_iter().collect(), is_cut: false }
    }

    #[tokio::test]
    async fn clients_with_the_scope_are_found() {
        let role = |id: &str, scopes: &[&str]| RoleScopes {
            role_id: id.to_owned(),
            scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
        };
        let resolver = Resolver::new([role("client-id:b", &["x:*"]), role("team", &["x:1"])]);
        let all = [client("a", &["y"]), client("b", &[]), client("c", &["assume:team"]), client("d", &["x:2"])];
        let found = search(listed(all), "x:1", &resolver).await;
        let ways: Vec<(&str, &[String])> =
            found.clients.iter().map(|(client, way)| (client.client_id.as_str(), way.as_slice())).collect();
        let expected: [(&str, &[String]); 2] = [
            ("b", &["assume:client-id:b".to_owned(), "x:*".to_owned()]),
            ("c", &["assume:team".to_owned(), "x:1".to_owned()]),
        ];
        assert_eq!(ways, expected);
        assert_eq!((found.searched, found.skipped, found.is_cut), (4, 0, false));
    }

    #[test]
    fn long_way_is_shown_with_its_ends() {
        let way: Vec<String> = (0..100).map(|n| format!("assume:{n}")).collect();
        let shown = steps(&way).into_string();
        assert!(shown.starts_with("<code>assume:0</code> → <code>assume:1</code>"), "{shown}");
        assert!(shown.ends_with("<code>assume:4</code> → 94 more → <code>assume:99</code>"), "{shown}");
        let shown = steps(&way[..STEPS_SHOWN]).into_string();
        assert!(shown.ends_with("<code>assume:4</code> → <code>assume:5</code>"), "{shown}");
    }

    #[test]
    fn answer_does_not_speak_for_unsearched_clients() {
        let found = |is_cut, skipped| Found { clients: Vec::new(), skipped, searched: 1, is_cut };
        let said = |found: &Found| nobody(found, "x").into_string();
        assert!(said(&found(false, 0)).contains("No client may."));
        for partial in [found(true, 0), found(false, 1)] {
            assert!(said(&partial).contains("No client that was searched may."));
        }
    }

    #[tokio::test]
    async fn search_of_large_roles_is_cut() {
        let scopes = (0..2_000).map(|n| format!("{n}:{}", "x".repeat(1_000))).collect();
        let resolver = Resolver::new([RoleScopes { role_id: "large".to_owned(), scopes }]);
        let all = (0..100).map(|n| client(&format!("c{n}"), &["assume:large"]));
        let found = search(listed(all), "none", &resolver).await;
        assert!(found.is_cut && (1..10).contains(&found.searched), "{}", found.searched);
    }
}
