//! Registry of all caches of the database, to invalidate them together: after a failover the
//! database may have lost what a server has read.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_store::continuity::Continuity;

/// Clones share the registry.
#[derive(Clone, Default)]
pub struct Registry {
    entries: Arc<Mutex<Vec<RegisteredCache>>>,
}

struct RegisteredCache {
    name: &'static str,
    drop: Box<dyn Fn() + Send + Sync>,
}

impl Registry {
    /// Adds a cache and the function that invalidates it. Afterwards no value read or requested
    /// before may be used. The function must not hold the sender of a batcher, which would then
    /// never end.
    pub fn add(&self, name: &'static str, drop: impl Fn() + Send + Sync + 'static) {
        self.entries().push(RegisteredCache { name, drop: Box::new(drop) });
    }

    pub fn drop_all(&self) {
        let entries = self.entries();
        for entry in &*entries {
            (entry.drop)();
        }
        tracing::info!(caches = entries.len(), "all values cached from the database were dropped");
    }

    /// Invalidates all caches whenever the database was replaced. `continuity` does not keep the
    /// registry alive.
    pub fn follow(&self, continuity: &Continuity) {
        // Makes the first break visible as an increment.
        metrics::counter!("tenure_database_breaks_total").absolute(0);
        let entries = Arc::downgrade(&self.entries);
        continuity.on_break(move || {
            if let Some(entries) = entries.upgrade() {
                Self { entries }.drop_all();
            }
        });
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.entries().iter().map(|entry| entry.name).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<RegisteredCache>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
