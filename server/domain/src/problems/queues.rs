//! Problems of queues: waiting tasks, pauses and workers.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::problems::{Problem, ProblemKind, ProblemObject};

use super::facts::{Barred, QueueFacts};
use super::{number, problem};
use crate::presence::SILENT_AFTER;
use crate::verdict::span;

/// Runnable tasks without a worker for longer need somebody.
const WORKER_WITHIN: TimeDelta = SILENT_AFTER;
const RUNNABLE_MAX: TimeDelta = TimeDelta::minutes(15);
const HELD_MAX: TimeDelta = TimeDelta::hours(1);

pub(super) fn find(facts: &QueueFacts, now: DateTime<Utc>) -> Vec<Problem> {
    // A paused queue starts nothing on purpose.
    if facts.paused.is_some() {
        return paused(facts).into_iter().chain(barred(facts)).collect();
    }
    let no_worker = no_worker(facts, now);
    // The missing worker is why they wait.
    let waits = if no_worker.is_none() { waits_long(facts, now) } else { None };
    [no_worker, waits, held_long(facts, now), barred(facts)].into_iter().flatten().collect()
}

fn about(facts: &QueueFacts) -> ProblemObject {
    ProblemObject { queue: Some(facts.queue.clone()), ..ProblemObject::default() }
}

fn no_worker(facts: &QueueFacts, now: DateTime<Utc>) -> Option<Problem> {
    let QueueFacts { queue, runnable, oldest_runnable, has_worker, last_contact, barred, .. } = facts;
    if *runnable <= 0 || *has_worker || barred.is_some() {
        return None;
    }
    let since = last_contact.map_or(*oldest_runnable, |contact| oldest_runnable.map(|oldest| oldest.max(contact)))?;
    if now - since <= WORKER_WITHIN {
        return None;
    }
    let contact = match last_contact {
        Some(contact) => format!("the last contact of one was {} ago", span(now - *contact)),
        None => "no worker of this queue is known".to_owned(),
    };
    let (tasks, time) = (number(*runnable, "task"), span(now - since));
    let message = format!("{queue} has had no worker for {time}: {tasks} can start; {contact}.");
    let action = format!(
        "Start a worker, for example: tenure-worker run --task-queue {queue} --worker-group GROUP --worker-id ID"
    );
    Some(problem(ProblemKind::NoWorker, about(facts), since, message, action))
}

fn waits_long(facts: &QueueFacts, now: DateTime<Utc>) -> Option<Problem> {
    let QueueFacts { queue, runnable, oldest_runnable, .. } = facts;
    let since = oldest_runnable.filter(|oldest| now - *oldest > RUNNABLE_MAX)?;
    let (tasks, time) = (number((*runnable).max(1), "task"), span(now - since));
    let message = format!("{queue}: a task that can start has waited for a worker for {time}; {tasks} can start.");
    let action = "Add workers, or see on the page of the queue whether they are idle, silent or busy.";
    Some(problem(ProblemKind::WaitsLong, about(facts), since, message, action))
}

fn held_long(facts: &QueueFacts, now: DateTime<Utc>) -> Option<Problem> {
    let QueueFacts { queue, held, oldest_held, .. } = facts;
    let since = oldest_held.filter(|oldest| now - *oldest > HELD_MAX)?;
    let (tasks, time) = (number((*held).max(1), "task"), span(now - since));
    let verb = if *held > 1 { "wait" } else { "waits" };
    let message =
        format!("{queue}: a task has been held for {time}; {tasks} {verb} for a limit or for a worker's session.");
    let action = format!("Compare the limits with the keys of the queue: tenure queue keys {queue}");
    Some(problem(ProblemKind::HeldLong, about(facts), since, message, action))
}

fn paused(facts: &QueueFacts) -> Option<Problem> {
    let QueueFacts { queue, paused, pending, .. } = facts;
    let paused = paused.as_ref()?;
    let until = paused.until.map_or_else(String::new, |until| format!(" until {}", date(until)));
    let reason = paused.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let waiting = match pending {
        0 => String::new(),
        1 => " (1 task waits)".to_owned(),
        pending => format!(" ({pending} tasks wait)"),
    };
    let message = format!("{queue} is paused by {}{until}{waiting}{reason}", paused.by);
    let action = format!("Resume it: tenure queue resume {queue}");
    Some(problem(ProblemKind::Paused, about(facts), paused.since, message, action))
}

fn barred(facts: &QueueFacts) -> Option<Problem> {
    let Barred { quarantined, frozen, since, until, only } = facts.barred.as_ref()?;
    let queue = &facts.queue;
    let (who, object) = match only {
        Some((group, id)) => {
            let worker = format!("{group}/{id}");
            let object = ProblemObject { worker: Some(worker.clone()), ..about(facts) };
            (format!("{queue}: its only worker, {worker}, is"), object)
        }
        None => (format!("{queue}: all {} workers are", quarantined + frozen), about(facts)),
    };
    let how = match (quarantined, frozen) {
        (_, 0) => "quarantined".to_owned(),
        (0, _) => "frozen".to_owned(),
        (quarantined, frozen) => format!("quarantined ({quarantined}) or frozen ({frozen})"),
    };
    let until = until.map_or_else(String::new, |until| format!("; the first quarantine ends at {}", date(until)));
    let waiting = match facts.pending {
        0 => String::new(),
        1 => "; 1 task waits".to_owned(),
        pending => format!("; {pending} tasks wait"),
    };
    let message = format!("{who} {how}{waiting}{until}.");
    let action = "Lift a quarantine, unfreeze a session, or start another worker.";
    Some(problem(ProblemKind::Quarantined, object, *since, message, action))
}

fn date(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M UTC").to_string()
}
