//! The frame and small elements of all pages.

use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{DOCTYPE, Markup, html};
use tenure_api::dates::Timestamp;

use super::menu::{MENU, current};
use super::text;
use super::visit::Visit;
use tenure_domain::scopes::Expression;
use tenure_engine::clock::real_now;

pub(super) const STYLE: &str = include_str!("style.css");
pub(super) const SCRIPT: &str = include_str!("refresh.js");
pub(super) const ICON: &str = include_str!("icon.svg");

pub(super) struct Page {
    pub(super) title: String,
    /// Interval, unless the visitor has stopped the refresh.
    pub(super) refresh: Option<Duration>,
    /// True if another page has this address once the error has passed.
    pub(super) is_error: bool,
    pub(super) body: Markup,
}

impl Page {
    pub(super) fn new(title: impl Into<String>, refresh: Option<Duration>, body: Markup) -> Self {
        Self { title: title.into(), refresh, is_error: false, body }
    }
}

/// Who loads the page again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refresh {
    /// Nobody: the page does not change.
    Never,
    /// Nobody: the visitor has stopped it.
    Stopped,
    /// The script, which keeps selections and scroll positions.
    Script(Duration),
    /// The browser, for visitors without scripts who asked for it.
    Browser(Duration),
}

impl Refresh {
    fn of(visit: &Visit, page: &Page) -> Self {
        let Some(every) = page.refresh.filter(|_| visit.is_read) else { return Self::Never };
        match visit.query("refresh") {
            Some("off") => Self::Stopped,
            Some(seconds) if seconds == every.as_secs().to_string() => Self::Browser(every),
            Some(_) | None => Self::Script(every),
        }
    }
}

pub(super) fn frame(visit: &Visit, page: &Page) -> Markup {
    let refresh = Refresh::of(visit, page);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="robots" content="noindex";
                @if let Refresh::Browser(every) = refresh { meta http-equiv="refresh" content=(every.as_secs()); }
                title { (page.title) " · Tenure" }
                link rel="icon" type="image/svg+xml" href=(asset(visit, "icon.svg", ICON));
                link rel="stylesheet" href=(asset(visit, "style.css", STYLE));
                @if let Refresh::Script(every) = refresh {
                    script src=(asset(visit, "refresh.js", SCRIPT)) data-every=(every.as_secs()) data-whole=[page.is_error.then_some("true")] defer {}
                }
            }
            body {
                header.top {
                    a.brand href=(visit.link("/")) { span.mark aria-hidden="true" {} "Tenure" }
                    (menu(visit))
                    (search(visit))
                    div.corner { (clock()) (refresh_switch(visit, refresh)) (account(visit)) }
                }
                main {
                    @if let Some(done) = &visit.done { p.done role="status" { (done) } }
                    (page.body)
                }
                footer { "Tenure " (env!("CARGO_PKG_VERSION")) }
            }
        }
    }
}

fn menu(visit: &Visit) -> Markup {
    let path = visit.place.split('?').next().unwrap_or("/");
    html! {
        nav.menu aria-label="Pages" {
            @for (entry, name) in MENU {
                a href=(visit.link(entry)) aria-current=[current(entry, path).filter(|_| visit.is_read)] { (name) }
            }
        }
    }
}

/// `GET /search` leads to the page of an object, or lists tasks.
fn search(visit: &Visit) -> Markup {
    html! {
        form.search role="search" method="get" action=(visit.link("/search")) {
            label {
                span.sr { "Search" }
                input type="search" name="q" maxlength="300" placeholder="Task, queue or worker" autocomplete="off";
            }
        }
    }
}

/// Time of the page, which its relative times refer to.
fn clock() -> Markup {
    let now = real_now();
    html! {
        time.clock datetime=(Timestamp::new(now)) title="Time of this page, by the server's clock" {
            (now.format("%H:%M:%S").to_string()) " UTC"
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

/// Changes `refresh` in the query, and keeps the rest of the address.
fn with_refresh(place: &str, refresh: Option<&str>) -> String {
    let (path, query) = place.split_once('?').unwrap_or((place, ""));
    let others = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("refresh="));
    let pairs: Vec<String> =
        others.map(str::to_owned).chain(refresh.map(|refresh| format!("refresh={refresh}"))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

fn refresh_switch(visit: &Visit, refresh: Refresh) -> Markup {
    let address = |refresh: Option<&str>| visit.link(&with_refresh(&visit.place, refresh));
    let stop = |every: Duration, class: &str| {
        let title = "The page loads itself again; click to stop";
        html! { a class=(class) href=(address(Some("off"))) title=(title) { "every " (every.as_secs()) " s" } }
    };
    html! {
        @match refresh {
            Refresh::Never => {},
            Refresh::Stopped => {
                a.live.off href=(address(None)) title="Let the page load itself again" { "stopped" }
            },
            Refresh::Browser(every) => (stop(every, "live")),
            Refresh::Script(every) => {
                (stop(every, "live scripted"))
                noscript {
                    a href="" { "load again" } " "
                    a href=(address(Some(&every.as_secs().to_string()))) { "every " (every.as_secs()) " s" }
                }
            }
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
        div.scroll tabindex="0" { table {
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

/// A sentence with its dates as times of day and distances.
pub(super) fn sentence(text: &str, now: DateTime<Utc>) -> Markup {
    html! { @for part in text::parts(text) { @match part {
        text::Part::Words(words) => (words),
        text::Part::Time(at) => (moment(at, now)),
    } } }
}

fn moment(time: DateTime<Utc>, now: DateTime<Utc>) -> Markup {
    let exact = Timestamp::new(time).to_string();
    let format = if time.date_naive() == now.date_naive() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    html! {
        time datetime=(exact) title=(exact) { (time.format(format).to_string()) " UTC (" (text::relative(time, now)) ")" }
    }
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
    let name = definition.and_then(text::metadata).map(|metadata| metadata.name);
    named_task(visit, id, name.as_deref())
}

pub(super) fn named_task(visit: &Visit, id: &str, name: Option<&str>) -> Markup {
    let name = name.filter(|name| !name.trim().is_empty());
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

/// Words in a cell, which may take several lines.
pub(super) fn said(words: &Markup) -> Markup {
    html! { span.said { (words) } }
}

pub(super) fn none() -> Markup {
    html! { span.none { "–" } }
}

/// Dimmed if zero.
pub(super) fn number(number: i64) -> Markup {
    html! { span.zero[number == 0] { (text::count(number)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_of_refresh_keeps_the_query() {
        for (place, refresh, expected) in [
            ("/", Some("off"), "/?refresh=off"),
            ("/?refresh=off", None, "/"),
            ("/workers?queue=a%2Fb", Some("5"), "/workers?queue=a%2Fb&refresh=5"),
            ("/workers?refresh=5&queue=a&state=idle", Some("off"), "/workers?queue=a&state=idle&refresh=off"),
        ] {
            assert_eq!(with_refresh(place, refresh), expected, "{place}");
        }
    }
}
