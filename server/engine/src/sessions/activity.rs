//! Whether there are sessions: only then does the pass that ends them look often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, futures::Notified};

/// What this server knows of it. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Activity {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    any: AtomicBool,
    begun: Notify,
}

impl Activity {
    /// Whether sessions are live, or ended a short while ago, as far as this server knows.
    pub fn any(&self) -> bool {
        self.shared.any.load(Ordering::SeqCst)
    }

    /// A session was started or renewed here.
    pub fn seen(&self) {
        if !self.shared.any.swap(true, Ordering::SeqCst) {
            self.shared.begun.notify_waiters();
        }
    }

    /// What the database says. A session that is seen while it is asked is found by the next look, within seconds.
    pub fn set(&self, any: bool) {
        self.shared.any.store(any, Ordering::SeqCst);
    }

    /// Waits until a session is seen while none was known.
    pub fn begun(&self) -> Notified<'_> {
        self.shared.begun.notified()
    }
}
