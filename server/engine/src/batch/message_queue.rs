//! The front of the poll API's hottest question, "is there anything?", whose answer is nearly always no.
//!
//! That a queue is empty is remembered together with the generation of its bell, which was read before the database was
//! asked. Everything that makes a message visible rings after its commit, so that the memory of a lone server is exact.
//! What other servers make visible rings here too; for the case that their bell is broken, a memory lasts a second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Batcher;
use crate::notifiers::{Notifiers, fallbacks_are_on};
use crate::ops::OpError;
use crate::ops::messages::{GetMessages, GetRequest};
use tenure_domain::message::QueueName;
use tenure_store::hot::messages::Got;
use tenure_store::memory::Memory;

/// How long a queue is believed to be empty although nobody has notified.
const MEMORY_MAX: Duration = Duration::from_secs(1);

/// When a queue was seen to be empty.
#[derive(Debug, Clone, Copy)]
pub struct Empty {
    generation: u64,
    asked: Instant,
}

/// Where pollers get messages.
pub struct MessageQueue {
    batcher: Batcher<GetMessages>,
    notifiers: Notifiers,
    empty: EmptyQueues,
}

/// The queues that are known to be empty.
pub type EmptyQueues = Memory<HashMap<QueueName, Empty>>;

impl MessageQueue {
    /// The front of these batches.
    #[must_use]
    pub fn new(batcher: Batcher<GetMessages>, notifiers: Notifiers) -> Self {
        Self { batcher, notifiers, empty: EmptyQueues::default() }
    }

    /// What is remembered here, which may be dropped.
    #[must_use]
    pub fn memory(&self) -> EmptyQueues {
        self.empty.clone()
    }

    /// Gets messages, the oldest first; none from a queue that is known to be empty.
    pub async fn get(&self, request: GetRequest) -> Result<Vec<Got>, OpError> {
        let queue = request.queue;
        let now = Empty { generation: self.notifiers.generation(queue.queue), asked: Instant::now() };
        if self.is_empty(queue, now) {
            metrics::counter!("tenure_polls_total", "answered" => "from_memory").increment(1);
            return Ok(Vec::new());
        }
        metrics::counter!("tenure_polls_total", "answered" => "by_database").increment(1);
        let since = self.empty.epoch();
        let messages = self.batcher.submit(request).await?;
        if messages.got.is_empty() && messages.empty {
            self.empty.note(since, |empty| empty.insert(queue, now));
        }
        Ok(messages.got)
    }

    fn is_empty(&self, queue: QueueName, now: Empty) -> bool {
        let known = self.empty.read(|empty| empty.get(&queue).copied());
        known.is_some_and(|known| {
            let faded = now.asked.saturating_duration_since(known.asked) >= MEMORY_MAX && fallbacks_are_on();
            known.generation == now.generation && !faded
        })
    }
}
