//! State of a job's run and of its handler's stop. Read by the handler; written by the claim, the
//! session and commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::stop::{EndedRun, HowLost, Stop, StopReason};
use crate::Client;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    Ours,
    /// Held until its lease ends.
    Unrenewable,
    /// Ended, but a completed result may count: send only that.
    Late,
    /// Lost: send no further requests for this run.
    Gone,
}

impl Hold {
    /// True if the server counts the run as ended.
    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::Late | Self::Gone)
    }
}

/// A job as seen by the rest of the consumer.
pub(super) struct Control {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub started: Timestamp,
    /// Time of the first request.
    pub stopped: OnceLock<Timestamp>,
    /// The handler has ended.
    pub reporting: AtomicBool,
    /// Counts announced commands for the task.
    pub commanded: watch::Sender<u64>,
    /// When another worker may start the run, if it cannot be renewed.
    pub ends: OnceLock<Instant>,
    stop: watch::Sender<Option<StopReason>>,
    hold: watch::Sender<Hold>,
    how_lost: Arc<OnceLock<HowLost>>,
    lost: Arc<Notify>,
    client: Client,
}

impl Control {
    pub(super) fn new((task_id, run_id): (TaskId, RunId), lost: &Arc<Notify>, client: &Client) -> Self {
        Self {
            task_id,
            run_id,
            started: client.now(),
            stopped: OnceLock::new(),
            reporting: AtomicBool::new(false),
            commanded: watch::Sender::new(0),
            ends: OnceLock::new(),
            stop: watch::Sender::new(None),
            hold: watch::Sender::new(Hold::Ours),
            how_lost: Arc::default(),
            lost: Arc::clone(lost),
            client: client.clone(),
        }
    }

    pub(super) fn stop(&self) -> Stop {
        Stop::new(self.stop.subscribe(), Arc::clone(&self.how_lost))
    }

    pub(super) fn reason(&self) -> Option<StopReason> {
        *self.stop.borrow()
    }

    pub(super) fn hold(&self) -> Hold {
        *self.hold.borrow()
    }

    /// True if the handler was asked to stop, or has ended.
    pub(super) fn is_ending(&self) -> bool {
        self.reason().is_some() || self.reporting.load(Ordering::Relaxed)
    }

    pub(super) async fn not_ours(&self) {
        // Cannot fail: `self` has the sender.
        drop(self.hold.subscribe().wait_for(|hold| *hold != Hold::Ours).await);
    }

    pub(super) async fn gone(&self) {
        drop(self.hold.subscribe().wait_for(|hold| *hold == Hold::Gone).await);
    }

    pub(super) async fn late(&self) {
        drop(self.hold.subscribe().wait_for(|hold| *hold == Hold::Late).await);
    }

    /// The first reason stays, unless the run is lost later.
    pub(super) fn ask_to_stop(&self, reason: StopReason) {
        let changed = self.stop.send_if_modified(|asked| {
            let counts = asked.is_none_or(|before| reason.is_final() && !before.is_final());
            if counts {
                *asked = Some(reason);
            }
            counts
        });
        if changed {
            self.stopped.get_or_init(|| self.client.now());
            tracing::info!(task.id = %self.task_id, run.id = self.run_id.number(), ?reason, "a job is asked to stop");
        }
    }

    pub(super) fn lost_because(&self) -> String {
        self.how_lost.get().map_or_else(|| "its lease is over".to_owned(), HowLost::to_string)
    }

    pub(super) fn end(&self, ended: EndedRun) {
        let reason = ended.stop_reason();
        self.lose(reason, Some(HowLost::Ended(ended)));
    }

    /// Lets the handler of an ended run go on, unless it was asked to stop because of its run.
    pub(super) fn keep_late(&self, ended: EndedRun) {
        let kept = self.hold.send_if_modified(|hold| {
            let ours = *hold == Hold::Ours;
            if ours {
                *hold = Hold::Late;
            }
            ours
        });
        if !kept {
            return self.end(ended);
        }
        self.note_cause(Some(HowLost::Ended(ended)));
        self.lost.notify_one();
        let (task_id, run_id) = (self.task_id, self.run_id.number());
        tracing::info!(task.id = %task_id, run.id = run_id, "the run has ended, but its result may count: the job goes on");
    }

    /// The first cause stays. No effect on a late run, which was lost before.
    pub(super) fn lose(&self, reason: StopReason, how: Option<HowLost>) {
        if self.hold() == Hold::Late {
            return;
        }
        self.note_cause(how);
        if self.hold.send_if_modified(|hold| std::mem::replace(hold, Hold::Gone) != Hold::Gone) {
            self.lost.notify_one();
        }
        self.ask_to_stop(reason);
    }

    /// Another worker may start the run at `ends`, so its handler must stop before. No effect on a
    /// late run.
    pub(super) fn stop_renewing(&self, ends: Instant, how: HowLost) {
        if self.hold() == Hold::Late {
            return;
        }
        self.note_cause(Some(how));
        self.ends.get_or_init(|| ends);
        self.hold.send_if_modified(|hold| {
            let ours = *hold == Hold::Ours;
            if ours {
                *hold = Hold::Unrenewable;
            }
            ours
        });
        self.ask_to_stop(StopReason::Lost);
    }

    /// Must precede the request to stop, whose handler reads the cause.
    fn note_cause(&self, how: Option<HowLost>) {
        if let Some(how) = how {
            self.how_lost.get_or_init(|| how);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tenure_api::states::{EndedBy, ReasonResolved, RunState};

    use super::*;

    pub(in crate::consumer) fn control() -> Control {
        let client = Client::builder().root_url("http://127.0.0.1:1").build().unwrap();
        Control::new(("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), "0".parse().unwrap()), &Arc::default(), &client)
    }

    #[test]
    fn first_reason_stays_unless_run_is_lost() {
        let control = control();
        control.ask_to_stop(StopReason::Command);
        let first = *control.stopped.get().unwrap();
        for (asked, seen) in [
            (StopReason::Shutdown, StopReason::Command),
            (StopReason::Canceled, StopReason::Canceled),
            (StopReason::Lost, StopReason::Canceled),
            (StopReason::Shutdown, StopReason::Canceled),
        ] {
            control.ask_to_stop(asked);
            assert_eq!(control.reason(), Some(seen), "{asked:?}");
        }
        assert_eq!(*control.stopped.get().unwrap(), first);
    }

    #[test]
    fn lost_run_does_not_come_back() {
        let control = control();
        control.stop_renewing(Instant::now(), HowLost::Unanswered);
        assert_eq!((control.hold(), control.reason()), (Hold::Unrenewable, Some(StopReason::Lost)));
        control.lose(StopReason::Lost, None);
        control.stop_renewing(Instant::now(), HowLost::Unanswered);
        assert_eq!(control.hold(), Hold::Gone);
    }

    #[test]
    fn late_run_is_not_lost_again() {
        let control = control();
        control.keep_late(ended(&control));
        control.stop_renewing(Instant::now(), HowLost::SessionUnanswered);
        control.lose(StopReason::Lost, Some(HowLost::SessionEnded));
        control.end(ended(&control));
        assert_eq!((control.hold(), control.reason()), (Hold::Late, None));
        control.ask_to_stop(StopReason::Shutdown);
        assert_eq!(control.reason(), Some(StopReason::Shutdown));
    }

    #[test]
    fn run_without_renewal_does_not_become_late() {
        let control = control();
        control.stop_renewing(Instant::now(), HowLost::Unanswered);
        control.keep_late(ended(&control));
        assert_eq!(control.hold(), Hold::Gone);
    }

    fn ended(control: &Control) -> EndedRun {
        EndedRun {
            task_id: control.task_id,
            run_id: control.run_id,
            state: RunState::Exception,
            reason_resolved: ReasonResolved::ClaimExpired,
            ended_by: Some(EndedBy::CompleteTime),
        }
    }
}
