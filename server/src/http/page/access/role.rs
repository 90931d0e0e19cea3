//! `/role/<roleId>`: a role.

use std::sync::Arc;

use maud::html;
use percent_encoding::utf8_percent_encode;

use super::{resolver, scopes};
use crate::http::page::actions::{self, On, Subject};
use crate::http::page::audit;
use crate::http::page::error::PageError;
use crate::http::page::layout::{self, Page, section};
use crate::http::page::state::Site;
use crate::http::page::visit::{SEGMENT, Visit};
use tenure_domain::audit::Kind;
use tenure_domain::roles::{ASSUME, valid_role_id};
use tenure_store::{clock, page, roles};

pub(in crate::http::page) fn role_of(visit: &Visit) -> Result<&str, PageError> {
    let id = visit.param("roleId");
    if valid_role_id(id) { Ok(id) } else { Err(PageError::NotFound("This is not the id of a role.".to_owned())) }
}

/// `GET /role/:roleId`
pub(in crate::http::page) async fn role(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let id = role_of(&visit)?;
    visit.authorize(format!("auth:get-role:{id}"))?;
    let resolver = resolver(&app).await?;
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let found = roles::find(&mut *conn, id).await?;
    let role = found.ok_or_else(|| PageError::NotFound(format!("There is no role {id}.")))?;
    let changes = audit::history(&mut conn, &visit, Kind::Role, &[id.to_owned()]).await?;
    conn.commit().await?;
    let assumes = format!("{ASSUME}{id}");
    let who = format!("{}?scope={}", visit.link("/access"), utf8_percent_encode(&assumes, SEGMENT));
    let body = html! {
        h1 { span.kind { "Role" } (id) }
        (audit::shown(&changes, now))
        (actions::bar(&visit, On::Role, &Subject::Role(id.to_owned())))
        dl.facts {
            div { dt { "Changed" } dd { (layout::time(role.last_modified.time(), now)) } }
            div { dt { "Created" } dd { (layout::time(role.created.time(), now)) } }
            div { dt { "Clients" } dd { a href=(who) { "who has it?" } } }
        }
        @if !role.description.is_empty() { section.panel { p.description { (role.description) } } }
        (scopes::list("Scopes", &html! { "as given" }, role.scopes.iter().map(String::as_str)))
        (scopes::expanded(&resolver, [assumes]))
        @if !changes.is_empty() { (section("Changes", &html! { "newest first" }, &audit::table(&changes, false, now))) }
    };
    Ok(Page::new(format!("Role {id}"), None, body))
}
