//! Messages to receivers and their signatures, as of Standard Webhooks.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use tenure_api::credentials::SigningKey;
use tenure_api::dates::Timestamp;

use crate::unacceptable::Unacceptable;

/// Size of a message, unless one event alone is larger.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
const SECRET_PREFIX: &str = "whsec_";
const SECRET_BYTES_LEAST: usize = 24;
const SECRET_BYTES_MOST: usize = 64;
/// Bytes of generated secrets.
pub const SECRET_BYTES: usize = 32;
/// Characters of an id after its prefix: 132 bits.
const ID_CHARS: usize = 22;

/// Signs messages. Its Debug hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    #[must_use]
    pub fn from_random(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes.into())
    }

    /// As stored.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Parses `whsec_` and base64.
    pub fn parse(text: &str) -> Result<Self, Unacceptable> {
        let bytes = text.strip_prefix(SECRET_PREFIX).and_then(|base64| STANDARD.decode(base64).ok());
        let bytes = bytes.filter(|bytes| (SECRET_BYTES_LEAST..=SECRET_BYTES_MOST).contains(&bytes.len()));
        bytes.map(Self).ok_or_else(|| {
            Unacceptable::Rule(format!(
                "`secret` must be `{SECRET_PREFIX}` and base64 of {SECRET_BYTES_LEAST} to {SECRET_BYTES_MOST} bytes; \
                 without it one is generated"
            ))
        })
    }

    /// The form that receivers are configured with.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(&self.0))
    }

    #[must_use]
    pub fn key(&self) -> SigningKey {
        SigningKey::new(&self.0)
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(secret)")
    }
}

/// An event to send.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Short name of its exchange.
    pub kind: &'a str,
    pub time: Timestamp,
    /// The event as in the log: a JSON object that begins with its position.
    pub json: &'a str,
    /// JSON of the result of the run, if the subscription asks for it.
    pub result: Option<&'a str>,
}

impl Item<'_> {
    /// Id of the event, made of everything but its position: after a failover that takes the log
    /// back, a surviving event may get another position, and another event this one.
    #[must_use]
    pub fn id(&self) -> String {
        let content = self.json.split_once(',').map_or(self.json, |(_, rest)| rest);
        id("evt_", &[content.as_bytes()])
    }

    /// Upper bound of its share of a message.
    #[must_use]
    pub fn bytes(&self) -> usize {
        const AROUND: usize = 64;
        self.json.len() + self.result.map_or(0, str::len) + AROUND
    }

    /// Fields of the event without its braces.
    fn fields(&self) -> String {
        let fields = self.json.strip_prefix('{').and_then(|json| json.strip_suffix('}')).unwrap_or(self.json);
        match self.result {
            Some(result) => format!("{fields},\"result\":{result}"),
            None => fields.to_owned(),
        }
    }
}

fn id(prefix: &str, parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let text = URL_SAFE_NO_PAD.encode(hash.finalize());
    format!("{prefix}{}", &text[..ID_CHARS])
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub id: String,
    pub body: String,
}

impl Message {
    /// Composes the message of some events, at least one. The same events make the same message.
    #[must_use]
    pub fn of(items: &[Item<'_>], form: Form) -> Self {
        match (items, form) {
            ([item], Form::One) => {
                let id = item.id();
                let (kind, time, fields) = (item.kind, item.time, item.fields());
                let body =
                    format!("{{\"type\":\"{kind}\",\"timestamp\":\"{time}\",\"id\":\"{id}\",\"data\":{{{fields}}}}}");
                Self { id, body }
            }
            (items, Form::One | Form::Several) => Self::of_several(items),
        }
    }

    fn of_several(items: &[Item<'_>]) -> Self {
        let ids: Vec<String> = items.iter().map(Item::id).collect();
        let parts: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let time = items.last().map(|item| item.time.to_string()).unwrap_or_default();
        let events: Vec<String> =
            ids.iter().zip(items).map(|(id, item)| format!("{{\"id\":\"{id}\",{}}}", item.fields())).collect();
        let events = events.join(",");
        let body = format!("{{\"type\":\"events\",\"timestamp\":\"{time}\",\"data\":{{\"events\":[{events}]}}}}");
        Self { id: id("msg_", &parts), body }
    }

    /// A message without events, to try a receiver.
    #[must_use]
    pub fn test(subscription: &str, now: Timestamp, random: [u8; 16]) -> Self {
        let id = id("test_", &[&random]);
        let body = format!(
            "{{\"type\":\"test\",\"timestamp\":\"{now}\",\"id\":\"{id}\",\"data\":{{\"subscription\":\"{subscription}\"}}}}"
        );
        Self { id, body }
    }

    /// The header `webhook-signature`: one signature per key, the current first.
    #[must_use]
    pub fn signature(&self, keys: &[SigningKey], seconds: i64) -> String {
        let signed = format!("{}.{seconds}.{}", self.id, self.body);
        let signatures: Vec<String> = keys.iter().map(|key| format!("v1,{}", key.sign(&signed).as_str())).collect();
        signatures.join(" ")
    }
}

/// The form of messages of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One event. The message has its type.
    One,
    /// Type `events`, also for one event.
    Several,
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::{Value, json};

    use super::*;

    /// As the log writes it: the position first.
    fn log_event(position: i64, run: u32) -> String {
        format!("{{\"position\":{position},\"time\":\"1970-01-01T00:00:01.000Z\",\"payload\":{{\"runId\":{run}}}}}")
    }

    fn item<'a>(json: &'a str, result: Option<&'a str>) -> Item<'a> {
        let time = Timestamp::new(DateTime::from_timestamp(1, 0).unwrap());
        Item { kind: "task-completed", time, json, result }
    }

    #[test]
    fn message_of_one_event_has_its_type_and_id() {
        let text = log_event(7, 0);
        let message = Message::of(&[item(&text, None)], Form::One);
        let body: Value = serde_json::from_str(&message.body).unwrap();
        let expected = json!({"type": "task-completed", "timestamp": "1970-01-01T00:00:01.000Z", "id": message.id,
            "data": serde_json::from_str::<Value>(&text).unwrap()});
        assert_eq!(body, expected);
        assert!(message.id.starts_with("evt_") && message.id.len() == 26, "{}", message.id);
    }

    #[test]
    fn result_is_a_field_of_the_event() {
        let text = log_event(7, 0);
        let with = Message::of(&[item(&text, Some("{\"n\": 1}"))], Form::One);
        let body: Value = serde_json::from_str(&with.body).unwrap();
        assert_eq!(body["data"]["result"], json!({"n": 1}));
        assert_eq!(with.id, Message::of(&[item(&text, None)], Form::One).id);
    }

    #[test]
    fn message_of_several_events_names_each() {
        let texts = [log_event(7, 0), log_event(8, 1)];
        let items = [item(&texts[0], None), item(&texts[1], Some("2"))];
        let message = Message::of(&items, Form::Several);
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert_eq!(body["type"], "events");
        let events = body["data"]["events"].as_array().unwrap();
        assert_eq!(events.len(), 2);
        for (event, item) in events.iter().zip(&items) {
            assert_eq!(event["id"], item.id());
        }
        assert_eq!((&events[0]["position"], &events[1]["result"]), (&json!(7), &json!(2)));
        assert_eq!(Message::of(&items, Form::Several), message);
        let one = Message::of(&items[..1], Form::Several);
        assert!(one.id.starts_with("msg_") && one.id != message.id);
        assert!(one.body.contains("\"type\":\"events\""));
    }

    #[test]
    fn id_depends_on_everything_but_the_position() {
        let of = |text: &str| item(text, None).id();
        assert_eq!(of(&log_event(7, 0)), of(&log_event(8_000, 0)));
        assert_ne!(of(&log_event(7, 0)), of(&log_event(7, 1)));
    }

    #[test]
    fn test_message_is_json() {
        let now = Timestamp::new(DateTime::from_timestamp(1, 0).unwrap());
        let message = Message::test("billing", now, [1; 16]);
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert_eq!((&body["type"], &body["data"]), (&json!("test"), &json!({"subscription": "billing"})));
        assert_ne!(Message::test("billing", now, [2; 16]).id, message.id);
    }

    /// The example of the specification.
    #[test]
    fn signature_is_that_of_standard_webhooks() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let message = Message { id: "msg_p5jXN8AQM9LWM0D4loKWxJek".into(), body: "{\"test\": 2432232314}".into() };
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(message.signature(&[secret.key()], 1_614_265_330), expected);
        let other = WebhookSecret::from_random([7; SECRET_BYTES]);
        let both = message.signature(&[other.key(), secret.key()], 1_614_265_330);
        assert!(both.starts_with("v1,") && both.ends_with(&format!(" {expected}")), "{both}");
    }

    #[test]
    fn secret_is_a_prefix_and_base64() {
        let secret = WebhookSecret::from_random([7; SECRET_BYTES]);
        assert_eq!(WebhookSecret::parse(&secret.expose()), Ok(secret.clone()));
        assert_eq!(format!("{secret:?}"), "WebhookSecret(secret)");
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![1; bytes]));
        for (text, accepted) in [
            (of(23), false),
            (of(24), true),
            (of(64), true),
            (of(65), false),
            ("whsec_".to_owned(), false),
            (of(24)[6..].to_owned(), false),
            ("whsec_!!!!".to_owned(), false),
        ] {
            assert_eq!(WebhookSecret::parse(&text).is_ok(), accepted, "{text}");
        }
    }
}
