//! The final audit: compares the stored state with the acknowledged calls.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tenure_api::ids::SlugId;

use super::accounts::Accounts;
use super::calls::Caller;
use crate::history::check::{History, check};
use crate::history::lost::{forget_lost, times_of_loss};
use crate::history::record::{Answer, Event, Record, RunKey, Stamp};
use crate::history::snapshot::{Counts, Snapshot, Status};
use crate::http::{QUEUE_API, queue_segment};

const TASKS_PER_CALL: usize = 1_000;
const QUOTED: usize = 20;

#[derive(Debug)]
pub struct Audit {
    /// Numbers of acknowledged creates, claims and reports.
    pub acknowledged: [usize; 3],
    /// Tasks that were acknowledged and do not exist, including those in a lost end of the
    /// database's log.
    pub lost: Vec<SlugId>,
    /// Tasks that stay pending without being claimed, or claimed forever.
    pub stranded: u64,
    /// Calls that were answered with "try again".
    pub unavailable: usize,
    pub errors: Vec<String>,
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [created, claimed, completed] = self.acknowledged;
        write!(
            f,
            "acknowledged: {created} creates, {claimed} claims, {completed} reports; lost {}, stranded {}; 503: {}",
            self.lost.len(),
            self.stranded,
            self.unavailable
        )
    }
}

impl Audit {
    pub(super) fn of(
        accounts: &Accounts,
        drained: Snapshot,
        stranded: &HashMap<String, u64>,
        claim_term: Duration,
    ) -> Self {
        let records = accounts.records();
        let created = accounts.created(0, Stamp::MAX);
        let missing = |task: &SlugId| !drained.tasks.contains_key(task);
        let mut audit = Self {
            acknowledged: count_acknowledged(&records),
            lost: created.into_iter().filter(missing).collect(),
            stranded: stranded.values().sum(),
            unavailable: records.iter().filter(|record| matches!(record.event, Event::DatabaseFault)).count(),
            errors: accounts.errors(),
        };
        audit.errors.extend(stranded.iter().map(|(queue, left)| format!("{left} tasks of {queue} are stranded")));
        audit.errors.extend(wrong_refusals(&records, claim_term));
        audit.errors.extend(unfinished(&drained));
        let mut history = History {
            queues: accounts.queues.clone(),
            records,
            quiet: drained.clone(),
            settled: drained.clone(),
            drained,
            ..History::default()
        };
        forget_lost(&mut history.records);
        audit.errors.extend(check(&history).iter().map(ToString::to_string));
        audit
    }

    pub fn assert_correct(&self) {
        let quoted: Vec<&str> = self.errors.iter().take(QUOTED).map(String::as_str).collect();
        assert!(quoted.is_empty(), "{self}; {} errors:\n{}", self.errors.len(), quoted.join("\n"));
    }
}

fn count_acknowledged(records: &[Record]) -> [usize; 3] {
    let mut counts = [0; 3];
    for record in records {
        match &record.event {
            Event::Create { answer: Answer::Done(()), .. } => counts[0] += 1,
            Event::ClaimWork { answer: Answer::Done(runs), .. } => counts[1] += runs.len(),
            Event::Report { answer: Answer::Done(()), .. } => counts[2] += 1,
            _ => {}
        }
    }
    counts
}

/// Every task completes in exactly one run. Earlier runs were taken from workers that did not
/// answer.
fn unfinished(drained: &Snapshot) -> Vec<String> {
    let once = |status: &Status| status.runs.iter().filter(|run| run.state == "completed").count() == 1;
    let unfinished = drained.tasks.iter().filter(|(_, status)| status.state != "completed" || !once(status));
    unfinished.map(|(task, status)| format!("{task} is not completed once: {status:?}")).collect()
}

/// Finds refused reports without an explanation: an earlier attempt that may have succeeded, an
/// expired claim, or a loss.
fn wrong_refusals(records: &[Record], claim_term: Duration) -> Vec<String> {
    let losses = times_of_loss(records);
    let mut claimed: HashMap<RunKey, Stamp> = HashMap::new();
    let mut doubtful: HashMap<RunKey, Stamp> = HashMap::new();
    for record in records {
        match &record.event {
            Event::ClaimWork { answer: Answer::Done(runs), .. } => {
                claimed.extend(runs.iter().map(|run| (*run, record.end)));
            }
            Event::Report { run, answer: Answer::Unknown, .. } => {
                doubtful.entry(*run).and_modify(|end| *end = record.end.min(*end)).or_insert(record.end);
            }
            _ => {}
        }
    }
    let term = Stamp::try_from(claim_term.as_micros()).unwrap_or(Stamp::MAX) / 10 * 9;
    let refused = records.iter().filter_map(|record| match &record.event {
        Event::Report { run, answer: Answer::Refused(status), .. } => Some((record, *run, *status)),
        _ => None,
    });
    let unexplained = refused.filter(|(record, run, status)| {
        let had = claimed.get(run).copied().unwrap_or_default();
        let lost = losses.iter().any(|(start, end)| had >= *start && had <= *end);
        let repeated = doubtful.get(run).is_some_and(|end| *end <= record.start);
        let expired = record.end > had + term;
        !(lost || (matches!(status, 403 | 409) && (repeated || expired)))
    });
    unexplained.map(|(_, run, status)| format!("the report of {run:?} was refused with {status}")).collect()
}

#[derive(Deserialize)]
struct StatusPage {
    statuses: Vec<StatusEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusEntry {
    task_id: SlugId,
    status: Status,
}

pub(super) async fn take_snapshot(accounts: &Arc<Accounts>) -> Snapshot {
    let mut tasks = HashMap::new();
    for ids in accounts.tried().chunks(TASKS_PER_CALL) {
        let body = json!({ "taskIds": ids }).to_string();
        let answer = until_done(accounts, "POST", &format!("{QUEUE_API}/tasks/status"), Some(&body)).await;
        let page: StatusPage = serde_json::from_value(answer).expect("statuses answers with statuses");
        tasks.extend(page.statuses.into_iter().map(|entry| (entry.task_id, entry.status)));
    }
    Snapshot { tasks, counts: read_counts(accounts).await, ..Snapshot::default() }
}

pub(super) async fn read_counts(accounts: &Arc<Accounts>) -> Vec<Counts> {
    let mut all = Vec::new();
    for queue in &accounts.queues {
        let path = format!("{QUEUE_API}/task-queues/{}/counts", queue_segment(queue));
        let answer = until_done(accounts, "GET", &path, None).await;
        all.push(serde_json::from_value(answer).expect("taskQueueCounts answers with two counts"));
    }
    all
}

async fn until_done(accounts: &Arc<Accounts>, method: &str, path: &str, body: Option<&str>) -> Value {
    let mut caller = Caller::new(Arc::clone(accounts), 0);
    loop {
        match caller.call(method, path, body).await {
            Answer::Done(answer) => return answer,
            Answer::Refused(status) => panic!("{method} {path} was refused with {status}"),
            Answer::Unknown => caller.wait().await,
        }
    }
}
