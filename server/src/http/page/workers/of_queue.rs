//! The workers of one queue, probably broken ones first.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use tenure_api::ids::{SessionId, TaskQueueId};

use super::{FAILED_WITHIN, Tally, link_to};
use crate::http::page::error::PageError;
use crate::http::page::layout::{self, Page, section, table};
use crate::http::page::overview::REFRESH;
use crate::http::page::pause::reading_scope;
use crate::http::page::state::Site;
use crate::http::page::visit::Visit;
use crate::http::page::{problems, rows, sessions};
use tenure_domain::failure_share::FailureShare;
use tenure_domain::presence::Presence;
use tenure_engine::ops::workers;
use tenure_store::page::{self, FailureCounts, HolderRow, WORKERS_READ, WorkerRow};
use tenure_store::worker_sessions::Member;
use tenure_store::{clock, worker_sessions};

const WORKERS_SHOWN: usize = 50;

struct Listed<'a> {
    row: &'a WorkerRow,
    running: i64,
    presence: Presence,
    failures: FailureShare,
    stands_out: bool,
    session: Option<SessionId>,
}

pub(super) async fn page(app: &Site, visit: &Visit, name: &TaskQueueId, key: i32) -> Result<Page, PageError> {
    // Includes this server's latest contacts; other servers write theirs every ten seconds.
    workers::write_down(&app.engine.pool, &app.engine.workers).await?;
    let marks = app.engine.due_marks.get();
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let known = page::list_known(&mut conn, key).await?;
    let holders = page::list_holders(&mut conn, marks.claims, Some(key)).await?;
    let (failed, members) = if visit.may(reading_scope(name)) {
        let failed = page::count_failed(&mut conn, &[key], FAILED_WITHIN).await?;
        (failed, worker_sessions::list_workers(&mut conn, key, name, WORKERS_READ).await?)
    } else {
        (Vec::new(), Vec::new())
    };
    conn.commit().await?;
    let known = with_sessions(known, key, &members);
    let listed = holders.as_deref().map(|holders| list(&known, holders, &failed, &members, now));
    let state = visit.query("state");
    let body = html! {
        h1 { span.kind { "Workers of the queue" } (layout::queue(visit, name.as_str())) }
        (problems::about(app, visit, |object| object.queue.as_ref() == Some(name)))
        (workers_section(visit, name, listed, state, now))
        p { a href=(visit.link("/workers")) { "Workers of all queues" } }
    };
    Ok(Page::new(format!("Workers of {name}"), Some(REFRESH), body))
}

/// Adds workers that have a session and have not asked for work: they are known by it only.
fn with_sessions(mut known: Vec<WorkerRow>, queue: i32, members: &[Member]) -> Vec<WorkerRow> {
    let names: HashSet<(String, String)> =
        known.iter().map(|row| (row.worker_group.clone(), row.worker_id.clone())).collect();
    known.extend(members.iter().filter_map(|Member { identity, frozen, until, .. }| {
        let (worker_group, worker_id) = (identity.worker_group.to_string(), identity.worker_id.to_string());
        if names.contains(&(worker_group.clone(), worker_id.clone())) {
            return None;
        }
        // A renewal lasts for the whole time to live.
        let renewed = (*until - TimeDelta::seconds(identity.ttl)).max(identity.started);
        Some(WorkerRow {
            queue,
            queue_name: identity.queue.to_string(),
            worker_group,
            worker_id,
            first_seen: identity.started,
            last_seen: renewed,
            quarantine_until: None,
            renewed: Some(renewed),
            frozen: *frozen,
            removed: None,
        })
    }));
    known
}

fn list<'a>(
    known: &'a [WorkerRow],
    holders: &[HolderRow],
    failed: &[FailureCounts],
    members: &[Member],
    now: DateTime<Utc>,
) -> Vec<Listed<'a>> {
    let running: HashMap<(&str, &str), i64> =
        holders.iter().map(|row| ((row.worker_group.as_str(), row.worker_id.as_str()), row.running)).collect();
    let failures: HashMap<(&str, &str), i64> = failed
        .iter()
        .filter_map(|row| row.worker.as_ref().map(|(group, id)| ((group.as_str(), id.as_str()), row.number)))
        .collect();
    let sessions: HashMap<(&str, &str), SessionId> = members
        .iter()
        .map(|member| &member.identity)
        .map(|identity| ((identity.worker_group.as_str(), identity.worker_id.as_str()), identity.id))
        .collect();
    let all: i64 = failed.iter().map(|row| row.number).sum();
    let mut listed: Vec<Listed<'a>> = known
        .iter()
        .map(|row| {
            let name = (row.worker_group.as_str(), row.worker_id.as_str());
            let running = running.get(&name).copied().unwrap_or_default();
            let failures = FailureShare { here: failures.get(&name).copied().unwrap_or_default(), all };
            let stands_out = failures.stands_out(known.len());
            let presence = rows::presence(row, running, now);
            Listed { row, running, presence, failures, stands_out, session: sessions.get(&name).copied() }
        })
        .collect();
    listed.sort_by_key(|worker| (Reverse(worker.stands_out), rank(worker.presence)));
    listed
}

/// Workers that get no work come first.
fn rank(presence: Presence) -> u8 {
    match presence {
        Presence::Quarantined => 0,
        Presence::Frozen => 1,
        Presence::Silent => 2,
        Presence::Working => 3,
        Presence::Idle => 4,
        Presence::Removed => 5,
    }
}

/// `listed` is none if not read in time. `state` selects a presence.
fn workers_section(
    visit: &Visit,
    name: &TaskQueueId,
    listed: Option<Vec<Listed<'_>>>,
    state: Option<&str>,
    now: DateTime<Utc>,
) -> Markup {
    let title = "Workers";
    let Some(mut listed) = listed else { return section(title, &html! {}, &layout::unread()) };
    let mut tally = Tally::default();
    listed.iter().for_each(|worker| tally.count(worker.presence));
    let link = |presence: Presence| Some(format!("{}&state={}", link_to(visit, name.as_str()), presence.as_str()));
    listed.retain(|worker| state.is_none_or(|state| worker.presence.as_str() == state));
    let rows: Vec<_> = listed.iter().take(WORKERS_SHOWN).map(|worker| cells(visit, worker, now)).collect();
    let note = html! {
        @if state.is_some() { a href=(link_to(visit, name.as_str())) { "all states" } " · " }
        "failures within an hour" @if listed.len() > WORKERS_SHOWN { "; " (WORKERS_SHOWN) " of " (listed.len()) }
    };
    let none = html! { p { "No such worker was in contact within the last day." } (rows::how_to_start(visit)) };
    let body = if rows.is_empty() { layout::empty(&none) } else { table(&rows) };
    html! { (tally.shown(link)) (section(title, &note, &body)) }
}

fn cells(visit: &Visit, worker: &Listed<'_>, now: DateTime<Utc>) -> layout::Cells {
    let Listed { row, running, presence, failures, stands_out, session } = worker;
    vec![
        ("Worker", layout::worker(visit, &row.worker_group, &row.worker_id)),
        ("State", layout::state(presence.as_str())),
        (">Running", layout::number(*running)),
        (">Failures", share(*failures, *stands_out)),
        ("Session", session.map_or_else(layout::none, |session| sessions::link(visit, session))),
        (">First seen", layout::time(row.first_seen, now)),
        (">Last contact", layout::time(row.contact(), now)),
    ]
}

/// The worker's failures among the failures of the queue, such as "31 of 42".
pub(in crate::http::page) fn share(failures: FailureShare, stands_out: bool) -> Markup {
    let FailureShare { here, all } = failures;
    if here == 0 {
        return layout::none();
    }
    let title = "Of the failed runs of the queue within an hour, those of this worker";
    html! { span.bad[stands_out] title=(title) { (here) " of " (all) } }
}
