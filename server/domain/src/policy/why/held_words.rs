//! Sentences about runs that wait for a limit or for a worker's session.

use tenure_api::states::NoSession;
use tenure_api::why::{Reason, SlotHolder, WorkerName};

use super::{BEFORE_COUNTED_MAX, count};

/// The sentence of such a reason; empty for others.
pub(super) fn sentence(reason: &Reason) -> String {
    match reason {
        Reason::Waiting { .. } => waiting(reason),
        Reason::Assigned { worker, session_id: _, since, accept_by } => {
            let to = worker.as_ref().map_or_else(|| "a worker".to_owned(), |worker| format!("worker {}", name(worker)));
            let since = since.map_or_else(String::new, |since| format!(" at {since}"));
            let by = accept_by.map_or_else(String::new, |by| format!(" If it is not by {by}, another one gets it."));
            format!("It was given to the session of {to}{since} and is not accepted yet.{by}")
        }
        Reason::NoScheduler { candidates: 0 } => {
            "No server gives out the runs of its queue: none that is live has a --scheduler-weight above 0.".to_owned()
        }
        Reason::NoScheduler { .. } => {
            "The server that gave out the runs of its queue is silent or has ended; another one takes its place within seconds."
                .to_owned()
        }
        Reason::NoSession { because, sessions } => match because {
            NoSession::NoneLive => "Its queue gives runs to sessions of workers, and no worker has one.".to_owned(),
            NoSession::NoneFree => format!(
                "Its queue gives runs to sessions of workers, and none of {} is free: each is at its capacity, frozen or quarantined.",
                count(*sessions, "session")
            ),
            NoSession::AllExtended => format!(
                "Its queue gives runs to sessions of workers, and none of {} has been renewed since the servers were away.",
                count(*sessions, "session")
            ),
        },
        Reason::NotAccepted { worker, session_id: _ } => {
            let worker =
                worker.as_ref().map_or_else(|| "A worker".to_owned(), |worker| format!("Worker {}", name(worker)));
            format!("{worker} was given it and did not accept it in time.")
        }
        Reason::AssignQueue => {
            "Workers without a session ask for work, which gets them nothing: its queue gives runs to sessions only."
                .to_owned()
        }
        Reason::PollLimited => {
            "Its queue was polled for messages. It has limits, and polls find nothing: workers get its runs by \
             claimWork, or by their sessions if it assigns them."
                .to_owned()
        }
        Reason::Dependencies { .. }
        | Reason::Delay { .. }
        | Reason::Paused { .. }
        | Reason::Reserved { .. }
        | Reason::NoWorker { .. }
        | Reason::Behind { .. }
        | Reason::Running { .. }
        | Reason::Resolved { .. } => String::new(),
    }
}

/// What a run waits for, the first of: a slot of its key, one of its queue, their rates, its worker, its turn.
fn waiting(reason: &Reason) -> String {
    let Reason::Waiting {
        key,
        limit,
        used,
        total,
        total_used,
        holders,
        next_start,
        preferred_until,
        preferred,
        position,
        keys_before,
        refiling,
    } = reason
    else {
        return String::new();
    };
    let full = |limit: &Option<u32>, used: &Option<u32>| limit.zip(*used).filter(|(limit, used)| used >= limit);
    let its_key = key.as_ref().map_or_else(|| "its key".to_owned(), |key| format!("its key {key:?}"));
    let mut sentences = Vec::new();
    if let Some((limit, _)) = full(limit, used) {
        sentences.push(format!("It waits for a slot of {its_key}, which has {limit}{}.", taken_by(holders.as_deref())));
    } else if let Some((total, _)) = full(total, total_used) {
        sentences.push(format!("It waits for a slot of its queue, which has {total}{}.", taken_by(holders.as_deref())));
    } else if let Some(until) = preferred_until {
        let worker = preferred
            .as_ref()
            .map_or_else(|| "the worker that its task names".to_owned(), |worker| format!("worker {}", name(worker)));
        sentences.push(format!("It waits for {worker} until {until}; then any worker may have it."));
    } else if next_start.is_none() {
        sentences.push("It waits for admission, which looks at it at its turn.".to_owned());
    }
    if let Some(next) = next_start {
        sentences.push(format!("The rate allows the next start at {next}."));
    }
    if *position > 1 {
        let (runs, are) = (counted(position - 1, "run"), are(position - 1));
        sentences.push(format!("{runs} of {its_key} {are} before it."));
    }
    if *keys_before > 0 {
        sentences.push(format!("{} {} before it.", counted(*keys_before, "other key"), are(*keys_before)));
    }
    if *refiling {
        sentences.push("Its queue's policy was changed, and runs are being brought under it.".to_owned());
    }
    sentences.join(" ")
}

fn are(number: u32) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

fn counted(number: u32, what: &str) -> String {
    if number >= BEFORE_COUNTED_MAX { format!("At least {BEFORE_COUNTED_MAX} {what}s") } else { count(number, what) }
}

fn taken_by(holders: Option<&[SlotHolder]>) -> String {
    let Some(holders) = holders.filter(|holders| !holders.is_empty()) else { return String::new() };
    let one = |holder: &SlotHolder| match &holder.worker {
        Some(worker) => format!("{}/{} (worker {})", holder.task_id, holder.run_id, name(worker)),
        None => format!("{}/{}", holder.task_id, holder.run_id),
    };
    format!(": taken by {}", holders.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn name(worker: &WorkerName) -> String {
    format!("{}/{}", worker.worker_group, worker.worker_id)
}
