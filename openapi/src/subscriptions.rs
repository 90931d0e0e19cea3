//! Bodies of subscriptions, which send events to receivers.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AnyOf, Object, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::dates::Timestamp;
use crate::policy::present_seconds;
use crate::states::{SubscriptionState, SuspendedBy};
use crate::structure::{object, present};
use crate::whole::{EXACT_MAX, present_whole};

/// A subscription to store.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubscriptionRequest {
    /// The receiver.
    #[serde(deserialize_with = "object")]
    pub to: ReceiverRequest,
    /// Only events of these exchanges, by short or full name. Default: all.
    #[serde(default, deserialize_with = "present")]
    #[schema(min_items = 1)]
    pub exchange: Option<Vec<String>>,
    /// Only events whose routing key matches: words separated by dots; `*` matches one word, `#`
    /// any number. Default: all.
    #[serde(default, deserialize_with = "present")]
    pub routing_key_pattern: Option<String>,
    /// Only events of tasks with a route that matches. Default: all.
    #[serde(default, deserialize_with = "present")]
    pub route: Option<String>,
    /// Only for a new subscription: it begins after this position of the event log. Default
    /// `latest`: with the next event.
    #[serde(default, deserialize_with = "present")]
    pub after: Option<After>,
    /// True: `task-completed` and `task-failed` have the result of the run, too. Default false.
    #[serde(default, deserialize_with = "present")]
    pub result: Option<bool>,
    /// Maximum events per message to a webhook, default 1; maximum unconfirmed messages to a broker,
    /// default 100.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 1, maximum = 100)]
    pub batch: Option<i64>,
    /// Age in seconds at which an undelivered event suspends the subscription. Default 432000, five
    /// days; never more than the setting `--subscription-hold` of the servers.
    #[serde(default, deserialize_with = "present_seconds")]
    #[schema(minimum = 3_600, maximum = 2_592_000)]
    pub give_up_after: Option<i64>,
}

/// Where events are sent.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReceiverRequest {
    /// A receiver of HTTP requests. Either this or `amqp` is needed.
    #[serde(default, deserialize_with = "present")]
    pub webhook: Option<WebhookRequest>,
    /// A broker that takes AMQP messages.
    #[serde(default, deserialize_with = "present")]
    pub amqp: Option<AmqpRequest>,
}

/// A broker that takes AMQP 0-9-1 messages, such as RabbitMQ.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AmqpRequest {
    /// The broker, with user, password and virtual host: `amqps` or `amqp`, to addresses that the
    /// servers allow.
    #[schema(min_length = 1, max_length = 2_048)]
    pub url: String,
    /// Prefix of the names of exchanges. Default: none.
    #[serde(default, deserialize_with = "present")]
    #[schema(max_length = 100)]
    pub prefix: Option<String>,
}

/// A receiver of messages as of Standard Webhooks.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookRequest {
    /// Where messages are posted: `https`, or `http` to addresses that the servers allow.
    #[schema(min_length = 1, max_length = 2_048)]
    pub url: String,
    /// The secret that signs messages: `whsec_` and base64 of 24 to 64 bytes. By default an existing
    /// subscription keeps its secret, and a new one gets a generated secret, which is answered once.
    /// A changed secret signs at once, and the previous secret for another day.
    #[serde(default, deserialize_with = "present")]
    #[schema(pattern = "^whsec_[A-Za-z0-9+/]+={0,2}$")]
    pub secret: Option<String>,
}

/// How to resume a subscription.
#[derive(Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResumeRequest {
    /// Default: where it stopped.
    #[serde(default, deserialize_with = "present")]
    pub after: Option<After>,
}

/// A place in the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    Position(i64),
    /// The newest event at the time of the request.
    Latest,
}

impl<'de> Deserialize<'de> for After {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let position = match Value::deserialize(deserializer)? {
            Value::String(word) if word == "latest" => return Ok(Self::Latest),
            Value::Number(number) => number.as_i64().or_else(|| whole(number.as_f64()?)),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
        };
        let position = position.filter(|position| (0..i64::MAX).contains(position)).map(Self::Position);
        position.ok_or_else(|| de::Error::custom("must be a position, 0 or a whole number, or \"latest\""))
    }
}

impl Serialize for After {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Position(position) => serializer.serialize_i64(*position),
            Self::Latest => serializer.serialize_str("latest"),
        }
    }
}

/// `5.0` is the same number as `5`.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= EXACT_MAX).then_some(number as i64)
}

impl PartialSchema for After {
    fn schema() -> RefOr<Schema> {
        let position = Object::builder().schema_type(Type::Integer).minimum(Some(0));
        let latest = Object::builder().schema_type(Type::String).enum_values(Some(["latest"]));
        AnyOf::builder().item(position).item(latest).into()
    }
}

impl ToSchema for After {}

/// A subscription.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// Its name.
    pub name: String,
    /// The receiver.
    pub to: Receiver,
    /// Filter, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Vec<String>>,
    /// Filter, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key_pattern: Option<String>,
    /// Filter, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// True if ends of tasks are sent with their results.
    pub result: bool,
    /// Maximum events per message to a webhook, or unconfirmed messages to a broker.
    pub batch: i64,
    /// Age in seconds at which an undelivered event suspends it.
    pub give_up_after: i64,
    /// Its state.
    pub state: SubscriptionState,
    /// Why it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_by: Option<SuspendedBy>,
    /// Time of the suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Timestamp>,
    /// Events up to this position of the log were delivered, or do not pass the filter.
    pub position: i64,
    /// Events of the log after the position, whether they pass the filter or not.
    pub lag_events: i64,
    /// Age of the oldest such event in seconds.
    pub lag_seconds: f64,
    /// Time of the last accepted message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Timestamp>,
    /// Time of the first failed attempt since the last accepted message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// Time of the next attempt, after a failed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The client of the last `PUT`. Its scopes are checked for each message.
    pub client_id: String,
    /// Time of the first `PUT`.
    pub created: Timestamp,
    /// Time of the last `PUT` or resumption.
    pub last_modified: Timestamp,
}

/// Where events are sent.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receiver {
    /// A receiver of HTTP requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// A broker that takes AMQP messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amqp: Option<Amqp>,
}

/// A broker that takes AMQP 0-9-1 messages.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Amqp {
    /// The broker, without user and password.
    pub url: String,
    /// Prefix of the names of exchanges.
    pub prefix: String,
}

/// A receiver of messages as of Standard Webhooks.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Where messages are posted.
    pub url: String,
    /// Three stars; the secret only when it was generated.
    pub secret: String,
}

/// All subscriptions.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscriptions {
    /// Ordered by name.
    pub subscriptions: Vec<Subscription>,
}

/// The result of a test message.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestDelivery {
    /// True if the receiver accepted it.
    pub delivered: bool,
    /// Status of the answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The first 1,024 bytes of the answer's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Why it was not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time until the answer.
    pub milliseconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_is_a_position_or_latest() {
        let read = |text: &str| serde_json::from_str::<After>(text).ok();
        assert_eq!(read("\"latest\""), Some(After::Latest));
        for after in [After::Latest, After::Position(7)] {
            assert_eq!(read(&serde_json::to_string(&after).unwrap()), Some(after));
        }
        for text in ["0", "7", "7.0", "9007199254740993"] {
            let expected = text.trim_end_matches(".0").parse().unwrap();
            assert_eq!(read(text), Some(After::Position(expected)), "{text}");
        }
        for text in ["-1", "1.5", "\"newest\"", "null", "true", "[]", "{}", "9223372036854775807", "1e30"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
