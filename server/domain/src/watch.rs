//! Workers that watch the runs that they hold: the limits of a request, and what it is answered about a run.

use std::collections::HashSet;
use std::time::Duration;

use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{EndedBy, ReasonResolved, RunState};
use tenure_api::watch::{EndedClaim, WATCH_WAIT_MAX, WATCHED_MAX, WatchClaimsRequest, WatchedRun};

use crate::create::Unacceptable;
use crate::policy::seconds;
use crate::task::{Last, Task};

/// What a request watches, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// The runs, each once, in the order of the request.
    pub runs: Vec<(TaskId, RunId)>,
    /// How long.
    pub wait: Duration,
}

/// What a request says, if all of it is acceptable. A run that is named twice is watched once.
///
/// # Errors
/// There is nothing to watch, or too much, or the wait is too long.
pub fn watch(request: &WatchClaimsRequest) -> Result<Watch, Unacceptable> {
    if !(1..=WATCHED_MAX).contains(&request.runs.len()) {
        return Err(Unacceptable::Rule(format!("`runs` must have from 1 to {WATCHED_MAX} entries")));
    }
    let wait = seconds("wait", request.wait, 0, WATCH_WAIT_MAX)?;
    let mut named = HashSet::new();
    let runs = request.runs.iter().filter(|run| named.insert(**run));
    Ok(Watch {
        runs: runs.map(|&WatchedRun { task_id, run_id }| (task_id, run_id)).collect(),
        wait: Duration::from_secs(wait.num_seconds().unsigned_abs()),
    })
}

/// What became of a run that no worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It ended so.
    Ended(RunState, ReasonResolved, Option<EndedBy>),
    /// It waits for a worker.
    Pending,
    /// There is no such run.
    Missing,
}

impl Fate {
    /// What became of a run of this task; none while a worker holds it.
    #[must_use]
    pub fn of(task: &Task, run: RunId) -> Option<Self> {
        match &task.last {
            Last::Running(open, _) if open.run == run => None,
            Last::Pending(open) if open.run == run => Some(Self::Pending),
            Last::Running(..) | Last::Pending(_) | Last::Unscheduled | Last::Ended => {
                let ended = task.ended.iter().find(|ended| ended.run.run == run);
                Some(ended.map_or(Self::Missing, |ended| Self::Ended(ended.state, ended.reason, ended.ended_by)))
            }
        }
    }

    /// As the wire says it.
    #[must_use]
    pub fn of_claim(self, task_id: TaskId, run_id: RunId) -> EndedClaim {
        let (state, reason_resolved, ended_by) = match self {
            Self::Ended(state, reason, ended_by) => (Some(state), Some(reason), ended_by),
            Self::Pending => (Some(RunState::Pending), None, None),
            Self::Missing => (None, None, None),
        };
        EndedClaim { task_id, run_id, state, reason_resolved, ended_by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(runs: usize, wait: i64) -> WatchClaimsRequest {
        let run_id = RunId::new(0).unwrap();
        let id = |n: usize| TaskId::from_random((n as u128).to_be_bytes());
        WatchClaimsRequest { runs: (0..runs).map(|n| WatchedRun { task_id: id(n), run_id }).collect(), wait }
    }

    #[test]
    fn a_thousand_runs_are_watched_for_half_a_minute_and_no_more() {
        let most = watch(&request(WATCHED_MAX, 30)).unwrap();
        assert_eq!((most.runs.len(), most.wait), (WATCHED_MAX, Duration::from_secs(30)));
        for (request, field) in [
            (request(0, 0), "`runs`"),
            (request(WATCHED_MAX + 1, 0), "`runs`"),
            (request(1, 31), "`wait` must be from 0 to 30 seconds"),
            (request(1, -1), "`wait` must be from 0 to 30 seconds"),
        ] {
            let Err(Unacceptable::Rule(message)) = watch(&request) else { panic!("{field} was taken") };
            assert!(message.starts_with(field), "{message}");
        }
    }

    #[test]
    fn a_run_that_is_named_twice_is_watched_once() {
        let mut twice = request(2, 0);
        twice.runs.push(twice.runs[0]);
        assert_eq!(watch(&twice).unwrap(), watch(&request(2, 0)).unwrap());
    }

    #[test]
    fn each_fate_has_its_words() {
        let (task, run) = (request(1, 0).runs[0].task_id, RunId::new(3).unwrap());
        let lost = Fate::Ended(RunState::Exception, ReasonResolved::ClaimExpired, Some(EndedBy::Lease));
        for (fate, words) in [
            (lost, (Some(RunState::Exception), Some(ReasonResolved::ClaimExpired), Some(EndedBy::Lease))),
            (
                Fate::Ended(RunState::Completed, ReasonResolved::Completed, None),
                (Some(RunState::Completed), Some(ReasonResolved::Completed), None),
            ),
            (Fate::Pending, (Some(RunState::Pending), None, None)),
            (Fate::Missing, (None, None, None)),
        ] {
            let item = fate.of_claim(task, run);
            assert_eq!((item.task_id, item.run_id), (task, run));
            assert_eq!((item.state, item.reason_resolved, item.ended_by), words, "{fate:?}");
        }
    }
}
