use super::*;

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

fn life(state: State) -> Life {
    Life { state, retries_left: 1, requeues: 0 }
}

#[test]
fn each_reason_is_retried_or_final_as_the_contract_says() {
    for &reason in ExceptionReason::ALL {
        let step = apply(life(State::Running(run(0))), Event::Report(run(0), Report::Exception(reason))).unwrap();
        let made = match reason {
            ExceptionReason::WorkerShutdown => Some((run(1), ReasonCreated::Retry)),
            ExceptionReason::IntermittentTask => Some((run(1), ReasonCreated::TaskRetry)),
            ExceptionReason::MalformedPayload
            | ExceptionReason::ResourceUnavailable
            | ExceptionReason::InternalError => None,
        };
        assert_eq!(step.made, made, "{reason}");
        assert_eq!(step.life.retries_left, u16::from(made.is_none()));
        assert_eq!(step.ended, Some((run(0), Outcome::Exception(reason.into()))));
    }
}

#[test]
fn a_cancelled_task_that_had_no_run_gets_one_that_carries_the_exception() {
    let step = apply(life(State::Unscheduled), Event::Cancel).unwrap();
    assert_eq!(step.made, Some((run(0), ReasonCreated::Exception)));
    assert_eq!(step.ended, Some((run(0), Outcome::Exception(ReasonResolved::Canceled))));
}
