//! The engine of one server: what claims, creates, resolves and watches tasks, without HTTP and without callers' rights.
//!
//! One handle owns the coalesced operations, the wait list of claimWork, the notifiers, the passes' memory and what is
//! remembered of the database. Handlers, passes and tests hold the same handle; nothing else assembles these parts.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::background::workers::CountedQueues;
use crate::background::{driver, elsewhere, groups, removals, watched};
use crate::batch::Batcher;
use crate::batch::claim_line::{self, ClaimLine};
use crate::batch::delivery::HandBack;
use crate::batch::marks::MarkTable;
use crate::batch::message_queue::MessageQueue;
use crate::blobs::Blobs;
use crate::clock::ClockSkew;
use crate::events::tail::Tail;
use crate::ops::create_task::CreateTask;
use crate::ops::messages::{DeleteMessages, GetMessages};
use crate::ops::reclaim::Reclaim;
use crate::ops::report::ReportRun;
use crate::ops::status::ReadStatus;
use crate::remembered::Facts;
use crate::remembered::registry::Registry;
use crate::wakeup::Bells;
use crate::workers::Workers;
use tenure_store::queues::Queues;

/// How the engine reaches its database.
pub struct Database {
    /// For sessions of the coalesced operations.
    pub options: PgConnectOptions,
    /// For the session that claims. A test may give it another way, which it can cut.
    pub claim_options: PgConnectOptions,
    /// For everything else.
    pub pool: PgPool,
}

/// Times that the engine is configured with.
#[derive(Debug, Clone, Copy)]
pub struct EngineSettings {
    /// How long a claim is good for, unless it is renewed.
    pub claim_timeout: Duration,
    /// How long claimWork leaves a run alone whose message was got.
    pub poll_reservation: Duration,
    /// How long a message is hidden from other pollers.
    pub message_visibility: Duration,
    /// How long events are retained.
    pub event_retention: Duration,
}

/// What ends the engine's tasks.
pub struct Lifetime {
    /// Where the engine's tasks run.
    pub tasks: TaskTracker,
    /// Cancelled when the passes are to end. Batchers end when the last handle is dropped.
    pub stop: CancellationToken,
    /// Cancelled when the server drains: requests that wait are answered empty.
    pub drain: CancellationToken,
}

/// One server's engine. Its batchers end when the last reference is dropped.
pub struct Engine {
    /// Cold statements.
    pub pool: PgPool,
    /// Times.
    pub settings: EngineSettings,
    /// Keys of queues.
    pub queues: Queues,
    /// Wakes what waits for the changes of a transaction.
    pub bells: Bells,
    /// Low-water marks.
    pub marks: MarkTable,
    /// The workers that this server sees, and those that are quarantined.
    pub workers: Workers,
    /// Artifacts' bytes.
    pub blobs: Blobs,
    /// How far the database's clock is ahead of this machine's, as it was measured last.
    pub skew: ClockSkew,
    /// What the groups pass remembers.
    pub witnesses: groups::GroupMemory,
    /// The small facts that every server remembers.
    pub facts: Facts,
    /// Everything that is remembered from the database, to drop all of it at once.
    pub remembered: Registry,
    /// Queues whose workers were counted the last time.
    pub counted_queues: CountedQueues,
    /// Where undelivered claims go.
    pub back: HandBack,
    /// createTask.
    pub create: Batcher<CreateTask>,
    /// reclaimTask.
    pub reclaim: Batcher<Reclaim>,
    /// The three reports.
    pub report: Batcher<ReportRun>,
    /// status.
    pub status: Batcher<ReadStatus>,
    /// claimWork.
    pub line: ClaimLine,
    /// Getting messages.
    pub messages: MessageQueue,
    /// Deleting messages.
    pub delete_messages: Batcher<DeleteMessages>,
    /// The newest events, for streams.
    pub tail: Tail,
}

impl Engine {
    /// Starts the operations. No pass runs before [`run_passes`].
    #[must_use]
    pub fn start(database: Database, settings: EngineSettings, blobs: Blobs, lifetime: &Lifetime) -> Arc<Self> {
        let Database { options, claim_options, pool } = database;
        let Lifetime { tasks, stop, drain } = lifetime;
        let (bells, queues, marks) = (Bells::default(), Queues::default(), MarkTable::default());
        let facts = Facts::new(pool.clone());
        let workers = Workers::new(facts.quarantines());
        removals::follow(&facts, &bells);
        let back = HandBack::start(&options, bells.clone(), tasks, stop.clone());
        let line = claim_line::Parts {
            database: claim_options,
            pool: pool.clone(),
            queues: queues.clone(),
            marks: marks.clone(),
            bells: bells.clone(),
            back: back.clone(),
            term: settings.claim_timeout,
            workers: workers.clone(),
        };
        let term = settings.claim_timeout;
        let reclaim = Reclaim { queues: queues.clone(), pool: pool.clone(), term, workers: workers.clone() };
        let report = ReportRun { queues: queues.clone(), pool: pool.clone() };
        let get_messages = GetMessages { marks: marks.clone(), reservation: settings.poll_reservation };
        let delete_messages = DeleteMessages { visibility: settings.message_visibility };
        let engine = Self {
            create: Batcher::start(CreateTask, &options, &bells, tasks),
            reclaim: Batcher::start(reclaim, &options, &bells, tasks),
            report: Batcher::start(report, &options, &bells, tasks),
            status: Batcher::start(ReadStatus, &options, &bells, tasks),
            line: ClaimLine::start(line, tasks, drain.clone()),
            messages: MessageQueue::new(Batcher::start(get_messages, &options, &bells, tasks), bells.clone()),
            delete_messages: Batcher::start(delete_messages, &options, &bells, tasks),
            tail: Tail::start(pool.clone(), bells.clone(), tasks, drain.clone()),
            skew: ClockSkew::default(),
            witnesses: groups::GroupMemory::default(),
            facts,
            remembered: Registry::default(),
            counted_queues: CountedQueues::default(),
            pool,
            settings,
            queues,
            bells,
            marks,
            workers,
            blobs,
            back,
        };
        engine.register();
        Arc::new(engine)
    }

    /// Everything that the engine remembers from the database. Nothing of it holds a front of a batcher.
    fn register(&self) {
        let Self { remembered, queues, marks, facts, witnesses, tail, bells, .. } = self;
        let empty = self.messages.memory();
        remembered.add("queue keys", on(queues, Queues::drop_all));
        remembered.add("low-water marks", on(marks, MarkTable::drop_all));
        remembered.add("empty message queues", move || empty.drop_all());
        remembered.add("facts", on(facts, Facts::drop_all));
        remembered.add("unresolved tasks of groups", on(witnesses, groups::GroupMemory::drop_all));
        remembered.add("newest events", on(tail, Tail::drop_all));
        // Whether any task waits for another one: the pass finds out again.
        remembered.add("dependents", on(bells, |bells| bells.expect_dependents(true)));
    }
}

/// What drops a memory, of which it holds a clone.
fn on<T: Clone, F: Fn(&T)>(memory: &T, drop: F) -> impl Fn() + use<T, F> {
    let memory = memory.clone();
    move || drop(&memory)
}

/// Starts the passes, and what carries notifications to and from the other servers of the database.
pub fn run_passes(engine: &Arc<Engine>, listener: &PgConnectOptions, lifetime: &Lifetime) {
    let Lifetime { tasks, stop, .. } = lifetime;
    let (pool, bells, me) = (&engine.pool, &engine.bells, Uuid::new_v4());
    driver::start(engine, tasks, stop);
    tasks.spawn(watched::look(pool.clone(), bells.clone(), stop.clone()));
    tasks.spawn(elsewhere::listen(listener.clone(), bells.clone(), me, stop.clone()));
    tasks.spawn(elsewhere::notify(pool.clone(), bells.clone(), me, stop.clone()));
}
