//! `/queue/<provisionerId>/<workerType>`: a queue.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;

use super::actions::{self, On, Subject};
use super::audit;
use super::dead_letters::{self, Letters, letters_section};
use super::error::PageError;
use super::keys::{KEYS_MAX, keys_section};
use super::layout::{self, Page, section, table};
use super::overview::{HELD, REFRESH, RUNNABLE, may_see_claimed, may_see_pending};
use super::pause::reading_scope;
use super::rows::{self, About, ROWS_MAX, claims_scope, workers_scope};
use super::schedulers::schedulers_section;
use super::schedules::schedules_section;
use super::sessions::{SESSIONS_MAX, sessions_section};
use super::state::Site;
use super::visit::Visit;
use super::{pause, problems, schedules, text};
use tenure_domain::audit::Kind;
use tenure_domain::policy::counts::shown;
use tenure_domain::policy::document::Policy;
use tenure_domain::policy::limit_words::words;
use tenure_domain::policy::why::{Names, held_words};
use tenure_domain::scopes::Expression;
use tenure_engine::ops::{queue_keys, workers};
use tenure_store::page::{self, ClaimRow, Ends, Filter, HeldRow, HolderRow, Oldest, QueueRow, WaitingRow};
use tenure_store::policies::StoredPolicy;
use tenure_store::queue_counts::{self, ShownQueue};
use tenure_store::{clock, policies, schedulers, servers, worker_sessions};

const ABOUT: About = About { queue: true, worker: false };

/// Parts of the page that are none if not read in time.
struct Parts {
    oldest: Option<HashMap<i32, Oldest>>,
    hidden: Option<HashMap<i32, i64>>,
    waiting: Option<Vec<WaitingRow>>,
    held: Option<Vec<HeldRow>>,
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
        claims: page::list_claims(conn, due.claims, filter, ROWS_MAX).await?,
        holders: page::list_holders(conn, due.claims, Some(key)).await?,
        letters: dead_letters::read(conn, key).await?,
    })
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
    let policy = if may_see { policies::find(&mut conn, key).await? } else { None };
    // One more than shown, to detect further sessions.
    let sessions = if may_see {
        worker_sessions::list_workers(&mut conn, key, &name, SESSIONS_MAX + 1).await?
    } else {
        Vec::new()
    };
    let keys =
        if may_see { queue_keys::list_in(&mut conn, key, None, KEYS_MAX).await? } else { queue_keys::Page::default() };
    let mut scheduled = if may_see { schedulers::list(&mut conn).await? } else { Vec::new() };
    scheduled.retain(|one| one.active.queue == key);
    let servers = servers::list(&mut conn).await?;
    let parts = read_parts(&app, &mut conn, &row, filter).await?;
    let scheduled_tasks = schedules::read(&visit, &mut conn, &name).await?;
    let failures = rows::failures(&mut conn, sequenced, &visit, filter).await?;
    let ended = page::list_ended(&mut conn, sequenced, Ends::All, filter, page::ENDED_READ).await?;
    let known = page::list_known(&mut conn, key).await?;
    let changes = audit::latest(&mut conn, &visit, Kind::Queue, &[name.to_string()]).await?;
    let work = parts.holders.as_ref().map(|held| rows::with_presence(rows::work(held, &ended), &known, now));
    conn.commit().await?;
    let workers_scope = workers_scope(&row.name);
    let (has_policy, has_scheduler) = (policy.is_some(), !scheduled.is_empty());
    let has_dead_letters = may_see && !parts.letters.is_empty();
    let subject = Subject::Queue { name: name.clone(), has_policy, has_scheduler, has_dead_letters };
    let body = html! {
        h1 { span.kind { "Queue" } (row.name) }
        (pause::shown(&visit, &name, shown.paused.as_ref(), now))
        (problems::about(&app, &visit, |object| object.queue.as_ref() == Some(&name)))
        (audit::shown(&changes, now))
        (actions::bar(&visit, On::Queue, &subject))
        (figures(&visit, &row, &shown, &parts, now))
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
        @if visit.may(workers_scope.clone()) {
            (rows::workers_section(&visit, work.as_deref(), now, ABOUT))
        } @else {
            (section("Workers", &html! {}, &html! { div.note { (layout::denied(&visit, &workers_scope)) } }))
        }
    };
    Ok(Page::new(format!("Queue {name}"), Some(REFRESH), body))
}

fn figures(visit: &Visit, row: &QueueRow, now_shown: &ShownQueue, parts: &Parts, now: DateTime<Utc>) -> Markup {
    let hidden = |hidden: &HashMap<i32, i64>| layout::number(hidden.get(&row.key).copied().unwrap_or(0));
    let oldest = parts.oldest.as_ref().map(|oldest| oldest.get(&row.key).copied().unwrap_or_default());
    let age = |which: fn(Oldest) -> Option<DateTime<Utc>>| match oldest.map(which) {
        None => layout::unread_value(),
        Some(Some(time)) => layout::span(time, now),
        Some(None) => html! { span.zero { "–" } },
    };
    let unseen = html! { span.dim title="You may not see this." { "–" } };
    let pending = may_see_pending(visit, &row.name);
    let counts = shown(now_shown.counted, now_shown.assigned, now_shown.admissible, now_shown.paused.is_some());
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
        @if let Some(limit) = now_shown.backlog_limit.filter(|_| pending) {
            (backlog(counts.pending + counts.delayed, limit))
        }
    } }
}

/// Fuller than its limit after a lower one was set, or after retries.
fn backlog(used: i64, limit: i64) -> Markup {
    html! {
        div {
            dt title="Pending and delayed runs, of as many as new tasks may make" { "Backlog" }
            dd {
                (text::count(used)) " of " (text::count(limit))
                meter min="0" max=(limit) high=(limit - limit / 10) value=(used) {}
            }
        }
    }
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
    section(title, &html! { "the next to expire" }, &rows::claims(visit, claims, now, ABOUT))
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
    section(title, &html! { "in the order of service" }, &table(&rows))
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
    section(title, &html! { "the first of each key" }, &table(&rows))
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
    let limits = Policy::from_stored(&policy.policy).map_or_else(|_| Vec::new(), |policy| words(&policy));
    let limits = html! { @if !limits.is_empty() { ul.why { @for sentence in &limits { li { (sentence) } } } } };
    section(title, &note, &html! { (limits) pre.json tabindex="0" { (text::pretty(&policy.policy)) } })
}
