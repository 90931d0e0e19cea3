//! Runs that end from outside, for consumers without a session: one request waits for all of them ([`crate::watch`]). With a session its
//! inbox says so.

use tenure_api::states::{ReasonResolved, RunState};

use super::handler::{HowLost, StopReason};
use super::shared::{Control, Shared};
use crate::EndedClaim;
use crate::watch::Watching;

/// Asks for as long as the consumer runs. Never returns.
pub(super) async fn run(shared: &Shared) {
    if shared.settings.session.is_some() {
        std::future::pending::<()>().await;
    }
    shared.watch.ask(&shared.settings.client).await;
}

/// Returns when the run of a job has ended; the handler has been asked to stop then. Never for one that is not watched.
pub(super) async fn until_ended(watching: Option<&mut Watching>, control: &Control) {
    let ended = match watching {
        Some(watching) => watching.ended().await,
        None => std::future::pending().await,
    };
    let reason = reason_of_end(&ended);
    control.say_how_lost(HowLost::Ended(ended));
    control.lose(reason);
}

fn reason_of_end(EndedClaim { state, reason_resolved, .. }: &EndedClaim) -> StopReason {
    match (state, reason_resolved) {
        (Some(RunState::Exception), Some(reason)) => reason_of(*reason),
        // It waits for a worker again, or was reported by another one of this name.
        _ => StopReason::Lost,
    }
}

/// What a handler hears of a run that has ended as this.
pub(super) fn reason_of(resolved: ReasonResolved) -> StopReason {
    match resolved {
        ReasonResolved::Canceled => StopReason::Canceled,
        ReasonResolved::DeadlineExceeded => StopReason::DeadlineExceeded,
        _ => StopReason::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_hears_how_its_run_ended() {
        let exception = Some(RunState::Exception);
        for (state, reason_resolved, heard) in [
            (exception, Some(ReasonResolved::Canceled), StopReason::Canceled),
            (exception, Some(ReasonResolved::DeadlineExceeded), StopReason::DeadlineExceeded),
            (exception, Some(ReasonResolved::ClaimExpired), StopReason::Lost),
            (exception, None, StopReason::Lost),
            (Some(RunState::Pending), None, StopReason::Lost),
            (Some(RunState::Completed), Some(ReasonResolved::Completed), StopReason::Lost),
            (None, None, StopReason::Lost),
        ] {
            let (task_id, run_id) = ("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), "0".parse().unwrap());
            let ended = EndedClaim { task_id, run_id, state, reason_resolved, ended_by: None };
            assert_eq!(reason_of_end(&ended), heard, "{ended:?}");
        }
    }
}
