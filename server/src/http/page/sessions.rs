//! A queue's sessions, on its page.

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use tenure_api::ids::SessionId;

use super::layout::{self, section, table};
use super::text;
use super::visit::Visit;
use tenure_store::worker_sessions::Member;

pub(super) const SESSIONS_MAX: i64 = 10;

/// Live sessions. Their claims are on the workers' pages.
pub(super) fn sessions_section(visit: &Visit, members: &[Member], now: DateTime<Utc>) -> Markup {
    if members.is_empty() {
        return html! {};
    }
    let cells = |member: &Member| {
        let Member { identity, weight, capacity, frozen, until, running, assigned } = member;
        let left = html! { span.soon[*until <= now] {
            @if *until <= now { "over by " }
            (layout::span(*until, now))
        } };
        // A renewal lasts for the whole time to live.
        let renewed = *until - TimeDelta::seconds(identity.ttl);
        let frozen = if *frozen { layout::state("frozen") } else { layout::none() };
        vec![
            ("Worker", layout::worker(visit, identity.worker_group.as_str(), identity.worker_id.as_str())),
            ("Session", link(visit, identity.id)),
            (">Running", layout::number(*running)),
            (">Assigned", layout::number(*assigned)),
            (">Capacity", layout::number((*capacity).into())),
            (">Weight", layout::number((*weight).into())),
            ("Frozen", frozen),
            (">Live for", layout::span(identity.started, now)),
            (">Last renewed", layout::time(renewed.max(identity.started), now)),
            (">Time left", left),
        ]
    };
    let shown = usize::try_from(SESSIONS_MAX).unwrap_or(usize::MAX);
    let rows: Vec<_> = members.iter().take(shown).map(cells).collect();
    let note =
        html! { "when a session ends, its runs go to others" @if members.len() > shown { "; the first " (shown) } };
    section("Sessions", &note, &table(&rows))
}

pub(super) fn link(visit: &Visit, id: SessionId) -> Markup {
    let id = id.to_string();
    html! { a href=(visit.link_to("session", &[&id])) title=(id) { code { (text::short(&id)) } } }
}
