//! Partition groups: those on the overview, and `/partitions`.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::states::PartitionState;

use super::error::PageError;
use super::layout::{self, Cells, Page};
use super::overview::REFRESH;
use super::state::Site;
use super::visit::Visit;
use tenure_domain::partition::Group;
use tenure_store::partitions::{self, Stored};

/// Draining groups whose members are read.
const READ_MAX: usize = 10;
/// Members named per group.
const NAMED_MAX: usize = 5;
const OVERVIEW_MAX: usize = 10;
/// Groups per page of the list.
const LISTED_MAX: usize = 50;

pub(super) struct Row {
    stored: Stored,
    members: i64,
    /// Members that the proposed map waits for.
    slow: Vec<String>,
}

pub(super) fn reading_scope(name: &str) -> String {
    format!("tenure:get-partition:{name}")
}

/// Lists the groups that the visitor may see, by name.
pub(super) async fn list(app: &Site, visit: &Visit, conn: &mut PgConnection) -> Result<Vec<Row>, sqlx::Error> {
    let mut rows = Vec::new();
    if app.engine.facts.partitions.get().is_empty() {
        return Ok(rows);
    }
    let counts = partitions::count_members(conn).await?;
    let mut read = 0;
    for stored in partitions::list(&mut *conn).await? {
        if !visit.may(reading_scope(&stored.name)) {
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

/// Groups with a proposed map come first.
pub(super) fn section(visit: &Visit, mut rows: Vec<Row>) -> Markup {
    if rows.is_empty() {
        return html! {};
    }
    rows.sort_by_key(|row| row.stored.group.next.is_none());
    let all = rows.len();
    rows.truncate(OVERVIEW_MAX);
    let cells: Vec<Cells> = rows.iter().map(|row| cells(visit, row)).collect();
    let note = html! {
        (all) @if all > OVERVIEW_MAX { " · " a href=(visit.link("/partitions")) { "all partition groups" } }
    };
    layout::section("Partition groups", &note, &layout::table(&cells))
}

/// `GET /partitions`; `?after=` continues after a name.
pub(super) async fn partitions(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let mut conn = app.engine.pool.acquire().await?;
    let mut rows = list(&app, &visit, &mut conn).await?;
    drop(conn);
    let after = visit.query("after").unwrap_or_default();
    rows.retain(|row| row.stored.name.as_str() > after);
    let next = rows.get(LISTED_MAX - 1).filter(|_| rows.len() > LISTED_MAX).map(|row| row.stored.name.clone());
    rows.truncate(LISTED_MAX);
    let cells: Vec<Cells> = rows.iter().map(|row| cells(&visit, row)).collect();
    let note = html! { @if !after.is_empty() { "after " (after) } };
    let body = html! {
        h1 { "Partition groups" }
        @if cells.is_empty() {
            (layout::section("Partition groups", &note, &layout::empty(&html! { p { "There is none that you may see." } })))
        } @else {
            (layout::section("Partition groups", &note, &layout::table(&cells)))
        }
        @if let Some(next) = next {
            p { a href={ (visit.link("/partitions")) "?after=" (next) } { "Next partition groups" } }
        }
    };
    Ok(Page::new("Partition groups", Some(REFRESH), body))
}

pub(super) fn state(group: &Group, now: DateTime<Utc>) -> Markup {
    let (state, class) = match (group.replicas, group.next) {
        (0, _) => (PartitionState::Waiting, "pending"),
        (_, Some(_)) => (PartitionState::Draining, "running"),
        (_, None) => (PartitionState::Active, "completed"),
    };
    html! {
        span class={ "state " (class) } { (state.as_str()) }
        @if let Some(next) = group.next { " " (layout::time(next.since, now)) }
    }
}

fn cells(visit: &Visit, row: &Row) -> Cells {
    let Row { stored: Stored { name, group, now, .. }, members, slow } = row;
    let more = slow.len().saturating_sub(NAMED_MAX);
    let named = slow.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    vec![
        ("Group", html! { a href=(visit.link_to("partition", &[name])) { (name) } }),
        ("State", state(group, *now)),
        (">Shares", layout::number(i64::from(group.replicas))),
        (">Members", layout::number(*members)),
        ("Waits for", html! { (named) @if more > 0 { " and " (more) " more" } }),
    ]
}
