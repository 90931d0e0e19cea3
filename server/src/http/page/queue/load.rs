//! Why a queue is slow: causes that hold its runs, its limits, and the wait of each priority.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use tenure_api::policy::QueueCounts;

use crate::http::page::charts::{Part, bar};
use crate::http::page::layout::{self, section, table};
use crate::http::page::text;
use tenure_domain::policy::held_by::{HeldBy, LimitsNow, divide};
use tenure_store::page::PriorityRow;

fn class(held: HeldBy) -> &'static str {
    match held {
        HeldBy::Nothing => "c1",
        HeldBy::Pause => "c2",
        HeldBy::Limit => "c3",
        HeldBy::Session => "c4",
        HeldBy::Delay => "c5",
    }
}

/// Empty without pending and delayed runs. `limits` are for visitors who may see the policy.
pub(super) fn held_by(counts: &QueueCounts, is_paused: bool, limits: Option<&LimitsNow>, now: DateTime<Utc>) -> Markup {
    let parts = divide(counts, is_paused);
    if parts.is_empty() {
        return html! {};
    }
    let is_limited = parts.iter().any(|(held, _)| *held == HeldBy::Limit);
    let words = limits.filter(|_| is_limited).and_then(|limits| limits.words(now));
    let note = html! { @if let Some(words) = words { (words) } };
    let parts: Vec<Part> =
        parts.iter().map(|(held, number)| Part { name: held.words(), class: class(*held), number: *number }).collect();
    section("What holds its runs", &note, &html! { div.load { (bar(&parts, text::count)) } })
}

/// A figure with a meter.
pub(super) fn used(name: &str, about: &str, used: i64, limit: i64) -> Markup {
    html! {
        div {
            dt title=(about) { (name) }
            dd {
                (text::count(used)) " of " (text::count(limit))
                meter min="0" max=(limit) high=(limit - limit / 10) value=(used) aria-label=(name) {}
            }
        }
    }
}

/// Empty without pending runs.
pub(super) fn priorities(rows: Option<&[PriorityRow]>, now: DateTime<Utc>) -> Markup {
    let title = "Wait by priority";
    let Some(rows) = rows else { return section(title, &html! {}, &layout::unread()) };
    if rows.is_empty() {
        return html! {};
    }
    let cells = |row: &PriorityRow| {
        vec![("Priority", html! { (row.priority) }), (">Oldest has waited for", layout::span(row.oldest, now))]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    section(title, &html! { "the first is served first" }, &table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    #[test]
    fn limit_is_named_if_it_holds_a_run() {
        let limits = LimitsNow { total: Some((12, 12)), ..LimitsNow::default() };
        let shown = |runnable| {
            let counts = QueueCounts { pending: 5, waiting: 5, runnable, ..QueueCounts::default() };
            held_by(&counts, false, Some(&limits), NOW).into_string()
        };
        assert!(shown(2).contains("12 of 12 slots used") && shown(2).contains("3 held by limits"), "{}", shown(2));
        assert!(!shown(5).contains("slots used"), "{}", shown(5));
        assert_eq!(held_by(&QueueCounts::default(), false, None, NOW).0, "");
    }
}
