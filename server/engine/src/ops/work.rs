//! What a worker has finished, and what it takes next, in one request: reports and a claim that go the ways of their own.
//!
//! They are submitted together, so that one tick can commit both. No report waits for the claim.

use std::sync::Arc;

use futures_util::future::join_all;
use tenure_api::states::ExceptionReason;

use super::OpError;
use super::claim_work::{self, claim_work};
use super::report::{RunReport, send_away};
use crate::batch::wait_list::Answer;
use crate::engine::Engine;
use tenure_domain::lifecycle::Report;
use tenure_domain::task::Task;
use tenure_domain::work::{Holder, Reported};
use tenure_store::worker_removals::Gone;

/// What came of it.
#[derive(Debug)]
pub struct Worked {
    /// A verdict on each result, in their order.
    pub results: Vec<Result<Task, OpError>>,
    /// The claims; none if none were requested.
    pub answer: Answer,
}

/// Reports these runs, each only if this worker holds it, and claims for it as many tasks as requested.
///
/// # Errors
/// The claim failed. The results were reported nevertheless.
pub async fn work(engine: &Engine, results: &[Reported], claim: &claim_work::Request) -> Result<Worked, OpError> {
    let claim_work::Request { queue, group, id, .. } = claim;
    let holder = Arc::new(Holder { queue: queue.clone(), group: group.clone(), id: id.clone() });
    let leaving = Report::Exception(ExceptionReason::WorkerShutdown);
    if results.iter().any(|result| result.report == leaving)
        && let Some(queue) = engine.queues.find_key(&engine.pool, queue).await?
    {
        let worker = Gone { queue, worker_group: group.clone(), worker_id: id.clone() };
        send_away(&engine.pool, &engine.notifiers, worker).await?;
    }
    let reports = join_all(results.iter().map(|&Reported { task, run, report }| {
        engine.report.submit(RunReport { task, run, report, holder: Some(Arc::clone(&holder)) })
    }));
    let claims = async {
        if claim.tasks > 0 {
            claim_work(&engine.wait_list, &engine.queues, &engine.pool, claim).await
        } else {
            Ok(Answer { claims: Vec::new(), delivery: engine.requeue.guard(Vec::new()) })
        }
    };
    // The reports first: a claim that follows them may be a part of their transaction.
    let (results, answer) = tokio::join!(reports, claims);
    Ok(Worked { results, answer: answer? })
}
