//! What is done when a job has been reported.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is done when a job has been reported. Clones are of the same job.
#[derive(Clone, Default)]
pub(super) struct Afterwards(Arc<Mutex<Vec<Work>>>);

impl Afterwards {
    pub(super) fn add(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(work));
    }

    /// Does it, one after the other.
    pub(super) async fn run(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for work in all {
            work.await;
        }
    }
}
