//! Rendered events, shared by all streams and sinks.

use tenure_api::dates::Timestamp;
use tenure_domain::events::Event;

/// A rendered event, independent of the protocol.
#[derive(Debug)]
pub struct RenderedEvent {
    pub position: i64,
    pub time: Timestamp,
    pub exchange: &'static str,
    pub routing_key: String,
    pub cc: Vec<String>,
    /// JSON in one line, as in the log.
    pub json: String,
}

impl RenderedEvent {
    pub fn render(event: Event) -> Result<Self, sqlx::Error> {
        let json = serde_json::to_string(&event).map_err(|error| sqlx::Error::Decode(error.into()))?;
        let Event { position, time, exchange, routing_key, cc, .. } = event;
        Ok(Self { position, time, exchange, routing_key, cc, json })
    }

    pub fn bytes(&self) -> usize {
        self.json.len() + self.routing_key.len() + self.cc.iter().map(String::len).sum::<usize>()
    }
}
