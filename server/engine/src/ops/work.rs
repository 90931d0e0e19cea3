//! Results and the next claims of a worker in one request. Each report and the claim go the same way as if they were sent alone.
//!
//! They are submitted together, so that one tick can commit both. No report waits for the claim.

use std::sync::Arc;

use futures_util::future::join_all;
use sqlx::PgPool;

use super::OpError;
use super::claim_work::{self, claim_work};
use super::report::{ReportRun, RunReport, send_away};
use super::task_command;
use crate::batch::Batcher;
use crate::batch::delivery::Requeue;
use crate::batch::wait_list::{Answer, WaitList};
use crate::notifiers::Notifiers;
use tenure_domain::policy::ending::Ending;
use tenure_domain::task::Task;
use tenure_domain::work::{Holder, LEAVING, Reported};
use tenure_store::queues::Queues;
use tenure_store::worker_removals::Gone;

#[derive(Debug)]
pub struct Worked {
    /// A verdict on each result, in their order.
    pub results: Vec<Result<Task, OpError>>,
    /// The claims; none if none were requested.
    pub answer: Answer,
}

/// Where results and claims go.
pub struct Ways<'a> {
    pub report: &'a Batcher<ReportRun>,
    /// Claims.
    pub wait_list: &'a WaitList,
    /// Guards the claims.
    pub requeue: &'a Requeue,
    /// Have the worker's waiting requests answered when it shuts down.
    pub notifiers: &'a Notifiers,
    /// For keys of queues.
    pub queues: &'a Queues,
    /// For keys of queues.
    pub pool: &'a PgPool,
}

/// Reports these runs, each only if this worker holds it, and claims for it as many tasks as requested.
///
/// # Errors
/// The claim failed. The results were reported nevertheless.
pub async fn work(ways: &Ways<'_>, results: &[Reported], claim: &claim_work::Request) -> Result<Worked, OpError> {
    let Ways { report, wait_list, requeue, notifiers, queues, pool } = ways;
    let claim_work::Request { queue, group, id, .. } = claim;
    let holder = Arc::new(Holder { queue: queue.clone(), group: group.clone(), id: id.clone() });
    if results.iter().any(|result| result.ending == LEAVING)
        && let Some(queue) = queues.find_key(pool, queue).await?
    {
        let worker = Gone { queue, worker_group: group.clone(), worker_id: id.clone() };
        send_away(pool, notifiers, worker).await?;
    }
    let reports = join_all(results.iter().map(async |reported| {
        let Reported { task, run, ending, result, start } = reported.clone();
        let is_delayed = ending == Ending::Released && start.is_some();
        let holder = Some(Arc::clone(&holder));
        let ended = report.submit(RunReport { task, run, ending, result, start, holder }).await?;
        if is_delayed {
            task_command::end_delay(pool, notifiers, task).await?;
        }
        Ok(ended)
    }));
    let claims = async {
        if claim.tasks > 0 {
            claim_work(wait_list, queues, pool, claim).await
        } else {
            Ok(Answer { claims: Vec::new(), delivery: requeue.guard(Vec::new()) })
        }
    };
    // The reports first: a claim that follows them may be a part of their transaction.
    let (results, answer) = tokio::join!(reports, claims);
    Ok(Worked { results, answer: answer? })
}
