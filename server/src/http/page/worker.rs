//! `/worker/<workerGroup>/<workerId>`: a worker's presence, claims and recent activity.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::ids::{SessionId, TaskQueueId, WorkerGroup, WorkerId};

use super::actions::{self, On, Subject};
use super::audit;
use super::error::PageError;
use super::layout::{self, Page, section, table};
use super::overview::REFRESH;
use super::problems;
use super::rows::{self, About, ROWS_MAX};
use super::sessions;
use super::state::Site;
use super::visit::Visit;
use super::workers::{self as workers_page, FAILED_WITHIN};
use tenure_domain::audit::{Kind, worker as worker_object};
use tenure_domain::failure_share::FailureShare;
use tenure_domain::presence::Presence;
use tenure_domain::registration::WorkerName;
use tenure_domain::worker::WorkerKey;
use tenure_domain::worker::is_barred;
use tenure_engine::ops::workers;
use tenure_store::clock;
use tenure_store::page::{self, ClaimRow, Ends, FailureCounts, Filter, WorkerRow};
use tenure_store::workers::{self as workers_store, QuarantineRow};

const ABOUT: About = About { queue: false, worker: true };
/// Queues shown, those with the latest contact.
const QUEUES_SHOWN: usize = 20;
/// Queues whose quarantines of the worker are read.
const HISTORIES_MAX: usize = 10;

/// `GET /worker/:workerGroup/:workerId`
pub(super) async fn worker(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let unknown = |_| PageError::NotFound("This is not the name of a worker.".to_owned());
    let group: WorkerGroup = visit.param("workerGroup").parse().map_err(unknown)?;
    let id: WorkerId = visit.param("workerId").parse().map_err(unknown)?;
    let filter = Filter { queues: None, worker: Some((group.as_str(), id.as_str())) };
    let may_any = visit.may("queue:get-worker:*");
    // Includes this server's latest contacts; other servers write theirs every ten seconds.
    // Visitors without access cannot cause writes.
    if visit.session.is_some() || may_any {
        workers::write_down(&app.engine.pool, &app.engine.workers).await?;
    }
    let sequenced = app.engine.sequencer.reached();
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let mut known = page::list_of_name(&mut conn, group.as_str(), id.as_str()).await?;
    let claims = page::list_claims(&mut conn, app.engine.due_marks.get().claims, filter, ROWS_MAX).await?;
    let mut ended = page::list_ended(&mut conn, sequenced, Ends::All, filter, ROWS_MAX).await?;
    let objects: Vec<String> =
        known.iter().map(|row| worker_object(&row.queue_name, group.as_str(), id.as_str())).collect();
    let changes = audit::history(&mut conn, &visit, Kind::Worker, &objects).await?;
    let in_time = claims.is_some();
    let mut claims = claims.unwrap_or_default();
    // A worker has a row, and needs a scope, per queue.
    let may = |queue: &str| visit.may(format!("queue:get-worker:{queue}/{group}/{id}"));
    let found = known.len() + claims.len() + ended.len();
    known.retain(|row| may(&row.queue_name));
    claims.retain(|row| may(&row.queue));
    ended.retain(|row| may(&row.queue));
    let queues = known.len();
    known.truncate(QUEUES_SHOWN);
    let quarantines = quarantines(&mut conn, &known).await?;
    let of_queues = of_queues(&app, &mut conn, &visit, &known).await?;
    conn.commit().await?;
    let seen = known.len() + claims.len() + ended.len();
    // The same response for missing workers, to hide which exist.
    if seen == 0 && (found > 0 || !may_any) {
        return Err(PageError::Denied(format!("queue:get-worker:<queue>/{group}/{id}").into()));
    }
    for row in &mut claims {
        rows::hide_definition(&visit, row.task, &mut row.definition);
    }
    for row in &mut ended {
        rows::hide_definition(&visit, row.task, &mut row.definition);
    }
    let name = format!("{group}/{id}");
    let body = html! {
        h1 { span.kind { "Worker" } (group) "/" (id) }
        (problems::about(&app, &visit, |object| object.worker.as_deref() == Some(name.as_str())))
        (audit::shown(&changes, now))
        @if !known.is_empty() {
            (contact(&visit, (known.as_slice(), queues), &of_queues, in_time.then_some(claims.as_slice()), now))
        }
        @if visit.session.is_some() { (actions_section(&visit, &known, (&group, &id), now)) }
        @if seen == 0 {
            (section("Contact", &html! {}, &layout::empty(&html! {
                p { "No worker of this name has been in contact within the last day." }
            })))
        } @else if !in_time {
            (section("Holds", &html! {}, &layout::unread()))
        } @else if claims.is_empty() {
            (section("Holds", &html! {}, &layout::empty(&html! { p { "It holds no task now." } })))
        } @else {
            (section("Holds", &html! { "the next to expire" }, &rows::claims(&visit, &claims, now, ABOUT)))
        }
        @if !ended.is_empty() {
            (section("Ended lately", &html! { "newest first" }, &rows::ended(&visit, &ended, now, ABOUT)))
        }
        (quarantine_section(&visit, &quarantines, now))
        @if !changes.is_empty() { (section("Changes", &html! { "newest first" }, &audit::table(&changes, true, now))) }
    };
    Ok(Page::new(format!("Worker {group}/{id}"), Some(REFRESH), body))
}

/// Work of the worker in each queue, as far as the visitor may read it.
#[derive(Default)]
struct OfQueues {
    sessions: HashMap<i32, SessionId>,
    /// Failed runs within an hour; true if most failed runs of the queue are the worker's.
    failures: HashMap<i32, (FailureShare, bool)>,
}

/// `known` has the worker's row of each queue.
async fn of_queues(
    app: &Site,
    conn: &mut PgConnection,
    visit: &Visit,
    known: &[WorkerRow],
) -> Result<OfQueues, sqlx::Error> {
    let may_read = |row: &&WorkerRow| visit.may(format!("tenure:get-queue:{}", row.queue_name));
    let readable: Vec<&WorkerRow> = known.iter().filter(may_read).take(HISTORIES_MAX).collect();
    let Some(WorkerRow { worker_group, worker_id, .. }) = readable.first() else { return Ok(OfQueues::default()) };
    let queues: Vec<i32> = readable.iter().map(|row| row.queue).collect();
    let sessions = page::list_sessions_of(conn, &queues, worker_group, worker_id).await?;
    let failed = page::count_failed(conn, &queues, FAILED_WITHIN).await?;
    let counted = app.engine.worker_counts.get();
    let failures = readable.iter().map(|row| {
        let of_queue: Vec<&FailureCounts> = failed.iter().filter(|failed| failed.queue == row.queue).collect();
        let is_here = |(group, id): &(String, String)| (group, id) == (worker_group, worker_id);
        let here = of_queue.iter().filter(|failed| failed.worker.as_ref().is_some_and(is_here));
        let here = here.map(|failed| failed.number).sum();
        let share = FailureShare { here, all: of_queue.iter().map(|failed| failed.number).sum() };
        let counts = counted.iter().flat_map(|counted| &counted.queues).find(|counts| counts.queue == row.queue_name);
        let workers = counts.map_or(1, |counts| usize::try_from(counts.total).unwrap_or_default());
        (row.queue, (share, share.stands_out(workers)))
    });
    let failures = failures.collect();
    Ok(OfQueues { sessions: sessions.into_iter().map(|session| (session.queue, session.id)).collect(), failures })
}

/// Changes of the worker's quarantines, newest first, with their queues.
async fn quarantines(
    conn: &mut PgConnection,
    known: &[WorkerRow],
) -> Result<Vec<(String, QuarantineRow)>, sqlx::Error> {
    let mut all = Vec::new();
    for row in known.iter().take(HISTORIES_MAX) {
        let (group, id) = (row.worker_group.clone(), row.worker_id.clone());
        let changes = workers_store::list_quarantines(conn, &WorkerKey { queue: row.queue, group, id }).await?;
        all.extend(changes.into_iter().map(|change| (row.queue_name.clone(), change)));
    }
    all.sort_by_key(|(_, change)| Reverse(change.updated));
    Ok(all)
}

fn quarantine_section(visit: &Visit, changes: &[(String, QuarantineRow)], now: DateTime<Utc>) -> Markup {
    if changes.is_empty() {
        return html! {};
    }
    let cells = |(queue, change): &(String, QuarantineRow)| {
        let QuarantineRow { client_id, updated, quarantine_until, info } = change;
        let end = html! {
            @if quarantine_until <= updated { "lifted" } @else { (layout::time(*quarantine_until, now)) }
        };
        vec![
            ("Queue", layout::queue(visit, queue)),
            ("Changed", layout::time(*updated, now)),
            ("By", html! { code { (client_id) } }),
            ("Until", end),
            ("Reason", info.as_deref().map_or_else(layout::none, |info| layout::said(&html! { (info) }))),
        ]
    };
    let shown = usize::try_from(ROWS_MAX).unwrap_or(usize::MAX);
    let rows: Vec<_> = changes.iter().take(shown).map(cells).collect();
    let note = html! { "newest first" @if changes.len() > shown { "; " (shown) " of " (changes.len()) } };
    section("Quarantines", &note, &table(&rows))
}

/// A worker is quarantined, and declared gone, for a single queue.
fn actions_section(
    visit: &Visit,
    known: &[WorkerRow],
    (group, id): (&WorkerGroup, &WorkerId),
    now: DateTime<Utc>,
) -> Markup {
    let subject = |row: &WorkerRow| {
        let name =
            WorkerName { pool: TaskQueueId::read_full(&row.queue_name).ok()?, group: group.clone(), id: id.clone() };
        let is_quarantined = row.quarantine_until.is_some_and(|until| is_barred(until, now));
        Some(Subject::Worker { name, is_quarantined })
    };
    html! { @for row in known { @if let Some(subject) = subject(row) {
        section.panel {
            header { h2 { "In queue " (layout::queue(visit, &row.queue_name)) } }
            (actions::bar(visit, On::Worker, &subject))
        }
    } } }
}

/// Without its claims it is unknown whether a worker works. `queues` is the number of its queues,
/// of which `known` has the first ones.
fn contact(
    visit: &Visit,
    (known, queues): (&[WorkerRow], usize),
    of_queues: &OfQueues,
    claims: Option<&[ClaimRow]>,
    now: DateTime<Utc>,
) -> Markup {
    let cells = |row: &WorkerRow| {
        let held = claims.into_iter().flatten().filter(|claim| claim.queue == row.queue_name).count();
        let presence = rows::presence(row, i64::try_from(held).unwrap_or(i64::MAX), now);
        let is_known =
            claims.is_some() || matches!(presence, Presence::Quarantined | Presence::Frozen | Presence::Removed);
        let state = if is_known { layout::state(presence.as_str()) } else { layout::unread_value() };
        let quarantine = row.quarantine_until.filter(|_| presence == Presence::Quarantined);
        let (session, failures) = (of_queues.sessions.get(&row.queue), of_queues.failures.get(&row.queue));
        let time = |time: Option<DateTime<Utc>>| time.map_or_else(layout::none, |time| layout::time(time, now));
        vec![
            ("Queue", layout::queue(visit, &row.queue_name)),
            ("State", state),
            ("Session", session.map_or_else(layout::none, |id| sessions::link(visit, *id))),
            (
                ">Failures",
                failures.map_or_else(layout::none, |(share, stands_out)| workers_page::share(*share, *stands_out)),
            ),
            (">Last contact", layout::time(row.contact(), now)),
            (">First seen", layout::time(row.first_seen, now)),
            (">Quarantined until", time(quarantine)),
            (">Removed", time(row.removed.filter(|_| presence == Presence::Removed))),
        ]
    };
    let rows: Vec<_> = known.iter().map(cells).collect();
    let note = html! {
        "newest first; failures within an hour" @if queues > known.len() { "; " (known.len()) " of " (queues) " queues" }
    };
    section("Contact", &note, &table(&rows))
}
