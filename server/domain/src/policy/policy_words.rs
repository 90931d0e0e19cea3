//! A policy as sentences for people. Defaults are left out, except the cost of a lost worker.

use chrono::TimeDelta;
use tenure_api::states::{Delivery, LateResult, OnDuplicate, OnSchedulerLoss};

use super::document::{Policy, RetryDelay};
use super::limit_words;
use crate::verdict::span;

/// Returns the cost of a lost worker, the limits, and other fields that differ from the defaults.
#[must_use]
pub fn words(policy: &Policy) -> Vec<String> {
    let mut sentences = vec![delivery(policy.delivery).to_owned()];
    sentences.extend(limit_words::words(policy));
    sentences.extend(times(policy));
    sentences.extend(options(policy));
    sentences
}

fn delivery(delivery: Delivery) -> &'static str {
    match delivery {
        Delivery::Retries => "A lost worker costs its task a retry.",
        Delivery::AtLeastOnce => "A lost worker costs its task nothing: the task runs again.",
        Delivery::AtMostOnce => "A task whose worker is lost ends: no task is started twice.",
    }
}

fn is_set(time: TimeDelta) -> bool {
    time > TimeDelta::zero()
}

fn times(policy: &Policy) -> Vec<String> {
    let retain = policy.retain;
    let kept =
        |which: &str, time: Option<TimeDelta>| time.map(|time| format!("{which} tasks are kept for {}.", span(time)));
    let sentences = [
        is_set(policy.delay)
            .then(|| format!("The first run of a task starts after {} at the earliest.", span(policy.delay))),
        policy.retry_delay.map(retry_delay),
        is_set(policy.complete_time)
            .then(|| format!("A run ends after {}, and another one follows.", span(policy.complete_time))),
        policy.claim_timeout.map(|time| format!("Workers renew a claim within {}.", span(time))),
        policy
            .deadline_after
            .map(|time| format!("Tasks without a deadline get one {} after their creation.", span(time))),
        kept("Completed", retain.and_then(|retain| retain.completed)),
        kept("Failed", retain.and_then(|retain| retain.failed)),
    ];
    sentences.into_iter().flatten().collect()
}

fn retry_delay(delay: RetryDelay) -> String {
    let RetryDelay { first, factor, most } = delay;
    let growth =
        if factor > 1.0 { format!(", then {factor} times as long, up to {}", span(most)) } else { String::new() };
    format!("A retry after a failure waits for {}{growth}.", span(first))
}

fn options(policy: &Policy) -> Vec<String> {
    let duplicates = policy.on_duplicate.and_then(|treatment| match treatment {
        OnDuplicate::Reject => None,
        OnDuplicate::Coalesce => Some("A task with a unique name in use is the existing task.".to_owned()),
        OnDuplicate::Queue => Some("A task with a unique name in use waits until the others have ended.".to_owned()),
    });
    let late = match policy.late_result {
        LateResult::Reject => None,
        LateResult::FirstWins => Some("A late result counts while the task is unresolved.".to_owned()),
    };
    let lost_scheduler = match policy.on_scheduler_loss {
        OnSchedulerLoss::Keep => None,
        OnSchedulerLoss::Reassign => Some("If its scheduler is replaced, runs are given out again.".to_owned()),
    };
    let backlog = policy.backlog;
    let sentences = [
        backlog.and_then(|limit| limit.tasks).map(|tasks| format!("New tasks are refused while {tasks} are pending.")),
        backlog
            .and_then(|limit| limit.bytes)
            .map(|bytes| format!("New tasks are refused that do not fit into {bytes} bytes with the pending ones.")),
        policy.retry_failed.then(|| "A task that fails runs again while it has retries left.".to_owned()),
        policy.dead_letters.then(|| "Tasks that fail are listed as dead letters.".to_owned()),
        duplicates,
        late,
        lost_scheduler,
    ];
    sentences.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(policy: Value) -> Vec<String> {
        words(&Policy::from_request(&serde_json::from_value(policy).unwrap()).unwrap())
    }

    #[test]
    fn defaults_are_one_sentence() {
        assert_eq!(of(json!({})), ["A lost worker costs its task a retry."]);
    }

    #[test]
    fn each_choice_is_a_sentence() {
        let policy = json!({"delivery": "at-least-once", "completeTime": 600, "claimTimeout": 60,
            "retryDelay": {"first": 5, "factor": 2, "most": 60}, "backlog": {"tasks": 100, "bytes": 5_000}, "retryFailed": true,
            "deadLetters": true, "onDuplicate": "queue", "lateResult": "first-wins", "deadlineAfter": 3_600,
            "retain": {"completed": 86_400, "failed": 172_800}, "concurrency": {"total": 2}});
        assert_eq!(
            of(policy),
            [
                "A lost worker costs its task nothing: the task runs again.",
                "At most 2 runs of the queue at a time.",
                "A retry after a failure waits for 5 s, then 2 times as long, up to 1 m.",
                "A run ends after 10 m, and another one follows.",
                "Workers renew a claim within 1 m.",
                "Tasks without a deadline get one 1 h after their creation.",
                "Completed tasks are kept for 1 d.",
                "Failed tasks are kept for 2 d.",
                "New tasks are refused while 100 are pending.",
                "New tasks are refused that do not fit into 5000 bytes with the pending ones.",
                "A task that fails runs again while it has retries left.",
                "Tasks that fail are listed as dead letters.",
                "A task with a unique name in use waits until the others have ended.",
                "A late result counts while the task is unresolved.",
            ]
        );
    }
}
