//! `/`: the overview.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;

use super::error::PageError;
use super::layout::{self, Page, section, table};
use super::partitions;
use super::problems;
use super::rows::{self, About, ROWS_MAX, claims_scope, workers_scope};
use super::state::Site;
use super::subscriptions;
use super::text;
use super::visit::Visit;
use tenure_domain::scopes::Expression;
use tenure_store::page::{self, ClaimRow, Ends, Filter, Oldest, QueueRow};
use tenure_store::{clock, enqueued, session};

pub(super) const REFRESH: Duration = Duration::from_secs(5);
pub(super) const RUNNABLE: &str = "How long the oldest run has waited that could start now with enough workers";
pub(super) const HELD: &str =
    "How long the oldest run has waited that a limit holds, or that its session has not accepted yet";
/// While an old transaction is open, dead rows cannot be removed and claims become slower.
const OLD_TRANSACTION: Duration = Duration::from_secs(60);

/// `GET /`
pub(super) async fn overview(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let sequenced = app.engine.sequencer.reached();
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let mut queues = page::list_queues(&mut conn, sequenced, None).await?;
    queues.retain(|queue| visit.may(listing_scope(&queue.name)));
    let (marks, low_water_marks) = (app.engine.due_marks.get(), &app.engine.low_water_marks);
    let with_pending = queues.iter().filter(|queue| queue.pending > 0);
    let asked: HashMap<_, _> =
        with_pending.map(|queue| (queue.key, queue.asked(low_water_marks.peek(queue.key)))).collect();
    let oldest_pending = page::list_oldest(&mut conn, &asked).await?;
    let hidden = page::list_hidden(&mut conn, marks.hidden).await?;
    let allowed: Vec<i32> =
        queues.iter().filter(|queue| visit.may(claims_scope(&queue.name))).map(|queue| queue.key).collect();
    let all_claims = visit.may("queue:claimed-list:*");
    let filter = Filter { queues: (!all_claims).then_some(&allowed), worker: None };
    let claims = page::list_claims(&mut conn, marks.claims, filter, ROWS_MAX).await?;
    let failures = rows::failures(&mut conn, sequenced, &visit, Filter::default()).await?;
    let ended = page::list_ended(&mut conn, sequenced, Ends::All, Filter::default(), page::ENDED_READ).await?;
    let holders = page::list_holders(&mut conn, marks.claims, None).await?;
    let work = match holders.map(|holders| rows::work(&holders, &ended)) {
        Some(mut work) => {
            work.retain(|work| visit.may(workers_scope(work.queue())));
            Some(rows::of_named(&mut conn, work, now).await?)
        }
        None => None,
    };
    conn.commit().await?;
    let sees_rows = !(queues.is_empty() && failures.is_empty())
        || claims.as_ref().is_some_and(|claims| !claims.is_empty())
        || work.as_ref().is_some_and(|work| !work.is_empty());
    if visit.session.is_none() && !sees_rows && !visit.may(any_queue()) {
        return Err(PageError::Denied(any_queue()));
    }
    let mut conn = app.engine.pool.acquire().await?;
    let oldest = session::get_oldest_transaction(&mut conn).await?;
    let refused = count_refused(&app, &visit, &mut conn).await?;
    let subscriptions = subscriptions::list(&app, &visit, &mut conn).await?;
    let partitions = partitions::list(&app, &visit, &mut conn).await?;
    let real_now = if subscriptions.is_empty() { now } else { clock::get_real_now(&mut conn).await? };
    let body = html! {
        h1.sr { "Overview" }
        (problems::all(&app, &visit))
        (figures(&visit, &queues, oldest_pending.as_ref(), oldest, now))
        @if refused > 0 {
            p.warning { span.bad { (layout::number(refused)) } " tasks that were enqueued from SQL were refused. "
                code { "tenure enqueue refused" } " shows why, " code { "tenure enqueue retry" } " tries one again." }
        }
        (queues_section(&visit, &queues, oldest_pending.as_ref(), hidden.as_ref(), now))
        (claims_section(&visit, claims.as_deref(), all_claims || !allowed.is_empty(), now))
        (rows::failures_section(&visit, &failures, now, About::default()))
        (rows::workers_section(&visit, work.as_deref(), now, About::default()))
        (subscriptions::section(&visit, &subscriptions, real_now))
        (partitions::section(&partitions))
    };
    Ok(Page::new("Overview", Some(REFRESH), body))
}

/// Counts refused tasks that were enqueued from SQL, for visitors who may list them.
async fn count_refused(app: &Site, visit: &Visit, conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    if app.engine.facts.enqueue_roles.get().is_empty() || !visit.may("tenure:list-enqueued") {
        return Ok(0);
    }
    enqueued::count_refused(conn).await
}

/// Scopes to see even an empty overview, so that closed read access is closed here, too.
fn any_queue() -> Expression {
    Expression::any_of(["queue:list-task-queues", "queue:list-worker-types:*"])
}

pub(super) fn listing_scope(queue: &str) -> Expression {
    let provisioner = queue.split('/').next().unwrap_or_default();
    Expression::any_of(["queue:list-task-queues".to_owned(), format!("queue:list-worker-types:{provisioner}")])
}

pub(super) fn may_see_pending(visit: &Visit, queue: &str) -> bool {
    visit.may(format!("queue:pending-count:{queue}"))
}

pub(super) fn may_see_claimed(visit: &Visit, queue: &str) -> bool {
    visit.may(format!("queue:claimed-count:{queue}"))
}

fn figures(
    visit: &Visit,
    queues: &[QueueRow],
    oldest_pending: Option<&HashMap<i32, Oldest>>,
    oldest: Duration,
    now: DateTime<Utc>,
) -> Markup {
    let pending: i64 =
        queues.iter().filter(|queue| may_see_pending(visit, &queue.name)).map(|queue| queue.pending).sum();
    let seen = queues.iter().filter(|queue| may_see_claimed(visit, &queue.name));
    let claimed: Option<i64> = seen.map(|queue| queue.claimed).fold(None, |sum, more| Some(sum.unwrap_or(0) + more));
    let age = |which: fn(&Oldest) -> Option<DateTime<Utc>>| {
        let Some(oldest_pending) = oldest_pending else { return layout::unread_value() };
        let seen = queues.iter().filter(|queue| may_see_pending(visit, &queue.name));
        match seen.filter_map(|queue| oldest_pending.get(&queue.key).and_then(which)).min() {
            Some(time) => layout::span(time, now),
            None => html! { span.zero { "–" } },
        }
    };
    let unseen = html! { span.dim title="needs queue:claimed-count" { "–" } };
    html! {
        dl.figures.five {
            div { dt { "Pending" } dd { (layout::number(pending)) } }
            div { dt { "Running" } dd { @match claimed {
                Some(claimed) => (layout::number(claimed)),
                None if queues.is_empty() => (layout::number(0)),
                None => (unseen),
            } } }
            div { dt title=(RUNNABLE) { "Oldest runnable" } dd { (age(|oldest| oldest.runnable)) } }
            div { dt title=(HELD) { "Oldest held" } dd { (age(|oldest| oldest.held)) } }
            div { dt title="The oldest open transaction in the database, by any program" { "Oldest transaction" }
                dd.bad[oldest >= OLD_TRANSACTION] { (text::age(oldest)) } }
        }
        @if oldest >= OLD_TRANSACTION {
            p.warning { "A transaction has been open for " (text::age(oldest)) ". While it is, PostgreSQL cannot clean up and claiming becomes slower. "
                code { "SELECT pid, xact_start, state, query FROM pg_stat_activity ORDER BY xact_start" } " shows whose it is." }
        }
    }
}

fn queues_section(
    visit: &Visit,
    queues: &[QueueRow],
    oldest_pending: Option<&HashMap<i32, Oldest>>,
    hidden: Option<&HashMap<i32, i64>>,
    now: DateTime<Utc>,
) -> Markup {
    if queues.is_empty() {
        let note = html! {
            p { "There is no queue yet. The first task that names a queue creates it:" }
            pre tabindex="0" { "curl -u " i { "CLIENT:TOKEN" } " " (visit.root_url) "/api/tenure/v1/tasks \\\n  -H 'Content-Type: application/json' \\\n  -d '{\"taskQueueId\": \"tour/first\", \"payload\": {\"command\": [[\"echo\", \"hello\"]]}}'" }
            p { "docs/tour.md shows the next steps." }
        };
        return section("Queues", &html! {}, &layout::empty(&note));
    }
    let unseen = html! { span.dim title="You may not see this; log in as a client with the scope." { "–" } };
    let cells = |queue: &QueueRow| {
        let pending = may_see_pending(visit, &queue.name);
        let seen = |may: bool, number: i64| if may { layout::number(number) } else { unseen.clone() };
        let hidden = hidden.map(|hidden| seen(pending, hidden.get(&queue.key).copied().unwrap_or(0)));
        let age = |which: fn(&Oldest) -> Option<DateTime<Utc>>| {
            let Some(oldest_pending) = oldest_pending else { return layout::unread_value() };
            let time = oldest_pending.get(&queue.key).filter(|_| pending).and_then(which);
            time.map_or_else(layout::none, |time| layout::span(time, now))
        };
        vec![
            (
                "Queue",
                html! { (layout::queue(visit, &queue.name)) @if queue.paused.is_some() { " " span.state.exception { "paused" } } },
            ),
            (">Pending", seen(pending, queue.pending)),
            (">Delayed", seen(pending, queue.delayed)),
            (">Claimed", seen(may_see_claimed(visit, &queue.name), queue.claimed)),
            (">Hidden", hidden.unwrap_or_else(layout::unread_value)),
            (">Oldest runnable", age(|oldest| oldest.runnable)),
            (">Oldest held", age(|oldest| oldest.held)),
        ]
    };
    let rows: Vec<_> = queues.iter().map(cells).collect();
    let limit = usize::try_from(page::QUEUES_MAX).unwrap_or(usize::MAX);
    let note = html! { @if queues.len() >= limit { "the " (limit) " fullest" } @else { (queues.len()) } };
    section("Queues", &note, &table(&rows))
}

fn claims_section(visit: &Visit, claims: Option<&[ClaimRow]>, allowed: bool, now: DateTime<Utc>) -> Markup {
    let title = "Running claims";
    if !allowed {
        let body = html! { div.note { (layout::denied(visit, &Expression::from("queue:claimed-list:<queue>"))) } };
        return section(title, &html! {}, &body);
    }
    let Some(claims) = claims else { return section(title, &html! {}, &layout::unread()) };
    if claims.is_empty() {
        let note = html! { p { "No worker holds a task." } p { "If tasks are pending, check that a worker polls their queue: workers call claimWork with the queue's full name." } };
        return section(title, &html! {}, &layout::empty(&note));
    }
    section(title, &html! { "the next to expire" }, &rows::claims(visit, claims, now, About::default()))
}
