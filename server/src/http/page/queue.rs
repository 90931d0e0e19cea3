//! `/queue/<provisionerId>/<workerType>`: a queue, and why it is slow.

mod load;

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use tenure_api::policy::QueueCounts;

use super::actions::{self, On, Subject};
use super::audit;
use super::dead_letters::{self, Letters, letters_section};
use super::error::PageError;
use super::failed;
use super::keys::{KEYS_MAX, keys_section};
use super::layout::{self, Page, section, table};
use super::overview::{HELD, REFRESH, RUNNABLE, may_see_claimed, may_see_pending};
use super::pause::reading_scope;
use super::rows::{self, About, Work, claims_scope, workers_scope};
use super::schedulers::schedulers_section;
use super::schedules::schedules_section;
use super::sessions::{SESSIONS_MAX, sessions_section};
use super::state::Site;
use super::trends::{self, Trend};
use super::visit::{SEGMENT, Visit};
use super::{pause, problems, schedules, text};
use tenure_domain::audit::Kind;
use tenure_domain::policy::counts;
use tenure_domain::policy::document::Policy;
use tenure_domain::policy::held_by::LimitsNow;
use tenure_domain::policy::policy_words::words;
use tenure_domain::policy::why::{Names, held_words};
use tenure_domain::scopes::Expression;
use tenure_domain::trend::Span;
use tenure_engine::ops::{queue_keys, workers};
use tenure_store::page::{
    self, ClaimRow, Ends, FailedRuns, Filter, HeldRow, HolderRow, Oldest, PriorityRow, QueueRow, WaitingRow,
};
use tenure_store::policies::StoredPolicy;
use tenure_store::queue_counts::{self, ShownQueue};
use tenure_store::schedulers::Scheduled;
use tenure_store::worker_sessions::Member;
use tenure_store::{clock, policies, schedulers, servers, worker_sessions};

const ABOUT: About = About { queue: true, worker: false };
/// Rows of a section.
const ROWS_MAX: i64 = 5;
const WORKERS_MAX: usize = 10;

/// Parts of the page that are none if not read in time.
struct Parts {
    oldest: Option<HashMap<i32, Oldest>>,
    hidden: Option<HashMap<i32, i64>>,
    waiting: Option<Vec<WaitingRow>>,
    held: Option<Vec<HeldRow>>,
    priorities: Option<Vec<PriorityRow>>,
    claims: Option<Vec<ClaimRow>>,
    holders: Option<Vec<HolderRow>>,
    letters: Letters,
}

/// Reads the rows from the low-water marks on.
async fn read_parts(
    app: &Site,
    conn: &mut PgConnection,
    row: &QueueRow,
    filter: Filter<'_>,
) -> Result<Parts, sqlx::Error> {
    let key = row.key;
    let (due, marks) = (app.engine.due_marks.get(), app.engine.low_water_marks.peek(key));
    Ok(Parts {
        oldest: page::list_oldest(conn, &HashMap::from([(key, row.asked(marks))])).await?,
        hidden: page::list_hidden(conn, due.hidden).await?,
        waiting: page::list_waiting(conn, key, marks, ROWS_MAX).await?,
        held: page::list_held(conn, key, row.counted(), ROWS_MAX).await?,
        priorities: page::list_priorities(conn, key, marks).await?,
        claims: page::list_claims(conn, due.claims, filter, ROWS_MAX).await?,
        holders: page::list_holders(conn, due.claims, Some(key)).await?,
        letters: dead_letters::read(conn, key).await?,
    })
}

/// Numbers that need a scope of their own.
struct Numbers {
    span: Span,
    /// None without the scope.
    trend: Option<Trend>,
    /// None without the scope.
    failed: Option<FailedRuns>,
    /// None without limits, and without the scope.
    limits: Option<LimitsNow>,
}

async fn read_numbers(
    visit: &Visit,
    conn: &mut PgConnection,
    row: &QueueRow,
    may_see: bool,
    now: DateTime<Utc>,
) -> Result<Numbers, sqlx::Error> {
    let span = trends::span_of(visit);
    let mut numbers = Numbers { span, trend: None, failed: None, limits: None };
    if may_see {
        numbers.trend = Some(trends::read(conn, row.key, span, now).await?);
        numbers.limits = page::list_limits(conn, &HashMap::from([(row.key, row.counted())])).await?.remove(&row.key);
    }
    if visit.may(failed::scope()) {
        let within = span.length().to_std().unwrap_or_default();
        let mut failed = page::list_failed_of_queue(conn, row.key, within).await?;
        failed::hide_results(visit, &mut failed);
        numbers.failed = Some(failed);
    }
    Ok(numbers)
}

/// `GET /queue/:provisionerId/:workerType`
pub(super) async fn queue(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let name = pause::queue_of(&visit)?;
    let missing = || PageError::NotFound(format!("No task and no worker has named the queue {name} yet."));
    visit.authorize(Expression::any_of([
        format!("queue:get-task-queue:{name}"),
        format!("queue:get-worker-type:{name}"),
    ]))?;
    let key = app.engine.queues.find_key(&app.engine.pool, &name).await?.ok_or_else(missing)?;
    // Includes this server's latest contacts; other servers write theirs every ten seconds.
    workers::write_down(&app.engine.pool, &app.engine.workers).await?;
    let only = [key];
    let filter = Filter { queues: Some(&only), worker: None };
    let sequenced = app.engine.sequencer.reached();
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let row = page::list_queues(&mut conn, sequenced, Some(key)).await?.pop().ok_or_else(missing)?;
    let shown = queue_counts::find(&mut conn, sequenced, &name).await?.ok_or_else(missing)?;
    let may_see = visit.may(reading_scope(&name));
    let numbers = read_numbers(&visit, &mut conn, &row, may_see, now).await?;
    let of_readers = if may_see { read_for_readers(&mut conn, key, &name).await? } else { OfReaders::default() };
    let servers = servers::list(&mut conn).await?;
    let parts = read_parts(&app, &mut conn, &row, filter).await?;
    let scheduled_tasks = schedules::read(&visit, &mut conn, &name).await?;
    let mut failures = rows::failures(&mut conn, sequenced, &visit, filter).await?;
    failures.truncate(usize::try_from(ROWS_MAX).unwrap_or_default());
    let ended = page::list_ended(&mut conn, sequenced, Ends::All, filter, page::ENDED_READ).await?;
    let known = page::list_known(&mut conn, key).await?;
    let changes = audit::latest(&mut conn, &visit, Kind::Queue, &[name.to_string()]).await?;
    let work = parts.holders.as_ref().map(|held| rows::with_presence(rows::work(held, &ended), &known, now));
    conn.commit().await?;
    let OfReaders { policy, sessions, keys, scheduled } = of_readers;
    let subject = Subject::Queue {
        name: name.clone(),
        has_policy: policy.is_some(),
        has_scheduler: !scheduled.is_empty(),
        has_dead_letters: may_see && !parts.letters.is_empty(),
    };
    let body = html! {
        h1 { span.kind { "Queue" } (row.name) }
        (pause::shown(&visit, &name, shown.paused.as_ref(), now))
        (problems::about(&app, &visit, |object| object.queue.as_ref() == Some(&name)))
        (audit::shown(&changes, now))
        (actions::bar(&visit, On::Queue, &subject))
        (figures(&visit, &row, &shown, &parts, numbers.limits.as_ref(), now))
        (why_slow(&visit, &name, &shown, &numbers, parts.priorities.as_deref(), now))
        div.columns {
            (waiting_section(&visit, &row.name, parts.waiting.as_deref(), now))
            (claims_section(&visit, &row.name, parts.claims.as_deref(), now))
        }
        (held_section(&visit, &name, parts.held.as_deref(), now))
        (letters_section(&visit, &name, &parts.letters, shown.dead_letters, now))
        (policy_section(&visit, &name, policy.as_ref(), now))
        (keys_section(&keys))
        (sessions_section(&visit, &sessions, now))
        (schedules_section(&visit, scheduled_tasks.as_deref(), now))
        (schedulers_section(&visit, scheduled.first(), &servers, now))
        (rows::failures_section(&visit, &failures, now, ABOUT))
        (workers_section(&visit, &name, work.as_deref(), now))
    };
    Ok(Page::new(format!("Queue {name}"), Some(REFRESH), body))
}

/// For visitors who may read the queue; empty for others.
#[derive(Default)]
struct OfReaders {
    policy: Option<StoredPolicy>,
    sessions: Vec<Member>,
    keys: queue_keys::Page,
    scheduled: Vec<Scheduled>,
}

async fn read_for_readers(conn: &mut PgConnection, key: i32, name: &TaskQueueId) -> Result<OfReaders, sqlx::Error> {
    let policy = policies::find(conn, key).await?;
    // One more than shown, to detect further sessions.
    let sessions = worker_sessions::list_workers(conn, key, name, SESSIONS_MAX + 1).await?;
    let keys = queue_keys::list_busiest(conn, key, KEYS_MAX).await?;
    let mut scheduled = schedulers::list(conn).await?;
    scheduled.retain(|one| one.active.queue == key);
    Ok(OfReaders { policy, sessions, keys, scheduled })
}

/// Charts, causes that hold runs, and failures.
fn why_slow(
    visit: &Visit,
    name: &TaskQueueId,
    shown: &ShownQueue,
    numbers: &Numbers,
    priorities: Option<&[PriorityRow]>,
    now: DateTime<Utc>,
) -> Markup {
    let Numbers { span, trend, failed, limits } = numbers;
    let counts = counts_of(shown);
    html! {
        (trends::spans(visit, *span, &format!("tenure queue statistics {name}")))
        div.charts {
            @if may_see_pending(visit, name.as_str()) {
                (load::held_by(&counts, shown.paused.is_some(), limits.as_ref(), now))
                (load::priorities(priorities, now))
            }
            @match trend {
                Some(trend) => (trend.charts()),
                None => (section("Charts", &html! {}, &html! { div.note { (layout::denied(visit, &reading_scope(name))) } })),
            }
            @match failed {
                Some(failed) => {
                    (failed::by_reason(visit, failed, *span, Some(name.as_str())))
                    (failed::by_worker(visit, failed, *span, name.as_str()))
                },
                None => (failed::denied(visit)),
            }
        }
    }
}

fn counts_of(shown: &ShownQueue) -> QueueCounts {
    counts::shown(shown.counted, shown.assigned, shown.admissible, shown.paused.is_some())
}

fn figures(
    visit: &Visit,
    row: &QueueRow,
    shown: &ShownQueue,
    parts: &Parts,
    limits: Option<&LimitsNow>,
    now: DateTime<Utc>,
) -> Markup {
    let hidden = |hidden: &HashMap<i32, i64>| layout::number(hidden.get(&row.key).copied().unwrap_or(0));
    let oldest = parts.oldest.as_ref().map(|oldest| oldest.get(&row.key).copied().unwrap_or_default());
    let age = |which: fn(Oldest) -> Option<DateTime<Utc>>| match oldest.map(which) {
        None => layout::unread_value(),
        Some(Some(time)) => layout::span(time, now),
        Some(None) => html! { span.zero { "–" } },
    };
    let unseen = html! { span.dim title="You may not see this." { "–" } };
    let pending = may_see_pending(visit, &row.name);
    let counts = counts_of(shown);
    html! { dl.figures.six {
        div { dt { "Pending" } dd { @if pending { (layout::number(row.pending)) } @else { (unseen) } } }
        div { dt title="Pending, and delayed until a certain time" { "Delayed" } dd { @if pending { (layout::number(counts.delayed)) } @else { (unseen) } } }
        @if row.waiting > 0 {
            div { dt title="Pending, and waiting for a limit of the queue or of their key, or for a free worker" { "Waiting" } dd { @if pending { (layout::number(counts.waiting)) } @else { (unseen) } } }
        }
        @if counts.assigned > 0 {
            div { dt title="Assigned to the session of a worker, which has not accepted them yet" { "Assigned" } dd { @if pending { (layout::number(counts.assigned)) } @else { (unseen) } } }
        }
        div { dt title="Would start now with enough workers" { "Runnable" } dd { @if pending { (layout::number(counts.runnable)) } @else { (unseen) } } }
        div { dt { "Claimed" } dd { @if may_see_claimed(visit, &row.name) { (layout::number(row.claimed)) } @else { (unseen) } } }
        div { dt title="Messages that pollers have received and not deleted yet" { "Hidden messages" }
            dd { @if pending { (parts.hidden.as_ref().map_or_else(layout::unread_value, hidden)) } @else { (unseen) } } }
        div { dt title=(RUNNABLE) { "Oldest runnable" } dd { @if pending { (age(|oldest| oldest.runnable)) } @else { (unseen) } } }
        div { dt title=(HELD) { "Oldest held" } dd { @if pending { (age(|oldest| oldest.held)) } @else { (unseen) } } }
        @if let Some((limit, used)) = limits.and_then(|limits| limits.total) {
            (load::used("Slots used", "Ready, assigned and claimed runs, of as many as the queue may have at a time", used, limit.into()))
        }
        @if let Some(backlog) = shown.backlog.filter(|_| pending && visit.may(format!("tenure:get-queue:{}", row.name))) {
            // Fuller than its limit after a lower one was set, or after retries.
            @if let Some(limit) = backlog.limit.tasks {
                (load::used("Backlog", "Pending and delayed runs, of as many as new tasks may make", backlog.used.tasks, limit))
            }
            @if let Some(limit) = backlog.limit.bytes {
                (load::used("Backlog in bytes", "Definitions of pending and delayed runs, of as many bytes as new tasks may make", backlog.used.bytes, limit))
            }
        }
    } }
}

fn claims_section(visit: &Visit, name: &str, claims: Option<&[ClaimRow]>, now: DateTime<Utc>) -> Markup {
    let (title, required) = ("Running claims", claims_scope(name));
    if !visit.may(required.clone()) {
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let Some(claims) = claims else { return section(title, &html! {}, &layout::unread()) };
    if claims.is_empty() {
        return section(title, &html! {}, &layout::empty(&html! { p { "No worker holds a task of this queue." } }));
    }
    section(
        title,
        &html! { "the next to expire · " (all(visit, name, "running")) },
        &rows::claims(visit, claims, now, ABOUT),
    )
}

fn waiting_section(visit: &Visit, name: &str, waiting: Option<&[WaitingRow]>, now: DateTime<Utc>) -> Markup {
    let title = "Next to be claimed";
    let required = Expression::from(format!("queue:pending-list:{name}"));
    if !visit.may(required.clone()) {
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let Some(waiting) = waiting else { return section(title, &html! {}, &layout::unread()) };
    if waiting.is_empty() {
        return section(title, &html! {}, &layout::empty(&html! { p { "No run waits for a worker." } }));
    }
    let cells = |row: &WaitingRow| {
        let priority = html! {
            (row.priority)
            @if let Some(until) = row.hidden_until { " " span.dim { "message hidden for " (layout::span(until, now)) } }
        };
        vec![
            ("Task", layout::task(visit, &row.task.to_string(), row.definition.as_deref())),
            (">Run", html! { (row.run) }),
            ("Priority", priority),
            (">Waiting for", layout::span(row.scheduled, now)),
            (">Deadline", layout::time(row.deadline, now)),
        ]
    };
    let rows: Vec<_> = waiting.iter().map(cells).collect();
    section(title, &html! { "in the order of service · " (all(visit, name, "pending")) }, &table(&rows))
}

/// Empty if no run is held.
fn held_section(visit: &Visit, name: &TaskQueueId, held: Option<&[HeldRow]>, now: DateTime<Utc>) -> Markup {
    let title = "Held";
    let Some(held) = held else { return section(title, &html! {}, &layout::unread()) };
    if held.is_empty() {
        return html! {};
    }
    let required = Expression::from(format!("queue:pending-list:{name}"));
    if !visit.may(required.clone()) {
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let names = if visit.may(reading_scope(name)) { Names::Shown } else { Names::Hidden };
    let cells = |row: &HeldRow| {
        vec![
            ("Task", layout::task(visit, &row.task.to_string(), row.definition.as_deref())),
            (">Run", html! { (row.run) }),
            ("Priority", html! { (row.priority) }),
            ("Held by", layout::said(&layout::sentence(&held_words(&row.held, names), now))),
            (">Waiting for", layout::span(row.scheduled, now)),
        ]
    };
    let rows: Vec<_> = held.iter().map(cells).collect();
    section(title, &html! { "the first of each key · " (all(visit, name.as_str(), "held")) }, &table(&rows))
}

/// Link to the tasks of the queue in this state.
fn all(visit: &Visit, name: &str, state: &str) -> Markup {
    html! { a href={ (visit.link("/tasks?state=")) (state) "&queue=" (utf8_percent_encode(name, SEGMENT)) } { "all" } }
}

fn policy_section(visit: &Visit, name: &TaskQueueId, policy: Option<&StoredPolicy>, now: DateTime<Utc>) -> Markup {
    let (title, required) = ("Policy", reading_scope(name));
    if !visit.may(required.clone()) {
        return section(title, &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let Some(policy) = policy else {
        return section(
            title,
            &html! {},
            &layout::empty(&html! { p { "The queue has none: a lost worker costs its task a retry." } }),
        );
    };
    let note = html! { "version " (policy.version) ", by " (policy.client_id) " " (layout::time(policy.updated, now)) };
    let sentences = Policy::from_stored(&policy.policy).map_or_else(|_| Vec::new(), |policy| words(&policy));
    let body = html! {
        @if !sentences.is_empty() { ul.why { @for sentence in &sentences { li { (sentence) } } } }
        details open[sentences.is_empty()] { summary { "As JSON" } pre.json tabindex="0" { (text::pretty(&policy.policy)) } }
    };
    section(title, &note, &body)
}

/// Workers of the queue with the latest contact.
fn workers_section(visit: &Visit, name: &TaskQueueId, work: Option<&[Work]>, now: DateTime<Utc>) -> Markup {
    let required = workers_scope(name.as_str());
    if !visit.may(required.clone()) {
        return section("Workers", &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    if work.is_some_and(<[Work]>::is_empty) {
        let note = html! {
            p { "No worker holds a task of this queue or has finished one lately." }
            p { "Start one:" }
            pre tabindex="0" { "tenure-worker run --root-url " (visit.root_url) " --task-queue " (name) " --worker-group "
                i { "GROUP" } " --worker-id " i { "ID" } }
        };
        return section("Workers", &html! {}, &layout::empty(&note));
    }
    let shown = work.map(|work| &work[..work.len().min(WORKERS_MAX)]);
    html! {
        (rows::workers_section(visit, shown, now, ABOUT))
        @if let Some(work) = work.filter(|work| work.len() > WORKERS_MAX) {
            p.dim {
                "The first " (WORKERS_MAX) " of " (text::count(i64::try_from(work.len()).unwrap_or(i64::MAX))) " workers, by contact. "
                a href={ (visit.link("/workers?queue=")) (utf8_percent_encode(name.as_str(), SEGMENT)) } { "All workers" }
            }
        }
    }
}
