//! Jobs under way by run, and the number of runs that the session may be assigned.
//!
//! The server frees a slot when a run ends. Here it is taken until the handler has ended too.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::ids::{RunId, TaskId};
use tokio::sync::{Notify, watch};

use super::control::Control;
use super::stop::{EndedRun, StopReason};
use crate::Client;

/// Oldest entries are evicted.
const ENDED_EARLY_MAX: usize = 1_000;
/// The server is told only of handlers that still run this long after the loss of their run.
const STOPS_WITHIN: Duration = Duration::from_millis(250);
/// A shorter job is worth a wait: its result goes with the next call for work.
pub(super) const SHORT: Duration = Duration::from_millis(2);

pub(super) struct Jobs {
    client: Client,
    capacity: usize,
    by_run: Mutex<HashMap<(TaskId, RunId), Arc<Control>>>,
    /// Ends announced before the claims arrived.
    ended_early: Mutex<VecDeque<EndedRun>>,
    /// Number of runs that the session may be assigned.
    pub places: watch::Sender<usize>,
    /// Notified when a run is lost whose handler continues, and when such a handler ends.
    places_changed: Arc<Notify>,
    /// Handlers that continued after their run was lost.
    overruns: AtomicU64,
    /// The last handler to end was short.
    are_short: AtomicBool,
}

impl Jobs {
    pub(super) fn new(client: &Client, capacity: usize) -> Self {
        Self {
            client: client.clone(),
            capacity,
            by_run: Mutex::default(),
            ended_early: Mutex::default(),
            places: watch::Sender::new(capacity),
            places_changed: Arc::default(),
            overruns: AtomicU64::new(0),
            are_short: AtomicBool::new(false),
        }
    }

    /// Each change is one call, so a panic elsewhere leaves no partial state.
    fn by_run(&self) -> MutexGuard<'_, HashMap<(TaskId, RunId), Arc<Control>>> {
        self.by_run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended_early(&self) -> MutexGuard<'_, VecDeque<EndedRun>> {
        self.ended_early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, run: (TaskId, RunId)) -> Arc<Control> {
        let control = Arc::new(Control::new(run, &self.places_changed, &self.client));
        self.by_run().insert(run, Arc::clone(&control));
        let mut early = self.ended_early();
        let place = early.iter().position(|ended| (ended.task_id, ended.run_id) == run);
        if let Some(ended) = place.and_then(|place| early.remove(place)) {
            control.end(ended);
        }
        control
    }

    pub(super) fn listed(&self, control: &Control) -> Listed<'_> {
        Listed { jobs: self, run: (control.task_id, control.run_id) }
    }

    /// Handles the announced end of a run. The claim of an unknown run may still arrive.
    pub(super) fn end(&self, ended: EndedRun) {
        // Locked before the look-up: a job entered concurrently checks this list afterwards.
        let mut early = self.ended_early();
        if let Some(job) = self.find(ended.task_id, ended.run_id) {
            return job.end(ended);
        }
        if early.len() >= ENDED_EARLY_MAX {
            early.pop_front();
        }
        early.push_back(ended);
    }

    /// Handles the announced end of a run whose result may count. Ends a job that has not begun.
    pub(super) fn keep_late(&self, ended: EndedRun) {
        match self.find(ended.task_id, ended.run_id) {
            Some(job) => job.keep_late(ended),
            None => self.end(ended),
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Control>> {
        self.by_run().values().cloned().collect()
    }

    pub(super) fn find(&self, task_id: TaskId, run_id: RunId) -> Option<Arc<Control>> {
        self.by_run().get(&(task_id, run_id)).cloned()
    }

    pub(super) fn shut_down(&self) {
        for job in self.all() {
            job.ask_to_stop(StopReason::Shutdown);
        }
    }

    /// Returns false if there is no job of this task.
    pub(super) fn stop_task(&self, task_id: TaskId) -> bool {
        let its: Vec<_> = self.all().into_iter().filter(|job| job.task_id == task_id).collect();
        its.iter().for_each(|job| job.ask_to_stop(StopReason::Command));
        !its.is_empty()
    }

    /// A job whose run has ended takes a slot until it ends itself.
    pub(super) fn count_places(&self) {
        let ended = self.by_run().values().filter(|job| job.hold().has_ended()).count();
        let places = self.capacity.saturating_sub(ended);
        self.places.send_if_modified(|counted| std::mem::replace(counted, places) != places);
    }

    /// Never returns.
    pub(super) async fn follow_places(&self) {
        loop {
            self.places_changed.notified().await;
            tokio::time::sleep(STOPS_WITHIN).await;
            self.count_places();
        }
    }

    pub(super) fn count_overrun(&self) {
        self.overruns.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }

    /// Notes how long a handler took.
    pub(super) fn note_length(&self, length: Duration) {
        self.are_short.store(length < SHORT, Ordering::Relaxed);
    }

    /// True if the jobs that begin now will probably end at once.
    pub(super) fn are_short(&self) -> bool {
        self.are_short.load(Ordering::Relaxed)
    }
}

/// Removes a job when dropped.
pub(super) struct Listed<'a> {
    jobs: &'a Jobs,
    run: (TaskId, RunId),
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let job = self.jobs.by_run().remove(&self.run);
        if job.is_some_and(|job| job.hold().has_ended()) {
            self.jobs.places_changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_api::states::{ReasonResolved, RunState};

    use super::super::control::Hold;
    use super::*;

    fn jobs() -> Jobs {
        let client = Client::builder().root_url("http://127.0.0.1:1").build().unwrap();
        Jobs::new(&client, 1)
    }

    fn end() -> EndedRun {
        EndedRun {
            task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(),
            run_id: "0".parse().unwrap(),
            state: RunState::Exception,
            reason_resolved: ReasonResolved::Canceled,
            ended_by: None,
        }
    }

    #[test]
    fn late_job_takes_a_place_and_one_that_has_not_begun_ends() {
        let (jobs, run) = (jobs(), (end().task_id, end().run_id));
        let job = jobs.enter(run);
        jobs.keep_late(end());
        jobs.count_places();
        assert_eq!((job.hold(), job.reason(), *jobs.places.borrow()), (Hold::Late, None, 0));
        drop(jobs.listed(&job));
        jobs.count_places();
        assert_eq!(*jobs.places.borrow(), 1);
        jobs.keep_late(end());
        assert_eq!(jobs.enter(run).hold(), Hold::Gone);
    }

    #[test]
    fn jobs_are_short_if_the_last_one_was() {
        let jobs = jobs();
        assert!(!jobs.are_short());
        for (length, are_short) in [(Duration::ZERO, true), (SHORT, false), (SHORT / 2, true)] {
            jobs.note_length(length);
            assert_eq!(jobs.are_short(), are_short, "{length:?}");
        }
    }

    #[test]
    fn end_reaches_job_or_is_kept_until_its_claim_comes() {
        let (jobs, task_id, run_id) = (jobs(), end().task_id, end().run_id);
        jobs.end(end());
        let job = jobs.enter((task_id, run_id));
        assert_eq!((job.hold(), job.reason()), (Hold::Gone, Some(StopReason::Canceled)));
        drop(jobs.listed(&job));
        let job = jobs.enter((task_id, run_id));
        assert_eq!(job.hold(), Hold::Ours, "the end was another job's");
        jobs.end(end());
        assert_eq!((job.hold(), job.reason()), (Hold::Gone, Some(StopReason::Canceled)));
    }
}
