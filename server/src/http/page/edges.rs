//! Dependencies and dependents, on a task's page.

use maud::{Markup, html};

use super::layout::{self, Cells, section, table};
use super::visit::Visit;
use tenure_api::ids::TaskId;
use tenure_domain::scopes::Expression;
use tenure_store::page::EdgeRow;

/// Tasks counted in each direction.
pub(super) const EDGES_MAX: usize = 100;
/// Tasks shown in each direction.
const EDGES_SHOWN: usize = 25;

/// An empty direction is omitted.
pub(super) fn edges(visit: &Visit, task: TaskId, rows: &[EdgeRow]) -> Markup {
    let (required, dependents): (Vec<&EdgeRow>, Vec<&EdgeRow>) = rows.iter().partition(|row| row.is_required);
    let waits = required.iter().filter(|row| !row.satisfied).count();
    let of_definition = Expression::from(format!("queue:get-task:{task}"));
    let of_dependents = Expression::from(format!("queue:list-dependent-tasks:{task}"));
    let note =
        if waits == 0 { "all have ended as they must".to_owned() } else { format!("it waits for {}", limited(waits)) };
    html! {
        (direction(visit, "Needs", &note, &required, &of_definition))
        (direction(visit, "Needed by", &limited(dependents.len()), &dependents, &of_dependents))
    }
}

/// Up to one row more than shown was read.
fn limited(count: usize) -> String {
    if count > EDGES_MAX { format!("more than {EDGES_MAX}") } else { count.to_string() }
}

fn direction(visit: &Visit, title: &str, note: &str, rows: &[&EdgeRow], required: &Expression) -> Markup {
    if rows.is_empty() {
        return Markup::default();
    }
    if !visit.may(required.clone()) {
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, required)) } });
    }
    let more = rows.len() > EDGES_SHOWN;
    let note = html! { (note) @if more { "; the first " (EDGES_SHOWN) } };
    let rows: Vec<_> = rows.iter().take(EDGES_SHOWN).map(|row| cells(visit, row)).collect();
    section(title, &note, &table(&rows))
}

fn cells(visit: &Visit, row: &EdgeRow) -> Cells {
    // Each task has its own scopes: the visitor may see only that it exists.
    let definition = row.definition.as_deref().filter(|_| visit.may(format!("queue:get-task:{}", row.task)));
    let state = if visit.may(format!("queue:status:{}", row.task)) {
        layout::state(row.state.as_str())
    } else {
        layout::none()
    };
    vec![
        ("Task", layout::task(visit, &row.task.to_string(), definition)),
        ("State", state),
        ("Queue", layout::queue(visit, &row.queue)),
    ]
}
