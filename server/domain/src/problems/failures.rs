//! Problems that show in how tasks end: failures, lost workers, deadlines, and tasks that wait for
//! a failed one.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use tenure_api::problems::{Problem, ProblemKind, ProblemObject};
use tenure_api::states::ReasonResolved;

use super::facts::{Blocked, Count, Ends, Example, QueueEnds};
use super::{number, problem};
use crate::verdict::span;

/// Fewer resolved tasks are no basis for a rate.
const RESOLVED_LEAST: i64 = 20;
const FAILED_PERCENT: i64 = 10;
/// A queue that always fails as often needs nobody now.
const TIMES_BEFORE: i64 = 3;
const LOST_LEAST: i64 = 5;
const DEADLINES_MAX: i64 = 5;

/// True if a task that ended for this reason has failed. Deadlines have a problem of their own.
#[must_use]
pub fn is_failure(reason: ReasonResolved) -> bool {
    match reason {
        ReasonResolved::Failed
        | ReasonResolved::ClaimExpired
        | ReasonResolved::WorkerShutdown
        | ReasonResolved::MalformedPayload
        | ReasonResolved::ResourceUnavailable
        | ReasonResolved::InternalError
        | ReasonResolved::IntermittentTask => true,
        ReasonResolved::Completed
        | ReasonResolved::DeadlineExceeded
        | ReasonResolved::Canceled
        | ReasonResolved::Superseded => false,
    }
}

/// True if a task that ended for this reason was tried: its end tells of the queue.
#[must_use]
pub fn is_tried(reason: ReasonResolved) -> bool {
    is_failure(reason) || [ReasonResolved::Completed, ReasonResolved::DeadlineExceeded].contains(&reason)
}

impl Ends {
    fn sum(&self, of: impl Fn(ReasonResolved) -> bool) -> i64 {
        self.resolved.iter().filter(|(reason, _)| of(**reason)).map(|(_, count)| count.number).sum()
    }

    fn since(&self, of: impl Fn(ReasonResolved) -> bool) -> Option<DateTime<Utc>> {
        self.resolved.iter().filter(|(reason, _)| of(**reason)).map(|(_, count)| count.since).min()
    }
}

/// True if more than a tenth of the recent tasks failed, and more than three times as often as in
/// the hour before.
#[must_use]
pub fn fails(ends: &QueueEnds) -> bool {
    let QueueEnds { recent, before, .. } = ends;
    let (tried, failed) = (recent.sum(is_tried), recent.sum(is_failure));
    let (tried_before, failed_before) = (before.sum(is_tried), before.sum(is_failure));
    let is_new = failed_before == 0 || failed * tried_before > TIMES_BEFORE * failed_before * tried;
    tried >= RESOLVED_LEAST && failed * 100 > FAILED_PERCENT * tried && is_new
}

pub(super) fn find(ends: &QueueEnds) -> Vec<Problem> {
    [failing(ends), loses_workers(ends), misses_deadlines(ends)].into_iter().flatten().collect()
}

fn about(ends: &QueueEnds) -> ProblemObject {
    ProblemObject { queue: Some(ends.queue.clone()), ..ProblemObject::default() }
}

fn failing(ends: &QueueEnds) -> Option<Problem> {
    if !fails(ends) {
        return None;
    }
    let QueueEnds { queue, recent, before, examples } = ends;
    let since = recent.since(is_failure)?;
    let (tried, failed) = (recent.sum(is_tried), recent.sum(is_failure));
    let earlier = match before.sum(is_tried) {
        0 => "no task ended in the hour before".to_owned(),
        tried => format!("{} % in the hour before", before.sum(is_failure) * 100 / tried),
    };
    let failures = examples.iter().filter(|example| is_failure(example.reason));
    let total: i64 = failures.clone().map(|example| example.number).sum();
    let how = commonest(failures.clone().map(|example| (how(example), example.number)));
    let worker = commonest(failures.filter_map(|example| Some((example.worker.clone()?, example.number))));
    // A worker with most of the failures is probably their cause.
    let worker = worker.filter(|(_, of_it)| of_it * 2 > total);
    let mut message = format!(
        "{queue}: {failed} of {tried} tasks failed in the last 15 minutes ({} %; {earlier})",
        failed * 100 / tried
    );
    if let Some((how, of_it)) = how {
        message += &format!("; most often {how}, {of_it} of the last {}", number(total, "failed run"));
    }
    let mut object = about(ends);
    let action = if let Some(((group, id), of_it)) = worker {
        let name = format!("{group}/{id}");
        message += &format!("; {of_it} of them on worker {name}");
        object.worker = Some(name.clone());
        format!("Look at worker {name}, and quarantine it if the tasks succeed on others.")
    } else {
        "Read the logs of the latest failures on the page of the queue.".to_owned()
    };
    Some(problem(ProblemKind::Fails, object, since, message + ".", action))
}

fn how(example: &Example) -> String {
    match (example.reason, example.exit_code) {
        (ReasonResolved::Failed, Some(code)) => format!("with exit code {code}"),
        (reason, _) => format!("as {reason}"),
    }
}

/// Returns the greatest sum; of equal ones, the last.
fn commonest<T: Ord>(of: impl Iterator<Item = (T, i64)>) -> Option<(T, i64)> {
    let mut sums = BTreeMap::new();
    for (what, number) in of {
        *sums.entry(what).or_insert(0) += number;
    }
    sums.into_iter().max_by_key(|(_, sum)| *sum)
}

fn loses_workers(ends: &QueueEnds) -> Option<Problem> {
    let Count { number: lost, since } = ends.recent.lost.filter(|lost| lost.number >= LOST_LEAST)?;
    let message = format!("{}: {lost} runs were lost with their workers in the last 15 minutes.", ends.queue);
    let action = "Look for workers that are killed, run out of memory or lose their network; \
                  the latest failures on the page of the queue name them.";
    Some(problem(ProblemKind::LosesWorkers, about(ends), since, message, action))
}

fn misses_deadlines(ends: &QueueEnds) -> Option<Problem> {
    let missed = ends.recent.resolved.get(&ReasonResolved::DeadlineExceeded)?;
    if missed.number <= DEADLINES_MAX {
        return None;
    }
    let queue = &ends.queue;
    let message = format!("{queue}: {} tasks missed their deadlines in the last 15 minutes.", missed.number);
    let action =
        "Add workers, or give the tasks more time: their deadline, or deadlineAfter in the policy of the queue.";
    Some(problem(ProblemKind::Deadlines, about(ends), missed.since, message, action))
}

/// Returns a problem for each group and failed task.
pub(super) fn find_blocked(blocked: &[Blocked], now: DateTime<Utc>) -> Vec<Problem> {
    let of_one = |blocked: &Blocked| {
        let Blocked { group, required, queue, reason, failed, tasks, at_least } = blocked;
        let least = if *at_least { "at least " } else { "" };
        let verb = if *reason == ReasonResolved::Canceled {
            "was cancelled"
        } else if *reason == ReasonResolved::DeadlineExceeded {
            "missed its deadline"
        } else {
            "failed"
        };
        let need = if *tasks == 1 { "it needs" } else { "they need" };
        let message = format!(
            "{least}{} of group {group} can never run: {need} task {required} of {queue}, which {verb} {} ago.",
            number(*tasks, "task"),
            span(now - *failed)
        );
        let object = ProblemObject { group: Some(*group), queue: Some(queue.clone()), ..ProblemObject::default() };
        let action =
            format!("Run it again: tenure task rerun {required}; or cancel the group: tenure group cancel {group}");
        problem(ProblemKind::Never, object, *failed, message, action)
    };
    blocked.iter().map(of_one).collect()
}
