//! Runs to claim by name regardless of the queue's list. Either they are assigned to this session,
//! so no other worker can claim them, or their claim got no answer and they may be held already.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::balancer::Offer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The session may accept it until this time; none: while it lives.
    Assigned { until: Option<Instant> },
    /// An earlier claim got no answer.
    Unanswered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Given {
    pub offer: Offer,
    pub reason: Reason,
}

#[derive(Debug, Default)]
pub(super) struct GivenRuns {
    waiting: Mutex<Waiting>,
    more: Notify,
}

impl GivenRuns {
    /// Adds a run, perhaps repeatedly.
    pub(super) fn assign(&self, offer: Offer, until: Option<Instant>) {
        let is_new = self.waiting().add(Given { offer, reason: Reason::Assigned { until } }, Instant::now());
        if is_new {
            self.more.notify_one();
        }
    }

    pub(super) fn put_back(&self, given: Given, not_before: Instant) {
        self.waiting().put_back(given, not_before);
    }

    pub(super) fn take(&self) -> Option<Given> {
        self.waiting().take(Instant::now())
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting().0.is_empty()
    }

    /// After the session's end its runs went to others.
    pub(super) fn forget(&self) {
        self.waiting().0.clear();
    }

    /// Waits until a run may be due. May return early.
    pub(super) async fn more(&self) {
        let due = self.waiting().next_due();
        tokio::select! {
            () = self.more.notified() => {}
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In order of arrival, each once, with the time when it is due.
#[derive(Debug, Default)]
struct Waiting(VecDeque<(Given, Instant)>);

impl Waiting {
    /// Returns true if the run is new. A known assigned run only gets the new reason.
    fn add(&mut self, given: Given, not_before: Instant) -> bool {
        match self.0.iter_mut().find(|(waiting, _)| waiting.offer == given.offer) {
            Some((waiting, _)) => {
                if waiting.reason != Reason::Unanswered {
                    waiting.reason = given.reason;
                }
                false
            }
            None => {
                self.0.push_back((given, not_before));
                true
            }
        }
    }

    /// A run assigned again in the meantime keeps its new limit.
    fn put_back(&mut self, given: Given, not_before: Instant) {
        let waits = self.0.iter().any(|(waiting, _)| waiting.offer == given.offer);
        if given.reason == Reason::Unanswered || !waits {
            self.add(given, not_before);
        }
    }

    /// Drops assigned runs whose time is over.
    fn take(&mut self, now: Instant) -> Option<Given> {
        self.0.retain(|(given, _)| !given.reason.is_over(now));
        let place = self.0.iter().position(|(_, not_before)| *not_before <= now)?;
        self.0.remove(place).map(|(given, _)| given)
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.iter().map(|(_, not_before)| *not_before).min()
    }
}

impl Reason {
    fn is_over(self, now: Instant) -> bool {
        match self {
            Self::Assigned { until } => until.is_some_and(|until| until <= now),
            Self::Unanswered => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn offer(run: u16) -> Offer {
        Offer { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run_id: run.to_string().parse().unwrap() }
    }

    fn assigned(run: u16, until: Option<Instant>) -> Given {
        Given { offer: offer(run), reason: Reason::Assigned { until } }
    }

    fn unanswered(run: u16) -> Given {
        Given { offer: offer(run), reason: Reason::Unanswered }
    }

    #[test]
    fn given_run_waits_once_and_is_taken_when_due() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut waiting = Waiting::default();
        for (given, not_before, is_new) in [
            (assigned(0, None), now + second, true),
            (assigned(1, None), now, true),
            (assigned(0, None), now, false),
            (unanswered(2), now, true),
        ] {
            assert_eq!(waiting.add(given, not_before), is_new, "{given:?}");
        }
        assert_eq!((waiting.take(now), waiting.take(now)), (Some(assigned(1, None)), Some(unanswered(2))));
        assert_eq!((waiting.take(now), waiting.next_due()), (None, Some(now + second)));
        assert_eq!(waiting.take(now + second), Some(assigned(0, None)));
        assert_eq!((waiting.take(now + second), waiting.next_due()), (None, None));
    }

    #[test]
    fn reassigned_run_keeps_new_limit_when_put_back() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut waiting = Waiting::default();
        let anew = assigned(0, Some(now + 3 * second));
        waiting.add(anew, now);
        waiting.put_back(assigned(0, Some(now + second)), now);
        assert_eq!(waiting.take(now + 2 * second), Some(anew));
        waiting.add(anew, now);
        waiting.put_back(unanswered(0), now);
        assert_eq!(waiting.take(now + 4 * second), Some(unanswered(0)), "unanswered run was dropped");
    }

    #[test]
    fn overdue_run_is_dropped_unless_reassigned_or_unanswered() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut waiting = Waiting::default();
        for run in 0..3 {
            waiting.add(assigned(run, Some(now + second)), now);
        }
        waiting.add(assigned(1, Some(now + 3 * second)), now);
        waiting.add(unanswered(2), now);
        waiting.add(assigned(2, Some(now + second)), now);
        let later = now + second;
        let expected = [Some(assigned(1, Some(now + 3 * second))), Some(unanswered(2)), None];
        assert_eq!([waiting.take(later), waiting.take(later), waiting.take(later)], expected);
    }
}
