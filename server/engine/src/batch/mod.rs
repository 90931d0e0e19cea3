//! Coalescing: concurrent requests share a statement, and concurrent statements a transaction.
//!
//! A [`Batcher`] is a bounded queue and one task per tick loop. The task runs as one batch all
//! members that arrived while the previous batch was in flight. Only members in no hurry
//! ([`Operation::gather`]) wait on a timer. Members that are large or whose rows are locked go to
//! the blocking path, one per transaction.
//!
//! Batches that write are parts of ticks: [`tick`]. A batch that cannot join a tick, or whose
//! statement undid its tick, runs on its operation's session. That session also serves the reads
//! that diagnose a tick's rows. A [`tick::Permit`] admits one such batch or tick per loop at a
//! time. Members gather during its commit, so there are fewer commits.

mod blocking_path;
mod claim_list;
mod claimer;
mod company;
pub mod continuity_check;
pub mod delivery;
pub mod due_marks;
mod figures;
mod limited;
pub mod low_water_marks;
pub mod message_queue;
mod order;
mod safe_position;
pub mod session;
mod shares;
pub mod tick;
pub mod wait_list;
mod waiting;

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
use crate::traces::{self, RequestSpan, TickSpan, TickTrace};
use blocking_path::BlockingPath;
use figures::Figures;
use tenure_store::connector::Connector;
use tenure_store::failure::is_lost_connection;
use tenure_store::hot::statement::{Rows, Run, Statement};
use tenure_store::outage;
use tick::{APART, Arrivals, Committed, Kind, NotDone, Permit, Seat, TickLoop, Ticks, Turn};
use waiting::{Waiting, Weight};

/// Weight of a member without a body, in bytes.
pub const SMALL: usize = 64;
/// Members per batch.
pub const BATCH_MEMBERS_MAX: usize = 200;
/// Members held over per batch because it already has their tasks.
const HELD_OVER_MAX: usize = 2_000;
/// Bytes of bodies per batch. A larger member runs alone.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Bytes of bodies held by one operation from request to answer, blocking path included.
pub const WAITING_BYTES_MAX: usize = 128 << 20;

/// In a tick, a batch with this many ordinary members is divided: they skip the clauses for special
/// ones. Below it, another statement costs as much as it saves.
pub const DIVIDED_MIN: usize = 20;
/// Dependencies per batch. A member with more runs alone.
pub const BATCH_EDGES_MAX: usize = 2_000;

pub trait Operation: Send + Sync + 'static {
    type Member: Send + Sync + 'static;
    type Answer: Send + 'static;
    /// Name in metrics and logs.
    const NAME: &'static str;
    /// Capacity of the queue. Under overload, creates are shed before reports, so that claimed runs
    /// finish.
    const WAITING_MAX: usize;
    /// True for reads, which may be repeated after a lost connection.
    const READ_ONLY: bool = false;
    /// Bytes of bodies per batch.
    const BYTES_MAX: usize = BATCH_BYTES_MAX;
    /// True if each member has a statement of its own in a tick.
    const DIVIDED: bool = false;

    /// How long a member waits for others to share its batch. For frequent members in no hurry.
    fn gather(member: &Self::Member) -> Duration {
        let _ = member;
        Duration::ZERO
    }

    /// Weight in bytes.
    fn weight(member: &Self::Member) -> usize {
        let _ = member;
        SMALL
    }

    fn edges(member: &Self::Member) -> usize {
        let _ = member;
        0
    }

    /// The task or message that a member changes. Members with the same id never share a batch: a
    /// transaction does not skip its own locks.
    fn task(member: &Self::Member) -> Option<Uuid>;

    /// Selects the tick loop of a member.
    fn route(member: &Self::Member) -> Route {
        Self::task(member).map_or(Route::ANY, Route::of_task)
    }

    /// Part of a tick; `None` for operations outside ticks, whose members share one loop.
    const KIND: Option<Kind> = None;
    /// Decoded rows of the statement.
    type Decoded: Default + Send;

    /// Returns the statement of a batch in a tick, if it may join one.
    fn statement(&self, members: &[&Self::Member]) -> Option<Statement> {
        let _ = members;
        None
    }

    /// True if this member slows the statement down for every other member.
    fn is_special(&self, member: &Self::Member) -> bool {
        let _ = member;
        false
    }

    /// True if this member needs another statement than the others of its batch, in the same tick.
    fn has_own_statement(&self, member: &Self::Member) -> bool {
        let _ = member;
        false
    }

    /// The queue in which a member may make a run claimable.
    fn claimable(member: &Self::Member) -> Option<i32> {
        let _ = member;
        None
    }

    /// Decodes the statement's rows after the commit. Operations outside ticks need neither this
    /// nor `judge`.
    fn decode(
        &self,
        members: &[&Self::Member],
        rows: &Rows,
        effects: &mut Effects,
    ) -> Result<Self::Decoded, sqlx::Error> {
        let _ = (members, rows, effects);
        Ok(Self::Decoded::default())
    }

    /// Returns one verdict per member, from `found` and, for members it lacks, by reads.
    fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&Self::Member],
        found: Self::Decoded,
    ) -> impl Future<Output = Result<Vec<Verdict<Self::Answer>>, sqlx::Error>> + Send {
        let _ = (conn, found);
        async move { Ok(members.iter().map(|_| Verdict::Again).collect()) }
    }

    /// Runs a batch by itself and returns one verdict per member. `effects` are applied after the
    /// commit. By default the batch's statement is the whole transaction.
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

    /// Returns a statement to run in the tick after those of these members. A batch that runs by
    /// itself goes without it.
    fn follow_up(&self, members: &[&Self::Member]) -> Option<FollowUp> {
        let _ = members;
        None
    }

    /// Decodes the rows of the follow-up after the commit.
    fn decode_follow_up(&self, rows: &Rows, effects: &mut Effects) -> Result<(), sqlx::Error> {
        let _ = (rows, effects);
        Ok(())
    }

    /// True if this member runs by itself, after the tick of the others.
    fn is_apart(&self, member: &Self::Member) -> bool {
        let _ = member;
        false
    }

    /// Waits for the locks that made a member miss its batch, and takes them. Needed only if
    /// verdicts can be `Locked` and the statement does not wait itself.
    fn wait(
        &self,
        conn: &mut PgConnection,
        member: &Self::Member,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (conn, member);
        std::future::ready(Ok(()))
    }
}

#[derive(Debug)]
pub struct FollowUp {
    pub statement: Statement,
    /// Queues in which it may make a run claimable.
    pub claimable: Vec<i32>,
}

#[derive(Debug)]
pub enum Verdict<A> {
    Done(A),
    Refused(OpError),
    Locked,
    /// Left by the tick's statement; the operation runs it by itself.
    Again,
}

struct Job<O: Operation> {
    member: O::Member,
    reply: oneshot::Sender<Result<O::Answer, OpError>>,
    since: Instant,
    /// The recorded request that it is from.
    span: Option<Arc<RequestSpan>>,
    /// Held while the member is in memory.
    _weight: Weight,
}

impl<O: Operation> Job<O> {
    fn answer(self, result: Result<O::Answer, OpError>) {
        // A disconnected caller's change is committed; a repeat gets the same answer.
        drop(self.reply.send(result));
    }
}

struct Queue<O: Operation> {
    jobs: mpsc::Sender<Job<O>>,
    arrivals: Arrivals,
}

pub struct Batcher<O: Operation> {
    queues: Vec<Queue<O>>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl<O: Operation> Batcher<O> {
    /// Starts tasks that end once the batcher is dropped and all waiting members are answered.
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

    pub async fn submit(&self, member: O::Member) -> Result<O::Answer, OpError> {
        let weight = O::weight(&member);
        let queue = &self.queues[O::route(&member).among(self.queues.len())];
        let (reply, answer) = oneshot::channel();
        let weight = Weight::take(weight, &self.waiting_bytes);
        let job = weight.map(|weight| {
            let (since, span) = (Instant::now(), traces::current());
            Job { member, reply, since, span, _weight: weight }
        });
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
    /// Until then batches do not join ticks.
    apart_until: Option<Instant>,
}

impl<O: Operation> Worker<O> {
    async fn work(mut self) {
        let permit = self.permit.clone();
        let mut figures = None;
        while self.has_members().await {
            let turn = self.enter().await;
            // Reads commit nothing and need no permit.
            let alone = turn.is_none() && !O::READ_ONLY;
            let held = if alone { Some(permit.take().await) } else { None };
            let batch = self.next_batch(turn.as_ref());
            if batch.is_empty() {
                // The tick already has the tasks of all members.
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

    async fn enter(&mut self) -> Option<Turn> {
        if self.apart_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.apart_until = None;
        self.seat.as_mut()?.enter().await
    }

    /// Runs a batch in a tick, or by itself if it cannot join or the tick was undone.
    ///
    /// Parts without a statement run by themselves afterwards.
    async fn run_in_tick(&mut self, turn: Turn, batch: Vec<Job<O>>, permit: &Permit) {
        let (mut parts, mut statements) = (Vec::new(), Vec::new());
        let (mut apart, batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|job| self.operation.is_apart(&job.member));
        for part in self.divide(batch) {
            match self.operation.statement(&members(&part)) {
                Some(statement) => {
                    statements.push(statement);
                    parts.push(part);
                }
                None => apart.extend(part),
            }
        }
        if parts.is_empty() {
            // Do not hold up the tick.
            drop(turn);
            self.run_apart(apart, permit).await;
            return;
        }
        turn.add_claimable(parts.iter().flatten().filter_map(|job| O::claimable(&job.member)));
        let all = parts.iter().flatten().map(|job| &job.member);
        let follow_up = self.operation.follow_up(&all.collect::<Vec<_>>());
        let is_followed = follow_up.is_some();
        if let Some(FollowUp { statement, claimable }) = follow_up {
            turn.add_claimable(claimable);
            statements.push(statement);
        }
        match turn.run_all(statements).await {
            Ok(Committed { mut rows, trace }) => {
                if is_followed && let Some(rows) = rows.pop() {
                    self.conclude_follow_up(&rows);
                }
                let mut again = apart;
                for (part, rows) in parts.into_iter().zip(rows) {
                    again.extend(self.conclude(part, &rows, &trace).await);
                }
                drop(trace);
                self.run_apart(again, permit).await;
            }
            Err(NotDone::Unknown(failure, _)) => {
                fail(parts.into_iter().flatten().collect(), failure);
                self.run_apart(apart, permit).await;
            }
            Err(why @ (NotDone::Undone | NotDone::Spoiled)) => {
                if matches!(why, NotDone::Spoiled) {
                    self.apart_until = Some(Instant::now() + APART);
                }
                self.run_apart(parts.into_iter().flatten().chain(apart).collect(), permit).await;
            }
        }
    }

    /// Splits a batch by statement: ordinary members first, if there are many and some special
    /// ones. Those with a statement of their own are last.
    fn divide(&self, batch: Vec<Job<O>>) -> Vec<Vec<Job<O>>> {
        if O::DIVIDED {
            return batch.into_iter().map(|job| vec![job]).collect();
        }
        let (own, batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|job| self.operation.has_own_statement(&job.member));
        let is_special = |job: &Job<O>| self.operation.is_special(&job.member);
        let special = batch.iter().filter(|job| is_special(job)).count();
        let mut parts = if special == 0 || batch.len() - special < DIVIDED_MIN {
            vec![batch]
        } else {
            let (special, ordinary) = batch.into_iter().partition(is_special);
            vec![ordinary, special]
        };
        parts.push(own);
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Concludes a statement that the tick committed, and returns the members to run again.
    async fn conclude(&mut self, part: Vec<Job<O>>, rows: &Rows, tick: &TickTrace) -> Vec<Job<O>> {
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
            Ok(verdicts) => {
                if let Some(tick) = tick {
                    link_done(tick, &part, &verdicts);
                }
                self.answer(part, verdicts)
            }
            Err(failure) => {
                fail(part, failure);
                Vec::new()
            }
        }
    }

    fn conclude_follow_up(&self, rows: &Rows) {
        let mut effects = Effects::default();
        if let Err(error) = self.operation.decode_follow_up(rows, &mut effects) {
            drop(Failure::new(error).report(O::NAME));
        }
        self.notifiers.apply(effects);
    }

    /// Runs a batch by itself once no tick runs.
    async fn run_apart(&mut self, batch: Vec<Job<O>>, permit: &Permit) {
        if !batch.is_empty() {
            let held = permit.take().await;
            self.run(batch).await;
            drop(held);
        }
    }

    /// Waits for a member. False once the batcher is dropped and all members are done.
    async fn has_members(&mut self) -> bool {
        if self.held_over.is_empty() {
            match self.inbox.recv().await {
                Some(job) => self.gather(job).await,
                None => return false,
            }
        }
        true
    }

    /// Waits for others to share the batch, as long as the most urgent member allows.
    async fn gather(&mut self, first: Job<O>) {
        let mut until = tokio::time::Instant::now() + O::gather(&first.member);
        self.held_over.push_back(first);
        while tokio::time::Instant::now() < until && self.held_over.len() < BATCH_MEMBERS_MAX {
            let Ok(Some(job)) = tokio::time::timeout_at(until, self.inbox.recv()).await else { return };
            until = until.min(tokio::time::Instant::now() + O::gather(&job.member));
            self.held_over.push_back(job);
        }
    }

    fn next_batch(&mut self, turn: Option<&Turn>) -> Vec<Job<O>> {
        let mut waiting = std::mem::take(&mut self.held_over);
        let mut batch = Vec::new();
        let mut tasks = HashSet::new();
        let (mut bytes, mut edges) = (0, 0);
        while batch.len() < BATCH_MEMBERS_MAX && self.held_over.len() < HELD_OVER_MAX {
            let Some(job) = waiting.pop_front().or_else(|| self.inbox.try_recv().ok()) else { break };
            // Held-over members do not add to this batch's limits.
            let with_it = (bytes + O::weight(&job.member), edges + O::edges(&job.member));
            let fits = with_it.0 <= O::BYTES_MAX && with_it.1 <= BATCH_EDGES_MAX;
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

    /// Halves the batch while bad data in a member fails the statement.
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
                // A foreign transaction holds a member's lock. Run alone, the others do not wait
                // for it.
                Err(Failure::Again(_)) => self.blocking_path.take(part),
                Err(failure) => fail(part, failure),
            }
        }
    }

    /// Tries once, and again if the database asks for it or a read lost its connection.
    async fn attempt(&mut self, part: &[Job<O>]) -> Result<Vec<Verdict<O::Answer>>, Failure> {
        let members = members(part);
        let operation = Arc::clone(&self.operation);
        let mut effects = Effects::default();
        let mut result = self.session.run(async |conn| operation.run(conn, &members, &mut effects).await).await;
        let again = match &result {
            Err(Failure::Again(_)) => true,
            // The session may predate an outage that is over.
            Err(Failure::Lost(error)) => O::READ_ONLY && is_lost_connection(error) && !outage::is_known(error),
            Ok(_) | Err(Failure::BadData(_) | Failure::NotRun(_) | Failure::Fault(_)) => false,
        };
        if again {
            result = self.session.run(async |conn| operation.run(conn, &members, &mut effects).await).await;
        }
        // Each statement commits by itself, even if a later one fails.
        self.notifiers.apply(effects);
        result
    }

    /// Returns the members to run again.
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

/// Links a tick and the requests that it carried out. Others are refused, or run again outside it.
fn link_done<O: Operation>(tick: &TickSpan, part: &[Job<O>], verdicts: &[Verdict<O::Answer>]) {
    for (job, verdict) in part.iter().zip(verdicts) {
        if let (Verdict::Done(_), Some(span)) = (verdict, &job.span) {
            tick.link(span);
        }
    }
}

fn fail<O: Operation>(batch: Vec<Job<O>>, failure: Failure) {
    let error = failure.report(O::NAME);
    for job in batch {
        job.answer(Err(error.clone()));
    }
}
