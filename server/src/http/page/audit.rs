//! The latest changes of an object, for visitors who may list the audit.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;

use super::layout;
use super::visit::Visit;
use crate::http::api::audit::scope;
use tenure_domain::audit::{Kind, words};
use tenure_store::audit::{self, Recorded};

const SHOWN: i64 = 3;

/// Reads the latest changes of these objects together.
pub(super) async fn latest(
    conn: &mut PgConnection,
    visit: &Visit,
    kind: Kind,
    objects: &[String],
) -> Result<Vec<Recorded>, sqlx::Error> {
    if objects.is_empty() || !visit.may(scope()) {
        return Ok(Vec::new());
    }
    audit::list_latest(conn, kind, objects, SHOWN).await
}

/// As in "Cancelled by acme/ops 3 m ago".
pub(super) fn shown(changes: &[Recorded], now: DateTime<Utc>) -> Markup {
    html! { @if !changes.is_empty() {
        p.dim.changes {
            @for (n, change) in changes.iter().enumerate() {
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
