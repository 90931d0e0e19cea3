//! Dead letters of a queue, on its page.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;

use super::layout::{self, section, table};
use super::pause::reading_scope;
use super::visit::Visit;
use tenure_store::dead_letters::{self, DeadLetter};

const SHOWN_MAX: i64 = 8;

/// The newest dead letters, with their definitions by `tasks.seq`.
pub(super) struct Letters {
    rows: Vec<DeadLetter>,
    definitions: HashMap<i64, String>,
}

impl Letters {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

pub(super) async fn read(conn: &mut PgConnection, queue: i32) -> Result<Letters, sqlx::Error> {
    let rows = dead_letters::list_newest(conn, queue, SHOWN_MAX).await?;
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    let definitions = dead_letters::list_definitions(conn, &seqs).await?;
    Ok(Letters { rows, definitions })
}

/// Empty without dead letters, and for visitors who may not read the queue. `all` is their number.
pub(super) fn letters_section(
    visit: &Visit,
    name: &TaskQueueId,
    letters: &Letters,
    all: i64,
    now: DateTime<Utc>,
) -> Markup {
    if letters.is_empty() || !visit.may(reading_scope(name)) {
        return html! {};
    }
    let cells = |row: &DeadLetter| {
        let may_read = visit.may(format!("queue:get-task:{}", row.task));
        let definition = letters.definitions.get(&row.seq).filter(|_| may_read).map(String::as_str);
        vec![
            ("Task", layout::task(visit, &row.task.to_string(), definition)),
            (">Run", html! { (row.run) }),
            ("State", layout::state(row.state.as_str())),
            ("Reason", html! { (row.reason) @if let Some(by) = row.ended_by { ", " (by) } }),
            (">Failed", layout::time(row.resolved, now)),
            (">Deadline", layout::time(row.deadline, now)),
        ]
    };
    let rows: Vec<_> = letters.rows.iter().map(cells).collect();
    let count = if all < dead_letters::COUNT_MAX {
        html! { (layout::number(all)) }
    } else {
        html! { (layout::number(all)) " or more" }
    };
    let note = html! { (count) " failed tasks that wait to be run again, newest first" };
    let about = html! { p.dim {
        "A dead letter goes with its task: it is gone once the task is purged, by its " code { "expires" } " or by "
        code { "retain.failed" } " of the policy."
    } };
    section("Dead letters", &note, &html! { (about) (table(&rows)) })
}
