//! State shared by all actors: servers, switches and records.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;

use crate::history::record::{Event, Record, Stamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Create,
    Claim,
    Report,
}

#[derive(Debug, Default)]
pub(super) struct Switch(AtomicBool);

impl Switch {
    pub(super) fn go(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub struct Accounts {
    pub(super) root: Credentials,
    pub(super) root_urls: Vec<String>,
    pub(super) queues: Vec<String>,
    pub(super) submitting: Switch,
    pub(super) working: Switch,
    /// Tasks created minus tasks reported.
    pub(super) backlog: AtomicI64,
    began: Instant,
    tried: Mutex<Vec<SlugId>>,
    records: Mutex<Vec<Record>>,
    errors: Mutex<Vec<String>>,
}

impl Accounts {
    pub(super) fn new(root: Credentials, root_urls: Vec<String>, queues: Vec<String>) -> Self {
        Self {
            root,
            root_urls,
            queues,
            submitting: Switch::default(),
            working: Switch::default(),
            backlog: AtomicI64::new(0),
            began: Instant::now(),
            tried: Mutex::default(),
            records: Mutex::default(),
            errors: Mutex::default(),
        }
    }

    #[must_use]
    pub fn stamp(&self) -> Stamp {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    #[must_use]
    pub fn since(&self, stamp: Stamp) -> Duration {
        Duration::from_micros(self.stamp().saturating_sub(stamp))
    }

    pub(super) fn write(&self, start: Stamp, event: Event) {
        let record = Record { start, end: self.stamp(), event };
        lock(&self.records).push(record);
    }

    pub(super) fn note_tried(&self, task: SlugId) {
        lock(&self.tried).push(task);
    }

    pub(super) fn note_error(&self, what: String) {
        lock(&self.errors).push(what);
    }

    #[must_use]
    pub fn tried(&self) -> Vec<SlugId> {
        lock(&self.tried).clone()
    }

    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        lock(&self.records).clone()
    }

    pub(super) fn errors(&self) -> Vec<String> {
        lock(&self.errors).clone()
    }

    #[must_use]
    pub fn created(&self, from: Stamp, to: Stamp) -> Vec<SlugId> {
        let records = lock(&self.records);
        let within = records.iter().filter(|record| record.end >= from && record.end <= to);
        within
            .filter_map(|record| match &record.event {
                Event::Create { task, answer } => answer.done().map(|()| task.task),
                _ => None,
            })
            .collect()
    }

    pub(super) fn successes_since(&self, kind: Kind, since: Stamp) -> usize {
        lock(&self.records).iter().rev().filter(|record| record.start >= since && is_success(record, kind)).count()
    }

    pub(super) fn first_success_since(&self, kind: Kind, since: Stamp) -> Option<Stamp> {
        let records = lock(&self.records);
        let done = records.iter().filter(|record| record.start >= since && is_success(record, kind));
        done.map(|record| record.end).min()
    }
}

fn is_success(record: &Record, kind: Kind) -> bool {
    match &record.event {
        Event::Create { answer, .. } => kind == Kind::Create && answer.done().is_some(),
        Event::ClaimWork { answer, .. } => kind == Kind::Claim && answer.done().is_some_and(|runs| !runs.is_empty()),
        Event::Report { answer, .. } => kind == Kind::Report && answer.done().is_some(),
        _ => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
