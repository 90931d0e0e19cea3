//! Rows of queues, urgent ones first, with the cause that holds each.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::problems::{ProblemKind, ProblemSeverity};

use super::charts::spark;
use super::layout::{self, Cells};
use super::overview::{may_see_claimed, may_see_pending};
use super::rows::workers_scope;
use super::state::Site;
use super::text;
use super::visit::Visit;
use tenure_domain::policy::counts::Counted;
use tenure_domain::policy::held_by::{self, LimitsNow};
use tenure_domain::statistics::Step;
use tenure_engine::problems::Found;
use tenure_store::events::Sequenced;
use tenure_store::page::{self, Oldest, QueueRow, WORKERS_COUNTED, WorkerStates};

/// Parts of the line of the last hour.
const PARTS: usize = 30;
const PART: TimeDelta = TimeDelta::minutes(2);
/// Queues with problems that are added to a list.
const ADDED_MAX: usize = 30;

/// Severity and kind of the most urgent problem of each queue, by name.
pub(super) struct Urgent(HashMap<String, (ProblemSeverity, ProblemKind)>);

impl Urgent {
    pub(super) fn new(found: Option<&Found>) -> Self {
        let mut urgent = HashMap::new();
        // Most urgent first.
        for problem in found.into_iter().flat_map(|found| &found.problems) {
            if let Some(queue) = &problem.object.queue {
                urgent.entry(queue.to_string()).or_insert((problem.severity, problem.kind));
            }
        }
        Self(urgent)
    }

    /// Sorts queues with problems first, and otherwise keeps the order.
    pub(super) fn sort(&self, queues: &mut [QueueRow]) {
        queues.sort_by_key(|queue| self.rank(&queue.name));
    }

    fn rank(&self, queue: &str) -> u8 {
        match self.0.get(queue) {
            Some((ProblemSeverity::Now, _)) => 0,
            Some((ProblemSeverity::Known, _)) => 1,
            None => 2,
        }
    }

    /// Returns the most urgent queues with problems that are not among these, up to [`ADDED_MAX`].
    fn missing(&self, queues: &[QueueRow]) -> Vec<&str> {
        let listed: HashSet<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
        let mut missing: Vec<&str> = self.0.keys().map(String::as_str).filter(|name| !listed.contains(name)).collect();
        missing.sort_unstable_by_key(|name| (self.rank(name), *name));
        missing.truncate(ADDED_MAX);
        missing
    }
}

/// Adds queues with problems that are not among the fullest and newest ones.
pub(super) async fn add_urgent(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    urgent: &Urgent,
    queues: &mut Vec<QueueRow>,
) -> Result<(), sqlx::Error> {
    let missing = urgent.missing(queues);
    if !missing.is_empty() {
        queues.extend(page::list_named_queues(conn, sequenced, &missing).await?);
    }
    Ok(())
}

/// Reads the ages of the oldest runs. None on timeout.
pub(super) async fn read_oldest(
    app: &Site,
    conn: &mut PgConnection,
    queues: &[QueueRow],
) -> Result<Option<HashMap<i32, Oldest>>, sqlx::Error> {
    let with_pending = queues.iter().filter(|queue| queue.pending > 0);
    let marks = &app.engine.low_water_marks;
    let asked: HashMap<_, _> = with_pending.map(|queue| (queue.key, queue.asked(marks.peek(queue.key)))).collect();
    page::list_oldest(conn, &asked).await
}

/// Details of the queues that are shown, as far as the visitor may see them.
pub(super) struct Details {
    trends: HashMap<i32, Vec<i64>>,
    limits: HashMap<i32, LimitsNow>,
    /// None if not read in time.
    workers: Option<HashMap<i32, WorkerStates>>,
}

/// `oldest` has the queues with held runs, whose limits are read.
pub(super) async fn read(
    app: &Site,
    visit: &Visit,
    conn: &mut PgConnection,
    queues: &[QueueRow],
    oldest: Option<&HashMap<i32, Oldest>>,
    now: DateTime<Utc>,
) -> Result<Details, sqlx::Error> {
    let readable: Vec<&QueueRow> = queues.iter().filter(|queue| may_read(visit, &queue.name)).collect();
    let keys: Vec<i32> = readable.iter().map(|queue| queue.key).collect();
    let from = Step::Minute.floor(now) + TimeDelta::minutes(1) - TimeDelta::hours(1);
    let is_held = |queue: &&&QueueRow| oldest.and_then(|oldest| oldest.get(&queue.key)?.held).is_some();
    let held: HashMap<i32, Counted> =
        readable.iter().filter(is_held).map(|queue| (queue.key, queue.counted())).collect();
    let with_workers: Vec<i32> =
        queues.iter().filter(|queue| visit.may(workers_scope(&queue.name))).map(|queue| queue.key).collect();
    Ok(Details {
        trends: page::list_pending_trends(conn, &keys, from, PART, PARTS).await?,
        limits: if held.is_empty() { HashMap::new() } else { page::list_limits(conn, &held).await? },
        workers: page::count_workers(conn, &with_workers, app.engine.due_marks.get().claims).await?,
    })
}

fn may_read(visit: &Visit, queue: &str) -> bool {
    visit.may(format!("tenure:get-queue:{queue}"))
}

pub(super) fn cells(
    visit: &Visit,
    queue: &QueueRow,
    urgent: &Urgent,
    oldest: Option<&HashMap<i32, Oldest>>,
    details: &Details,
    now: DateTime<Utc>,
) -> Cells {
    let (pending, claimed) = (may_see_pending(visit, &queue.name), may_see_claimed(visit, &queue.name));
    let seen = |may: bool, number: i64| {
        if may {
            layout::number(number)
        } else {
            html! { span.dim title="needs a scope" { "–" } }
        }
    };
    let age = |which: fn(&Oldest) -> Option<DateTime<Utc>>| {
        let Some(oldest) = oldest else { return layout::unread_value() };
        let time = oldest.get(&queue.key).filter(|_| pending).and_then(which);
        time.map_or_else(layout::none, |time| layout::span(time, now))
    };
    let trend = details.trends.get(&queue.key).map_or_else(layout::none, |numbers| {
        let most = numbers.iter().copied().max().unwrap_or(0);
        spark(numbers, &format!("pending in the last hour, at most {}", text::count(most)))
    });
    vec![
        (
            "Queue",
            html! { (layout::queue(visit, &queue.name)) @if queue.paused.is_some() { " " span.state.exception { "paused" } } },
        ),
        ("Last hour", trend),
        (">Pending", seen(pending, queue.pending)),
        (">Delayed", seen(pending, queue.delayed)),
        (">Running", seen(claimed, queue.claimed)),
        (">Oldest runnable", age(|oldest| oldest.runnable)),
        (">Oldest held", age(|oldest| oldest.held)),
        ("Workers", workers(details.workers.as_ref(), queue.key)),
        ("What holds it", holds(visit, queue, urgent, details, now)),
    ]
}

fn workers(all: Option<&HashMap<i32, WorkerStates>>, queue: i32) -> Markup {
    let Some(all) = all else { return layout::unread_value() };
    let Some(states) = all.get(&queue) else { return layout::none() };
    let WorkerStates { working, idle, silent, quarantined, frozen, read, .. } = *states;
    let words =
        [(working, "working"), (idle, "idle"), (silent, "silent"), (quarantined, "quarantined"), (frozen, "frozen")];
    let shown: Vec<String> =
        words.iter().filter(|(number, _)| *number > 0).map(|(number, word)| format!("{number} {word}")).collect();
    if shown.is_empty() {
        return layout::none();
    }
    layout::said(&html! { @if read >= WORKERS_COUNTED { "of the first " (read) ": " } (shown.join(", ")) })
}

fn holds(visit: &Visit, queue: &QueueRow, urgent: &Urgent, details: &Details, now: DateTime<Utc>) -> Markup {
    let limits = details.limits.get(&queue.key);
    let counted = if may_see_pending(visit, &queue.name) { queue.counted() } else { Counted::default() };
    let held = held_by::words(counted, queue.paused.is_some(), limits, now);
    let problem = urgent.0.get(&queue.name).filter(|(_, kind)| *kind != ProblemKind::Paused);
    if held.is_none() && problem.is_none() {
        return layout::none();
    }
    layout::said(&html! {
        @if let Some((severity, kind)) = problem {
            span.bad[*severity == ProblemSeverity::Now] { (words(*kind)) } @if held.is_some() { "; " }
        }
        @if let Some(held) = &held { (held) }
    })
}

/// A problem in few words; the list of problems has the sentence.
fn words(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Scheduler => "no scheduler",
        ProblemKind::Refile => "its policy is still being applied",
        ProblemKind::NoWorker => "no worker",
        ProblemKind::WaitsLong => "waits long for workers",
        ProblemKind::HeldLong => "held for over an hour",
        ProblemKind::Fails => "tasks fail",
        ProblemKind::LosesWorkers => "loses workers",
        ProblemKind::Never => "tasks can never run",
        ProblemKind::Deadlines => "misses deadlines",
        ProblemKind::Paused => "paused",
        ProblemKind::Quarantined => "no worker may get runs",
        ProblemKind::Database | ProblemKind::Server | ProblemKind::Pass | ProblemKind::Subscription => kind.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, pending: i64) -> QueueRow {
        QueueRow { key: 1, name: name.to_owned(), pending, claimed: 0, delayed: 0, waiting: 0, paused: None }
    }

    #[test]
    fn queues_with_problems_come_first() {
        let of = |name: &str, kind: ProblemKind| (name.to_owned(), (kind.severity(), kind));
        let problems = [of("a/fails", ProblemKind::Fails), of("a/paused", ProblemKind::Paused)];
        let urgent = Urgent(HashMap::from(problems));
        let mut queues = vec![queue("a/full", 9), queue("a/paused", 5), queue("a/fails", 1), queue("a/empty", 0)];
        urgent.sort(&mut queues);
        let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
        assert_eq!(names, ["a/fails", "a/paused", "a/full", "a/empty"]);
    }

    #[test]
    fn most_urgent_missing_queues_are_added() {
        let of = |n: usize, kind: ProblemKind| (format!("a/{n:02}"), (kind.severity(), kind));
        let mut problems: HashMap<_, _> = (0..ADDED_MAX).map(|n| of(n, ProblemKind::Paused)).collect();
        problems.extend([of(98, ProblemKind::Fails), of(99, ProblemKind::NoWorker)]);
        let urgent = Urgent(problems);
        let missing = urgent.missing(&[queue("a/98", 1), queue("b/1", 1)]);
        assert_eq!((missing.len(), &missing[..3]), (ADDED_MAX, &["a/99", "a/00", "a/01"][..]));
    }

    #[test]
    fn workers_are_counted_by_state() {
        let states = WorkerStates { working: 6, silent: 1, read: 7, ..WorkerStates::default() };
        let all = HashMap::from([(1, states), (2, WorkerStates { read: 1, ..WorkerStates::default() })]);
        assert!(workers(Some(&all), 1).0.contains(">6 working, 1 silent<"));
        assert_eq!(workers(Some(&all), 2).0, layout::none().0);
        assert_eq!(workers(Some(&all), 3).0, layout::none().0);
        assert!(workers(None, 1).0.contains("in time"));
    }
}
