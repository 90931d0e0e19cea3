//! Subscriptions, which send events to receivers: their checks, and what an answer means.
//!
//! - [`address`]: where webhooks may be delivered.
//! - [`message`]: messages and their signatures.
//! - [`publication`]: events as AMQP messages.

pub mod address;
pub mod message;
pub mod publication;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::{SubscriptionState, SuspendedBy};
use tenure_api::subscriptions::{ReceiverRequest, SubscriptionRequest};

use self::message::Form;
use crate::event_filter::{Filter, Unfit};
use crate::policy::seconds;
use crate::unacceptable::Unacceptable;

/// Maximum subscriptions of a database.
pub const SUBSCRIPTIONS_MAX: usize = 100;
pub const NAME_CHARS_MAX: usize = 64;
pub const URL_BYTES_MAX: usize = 2_048;
const PREFIX_BYTES_MAX: usize = 100;
const EXCHANGES_MAX: usize = 100;
const BATCH_MAX: i64 = 100;
/// In seconds.
const GIVE_UP_LEAST: i64 = 3_600;
/// 30 days in seconds.
const GIVE_UP_MOST: i64 = 2_592_000;
/// 5 days in seconds.
const GIVE_UP_DEFAULT: i64 = 432_000;
/// From the connection to the end of the answer.
pub const ANSWER_MAX: Duration = Duration::from_secs(15);
const BACKOFF_MOST: Duration = Duration::from_secs(300);
/// Longest wait that a receiver can ask for.
const RETRY_AFTER_MOST: Duration = Duration::from_secs(3_600);
/// How long the previous secret signs messages, too.
pub const PREVIOUS_SECRET: TimeDelta = TimeDelta::days(1);

/// How a receiver takes events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP requests.
    Webhook,
    /// AMQP messages, to exchanges whose names begin with the prefix.
    Amqp { prefix: String },
}

impl Protocol {
    /// As stored.
    #[must_use]
    pub fn from_prefix(prefix: Option<String>) -> Self {
        prefix.map_or(Self::Webhook, |prefix| Self::Amqp { prefix })
    }

    #[must_use]
    pub fn prefix(&self) -> Option<&str> {
        match self {
            Self::Webhook => None,
            Self::Amqp { prefix } => Some(prefix),
        }
    }

    /// A broker gets one event per message under any batch, so a large one costs its readers nothing.
    fn default_batch(&self) -> i64 {
        match self {
            Self::Webhook => 1,
            Self::Amqp { .. } => BATCH_MAX,
        }
    }
}

/// The settings of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// For AMQP without user and password.
    pub url: String,
    pub protocol: Protocol,
    /// Separated by commas.
    pub exchanges: Option<String>,
    pub routing_key_pattern: Option<String>,
    pub route: Option<String>,
    /// Send ends of tasks with their results.
    pub result: bool,
    pub batch: u8,
    pub give_up_after: TimeDelta,
}

/// A stored subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    pub name: String,
    pub definition: Definition,
    /// The client whose scopes count.
    pub client_id: String,
    pub created: DateTime<Utc>,
    /// Time of the last PUT or resumption.
    pub changed: DateTime<Utc>,
    /// Events up to here were delivered, or do not pass the filter.
    pub position: i64,
    pub lag: Lag,
    pub last_success: Option<DateTime<Utc>>,
    pub failing_since: Option<DateTime<Utc>>,
    pub next_try: Option<DateTime<Utc>>,
    pub error: Option<String>,
    pub suspended: Option<Suspended>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspended {
    pub since: DateTime<Utc>,
    pub by: SuspendedBy,
}

/// How far a subscription is behind the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    pub events: i64,
    /// Age of the oldest event after the position.
    pub age: TimeDelta,
}

/// Checks the name of a subscription.
pub fn named(name: &str) -> Result<String, Unacceptable> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(valid) {
        return Ok(name.to_owned());
    }
    Err(Unacceptable::Rule(format!(
        "the name of a subscription must have from 1 to {NAME_CHARS_MAX} letters, digits, hyphens or underscores"
    )))
}

impl Definition {
    /// Checks everything but the URL and the secret.
    pub fn from_request(sent: &SubscriptionRequest) -> Result<Self, Unacceptable> {
        let exchanges = match sent.exchange.as_deref() {
            None => None,
            Some([]) => {
                return Err(Unacceptable::Rule("`exchange` must not be empty; leave it out for all".to_owned()));
            }
            Some(names) if names.len() > EXCHANGES_MAX => {
                return Err(Unacceptable::Rule(format!("`exchange` must have at most {EXCHANGES_MAX} names")));
            }
            Some(names) => Some(names.join(",")),
        };
        let (url, protocol) = receiver(&sent.to)?;
        let batch = sent.batch.unwrap_or_else(|| protocol.default_batch());
        let batch = u8::try_from(batch).ok().filter(|_| (1..=BATCH_MAX).contains(&batch));
        let definition = Self {
            url,
            protocol,
            exchanges,
            routing_key_pattern: sent.routing_key_pattern.clone(),
            route: sent.route.clone(),
            result: sent.result.unwrap_or(false),
            batch: batch.ok_or_else(|| Unacceptable::Rule(format!("`batch` must be from 1 to {BATCH_MAX}")))?,
            give_up_after: seconds(
                "giveUpAfter",
                sent.give_up_after.unwrap_or(GIVE_UP_DEFAULT),
                GIVE_UP_LEAST,
                GIVE_UP_MOST,
            )?,
        };
        definition.filter()?;
        for (field, text) in [("routingKeyPattern", &definition.routing_key_pattern), ("route", &definition.route)] {
            // PostgreSQL cannot store it, and no routing key has it.
            if text.as_ref().is_some_and(|text| text.contains('\0')) {
                return Err(Unacceptable::Rule(format!("`{field}` must not contain U+0000")));
            }
        }
        Ok(definition)
    }

    pub fn filter(&self) -> Result<Filter, Unacceptable> {
        let unfit = |field: &str, why: &Unfit| Unacceptable::Rule(format!("`{field}` must be {why}"));
        let mut filter = Filter::default();
        if let Some(list) = &self.exchanges {
            filter.set_exchanges(list).map_err(|why| unfit("exchange", &why))?;
        }
        if let Some(pattern) = &self.routing_key_pattern {
            filter.set_key(pattern).map_err(|why| unfit("routingKeyPattern", &why))?;
        }
        if let Some(pattern) = &self.route {
            filter.set_route(pattern).map_err(|why| unfit("route", &why))?;
        }
        Ok(filter)
    }

    #[must_use]
    pub fn form(&self) -> Form {
        if self.batch == 1 { Form::One } else { Form::Several }
    }
}

fn receiver(to: &ReceiverRequest) -> Result<(String, Protocol), Unacceptable> {
    match (&to.webhook, &to.amqp) {
        (Some(webhook), None) => Ok((webhook.url.clone(), Protocol::Webhook)),
        (None, Some(amqp)) => {
            let prefix = amqp.prefix.clone().unwrap_or_default();
            if prefix.len() > PREFIX_BYTES_MAX || prefix.chars().any(char::is_control) {
                return Err(Unacceptable::Rule(format!(
                    "`prefix` must have at most {PREFIX_BYTES_MAX} bytes and no control characters"
                )));
            }
            Ok((amqp.url.clone(), Protocol::Amqp { prefix }))
        }
        (None, None) | (Some(_), Some(_)) => {
            Err(Unacceptable::Rule("`to` must have either `webhook` or `amqp`".to_owned()))
        }
    }
}

impl Subscription {
    #[must_use]
    pub fn state(&self) -> SubscriptionState {
        match (self.suspended, self.failing_since) {
            (Some(_), _) => SubscriptionState::Suspended,
            (None, Some(_)) => SubscriptionState::Failing,
            (None, None) => SubscriptionState::Active,
        }
    }
}

/// An attempt to deliver a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The receiver answered with this status, and perhaps with a time to wait.
    Answered(u16, Option<Duration>),
    /// No answer in time, or no connection.
    Unanswered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    Accepted,
    /// The receiver wants no more messages.
    Gone,
    /// Send it again, after this time at least.
    Again(Duration),
}

impl Attempt {
    /// Redirects are not followed, so they are failures.
    #[must_use]
    pub fn meaning(self) -> Meaning {
        match self {
            Self::Answered(200..=299, _) => Meaning::Accepted,
            Self::Answered(410, _) => Meaning::Gone,
            Self::Answered(429 | 503, Some(wait)) => Meaning::Again(wait.min(RETRY_AFTER_MOST)),
            Self::Answered(..) | Self::Unanswered => Meaning::Again(Duration::ZERO),
        }
    }
}

/// Wait after this many failures in a row: 1 s, 2 s, 4 s and so on to 300 s, ± 20 %. `random` is
/// from 0 to 1.
#[must_use]
pub fn backoff(failures: u32, random: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let wait = Duration::from_secs(1 << doublings).min(BACKOFF_MOST);
    wait.mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0))
}

/// Returns the age at which an undelivered event suspends the subscription. `hold` is the limit of
/// the operator.
#[must_use]
pub fn age_limit(give_up_after: TimeDelta, hold: Duration) -> TimeDelta {
    TimeDelta::from_std(hold).map_or(give_up_after, |hold| give_up_after.min(hold))
}

/// True if an undelivered event of this age suspends the subscription.
#[must_use]
pub fn gives_up(age: TimeDelta, give_up_after: TimeDelta, hold: Duration) -> bool {
    age > age_limit(give_up_after, hold)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn definition(fields: &Value) -> Result<Definition, Unacceptable> {
        let mut body = json!({"to": {"webhook": {"url": "https://example.com/"}}});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        Definition::from_request(&serde_json::from_value(body).unwrap())
    }

    #[test]
    fn subscription_has_defaults_and_limits() {
        let plain = definition(&json!({})).unwrap();
        assert_eq!((plain.batch, plain.result, plain.give_up_after), (1, false, TimeDelta::days(5)));
        assert!(plain.filter().unwrap().is_open() && plain.form() == Form::One);
        let full = definition(&json!({"exchange": ["task-completed", "exchange/tenure/v1/queue-paused"],
            "routingKeyPattern": "primary.#", "route": "index.*", "result": true, "batch": 100, "giveUpAfter": 3600}));
        let full = full.unwrap();
        assert_eq!((full.batch, full.result, full.give_up_after), (100, true, TimeDelta::hours(1)));
        assert!(!full.filter().unwrap().is_open() && full.form() == Form::Several);
        for (fields, named) in [
            (json!({"exchange": []}), "exchange"),
            (json!({"exchange": ["task-done"]}), "exchange"),
            (json!({"exchange": ["task-completed,"]}), "exchange"),
            (json!({"routingKeyPattern": ""}), "routingKeyPattern"),
            (json!({"route": "a..b"}), "route"),
            (json!({"route": "a.\u{0}"}), "route"),
            (json!({"batch": 0}), "batch"),
            (json!({"batch": 101}), "batch"),
            (json!({"batch": -1}), "batch"),
            (json!({"giveUpAfter": 3599}), "giveUpAfter"),
            (json!({"giveUpAfter": 2_592_001}), "giveUpAfter"),
        ] {
            let Err(Unacceptable::Rule(why)) = definition(&fields) else { panic!("{fields} is refused") };
            assert!(why.contains(&format!("`{named}`")), "{why}");
        }
    }

    #[test]
    fn receiver_is_a_webhook_or_a_broker() {
        let receiver = |to: Value| Definition::from_request(&serde_json::from_value(json!({"to": to})).unwrap());
        let url = "amqps://user:password@broker.example/vhost";
        let plain = receiver(json!({"amqp": {"url": url}})).unwrap();
        assert_eq!((plain.url.as_str(), plain.protocol.prefix(), plain.batch), (url, Some(""), 100));
        let named = receiver(json!({"amqp": {"url": url, "prefix": "prod/"}})).unwrap();
        assert_eq!(Protocol::from_prefix(named.protocol.prefix().map(str::to_owned)), named.protocol);
        for (to, field) in [
            (json!({}), "`to`"),
            (json!({"webhook": {"url": "https://example.com/"}, "amqp": {"url": url}}), "`to`"),
            (json!({"amqp": {"url": url, "prefix": "x".repeat(101)}}), "`prefix`"),
            (json!({"amqp": {"url": url, "prefix": "a\u{0}"}}), "`prefix`"),
        ] {
            let Err(Unacceptable::Rule(why)) = receiver(to.clone()) else { panic!("{to} is refused") };
            assert!(why.contains(field), "{why}");
        }
    }

    #[test]
    fn name_has_up_to_64_letters_digits_hyphens_and_underscores() {
        assert_eq!(named("a_B-9"), Ok("a_B-9".to_owned()));
        assert!(named(&"x".repeat(64)).is_ok());
        for wrong in ["", "a.b", "a/b", "ä", &"x".repeat(65)] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_2xx_accepts_and_410_ends() {
        let minute = Duration::from_secs(60);
        for (attempt, meaning) in [
            (Attempt::Answered(200, None), Meaning::Accepted),
            (Attempt::Answered(204, Some(minute)), Meaning::Accepted),
            (Attempt::Answered(299, None), Meaning::Accepted),
            (Attempt::Answered(199, None), Meaning::Again(Duration::ZERO)),
            (Attempt::Answered(302, None), Meaning::Again(Duration::ZERO)),
            (Attempt::Answered(404, Some(minute)), Meaning::Again(Duration::ZERO)),
            (Attempt::Answered(410, Some(minute)), Meaning::Gone),
            (Attempt::Answered(429, Some(minute)), Meaning::Again(minute)),
            (Attempt::Answered(429, None), Meaning::Again(Duration::ZERO)),
            (Attempt::Answered(503, Some(Duration::from_secs(86_400))), Meaning::Again(RETRY_AFTER_MOST)),
            (Attempt::Answered(500, Some(minute)), Meaning::Again(Duration::ZERO)),
            (Attempt::Unanswered, Meaning::Again(Duration::ZERO)),
        ] {
            assert_eq!(attempt.meaning(), meaning, "{attempt:?}");
        }
    }

    #[test]
    fn backoff_doubles_to_five_minutes() {
        let seconds = |failures| backoff(failures, 0.5).as_secs_f64().round() as u64;
        assert_eq!([0, 1, 2, 3, 9, 10, 100, u32::MAX].map(seconds), [1, 1, 2, 4, 256, 300, 300, 300]);
        assert_eq!(backoff(1, 0.0), Duration::from_millis(800));
        assert_eq!(backoff(1, 7.0).as_millis(), 1_200);
    }

    #[test]
    fn subscription_gives_up_at_its_age_or_that_of_the_operator() {
        let (day, hour) = (TimeDelta::days(1), TimeDelta::hours(1));
        let hold = Duration::from_secs(2 * 86_400);
        assert!(!gives_up(day, day, hold) && gives_up(day + hour, day, hold));
        assert!(!gives_up(day * 2, day * 5, hold) && gives_up(day * 2 + hour, day * 5, hold));
        assert!(!gives_up(-day, hour, Duration::ZERO), "a clock was set back");
    }
}
