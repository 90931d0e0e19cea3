//! Slots of a consumer's jobs.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::task::{Id, JoinError, JoinSet};

use super::held::begin;
use super::inner::Inner;
use super::membership::Membership;
use super::source::Found;
use crate::Error;
use crate::error::chain;

/// A job takes a slot until it has ended, or until its report is accepted and it has nothing left
/// to do.
#[derive(Default)]
pub(super) struct Slots {
    /// A job fails if the worker may not claim at all.
    jobs: JoinSet<Result<(), Error>>,
    /// Jobs that are about to end. All are in `jobs`.
    reported: HashSet<Id>,
}

impl Slots {
    pub(super) fn start(&mut self, job: impl Future<Output = Result<(), Error>> + Send + 'static) {
        self.jobs.spawn(job);
    }

    /// Starts the job of a run, which may have to be claimed first.
    pub(super) fn begin(&mut self, inner: &Arc<Inner>, terms: Membership, found: Found) {
        let inner = Arc::clone(inner);
        self.start(async move {
            if let Some((claim, _kept)) = found.claim().await? {
                begin(inner, terms, claim).await;
            }
            Ok(())
        });
    }

    pub(super) fn taken(&self) -> usize {
        self.jobs.len() - self.reported.len()
    }

    /// Frees the slot of a job before it has ended.
    pub(super) fn free(&mut self, job: Id) {
        self.reported.insert(job);
    }

    /// Frees the slots of ended jobs.
    pub(super) fn collect(&mut self) -> Result<(), Error> {
        while let Some(ended) = self.jobs.try_join_next_with_id() {
            self.end(ended)?;
        }
        Ok(())
    }

    /// Waits for a job to end. None without jobs.
    pub(super) async fn next_end(&mut self) -> Option<Result<(), Error>> {
        let ended = self.jobs.join_next_with_id().await?;
        Some(self.end(ended))
    }

    fn end(&mut self, ended: Result<(Id, Result<(), Error>), JoinError>) -> Result<(), Error> {
        match ended {
            Ok((job, outcome)) => {
                self.reported.remove(&job);
                outcome
            }
            Err(error) => {
                self.reported.remove(&error.id());
                notice!(error, error = chain(&error), "a job was abandoned; its claim expires with its lease");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn freed_slot_is_counted_once() {
        let mut slots = Slots::default();
        let (end, ends) = oneshot::channel::<()>();
        let (id, started) = oneshot::channel();
        slots.start(async move {
            id.send(tokio::task::id()).unwrap();
            drop(ends.await);
            Ok(())
        });
        slots.start(std::future::pending());
        let job = started.await.unwrap();
        assert_eq!(slots.taken(), 2);
        slots.free(job);
        assert_eq!(slots.taken(), 1);
        drop(end);
        slots.next_end().await.unwrap().unwrap();
        assert_eq!(slots.taken(), 1);
        slots.collect().unwrap();
        assert_eq!(slots.taken(), 1);
    }
}
