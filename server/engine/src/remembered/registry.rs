//! Everything that a server remembers from the database, so that all of it can be dropped at once: after a failover the
//! database may have lost what a server has seen.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One entry for each memory. A clone is the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    entries: Arc<Mutex<Vec<Entry>>>,
}

struct Entry {
    name: &'static str,
    drop: Box<dyn Fn() + Send + Sync>,
}

impl Registry {
    /// Adds a memory, and what drops it: afterwards nothing of it is used that was read, or asked for, before. It must hold
    /// nothing that keeps a batcher from ending.
    pub fn add(&self, name: &'static str, drop: impl Fn() + Send + Sync + 'static) {
        self.entries().push(Entry { name, drop: Box::new(drop) });
    }

    /// Drops everything. What is needed is read again.
    pub fn drop_all(&self) {
        let entries = self.entries();
        for entry in &*entries {
            (entry.drop)();
        }
        tracing::info!(memories = entries.len(), "everything that was remembered from the database was dropped");
    }

    /// What is registered.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.entries().iter().map(|entry| entry.name).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
