//! A subscription to completed tasks, whose receiver fails at random.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::ids::SlugId;

use super::storm::until_answered;
use super::world::Actor;
use crate::http::TENURE_API;
use crate::webhooks::{Manner, Message, Receiver};

const PATH: &str = "/subscriptions/storm";
/// Longest time for which the receiver does the same, in milliseconds.
const MANNER_MAX: u64 = 400;
const ACCEPTS_PERCENT: u64 = 70;
const POLL: Duration = Duration::from_millis(250);
const BATCH: u8 = 3;

/// Messages to a subscriber.
#[derive(Debug, Clone, Default)]
pub struct Delivered {
    /// Tasks whose completion arrived.
    pub tasks: HashSet<SlugId>,
    /// Repeats that differ from the first message of their id.
    pub altered: Vec<String>,
}

pub(super) struct Subscriber {
    actor: Actor,
    receiver: Receiver,
}

impl Subscriber {
    pub(super) async fn start(mut actor: Actor) -> Self {
        let receiver = Receiver::start().await;
        let to = json!({"webhook": {"url": receiver.url()}});
        let body = json!({"to": to, "exchange": ["task-completed"], "batch": BATCH}).to_string();
        let stored = until_answered(&mut actor, "PUT", &format!("{TENURE_API}{PATH}"), Some(&body)).await;
        stored.expect("a subscription is stored");
        Self { actor, receiver }
    }

    /// Fails at random until the actors are done; then returns itself for the last messages.
    pub(super) async fn misbehave(mut self) -> Self {
        while !self.actor.world.is_over() {
            let manner = if self.actor.random.percent(ACCEPTS_PERCENT) {
                Manner::Accepts
            } else {
                let choices = [Manner::Answers(500), Manner::Cuts, Manner::Dies];
                self.actor.random.pick(&choices).copied().unwrap_or(Manner::Dies)
            };
            self.receiver.set(manner);
            tokio::time::sleep(Duration::from_millis(self.actor.random.below(MANNER_MAX))).await;
        }
        self
    }

    /// Accepts everything until the subscription has caught up, at most until `limit`.
    pub(super) async fn catch_up(mut self, limit: Duration) -> Delivered {
        self.receiver.set(Manner::Accepts);
        let deadline = Instant::now() + limit;
        until_answered(&mut self.actor, "POST", &format!("{TENURE_API}{PATH}/resume"), None).await;
        while Instant::now() < deadline {
            let shown = until_answered(&mut self.actor, "GET", &format!("{TENURE_API}{PATH}"), None).await;
            if shown.is_some_and(|shown| shown["lagEvents"] == 0) {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        judge(&self.receiver.seen())
    }
}

fn judge(seen: &[Message]) -> Delivered {
    let mut delivered = Delivered::default();
    let mut bodies: HashMap<&str, Value> = HashMap::new();
    for message in seen {
        let body = without_positions(message.json());
        let first = bodies.entry(message.id()).or_insert_with(|| body.clone());
        if *first != body {
            delivered.altered.push(format!("message {} was {first}, and then {body}", message.id()));
        }
        for (_, event) in message.events() {
            let task = event["payload"]["status"]["taskId"].as_str().and_then(|task| task.parse().ok());
            delivered.tasks.extend::<Option<SlugId>>(task);
        }
    }
    delivered
}

/// A failover may change the position of an event.
fn without_positions(mut body: Value) -> Value {
    for event in body["data"]["events"].as_array_mut().into_iter().flatten() {
        event["position"] = Value::Null;
    }
    body
}
