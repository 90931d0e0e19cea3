//! The frame and small elements of all pages.

use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{DOCTYPE, Markup, html};
use tenure_api::dates::Timestamp;

use super::text;
use super::visit::Visit;
use tenure_domain::scopes::Expression;

pub(super) const STYLE: &str = include_str!("style.css");
pub(super) const ICON: &str = include_str!("icon.svg");

pub(super) struct Page {
    pub(super) title: String,
    /// Interval, unless the visitor has stopped the refresh.
    pub(super) refresh: Option<Duration>,
    pub(super) body: Markup,
}

pub(super) fn frame(visit: &Visit, page: &Page) -> Markup {
    let stopped = visit.query("refresh") == Some("off");
    let refresh = page.refresh.filter(|_| !stopped);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                @if let Some(every) = refresh { meta http-equiv="refresh" content=(every.as_secs()); }
                title { (page.title) " · Tenure" }
                link rel="icon" type="image/svg+xml" href=(asset(visit, "icon.svg", ICON));
                link rel="stylesheet" href=(asset(visit, "style.css", STYLE));
            }
            body {
                header.top {
                    a.brand href=(visit.link("/")) { span.mark aria-hidden="true" {} "Tenure" }
                    nav { (refresh_switch(visit, page, stopped)) (account(visit)) }
                }
                main { (page.body) }
                footer { "Tenure " (env!("CARGO_PKG_VERSION")) }
            }
        }
    }
}

/// The URL contains a hash of the file, so browsers may cache it.
fn asset(visit: &Visit, name: &str, content: &str) -> String {
    // FNV-1a: a fingerprint, not a secret.
    let print = content
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    visit.link(&format!("/page/{name}?v={print:016x}"))
}

fn refresh_switch(visit: &Visit, page: &Page, stopped: bool) -> Markup {
    let Some(every) = page.refresh else { return Markup::default() };
    let path = visit.place.split('?').next().unwrap_or("/");
    html! {
        @if stopped {
            a.live.off href=(visit.link(path)) title="Load the page again by itself" { "paused" }
        } @else {
            a.live href={ (visit.link(path)) "?refresh=off" } title={ "Loads again every " (every.as_secs()) " s; click to stop" } { "live" }
        }
    }
}

fn account(visit: &Visit) -> Markup {
    html! {
        @match (&visit.session, visit.client_id()) {
            (Some(session), Some(client)) => {
                span.who title=(client) { (client) }
                form method="post" action=(visit.link("/logout")) {
                    input type="hidden" name="token" value=(session.form_token.as_str());
                    button type="submit" { "Log out" }
                }
            },
            _ => { a.button href=(visit.login()) { "Log in" } }
        }
    }
}

pub(super) fn section(title: &str, note: &Markup, body: &Markup) -> Markup {
    html! { section.panel { header { h2 { (title) } span.aside { (note) } } (body) } }
}

/// Shows the scopes that the visitor lacks.
pub(super) fn denied(visit: &Visit, required: &Expression) -> Markup {
    html! {
        p { "To see this you need " code { (required) } "." }
        p {
            @match visit.client_id() {
                Some(client) => { "You are logged in as " code { (client) } ", which does not have it." },
                None => { a href=(visit.login()) { "Log in" } " as a client that has it." }
            }
        }
    }
}

pub(super) fn empty(body: &Markup) -> Markup {
    html! { div.note { (body) } }
}

/// For data not read in time.
pub(super) fn unread() -> Markup {
    empty(&html! {
        p { "This part could not be read in time." }
        p { "While a long transaction is open, PostgreSQL keeps dead rows, and reading this part scans them." }
    })
}

/// For a value not read in time.
pub(super) fn unread_value() -> Markup {
    html! { span.dim title="This part could not be read in time." { "–" } }
}

/// Headings and cells of a row. The prefix `>` marks numbers.
pub(super) type Cells = Vec<(&'static str, Markup)>;

/// All rows must have the same columns. Cells repeat their headings for narrow screens.
pub(super) fn table(rows: &[Cells]) -> Markup {
    let words = |heading: &'static str| heading.trim_start_matches('>');
    let is_number = |heading: &str| heading.starts_with('>');
    html! {
        div.scroll { table {
            thead { tr { @for (heading, _) in rows.iter().take(1).flatten() {
                th scope="col" .number[is_number(heading)] { (words(heading)) }
            } } }
            tbody { @for row in rows { tr { @for (heading, cell) in row {
                td data-label=(words(heading)) .number[is_number(heading)] { (cell) }
            } } } }
        } }
    }
}

/// The exact time is in the title.
pub(super) fn time(time: DateTime<Utc>, now: DateTime<Utc>) -> Markup {
    let exact = Timestamp::new(time).to_string();
    html! { time datetime=(exact) title=(exact) { (text::relative(time, now)) } }
}

/// Distance from now, without direction.
pub(super) fn span(time: DateTime<Utc>, now: DateTime<Utc>) -> Markup {
    let exact = Timestamp::new(time).to_string();
    html! { time datetime=(exact) title=(exact) { (text::span(now - time)) } }
}

pub(super) fn state(word: &str) -> Markup {
    html! { span class={ "state " (word) } { (word) } }
}

/// Shows the task's name, if known.
pub(super) fn task(visit: &Visit, id: &str, definition: Option<&str>) -> Markup {
    let name = definition.and_then(text::metadata).map(|metadata| metadata.name).filter(|name| !name.trim().is_empty());
    html! {
        a.task href=(visit.link_to("task", &[id])) title=(id) {
            code { (text::short(id)) } @if let Some(name) = name { " " span.name { (name) } }
        }
    }
}

pub(super) fn queue(visit: &Visit, name: &str) -> Markup {
    let (provisioner, worker_type) = name.split_once('/').unwrap_or((name, ""));
    html! { a href=(visit.link_to("queue", &[provisioner, worker_type])) { (name) } }
}

pub(super) fn worker(visit: &Visit, group: &str, id: &str) -> Markup {
    html! { a href=(visit.link_to("worker", &[group, id])) { (group) "/" (id) } }
}

pub(super) fn none() -> Markup {
    html! { span.none { "–" } }
}

/// Dimmed if zero.
pub(super) fn number(number: i64) -> Markup {
    html! { span.zero[number == 0] { (text::count(number)) } }
}
