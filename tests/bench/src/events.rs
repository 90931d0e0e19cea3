//! Events to a webhook: the life cycle without and with a subscription to all events, and then the
//! delivery of the events of tasks that were created before.
//!
//! The receiver is part of this process, so the server must allow it: `--deliver-to 127.0.0.0/8`.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_driver::http::{Client, TENURE_API};
use tenure_driver::random::Random;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::figures::Figures;
use super::lane::Lane;
use super::observe::Observer;
use super::run::Run;
use super::service::Service;
use super::{BenchError, Measured, ModeName, Settings, all_of, measure_mode};

const NAME: &str = "bench";
/// Most events per message.
const BATCH: usize = 100;
/// Events of a task that is created.
const OF_NEW_TASK: [&str; 2] = ["task-defined", "task-pending"];
const CREATORS: u64 = 4;
const CREATED_AT_ONCE: usize = 100;
/// Longest wait for a message.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Returns a table of the life cycle without and with a subscription, and of a delivery.
pub(crate) async fn compare(settings: &Settings) -> Result<String, BenchError> {
    let life_cycle = Settings { mode: ModeName::Lifecycle, prefill: 0, ..settings.clone() };
    let without = measure_mode(&life_cycle).await?;
    let receiver = Receiver::start().await?;
    let mut subscription = Subscription::new(&settings.service()?)?;
    subscription.put(&receiver, None, &json!("latest")).await?;
    let with = measure_mode(&life_cycle).await;
    subscription.delete().await?;
    let with = with?;
    let delivery = deliver(settings).await?;
    let rows =
        [("life cycle without subscription", without), ("life cycle with subscription", with), ("delivery", delivery)];
    Ok(render(settings, &rows))
}

/// Creates tasks, and measures the delivery of their events from the first to the last message. The
/// costs begin with the subscription.
pub(crate) async fn deliver(settings: &Settings) -> Result<Measured, BenchError> {
    let service = settings.service()?;
    let mut observer = Observer::new(settings, &service).await?;
    let receiver = Receiver::start().await?;
    let mut subscription = Subscription::new(&service)?;
    let start = subscription.put(&receiver, Some(&OF_NEW_TASK), &json!("latest")).await?;
    subscription.delete().await?;
    let run = Rc::new(Run::new(service, settings, Random::fresh_seed(), 1));
    create_tasks(&run, settings.depth()).await?;
    let events = settings.depth() * OF_NEW_TASK.len() as u64;

    let began = observer.begin().await?;
    subscription.put(&receiver, Some(&OF_NEW_TASK), &start).await?;
    let elapsed = receiver.wait_for(events).await;
    let used = observer.end(&began).await?;
    subscription.delete().await?;
    let elapsed = elapsed?;
    if elapsed.is_zero() {
        return Err(BenchError::Exhausted);
    }
    let mut figures = Figures::new(0);
    figures.tasks = events;
    let durability = observer.durability().await?;
    Ok(Measured { steps: &[], counts: "events", elapsed, figures, used, durability })
}

async fn create_tasks(run: &Rc<Run>, tasks: u64) -> Result<(), BenchError> {
    run.expect_tasks(tasks);
    let mut creating = JoinSet::new();
    for number in 0..CREATORS {
        let run = Rc::clone(run);
        creating.spawn_local(async move {
            let mut lane = Lane::new(run, number)?;
            loop {
                let taken = (0..CREATED_AT_ONCE).take_while(|_| lane.run().take_prefill()).count();
                if taken == 0 {
                    return Ok::<_, BenchError>(());
                }
                lane.create_many(0, taken).await?;
            }
        });
    }
    all_of(creating).await?;
    Ok(())
}

struct Subscription {
    client: Client,
    credentials: Credentials,
    path: String,
}

impl Subscription {
    fn new(service: &Service) -> Result<Self, BenchError> {
        let credentials = service.credentials()?.clone();
        let path = format!("{TENURE_API}/subscriptions/{NAME}");
        Ok(Self { client: Client::new(service.url())?, credentials, path })
    }

    /// Stores it, and returns its position in the log. Without `exchange` it has all events.
    async fn put(
        &mut self,
        receiver: &Receiver,
        exchange: Option<&[&str]>,
        after: &Value,
    ) -> Result<Value, BenchError> {
        let url = format!("http://127.0.0.1:{}/", receiver.port);
        let mut body = json!({"to": {"webhook": {"url": url}}, "after": after, "batch": BATCH});
        if let Some(exchange) = exchange {
            body["exchange"] = json!(exchange);
        }
        let stored = self.call("putSubscription", "PUT", Some(&body)).await?;
        Ok(stored["position"].clone())
    }

    async fn delete(&mut self) -> Result<(), BenchError> {
        self.call("deleteSubscription", "DELETE", None).await?;
        Ok(())
    }

    async fn call(&mut self, what: &'static str, method: &str, body: Option<&Value>) -> Result<Value, BenchError> {
        let body = body.map(Value::to_string);
        let body = body.as_ref().map(String::as_bytes);
        let answer = self.client.call(&self.credentials, method, &self.path, body).await?;
        if !answer.is_success() {
            return Err(BenchError::Refused { what, status: answer.status, body: answer.body.to_string() });
        }
        Ok(answer.body)
    }
}

/// A receiver of webhooks that counts events.
struct Receiver {
    port: u16,
    counter: Arc<Counter>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Receiver {
    async fn start() -> Result<Self, BenchError> {
        let failed = |error: std::io::Error| BenchError::Generator(format!("the receiver: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let counter = Arc::new(Counter::default());
        let router = Router::new().fallback(receive).with_state(Arc::clone(&counter));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { port, counter, serving })
    }

    /// Waits until so many events have arrived. Returns the time from the first to the last message.
    async fn wait_for(&self, events: u64) -> Result<Duration, BenchError> {
        loop {
            let news = self.counter.news.notified();
            let (arrived, elapsed) = self.counter.read();
            if arrived >= events {
                return Ok(elapsed);
            }
            if timeout(SILENCE_MAX, news).await.is_err() {
                return Err(BenchError::Undelivered { arrived, events });
            }
        }
    }
}

#[derive(Default)]
struct Counter {
    /// Number of events, and the times of the first and the last message.
    arrived: Mutex<(u64, Option<(Instant, Instant)>)>,
    news: Notify,
}

impl Counter {
    fn add(&self, events: u64) {
        let now = Instant::now();
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, times) = *arrived;
        *arrived = (before + events, Some((times.map_or(now, |(first, _)| first), now)));
        drop(arrived);
        self.news.notify_one();
    }

    fn read(&self) -> (u64, Duration) {
        let (events, times) = *self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        (events, times.map_or(Duration::ZERO, |(first, last)| last - first))
    }
}

#[derive(Deserialize)]
struct Message {
    data: Events,
}

#[derive(Deserialize)]
struct Events {
    events: Vec<IgnoredAny>,
}

async fn receive(State(counter): State<Arc<Counter>>, body: Bytes) -> StatusCode {
    let Ok(message) = serde_json::from_slice::<Message>(&body) else { return StatusCode::BAD_REQUEST };
    counter.add(message.data.events.len() as u64);
    StatusCode::NO_CONTENT
}

fn render(settings: &Settings, rows: &[(&str, Measured)]) -> String {
    const HEAD: [&str; 9] = [
        "events",
        "connections",
        "seconds",
        "per second",
        "server CPU µs each",
        "PostgreSQL CPU µs each",
        "generator CPU µs each",
        "failed",
        "durability",
    ];
    let mut text = String::new();
    if !settings.no_head {
        text.push_str(&format!("| {} |\n|{}\n", HEAD.join(" | "), "---|".repeat(HEAD.len())));
    }
    for (name, measured) in rows {
        let Measured { counts, elapsed, figures, used, durability, .. } = measured;
        let (number, seconds) = (figures.tasks as f64, elapsed.as_secs_f64());
        let each = |cost: Option<f64>| cost.map_or("-".to_owned(), |cost| format!("{:.0}", cost * 1e6 / number));
        let connections = if *counts == "events" { 1 } else { settings.connections() };
        let cells: [String; HEAD.len()] = [
            format!("{name}, {counts}"),
            connections.to_string(),
            format!("{seconds:.1}"),
            format!("{:.0}", number / seconds),
            each(used.cost.server),
            each(used.cost.postgres),
            each(used.cost.generator),
            figures.failures.values().sum::<u64>().to_string(),
            durability.clone().unwrap_or_else(|| "not asked (no --database-url)".to_owned()),
        ];
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cost::Cost;
    use crate::observe::Used;

    #[test]
    fn costs_are_those_of_one_event() {
        let settings = Settings::parse_from(["tenure-bench", "events", "--no-head"]);
        let cost = Cost { server: Some(0.5), postgres: Some(1.0), generator: None };
        let mut figures = Figures::new(0);
        figures.tasks = 20_000;
        let (elapsed, used) = (Duration::from_secs(4), Used { cost, ..Used::default() });
        let durability = Some("x".to_owned());
        let measured = Measured { steps: &[], counts: "events", elapsed, figures, used, durability };
        let row = "| delivery, events | 1 | 4.0 | 5000 | 25 | 50 | - | 0 | x |\n";
        assert_eq!(render(&settings, &[("delivery", measured)]), row);
    }

    #[tokio::test]
    async fn receiver_counts_events_of_messages() {
        let receiver = Receiver::start().await.unwrap();
        let mut client = Client::new(&format!("http://127.0.0.1:{}", receiver.port)).unwrap();
        for (body, status) in [
            (json!({"type": "events", "data": {"events": [{"id": "evt_1"}, {"id": "evt_2"}]}}), 204),
            (json!({"type": "events", "data": {"events": [{"id": "evt_3"}]}}), 204),
            (json!({"type": "test", "data": {}}), 400),
        ] {
            let sent = body.to_string();
            let json = Some(("application/json", sent.as_bytes()));
            assert_eq!(client.exchange_unsigned("POST", "/", json).await.unwrap().status, status, "{body}");
        }
        receiver.wait_for(3).await.unwrap();
        assert_eq!(receiver.counter.read().0, 3);
    }
}
