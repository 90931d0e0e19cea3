//! How a changed policy reaches the runs that exist, and how it is certain that none is created under the old one.
//!
//! 1. The policy is committed, in rows that each statement reads that makes a run. From then on no statement that begins makes one
//!    under the old policy.
//! 2. Statements that began before are waited for, by the transactions that are older than the commit ([`Stage::Older`]).
//! 3. What exists is stamped anew in slices: claims, so that they have slots of their keys before a ready run of these waits for one;
//!    then ready runs, delayed ones, and the claims that were made meanwhile. A run moves between these while they are read,
//!    so that one may be missed; therefore the last stage reads all three *in one statement*, in whose snapshot every run is
//!    exactly once, and is repeated until it finds nothing ([`Stage::Check`]).
//!
//! Stage and cursor are columns of the policy's row, so that any server goes on after a crash. Stamping again changes nothing.

/// Runs of one slice.
pub const SLICE: usize = 200;

/// Where the refiling of a queue is: `queue_policies.refile_stage`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// There is none.
    Done,
    /// Transactions that are older than the change are waited for.
    Older,
    /// Claims, by the age of their tasks.
    ClaimsFirst,
    /// Ready runs, by their place in the queue.
    Ready,
    /// Delayed runs, by their place in the queue.
    Delayed,
    /// Claims that were made while the others were read, and those before once more, by the age of their tasks.
    Claims,
    /// All of them in one statement.
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

/// Where the refiling of a queue goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub stage: Stage,
    /// The last row of the slice before; none at the beginning of a stage.
    pub cursor: Option<i64>,
}

impl Place {
    /// Where there is nothing to do.
    pub const DONE: Self = Self { stage: Stage::Done, cursor: None };

    /// Where a change of the policy begins it, whatever it was doing: what was stamped so far is stamped again.
    pub fn after_a_change() -> Self {
        Self { stage: Stage::Older, cursor: None }
    }
}

/// What a step of the refiling found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Whether a transaction is open that began before the change was committed.
    Older {
        /// There is one.
        open: bool,
    },
    /// Runs of the slice, stamped or not.
    Slice {
        runs: usize,
        /// The key of the last of them.
        last: Option<i64>,
    },
    /// One statement found no run of the queue, as [`Stage::Check`] would.
    NoRuns,
}

/// Where it goes on after that. A step that did not find what its stage looks for is done again.
#[must_use]
pub fn step(place: Place, found: Found) -> Place {
    let next = |stage| Place { stage, cursor: None };
    match (place.stage, found) {
        (Stage::Done, _) => Place::DONE,
        (Stage::Older, Found::Older { open: false }) => next(Stage::Older.following()),
        (Stage::Older, Found::Older { open: true } | Found::Slice { .. } | Found::NoRuns) => place,
        (Stage::ClaimsFirst | Stage::Ready | Stage::Delayed | Stage::Claims | Stage::Check, Found::Older { .. }) => {
            place
        }
        (Stage::ClaimsFirst | Stage::Ready | Stage::Delayed | Stage::Claims | Stage::Check, Found::NoRuns)
        | (Stage::Check, Found::Slice { runs: 0, .. }) => Place::DONE,
        // What it found was stamped; it looks from the beginning again.
        (Stage::Check, Found::Slice { .. }) => next(Stage::Check),
        (stage @ (Stage::ClaimsFirst | Stage::Ready | Stage::Delayed | Stage::Claims), Found::Slice { runs, last }) => {
            if runs >= SLICE && last.is_some() {
                return Place { stage, cursor: last };
            }
            next(stage.following())
        }
    }
}

/// How many runs of a queue may still be treated as before the change: an upper bound, and 0 exactly when all follow it.
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

    fn place(stage: Stage, cursor: Option<i64>) -> Place {
        Place { stage, cursor }
    }

    #[test]
    fn every_stage_has_a_number() {
        for (code, stage) in [0, 1, 6, 2, 3, 4, 5].into_iter().zip(Stage::ALL) {
            assert_eq!((stage.code(), Stage::from_code(code)), (code, Some(stage)));
        }
        assert_eq!((Stage::from_code(-1), Stage::from_code(7)), (None, None));
    }

    /// Every stage with everything that a step can find.
    #[test]
    fn every_step_leads_where_the_table_says() {
        use Stage::*;
        let slice = |runs, last| Found::Slice { runs, last };
        let found = [
            Found::Older { open: true },
            Found::Older { open: false },
            slice(0, None),
            slice(1, Some(7)),
            slice(SLICE, Some(9)),
            slice(SLICE, None),
            Found::NoRuns,
        ];
        let at = |stage| place(stage, None);
        let same = |stage| place(stage, Some(5));
        let full = |stage| place(stage, Some(9));
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

    /// A queue whose runs move between the parts while they are refiled, in the worst order.
    #[test]
    fn a_run_that_is_missed_by_every_slice_is_found_by_the_check() {
        use Stage::*;
        // One run with old traits: it is claimed before the ready runs are read, and pending again before the claims are.
        let (mut is_ready, mut is_new) = (false, false);
        let mut at = Place::after_a_change();
        let mut stages = Vec::new();
        while at != Place::DONE {
            stages.push(at.stage);
            let found = match at.stage {
                Older => Found::Older { open: false },
                Ready => Found::Slice { runs: usize::from(is_ready), last: None },
                Delayed => {
                    is_ready = true;
                    Found::Slice { runs: 0, last: None }
                }
                ClaimsFirst => Found::Slice { runs: 0, last: None },
                Claims => Found::Slice { runs: usize::from(!is_ready), last: None },
                Check => {
                    let runs = usize::from(!is_new);
                    is_new = true;
                    Found::Slice { runs, last: None }
                }
                Done => unreachable!(),
            };
            at = step(at, found);
        }
        assert!(is_new);
        assert_eq!(stages, [Older, ClaimsFirst, Ready, Delayed, Claims, Check, Check]);
    }

    #[test]
    fn what_is_left_is_nothing_only_at_the_end_and_does_not_grow_from_stage_to_stage() {
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
