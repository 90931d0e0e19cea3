//! Which counts of its queue a run is part of. The counters, lists and metrics are held against this.

use tenure_api::policy::QueueCounts;

use super::hold::Hold;

/// Where a run that has not ended is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// In `pending`.
    Pending {
        /// What holds it, if anything does.
        hold: Option<Hold>,
    },
    /// In `claims`.
    Claimed,
}

/// What a run counts for. The four are stored, as changes and added up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counted {
    /// In `counters.pending`: pending, and not delayed. An autoscaler must not start machines for tomorrow.
    pub pending: i64,
    /// In `counters.claimed`.
    pub claimed: i64,
    /// In `counters.delayed`.
    pub delayed: i64,
    /// In `counters.waiting`: pending, and not admitted. Counted in `pending` too.
    pub waiting: i64,
}

impl Open {
    /// What it counts for: exactly one of pending, claimed and delayed.
    #[must_use]
    pub fn counted(self) -> Counted {
        match self {
            Self::Pending { hold: None | Some(Hold::Assigned) } => Counted { pending: 1, ..Counted::default() },
            Self::Pending { hold: Some(Hold::Waiting) } => Counted { pending: 1, waiting: 1, ..Counted::default() },
            Self::Pending { hold: Some(Hold::Delay) } => Counted { delayed: 1, ..Counted::default() },
            Self::Claimed => Counted { claimed: 1, ..Counted::default() },
        }
    }

    /// Whether nothing holds it back but a pause of its queue. A poller that has its message does not change that.
    #[must_use]
    pub fn is_ready(self) -> bool {
        match self {
            Self::Pending { hold } => hold.is_none(),
            Self::Claimed => false,
        }
    }
}

/// The change of the counts when a task's open run was that and is this afterwards; none is a task without an open run.
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

/// What is shown of a queue. `assigned` runs were given to sessions, which have not accepted them yet; of those that wait, the limits
/// would let `admissible` start, were there workers.
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
    fn an_open_run_counts_once_and_no_other_run_at_all() {
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
    fn changes_add_up_to_what_is_there_whatever_way_was_taken() {
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
    fn a_paused_queue_has_nothing_that_would_run() {
        let all = counted(9, 2, 9, 5);
        let expected =
            QueueCounts { pending: 9, claimed: 2, delayed: 9, waiting: 5, assigned: 3, ready: 1, runnable: 6 };
        assert_eq!(shown(all, 3, 2, false), expected);
        assert_eq!(shown(all, 3, 2, true), QueueCounts { runnable: 0, ..expected });
    }
}
