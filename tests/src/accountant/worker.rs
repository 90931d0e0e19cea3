//! Claims tasks and reports each as completed, until the report succeeds or is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::accounts::Accounts;
use super::calls::Caller;
use crate::history::record::{Answer, Event, Verdict};
use crate::history::{HeldClaim, read_claims, worker_id};
use crate::http::{QUEUE_API, queue_segment};

const LIMIT_MAX: u64 = 8;
const WAIT: Duration = Duration::from_millis(20);

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

async fn claim(caller: &mut Caller, queue: usize, worker: usize) -> Vec<HeldClaim> {
    let path = format!("{QUEUE_API}/claim-work/{}", queue_segment(&caller.accounts.queues[queue]));
    let limit = 1 + caller.random.below(LIMIT_MAX);
    let id = worker_id(worker);
    let body = format!(r#"{{"workerGroup":"accountant","workerId":"{id}","tasks":{limit}}}"#);
    let start = caller.accounts.stamp();
    let mut claims = Vec::new();
    let answer = caller.call("POST", &path, Some(&body)).await.map(|answer| {
        claims = read_claims(&answer);
        claims.iter().map(|held| held.run).collect()
    });
    caller.accounts.write(start, Event::ClaimWork { queue, worker, answer: answer.clone() });
    match answer {
        Answer::Done(_) => {}
        Answer::Refused(status) => caller.accounts.note_error(format!("claimWork was refused with {status}")),
        Answer::Unknown => caller.wait().await,
    }
    claims
}

async fn report(caller: &mut Caller, claim: &HeldClaim) {
    let (task, number) = claim.run;
    let path = format!("{QUEUE_API}/task/{task}/runs/{number}/completed");
    loop {
        let start = caller.accounts.stamp();
        let answer = caller.call_as(&claim.credentials, "POST", &path, None).await.without_content();
        let event = Event::Report { run: claim.run, verdict: Verdict::Completed, answer: answer.clone() };
        caller.accounts.write(start, event);
        match answer {
            Answer::Done(()) => {
                caller.accounts.backlog.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            // An unanswered attempt may have succeeded: the audit decides.
            Answer::Refused(_) => return,
            Answer::Unknown => caller.wait().await,
        }
    }
}
