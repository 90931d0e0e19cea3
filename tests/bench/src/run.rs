//! State shared by the lanes of a run: the service, the queue, the window and the remaining tasks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::figures::Figures;
use super::service::Service;
use super::{BenchError, Settings};
use tenure_driver::random::Random;

/// Unfinished tasks at which the producers of a shift wait: enough for every worker, and few to
/// finish at the end.
const AHEAD: usize = 256;

#[derive(Debug)]
pub(crate) struct Run {
    service: Service,
    connections: usize,
    workers: u64,
    task_queues: usize,
    rate: u64,
    seed: u64,
    queue: String,
    group: String,
    made: RefCell<BTreeSet<String>>,
    figures: RefCell<Figures>,
    start: Cell<Option<Instant>>,
    end: Cell<Option<Instant>>,
    to_create: Cell<u64>,
    to_claim: Cell<u64>,
    depth: Cell<u64>,
    /// Acknowledged creates and reports, inside the window and outside.
    created: Cell<u64>,
    reported: Cell<u64>,
    /// Creates of a shift without an answer.
    creating: Cell<u64>,
    /// One permit for each task that the producers of a shift may create.
    to_produce: Semaphore,
    exhausted: Notify,
}

impl Run {
    pub(crate) fn new(service: Service, settings: &Settings, seed: u64, steps: usize) -> Self {
        // A new queue: a run must not claim tasks left by an earlier one.
        let queue = settings.task_queue.clone().unwrap_or_else(|| {
            let mut queue = "bench/load-".to_owned();
            Random::from_seed(seed).push_hex(&mut queue, 12);
            queue
        });
        Self {
            service,
            connections: settings.connections(),
            workers: settings.workers() as u64,
            task_queues: settings.task_queues.max(1),
            rate: settings.rate.max(1),
            seed,
            queue,
            group: Random::from_seed(!seed).task_id().to_string(),
            made: RefCell::default(),
            figures: RefCell::new(Figures::new(steps)),
            start: Cell::new(None),
            end: Cell::new(None),
            to_create: Cell::new(0),
            to_claim: Cell::new(0),
            depth: Cell::new(0),
            created: Cell::new(0),
            reported: Cell::new(0),
            creating: Cell::new(0),
            to_produce: Semaphore::new(AHEAD),
            exhausted: Notify::new(),
        }
    }

    pub(crate) fn expect_tasks(&self, tasks: u64) {
        self.to_create.set(tasks);
        self.to_claim.set(tasks);
        self.depth.set(tasks);
    }

    /// Sets the number of tasks to create or claim; the run ends with the last one.
    pub(crate) fn end_after(&self, tasks: u64) {
        self.to_claim.set(tasks);
    }

    /// Each lane's share of the tasks to create.
    pub(crate) fn share(&self) -> usize {
        usize::try_from(self.depth.get()).unwrap_or(usize::MAX) / self.connections
    }

    pub(crate) fn take_prefill(&self) -> bool {
        let left = self.to_create.get();
        self.to_create.set(left.saturating_sub(1));
        left > 0
    }

    /// Counts tasks of modes with a fixed number; the run ends with the last one.
    pub(crate) fn note_claimed(&self, tasks: u64) {
        self.to_claim.set(self.to_claim.get().saturating_sub(tasks));
        if self.to_claim.get() == 0 {
            self.note_dry();
        }
    }

    pub(crate) fn note_dry(&self) {
        let now = Instant::now();
        self.end.set(Some(self.end.get().map_or(now, |end| end.min(now))));
        self.exhausted.notify_one();
    }

    pub(crate) fn note_created(&self, tasks: u64) {
        self.created.set(self.created.get() + tasks);
    }

    pub(crate) fn note_reported(&self, tasks: u64) {
        self.reported.set(self.reported.get() + tasks);
        self.to_produce.add_permits(usize::try_from(tasks).unwrap_or(usize::MAX));
    }

    pub(crate) fn created(&self) -> u64 {
        self.created.get()
    }

    /// Number of created tasks without an accepted report.
    pub(crate) fn unreported(&self) -> u64 {
        self.created.get().saturating_sub(self.reported.get())
    }

    pub(crate) fn begin_create(&self) {
        self.creating.set(self.creating.get() + 1);
    }

    pub(crate) fn end_create(&self) {
        self.creating.set(self.creating.get() - 1);
    }

    /// True if a task of a shift is unreported, or may become so.
    pub(crate) fn has_unreported(&self) -> bool {
        self.creating.get() > 0 || self.unreported() > 0
    }

    /// Waits while a shift has [`AHEAD`] unfinished tasks.
    pub(crate) async fn wait_to_produce(&self) {
        if let Ok(permit) = self.to_produce.acquire().await {
            permit.forget();
        }
    }

    /// Number of lanes that are workers in a shift; the others are producers.
    pub(crate) fn workers(&self) -> u64 {
        self.workers
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    pub(crate) fn task_queues(&self) -> usize {
        self.task_queues
    }

    pub(crate) fn period(&self) -> Duration {
        Duration::from_secs_f64(self.connections as f64 / self.rate as f64)
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    pub(crate) fn made(&self) -> std::cell::RefMut<'_, BTreeSet<String>> {
        self.made.borrow_mut()
    }

    /// Opens the window for this length. If the tasks ran out before, the window is empty.
    pub(crate) fn open_window(&self, length: Duration) {
        let (now, dry) = (Instant::now(), self.end.get());
        self.start.set(Some(dry.unwrap_or(now)));
        self.end.set(Some(dry.unwrap_or(now + length)));
    }

    pub(crate) fn is_open(&self) -> bool {
        self.end.get().is_none_or(|end| Instant::now() < end)
    }

    pub(crate) async fn wait_for_the_end(&self, lanes: &mut JoinSet<Result<(), BenchError>>) -> Option<BenchError> {
        let end = self.end.get()?;
        loop {
            tokio::select! {
                () = sleep_until(end) => return None,
                () = self.exhausted.notified() => return None,
                Some(finished) = lanes.join_next() => {
                    if let Some(failure) = failure_of(finished) {
                        return Some(failure);
                    }
                }
            }
        }
    }

    pub(crate) fn close_window(&self) -> Duration {
        let now = Instant::now();
        let end = self.end.get().unwrap_or(now).min(now);
        self.end.set(Some(end));
        end.saturating_duration_since(self.start.get().unwrap_or(end))
    }

    pub(crate) fn figures(&self) -> std::cell::RefMut<'_, Figures> {
        self.figures.borrow_mut()
    }

    /// True if an action between these times lies inside the window.
    pub(crate) fn counts(&self, began: Instant, ended: Instant) -> bool {
        let window = self.start.get().zip(self.end.get());
        window.is_some_and(|(start, end)| began >= start && ended <= end)
    }
}

pub(crate) fn failure_of(finished: Result<Result<(), BenchError>, JoinError>) -> Option<BenchError> {
    match finished {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(error) => Some(BenchError::Generator(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::azure::Azure;

    const WINDOW: Duration = Duration::from_secs(600);

    fn run() -> Run {
        let azure = Azure::new("http://h", "account", "c2VjcmV0").unwrap();
        Run::new(Service::Azure(azure), &Settings::parse_from(["tenure-bench", "get1"]), 1, 1)
    }

    #[test]
    fn actions_before_window_do_not_count() {
        let run = run();
        let before = Instant::now();
        assert!(run.is_open() && !run.counts(before, before));
        std::thread::sleep(Duration::from_millis(1));
        run.open_window(WINDOW);
        let now = Instant::now();
        assert!(run.is_open() && run.counts(now, now) && !run.counts(before, now));
        assert!(run.close_window() < WINDOW && !run.is_open());
    }

    #[test]
    fn a_run_that_is_dry_before_its_window_has_none() {
        let run = run();
        run.note_dry();
        run.open_window(WINDOW);
        assert!(!run.is_open());
        assert_eq!(run.close_window(), Duration::ZERO);
    }
}
