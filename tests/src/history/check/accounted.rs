//! Every acknowledged task exists as created and is worked off; refusals of creates were correct.

use tenure_api::ids::SlugId;

use super::ledger::{Creation, Ledger};
use super::{Findings, History, Rule, late, names};
use crate::history::RETAINED_QUEUE;
use crate::history::record::{Answer, Change, PRIORITIES, TaskSpec};
use crate::history::snapshot::{Snapshot, Status};

const CONFLICT: u16 = 409;
/// A claim that could not be delivered is requeued without costing a retry, at most this often.
const HANDED_BACK_MAX: u32 = 5;
const RETRIED: [&str; 3] = ["worker-shutdown", "intermittent-task", "claim-expired"];

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for (task, creations) in &ledger.creations {
        check_conflicts(*task, creations, ledger, findings);
        match ledger.acknowledged(*task) {
            Some((spec, _)) => {
                check_exists(history, ledger, "when all was quiet", &history.quiet, spec, findings);
                check_exists(history, ledger, "at the end", &history.drained, spec, findings);
                check_resolved(spec, &history.drained, findings);
            }
            None => check_refused(*task, creations, &history.drained, findings),
        }
        if let Some(status) = history.drained.tasks.get(task) {
            check_runs(*task, status, findings);
        }
    }
}

fn check_exists(
    history: &History,
    ledger: &Ledger<'_>,
    when: &str,
    snapshot: &Snapshot,
    spec: &TaskSpec,
    findings: &mut Findings,
) {
    let task = spec.task;
    let Some(status) = snapshot.tasks.get(&task) else {
        // Another rule tests when a task of this queue was purged.
        if spec.queue != RETAINED_QUEUE {
            findings.add(Rule::Accounted, format!("{task} was acknowledged and does not exist {when}"));
        }
        return;
    };
    let queue = history.queues.get(spec.queue).map(String::as_str);
    let asked = ledger.changes(task).iter().filter_map(|(_, change, _)| match change {
        Change::Priority(priority) => Some(*priority),
        _ => None,
    });
    let mut priorities = asked.chain([spec.priority]).map(|priority| PRIORITIES[priority]);
    if queue != Some(&status.task_queue_id) || !priorities.any(|priority| priority == status.priority) {
        findings.add(Rule::Accounted, format!("{task} was created as {spec:?} and is {status:?} {when}"));
    }
    if status.retries_left > spec.retries {
        findings.add(Rule::Accounted, format!("{task} may be retried {} times, {status:?} {when}", spec.retries));
    }
    // A rerun renews the retries.
    let earlier = ledger.reruns(task) as u32 * (1 + spec.retries);
    let used = spec.retries.saturating_sub(status.retries_left);
    let superseded = status.runs.iter().filter(|run| late::is_superseded(run)).count() as u32;
    let free = superseded + HANDED_BACK_MAX + ledger.queues.free_runs(spec, status) + ledger.releases(status) as u32;
    if status.runs.len() as u32 > earlier + 1 + used + free {
        findings.add(Rule::Accounted, format!("{task} has more runs than retries used: {status:?} {when}"));
    }
}

fn check_resolved(spec: &TaskSpec, drained: &Snapshot, findings: &mut Findings) {
    let task = spec.task;
    if let Some(status) = drained.tasks.get(&task).filter(|status| !status.is_resolved()) {
        findings.add(Rule::Accounted, format!("{task} was never worked off: {status:?}"));
    }
}

/// Runs are numbered without gaps, and all but the last were retried or superseded.
fn check_runs(task: SlugId, status: &Status, findings: &mut Findings) {
    let numbered = status.runs.iter().enumerate().all(|(place, run)| usize::from(run.run_id) == place);
    let last = status.runs.last().map_or("unscheduled", |run| run.state.as_str());
    let retried = status.runs.windows(2).all(|pair| {
        let reason = pair[0].reason_resolved.as_deref();
        match (pair[0].state.as_str(), pair[1].reason_created.as_str()) {
            (_, "rerun") | ("failed", "task-retry") => true,
            ("exception", "exception") => late::follows(&pair[0], &pair[1]),
            ("exception", _) => reason.is_some_and(|reason| RETRIED.contains(&reason)),
            _ => false,
        }
    });
    if !numbered || last != status.state || !retried {
        findings.add(Rule::Accounted, format!("the runs of {task} contradict each other: {status:?}"));
    }
}

/// A create that every answer refused must not have created the task.
fn check_refused(task: SlugId, creations: &[Creation<'_>], drained: &Snapshot, findings: &mut Findings) {
    let refused = !creations.iter().any(|creation| creation.answer.may_be_done());
    if refused && drained.tasks.contains_key(&task) {
        findings.add(Rule::Conflict, format!("every create of {task} was refused and it exists"));
    }
}

fn check_conflicts(task: SlugId, creations: &[Creation<'_>], ledger: &Ledger<'_>, findings: &mut Findings) {
    let done: Vec<&Creation<'_>> = creations.iter().filter(|creation| creation.answer.done().is_some()).collect();
    if let [first, rest @ ..] = done.as_slice()
        && rest.iter().any(|creation| creation.spec.content != first.spec.content)
    {
        findings.add(Rule::Conflict, format!("{task} was acknowledged with two different contents"));
    }
    for refused in creations.iter().filter(|creation| *creation.answer == Answer::Refused(CONFLICT)) {
        let justified = creations.iter().any(|other| {
            other.spec.content != refused.spec.content
                && other.answer.may_be_done()
                && other.span.start <= refused.span.end
        });
        if !justified && !names::may_be_taken(refused.spec, refused.span.end, ledger) {
            findings.add(Rule::Conflict, format!("a create of {task} was refused although nothing contradicted it"));
        }
    }
}
