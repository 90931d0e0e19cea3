//! Refiling: how a changed policy reaches existing runs, and why no run can be created under the
//! old policy.
//!
//! 1. The policy is committed, in rows that every run-creating statement reads.
//! 2. Refiling waits for transactions older than the commit ([`Stage::Older`]), so no statement
//!    still uses the old policy.
//! 3. Existing runs are stamped again in slices. Claims come first, so they hold slots of their
//!    keys before a ready run waits for one. Then come ready runs, delayed runs, and claims made
//!    meanwhile. A run that moves between these may be missed. So the last stage reads all three
//!    *in one statement*, whose snapshot has every run exactly once. It repeats until it finds no
//!    run ([`Stage::Check`]).
//!
//! Stage and cursor are columns of the policy's row, so any server continues after a crash.
//! Stamping twice is harmless.

pub const SLICE: usize = 200;

/// `queue_policies.refile_stage`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    Done,
    /// Waits for transactions older than the change.
    Older,
    /// Claims, by the age of their tasks.
    ClaimsFirst,
    /// Ready runs, by position in the queue.
    Ready,
    /// Delayed runs, by position in the queue.
    Delayed,
    /// All claims again, including those made meanwhile, by the age of their tasks.
    Claims,
    Check,
}

impl Stage {
    pub const ALL: [Self; 7] =
        [Self::Done, Self::Older, Self::ClaimsFirst, Self::Ready, Self::Delayed, Self::Claims, Self::Check];

    #[must_use]
    pub fn code(self) -> i16 {
        match self {
            Self::Done => 0,
            Self::Older => 1,
            Self::Ready => 2,
            Self::Delayed => 3,
            Self::Claims => 4,
            Self::Check => 5,
            Self::ClaimsFirst => 6,
        }
    }

    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.code() == code)
    }

    fn following(self) -> Self {
        match self {
            Self::Older => Self::ClaimsFirst,
            Self::ClaimsFirst => Self::Ready,
            Self::Ready => Self::Delayed,
            Self::Delayed => Self::Claims,
            Self::Claims => Self::Check,
            Self::Check | Self::Done => Self::Done,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefilePosition {
    pub stage: Stage,
    /// The last row of the previous slice; none when a stage begins.
    pub cursor: Option<i64>,
}

impl RefilePosition {
    pub const DONE: Self = Self { stage: Stage::Done, cursor: None };

    /// Starts over; a refiling in progress restarts.
    pub fn after_a_change() -> Self {
        Self { stage: Stage::Older, cursor: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageResult {
    /// Result of [`Stage::Older`].
    Older {
        /// True if a transaction older than the change is open.
        open: bool,
    },
    /// The runs of the slice, including those stamped before.
    Slice {
        runs: usize,
        /// The key of the last run.
        last: Option<i64>,
    },
    /// The whole queue has no run.
    NoRuns,
}

/// A step whose result does not fit its stage is repeated.
#[must_use]
pub fn step(position: RefilePosition, found: StageResult) -> RefilePosition {
    let next = |stage| RefilePosition { stage, cursor: None };
    match (position.stage, found) {
        (Stage::Done, _) => RefilePosition::DONE,
        (Stage::Older, StageResult::Older { open: false }) => next(Stage::Older.following()),
        (Stage::Older, StageResult::Older { open: true } | StageResult::Slice { .. } | StageResult::NoRuns) => position,
        (
            Stage::ClaimsFirst | Stage::Ready | Stage::Delayed | Stage::Claims | Stage::Check,
            StageResult::Older { .. },
        ) => position,
        (Stage::ClaimsFirst | Stage::Ready | Stage::Delayed | Stage::Claims | Stage::Check, StageResult::NoRuns)
        | (Stage::Check, StageResult::Slice { runs: 0, .. }) => RefilePosition::DONE,
        // The runs were stamped; the check starts over.
        (Stage::Check, StageResult::Slice { .. }) => next(Stage::Check),
        (
            stage @ (Stage::ClaimsFirst | Stage::Ready | Stage::Delayed | Stage::Claims),
            StageResult::Slice { runs, last },
        ) => {
            if runs >= SLICE && last.is_some() {
                return RefilePosition { stage, cursor: last };
            }
            next(stage.following())
        }
    }
}

/// Upper bound of the runs that may still follow the old policy. 0 exactly when all follow the new
/// one.
pub fn runs_left(stage: Stage, pending: i64, delayed: i64, claimed: i64) -> i64 {
    let (pending, delayed, claimed) = (pending.max(0), delayed.max(0), claimed.max(0));
    let left = match stage {
        Stage::Done => return 0,
        Stage::Older | Stage::ClaimsFirst | Stage::Ready => pending.saturating_add(delayed).saturating_add(claimed),
        Stage::Delayed => delayed.saturating_add(claimed),
        Stage::Claims => claimed,
        Stage::Check => 1,
    };
    left.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(stage: Stage, cursor: Option<i64>) -> RefilePosition {
        RefilePosition { stage, cursor }
    }

    #[test]
    fn every_stage_has_a_number() {
        for (code, stage) in [0, 1, 6, 2, 3, 4, 5].into_iter().zip(Stage::ALL) {
            assert_eq!((stage.code(), Stage::from_code(code)), (code, Some(stage)));
        }
        assert_eq!((Stage::from_code(-1), Stage::from_code(7)), (None, None));
    }

    #[test]
    fn every_step_follows_table() {
        use Stage::*;
        let slice = |runs, last| StageResult::Slice { runs, last };
        let found = [
            StageResult::Older { open: true },
            StageResult::Older { open: false },
            slice(0, None),
            slice(1, Some(7)),
            slice(SLICE, Some(9)),
            slice(SLICE, None),
            StageResult::NoRuns,
        ];
        let at = |stage| position(stage, None);
        let same = |stage| position(stage, Some(5));
        let full = |stage| position(stage, Some(9));
        let done = at(Done);
        for (stage, expected) in [
            (Done, [done; 7]),
            (Older, [same(Older), at(ClaimsFirst), same(Older), same(Older), same(Older), same(Older), same(Older)]),
            (
                ClaimsFirst,
                [same(ClaimsFirst), same(ClaimsFirst), at(Ready), at(Ready), full(ClaimsFirst), at(Ready), done],
            ),
            (Ready, [same(Ready), same(Ready), at(Delayed), at(Delayed), full(Ready), at(Delayed), done]),
            (Delayed, [same(Delayed), same(Delayed), at(Claims), at(Claims), full(Delayed), at(Claims), done]),
            (Claims, [same(Claims), same(Claims), at(Check), at(Check), full(Claims), at(Check), done]),
            (Check, [same(Check), same(Check), done, at(Check), at(Check), at(Check), done]),
        ] {
            for (found, expected) in found.into_iter().zip(expected) {
                assert_eq!(step(same(stage), found), expected, "{stage:?} {found:?}");
            }
        }
    }

    /// Runs move between the parts in the worst order.
    #[test]
    fn run_missed_by_every_slice_is_found_by_check() {
        use Stage::*;
        // The run is claimed before the ready runs are read, and pending again before the claims
        // are.
        let (mut is_ready, mut is_new) = (false, false);
        let mut at = RefilePosition::after_a_change();
        let mut stages = Vec::new();
        while at != RefilePosition::DONE {
            stages.push(at.stage);
            let found = match at.stage {
                Older => StageResult::Older { open: false },
                Ready => StageResult::Slice { runs: usize::from(is_ready), last: None },
                Delayed => {
                    is_ready = true;
                    StageResult::Slice { runs: 0, last: None }
                }
                ClaimsFirst => StageResult::Slice { runs: 0, last: None },
                Claims => StageResult::Slice { runs: usize::from(!is_ready), last: None },
                Check => {
                    let runs = usize::from(!is_new);
                    is_new = true;
                    StageResult::Slice { runs, last: None }
                }
                Done => unreachable!(),
            };
            at = step(at, found);
        }
        assert!(is_new);
        assert_eq!(stages, [Older, ClaimsFirst, Ready, Delayed, Claims, Check, Check]);
    }

    #[test]
    fn runs_left_is_zero_only_when_done_and_never_grows() {
        for counts in [(0, 0, 0), (5, 3, 2), (-1, -1, -1), (i64::MAX, i64::MAX, i64::MAX)] {
            let left: Vec<i64> =
                Stage::ALL.map(|stage| runs_left(stage, counts.0, counts.1, counts.2)).into_iter().collect();
            assert_eq!(left[0], 0);
            assert!(left[1..].iter().all(|left| *left > 0), "{counts:?}: {left:?}");
            assert!(left[1..].is_sorted_by(|earlier, later| earlier >= later), "{counts:?}: {left:?}");
        }
        assert_eq!(Stage::ALL.map(|stage| runs_left(stage, 5, 3, 2)), [0, 10, 10, 10, 5, 2, 1]);
    }
}
