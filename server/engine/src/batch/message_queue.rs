//! Gets messages through a cache of empty queues: most polls find nothing.
//!
//! An entry has the queue's notification generation from before the query. Everything that makes a
//! message visible notifies after its commit, so the cache of a lone server is exact. In case a
//! notification of another server is lost, entries last a second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Batcher;
use crate::failure::OpError;
use crate::notifiers::{Notifiers, fallbacks_are_on};
use crate::ops::messages::{GetMessages, GetRequest};
use tenure_domain::message::QueueName;
use tenure_store::cached::Cached;
use tenure_store::hot::messages::Got;

/// Maximum age of a cache entry.
const MEMORY_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub struct Empty {
    generation: u64,
    since: Instant,
}

pub struct MessageQueue {
    batcher: Batcher<GetMessages>,
    notifiers: Notifiers,
    empty: EmptyQueues,
}

pub type EmptyQueues = Cached<HashMap<QueueName, Empty>>;

impl MessageQueue {
    pub fn new(batcher: Batcher<GetMessages>, notifiers: Notifiers) -> Self {
        Self { batcher, notifiers, empty: EmptyQueues::default() }
    }

    /// Returns a handle that can invalidate the cache.
    pub fn memory(&self) -> EmptyQueues {
        self.empty.clone()
    }

    /// Drops outdated entries. Returns their number.
    pub fn drop_outdated(&self) -> usize {
        let now = Instant::now();
        let dropped = self.empty.update(self.empty.epoch(), |empty| {
            let before = empty.len();
            empty.retain(|_, cached| now.saturating_duration_since(cached.since) < MEMORY_MAX);
            before - empty.len()
        });
        dropped.unwrap_or_default()
    }

    /// Returns the oldest messages, or none if the queue is cached as empty.
    pub async fn get(&self, request: GetRequest) -> Result<Vec<Got>, OpError> {
        let queue = request.queue;
        let now = Empty { generation: self.notifiers.generation(queue.queue), since: Instant::now() };
        if self.is_empty(queue, now) {
            metrics::counter!("tenure_polls_total", "answered" => "from_memory").increment(1);
            return Ok(Vec::new());
        }
        metrics::counter!("tenure_polls_total", "answered" => "by_database").increment(1);
        let epoch = self.empty.epoch();
        let messages = self.batcher.submit(request).await?;
        if messages.got.is_empty() && messages.empty {
            self.empty.update(epoch, |empty| empty.insert(queue, now));
        }
        Ok(messages.got)
    }

    fn is_empty(&self, queue: QueueName, now: Empty) -> bool {
        let cached = self.empty.read(|empty| empty.get(&queue).copied());
        cached.is_some_and(|cached| {
            let outdated = now.since.saturating_duration_since(cached.since) >= MEMORY_MAX && fallbacks_are_on();
            cached.generation == now.generation && !outdated
        })
    }
}
