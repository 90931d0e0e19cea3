//! One transaction a tick: what waits for any hot statement is sent at once and committed together.
//!
//! Each operation has a `Seat`. When it has members it enters, and the next tick invites it: in the order of [`Kind`] each
//! hands over its statement, all of them are sent as one transaction, and each gets its rows after the commit. One flush is
//! for all of them, and a claim sees what its own tick has created. A statement that is alone commits by itself. There is
//! no timer: a tick is what was waiting when the last one ended, and what the requests bring that are in work by then.
//!
//! A server may run several loops of ticks at a time, some of them for creates and for claims of what they create. Each has seats, a
//! permit and a session of its own; [`Route`](crate::route::Route) has what must not overlap go through the same one.
//!
//! What a tick does not do is left to the operations: they judge the rows, and run a batch by themselves when a statement
//! has failed and all of them were undone with it. The [`Permit`] keeps such a batch and a tick apart.

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
use tenure_store::connector::Connector;
use tenure_store::hot::pipeline::Pipeline;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::session::Backend;

/// How long an operation runs its batches by itself after a statement of it has undone a tick.
pub(super) const APART: Duration = Duration::from_secs(1);

/// With so many members a tick does not wait for more: while it is committed, this server would have nothing to do.
const MEMBERS_ENOUGH: u64 = 64;
/// After so long without a tick it is seen whether the session can still be used: what is between may have forgotten it.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long that may take; then the next tick connects anew.
const PING_MAX: Duration = Duration::from_secs(3);
/// How often everything that is ready on this thread runs, and mostly what has arrived is read, before a tick with fewer members begins.
/// In each of these rounds the runtime may wake another thread in vain.
const ROUNDS_MAX: usize = 8;

/// The kinds of statements that share ticks. A tick runs them in this order, which is the lock order: only a create ever
/// waits, and nothing is locked before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// New tasks.
    Create,
    /// Reports.
    End,
    /// Renewals of claims.
    Renew,
    /// Claims of the wait list.
    Claim,
    /// Getting messages.
    GetMessages,
    /// Deleting messages.
    DeleteMessages,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Create, Self::End, Self::Renew, Self::Claim, Self::GetMessages, Self::DeleteMessages];
}

/// One batch that writes at a time, first come first served.
#[derive(Clone, Default)]
pub struct Permit(Arc<tokio::sync::Mutex<()>>);

impl Permit {
    /// Waits for it. Members are taken from their queue only while it is held.
    pub(super) async fn take(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.lock().await
    }
}

/// Where operations get their seats. The ticks end when this and all seats are dropped.
pub struct Ticks {
    sessions: HotSessions,
    loops: Vec<TickLoop>,
}

/// One loop, which runs ticks one after the other.
pub(super) struct TickLoop {
    shared: Arc<Shared>,
    wake: mpsc::Sender<()>,
    permit: Permit,
}

#[derive(Default)]
struct Shared {
    /// Of each kind: the operation that waits to be invited.
    seats: Mutex<[Option<Waiting>; Kind::ALL.len()]>,
    arrivals: Arrivals,
}

/// Counts the members that were submitted for ticks.
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

impl Shared {
    fn seats(&self) -> MutexGuard<'_, [Option<Waiting>; Kind::ALL.len()]> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Waiting {
    invite: oneshot::Sender<Turn>,
    entry: Entry,
}

/// When an operation is invited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    HasMembers,
    /// It has some if tasks are created.
    IfTasksAreCreated,
}

impl Ticks {
    /// Starts the tasks that run the ticks, each on a session of its own.
    #[must_use]
    pub fn start(connector: &Connector, sessions: HotSessions, tasks: &TaskTracker) -> Self {
        Self { sessions, loops: (0..sessions.count()).map(|_| TickLoop::start(connector, tasks)).collect() }
    }

    /// Has everything wait that writes, until what this returns is dropped.
    #[cfg(feature = "test-util")]
    pub async fn hold(&self) -> Vec<tokio::sync::MutexGuard<'_, ()>> {
        futures_util::future::join_all(self.loops.iter().map(|one| one.permit.take())).await
    }

    /// The loops that a kind goes through.
    pub(super) fn loops(&self, kind: Kind) -> &[TickLoop] {
        &self.loops[match kind {
            Kind::Create => self.sessions.of_creates(),
            Kind::End | Kind::Renew | Kind::Claim | Kind::GetMessages | Kind::DeleteMessages => {
                self.sessions.of_workers()
            }
        }]
    }

    /// The seats of what claims in one of its loops.
    pub(super) fn claim_seats(&self, place: usize) -> ClaimSeats {
        let creates = self.loops(Kind::Create).get(place).filter(|_| self.sessions.count() > 1);
        let creates = creates.map(|tick_loop| tick_loop.seat(Kind::Claim));
        ClaimSeats { own: self.loops(Kind::Claim)[place].seat(Kind::Claim), creates }
    }

    /// The one for what is never a part of a tick.
    pub(super) fn first(&self) -> &[TickLoop] {
        &self.loops[..1]
    }
}

impl TickLoop {
    fn start(connector: &Connector, tasks: &TaskTracker) -> Self {
        let shared = Arc::<Shared>::default();
        // One request to look is as good as many.
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

    /// The seat of the one operation of this kind.
    pub(super) fn seat(&self, kind: Kind) -> Seat {
        Seat { kind, shared: Arc::clone(&self.shared), wake: self.wake.clone(), invitation: None }
    }
}

/// Where an operation waits for a tick.
pub(super) struct Seat {
    kind: Kind,
    shared: Arc<Shared>,
    wake: mpsc::Sender<()>,
    invitation: Option<oneshot::Receiver<Turn>>,
}

impl Seat {
    /// Waits for the next tick, because there are members. None if there will be no tick.
    pub(super) async fn enter(&mut self) -> Option<Turn> {
        self.open(Entry::HasMembers);
        self.invited().await
    }

    /// From now on a tick that creates tasks invites this operation, until it closes its seat.
    pub(super) fn open_for_creates(&mut self) {
        self.open(Entry::IfTasksAreCreated);
    }

    fn open(&mut self, entry: Entry) {
        let (invite, invitation) = oneshot::channel();
        self.invitation = Some(invitation);
        self.shared.seats()[self.kind as usize] = Some(Waiting { invite, entry });
        if entry == Entry::HasMembers {
            // Full: it is going to look.
            let _ = self.wake.try_send(());
        }
    }

    /// The turn that this operation was invited to. What is dropped while it waits loses nothing.
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

    /// Is not invited any more. The turn, if it was just then.
    pub(super) fn close(&mut self) -> Option<Turn> {
        drop(self.shared.seats()[self.kind as usize].take());
        self.invitation.take()?.try_recv().ok()
    }
}

/// Where claims wait for ticks: in their own loop, and while nothing can be claimed in one that creates tasks, so that a run is claimed
/// by the tick that creates it. That is the same seat if there is only one loop, or none for creates that belongs to theirs.
pub(super) struct ClaimSeats {
    own: Seat,
    creates: Option<Seat>,
}

impl ClaimSeats {
    fn creates(&mut self) -> &mut Seat {
        self.creates.as_mut().unwrap_or(&mut self.own)
    }

    /// As [`Seat::enter`], in their own loop.
    pub(super) async fn enter(&mut self) -> Option<Turn> {
        self.own.enter().await
    }

    /// As [`Seat::open_for_creates`].
    pub(super) fn open_for_creates(&mut self) {
        self.creates().open_for_creates();
    }

    /// As [`Seat::invited`], by a tick that creates.
    pub(super) async fn invited(&mut self) -> Option<Turn> {
        self.creates().invited().await
    }

    /// As [`Seat::close`], of what was opened for creates.
    pub(super) fn close(&mut self) -> Option<Turn> {
        self.creates().close()
    }
}

/// What the members of a tick have in common.
#[derive(Default)]
struct Common {
    tasks: HashSet<Uuid>,
    claimable: HashSet<i32>,
}

/// An operation's part of a tick, which waits for it: it is used or dropped at once.
pub(super) struct Turn {
    common: Arc<Mutex<Common>>,
    entry: Entry,
    hand_over: oneshot::Sender<Part>,
}

struct Part {
    statements: Vec<Statement>,
    reply: oneshot::Sender<Result<Vec<Rows>, NotDone>>,
}

/// Who waits for the rows of the statements before this end, and after those of the reply before it.
struct Reply {
    reply: oneshot::Sender<Result<Vec<Rows>, NotDone>>,
    end: usize,
}

/// Why there are no rows.
#[derive(Debug)]
pub(super) enum NotDone {
    /// Nothing happened, because of another statement or without one that is to blame: it is run by itself.
    Undone,
    /// Nothing happened to the whole tick because of this statement.
    Spoiled,
    /// It may have happened, on this backend; or there was no session to run it on.
    Unknown(Failure, Option<Backend>),
}

impl Turn {
    fn common(&self) -> MutexGuard<'_, Common> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it came only because tasks are created: what waits has been tried before, and will be again.
    pub(super) fn is_for_creates(&self) -> bool {
        self.entry == Entry::IfTasksAreCreated
    }

    /// Whether no other member of this tick names this task; from now on one does.
    pub(super) fn take_task(&self, task: Uuid) -> bool {
        self.common().tasks.insert(task)
    }

    /// Says in which queues this part makes runs claimable.
    pub(super) fn add_claimable(&self, queues: impl IntoIterator<Item = i32>) {
        self.common().claimable.extend(queues);
    }

    /// The queues in which the parts before this one make runs claimable.
    pub(super) fn claimable(&self) -> Vec<i32> {
        self.common().claimable.iter().copied().collect()
    }

    /// Hands over a statement; its rows after the commit.
    pub(super) async fn run(self, statement: Statement) -> Result<Rows, NotDone> {
        let rows = self.run_all(vec![statement]).await?;
        Ok(rows.into_iter().next().expect("each statement has its rows"))
    }

    /// The same for several, one after the other.
    pub(super) async fn run_all(self, statements: Vec<Statement>) -> Result<Vec<Rows>, NotDone> {
        let (reply, answer) = oneshot::channel();
        if self.hand_over.send(Part { statements, reply }).is_err() {
            return Err(NotDone::Undone);
        }
        answer.await.unwrap_or_else(|_| Err(NotDone::Unknown(Failure::Lost(sqlx::Error::WorkerCrashed), None)))
    }
}

struct Ticker {
    shared: Arc<Shared>,
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

    /// Lets go of a session that does not answer any more.
    async fn ping(&mut self) {
        if self.session.is_connected() {
            // Dropped half-way it leaves no connection.
            let ping = self.session.run(async |pipeline: &mut Pipeline| pipeline.ping().await);
            let _ = tokio::time::timeout(PING_MAX, ping).await;
        }
    }

    /// Lets the operations that the last tick has answered enter again, and the callers that it has answered send their next
    /// requests, unless many members are there, or there is one caller.
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

    /// The parts of this tick, in order.
    async fn gather(&self) -> Vec<Part> {
        let common = Arc::<Mutex<Common>>::default();
        let mut parts = Vec::new();
        for kind in Kind::ALL {
            let (hand_over, part) = oneshot::channel();
            let turn = Turn { common: Arc::clone(&common), entry: Entry::HasMembers, hand_over };
            if self.invite(kind, turn)
                // It answers at once; one that has changed its mind drops its turn.
                && let Ok(part) = part.await
            {
                parts.push(part);
            }
        }
        parts
    }

    /// Whether there was something to invite.
    fn invite(&self, kind: Kind, mut turn: Turn) -> bool {
        let creates = !turn.common().claimable.is_empty();
        let mut seats = self.shared.seats();
        let seat = &mut seats[kind as usize];
        match seat.take_if(|waiting| creates || waiting.entry == Entry::HasMembers) {
            // Sent while the seats are locked: one that closes its seat finds the turn or is not invited.
            Some(waiting) => {
                turn.entry = waiting.entry;
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
                let mut rows = rows.into_iter().enumerate().peekable();
                for Reply { reply, end } in replies {
                    let own = std::iter::from_fn(|| rows.next_if(|(place, _)| *place < end)).map(|(_, rows)| rows);
                    // An operation that is gone has no callers left.
                    drop(reply.send(Ok(own.collect())));
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
                // What the database did not say itself is no word on whether it was committed.
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
