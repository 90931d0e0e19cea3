//! `/workers`: who works? Workers by queue and presence, their latest activity, and running claims.
//! `?queue=` selects the workers of a queue, or the queues with this part of a name.

mod of_queue;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;

pub(super) use self::of_queue::share;
use super::error::PageError;
use super::layout::{self, Page, section, table};
use super::overview::REFRESH;
use super::rows::{self, About, Work, claims_scope, workers_scope};
use super::state::Site;
use super::text;
use super::visit::{SEGMENT, Visit};
use tenure_domain::presence::Presence;
use tenure_domain::scopes::Expression;
use tenure_engine::worker_counts::Counted;
use tenure_store::clock;
use tenure_store::events::Sequenced;
use tenure_store::page::{self, ClaimRow, EndedTasks, Ends, Filter};
use tenure_store::workers::WorkerCounts;

const QUEUES_SHOWN: usize = 20;
const CLAIMS_SHOWN: i64 = 15;
/// Time in which failures are counted.
pub(super) const FAILED_WITHIN: Duration = Duration::from_hours(1);
/// Presences of the tally, urgent ones last.
const TALLIED: [Presence; 5] =
    [Presence::Working, Presence::Idle, Presence::Silent, Presence::Quarantined, Presence::Frozen];

/// Reads of the database.
struct Activity {
    now: DateTime<Utc>,
    /// None if not read in time, as the next field.
    claims: Option<Vec<ClaimRow>>,
    work: Option<Vec<Work>>,
    ended: HashMap<String, EndedTasks>,
    may_list_claims: bool,
}

/// `GET /workers`
pub(super) async fn workers(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let asked = visit.query("queue").unwrap_or_default().trim().to_owned();
    if let Ok(name) = TaskQueueId::read_full(&asked)
        && visit.may(workers_scope(name.as_str()))
        && let Some(key) = app.engine.queues.find_key(&app.engine.pool, &name).await?
    {
        return of_queue::page(&app, &visit, &name, key).await;
    }
    let counted = app.engine.worker_counts.get();
    let seen = counted.iter().flat_map(|counted| &counted.queues);
    let mut queues: Vec<&WorkerCounts> = seen.filter(|counts| visit.may(workers_scope(&counts.queue))).collect();
    let tally = Tally::of(&queues);
    queues.retain(|counts| counts.queue.contains(&asked));
    queues.sort_by_key(|counts| (Reverse(urgency(counts)), Reverse(counts.total), &counts.queue));
    let shown: Vec<&str> = queues.iter().take(QUEUES_SHOWN).map(|counts| counts.queue.as_str()).collect();
    let mut activity = read(&app, &visit, &shown).await?;
    let sees_rows = !queues.is_empty()
        || activity.claims.as_ref().is_some_and(|claims| !claims.is_empty())
        || activity.work.as_ref().is_some_and(|work| !work.is_empty());
    let required = Expression::from("queue:list-workers:<queue>");
    if visit.session.is_none() && !sees_rows && !visit.may("queue:list-workers:*") {
        return Err(PageError::Denied(required));
    }
    if let Some(work) = &mut activity.work {
        work.retain(|work| work.queue().contains(&asked));
    }
    let Activity { now, claims, work, ended, may_list_claims } = &activity;
    let body = html! {
        h1 { "Workers" }
        (tally.shown(|_| None))
        (filter_form(&visit, &asked))
        (queues_section(&visit, counted.as_deref(), &queues, ended))
        (rows::workers_section(&visit, work.as_deref(), *now, About::default()))
        (claims_section(&visit, claims.as_deref(), *may_list_claims, *now))
    };
    Ok(Page::new("Workers", Some(REFRESH), body))
}

/// `queues` are those whose failures are counted.
async fn read(app: &Site, visit: &Visit, queues: &[&str]) -> Result<Activity, PageError> {
    let (sequenced, marks) = (app.engine.sequencer.reached(), app.engine.due_marks.get());
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let all_claims = visit.may("queue:claimed-list:*");
    let allowed = if all_claims { Vec::new() } else { list_allowed(&mut conn, visit, sequenced).await? };
    let filter = Filter { queues: (!all_claims).then_some(&allowed), worker: None };
    let claims = page::list_claims(&mut conn, marks.claims, filter, CLAIMS_SHOWN).await?;
    let ended = page::list_ended(&mut conn, sequenced, Ends::All, Filter::default(), page::ENDED_READ).await?;
    let holders = page::list_holders(&mut conn, marks.claims, None).await?;
    let work = match holders.map(|holders| rows::work(&holders, &ended)) {
        Some(mut work) => {
            work.retain(|work| visit.may(workers_scope(work.queue())));
            Some(rows::of_named(&mut conn, work, now).await?)
        }
        None => None,
    };
    let may_read = |queue: &&&str| visit.may(format!("tenure:get-queue:{queue}"));
    let readable: Vec<&str> = queues.iter().filter(may_read).copied().collect();
    let ended = page::count_ended(&mut conn, &readable, FAILED_WITHIN).await?;
    conn.commit().await?;
    Ok(Activity { now, claims, work, ended, may_list_claims: all_claims || !allowed.is_empty() })
}

/// Lists the fullest queues whose claims the visitor may list.
async fn list_allowed(conn: &mut PgConnection, visit: &Visit, sequenced: Sequenced) -> Result<Vec<i32>, sqlx::Error> {
    let queues = page::list_queues(conn, sequenced, None).await?;
    Ok(queues.iter().filter(|queue| visit.may(claims_scope(&queue.name))).map(|queue| queue.key).collect())
}

/// Queues without a worker that may get work come first, then those where some may not.
fn urgency(counts: &WorkerCounts) -> u8 {
    let WorkerCounts { quarantined, frozen, working, idle, .. } = counts;
    match (working + idle, quarantined + frozen) {
        (0, barred) if barred > 0 => 3,
        (0, _) => 2,
        (_, barred) if barred > 0 => 1,
        _ => 0,
    }
}

/// Workers by presence, in the order of [`TALLIED`].
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally([i64; TALLIED.len()]);

impl Tally {
    fn of(queues: &[&WorkerCounts]) -> Self {
        let mut tally = Self::default();
        for WorkerCounts { working, idle, silent, quarantined, frozen, .. } in queues {
            for (sum, number) in tally.0.iter_mut().zip([working, idle, silent, quarantined, frozen]) {
                *sum += number;
            }
        }
        tally
    }

    fn count(&mut self, presence: Presence) {
        for (sum, tallied) in self.0.iter_mut().zip(TALLIED) {
            *sum += i64::from(tallied == presence);
        }
    }

    fn shown(&self, link: impl Fn(Presence) -> Option<String>) -> Markup {
        html! {
            p.tally { @for (presence, number) in TALLIED.into_iter().zip(self.0) {
                span {
                    b { (layout::number(number)) } " "
                    @match link(presence) {
                        Some(link) => { a href=(link) { (presence.as_str()) } }
                        None => (presence.as_str()),
                    }
                }
            } }
        }
    }
}

fn filter_form(visit: &Visit, asked: &str) -> Markup {
    html! {
        form.ask method="get" action=(visit.link("/workers")) {
            label { "Queue, or a part of its name" input name="queue" value=(asked) maxlength="100" autocomplete="off"; }
            button type="submit" { "Show" }
        }
    }
}

fn link_to(visit: &Visit, queue: &str) -> String {
    format!("{}?queue={}", visit.link("/workers"), utf8_percent_encode(queue, SEGMENT))
}

fn queues_section(
    visit: &Visit,
    counted: Option<&Counted>,
    queues: &[&WorkerCounts],
    ended: &HashMap<String, EndedTasks>,
) -> Markup {
    let title = "By queue";
    let Some(counted) = counted else {
        let note = html! { p { "Workers have not been counted lately. The next page may have their numbers." } };
        return section(title, &html! {}, &layout::empty(&note));
    };
    if queues.is_empty() {
        let note = html! { p { "No queue here has had a worker within the last day." } (rows::how_to_start(visit)) };
        return section(title, &html! {}, &layout::empty(&note));
    }
    let cells = |counts: &&WorkerCounts| {
        let WorkerCounts { queue, working, idle, silent, quarantined, frozen, .. } = counts;
        let failed = ended.get(queue).map_or_else(layout::none, |tasks| html! { (failed_of(tasks)) });
        vec![
            ("Queue", html! { a href=(link_to(visit, queue)) { (queue) } }),
            (">Working", layout::number(*working)),
            (">Idle", layout::number(*idle)),
            (">Silent", layout::number(*silent)),
            (">Quarantined", layout::number(*quarantined)),
            (">Frozen", layout::number(*frozen)),
            (">Failed in an hour", failed),
        ]
    };
    let rows: Vec<_> = queues.iter().take(QUEUES_SHOWN).map(cells).collect();
    let note = html! {
        "counted " (text::age(counted.at.elapsed())) " ago"
        @if queues.len() > QUEUES_SHOWN { "; " (QUEUES_SHOWN) " of " (queues.len()) ", those without a free worker first" }
    };
    section(title, &note, &table(&rows))
}

/// As in "42 of 900".
fn failed_of(tasks: &EndedTasks) -> Markup {
    html! { span.zero[tasks.failed == 0] { (text::count(tasks.failed)) " of " (text::count(tasks.tried)) } }
}

fn claims_section(visit: &Visit, claims: Option<&[ClaimRow]>, allowed: bool, now: DateTime<Utc>) -> Markup {
    let title = "Running claims";
    if !allowed {
        let body = html! { div.note { (layout::denied(visit, &Expression::from("queue:claimed-list:<queue>"))) } };
        return section(title, &html! {}, &body);
    }
    let Some(claims) = claims else { return section(title, &html! {}, &layout::unread()) };
    if claims.is_empty() {
        let note = html! {
            p { "No worker holds a task." }
            p { "If tasks are pending, check that a worker polls their queue: workers call claimWork with the queue's full name." }
        };
        return section(title, &html! {}, &layout::empty(&note));
    }
    section(title, &html! { "the next to expire" }, &rows::claims(visit, claims, now, About::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(working: i64, idle: i64, silent: i64, quarantined: i64, frozen: i64) -> WorkerCounts {
        let total = working + idle + silent + quarantined + frozen;
        WorkerCounts { queue: "a/b".to_owned(), total, quarantined, running: working, frozen, working, idle, silent }
    }

    #[test]
    fn queue_without_free_worker_is_urgent() {
        let urgencies = [counts(1, 1, 9, 0, 0), counts(1, 0, 0, 1, 0), counts(0, 0, 2, 0, 0), counts(0, 0, 0, 0, 1)];
        assert_eq!(urgencies.each_ref().map(urgency), [0, 1, 2, 3]);
    }

    #[test]
    fn tally_adds_queues_and_workers() {
        let (one, other) = (counts(1, 2, 3, 4, 5), counts(1, 0, 0, 0, 0));
        let mut tally = Tally::of(&[&one, &other]);
        assert_eq!(tally, Tally([2, 2, 3, 4, 5]));
        tally.count(Presence::Frozen);
        // A removed worker is in no tally.
        tally.count(Presence::Removed);
        assert_eq!(tally, Tally([2, 2, 3, 4, 6]));
    }
}
