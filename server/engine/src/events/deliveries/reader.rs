//! The events of a subscription, read ahead of its messages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use tenure_domain::delivery::message::{Item, MESSAGE_BYTES_MAX};
use tenure_domain::delivery::publication::Published;
use tenure_domain::event_filter::short_name;
use tenure_store::results;
use tokio::time::Instant;
use uuid::Uuid;

use crate::events::render::RenderedEvent;
use crate::events::stream::{Step, Stream};

/// Exchanges whose events have results.
const WITH_RESULTS: [&str; 2] = ["task-completed", "task-failed"];

/// Results by task and run.
pub(super) type Results = HashMap<(Uuid, RunId), String>;

pub(super) struct Reader {
    stream: Stream,
    /// Read, but in no message yet.
    buffer: VecDeque<Arc<RenderedEvent>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// As far as there are events.
    Yes,
    /// The next events were purged.
    Gone,
    /// The log may have been rolled back.
    Ended,
}

impl Reader {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, buffer: VecDeque::new() }
    }

    /// True if the events read so far may have been rolled back.
    pub(super) fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// True if all events up to this position were read.
    pub(super) fn has_read(&self, position: i64) -> bool {
        self.stream.after() >= position
    }

    /// End of the taken events: events between the last one and here do not pass the filter.
    pub(super) fn taken_through(&self) -> i64 {
        self.buffer.front().map_or(self.stream.after(), |event| event.position - 1)
    }

    /// Reads until `count` events are buffered, at most until `until`. Events that need no wait are
    /// read also after `until`.
    pub(super) async fn fill(&mut self, count: usize, until: Instant) -> Result<Filled, sqlx::Error> {
        while self.buffer.len() < count {
            match self.stream.next(until).await? {
                Step::Events(events) => {
                    let found = !events.is_empty();
                    self.buffer.extend(events);
                    if !found && Instant::now() >= until {
                        break;
                    }
                }
                Step::Gone(_) => return Ok(Filled::Gone),
                Step::Ended => return Ok(Filled::Ended),
            }
        }
        Ok(Filled::Yes)
    }

    /// Reads up to this position, at most until `until`.
    pub(super) async fn fill_through(&mut self, end: i64, until: Instant) -> Result<Filled, sqlx::Error> {
        while self.stream.after() < end && Instant::now() < until {
            match self.stream.next(until).await? {
                Step::Events(events) => self.buffer.extend(events),
                Step::Gone(_) => return Ok(Filled::Gone),
                Step::Ended => return Ok(Filled::Ended),
            }
        }
        Ok(Filled::Yes)
    }

    /// Takes the buffered events up to this position.
    pub(super) fn take_through(&mut self, end: i64) -> Vec<Arc<RenderedEvent>> {
        let count = self.buffer.partition_point(|event| event.position <= end);
        self.buffer.drain(..count).collect()
    }

    /// Takes up to `count` events for a message.
    pub(super) fn take(&mut self, count: usize, results: &Results) -> Vec<Arc<RenderedEvent>> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < count {
            let Some(event) = self.buffer.front() else { break };
            bytes += item(event, results).bytes();
            if bytes > MESSAGE_BYTES_MAX && !taken.is_empty() {
                break;
            }
            taken.extend(self.buffer.pop_front());
        }
        taken
    }

    pub(super) fn peek(&self, count: usize) -> impl Iterator<Item = &Arc<RenderedEvent>> {
        self.buffer.iter().take(count)
    }
}

/// The run that an event reports as completed or failed.
fn ended_run(event: &RenderedEvent) -> Option<(Uuid, RunId)> {
    if !WITH_RESULTS.contains(&short_name(event.exchange)) {
        return None;
    }
    let mut words = event.routing_key.split('.').skip(1);
    let task: TaskId = words.next()?.parse().ok()?;
    Some((task.uuid(), words.next()?.parse().ok()?))
}

/// Loads the results of the runs that these events report.
pub(super) async fn load_results<'a>(
    conn: &mut PgConnection,
    events: impl Iterator<Item = &'a Arc<RenderedEvent>>,
) -> Result<Results, sqlx::Error> {
    let runs: Vec<_> = events.filter_map(|event| ended_run(event)).collect();
    if runs.is_empty() {
        return Ok(Results::new());
    }
    let loaded = results::load(conn, &runs).await?;
    Ok(loaded.into_iter().filter_map(|(run, texts)| Some((run, texts.result?))).collect())
}

pub(super) fn published(event: &RenderedEvent) -> Published<'_> {
    let RenderedEvent { exchange, routing_key, cc, position, .. } = event;
    Published { exchange, routing_key, cc, position: *position }
}

pub(super) fn item<'a>(event: &'a RenderedEvent, results: &'a Results) -> Item<'a> {
    let result = if results.is_empty() { None } else { ended_run(event).and_then(|run| results.get(&run)) };
    Item { kind: short_name(event.exchange), time: event.time, json: &event.json, result: result.map(String::as_str) }
}
