//! The queue counts of a run. Counters, lists and metrics are tested against these rules.

use tenure_api::policy::QueueCounts;

use super::hold::Hold;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    Pending { hold: Option<Hold> },
    Claimed,
}

/// The counts of a run. They are stored as changes and summed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counted {
    /// Not delayed: an autoscaler must start no machines for tomorrow.
    pub pending: i64,
    pub claimed: i64,
    pub delayed: i64,
    /// Waiting for admission. These runs count in `pending` too.
    pub waiting: i64,
}

impl Open {
    /// Returns exactly one of pending, claimed and delayed.
    #[must_use]
    pub fn counted(self) -> Counted {
        match self {
            Self::Pending { hold: None | Some(Hold::Assigned) } => Counted { pending: 1, ..Counted::default() },
            Self::Pending { hold: Some(Hold::Waiting) } => Counted { pending: 1, waiting: 1, ..Counted::default() },
            Self::Pending { hold: Some(Hold::Delay) } => Counted { delayed: 1, ..Counted::default() },
            Self::Claimed => Counted { claimed: 1, ..Counted::default() },
        }
    }

    /// True if no hold applies. Pauses and pollers do not matter.
    #[must_use]
    pub fn is_ready(self) -> bool {
        match self {
            Self::Pending { hold } => hold.is_none(),
            Self::Claimed => false,
        }
    }
}

/// Returns the change of the counts. None is a task without an open run.
pub fn change(before: Option<Open>, after: Option<Open>) -> Counted {
    let counted = |open: Option<Open>| open.map(Open::counted).unwrap_or_default();
    let (before, after) = (counted(before), counted(after));
    Counted {
        pending: after.pending - before.pending,
        claimed: after.claimed - before.claimed,
        delayed: after.delayed - before.delayed,
        waiting: after.waiting - before.waiting,
    }
}

/// Returns the counts to show. `admissible` is the number of waiting runs that the limits would
/// allow, given enough workers.
pub fn shown(sum: Counted, assigned: i64, admissible: i64, is_paused: bool) -> QueueCounts {
    let Counted { pending, claimed, delayed, waiting } = sum;
    let ready = pending - waiting - assigned;
    let runnable = if is_paused { 0 } else { ready + assigned + admissible };
    QueueCounts { pending, claimed, delayed, waiting, assigned, ready, runnable }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Option<Open>; 6] = [
        None,
        Some(Open::Pending { hold: None }),
        Some(Open::Pending { hold: Some(Hold::Delay) }),
        Some(Open::Pending { hold: Some(Hold::Waiting) }),
        Some(Open::Pending { hold: Some(Hold::Assigned) }),
        Some(Open::Claimed),
    ];

    fn counted(pending: i64, claimed: i64, delayed: i64, waiting: i64) -> Counted {
        Counted { pending, claimed, delayed, waiting }
    }

    #[test]
    fn only_open_run_counts_once() {
        let expected = [
            counted(0, 0, 0, 0),
            counted(1, 0, 0, 0),
            counted(0, 0, 1, 0),
            counted(1, 0, 0, 1),
            counted(1, 0, 0, 0),
            counted(0, 1, 0, 0),
        ];
        for (open, expected) in ALL.into_iter().zip(expected) {
            assert_eq!(change(None, open), expected);
            let ready = open.is_some_and(Open::is_ready);
            let assigned = matches!(open, Some(Open::Pending { hold: Some(Hold::Assigned) }));
            assert_eq!(i64::from(ready || assigned), expected.pending - expected.waiting);
        }
    }

    #[test]
    fn changes_add_up_to_current_counts() {
        for before in ALL {
            for between in ALL {
                for after in ALL {
                    let (first, second) = (change(before, between), change(between, after));
                    let sum = counted(
                        first.pending + second.pending,
                        first.claimed + second.claimed,
                        first.delayed + second.delayed,
                        first.waiting + second.waiting,
                    );
                    assert_eq!(sum, change(before, after));
                }
            }
            assert_eq!(change(before, before), Counted::default());
        }
    }

    #[test]
    fn paused_queue_has_no_runnable_runs() {
        let all = counted(9, 2, 9, 5);
        let expected =
            QueueCounts { pending: 9, claimed: 2, delayed: 9, waiting: 5, assigned: 3, ready: 1, runnable: 6 };
        assert_eq!(shown(all, 3, 2, false), expected);
        assert_eq!(shown(all, 3, 2, true), QueueCounts { runnable: 0, ..expected });
    }
}
