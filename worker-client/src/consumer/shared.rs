//! What the parts of a consumer share: its settings, the jobs under way, and what was asked of it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId, TaskQueueId};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::balancer::Balancer;
use super::ended::EndedRun;
use super::given::{Given, GivenRuns};
use super::handler::{HowLost, Run, Stop, StopReason};
use super::outcome::OnPanic;
use super::progress::ASK_EVERY_IN_SESSION;
use super::report::Reports;
use crate::{Claim, Client, WorkerName};

/// The settings of a consumer.
pub(super) struct Settings {
    pub client: Client,
    pub queue: TaskQueueId,
    pub name: WorkerName,
    pub capacity: usize,
    /// Time to live of its sessions; none if it has no sessions.
    pub session: Option<Duration>,
    /// How long a call for work waits.
    pub wait: Duration,
    /// Between a stop for want of renewals and the end of the lease, or of the session.
    pub grace: Duration,
    /// After this share of a lease it is renewed.
    pub heartbeat: f64,
    pub on_panic: OnPanic,
    /// With one, runs are claimed by name.
    pub balancer: Option<Arc<dyn Balancer>>,
    pub balance_every: Duration,
    /// How often commands for a task are asked for without a session.
    pub commands_every: Duration,
    /// Where the status is served, on the loopback address.
    pub debug_port: Option<u16>,
    /// Claims come from a source of the program's own.
    pub has_source: bool,
}

/// On which terms tasks are claimed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// Without a session: the consumer is to have none, or the server has none.
    Alone,
    /// There is no session now, or no word of it.
    Waiting,
    /// By this session.
    Live(SessionId),
}

impl Membership {
    pub(super) fn session(self) -> Option<SessionId> {
        match self {
            Self::Live(session) => Some(session),
            Self::Alone | Self::Waiting => None,
        }
    }
}

/// Whether a run is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is.
    Ours,
    /// Until its lease ends: it cannot be renewed.
    Unrenewable,
    /// It is not; nothing more is sent for it.
    Gone,
}

pub(super) struct Shared {
    pub settings: Settings,
    pub handler: Arc<dyn Run>,
    pub reports: Reports,
    pub frozen: watch::Sender<bool>,
    pub membership: watch::Sender<Membership>,
    /// Asked to shut down.
    pub shutdown: CancellationToken,
    /// All jobs have ended.
    pub closing: CancellationToken,
    /// When it began to run.
    pub started: OnceLock<Timestamp>,
    /// Where its status is served, since then.
    pub debug_address: OnceLock<SocketAddr>,
    /// How many handlers went on when their runs were ours no longer.
    pub claims_overrun: AtomicU64,
    /// Asked to balance.
    pub balance: Notify,
    /// Runs that are claimed by their names: they are assigned to the session, or may be ours.
    pub given: GivenRuns,
    /// How many runs its session may be given at a time, as they were counted last.
    pub places: watch::Sender<usize>,
    /// They are to be counted: a run is gone whose job goes on, or such a job has ended.
    pub places_changed: Arc<Notify>,
    /// How many runs each worker of the queue had when the consumer balanced last.
    workers: Mutex<Option<Vec<usize>>>,
    jobs: Mutex<HashMap<(TaskId, RunId), Arc<Control>>>,
    /// Runs of which the session said that they have ended before their claims came.
    ended_early: Mutex<VecDeque<EndedRun>>,
}

/// So many of them are remembered, the latest ones.
const ENDED_EARLY_MAX: usize = 1_000;

/// One job, as the rest of the consumer sees it.
pub(super) struct Control {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub started: Timestamp,
    /// The first time that it was asked to stop.
    pub stopped: OnceLock<Timestamp>,
    /// The handler has ended.
    pub reporting: AtomicBool,
    /// How often the session heard of a command for its task.
    pub commanded: watch::Sender<u64>,
    stop: watch::Sender<Option<StopReason>>,
    hold: watch::Sender<Hold>,
    /// When another worker may start the run, if it cannot be renewed.
    pub ends: OnceLock<Instant>,
    how_lost: Arc<OnceLock<HowLost>>,
    places_changed: Arc<Notify>,
    client: Client,
}

impl Shared {
    pub(super) fn new(settings: Settings, handler: Arc<dyn Run>, reports: Reports) -> Self {
        let membership = if settings.session.is_some() { Membership::Waiting } else { Membership::Alone };
        let places = watch::Sender::new(settings.capacity);
        Self {
            settings,
            handler,
            reports,
            frozen: watch::Sender::new(false),
            membership: watch::Sender::new(membership),
            shutdown: CancellationToken::new(),
            closing: CancellationToken::new(),
            started: OnceLock::new(),
            debug_address: OnceLock::new(),
            claims_overrun: AtomicU64::new(0),
            balance: Notify::new(),
            given: GivenRuns::default(),
            places,
            places_changed: Arc::default(),
            workers: Mutex::new(None),
            jobs: Mutex::new(HashMap::new()),
            ended_early: Mutex::default(),
        }
    }

    /// Each change is one call, so that a panic elsewhere leaves nothing half done.
    fn jobs(&self) -> MutexGuard<'_, HashMap<(TaskId, RunId), Arc<Control>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next of the given runs that is not under way. The claim of one that is would be the same one again.
    pub(super) fn take_given(&self) -> Option<Given> {
        loop {
            let given = self.given.take()?;
            if self.find(given.offer.task_id, given.offer.run_id).is_none() {
                return Some(given);
            }
        }
    }

    /// The session said that a run has ended. If it is not under way, its claim may be on its way to us.
    pub(super) fn end(&self, ended: EndedRun) {
        // Before it is looked for: one that is entered meanwhile looks here afterwards.
        let mut early = self.ended_early();
        if let Some(job) = self.find(ended.task_id, ended.run_id) {
            return job.end(ended);
        }
        if early.len() >= ENDED_EARLY_MAX {
            early.pop_front();
        }
        early.push_back(ended);
    }

    /// Ends a job that is entered, if the session has said that its run has ended.
    fn end_early(&self, control: &Control) {
        let mut early = self.ended_early();
        let place = early.iter().position(|ended| (ended.task_id, ended.run_id) == (control.task_id, control.run_id));
        if let Some(ended) = place.and_then(|place| early.remove(place)) {
            control.end(ended);
        }
    }

    fn ended_early(&self) -> MutexGuard<'_, VecDeque<EndedRun>> {
        self.ended_early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn workers(&self) -> Option<Vec<usize>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn learn_workers(&self, workers: Option<Vec<usize>>) {
        *self.workers.lock().unwrap_or_else(PoisonError::into_inner) = workers;
    }

    /// Enters a claim as a job.
    pub(super) fn enter(&self, claim: &Claim) -> Arc<Control> {
        let control = Arc::new(Control {
            task_id: claim.task_id(),
            run_id: claim.run_id(),
            started: self.settings.client.now(),
            stopped: OnceLock::new(),
            reporting: AtomicBool::new(false),
            commanded: watch::Sender::new(0),
            stop: watch::Sender::new(None),
            hold: watch::Sender::new(Hold::Ours),
            ends: OnceLock::new(),
            how_lost: Arc::default(),
            places_changed: Arc::clone(&self.places_changed),
            client: self.settings.client.clone(),
        });
        self.jobs().insert((claim.task_id(), claim.run_id()), Arc::clone(&control));
        self.end_early(&control);
        control
    }

    /// How often commands for a task are requested, besides those that a session announces.
    pub(super) fn ask_for_commands_every(&self) -> Duration {
        match *self.membership.borrow() {
            Membership::Alone => self.settings.commands_every,
            Membership::Waiting | Membership::Live(_) => ASK_EVERY_IN_SESSION,
        }
    }

    /// Takes the job off the list when it is dropped.
    pub(super) fn listed(self: &Arc<Self>, control: &Control) -> Listed {
        Listed { shared: Arc::clone(self), run: (control.task_id, control.run_id) }
    }

    pub(super) fn freeze(&self, frozen: bool) {
        self.frozen.send_if_modified(|now| std::mem::replace(now, frozen) != frozen);
    }

    /// Those under way, in no order.
    pub(super) fn under_way(&self) -> Vec<Arc<Control>> {
        self.jobs().values().cloned().collect()
    }

    /// Counts the places for runs: that of a job whose run is gone is taken until the job has ended, and for the server it is free.
    pub(super) fn count_places(&self) {
        let gone = self.jobs().values().filter(|job| job.hold() == Hold::Gone).count();
        let places = self.settings.capacity.saturating_sub(gone);
        self.places.send_if_modified(|counted| std::mem::replace(counted, places) != places);
    }

    pub(super) fn find(&self, task_id: TaskId, run_id: RunId) -> Option<Arc<Control>> {
        self.jobs().get(&(task_id, run_id)).cloned()
    }

    /// Asks the job of this task to stop; false if there is none.
    pub(super) fn stop_task(&self, task_id: TaskId) -> bool {
        let its: Vec<_> = self.under_way().into_iter().filter(|job| job.task_id == task_id).collect();
        its.iter().for_each(|job| job.ask_to_stop(StopReason::Command));
        !its.is_empty()
    }

    /// Whether nothing more is taken now: it shuts down, or is frozen.
    pub(super) fn takes_none(&self) -> bool {
        self.shutdown.is_cancelled() || *self.frozen.borrow()
    }

    /// Whether what was claimed on these terms may be started.
    pub(super) fn may_start(&self, claimed: Membership) -> bool {
        !self.takes_none() && *self.membership.borrow() == claimed
    }

    pub(super) fn count_overrun(&self) {
        self.claims_overrun.fetch_add(1, Ordering::Relaxed);
    }
}

/// A job that is on the list of those under way.
pub(super) struct Listed {
    shared: Arc<Shared>,
    run: (TaskId, RunId),
}

impl Drop for Listed {
    fn drop(&mut self) {
        let job = self.shared.jobs().remove(&self.run);
        if job.is_some_and(|job| job.hold() == Hold::Gone) {
            self.shared.places_changed.notify_one();
        }
    }
}

impl Control {
    /// What the handler sees of it.
    pub(super) fn stop(&self) -> Stop {
        Stop::new(self.stop.subscribe(), Arc::clone(&self.how_lost))
    }

    pub(super) fn reason(&self) -> Option<StopReason> {
        *self.stop.borrow()
    }

    pub(super) fn hold(&self) -> Hold {
        *self.hold.borrow()
    }

    /// Whether its handler was asked to stop, or has ended.
    pub(super) fn is_ending(&self) -> bool {
        self.reason().is_some() || self.reporting.load(Ordering::Relaxed)
    }

    /// Returns when the run is ours no longer, or cannot be renewed.
    pub(super) async fn not_ours(&self) {
        // `self` has the sender.
        drop(self.hold.subscribe().wait_for(|hold| *hold != Hold::Ours).await);
    }

    /// Returns when the run is not ours any more.
    pub(super) async fn gone(&self) {
        drop(self.hold.subscribe().wait_for(|hold| *hold == Hold::Gone).await);
    }

    /// Asks the handler to stop. The first reason stays, unless the run is lost later.
    pub(super) fn ask_to_stop(&self, reason: StopReason) {
        let changed = self.stop.send_if_modified(|asked| {
            let counts = asked.is_none_or(|before| reason.is_final() && !before.is_final());
            if counts {
                *asked = Some(reason);
            }
            counts
        });
        if changed {
            self.stopped.get_or_init(|| self.client.now());
            tracing::info!(task.id = %self.task_id, run.id = self.run_id.number(), ?reason, "a job is asked to stop");
        }
    }

    /// Says how the run is lost, before it is. What was said first counts.
    pub(super) fn say_how_lost(&self, how: HowLost) {
        self.how_lost.get_or_init(|| how);
    }

    /// How the run was lost, in words.
    pub(super) fn lost_because(&self) -> String {
        self.how_lost.get().map_or_else(|| "its lease is over".to_owned(), HowLost::to_string)
    }

    /// The session said that the run has ended.
    pub(super) fn end(&self, ended: EndedRun) {
        let reason = ended.stop_reason();
        self.say_how_lost(HowLost::Ended(ended));
        self.lose(reason);
    }

    /// The run is not ours any more.
    pub(super) fn lose(&self, reason: StopReason) {
        if self.hold.send_if_modified(|hold| std::mem::replace(hold, Hold::Gone) != Hold::Gone) {
            self.places_changed.notify_one();
        }
        self.ask_to_stop(reason);
    }

    /// The run cannot be renewed: it stops before another worker may start it, which may be at this time.
    pub(super) fn stop_renewing(&self, ends: Instant) {
        self.ends.get_or_init(|| ends);
        self.hold.send_if_modified(|hold| {
            let ours = *hold == Hold::Ours;
            if ours {
                *hold = Hold::Unrenewable;
            }
            ours
        });
        self.ask_to_stop(StopReason::Lost);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tenure_api::states::{ReasonResolved, RunState};

    use super::super::balancer::Offer;
    use super::*;

    pub(in crate::consumer) fn control() -> Control {
        let client = Client::builder().root_url("http://127.0.0.1:1").build().unwrap();
        Control {
            task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(),
            run_id: "0".parse().unwrap(),
            started: client.now(),
            stopped: OnceLock::new(),
            reporting: AtomicBool::new(false),
            commanded: watch::Sender::new(0),
            stop: watch::Sender::new(None),
            hold: watch::Sender::new(Hold::Ours),
            ends: OnceLock::new(),
            how_lost: Arc::default(),
            places_changed: Arc::default(),
            client,
        }
    }

    pub(in crate::consumer) fn shared() -> Arc<Shared> {
        let client = Client::builder().root_url("http://127.0.0.1:1").build().unwrap();
        let consumer = crate::consumer::Consumer::builder(client, "p/q".parse().unwrap()).name("group", "worker");
        let consumer = consumer.handler(|_job: crate::consumer::Job, _stop: Stop| async {}).build().unwrap();
        consumer.handle().shared
    }

    #[test]
    fn a_run_that_is_given_twice_is_taken_once_and_none_of_a_session_that_has_ended() {
        let shared = shared();
        let offer = |run: &str| Offer { task_id: control().task_id, run_id: run.parse().unwrap() };
        let take = || shared.take_given().map(|given| given.offer);
        for run in ["0", "1", "0"] {
            shared.given.assign(offer(run), None);
        }
        assert_eq!([take(), take()], [Some(offer("0")), Some(offer("1"))]);
        // One that is under way already would be worked on twice.
        shared.jobs().insert((offer("2").task_id, offer("2").run_id), Arc::new(control()));
        shared.given.assign(offer("2"), None);
        assert_eq!(take(), None);
        shared.given.assign(offer("3"), None);
        shared.given.forget();
        assert_eq!(take(), None);
    }

    #[test]
    fn an_end_reaches_the_job_or_is_kept_until_its_claim_comes() {
        let shared = shared();
        let job = Arc::new(control());
        let (task_id, run_id) = (job.task_id, job.run_id);
        let end = || EndedRun {
            task_id,
            run_id,
            state: RunState::Exception,
            reason_resolved: ReasonResolved::Canceled,
            ended_by: None,
        };
        shared.end(end());
        assert_eq!(job.hold(), Hold::Ours, "its claim is on its way");
        shared.jobs().insert((job.task_id, job.run_id), Arc::clone(&job));
        shared.end_early(&job);
        assert_eq!((job.hold(), job.reason()), (Hold::Gone, Some(StopReason::Canceled)));
        let job = Arc::new(control());
        shared.jobs().insert((job.task_id, job.run_id), Arc::clone(&job));
        shared.end(end());
        assert_eq!((job.hold(), job.reason()), (Hold::Gone, Some(StopReason::Canceled)));
    }

    #[test]
    fn the_first_reason_stays_unless_the_run_is_lost() {
        let control = control();
        control.ask_to_stop(StopReason::Command);
        let first = *control.stopped.get().unwrap();
        for (asked, seen) in [
            (StopReason::Shutdown, StopReason::Command),
            (StopReason::Canceled, StopReason::Canceled),
            (StopReason::Lost, StopReason::Canceled),
            (StopReason::Shutdown, StopReason::Canceled),
        ] {
            control.ask_to_stop(asked);
            assert_eq!(control.reason(), Some(seen), "{asked:?}");
        }
        assert_eq!(*control.stopped.get().unwrap(), first);
    }

    #[test]
    fn a_run_that_is_gone_does_not_come_back() {
        let control = control();
        control.stop_renewing(Instant::now());
        assert_eq!((control.hold(), control.reason()), (Hold::Unrenewable, Some(StopReason::Lost)));
        control.lose(StopReason::Lost);
        control.stop_renewing(Instant::now());
        assert_eq!(control.hold(), Hold::Gone);
    }
}
