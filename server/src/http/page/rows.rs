//! Tables shared by several pages.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use tenure_api::policy::Failure;
use tenure_api::states::RunState;

use super::layout::{self, section, table};
use super::text;
use super::visit::Visit;
use tenure_domain::presence::{Known, Presence};
use tenure_domain::scopes::Expression;
use tenure_domain::verdict::failure_line;
use tenure_store::events::Sequenced;
use tenure_store::page::{self, ClaimRow, EndedRow, Ends, Filter, HolderRow, Named, WorkerRow};

pub(super) const ROWS_MAX: i64 = 25;
const WORKERS_MAX: usize = 40;
/// Claims close to expiry are marked: the worker may be dead.
const ENDS_SOON: TimeDelta = TimeDelta::seconds(60);

pub(super) fn claims_scope(queue: &str) -> Expression {
    format!("queue:claimed-list:{queue}").into()
}

pub(super) fn workers_scope(queue: &str) -> Expression {
    format!("queue:list-workers:{queue}").into()
}

/// Removes the definition, and with it the task's name, unless the visitor may read it.
pub(super) fn hide_definition(visit: &Visit, task: TaskId, definition: &mut Option<String>) {
    if !visit.may(format!("queue:get-task:{task}")) {
        *definition = None;
    }
}

/// Columns to omit on a page about one queue or one worker.
#[derive(Clone, Copy, Default)]
pub(super) struct About {
    pub queue: bool,
    pub worker: bool,
}

/// Earliest expiry first.
pub(super) fn claims(visit: &Visit, rows: &[ClaimRow], now: DateTime<Utc>, about: About) -> Markup {
    let cells = |row: &ClaimRow| {
        let left = html! { span.soon[row.taken_until - now < ENDS_SOON] {
            @if row.taken_until <= now { "over by " }
            (layout::span(row.taken_until, now))
        } };
        let mut cells = vec![
            ("Task", layout::task(visit, &row.task.to_string(), row.definition.as_deref())),
            (">Run", html! { (row.run) }),
        ];
        if !about.queue {
            cells.push(("Queue", layout::queue(visit, &row.queue)));
        }
        if !about.worker {
            cells.push(("Worker", layout::worker(visit, &row.worker_group, &row.worker_id)));
        }
        cells.extend([(">Running for", layout::span(row.started, now)), (">Time left", left)]);
        cells
    };
    table(&rows.iter().map(cells).collect::<Vec<_>>())
}

/// Newest first.
pub(super) fn ended(visit: &Visit, rows: &[EndedRow], now: DateTime<Utc>, about: About) -> Markup {
    let cells = |row: &EndedRow| {
        let reason = html! {
            @if row.reason.as_str() != row.state.as_str() { (row.reason) " " }
            @if let Some(line) = row.failure.as_deref().and_then(failure) { (layout::said(&html! { (line) })) " " }
            @if row.retried { span.dim { "tried again" } }
        };
        let mut cells = vec![
            ("Task", layout::task(visit, &row.task.to_string(), row.definition.as_deref())),
            (">Run", html! { (row.run) }),
            ("State", layout::state(row.state.as_str())),
            ("Reason", reason),
        ];
        if !about.queue {
            cells.push(("Queue", layout::queue(visit, &row.queue)));
        }
        if !about.worker {
            let worker = row.worker.as_ref().map(|(group, id)| layout::worker(visit, group, id));
            cells.push(("Worker", worker.unwrap_or_else(layout::none)));
        }
        cells.push((">Ended", layout::time(row.resolved, now)));
        cells
    };
    table(&rows.iter().map(cells).collect::<Vec<_>>())
}

/// The failure in one line, with the exit code of its command.
fn failure(json: &str) -> Option<String> {
    let failure: Failure = serde_json::from_str(json).ok()?;
    let line = failure_line(&failure);
    Some(match failure.exit_code {
        Some(code) if !line.contains("exit code") => format!("exit code {code}: {line}"),
        Some(_) | None => line,
    })
}

pub(super) async fn failures(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    visit: &Visit,
    filter: Filter<'_>,
) -> Result<Vec<EndedRow>, sqlx::Error> {
    let mut rows = page::list_ended(conn, sequenced, Ends::Failures, filter, ROWS_MAX).await?;
    rows.retain(|row| visit.may(format!("queue:status:{}", row.task)));
    for row in &mut rows {
        hide_definition(visit, row.task, &mut row.definition);
        if !visit.may(format!("tenure:get-result:{}", row.queue)) {
            row.failure = None;
        }
    }
    Ok(rows)
}

pub(super) fn failures_section(visit: &Visit, rows: &[EndedRow], now: DateTime<Utc>, about: About) -> Markup {
    let note = html! { "failed runs and exceptions, newest first; without cancelled tasks" };
    if rows.is_empty() {
        let note = html! { p { "Nothing has failed lately in the newest part of the event log." } };
        return section("Latest failures", &html! {}, &layout::empty(&note));
    }
    section("Latest failures", &note, &ended(visit, rows, now, about))
}

/// Recent activity of a worker in a queue.
pub(super) struct Work {
    queue: String,
    group: String,
    id: String,
    running: i64,
    completed: i64,
    failed: i64,
    seen: DateTime<Utc>,
    presence: Option<Presence>,
}

pub(super) fn presence(row: &WorkerRow, claims: i64, now: DateTime<Utc>) -> Presence {
    let WorkerRow { quarantine_until, removed, frozen, .. } = *row;
    Presence::of(Known { contact: row.contact(), quarantine_until, removed, frozen, claims }, now)
}

/// Adds the workers' presences, even without recent activity. Latest contact first.
pub(super) fn with_presence(mut all: Vec<Work>, known: &[WorkerRow], now: DateTime<Utc>) -> Vec<Work> {
    let mut by_name: HashMap<(String, String), Work> =
        all.drain(..).map(|work| ((work.group.clone(), work.id.clone()), work)).collect();
    for row in known {
        let name = (row.worker_group.clone(), row.worker_id.clone());
        let work = by_name.entry(name).or_insert_with(|| Work {
            queue: row.queue_name.clone(),
            group: row.worker_group.clone(),
            id: row.worker_id.clone(),
            running: 0,
            completed: 0,
            failed: 0,
            seen: row.contact(),
            presence: None,
        });
        work.presence = Some(presence(row, work.running, now));
        work.seen = work.seen.max(row.contact());
    }
    all.extend(by_name.into_values());
    sort(&mut all);
    all
}

fn sort(all: &mut [Work]) {
    all.sort_by(|a, b| b.seen.cmp(&a.seen).then_with(|| (&a.group, &a.id, &a.queue).cmp(&(&b.group, &b.id, &b.queue))));
}

/// Adds the presences of the workers to show.
pub(super) async fn of_named(
    conn: &mut PgConnection,
    all: Vec<Work>,
    now: DateTime<Utc>,
) -> Result<Vec<Work>, sqlx::Error> {
    let known = page::list_named(conn, &all.iter().take(WORKERS_MAX).map(Work::name).collect::<Vec<_>>()).await?;
    Ok(with_presence(all, &known, now))
}

/// Latest activity first.
pub(super) fn work(holders: &[HolderRow], ended: &[EndedRow]) -> Vec<Work> {
    let mut found: HashMap<(&str, &str, &str), Work> = HashMap::new();
    let new_row = |queue: &str, group: &str, id: &str, seen: DateTime<Utc>| Work {
        queue: queue.to_owned(),
        group: group.to_owned(),
        id: id.to_owned(),
        running: 0,
        completed: 0,
        failed: 0,
        seen,
        presence: None,
    };
    for row in holders {
        let (queue, group, id) = (row.queue.as_str(), row.worker_group.as_str(), row.worker_id.as_str());
        let entry = found.entry((queue, group, id)).or_insert_with(|| new_row(queue, group, id, row.last_claimed));
        entry.running += row.running;
        entry.seen = entry.seen.max(row.last_claimed);
    }
    for row in ended {
        let Some((group, id)) = &row.worker else { continue };
        let entry =
            found.entry((&row.queue, group, id)).or_insert_with(|| new_row(&row.queue, group, id, row.resolved));
        entry.seen = entry.seen.max(row.resolved);
        match row.state {
            RunState::Completed => entry.completed += 1,
            RunState::Failed | RunState::Exception => entry.failed += 1,
            RunState::Pending | RunState::Running => {}
        }
    }
    let mut all: Vec<Work> = found.into_values().collect();
    sort(&mut all);
    all
}

pub(super) fn how_to_start(visit: &Visit) -> Markup {
    html! {
        p { "Start one:" }
        pre tabindex="0" { "tenure-worker run --root-url " (visit.root_url) " --task-queue " i { "QUEUE" } " --worker-group "
            i { "GROUP" } " --worker-id " i { "ID" } }
    }
}

/// `all` has the workers that the visitor may see; none if not read in time.
pub(super) fn workers_section(visit: &Visit, all: Option<&[Work]>, now: DateTime<Utc>, about: About) -> Markup {
    let Some(all) = all else { return section("Workers", &html! {}, &layout::unread()) };
    if all.is_empty() {
        let note = html! { p { "No worker holds a task or has finished one lately." } (how_to_start(visit)) };
        return section("Workers", &html! {}, &layout::empty(&note));
    }
    let states = all.iter().any(|work| work.presence.is_some());
    let cells = |work: &Work| {
        let mut cells = vec![("Worker", layout::worker(visit, &work.group, &work.id))];
        if !about.queue {
            cells.push(("Queue", layout::queue(visit, &work.queue)));
        }
        if states {
            cells.push(("State", work.presence.map_or_else(layout::none, |presence| layout::state(presence.as_str()))));
        }
        cells.extend([
            (">Running", layout::number(work.running)),
            (">Completed", layout::number(work.completed)),
            (">Failed", layout::number(work.failed)),
            (if states { ">Last contact" } else { ">Last seen" }, layout::time(work.seen, now)),
        ]);
        cells
    };
    let rows: Vec<_> = all.iter().take(WORKERS_MAX).map(cells).collect();
    let note = html! { "by what they hold, and the last " (text::count(page::ENDED_READ)) " runs that ended"
    @if all.len() > WORKERS_MAX { "; " (WORKERS_MAX) " of " (all.len()) " shown" } };
    section("Workers", &note, &table(&rows))
}

impl Work {
    fn name(&self) -> Named<'_> {
        Named { queue: &self.queue, worker_group: &self.group, worker_id: &self.id }
    }

    pub(super) fn queue(&self) -> &str {
        &self.queue
    }
}
