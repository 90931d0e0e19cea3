//! Events as they are sent: rendered once, however many streams and sinks send them.

use tenure_domain::events::Event;

/// An event as it is sent, independent of the protocol.
#[derive(Debug)]
pub struct RenderedEvent {
    /// Its position in the log.
    pub position: i64,
    /// The exchange that it is published to.
    pub exchange: &'static str,
    /// The primary routing key.
    pub routing_key: String,
    /// Further routing keys.
    pub cc: Vec<String>,
    /// The event as the log shows it: JSON in one line.
    pub json: String,
}

impl RenderedEvent {
    pub fn render(event: Event) -> Result<Self, sqlx::Error> {
        let json = serde_json::to_string(&event).map_err(|error| sqlx::Error::Decode(error.into()))?;
        let Event { position, exchange, routing_key, cc, .. } = event;
        Ok(Self { position, exchange, routing_key, cc, json })
    }

    pub fn bytes(&self) -> usize {
        self.json.len() + self.routing_key.len() + self.cc.iter().map(String::len).sum::<usize>()
    }
}
