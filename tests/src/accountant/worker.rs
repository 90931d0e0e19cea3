//! Claims tasks and reports each as completed, until the report is done or was done already.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;

use super::accounts::Accounts;
use super::calls::{Caller, map};
use crate::history::record::{Answer, Event, RunKey, Verdict};
use crate::history::worker_id;
use crate::http::{QUEUE_API, queue_segment};

const LIMIT_MAX: u64 = 8;
/// Between two requests for work that got none: the workers also go through all queues.
const WAIT: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize)]
struct Claims {
    tasks: Vec<Claim>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    status: ClaimStatus,
    run_id: u16,
    credentials: Credentials,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimStatus {
    task_id: SlugId,
}

impl Claim {
    fn run(&self) -> RunKey {
        (self.status.task_id, self.run_id)
    }
}

pub(super) async fn work(accounts: Arc<Accounts>, number: u64) {
    let mut caller = Caller::new(Arc::clone(&accounts), number);
    while accounts.working.is_on() {
        let queue = caller.random.below(accounts.queues.len() as u64) as usize;
        let claims = claim(&mut caller, queue, number as usize).await;
        if claims.is_empty() {
            tokio::time::sleep(WAIT).await;
        }
        for claim in claims {
            report(&mut caller, &claim).await;
        }
    }
}

async fn claim(caller: &mut Caller, queue: usize, worker: usize) -> Vec<Claim> {
    let path = format!("{QUEUE_API}/claim-work/{}", queue_segment(&caller.accounts.queues[queue]));
    let limit = 1 + caller.random.below(LIMIT_MAX);
    let id = worker_id(worker);
    let body = format!(r#"{{"workerGroup":"accountant","workerId":"{id}","tasks":{limit}}}"#);
    let start = caller.accounts.stamp();
    let mut claims = Vec::new();
    let answer = map(caller.call("POST", &path, Some(&body)).await, |answer| {
        claims = read_claims(answer);
        claims.iter().map(Claim::run).collect()
    });
    caller.accounts.write(start, Event::ClaimWork { queue, worker, answer: answer.clone() });
    match answer {
        Answer::Done(_) => {}
        Answer::Refused(status) => caller.accounts.note_error(format!("claimWork was refused with {status}")),
        Answer::Unknown => caller.wait().await,
    }
    claims
}

async fn report(caller: &mut Caller, claim: &Claim) {
    let (task, number) = claim.run();
    let path = format!("{QUEUE_API}/task/{task}/runs/{number}/completed");
    loop {
        let start = caller.accounts.stamp();
        let answer = map(caller.call_as(&claim.credentials, "POST", &path, None).await, |_| ());
        let event = Event::Report { run: claim.run(), verdict: Verdict::Completed, answer: answer.clone() };
        caller.accounts.write(start, event);
        match answer {
            Answer::Done(()) => {
                caller.accounts.backlog.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            // It may have been done by an attempt without an answer: the audit decides.
            Answer::Refused(_) => return,
            Answer::Unknown => caller.wait().await,
        }
    }
}

/// The claims of an answer.
///
/// # Panics
///
/// If it is not what claimWork answers: a run that was handed out in a form that cannot be read is lost.
fn read_claims(answer: Value) -> Vec<Claim> {
    let claims: Claims = serde_json::from_value(answer).expect("claimWork answers with a list of claims");
    claims.tasks
}
