//! Required tasks whose dependents were created at this server, so that the tick that ends one also
//! schedules its dependents.
//!
//! These are hints. Without one, the dependency pass schedules the dependents. One that is out of
//! date costs a statement that finds nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

/// Hints per generation; about 2 MB.
const HINTS_MAX: usize = 50_000;
/// A task with more dependencies has no hints: each end would test whether it was the last one.
pub(super) const DEPENDENCIES_MAX: usize = 100;

/// Maps a required task to the queue of its latest dependent.
type Hints = HashMap<Uuid, i32>;

#[derive(Debug, Clone, Default)]
pub struct DependentHints(Arc<Mutex<Generations>>);

/// A full generation replaces the one before.
#[derive(Debug, Default)]
struct Generations {
    new: Hints,
    old: Hints,
}

impl DependentHints {
    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, hints: impl IntoIterator<Item = (Uuid, i32)>) {
        let mut generations = self.generations();
        for (required, queue) in hints {
            if generations.new.len() == HINTS_MAX {
                generations.old = std::mem::take(&mut generations.new);
            }
            generations.new.insert(required, queue);
        }
    }

    pub(super) fn remove(&self, ended: &[Uuid]) {
        let mut generations = self.generations();
        let Generations { new, old } = &mut *generations;
        if new.is_empty() && old.is_empty() {
            return;
        }
        for task in ended {
            new.remove(task);
            old.remove(task);
        }
    }

    /// Returns the tasks with hints, each with the queue of a dependent.
    pub fn find(&self, tasks: impl IntoIterator<Item = Uuid>) -> Vec<(Uuid, i32)> {
        let generations = self.generations();
        let Generations { new, old } = &*generations;
        if new.is_empty() && old.is_empty() {
            return Vec::new();
        }
        let hint = |task: Uuid| Some((task, *new.get(&task).or_else(|| old.get(&task))?));
        tasks.into_iter().filter_map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_hints_are_evicted() {
        let hints = DependentHints::default();
        let id = |n: usize| Uuid::from_u128(n as u128);
        hints.add((0..HINTS_MAX + 1).map(|n| (id(n), 7)));
        assert_eq!(hints.find([id(0), id(HINTS_MAX)]), [(id(0), 7), (id(HINTS_MAX), 7)]);
        hints.remove(&[id(0)]);
        assert_eq!(hints.find([id(0), id(1)]), [(id(1), 7)]);
        hints.add((0..HINTS_MAX).map(|n| (id(2 * HINTS_MAX + n), 8)));
        assert_eq!(hints.find([id(1), id(HINTS_MAX)]), [(id(HINTS_MAX), 7)]);
    }
}
