//! Coalescing: requests that arrive together share a statement, and statements that are due together a transaction.
//!
//! A [`Batcher`] is a bounded queue and one task, for each loop of ticks. The task takes everything that is waiting, runs it as one batch,
//! and answers each caller. There is no timer, but for what is in no hurry: a batch is whatever arrived while the last one was in flight.
//! Members whose rows are locked, and members that are large, go to the blocking path, one per transaction.
//!
//! Batches that write are parts of ticks: [`tick`]. One that cannot be, or whose statement has undone its tick, is run by itself on a
//! session of its operation, which also reads what diagnosing a tick's rows needs. A [`tick::Permit`] has one of all these of a loop at
//! a time: while one is committed, the members of the others gather, and commits are fewer.

mod blocking_path;
mod claimer;
mod company;
pub mod delivery;
pub mod due_marks;
mod figures;
mod limited;
pub mod low_water_marks;
pub mod message_queue;
mod order;
mod safe_position;
pub mod session;
pub mod tick;
pub mod wait_list;
mod waiting;
pub mod watch;

pub use session::Session;

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::essential;
use crate::failure::{Failure, OpError};
use crate::notifiers::{Effects, Notifiers};
use crate::route::Route;
use blocking_path::BlockingPath;
use figures::Figures;
use tenure_store::connector::Connector;
use tenure_store::failure::is_lost_connection;
use tenure_store::hot::statement::{Rows, Run, Statement};
use tenure_store::outage;
use tick::{APART, Arrivals, Kind, NotDone, Permit, Seat, TickLoop, Ticks, Turn};
use waiting::{Waiting, Weight};

/// Bytes that a member counts for, apart from a body.
pub const SMALL: usize = 64;
/// Maximum number of members of one batch.
pub const BATCH_MEMBERS_MAX: usize = 200;
/// Members that are passed over for one batch because it has their tasks already: those after them do not wait for them.
const HELD_OVER_MAX: usize = 2_000;
/// Bytes of the bodies in one batch; a larger member goes alone.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Bytes of the bodies that one operation may hold, from the request to its answer, in the blocking path too.
pub const WAITING_BYTES_MAX: usize = 128 << 20;

/// A batch with so many ordinary members is divided in a tick, so that they do without the clauses for the others. For fewer a
/// statement more costs as much as it saves.
pub const DIVIDED_MIN: usize = 20;
/// Dependencies of the members of one batch; a member with more goes alone.
pub const BATCH_EDGES_MAX: usize = 2_000;

/// An operation that is coalesced.
pub trait Operation: Send + Sync + 'static {
    /// One request.
    type Member: Send + Sync + 'static;
    /// The result of one request.
    type Answer: Send + 'static;
    /// Its name in metrics and logs.
    const NAME: &'static str;
    /// Members that may wait. Under overload creates are shed before reports, so that claimed runs are finished.
    const WAITING_MAX: usize;
    /// Whether it only reads, so that it may be run again when the connection was lost under it.
    const READ_ONLY: bool = false;

    /// How long a member waits for others to share its batch. For what is frequent and in no hurry.
    fn gather(member: &Self::Member) -> Duration {
        let _ = member;
        Duration::ZERO
    }

    /// Bytes that a member counts for.
    fn weight(member: &Self::Member) -> usize {
        let _ = member;
        SMALL
    }

    /// How many dependencies a member has.
    fn edges(member: &Self::Member) -> usize {
        let _ = member;
        0
    }

    /// The task or the message that a member changes, if any. Two members with the same one never share a batch: a
    /// transaction does not skip its own locks.
    fn task(member: &Self::Member) -> Option<Uuid>;

    /// What decides which loop a member goes through.
    fn route(member: &Self::Member) -> Route {
        Self::task(member).map_or(Route::ANY, Route::of_task)
    }

    /// Its part of a tick; none if its batches are never a part of one. Then one loop has them all.
    const KIND: Option<Kind> = None;
    /// What its statement answers with.
    type Found: Default + Send;

    /// The statement of a batch as a part of a tick, if it may be one.
    fn statement(&self, members: &[&Self::Member]) -> Option<Statement> {
        let _ = members;
        None
    }

    /// Whether a statement with this member takes more time for each of its members.
    fn is_special(&self, member: &Self::Member) -> bool {
        let _ = member;
        false
    }

    /// A queue in which a member makes a run claimable, if nothing speaks against it.
    fn claimable(member: &Self::Member) -> Option<i32> {
        let _ = member;
        None
    }

    /// Decodes the rows of the statement of these members, after the commit. What is never a part of a tick does without this and
    /// `judge`.
    fn decode(
        &self,
        members: &[&Self::Member],
        rows: &Rows,
        effects: &mut Effects,
    ) -> Result<Self::Found, sqlx::Error> {
        let _ = (members, rows, effects);
        Ok(Self::Found::default())
    }

    /// One verdict for each member, by what was found and, for those that were left out, by reads.
    fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&Self::Member],
        found: Self::Found,
    ) -> impl Future<Output = Result<Vec<Verdict<Self::Answer>>, sqlx::Error>> + Send {
        let _ = (conn, found);
        async move { Ok(members.iter().map(|_| Verdict::Again).collect()) }
    }

    /// Runs a batch by itself; one verdict for each member. Changes that others wait for go into `effects`, which are applied after
    /// the commit. Without an own version the statement of the batch is the transaction.
    fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Self::Member],
        effects: &mut Effects,
    ) -> impl Future<Output = Result<Vec<Verdict<Self::Answer>>, sqlx::Error>> + Send {
        let statement = self.statement(members).expect("what is never a part of a tick runs by itself");
        async move {
            let rows = conn.run_one(&statement).await?;
            let found = self.decode(members, &rows, effects)?;
            self.judge(conn, members, found).await
        }
    }

    /// Waits for the locks that made a member miss its batch, and takes them. Nothing to do where no verdict is "locked", or where the
    /// statement waits by itself.
    fn wait(
        &self,
        conn: &mut PgConnection,
        member: &Self::Member,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (conn, member);
        std::future::ready(Ok(()))
    }
}

/// The outcome of a member.
#[derive(Debug)]
pub enum Verdict<A> {
    Done(A),
    Refused(OpError),
    /// Another transaction holds its rows.
    Locked,
    /// The statement in the tick leaves such members to one that the operation runs by itself.
    Again,
}

struct Job<O: Operation> {
    member: O::Member,
    reply: oneshot::Sender<Result<O::Answer, OpError>>,
    since: Instant,
    /// Counted for as long as the member is in memory, wherever it waits.
    _weight: Weight,
}

impl<O: Operation> Job<O> {
    fn answer(self, result: Result<O::Answer, OpError>) {
        // The caller may have disconnected: the change is committed, and a repeat gets the same answer.
        drop(self.reply.send(result));
    }
}

struct Queue<O: Operation> {
    jobs: mpsc::Sender<Job<O>>,
    arrivals: Arrivals,
}

/// The sending side of a coalesced operation: what request handlers use.
pub struct Batcher<O: Operation> {
    /// One for each loop that has members.
    queues: Vec<Queue<O>>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl<O: Operation> Batcher<O> {
    /// Starts the tasks. They end when the batcher is dropped and every waiting member is answered.
    pub fn start(
        operation: O,
        connector: &Connector,
        notifiers: &Notifiers,
        ticks: &Ticks,
        tasks: &TaskTracker,
    ) -> Self {
        let operation = Arc::new(operation);
        let blocking_path = BlockingPath::start(&operation, connector, notifiers, tasks);
        let loops = O::KIND.map_or(ticks.first(), |kind| ticks.loops(kind));
        let waiting = Waiting::default();
        let start = |tick_loop: &TickLoop| {
            let (jobs, inbox) = mpsc::channel(O::WAITING_MAX.div_ceil(loops.len()));
            let worker = Worker {
                operation: Arc::clone(&operation),
                inbox,
                held_over: VecDeque::new(),
                waiting: waiting.clone(),
                session: Session::brief(connector.clone()),
                blocking_path: blocking_path.clone(),
                notifiers: notifiers.clone(),
                permit: tick_loop.permit(),
                seat: O::KIND.map(|kind| tick_loop.seat(kind)),
                apart_until: None,
            };
            essential::spawn(tasks, worker.work());
            Queue { jobs, arrivals: tick_loop.arrivals() }
        };
        Self { queues: loops.iter().map(start).collect(), waiting_bytes: Arc::default() }
    }

    /// Enqueues a member and waits for its answer.
    pub async fn submit(&self, member: O::Member) -> Result<O::Answer, OpError> {
        let weight = O::weight(&member);
        let queue = &self.queues[O::route(&member).among(self.queues.len())];
        let (reply, answer) = oneshot::channel();
        let weight = Weight::take(weight, &self.waiting_bytes);
        let job = weight.map(|weight| Job { member, reply, since: Instant::now(), _weight: weight });
        if job.is_none_or(|job| queue.jobs.try_send(job).is_err()) {
            metrics::counter!("tenure_batch_shed_total", "operation" => O::NAME).increment(1);
            return Err(OpError::Overloaded(O::NAME));
        }
        if O::KIND.is_some() {
            queue.arrivals.count();
        }
        answer.await.unwrap_or(Err(OpError::Unavailable))
    }
}

struct Worker<O: Operation> {
    operation: Arc<O>,
    inbox: mpsc::Receiver<Job<O>>,
    /// Members that could not share the last batch.
    held_over: VecDeque<Job<O>>,
    waiting: Waiting,
    session: Session,
    blocking_path: BlockingPath<O>,
    notifiers: Notifiers,
    permit: Permit,
    seat: Option<Seat>,
    /// Until then its batches are not parts of ticks.
    apart_until: Option<Instant>,
}

impl<O: Operation> Worker<O> {
    async fn work(mut self) {
        let permit = self.permit.clone();
        let mut figures = None;
        while self.has_members().await {
            let turn = self.enter().await;
            // A read commits nothing, and need not wait for what does.
            let alone = turn.is_none() && !O::READ_ONLY;
            let held = if alone { Some(permit.take().await) } else { None };
            let batch = self.next_batch(turn.as_ref());
            if batch.is_empty() {
                // All of them name tasks that this tick has already.
                continue;
            }
            let (figures, waits) = figures.get_or_insert_with(|| Figures::with_waits(O::NAME));
            figures.members.record(batch.len() as f64);
            self.waiting.count(self.inbox.len() + self.held_over.len(), O::NAME);
            let started = Instant::now();
            batch.iter().for_each(|job| waits.record(started.duration_since(job.since)));
            match turn {
                Some(turn) => self.run_in_tick(turn, batch, &permit).await,
                None => self.run(batch).await,
            }
            drop(held);
            figures.seconds.record(started.elapsed());
        }
    }

    /// Waits for the next tick, if this operation takes part in it.
    async fn enter(&mut self) -> Option<Turn> {
        if self.apart_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.apart_until = None;
        self.seat.as_mut()?.enter().await
    }

    /// Runs a batch as a part of a tick, or by itself if it cannot be one or the tick was undone.
    async fn run_in_tick(&mut self, turn: Turn, batch: Vec<Job<O>>, permit: &Permit) {
        let parts = self.divide(batch);
        let statements: Option<Vec<Statement>> =
            parts.iter().map(|part| self.operation.statement(&members(part))).collect();
        let Some(statements) = statements else {
            // The others do not wait for it.
            drop(turn);
            self.run_apart(parts.into_iter().flatten().collect(), permit).await;
            return;
        };
        turn.add_claimable(parts.iter().flatten().filter_map(|job| O::claimable(&job.member)));
        match turn.run_all(statements).await {
            Ok(rows) => {
                let mut again = Vec::new();
                for (part, rows) in parts.into_iter().zip(rows) {
                    again.extend(self.conclude(part, &rows).await);
                }
                self.run_apart(again, permit).await;
            }
            Err(NotDone::Unknown(failure, _)) => fail(parts.into_iter().flatten().collect(), failure),
            Err(why @ (NotDone::Undone | NotDone::Spoiled)) => {
                if matches!(why, NotDone::Spoiled) {
                    self.apart_until = Some(Instant::now() + APART);
                }
                self.run_apart(parts.into_iter().flatten().collect(), permit).await;
            }
        }
    }

    /// The parts of a batch that have a statement each: the ordinary members first, if they are many and there are others.
    fn divide(&self, batch: Vec<Job<O>>) -> Vec<Vec<Job<O>>> {
        let is_special = |job: &Job<O>| self.operation.is_special(&job.member);
        let special = batch.iter().filter(|job| is_special(job)).count();
        if special == 0 || batch.len() - special < DIVIDED_MIN {
            return vec![batch];
        }
        let (special, ordinary) = batch.into_iter().partition(is_special);
        vec![ordinary, special]
    }

    /// Answers the members of a statement that was committed; those that are to be run again.
    async fn conclude(&mut self, part: Vec<Job<O>>, rows: &Rows) -> Vec<Job<O>> {
        let members = members(&part);
        let mut effects = Effects::default();
        let found = self.operation.decode(&members, rows, &mut effects);
        self.notifiers.apply(effects);
        let verdicts = match found {
            Ok(found) => {
                let operation = Arc::clone(&self.operation);
                self.session.run(async |conn| operation.judge(conn, &members, found).await).await
            }
            Err(error) => Err(Failure::new(error)),
        };
        match verdicts {
            Ok(verdicts) => self.answer(part, verdicts),
            Err(failure) => {
                fail(part, failure);
                Vec::new()
            }
        }
    }

    /// Runs a batch by itself when the ticks let it.
    async fn run_apart(&mut self, batch: Vec<Job<O>>, permit: &Permit) {
        if !batch.is_empty() {
            let held = permit.take().await;
            self.run(batch).await;
            drop(held);
        }
    }

    /// Waits for a member; false when the batcher is dropped and all members are done.
    async fn has_members(&mut self) -> bool {
        if self.held_over.is_empty() {
            match self.inbox.recv().await {
                Some(job) => self.gather(job).await,
                None => return false,
            }
        }
        true
    }

    /// Waits for others to share the batch of this member, for as long as none of them is in more of a hurry.
    async fn gather(&mut self, first: Job<O>) {
        let mut until = tokio::time::Instant::now() + O::gather(&first.member);
        self.held_over.push_back(first);
        while tokio::time::Instant::now() < until && self.held_over.len() < BATCH_MEMBERS_MAX {
            let Ok(Some(job)) = tokio::time::timeout_at(until, self.inbox.recv()).await else { return };
            until = until.min(tokio::time::Instant::now() + O::gather(&job.member));
            self.held_over.push_back(job);
        }
    }

    /// Everything that is waiting and may share a statement, and a tick.
    fn next_batch(&mut self, turn: Option<&Turn>) -> Vec<Job<O>> {
        let mut waiting = std::mem::take(&mut self.held_over);
        let mut batch = Vec::new();
        let mut tasks = HashSet::new();
        let (mut bytes, mut edges) = (0, 0);
        while batch.len() < BATCH_MEMBERS_MAX && self.held_over.len() < HELD_OVER_MAX {
            let Some(job) = waiting.pop_front().or_else(|| self.inbox.try_recv().ok()) else { break };
            // What is passed over counts for a later batch.
            let with_it = (bytes + O::weight(&job.member), edges + O::edges(&job.member));
            let fits = with_it.0 <= BATCH_BYTES_MAX && with_it.1 <= BATCH_EDGES_MAX;
            let is_free = |task| turn.map_or_else(|| tasks.insert(task), |turn| turn.take_task(task));
            if !fits && !batch.is_empty() {
                self.held_over.push_back(job);
                break;
            }
            if O::task(&job.member).is_none_or(is_free) {
                (bytes, edges) = with_it;
                batch.push(job);
            } else {
                self.held_over.push_back(job);
            }
        }
        self.held_over.append(&mut waiting);
        batch
    }

    /// Runs a batch, halving it for as long as bad data in some member makes the statement fail.
    async fn run(&mut self, batch: Vec<Job<O>>) {
        let large = |member| O::weight(member) > BATCH_BYTES_MAX || O::edges(member) > BATCH_EDGES_MAX;
        if batch.len() == 1 && large(&batch[0].member) {
            self.blocking_path.take(batch);
            return;
        }
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            match self.attempt(&part).await {
                Ok(verdicts) => {
                    let again = self.answer(part, verdicts);
                    self.blocking_path.take(again);
                }
                Err(Failure::BadData(_)) if part.len() > 1 => {
                    let half = part.split_off(part.len() / 2);
                    parts.extend([half, part]);
                }
                // Some member waits for a lock that a foreign transaction holds: alone, the others do not wait for it.
                Err(Failure::Again(_)) => self.blocking_path.take(part),
                Err(failure) => fail(part, failure),
            }
        }
    }

    /// One attempt, and a second one if the database asks for it or a read has lost its connection.
    async fn attempt(&mut self, part: &[Job<O>]) -> Result<Vec<Verdict<O::Answer>>, Failure> {
        let members = members(part);
        let operation = Arc::clone(&self.operation);
        let mut effects = Effects::default();
        let mut result = self.session.run(async |conn| operation.run(conn, &members, &mut effects).await).await;
        let again = match &result {
            Err(Failure::Again(_)) => true,
            // The session may be from before an outage that is over.
            Err(Failure::Lost(error)) => O::READ_ONLY && is_lost_connection(error) && !outage::is_known(error),
            Ok(_) | Err(Failure::BadData(_) | Failure::NotRun(_) | Failure::Fault(_)) => false,
        };
        if again {
            result = self.session.run(async |conn| operation.run(conn, &members, &mut effects).await).await;
        }
        // Each statement has committed by itself, also when one after it failed.
        self.notifiers.apply(effects);
        result
    }

    /// Answers those that have an answer; the members that are to be run again.
    fn answer(&mut self, part: Vec<Job<O>>, verdicts: Vec<Verdict<O::Answer>>) -> Vec<Job<O>> {
        let (mut locked, mut again) = (Vec::new(), Vec::new());
        for (job, verdict) in part.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Done(answer) => job.answer(Ok(answer)),
                Verdict::Refused(error) => job.answer(Err(error)),
                Verdict::Locked => locked.push(job),
                Verdict::Again => again.push(job),
            }
        }
        self.blocking_path.take(locked);
        again
    }
}

fn members<O: Operation>(batch: &[Job<O>]) -> Vec<&O::Member> {
    batch.iter().map(|job| &job.member).collect()
}

/// Answers all of them with what their batch failed by.
fn fail<O: Operation>(batch: Vec<Job<O>>, failure: Failure) {
    let error = failure.report(O::NAME);
    for job in batch {
        job.answer(Err(error.clone()));
    }
}
