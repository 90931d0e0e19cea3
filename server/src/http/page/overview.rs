//! `/`: the overview. Problems first, then the last hour beside the hour before, charts, and the
//! queues that need somebody.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::states::RunState;

use super::error::PageError;
use super::failed;
use super::layout::{self, Page, section, table};
use super::partitions;
use super::problems;
use super::queue_rows::{self, Details, Urgent};
use super::state::Site;
use super::subscriptions;
use super::text;
use super::trends::{self, Trend};
use super::visit::Visit;
use tenure_domain::scopes::Expression;
use tenure_domain::statistics::{Numbers, at_most};
use tenure_domain::trend::{Span, failed_share};
use tenure_store::page::{self, FailedRuns, Oldest, QueueRow};
use tenure_store::{clock, enqueued, session, statistics};

pub(super) const REFRESH: Duration = Duration::from_secs(5);
pub(super) const RUNNABLE: &str = "How long the oldest run has waited that could start now with enough workers";
pub(super) const HELD: &str =
    "How long the oldest run has waited that a limit holds, or that its session has not accepted yet";
/// While an old transaction is open, dead rows cannot be removed and claims become slower.
const OLD_TRANSACTION: Duration = Duration::from_secs(60);
const QUEUES_SHOWN: usize = 12;
/// As for getStatistics.
const STATISTICS: &str = "tenure:get-queue:*";
const WAIT_SHARE: f64 = 0.95;

/// Data of all queues.
struct Overview {
    queues: Vec<QueueRow>,
    /// None if not read in time.
    oldest: Option<HashMap<i32, Oldest>>,
    details: Details,
    /// None without the scope.
    trend: Option<Trend>,
    /// None without the scope.
    failed: Option<FailedRuns>,
    now: DateTime<Utc>,
}

/// `GET /`
pub(super) async fn overview(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let span = trends::span_of(&visit);
    let urgent = Urgent::new(app.engine.problems.get().as_deref());
    let read = read(&app, &visit, span, &urgent).await?;
    if visit.session.is_none() && read.queues.is_empty() && !visit.may(any_queue()) {
        return Err(PageError::Denied(any_queue()));
    }
    let now = read.now;
    let mut conn = app.engine.pool.acquire().await?;
    let transaction = session::get_oldest_transaction(&mut conn).await?;
    let refused = count_refused(&app, &visit, &mut conn).await?;
    let subscriptions = subscriptions::list(&app, &visit, &mut conn).await?;
    let partitions = partitions::list(&app, &visit, &mut conn).await?;
    let real_now = if subscriptions.is_empty() { now } else { clock::get_real_now(&mut conn).await? };
    let body = html! {
        h1.sr { "Overview" }
        (problems::all(&app, &visit))
        (warnings(transaction, refused))
        @if read.queues.is_empty() {
            (no_queues(&visit))
        } @else {
            (figures(&visit, &read))
            @if read.trend.is_some() || read.failed.is_some() { (trends::spans(&visit, span, "tenure queue statistics")) }
            div.charts { (charts(&visit, read.trend.as_ref())) (failures(&visit, read.failed.as_ref(), span)) }
            (queues_section(&visit, &read, &urgent))
        }
        (subscriptions::section(&visit, &subscriptions, real_now))
        (partitions::section(&visit, partitions))
    };
    Ok(Page::new("Overview", Some(REFRESH), body))
}

async fn read(app: &Site, visit: &Visit, span: Span, urgent: &Urgent) -> Result<Overview, sqlx::Error> {
    let sequenced = app.engine.sequencer.reached();
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let mut queues = page::list_queues(&mut conn, sequenced, None).await?;
    queue_rows::add_urgent(&mut conn, sequenced, urgent, &mut queues).await?;
    queues.retain(|queue| visit.may(listing_scope(&queue.name)));
    urgent.sort(&mut queues);
    let oldest = queue_rows::read_oldest(app, &mut conn, &queues).await?;
    let shown = &queues[..queues.len().min(QUEUES_SHOWN)];
    let details = queue_rows::read(app, visit, &mut conn, shown, oldest.as_ref(), now).await?;
    let trend =
        if visit.may(STATISTICS) { Some(trends::read(&mut conn, statistics::ALL, span, now).await?) } else { None };
    let failed = if visit.may(failed::scope()) {
        let mut failed = page::list_failed(&mut conn, span.length().to_std().unwrap_or_default()).await?;
        failed.rows.retain(|row| visit.may(listing_scope(&row.queue_name)));
        failed::hide_results(visit, &mut failed);
        Some(failed)
    } else {
        None
    };
    conn.commit().await?;
    Ok(Overview { queues, oldest, details, trend, failed, now })
}

/// Counts refused tasks that were enqueued from SQL, for visitors who may list them.
async fn count_refused(app: &Site, visit: &Visit, conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    if app.engine.facts.enqueue_roles.get().is_empty() || !visit.may("tenure:list-enqueued") {
        return Ok(0);
    }
    enqueued::count_refused(conn).await
}

/// Scopes to see even an empty overview, so that closed read access is closed here, too.
pub(super) fn any_queue() -> Expression {
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

fn warnings(transaction: Duration, refused: i64) -> Markup {
    html! {
        @if transaction >= OLD_TRANSACTION {
            p.warning { "A transaction has been open for " (text::age(transaction)) ". While it is, PostgreSQL cannot clean up and claiming becomes slower. "
                code { "SELECT pid, xact_start, state, query FROM pg_stat_activity ORDER BY xact_start" } " shows whose it is." }
        }
        @if refused > 0 {
            p.warning { span.bad { (layout::number(refused)) } " tasks that were enqueued from SQL were refused. "
                code { "tenure enqueue refused" } " shows why, " code { "tenure enqueue retry" } " tries one again." }
        }
    }
}

/// The next steps on a new server.
pub(super) fn no_queues(visit: &Visit) -> Markup {
    let note = html! {
        p { "There is no queue yet. The first task that names a queue creates it:" }
        pre tabindex="0" { "curl -u " i { "CLIENT:TOKEN" } " " (visit.root_url) "/api/tenure/v1/tasks \\\n  -H 'Content-Type: application/json' \\\n  -d '{\"taskQueueId\": \"tour/first\", \"payload\": {\"command\": [[\"echo\", \"hello\"]]}}'" }
        p { "A worker runs it:" }
        pre tabindex="0" { "tenure-worker run --root-url " (visit.root_url) " --task-queue tour/first --worker-group "
            i { "GROUP" } " --worker-id " i { "ID" } }
        p { "docs/tour.md shows the next steps." }
    };
    section("Queues", &html! {}, &layout::empty(&note))
}

/// Six numbers, with the hour before.
fn figures(visit: &Visit, read: &Overview) -> Markup {
    let trend = read.trend.as_ref();
    let unseen = |scope: &str| html! { span.dim title={ "needs " (scope) } { "–" } };
    let spark = |name: &str, number: fn(&Numbers) -> i64| trend.map(|trend| trend.spark(name, number));
    let most = |number: fn(&Numbers) -> i64| {
        let before = trend.map_or(0, |trend| number(trend.before()));
        html! { @if before > 0 { small title="At most, in the hour before the last" { "≤ " (text::count(before)) " before" } } }
    };
    let resolved = |numbers: &Numbers| -> i64 {
        [RunState::Completed, RunState::Failed, RunState::Exception].map(|state| numbers.resolved(state)).iter().sum()
    };
    let wait = |numbers: &Numbers| at_most(&numbers.waits, WAIT_SHARE).map(trends::duration);
    html! { dl.figures.six {
        div { dt { "Pending" } dd {
            (spark("Pending", |numbers| numbers.pending_most).unwrap_or_default())
            (pending_of(visit, &read.queues).map_or_else(|| unseen("queue:pending-count"), layout::number)) " " (most(|numbers| numbers.pending_most))
        } }
        div { dt { "Running" } dd {
            (spark("Running", |numbers| numbers.claimed_most).unwrap_or_default())
            (claimed_of(visit, &read.queues).map_or_else(|| unseen("queue:claimed-count"), layout::number)) " " (most(|numbers| numbers.claimed_most))
        } }
        div { dt title=(RUNNABLE) { "Oldest runnable" } dd {
            (oldest_of(visit, read, |oldest| oldest.runnable)) " "
            small title=(HELD) { "held " (oldest_of(visit, read, |oldest| oldest.held)) }
        } }
        @if let Some(trend) = trend {
            div { dt { "Resolved, last hour" } dd {
                (trend.spark("Resolved", |numbers| numbers.ends.iter().sum()))
                (layout::number(resolved(trend.last()))) " " (before(Some(text::count(resolved(trend.before())))))
            } }
            div { dt title="Without cancelled tasks" { "Failed, last hour" } dd {
                (shown(failed_share(trend.last()).map(percent))) " " (before(failed_share(trend.before()).map(percent)))
            } }
            div { dt title="95 of 100 runs that started in the last hour had been pending for at most this time" { "Wait, 95 % within" } dd {
                (shown(wait(trend.last()))) " " (before(wait(trend.before())))
            } }
        } @else {
            @for name in ["Resolved, last hour", "Failed, last hour", "Wait, 95 % within"] {
                div { dt { (name) } dd { (unseen(STATISTICS)) } }
            }
        }
    } }
}

fn shown(value: Option<String>) -> Markup {
    html! { @if let Some(value) = value { (value) } @else { span.zero { "–" } } }
}

fn before(value: Option<String>) -> Markup {
    html! { @if let Some(value) = value { small title="In the hour before the last" { (value) " before" } } }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 10.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// None if the visitor may see no number, like the next one.
fn pending_of(visit: &Visit, queues: &[QueueRow]) -> Option<i64> {
    let seen = queues.iter().filter(|queue| may_see_pending(visit, &queue.name));
    seen.map(|queue| queue.pending).reduce(|sum, more| sum + more)
}

fn claimed_of(visit: &Visit, queues: &[QueueRow]) -> Option<i64> {
    let seen = queues.iter().filter(|queue| may_see_claimed(visit, &queue.name));
    seen.map(|queue| queue.claimed).reduce(|sum, more| sum + more)
}

fn oldest_of(visit: &Visit, read: &Overview, which: fn(&Oldest) -> Option<DateTime<Utc>>) -> Markup {
    let Some(oldest) = &read.oldest else { return layout::unread_value() };
    let seen = read.queues.iter().filter(|queue| may_see_pending(visit, &queue.name));
    match seen.filter_map(|queue| oldest.get(&queue.key).and_then(which)).min() {
        Some(time) => layout::span(time, read.now),
        None => html! { span.zero { "–" } },
    }
}

fn charts(visit: &Visit, trend: Option<&Trend>) -> Markup {
    match trend {
        Some(trend) => trend.charts(),
        None => {
            section("Charts", &html! {}, &html! { div.note { (layout::denied(visit, &Expression::from(STATISTICS))) } })
        }
    }
}

fn failures(visit: &Visit, failed: Option<&FailedRuns>, span: Span) -> Markup {
    match failed {
        Some(failed) => failed::by_reason(visit, failed, span, None),
        None => failed::denied(visit),
    }
}

fn queues_section(visit: &Visit, read: &Overview, urgent: &Urgent) -> Markup {
    let cells = |queue| queue_rows::cells(visit, queue, urgent, read.oldest.as_ref(), &read.details, read.now);
    let rows: Vec<_> = read.queues.iter().take(QUEUES_SHOWN).map(cells).collect();
    let all = read.queues.len();
    let note = html! {
        "those with problems first, then the fullest"
        @if all > QUEUES_SHOWN { " · " a href=(visit.link("/queues")) { "more queues" } }
        " · " a href={ (visit.link("/queues")) "?order=name" } { "by name" }
    };
    section("Queues", &note, &table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_percentages_have_a_decimal() {
        let texts = [0.0, 0.001, 0.074, 0.1, 0.333, 1.0].map(percent);
        assert_eq!(texts, ["0 %", "0.1 %", "7.4 %", "10 %", "33 %", "100 %"]);
    }
}
