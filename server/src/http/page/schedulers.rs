//! Servers that can schedule a queue's runs, on the queue's page.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::layout::{self, section, table};
use super::text;
use super::visit::Visit;
use tenure_domain::scopes::Expression;
use tenure_store::schedulers::Scheduled;
use tenure_store::servers::{Servers, Stored};

const SERVERS_MAX: usize = 50;

/// Empty without a scheduler. Heartbeats use real time, which `all` contains. `now` is the time of
/// the tasks, in which terms begin.
pub(super) fn schedulers_section(
    visit: &Visit,
    scheduled: Option<&Scheduled>,
    all: &Servers,
    now: DateTime<Utc>,
) -> Markup {
    let Some(scheduled) = scheduled else { return html! {} };
    let (title, required) = ("Schedulers", Expression::from("tenure:list-servers".to_owned()));
    if !visit.may(required.clone()) {
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let is_active = |stored: &Stored| scheduled.active.server == Some(stored.server.id);
    let is_live = |stored: &Stored| stored.server.is_live(all.now);
    let cells = |stored: &&Stored| {
        let id = stored.server.id.to_string();
        let name =
            stored.name.as_deref().map_or_else(|| html! { code { (text::short(&id)) } }, |name| html! { (name) });
        let state = match (is_live(stored), is_active(stored)) {
            (false, _) => "silent",
            (true, true) => "active",
            (true, false) => "standby",
        };
        let (term, since) = if is_active(stored) {
            (
                layout::number(scheduled.active.term),
                scheduled.since.map_or_else(layout::none, |since| layout::time(since, now)),
            )
        } else {
            (layout::none(), layout::none())
        };
        vec![
            ("Server", html! { span title=(id) { (name) } }),
            ("State", layout::state(state)),
            (">Weight", layout::number(stored.server.weight.into())),
            (">Term", term),
            (">Since", since),
            (">Last beat", layout::time(stored.server.beat, all.now)),
        ]
    };
    // The scheduler first, then live candidates, then silent servers.
    let mut servers: Vec<&Stored> = all.servers.iter().collect();
    servers.sort_by_key(|stored| (!is_active(stored), !is_live(stored)));
    let rows: Vec<_> = servers.iter().take(SERVERS_MAX).map(cells).collect();
    let alone = html! {
        @if !servers.iter().any(|stored| is_active(stored) && is_live(stored)) {
            div.note { p { "No live server schedules this queue now: its runs wait." } }
        }
    };
    let note = html! { "one of them assigns the runs to sessions" @if servers.len() > SERVERS_MAX { "; the first " (SERVERS_MAX) } };
    section(title, &note, &html! { (alone) (table(&rows)) })
}
