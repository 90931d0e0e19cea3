//! `/access`: clients and roles, and answers about their scopes.

mod answers;
pub(super) mod client;
pub(super) mod role;
mod scopes;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use tenure_api::dates::Timestamp;

use self::answers::Asked;
use super::actions::{self, On, Subject};
use super::error::PageError;
use super::layout::{self, Page, section, table};
use super::state::Site;
use super::text;
use super::visit::{SEGMENT, Visit, lookup_failed};
use tenure_domain::roles::{ASSUME, Resolver};
use tenure_domain::scopes::Expression;
use tenure_store::clients::ClientInfo;
use tenure_store::roles::RoleInfo;
use tenure_store::{clients, clock, page, roles};

const LIST_CLIENTS: &str = "auth:list-clients";
const LIST_ROLES: &str = "auth:list-roles";
const ROWS_MAX: usize = 30;
/// Roles of a client in its row.
const ROLES_SHOWN: usize = 3;
/// In bytes; the page of the role has the rest.
const DESCRIPTION_SHOWN: usize = 100;
/// Query parameters: the last row of the page before.
const AFTER_CLIENT: &str = "afterClient";
const AFTER_ROLE: &str = "afterRole";

/// Rows of the lists, with one more than shown if there are further ones.
struct Lists {
    now: DateTime<Utc>,
    clients: Vec<ClientInfo>,
    roles: Vec<RoleInfo>,
    answer: Markup,
}

/// `GET /access`
pub(super) async fn access(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let asked = Asked::read(&visit);
    let may_list = visit.may(LIST_CLIENTS) || visit.may(LIST_ROLES);
    if !may_list && asked.client.is_none() {
        return Err(PageError::Denied(Expression::any_of([LIST_CLIENTS, LIST_ROLES])));
    }
    let resolver = resolver(&app).await?;
    let Lists { now, clients, roles, answer } = read(&app, &visit, &asked, &resolver).await?;
    let body = html! {
        h1 { "Access" }
        (actions::bar(&visit, On::Access, &Subject::Access))
        (questions(&visit, &asked))
        (answer)
        (clients_section(&visit, &clients, now))
        (roles_section(&visit, &roles, now))
    };
    // Forms are filled in on this page.
    Ok(Page::new("Access", None, body))
}

async fn read(app: &Site, visit: &Visit, asked: &Asked, resolver: &Resolver) -> Result<Lists, PageError> {
    let limit = i64::try_from(ROWS_MAX).unwrap_or(i64::MAX).saturating_add(1);
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let clients = if visit.may(LIST_CLIENTS) {
        clients::list(&mut *conn, prefix(visit), after(visit, AFTER_CLIENT), Some(limit)).await?
    } else {
        Vec::new()
    };
    let roles = if visit.may(LIST_ROLES) {
        roles::list(&mut *conn, after(visit, AFTER_ROLE), Some(limit)).await?
    } else {
        Vec::new()
    };
    let answer = answers::answer(&mut conn, visit, asked, resolver, now).await?;
    conn.commit().await?;
    Ok(Lists { now, clients, roles, answer })
}

async fn resolver(app: &Site) -> Result<Arc<Resolver>, PageError> {
    app.intake.authenticator.roles().await.map_err(|error| lookup_failed(&error))
}

/// PostgreSQL cannot compare with NUL.
fn after<'a>(visit: &'a Visit, name: &str) -> Option<&'a str> {
    visit.query(name).filter(|id| !id.is_empty() && !id.contains('\0'))
}

/// Beginning of the ids of the listed clients.
fn prefix(visit: &Visit) -> &str {
    visit.query("prefix").map(str::trim).filter(|prefix| !prefix.contains('\0')).unwrap_or_default()
}

fn questions(visit: &Visit, asked: &Asked) -> Markup {
    let Asked { client, scope } = asked;
    let body = html! {
        form.ask method="get" action=(visit.link("/access")) {
            label { "Client" input name="client" value=[client.as_deref()] maxlength="255" placeholder="acme/ci" autocomplete="off"; }
            label { "Scope" input name="scope" value=[scope.as_deref()] maxlength="4096" placeholder="queue:claim-work:acme/linux" autocomplete="off"; }
            button type="submit" { "Ask" }
        }
    };
    section("What may a client do? Who may do something?", &html! { "with both: may this client do it?" }, &body)
}

/// Word for a client that is refused.
fn refused(client: &ClientInfo, now: DateTime<Utc>) -> Option<&'static str> {
    refused_by(client.disabled, client.expires.map(Timestamp::time), now)
}

fn refused_by(disabled: bool, expires: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<&'static str> {
    if disabled { Some("disabled") } else { expires.filter(|expires| *expires < now).map(|_| "expired") }
}

/// Times of use are known within hours.
fn last_used(client: &ClientInfo, now: DateTime<Utc>) -> Markup {
    if client.last_date_used == client.created {
        html! { span.none { "never" } }
    } else {
        layout::time(client.last_date_used.time(), now)
    }
}

fn clients_section(visit: &Visit, clients: &[ClientInfo], now: DateTime<Utc>) -> Markup {
    let title = "Clients";
    if !visit.may(LIST_CLIENTS) {
        let required = Expression::from(LIST_CLIENTS);
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let cells = |client: &ClientInfo| {
        let id = &client.client_id;
        let state = refused(client, now);
        let assumed: Vec<&str> = client.scopes.iter().filter_map(|scope| scope.strip_prefix(ASSUME)).collect();
        let roles = html! {
            @for role in assumed.iter().take(ROLES_SHOWN) { code { (text::beginning(role, DESCRIPTION_SHOWN).0) } " " }
            @if assumed.len() > ROLES_SHOWN { "and " (assumed.len() - ROLES_SHOWN) " more" }
            @if assumed.is_empty() { (layout::none()) }
        };
        let expires = client.expires.map_or_else(layout::none, |expires| layout::time(expires.time(), now));
        vec![
            (
                "Client",
                html! { a href=(visit.link_to("client", &[id])) { (id) } @if let Some(state) = state { " " (layout::state(state)) } },
            ),
            ("Roles", layout::said(&roles)),
            (">Scopes", layout::number(i64::try_from(client.scopes.len()).unwrap_or(i64::MAX))),
            (">Last used", last_used(client, now)),
            (">Expires", expires),
        ]
    };
    let rows: Vec<_> = clients.iter().take(ROWS_MAX).map(cells).collect();
    let next = next(visit, clients, AFTER_CLIENT, |client| &client.client_id);
    let body = html! {
        form.ask method="get" action=(visit.link("/access")) {
            label { "Ids that begin with" input name="prefix" value=(prefix(visit)) maxlength="255" autocomplete="off"; }
            button type="submit" { "Show" }
        }
        @if rows.is_empty() { (layout::empty(&html! { p { "There is no such client." } })) } @else { (table(&rows)) }
        (next)
    };
    section(title, &html! { "by id" }, &body)
}

fn roles_section(visit: &Visit, roles: &[RoleInfo], now: DateTime<Utc>) -> Markup {
    let title = "Roles";
    if !visit.may(LIST_ROLES) {
        let required = Expression::from(LIST_ROLES);
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let cells = |role: &RoleInfo| {
        let (description, is_cut) = text::beginning(&role.description, DESCRIPTION_SHOWN);
        vec![
            ("Role", html! { a href=(visit.link_to("role", &[&role.role_id])) { (role.role_id) } }),
            (">Scopes", layout::number(i64::try_from(role.scopes.len()).unwrap_or(i64::MAX))),
            ("Description", layout::said(&html! { (description) @if is_cut { "…" } })),
            (">Changed", layout::time(role.last_modified.time(), now)),
        ]
    };
    let rows: Vec<_> = roles.iter().take(ROWS_MAX).map(cells).collect();
    let next = next(visit, roles, AFTER_ROLE, |role| &role.role_id);
    let none = html! { p { "There is no further role." } };
    let body = html! { @if rows.is_empty() { (layout::empty(&none)) } @else { (table(&rows)) } (next) };
    section(title, &html! { "by id" }, &body)
}

/// Link to the rows after the shown ones, if there are any.
fn next<T>(visit: &Visit, rows: &[T], parameter: &str, id: impl Fn(&T) -> &String) -> Markup {
    if rows.len() <= ROWS_MAX {
        return html! {};
    }
    let escape = |text: &str| utf8_percent_encode(text, SEGMENT).to_string();
    let last = rows.get(ROWS_MAX - 1).map_or_else(String::new, |row| escape(id(row)));
    let prefix = if parameter == AFTER_CLIENT { prefix(visit) } else { "" };
    let link = format!("{}?prefix={}&{parameter}={last}", visit.link("/access"), escape(prefix));
    html! { div.note { p { a href=(link) { "The next ones" } } } }
}
