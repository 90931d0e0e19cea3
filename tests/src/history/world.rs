//! State shared by the actors of a storm, and their means to make and record calls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_api::credentials::Credentials;
use tenure_api::ids::{SessionId, SlugId};

use super::check::History;
use super::lost::{forget_lost, times_of_loss};
use super::record::{Answer, Event, Record, RunKey, Stamp, TaskSpec};
use super::sessions::{Act, SessionCall};
use super::storm::CLOCK_MOVE_MAX;
use crate::clock::unix_millis;
use crate::http::Client;
use crate::random::Random;

const CUT_OFF_PERCENT: u64 = 3;
/// A cut-off call has been in flight for less than this, in microseconds.
const CUT_OFF_WITHIN: u64 = 4_000;
const MOVE_PERCENT: u64 = 3;
const INTERNAL_ERROR: u16 = 500;
/// Bound of the server's clock beyond its last reading, plus a margin.
const CLOCK_UNREAD_MILLIS: i64 = (CLOCK_MOVE_MAX as i64 + 1) * 1_000;

/// A task with an attempt to create it: its id and its body, without options.
#[derive(Debug, Clone)]
pub(super) struct Tried {
    pub(super) spec: TaskSpec,
    pub(super) body: Arc<str>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) root: Credentials,
    pub(super) root_urls: Vec<String>,
    pub(super) queues: Vec<String>,
    pub(super) seed: u64,
    began: Instant,
    operations_left: AtomicU64,
    over: AtomicBool,
    clock_ahead_millis: AtomicI64,
    /// Tasks created minus tasks resolved, approximately: only tells submitters when to slow down.
    pub(super) backlog: AtomicI64,
    /// Held by actors that move the database's clock, or that fail if others move it.
    pub(super) clock: tokio::sync::Mutex<()>,
    tried: Mutex<Vec<Tried>>,
    /// Tasks enqueued from SQL.
    enqueued: Mutex<Vec<SlugId>>,
    history: Mutex<History>,
}

impl World {
    pub(super) fn new(
        root: Credentials,
        root_urls: Vec<String>,
        queues: Vec<String>,
        seed: u64,
        operations: u64,
    ) -> Self {
        let history = History { queues: queues.clone(), ..History::default() };
        Self {
            root,
            root_urls,
            queues,
            seed,
            began: Instant::now(),
            operations_left: AtomicU64::new(operations),
            over: AtomicBool::new(false),
            clock_ahead_millis: AtomicI64::new(0),
            backlog: AtomicI64::new(0),
            clock: tokio::sync::Mutex::default(),
            tried: Mutex::default(),
            enqueued: Mutex::default(),
            history: Mutex::new(history),
        }
    }

    pub(super) fn stamp(&self) -> Stamp {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn take_operation(&self) -> bool {
        self.operations_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    pub(super) fn operations_left(&self) -> u64 {
        self.operations_left.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn server_millis(&self) -> i64 {
        unix_millis() + self.clock_ahead_millis.load(Ordering::Relaxed)
    }

    /// A time that the server's clock has not reached: one move may not have been read yet.
    pub(super) fn server_millis_max(&self) -> i64 {
        self.server_millis() + CLOCK_UNREAD_MILLIS
    }

    pub(super) fn set_server_millis(&self, millis: i64) {
        self.clock_ahead_millis.store(millis - unix_millis(), Ordering::Relaxed);
    }

    pub(super) fn note_tried(&self, tried: Tried) {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner).push(tried);
    }

    pub(super) fn pick_tried(&self, random: &mut Random, last: usize) -> Option<Tried> {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        random.pick(&tried[tried.len().saturating_sub(last)..]).cloned()
    }

    pub(super) fn note_enqueued(&self, task: SlugId) {
        self.enqueued.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// All tasks that may exist.
    pub(super) fn all_tasks(&self) -> Vec<SlugId> {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let enqueued = self.enqueued.lock().unwrap_or_else(PoisonError::into_inner);
        tried.iter().map(|tried| tried.spec.task).chain(enqueued.iter().copied()).collect()
    }

    pub(super) fn write(&self, start: Stamp, event: Event) {
        let record = Record { start, end: self.stamp(), event };
        self.history.lock().unwrap_or_else(PoisonError::into_inner).records.push(record);
    }

    fn note_internal_error(&self, what: String) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).internal_errors.push(what);
    }

    pub(super) fn note_changed_event(&self, what: String) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).changed_events.push(what);
    }

    pub(super) fn returned(&self) -> BTreeSet<RunKey> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let returned = history.records.iter().filter_map(|record| match &record.event {
            Event::Returned { run, answer, .. } if answer.may_be_done() => Some(*run),
            _ => None,
        });
        returned.collect()
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = history.records.iter().filter_map(|record| match &record.event {
            Event::Session(SessionCall { act: act @ Act::Start { .. }, .. }) => act.session(),
            _ => None,
        });
        begun.collect()
    }

    pub(super) fn losses(&self) -> Vec<(Stamp, Stamp)> {
        times_of_loss(&self.history.lock().unwrap_or_else(PoisonError::into_inner).records)
    }

    /// The history so far, without calls that may have been lost.
    pub(super) fn history(&self) -> History {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner).clone();
        forget_lost(&mut history.records);
        history
    }
}

#[derive(Debug)]
pub(super) struct Actor {
    pub(super) world: Arc<World>,
    pub(super) random: Random,
    client: Client,
    cut_off_percent: u64,
}

impl Actor {
    pub(super) fn new(world: Arc<World>, number: u64) -> Self {
        let mut random = Random::fork(world.seed, number);
        let client = client_of_any_server(&world, &mut random);
        Self { world, random, client, cut_off_percent: CUT_OFF_PERCENT }
    }

    /// Creates an actor that waits for each answer.
    pub(super) fn patient(world: Arc<World>, number: u64) -> Self {
        Self { cut_off_percent: 0, ..Self::new(world, number) }
    }

    pub(super) async fn call(&mut self, method: &str, path: &str, body: Option<&str>) -> Answer<Value> {
        let root = self.world.root.clone();
        self.call_as(&root, method, path, body).await
    }

    /// Makes a request as the root client and returns any answer; `None` without one.
    pub(super) async fn fetch(&mut self, method: &str, path: &str) -> Option<(u16, String)> {
        let (root, start) = (self.world.root.clone(), self.world.stamp());
        match self.client.exchange(&root, method, path, None).await {
            Ok(reply) => {
                let text = String::from_utf8_lossy(&reply.body).into_owned();
                if reply.status == INTERNAL_ERROR {
                    self.world.note_internal_error(format!("{method} {path} was answered with {text}"));
                }
                Some((reply.status, text)).filter(|(status, _)| *status < INTERNAL_ERROR)
            }
            Err(_) => {
                self.world.write(start, Event::DatabaseFault);
                None
            }
        }
    }

    pub(super) async fn call_as(
        &mut self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Answer<Value> {
        if self.random.percent(MOVE_PERCENT) {
            self.client = client_of_any_server(&self.world, &mut self.random);
        }
        let body = body.map(str::as_bytes);
        if self.random.percent(self.cut_off_percent) {
            let sent = self.client.start(credentials, method, path, body).await;
            if sent.is_ok() {
                tokio::time::sleep(Duration::from_micros(self.random.below(CUT_OFF_WITHIN))).await;
            }
            self.client.hang_up();
            return Answer::Unknown;
        }
        let start = self.world.stamp();
        match self.client.call(credentials, method, path, body).await {
            Ok(answer) if answer.is_success() => Answer::Done(answer.body),
            Ok(answer) if answer.status < INTERNAL_ERROR => Answer::Refused(answer.status),
            Ok(answer) => {
                if answer.status == INTERNAL_ERROR {
                    self.world.note_internal_error(format!("{method} {path} was answered with {answer:?}"));
                }
                self.world.write(start, Event::DatabaseFault);
                Answer::Unknown
            }
            Err(_) => {
                self.world.write(start, Event::DatabaseFault);
                Answer::Unknown
            }
        }
    }
}

fn client_of_any_server(world: &World, random: &mut Random) -> Client {
    let root_url = random.pick(&world.root_urls).expect("a storm has servers");
    Client::new(root_url).expect("a server prints a root URL")
}
