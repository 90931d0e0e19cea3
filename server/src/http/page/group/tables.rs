//! Tables of a group's tasks, one for each section.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use tenure_api::ids::{TaskGroupId, TaskId};

use super::members::Members;
use super::sections::Section;
use crate::http::page::layout::{self, Cells, section, table};
use crate::http::page::text;
use crate::http::page::visit::Visit;
use tenure_store::page::GroupTaskRow;

/// `link` returns the address of a section, from its beginning or after a task.
pub(super) fn all(
    visit: &Visit,
    group: TaskGroupId,
    members: &Members,
    now: DateTime<Utc>,
    link: impl Fn((Section, Option<TaskId>)) -> String,
) -> Markup {
    let is_alone = members.shown.len() == 1;
    html! {
        @if is_alone { p.dim { a href=(visit.link_to("group", &[&group.to_string()])) { "The whole group" } } }
        @for (of, seqs) in &members.shown {
            @let total = members.tasks_of(*of).len();
            @if total > 0 || is_alone { (one(visit, members, *of, seqs, now, &link)) }
        }
    }
}

fn one(
    visit: &Visit,
    members: &Members,
    of: Section,
    seqs: &[i64],
    now: DateTime<Utc>,
    link: &impl Fn((Section, Option<TaskId>)) -> String,
) -> Markup {
    let rows: Vec<&GroupTaskRow> = seqs.iter().filter_map(|seq| members.rows.get(seq)).collect();
    let count = |count: usize| text::count(i64::try_from(count).unwrap_or(i64::MAX));
    let tasks = members.tasks_of(of);
    let total = tasks.len();
    // A page of one section continues after its last task.
    let is_cut = seqs.last().is_some_and(|last| tasks.last().is_some_and(|task| task.seq > *last));
    let next = rows.last().filter(|_| is_cut && members.shown.len() == 1).map(|row| row.task);
    let note = html! {
        @if rows.len() < total { (count(rows.len())) " of " }
        (count(total))
        @if members.shown.len() > 1 && rows.len() < total { " · " a href=(link((of, None))) { "all" } }
        @if let Some(next) = next { " · " a href=(link((of, Some(next)))) { "the next" } }
    };
    let cells: Vec<Cells> = rows.iter().map(|row| cells(visit, members, of, row, now)).collect();
    let body = html! {
        @if of == Section::Never && !cells.is_empty() {
            div.note { p { "A task that these need has failed. Rerun it, or schedule them without it." } }
        }
        @if !cells.is_empty() { (table(&cells)) }
        @if cells.is_empty() && members.shown.len() == 1 { (layout::empty(&html! { p { "No further task." } })) }
    };
    section(of.title(), &note, &body)
}

fn cells(visit: &Visit, members: &Members, of: Section, row: &GroupTaskRow, now: DateTime<Utc>) -> Cells {
    let mut cells = vec![("Task", layout::task(visit, &row.task.to_string(), row.definition.as_deref()))];
    match of {
        Section::Failed => cells.extend([("State", layout::state(row.state.as_str())), ("Reason", reason(row))]),
        Section::Never => cells.push(("Because of", fault(visit, members, row))),
        Section::Running | Section::Waiting | Section::Unscheduled | Section::Completed => {}
    }
    cells.push(("Queue", layout::queue(visit, &row.queue)));
    match of {
        Section::Failed | Section::Completed => {
            cells.extend([("Worker", worker(visit, row)), (">Waited", waited(row, now)), (">Took", took(row, now))]);
            cells.push((">Ended", row.resolved.map_or_else(layout::none, |time| layout::time(time, now))));
        }
        Section::Running => {
            cells.extend([("Worker", worker(visit, row)), (">Waited", waited(row, now))]);
            cells.push((">Running for", took(row, now)));
        }
        Section::Waiting => {
            cells.extend([("Priority", html! { (row.priority) }), (">Waiting for", waited(row, now))]);
        }
        Section::Never | Section::Unscheduled => cells.push(("Priority", html! { (row.priority) })),
    }
    cells.push((">Runs", layout::number(row.run.map_or(0, |run| i64::from(run.number()) + 1))));
    cells
}

fn reason(row: &GroupTaskRow) -> Markup {
    let reason = row.reason.filter(|reason| reason.as_str() != row.state.as_str());
    reason.map_or_else(layout::none, |reason| html! { (reason) })
}

fn worker(visit: &Visit, row: &GroupTaskRow) -> Markup {
    row.worker.as_ref().map_or_else(layout::none, |(group, id)| layout::worker(visit, group, id))
}

/// Of the last run.
fn waited(row: &GroupTaskRow, now: DateTime<Utc>) -> Markup {
    let Some(scheduled) = row.scheduled else { return layout::none() };
    html! { (text::span(row.started.or(row.resolved).unwrap_or(now) - scheduled)) }
}

/// Of the last run.
fn took(row: &GroupTaskRow, now: DateTime<Utc>) -> Markup {
    let Some(started) = row.started else { return layout::none() };
    html! { (text::span(row.resolved.unwrap_or(now) - started)) }
}

/// The failed task. Its name needs a scope of its own if it belongs to another group.
fn fault(visit: &Visit, members: &Members, row: &GroupTaskRow) -> Markup {
    let fault = members.blocked.get(&row.seq).and_then(|seq| members.rows.get(seq));
    let Some(fault) = fault else { return layout::none() };
    let is_readable = members.contains(fault.seq) || visit.may(format!("queue:get-task:{}", fault.task));
    let definition = fault.definition.as_deref().filter(|_| is_readable);
    html! { (layout::task(visit, &fault.task.to_string(), definition)) " " (layout::state(fault.state.as_str())) }
}
