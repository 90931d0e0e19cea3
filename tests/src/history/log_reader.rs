//! Reads the event log repeatedly at either server, and notes every event that changes.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::record::Stamp;
use super::world::Actor;
use crate::http::TENURE_API;

const PAGE: i64 = 200;
/// Earlier pages that are read again for each new page.
const AGAIN: u64 = 3;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Placed {
    position: i64,
}

/// Events read so far: by position, a digest and the time of the first read.
pub(super) struct LogReader {
    actor: Actor,
    seen: BTreeMap<i64, (u64, Stamp)>,
    /// Losses of the end of the database's log that were handled.
    losses: usize,
}

impl LogReader {
    pub(super) fn new(actor: Actor) -> Self {
        Self { actor, seen: BTreeMap::new(), losses: 0 }
    }

    /// Reads new and old pages until the actors are done; then returns itself for a last pass.
    pub(super) async fn follow(mut self) -> Self {
        while !self.actor.world.is_over() {
            let newest = self.newest();
            self.read_after(newest).await;
            for _ in 0..AGAIN {
                let after = self.actor.random.below(newest.unsigned_abs() + 1);
                self.read_after(after.cast_signed()).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
        self
    }

    pub(super) async fn read_all_again(&mut self) {
        let mut after = 0;
        while after < self.newest() {
            // Skips a page that cannot be read, or whose tasks have expired.
            after = self.read_after(after).await.unwrap_or(after + PAGE);
        }
    }

    fn newest(&self) -> i64 {
        self.seen.last_key_value().map_or(0, |(position, _)| *position)
    }

    /// Forgets events read while the database was about to lose them: other events may take these
    /// positions. Returns true if there was a loss since the last call.
    fn forget_lost(&mut self) -> bool {
        let losses = self.actor.world.losses();
        let new = &losses[self.losses..];
        self.seen.retain(|_, (_, read)| new.iter().all(|(start, _)| *read < *start));
        let any = !new.is_empty();
        self.losses = losses.len();
        any
    }

    async fn read_after(&mut self, after: i64) -> Option<i64> {
        let path = format!("{TENURE_API}/events?after={after}&limit={PAGE}");
        let fetched = self.actor.fetch("GET", &path).await;
        let read = self.actor.world.stamp();
        // A page read before a loss would be taken for the current state.
        if self.forget_lost() {
            return None;
        }
        let (status, text) = fetched?;
        if status != 200 {
            return None;
        }
        let page: Page<'_> = serde_json::from_str(&text).expect("the event log answers with events");
        let mut last = None;
        for event in page.events {
            let Placed { position } = serde_json::from_str(event.get()).expect("an event has a position");
            let mut hasher = DefaultHasher::new();
            event.get().hash(&mut hasher);
            let digest = hasher.finish();
            if self.seen.entry(position).or_insert((digest, read)).0 != digest {
                self.actor.world.note_changed_event(format!("event {position} reads differently now: {}", event.get()));
            }
            last = Some(position);
        }
        last
    }
}
