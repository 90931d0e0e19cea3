//! What a worker has finished, and what it takes next, in one request: reports and a claim that go the ways of their own.
//!
//! They are submitted together, so that one tick can commit both. No report waits for the claim.

use std::sync::Arc;

use futures_util::future::join_all;
use sqlx::PgPool;
use tenure_api::states::ExceptionReason;

use super::OpError;
use super::claim_work::{self, claim_work};
use super::report::{ReportRun, RunReport, send_away};
use crate::batch::Batcher;
use crate::batch::delivery::Requeue;
use crate::batch::wait_list::{Answer, WaitList};
use crate::notifiers::Notifiers;
use tenure_domain::lifecycle::Report;
use tenure_domain::task::Task;
use tenure_domain::work::{Holder, Reported};
use tenure_store::queues::Queues;
use tenure_store::worker_removals::Gone;

/// What came of it.
#[derive(Debug)]
pub struct Worked {
    /// A verdict on each result, in their order.
    pub results: Vec<Result<Task, OpError>>,
    /// The claims; none if none were requested.
    pub answer: Answer,
}

/// What it is done with.
pub struct Parts<'a> {
    /// For looking up queues, and for telling other servers.
    pub pool: &'a PgPool,
    /// Caches the keys of queues.
    pub queues: &'a Queues,
    /// Reach the requests of a worker that leaves.
    pub notifiers: &'a Notifiers,
    /// The reports.
    pub report: &'a Batcher<ReportRun>,
    /// The claims.
    pub wait_list: &'a WaitList,
    /// Guards the claims.
    pub requeue: &'a Requeue,
}

/// Reports these runs, each only if this worker holds it, and claims for it as many tasks as requested.
///
/// # Errors
/// The claim failed. The results were reported nevertheless.
pub async fn work(parts: Parts<'_>, results: &[Reported], claim: &claim_work::Request) -> Result<Worked, OpError> {
    let Parts { pool, queues, notifiers, report: batcher, wait_list, requeue } = parts;
    let claim_work::Request { queue, group, id, .. } = claim;
    let holder = Arc::new(Holder { queue: queue.clone(), group: group.clone(), id: id.clone() });
    let leaving = Report::Exception(ExceptionReason::WorkerShutdown);
    if results.iter().any(|result| result.report == leaving)
        && let Some(queue) = queues.find_key(pool, queue).await?
    {
        let worker = Gone { queue, worker_group: group.clone(), worker_id: id.clone() };
        send_away(pool, notifiers, worker).await?;
    }
    let reports = join_all(results.iter().map(|&Reported { task, run, report }| {
        batcher.submit(RunReport { task, run, report, holder: Some(Arc::clone(&holder)) })
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
