//! `/worker/<workerGroup>/<workerId>`: a worker's presence, claims and recent activity.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use tenure_api::ids::{WorkerGroup, WorkerId};

use super::error::PageError;
use super::layout::{self, Page, section, table};
use super::overview::REFRESH;
use super::rows::{self, About, ROWS_MAX};
use super::state::Site;
use super::visit::Visit;
use tenure_domain::presence::Presence;
use tenure_engine::ops::workers;
use tenure_store::clock;
use tenure_store::page::{self, ClaimRow, Ends, Filter, WorkerRow};

const ABOUT: About = About { queue: false, worker: true };

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
    conn.commit().await?;
    let in_time = claims.is_some();
    let mut claims = claims.unwrap_or_default();
    // A worker has a row, and needs a scope, per queue.
    let may = |queue: &str| visit.may(format!("queue:get-worker:{queue}/{group}/{id}"));
    let found = known.len() + claims.len() + ended.len();
    known.retain(|row| may(&row.queue_name));
    claims.retain(|row| may(&row.queue));
    ended.retain(|row| may(&row.queue));
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
    let body = html! {
        h1 { span.kind { "Worker" } (group) "/" (id) }
        @if !known.is_empty() { (contact(&visit, &known, in_time.then_some(claims.as_slice()), now)) }
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
    };
    Ok(Page { title: format!("Worker {group}/{id}"), refresh: Some(REFRESH), body })
}

/// Without its claims it is unknown whether a worker works.
fn contact(visit: &Visit, known: &[WorkerRow], claims: Option<&[ClaimRow]>, now: DateTime<Utc>) -> Markup {
    let cells = |row: &WorkerRow| {
        let held = claims.into_iter().flatten().filter(|claim| claim.queue == row.queue_name).count();
        let presence = rows::presence(row, i64::try_from(held).unwrap_or(i64::MAX), now);
        let is_known = claims.is_some() || matches!(presence, Presence::Quarantined | Presence::Removed);
        let state = if is_known { layout::state(presence.as_str()) } else { layout::unread_value() };
        let quarantine = row.quarantine_until.filter(|_| presence == Presence::Quarantined);
        let time = |time: Option<DateTime<Utc>>| time.map_or_else(layout::none, |time| layout::time(time, now));
        vec![
            ("Queue", layout::queue(visit, &row.queue_name)),
            ("State", state),
            (">Last contact", layout::time(row.contact(), now)),
            (">First seen", layout::time(row.first_seen, now)),
            (">Quarantined until", time(quarantine)),
            (">Removed", time(row.removed.filter(|_| presence == Presence::Removed))),
        ]
    };
    let rows: Vec<_> = known.iter().map(cells).collect();
    section("Contact", &html! { "newest first" }, &table(&rows))
}
