//! Reports of a consumer that has a source: with its next call for work if there is one now, and otherwise each by itself, by the calls that
//! every queue of this kind has.

use serde_json::Value;

use super::outcome::{Outcome, to_result};
use super::report::LONGEST_PAUSE;
use super::shared::Shared;
use crate::error::chain;
use crate::{Claim, ExceptionReason, Lost, NotReported, Reported, RunOutcome, RunResult, retry};

/// How a run ended, as far as every queue knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Completed,
    Failed,
    Exception(ExceptionReason),
}

/// Reports until there is an answer; of an outcome that is not to be reported, nothing.
pub(super) async fn send(shared: &Shared, claim: Claim, outcome: &Outcome) {
    let mut claim = claim.sent_once();
    let Some(result) = to_result(claim.task_id(), claim.run_id(), outcome) else { return };
    let end = End::of(outcome, &result);
    // Who gives a task back does not ask for more.
    if end != End::Exception(ExceptionReason::WorkerShutdown)
        && let Some(answer) = shared.reports.leave(result).await
    {
        match claim.settle(answer) {
            Ok(reported) => return say(end, &reported),
            Err(NotReported { claim: back, .. }) => claim = *back,
        }
    }
    let mut failures = 0;
    loop {
        match end.report(claim, outcome).await {
            Ok(reported) => return say(end, &reported),
            Err(NotReported { error, .. }) if !error.is_transient() && !error.is_unclear() => {
                return tracing::error!(outcome = ?end, error = chain(&error), "the report was refused");
            }
            Err(NotReported { claim: back, error }) => {
                failures += 1;
                tracing::warn!(failures, error = chain(&error), "the report did not get through; trying again");
                claim = *back;
                let pause = claim.client().retry_policy().backoff(failures, retry::jitter());
                tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            }
        }
    }
}

fn say(end: End, reported: &Reported) {
    match reported {
        Reported::Accepted(_) => tracing::info!(outcome = ?end, "task reported"),
        Reported::Lost(Lost { because, .. }) => tracing::warn!(%because, "claim lost; nothing is reported"),
    }
}

impl End {
    /// Of this outcome, which is this on the wire: a result that is too large is the worker's fault.
    fn of(outcome: &Outcome, result: &RunResult) -> Self {
        match (result.outcome, outcome) {
            (RunOutcome::Completed, _) => Self::Completed,
            (RunOutcome::Failed, _) => Self::Failed,
            (_, Outcome::Exception(reason)) => Self::Exception(*reason),
            (_, Outcome::Retry { .. }) => Self::Exception(ExceptionReason::IntermittentTask),
            (_, Outcome::Release { .. } | Outcome::Unreported) => Self::Exception(ExceptionReason::WorkerShutdown),
            (_, Outcome::Completed(_) | Outcome::Failed(_)) => Self::Exception(ExceptionReason::InternalError),
        }
    }

    async fn report(self, claim: Claim, outcome: &Outcome) -> Result<Reported, NotReported> {
        let returned: Option<&Value> = match outcome {
            Outcome::Completed(returned) | Outcome::Failed(returned) => returned.as_ref(),
            _ => None,
        };
        match (self, returned) {
            (Self::Completed, None) => claim.complete().await,
            (Self::Completed, Some(returned)) => claim.complete_with(returned).await,
            (Self::Failed, None) => claim.fail().await,
            (Self::Failed, Some(returned)) => claim.fail_with(returned).await,
            (Self::Exception(reason), _) => claim.exception(reason).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use ExceptionReason::{IntermittentTask, InternalError, MalformedPayload, WorkerShutdown};

    use super::*;

    #[test]
    fn every_outcome_is_one_that_any_queue_knows() {
        let large = Value::from("a".repeat(100_000));
        for (outcome, end) in [
            (Outcome::Completed(None), End::Completed),
            (Outcome::Failed(Some(1.into())), End::Failed),
            (Outcome::Completed(Some(large)), End::Exception(InternalError)),
            (Outcome::Exception(MalformedPayload), End::Exception(MalformedPayload)),
            (Outcome::Retry { after: None }, End::Exception(IntermittentTask)),
            (Outcome::Release { after: None }, End::Exception(WorkerShutdown)),
        ] {
            let (task_id, run_id) = ("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), "0".parse().unwrap());
            assert_eq!(End::of(&outcome, &to_result(task_id, run_id, &outcome).unwrap()), end, "{outcome:?}");
        }
    }
}
