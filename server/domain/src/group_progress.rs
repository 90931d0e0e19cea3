//! The progress of a task group: how many of its tasks are in each state, whether it is done, and
//! which tasks can never run.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tenure_api::states::TaskState;

/// Tasks by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    pub unscheduled: usize,
    pub pending: usize,
    pub running: usize,
    pub completed: usize,
    pub failed: usize,
    pub exception: usize,
}

impl Progress {
    pub fn of(states: impl IntoIterator<Item = TaskState>) -> Self {
        let mut progress = Self::default();
        for state in states {
            *progress.tasks_in(state) += 1;
        }
        progress
    }

    fn tasks_in(&mut self, state: TaskState) -> &mut usize {
        match state {
            TaskState::Unscheduled => &mut self.unscheduled,
            TaskState::Pending => &mut self.pending,
            TaskState::Running => &mut self.running,
            TaskState::Completed => &mut self.completed,
            TaskState::Failed => &mut self.failed,
            TaskState::Exception => &mut self.exception,
        }
    }

    #[must_use]
    pub fn get(mut self, state: TaskState) -> usize {
        *self.tasks_in(state)
    }

    #[must_use]
    pub fn total(self) -> usize {
        self.open() + self.ended()
    }

    #[must_use]
    pub fn open(self) -> usize {
        self.unscheduled + self.pending + self.running
    }

    #[must_use]
    pub fn ended(self) -> usize {
        self.completed + self.failed + self.exception
    }

    /// Says in one line if the group is done. `never` tasks can never run.
    #[must_use]
    pub fn verdict(self, never: usize) -> String {
        let total = self.total();
        let counted = |count: usize, words: &str| (count > 0).then(|| format!("{count} {words}"));
        let badly = [counted(self.failed, "failed"), counted(self.exception, "ended as exception")];
        let blocked = counted(never, "can never run");
        let list = |parts: Vec<Option<String>>| parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let [failed, exception] = badly;
        if total == 0 {
            "The group has no task".to_owned()
        } else if self.completed == total {
            if total == 1 { "Done: 1 task completed".to_owned() } else { format!("Done: all {total} tasks completed") }
        } else if self.open() == 0 {
            list(vec![Some(format!("Done: {} of {total} tasks completed", self.completed)), failed, exception])
        } else if never > 0 && never >= self.open() {
            let completed = format!("{} of {total} tasks completed", self.completed);
            format!("Stuck: {}", list(vec![Some(completed), failed, exception, blocked]))
        } else {
            let ended = format!("{} of {total} tasks have ended", self.ended());
            let running = counted(self.running, if self.running == 1 { "is running" } else { "are running" });
            let pending =
                counted(self.pending, if self.pending == 1 { "waits for a worker" } else { "wait for workers" });
            format!("Open: {}", list(vec![Some(ended), failed, exception, running, pending, blocked]))
        }
    }
}

/// Returns the tasks that cannot run, each with the failed task that prevents it, directly or
/// through other tasks. `needs` are pairs of an unscheduled task and a task that it requires
/// completed. Ends even if `needs` has a cycle.
#[must_use]
pub fn blocked(needs: &[(i64, i64)], has_failed: impl Fn(i64) -> bool) -> BTreeMap<i64, i64> {
    let mut dependents: HashMap<i64, Vec<i64>> = HashMap::new();
    let mut reached = VecDeque::new();
    for &(dependent, required) in needs {
        let list = dependents.entry(required).or_default();
        if list.is_empty() && has_failed(required) {
            reached.push_back((required, required));
        }
        list.push(dependent);
    }
    let mut blocked = BTreeMap::new();
    while let Some((task, fault)) = reached.pop_front() {
        // Each list is followed once.
        for dependent in dependents.remove(&task).unwrap_or_default() {
            if let std::collections::btree_map::Entry::Vacant(entry) = blocked.entry(dependent) {
                entry.insert(fault);
                reached.push_back((dependent, fault));
            }
        }
    }
    blocked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(states: &[(TaskState, usize)]) -> Progress {
        Progress::of(states.iter().flat_map(|&(state, count)| std::iter::repeat_n(state, count)))
    }

    #[test]
    fn verdict_says_if_group_is_done() {
        use TaskState::{Completed, Exception, Failed, Pending, Running, Unscheduled};
        for (states, never, expected) in [
            (vec![], 0, "The group has no task"),
            (vec![(Completed, 1)], 0, "Done: 1 task completed"),
            (vec![(Completed, 40)], 0, "Done: all 40 tasks completed"),
            (
                vec![(Completed, 37), (Failed, 2), (Exception, 1)],
                0,
                "Done: 37 of 40 tasks completed, 2 failed, 1 ended as exception",
            ),
            (
                vec![(Completed, 3), (Running, 1), (Pending, 2)],
                0,
                "Open: 3 of 6 tasks have ended, 1 is running, 2 wait for workers",
            ),
            (
                vec![(Failed, 1), (Pending, 1), (Unscheduled, 4)],
                3,
                "Open: 1 of 6 tasks have ended, 1 failed, 1 waits for a worker, 3 can never run",
            ),
            (
                vec![(Completed, 1), (Failed, 1), (Unscheduled, 4)],
                4,
                "Stuck: 1 of 6 tasks completed, 1 failed, 4 can never run",
            ),
        ] {
            assert_eq!(progress(&states).verdict(never), expected);
        }
    }

    #[test]
    fn each_state_is_counted_apart() {
        for &state in TaskState::ALL {
            let counted = progress(&[(state, 2)]);
            assert_eq!((counted.get(state), counted.total()), (2, 2), "{state}");
        }
    }

    #[test]
    fn failure_blocks_dependents_of_dependents() {
        let needs = [(3, 2), (2, 1), (4, 1), (4, 9), (6, 5)];
        assert_eq!(blocked(&needs, |task| task == 1), BTreeMap::from([(2, 1), (3, 1), (4, 1)]));
        assert_eq!(blocked(&needs, |_| false), BTreeMap::new());
    }

    #[test]
    fn cycle_of_needs_is_followed_once() {
        let needs = [(2, 1), (1, 2), (3, 3), (2, 0)];
        assert_eq!(blocked(&needs, |task| task == 0), BTreeMap::from([(1, 0), (2, 0)]));
        assert_eq!(blocked(&needs, |task| task == 3), BTreeMap::from([(3, 3)]));
    }
}
