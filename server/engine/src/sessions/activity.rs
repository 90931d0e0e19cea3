//! Tells whether sessions exist; only then does the pass that ends them poll often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, futures::Notified};

/// Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Activity {
    shared: Arc<ActivityInner>,
}

#[derive(Debug, Default)]
struct ActivityInner {
    any: AtomicBool,
    begun: Notify,
}

impl Activity {
    /// True if sessions are live or ended recently, as far as this server knows.
    pub fn any(&self) -> bool {
        self.shared.any.load(Ordering::SeqCst)
    }

    /// Records a session that was started or renewed here.
    pub fn seen(&self) {
        if !self.shared.any.swap(true, Ordering::SeqCst) {
            self.shared.begun.notify_waiters();
        }
    }

    /// Stores the database's result. A session seen during the query is found within seconds.
    pub fn set(&self, any: bool) {
        self.shared.any.store(any, Ordering::SeqCst);
    }

    pub fn begun(&self) -> Notified<'_> {
        self.shared.begun.notified()
    }
}
