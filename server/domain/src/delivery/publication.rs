//! Events as AMQP messages. Their body is the payload of the event, as consumers of Taskcluster's
//! Pulse expect.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::message::Item;

/// An event to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Full name of the exchange, with the prefix.
    pub exchange: String,
    pub routing_key: String,
    pub cc: Vec<String>,
    /// As in webhooks.
    pub id: String,
    pub position: i64,
    /// Unique name of the task.
    pub unique: Option<String>,
    /// JSON.
    pub body: String,
}

/// Where the log has published an event.
#[derive(Debug, Clone, Copy)]
pub struct Published<'a> {
    pub exchange: &'a str,
    pub routing_key: &'a str,
    pub cc: &'a [String],
    pub position: i64,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    payload: &'a RawValue,
    unique: Option<String>,
}

impl Publication {
    #[must_use]
    pub fn of(item: &Item<'_>, published: Published<'_>, prefix: &str) -> Self {
        let fields = serde_json::from_str::<Fields<'_>>(item.json).ok();
        let payload = fields.as_ref().map_or(item.json, |fields| fields.payload.get());
        Self {
            exchange: format!("{prefix}{}", published.exchange),
            routing_key: published.routing_key.to_owned(),
            cc: published.cc.to_vec(),
            id: item.id(),
            position: published.position,
            body: with_result(payload, item.result),
            unique: fields.and_then(|fields| fields.unique),
        }
    }
}

/// Adds the result as the last field.
fn with_result(payload: &str, result: Option<&str>) -> String {
    match (payload.strip_suffix('}'), result) {
        (Some(fields), Some(result)) => format!("{fields},\"result\":{result}}}"),
        (_, None) | (None, _) => payload.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::{Value, json};
    use tenure_api::dates::Timestamp;

    use super::*;

    fn publish(json: &str, result: Option<&str>) -> Publication {
        let time = Timestamp::new(DateTime::from_timestamp(1, 0).unwrap());
        let item = Item { kind: "task-completed", time, json, result };
        let cc = ["route.a".to_owned()];
        let published = Published { exchange: "exchange/x", routing_key: "primary.a", cc: &cc, position: 7 };
        Publication::of(&item, published, "prod/")
    }

    #[test]
    fn body_is_the_payload_of_the_event() {
        let json = r#"{"position":7,"time":"t","exchange":"exchange/x","unique":"night","payload":{"runId":0}}"#;
        let plain = publish(json, None);
        assert_eq!((plain.body.as_str(), plain.exchange.as_str()), (r#"{"runId":0}"#, "prod/exchange/x"));
        assert_eq!((plain.unique.as_deref(), plain.position, plain.cc.len()), (Some("night"), 7, 1));
        let with = publish(json, Some("[1]"));
        assert_eq!(serde_json::from_str::<Value>(&with.body).unwrap(), json!({"runId": 0, "result": [1]}));
        assert_eq!(with.id, plain.id, "a repeat without a result has the same id");
    }
}
