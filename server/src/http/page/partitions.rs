//! Partition groups on the overview.

use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::states::PartitionState;

use super::layout::{self, Cells};
use super::state::Site;
use super::visit::Visit;
use tenure_store::partitions::{self, Stored};

/// Draining groups whose members are read.
const READ_MAX: usize = 10;
/// Members named per group.
const NAMED_MAX: usize = 5;

pub(super) struct Row {
    stored: Stored,
    members: i64,
    /// Members that the proposed map waits for.
    slow: Vec<String>,
}

/// Lists the groups that the visitor may see.
pub(super) async fn list(app: &Site, visit: &Visit, conn: &mut PgConnection) -> Result<Vec<Row>, sqlx::Error> {
    let mut rows = Vec::new();
    if app.engine.facts.partitions.get().is_empty() {
        return Ok(rows);
    }
    let counts = partitions::count_members(conn).await?;
    let mut read = 0;
    for stored in partitions::list(&mut *conn).await? {
        if !visit.may(format!("tenure:get-partition:{}", stored.name)) {
            continue;
        }
        let mut slow = Vec::new();
        if stored.group.next.is_some() && read < READ_MAX {
            read += 1;
            let members = partitions::list_members(&mut *conn, stored.id).await?;
            let waits = members.into_iter().filter(|(_, member)| stored.group.waits_for(member, stored.now));
            slow.extend(waits.map(|(name, _)| name));
        }
        let members = counts.get(&stored.id).copied().unwrap_or(0);
        rows.push(Row { stored, members, slow });
    }
    Ok(rows)
}

pub(super) fn section(rows: &[Row]) -> Markup {
    if rows.is_empty() {
        return html! {};
    }
    let cells: Vec<Cells> = rows.iter().map(cells).collect();
    layout::section("Partition groups", &html! { (rows.len()) }, &layout::table(&cells))
}

fn cells(row: &Row) -> Cells {
    let Row { stored: Stored { name, group, now, .. }, members, slow } = row;
    let (state, class) = match (group.replicas, group.next) {
        (0, _) => (PartitionState::Waiting, "pending"),
        (_, Some(_)) => (PartitionState::Draining, "running"),
        (_, None) => (PartitionState::Active, "completed"),
    };
    let more = slow.len().saturating_sub(NAMED_MAX);
    let named = slow.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let state = html! {
        span class={ "state " (class) } { (state.as_str()) }
        @if let Some(next) = group.next { " " (layout::time(next.since, *now)) }
    };
    vec![
        ("Group", html! { (name) }),
        ("State", state),
        (">Shares", layout::number(i64::from(group.replicas))),
        (">Members", layout::number(*members)),
        ("Waits for", html! { (named) @if more > 0 { " and " (more) " more" } }),
    ]
}
