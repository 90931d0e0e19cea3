//! `/client/<clientId>`: a client, and its new access token.

use std::sync::Arc;

use maud::html;
use tenure_api::credentials::AccessToken;

use super::{last_used, refused, resolver, scopes};
use crate::auth::role_of_client;
use crate::http::page::actions::{self, On, Subject};
use crate::http::page::audit;
use crate::http::page::error::PageError;
use crate::http::page::layout::{self, Page, section};
use crate::http::page::state::Site;
use crate::http::page::visit::Visit;
use tenure_domain::audit::Kind;
use tenure_engine::ops::clients::check_client_id;
use tenure_store::{clients, clock, page};

pub(in crate::http::page) fn client_of(visit: &Visit) -> Result<&str, PageError> {
    let id = visit.param("clientId");
    let unknown = |_| PageError::NotFound("This is not the id of a client.".to_owned());
    check_client_id(id).map_err(unknown)?;
    Ok(id)
}

/// `GET /client/:clientId`
pub(in crate::http::page) async fn client(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let id = client_of(&visit)?;
    visit.authorize(format!("auth:get-client:{id}"))?;
    let resolver = resolver(&app).await?;
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let found = clients::find(&mut *conn, id).await?;
    let client = found.ok_or_else(|| PageError::NotFound(format!("There is no client {id}.")))?;
    let changes = audit::history(&mut conn, &visit, Kind::Client, &[id.to_owned()]).await?;
    conn.commit().await?;
    let expires = client.expires.map_or_else(|| html! { "never" }, |expires| layout::time(expires.time(), now));
    let subject = Subject::Client { id: id.to_owned(), is_disabled: client.disabled };
    let own = client.scopes.iter().cloned().chain([role_of_client(id)]);
    let body = html! {
        h1 { span.kind { "Client" } (id) }
        @if let Some(state) = refused(&client, now) { p.warning { "The client is " (state) ": it may do nothing." } }
        (audit::shown(&changes, now))
        (actions::bar(&visit, On::Client, &subject))
        dl.facts {
            div { dt { "Last used" } dd { (last_used(&client, now)) } }
            div { dt { "Expires" } dd { (expires) } }
            div { dt { "Token since" } dd { (layout::time(client.last_rotated.time(), now)) } }
            div { dt { "Changed" } dd { (layout::time(client.last_modified.time(), now)) } }
            div { dt { "Created" } dd { (layout::time(client.created.time(), now)) } }
        }
        @if !client.description.is_empty() { section.panel { p.description { (client.description) } } }
        (scopes::list("Scopes", &html! { "as given" }, client.scopes.iter().map(String::as_str)))
        (scopes::expanded(&resolver, own))
        @if !changes.is_empty() { (section("Changes", &html! { "newest first" }, &audit::table(&changes, false, now))) }
    };
    Ok(Page::new(format!("Client {id}"), None, body))
}

/// Shows a token once: no other page has it.
pub(in crate::http::page) fn token_page(visit: &Visit, id: &str, token: &AccessToken, done: &str) -> Page {
    let body = html! { section.panel.form.wide {
        h1 { span.kind { "Access token of the client" } (id) }
        p.done role="status" { (done) }
        p { "Copy the token now: it cannot be shown again." }
        pre.token tabindex="0" { (token.expose()) }
        a.button href=(visit.link_to("client", &[id])) { "Go to the client" }
    } };
    Page::new(format!("Access token of {id}"), None, body)
}
