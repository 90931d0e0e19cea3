//! Ticks: one transaction for all waiting hot statements.
//!
//! Each operation has a `Seat`. An operation with members enters, and the next tick invites it. In
//! the order of [`Kind`] each hands over its statements. All are sent as one transaction, and each
//! operation gets its rows after the commit. They share one flush, and a claim sees the tasks
//! created in its tick. A lone statement commits by itself. There is no timer: a tick takes the
//! work that arrived during the previous one.
//!
//! A server may run several tick loops, some for creates and claims of the created runs. Each has
//! its own seats, permit and session. [`Route`](crate::route::Route) sends work that must not
//! overlap through one loop.
//!
//! Operations judge the rows themselves. If a failed statement undid the tick, they run their
//! batches alone; the [`Permit`] keeps these apart from ticks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::company::Company;
use super::session::Session;
use crate::essential;
use crate::failure::Failure;
use crate::route::HotSessions;
use crate::traces::{self, TickTrace};
use tenure_store::connector::Connector;
use tenure_store::hot::pipeline::Pipeline;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::session::Backend;

/// How long an operation runs its batches alone after its statement undid a tick.
pub(super) const APART: Duration = Duration::from_secs(1);

/// Members with which a tick waits for no more: during its commit this server would idle.
const MEMBERS_ENOUGH: u64 = 64;
/// Idle time before the session is pinged: a middlebox may have dropped it.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Ping timeout; then the next tick reconnects.
const PING_MAX: Duration = Duration::from_secs(3);
/// Scheduler rounds that a smaller tick waits. Each runs all ready tasks of this thread and reads
/// most arrived requests, but may wake another thread for nothing.
const ROUNDS_MAX: usize = 8;

/// Kinds of statements that share ticks, in lock order. Only creates and submissions ever wait for
/// locks: for tasks that another transaction is creating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Create,
    /// Submissions.
    Submit,
    /// Reports.
    End,
    /// Renewals of claims.
    Renew,
    /// Claims of the wait list.
    Claim,
    GetMessages,
    DeleteMessages,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Create, Self::Submit, Self::End, Self::Renew, Self::Claim, Self::GetMessages, Self::DeleteMessages];
}

/// Admits one writing batch at a time, in order of arrival.
#[derive(Clone, Default)]
pub struct Permit(Arc<tokio::sync::Mutex<()>>);

impl Permit {
    /// Waits for the permit. Take members from their queue only while holding it.
    pub(super) async fn take(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.lock().await
    }
}

/// All tick loops. They end when this and all seats are dropped.
pub struct Ticks {
    sessions: HotSessions,
    loops: Vec<TickLoop>,
}

pub(super) struct TickLoop {
    shared: Arc<TickState>,
    wake: mpsc::Sender<()>,
    permit: Permit,
}

#[derive(Default)]
struct TickState {
    /// Per kind, the operation waiting for an invitation.
    seats: Mutex<[Option<Waiting>; Kind::ALL.len()]>,
    arrivals: Arrivals,
}

#[derive(Clone, Default)]
pub(super) struct Arrivals(Arc<AtomicU64>);

impl Arrivals {
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TickState {
    fn seats(&self) -> MutexGuard<'_, [Option<Waiting>; Kind::ALL.len()]> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Waiting {
    invite: oneshot::Sender<Turn>,
    readiness: Readiness,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Readiness {
    HasMembers,
    /// The operation has members only if earlier parts make runs claimable.
    IfRunsBecomeClaimable,
}

impl Ticks {
    /// Starts the loops, each with its own session.
    #[must_use]
    pub fn start(connector: &Connector, sessions: HotSessions, tasks: &TaskTracker) -> Self {
        Self { sessions, loops: (0..sessions.count()).map(|_| TickLoop::start(connector, tasks)).collect() }
    }

    /// Blocks all writers until the returned guards are dropped.
    #[cfg(feature = "test-util")]
    pub async fn hold(&self) -> Vec<tokio::sync::MutexGuard<'_, ()>> {
        futures_util::future::join_all(self.loops.iter().map(|one| one.permit.take())).await
    }

    pub(super) fn loops(&self, kind: Kind) -> &[TickLoop] {
        &self.loops[match kind {
            Kind::Create | Kind::Submit => self.sessions.of_creates(),
            Kind::End | Kind::Renew | Kind::Claim | Kind::GetMessages | Kind::DeleteMessages => {
                self.sessions.of_workers()
            }
        }]
    }

    pub(super) fn claim_seats(&self, place: usize) -> ClaimSeats {
        let creates = self.loops(Kind::Create).get(place).filter(|_| self.sessions.count() > 1);
        let creates = creates.map(|tick_loop| tick_loop.seat(Kind::Claim));
        ClaimSeats { own: self.loops(Kind::Claim)[place].seat(Kind::Claim), creates }
    }

    /// The loop of operations outside ticks.
    pub(super) fn first(&self) -> &[TickLoop] {
        &self.loops[..1]
    }
}

impl TickLoop {
    fn start(connector: &Connector, tasks: &TaskTracker) -> Self {
        let shared = Arc::<TickState>::default();
        // Capacity 1: wake-ups coalesce.
        let (wake, woken) = mpsc::channel(1);
        let permit = Permit::default();
        let ticker = Ticker {
            shared: Arc::clone(&shared),
            woken,
            permit: permit.clone(),
            session: Session::pipeline(connector.clone()),
        };
        essential::spawn(tasks, ticker.work());
        Self { shared, wake, permit }
    }

    pub(super) fn permit(&self) -> Permit {
        self.permit.clone()
    }

    pub(super) fn arrivals(&self) -> Arrivals {
        self.shared.arrivals.clone()
    }

    pub(super) fn seat(&self, kind: Kind) -> Seat {
        Seat { kind, shared: Arc::clone(&self.shared), wake: self.wake.clone(), invitation: None }
    }
}

pub(super) struct Seat {
    kind: Kind,
    shared: Arc<TickState>,
    wake: mpsc::Sender<()>,
    invitation: Option<oneshot::Receiver<Turn>>,
}

impl Seat {
    /// Waits for the next tick. `None` if the ticks have ended.
    pub(super) async fn enter(&mut self) -> Option<Turn> {
        self.open(Readiness::HasMembers);
        self.invited().await
    }

    /// Lets ticks that make runs claimable invite this operation until the seat is closed.
    fn open_for_new_runs(&mut self) {
        self.open(Readiness::IfRunsBecomeClaimable);
    }

    fn open(&mut self, readiness: Readiness) {
        let (invite, invitation) = oneshot::channel();
        self.invitation = Some(invitation);
        self.shared.seats()[self.kind as usize] = Some(Waiting { invite, readiness });
        if readiness == Readiness::HasMembers {
            // Full: a wake-up is pending.
            let _ = self.wake.try_send(());
        }
    }

    /// Waits for the invitation. Cancel-safe.
    pub(super) async fn invited(&mut self) -> Option<Turn> {
        match &mut self.invitation {
            Some(invitation) => {
                let turn = invitation.await.ok();
                self.invitation = None;
                turn
            }
            None => std::future::pending().await,
        }
    }

    /// Withdraws the seat. Returns a turn granted just before.
    pub(super) fn close(&mut self) -> Option<Turn> {
        drop(self.shared.seats()[self.kind as usize].take());
        self.invitation.take()?.try_recv().ok()
    }
}

/// Seats of claims, one in their own loop and one in a create loop. While nothing is claimable, both
/// are open, so that a tick claims the runs that it creates or schedules. There is only the first
/// seat if there is one loop, or no create loop for this one.
pub(super) struct ClaimSeats {
    own: Seat,
    creates: Option<Seat>,
}

impl ClaimSeats {
    /// [`Seat::enter`] in the claims' own loop.
    pub(super) async fn enter(&mut self) -> Option<Turn> {
        self.own.enter().await
    }

    pub(super) fn open_for_new_runs(&mut self) {
        self.own.open_for_new_runs();
        if let Some(creates) = &mut self.creates {
            creates.open_for_new_runs();
        }
    }

    /// Waits for an invitation of either loop. Cancel-safe. Close the seats afterwards.
    pub(super) async fn invited(&mut self) -> Option<Turn> {
        let Some(creates) = &mut self.creates else { return self.own.invited().await };
        tokio::select! {
            turn = creates.invited() => turn,
            turn = self.own.invited() => turn,
        }
    }

    /// Closes both seats. Returns a turn granted just before; of two turns the second is not used.
    pub(super) fn close(&mut self) -> Option<Turn> {
        let own = self.own.close();
        self.creates.as_mut().and_then(Seat::close).or(own)
    }
}

#[derive(Default)]
struct Common {
    tasks: HashSet<Uuid>,
    claimable: HashSet<i32>,
}

/// An operation's part of a tick. The tick waits for it, so use or drop it at once.
pub(super) struct Turn {
    common: Arc<Mutex<Common>>,
    readiness: Readiness,
    hand_over: oneshot::Sender<Part>,
}

struct Part {
    statements: Vec<Statement>,
    reply: oneshot::Sender<Result<Committed<Vec<Rows>>, NotDone>>,
}

/// Receiver of the rows from the previous reply's `end` up to `end`.
struct Reply {
    reply: oneshot::Sender<Result<Committed<Vec<Rows>>, NotDone>>,
    end: usize,
}

/// Rows of a committed tick.
pub(super) struct Committed<R> {
    pub(super) rows: R,
    pub(super) trace: TickTrace,
}

#[derive(Debug)]
pub(super) enum NotDone {
    /// Nothing happened, and this part is not known to be the cause. Run it by itself.
    Undone,
    /// This part undid the whole tick.
    Spoiled,
    /// The tick may have committed on this backend, or there was no session.
    Unknown(Failure, Option<Backend>),
}

impl Turn {
    fn common(&self) -> MutexGuard<'_, Common> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the tick was joined only for runs that it makes claimable.
    pub(super) fn is_for_new_runs(&self) -> bool {
        self.readiness == Readiness::IfRunsBecomeClaimable
    }

    /// Reserves a task for one member. False if another member of this tick has it.
    pub(super) fn take_task(&self, task: Uuid) -> bool {
        self.common().tasks.insert(task)
    }

    pub(super) fn add_claimable(&self, queues: impl IntoIterator<Item = i32>) {
        self.common().claimable.extend(queues);
    }

    /// Queues in which earlier parts make runs claimable.
    pub(super) fn claimable(&self) -> Vec<i32> {
        self.common().claimable.iter().copied().collect()
    }

    /// Hands over a statement. Returns its rows after the commit.
    pub(super) async fn run(self, statement: Statement) -> Result<Committed<Rows>, NotDone> {
        let Committed { rows, trace } = self.run_all(vec![statement]).await?;
        Ok(Committed { rows: rows.into_iter().next().expect("each statement has its rows"), trace })
    }

    /// Like [`Self::run`], for several statements in order.
    pub(super) async fn run_all(self, statements: Vec<Statement>) -> Result<Committed<Vec<Rows>>, NotDone> {
        let (reply, answer) = oneshot::channel();
        if self.hand_over.send(Part { statements, reply }).is_err() {
            return Err(NotDone::Undone);
        }
        answer.await.unwrap_or_else(|_| Err(NotDone::Unknown(Failure::Lost(sqlx::Error::WorkerCrashed), None)))
    }
}

struct Ticker {
    shared: Arc<TickState>,
    woken: mpsc::Receiver<()>,
    permit: Permit,
    session: Session<Pipeline>,
}

impl Ticker {
    async fn work(mut self) {
        let mut company = Company::default();
        loop {
            match tokio::time::timeout(IDLE_MAX, self.woken.recv()).await {
                Ok(Some(())) => {}
                Ok(None) => break,
                Err(_) => {
                    self.ping().await;
                    continue;
                }
            }
            self.wait_for_members(&company).await;
            company.begin(self.shared.arrivals.so_far());
            let permit = self.permit.clone();
            let held = permit.take().await;
            let parts = self.gather().await;
            if !parts.is_empty() {
                self.tick(parts).await;
            }
            company.end(self.shared.arrivals.so_far());
            drop(held);
        }
        self.session.close().await;
    }

    /// Drops a session that no longer answers.
    async fn ping(&mut self) {
        if self.session.is_connected() {
            // A cancelled ping leaves no connection.
            let ping = self.session.run(async |pipeline: &mut Pipeline| pipeline.ping().await);
            let _ = tokio::time::timeout(PING_MAX, ping).await;
        }
    }

    /// Lets just-answered operations re-enter and their callers send the next requests, unless many
    /// members wait or there is a single caller.
    async fn wait_for_members(&self, company: &Company) {
        let arrivals = &self.shared.arrivals;
        if company.is_alone(arrivals.so_far()) {
            return;
        }
        for _ in 0..ROUNDS_MAX {
            tokio::task::yield_now().await;
            if company.waiting(arrivals.so_far()) >= MEMBERS_ENOUGH {
                return;
            }
        }
    }

    async fn gather(&self) -> Vec<Part> {
        let common = Arc::<Mutex<Common>>::default();
        let mut parts = Vec::new();
        for kind in Kind::ALL {
            let (hand_over, part) = oneshot::channel();
            let turn = Turn { common: Arc::clone(&common), readiness: Readiness::HasMembers, hand_over };
            if self.invite(kind, turn)
                // The operation answers at once, or drops its turn.
                && let Ok(part) = part.await
            {
                parts.push(part);
            }
        }
        parts
    }

    fn invite(&self, kind: Kind, mut turn: Turn) -> bool {
        let creates = !turn.common().claimable.is_empty();
        let mut seats = self.shared.seats();
        let seat = &mut seats[kind as usize];
        match seat.take_if(|waiting| creates || waiting.readiness == Readiness::HasMembers) {
            // Sent under the lock: a closing seat finds its turn or is not invited.
            Some(waiting) => {
                turn.readiness = waiting.readiness;
                waiting.invite.send(turn).is_ok()
            }
            None => false,
        }
    }

    async fn tick(&mut self, parts: Vec<Part>) {
        let started = Instant::now();
        let (mut statements, mut replies, mut spoiler) = (Vec::new(), Vec::with_capacity(parts.len()), None);
        for Part { statements: own, reply } in parts {
            statements.extend(own);
            replies.push(Reply { reply, end: statements.len() });
        }
        let ran = self
            .session
            .run(async |pipeline: &mut Pipeline| {
                pipeline.run(&statements).await.map_err(|undone| {
                    spoiler = undone.at;
                    undone.error
                })
            })
            .await;
        metrics::histogram!("tenure_tick_statements").record(statements.len() as f64);
        metrics::histogram!("tenure_tick_seconds").record(started.elapsed());
        match ran {
            Ok(rows) => {
                let trace = traces::begin_tick(started, statements.len());
                let mut rows = rows.into_iter().enumerate().peekable();
                for Reply { reply, end } in replies {
                    let own = std::iter::from_fn(|| rows.next_if(|(place, _)| *place < end)).map(|(_, rows)| rows);
                    // A dropped operation has no callers left.
                    drop(reply.send(Ok(Committed { rows: own.collect(), trace: trace.clone() })));
                }
            }
            Err(failure) => self.fail(&failure, spoiler, replies),
        }
    }

    fn fail(&self, failure: &Failure, spoiler: Option<usize>, replies: Vec<Reply>) {
        let alone = replies.len() == 1;
        if !alone {
            tracing::debug!(error = %failure.error(), spoiler, "a tick was not committed");
        }
        let mut start = 0;
        for Reply { reply, end } in replies {
            let is_spoiler = spoiler.is_some_and(|place| (start..end).contains(&place));
            start = end;
            let why = match failure {
                Failure::NotRun(_) | Failure::Lost(_) => NotDone::Unknown(failure.repeat(), self.session.backend()),
                // An error not from the database leaves it open whether the tick committed.
                Failure::Fault(error) if error.as_database_error().is_none() => {
                    NotDone::Unknown(failure.repeat(), self.session.backend())
                }
                Failure::BadData(_) | Failure::Again(_) | Failure::Fault(_) if is_spoiler && !alone => NotDone::Spoiled,
                Failure::BadData(_) | Failure::Again(_) | Failure::Fault(_) => NotDone::Undone,
            };
            drop(reply.send(Err(why)));
        }
    }
}
