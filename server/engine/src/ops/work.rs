//! A worker's results and next claims in one request, each processed as if sent alone.
//!
//! All are submitted together, so that one tick can commit them. No report waits for the claim.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::PgPool;

use super::OpError;
use super::claim_work::{self, claim_work};
use super::report::{ReportRun, RunReport, send_away};
use super::task_command;
use crate::batch::Batcher;
use crate::batch::delivery::Requeue;
use crate::batch::wait_list::{Answer, WaitList};
use crate::gate::Gate;
use crate::notifiers::Notifiers;
use tenure_domain::policy::ending::Ending;
use tenure_domain::task::Task;
use tenure_domain::work::{Holder, LEAVING, Reported};
use tenure_store::queues::Queues;
use tenure_store::worker_removals::Gone;

#[derive(Debug)]
pub struct Worked {
    /// Verdicts in the order of the results.
    pub results: Vec<Result<Task, OpError>>,
    /// Empty if no claim was requested.
    pub answer: Answer,
}

pub struct Ways<'a> {
    pub report: &'a Batcher<ReportRun>,
    pub wait_list: &'a WaitList,
    pub requeue: &'a Requeue,
    pub notifiers: &'a Notifiers,
    pub queues: &'a Queues,
    pub pool: &'a PgPool,
    /// Admits failures.
    pub gate: &'a Gate,
}

/// Reports runs, each only if this worker holds it, and claims up to the requested number of tasks.
///
/// # Errors
/// If the claim failed. The results are reported nevertheless.
pub async fn work(ways: &Ways<'_>, results: &[Reported], claim: &claim_work::Request) -> Result<Worked, OpError> {
    let Ways { report, wait_list, requeue, notifiers, queues, pool, gate } = ways;
    let claim_work::Request { queue, group, id, .. } = claim;
    let holder = Arc::new(Holder { queue: queue.clone(), group: group.clone(), id: id.clone() });
    if results.iter().any(|result| result.ending == LEAVING)
        && let Some(queue) = queues.find_key(pool, queue).await?
    {
        let worker = Gone { queue, worker_group: group.clone(), worker_id: id.clone() };
        send_away(pool, notifiers, worker).await?;
    }
    let reports = join_all(results.iter().map(async |reported| {
        let Reported { task, run, ending, result, failure, start } = reported.clone();
        let failure = gate.admit(failure).await?;
        let is_delayed = ending == Ending::Released && start.is_some();
        let holder = Some(Arc::clone(&holder));
        let ended = report.submit(RunReport { task, run, ending, result, failure, start, holder }).await?;
        if is_delayed {
            task_command::end_delay(pool, notifiers, task).await?;
        }
        Ok(ended)
    }));
    let claims = async {
        if claim.tasks > 0 {
            claim_work(wait_list, queues, pool, claim).await
        } else {
            Ok(Answer { claims: Vec::new(), delivery: requeue.guard(Vec::new()), waited: Duration::ZERO })
        }
    };
    // Reports first: the claim may then join their transaction.
    let (results, answer) = tokio::join!(reports, claims);
    Ok(Worked { results, answer: answer? })
}
