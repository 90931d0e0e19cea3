//! The latest changes of an object, for visitors who may list the audit.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;

use super::layout;
use super::text;
use super::visit::Visit;
use crate::http::api::audit::scope;
use tenure_domain::audit::{Kind, words};
use tenure_store::audit::{self, Filter, Recorded};

const SHOWN: usize = 3;
/// On the page of a worker, client or role.
const HISTORY_SHOWN: i64 = 15;
/// On the page about the installation.
const NEWEST_SHOWN: i64 = 10;
/// In bytes; the API has the rest.
const DETAIL_SHOWN: usize = 200;

/// Reads the latest changes of these objects together.
pub(super) async fn latest(
    conn: &mut PgConnection,
    visit: &Visit,
    kind: Kind,
    objects: &[String],
) -> Result<Vec<Recorded>, sqlx::Error> {
    read(conn, visit, kind, objects, SHOWN as i64).await
}

/// Reads more changes, for a table.
pub(super) async fn history(
    conn: &mut PgConnection,
    visit: &Visit,
    kind: Kind,
    objects: &[String],
) -> Result<Vec<Recorded>, sqlx::Error> {
    read(conn, visit, kind, objects, HISTORY_SHOWN).await
}

/// Reads the newest changes of all objects.
pub(super) async fn newest(conn: &mut PgConnection, visit: &Visit) -> Result<Vec<Recorded>, sqlx::Error> {
    if !visit.may(scope()) {
        return Ok(Vec::new());
    }
    Ok(audit::list(conn, Filter::default(), None, NEWEST_SHOWN).await?.rows)
}

async fn read(
    conn: &mut PgConnection,
    visit: &Visit,
    kind: Kind,
    objects: &[String],
    limit: i64,
) -> Result<Vec<Recorded>, sqlx::Error> {
    if objects.is_empty() || !visit.may(scope()) {
        return Ok(Vec::new());
    }
    audit::list_latest(conn, kind, objects, limit).await
}

/// Empty without changes. A list of one kind of objects needs no column for them.
pub(super) fn table(changes: &[Recorded], with_objects: bool, now: DateTime<Utc>) -> Markup {
    let cells = |change: &Recorded| {
        let (detail, is_cut) = text::beginning(&change.detail, DETAIL_SHOWN);
        let mut cells = vec![
            ("What", html! { (words(&change.action)) }),
            ("By", html! { code { (change.client_id) } }),
            (">When", layout::time(change.at, now)),
        ];
        if with_objects {
            let object = html! { (change.kind) " " span.said { (change.object) } };
            cells.insert(1, ("Object", object));
        }
        let detail = html! { code { (detail) @if is_cut { "…" } } };
        cells.push(("Detail", layout::said(&detail)));
        cells
    };
    html! { @if !changes.is_empty() { (layout::table(&changes.iter().map(cells).collect::<Vec<_>>())) } }
}

/// As in "Cancelled by acme/ops 3 m ago".
pub(super) fn shown(changes: &[Recorded], now: DateTime<Utc>) -> Markup {
    html! { @if !changes.is_empty() {
        p.dim.changes {
            @for (n, change) in changes.iter().take(SHOWN).enumerate() {
                @if n > 0 { " · " }
                span title=(change.detail) { (words(&change.action)) " by " (change.client_id) " " (layout::time(change.at, now)) }
            }
        }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_engine::clock::real_now;

    #[test]
    fn changes_name_client_and_time() {
        let now = real_now();
        let change = |action: &str| Recorded {
            id: 1,
            at: now,
            client_id: "acme/<ops>".to_owned(),
            action: action.to_owned(),
            kind: "task".to_owned(),
            object: "t".to_owned(),
            detail: "{}".to_owned(),
            trace_id: None,
        };
        let text = shown(&[change("cancelTask"), change("frobTask")], now).into_string();
        assert!(text.contains("Cancelled by acme/&lt;ops&gt; <time"), "{text}");
        assert!(text.contains(" · ") && text.contains("frobTask by"), "{text}");
        assert_eq!(shown(&[], now).into_string(), "");
    }
}
