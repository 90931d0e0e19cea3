//! The engine of one server, without HTTP and without authorization.
//!
//! One handle owns the batched operations, the wait list of claimWork, the notifiers and the caches
//! of the database. Handlers, passes and tests hold the same handle; nothing else assembles these
//! parts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authority::Authority;
use crate::batch::Batcher;
use crate::batch::delivery::Requeue;
use crate::batch::due_marks::DueMarkMemory;
use crate::batch::low_water_marks::LowWaterMarks;
use crate::batch::message_queue::MessageQueue;
use crate::batch::tick::Ticks;
use crate::batch::wait_list::{Answer, WaitList, WaitListParts};
use crate::blobs::Blobs;
use crate::clock::ClockSkew;
use crate::decision::marks::AdmissionMarks;
use crate::events::sequencer::Sequencer;
use crate::events::tail::Tail;
use crate::gate::Gate;
use crate::heartbeat::Heartbeat;
use crate::live_logs::LiveLogs;
use crate::notifiers::Notifiers;
use crate::ops::bulk_jobs::Counted;
use crate::ops::claim_work;
use crate::ops::create_task::{self, CreateTask};
use crate::ops::live_log::AppendLog;
use crate::ops::messages::{DeleteMessages, GetMessages, PolledQueues};
use crate::ops::partitions::ticks::PartitionTicks;
use crate::ops::queue_policy;
use crate::ops::reclaim::Reclaim;
use crate::ops::report::ReportRun;
use crate::ops::sessions::{self, RenewSession};
use crate::ops::status::ReadStatus;
use crate::ops::submit::{self, SubmissionTicks, SubmitTasks};
use crate::ops::subscriptions;
use crate::ops::task_list;
use crate::ops::why;
use crate::ops::work::{self, Ways, Worked};
use crate::ops::{self, OpError};
use crate::problems::LatestProblems;
use crate::remembered::Facts;
use crate::remembered::registry::Registry;
use crate::reports::Reports;
use crate::route::HotSessions;
use crate::schedulers::Schedulers;
use crate::sessions::{Identities, Outlook, Renewals, Sessions};
use crate::shown_queues::ShownQueues;
use crate::statistics::Statistics;
use crate::task_waits::TaskWaits;
use crate::worker_counts::LatestWorkerCounts;
use crate::workers::Workers;
use tenure_domain::bulk_job::{TASKS_MAX, Which};
use tenure_domain::create::NewTask;
use tenure_domain::task::Task;
use tenure_domain::work::Reported;
use tenure_store::connector::Connector;
use tenure_store::continuity::Continuity;
use tenure_store::queues::Queues;
use tenure_store::servers::Member;
use tenure_store::session::Pools;

/// Clients wait 30 seconds for an answer.
const COUNTING_MAX: Duration = Duration::from_secs(10);

pub struct Database {
    pub connector: Connector,
    /// For sessions that run ticks and claim. A test may route them through a connection that it
    /// can cut.
    pub claim_connector: Connector,
    pub pools: Pools,
}

#[derive(Debug, Clone)]
pub struct EngineSettings {
    pub claim_timeout: Duration,
    /// How long claimWork skips a run whose message was received.
    pub poll_reservation: Duration,
    /// How long a received message is hidden from other pollers.
    pub message_visibility: Duration,
    pub event_retention: Duration,
    pub audit_retention: Duration,
    pub hot_sessions: HotSessions,
    /// Bytes of all live logs together; 0 disables them.
    pub live_log_max: u64,
    /// Maximum of queues that metrics name.
    pub metrics_queues: usize,
    /// Maximum of queues with statistics of their own; all others are added up.
    pub statistics_queues: usize,
    /// Id, name and weight of this server.
    pub member: Member,
}

pub struct Lifetime {
    pub tasks: TaskTracker,
    /// Ends the passes. Batchers end with the last handle.
    pub stop: CancellationToken,
    /// Cancelled when the server drains: waiting requests get empty responses.
    pub drain: CancellationToken,
}

/// Its batchers end with the last reference.
pub struct Engine {
    /// For cold statements of requests.
    pub pool: PgPool,
    /// Also for batched reads of waiting requests.
    pub background_pool: PgPool,
    pub settings: EngineSettings,
    /// Tells whether the database was replaced.
    pub continuity: Continuity,
    pub queues: Queues,
    pub notifiers: Notifiers,
    /// Where claims start scanning.
    pub low_water_marks: LowWaterMarks,
    /// Where passes start scanning for due rows.
    pub due_marks: DueMarkMemory,
    pub admission_marks: AdmissionMarks,
    /// Seen by this server, or quarantined.
    pub workers: Workers,
    pub blobs: Blobs,
    pub skew: ClockSkew,
    /// Tells monitors whether writes commit.
    pub heartbeat: Heartbeat,
    pub schedulers: Schedulers,
    /// The queues that metrics name.
    pub shown_queues: ShownQueues,
    /// What needs somebody.
    pub problems: LatestProblems,
    /// Last runs of the passes of this server.
    pub reports: Reports,
    /// Workers by queue and presence.
    pub worker_counts: LatestWorkerCounts,
    pub facts: Facts,
    /// Opened by the first use of a feature that older servers lack.
    pub gate: Gate,
    /// All caches of the database, to invalidate them together.
    pub remembered: Registry,
    pub requeue: Requeue,
    pub create: Batcher<CreateTask>,
    pub submissions: SubmissionTicks,
    pub reclaim: Batcher<Reclaim>,
    pub report: Batcher<ReportRun>,
    pub status: Batcher<ReadStatus>,
    pub renew_session: Batcher<RenewSession>,
    pub sessions: Sessions,
    pub task_waits: TaskWaits,
    pub partition_ticks: PartitionTicks,
    pub live_logs: LiveLogs,
    pub wait_list: WaitList,
    pub messages: MessageQueue,
    pub polled: PolledQueues,
    pub delete_messages: Batcher<DeleteMessages>,
    pub sequencer: Sequencer,
    pub tail: Tail,
}

impl Engine {
    /// Starts the operations, but no passes.
    #[must_use]
    pub fn start(database: Database, settings: EngineSettings, blobs: Blobs, lifetime: &Lifetime) -> Arc<Self> {
        let Database { connector, claim_connector, pools: Pools { requests, background: pool, lookups } } = database;
        let Lifetime { tasks, stop, drain } = lifetime;
        let (queues, low_water_marks, facts) = (Queues::default(), LowWaterMarks::default(), Facts::new(lookups));
        let notifiers = Notifiers::new(settings.hot_sessions, Statistics::new(settings.statistics_queues));
        let workers = Workers::new(facts.quarantines());
        let (sequencer, polled, lease) = (Sequencer::default(), PolledQueues::default(), settings.claim_timeout);
        let ticks = Ticks::start(&claim_connector, settings.hot_sessions, tasks);
        facts.removals.notify(notifiers.clone());
        let requeue = Requeue::start(&connector, notifiers.clone(), tasks, stop.clone());
        let sessions = Sessions::start(&pool, &notifiers, tasks, drain);
        let parts = WaitListParts {
            connector: claim_connector,
            pool: pool.clone(),
            queues: queues.clone(),
            low_water_marks: low_water_marks.clone(),
            notifiers: notifiers.clone(),
            requeue: requeue.clone(),
            lease,
            workers: workers.clone(),
            end_signals: sessions.end_signals.clone(),
            ticks: &ticks,
            sequenced: sequencer.reader(),
            admission_marks: AdmissionMarks::default(),
        };
        let reclaim = Reclaim { queues: queues.clone(), pool: pool.clone(), lease, workers: workers.clone() };
        let delete = DeleteMessages(settings.message_visibility);
        let report = ReportRun { queues: queues.clone(), pool: pool.clone(), dependents: notifiers.dependent_hints() };
        let get = GetMessages::new(&low_water_marks, settings.poll_reservation, &polled);
        let append = Batcher::start(AppendLog, &connector, &notifiers, &ticks, tasks);
        let engine = Self {
            create: Batcher::start(CreateTask::new(&queues, sequencer.reader()), &connector, &notifiers, &ticks, tasks),
            submissions: SubmissionTicks::new(Batcher::start(SubmitTasks, &connector, &notifiers, &ticks, tasks)),
            reclaim: Batcher::start(reclaim, &connector, &notifiers, &ticks, tasks),
            report: Batcher::start(report, &connector, &notifiers, &ticks, tasks),
            status: Batcher::start(ReadStatus, &connector, &notifiers, &ticks, tasks),
            renew_session: Batcher::start(RenewSession, &connector, &notifiers, &ticks, tasks),
            sessions,
            live_logs: LiveLogs::start(append, &pool, settings.live_log_max, lifetime),
            task_waits: TaskWaits::start(pool.clone(), &notifiers, tasks, drain.clone()),
            partition_ticks: PartitionTicks::start(pool.clone(), notifiers.clone(), tasks),
            wait_list: WaitList::start(&parts, tasks, drain),
            messages: MessageQueue::new(Batcher::start(get, &connector, &notifiers, &ticks, tasks), notifiers.clone()),
            polled,
            sequencer: sequencer.clone(),
            delete_messages: Batcher::start(delete, &connector, &notifiers, &ticks, tasks),
            tail: Tail::start(pool.clone(), sequencer, notifiers.clone(), tasks, drain.clone()),
            heartbeat: Heartbeat::start(&connector, settings.member.id, tasks, stop),
            schedulers: Schedulers::new(settings.member.clone()),
            shown_queues: ShownQueues::new(settings.metrics_queues),
            problems: LatestProblems::default(),
            reports: Reports::default(),
            worker_counts: LatestWorkerCounts::default(),
            skew: ClockSkew::default(),
            facts,
            gate: Gate::new(requests.clone()),
            due_marks: DueMarkMemory::default(),
            admission_marks: parts.admission_marks,
            remembered: Registry::default(),
            continuity: connector.continuity().clone(),
            pool: requests,
            background_pool: pool,
            settings,
            queues,
            notifiers,
            low_water_marks,
            workers,
            blobs,
            requeue,
        };
        Arc::new(engine.registered())
    }

    /// True if runs wait for decisions or are assigned to sessions.
    pub async fn is_limited(&self, queue: i32) -> Result<bool, sqlx::Error> {
        tenure_store::policies::is_limited(&mut *self.pool.acquire().await?, queue).await
    }

    pub async fn create_task(&self, task: Arc<NewTask>) -> Result<Task, OpError> {
        create_task::create_task(&self.create, &self.queues, &self.pool, task).await
    }

    pub async fn claim_work(&self, request: &claim_work::Request) -> Result<Answer, OpError> {
        claim_work::claim_work(&self.wait_list, &self.queues, &self.pool, request).await
    }

    /// If the claim fails, the results are reported nevertheless.
    pub async fn work(&self, results: &[Reported], claim: &claim_work::Request) -> Result<Worked, OpError> {
        let Self { report, wait_list, requeue, notifiers, queues, pool, gate, .. } = self;
        work::work(&Ways { report, wait_list, requeue, notifiers, queues, pool, gate }, results, claim).await
    }

    /// Counts the tasks of a job.
    ///
    /// # Errors
    /// If there are more than a job may have, or the filter is invalid.
    pub async fn count_tasks(&self, which: &Which) -> Result<Counted, OpError> {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let filter = match which {
            Which::Filter(filter) => filter,
            Which::Tasks(ids) => return Ok(Counted { found: number(ids.len()), more: false }),
        };
        let (started, mut found, mut cursor) = (Instant::now(), 0, None::<String>);
        loop {
            let page = task_list::list(self.task_list_parts(), filter, cursor.as_deref(), task_list::PAGE_MAX).await?;
            found += page.tasks.len();
            if number(found) > TASKS_MAX {
                return Err(OpError::Conflict(format!(
                    "more than {TASKS_MAX} tasks match, which is the limit of a job: add conditions, such as `until`"
                )));
            }
            let more = page.next.is_some();
            if !more || started.elapsed() > COUNTING_MAX {
                return Ok(Counted { found: number(found), more });
            }
            cursor = page.next;
        }
    }

    pub fn queue_parts(&self) -> queue_policy::Parts<'_> {
        let Self { pool, queues, notifiers, sequencer, .. } = self;
        queue_policy::Parts { pool, queues, notifiers, sequenced: sequencer.reached() }
    }

    pub fn submit_parts(&self) -> submit::Parts<'_> {
        let Self { pool, queues, notifiers, submissions, sequencer, .. } = self;
        submit::Parts { pool, queues, notifiers, ticks: Some(submissions), sequenced: sequencer.reached() }
    }

    pub fn task_list_parts(&self) -> task_list::Parts<'_> {
        let Self { pool, queues, low_water_marks, due_marks, sequencer, .. } = self;
        task_list::Parts { pool, queues, low_water_marks, due_marks, sequenced: sequencer.reached() }
    }

    pub fn why_parts(&self) -> why::Parts<'_> {
        let Self { pool, low_water_marks: marks, workers, sequencer, notifiers, .. } = self;
        why::Parts { pool, marks, workers, sequenced: sequencer.reached(), notifiers }
    }

    /// `pool` runs the statements; `authority` knows the rights of owners.
    pub fn schedule_parts<'a>(&'a self, pool: &'a PgPool, authority: &'a dyn Authority) -> ops::schedules::Parts<'a> {
        let Self { queues, notifiers, sequencer, gate, blobs, .. } = self;
        let (sequenced, root_url) = (sequencer.reached(), blobs.root_url());
        ops::schedules::Parts { pool, queues, notifiers, sequenced, gate, authority, root_url }
    }

    pub fn subscription_parts(&self) -> subscriptions::Parts<'_> {
        let Self { pool, notifiers, sequencer, gate, .. } = self;
        let (sequenced, begins) = (sequencer.reached(), sequencer.begins());
        subscriptions::Parts { pool, notifiers, sequenced, begins, gate }
    }

    pub fn partition_parts(&self) -> ops::partitions::Parts<'_> {
        let Self { pool, notifiers, gate, partition_ticks: ticks, .. } = self;
        ops::partitions::Parts { pool, notifiers, gate, ticks }
    }

    pub fn server_parts(&self) -> ops::servers::Parts<'_> {
        let Self { pool, queues, notifiers, schedulers, .. } = self;
        ops::servers::Parts { pool, queues, notifiers, schedulers }
    }

    pub fn session_parts(&self) -> sessions::Parts<'_> {
        let Self { pool, queues, notifiers, sessions, renew_session: renew, .. } = self;
        sessions::Parts { pool, queues, notifiers, sessions, renew }
    }

    /// Registers every cache of the database. No closure may hold the sender of a batcher.
    fn registered(self) -> Self {
        let Self {
            remembered,
            queues,
            low_water_marks,
            due_marks,
            admission_marks,
            facts,
            tail,
            notifiers,
            polled,
            sequencer,
            sessions,
            schedulers,
            problems,
            worker_counts,
            gate,
            ..
        } = &self;
        let empty = self.messages.memory();
        remembered.add("queue keys", on(queues, Queues::drop_all));
        remembered.add("low-water marks", on(low_water_marks, LowWaterMarks::drop_all));
        remembered.add("low-water marks of times", on(due_marks, DueMarkMemory::drop_all));
        remembered.add("marks of admission", on(admission_marks, AdmissionMarks::drop_all));
        remembered.add("empty message queues", move || empty.drop_all());
        remembered.add("sequenced events", on(sequencer, Sequencer::drop_all));
        remembered.add("identities of sessions", on(&sessions.identities, Identities::drop_all));
        remembered.add("renewals of sessions", on(&sessions.renewals, Renewals::drop_all));
        remembered.add("ends of sessions", on(&sessions.outlook, Outlook::drop_all));
        remembered.add("terms of schedulers", on(schedulers, Schedulers::drop_all));
        remembered.add("problems", on(problems, LatestProblems::drop_all));
        remembered.add("counts of workers", on(worker_counts, LatestWorkerCounts::drop_all));
        remembered.add("polled queues", on(polled, PolledQueues::drop_all));
        remembered.add("gate of features", on(gate, Gate::close));
        remembered.add("facts", on(facts, Facts::drop_all));
        remembered.add("newest events", on(tail, Tail::drop_all));
        remembered.add("keys of waiting requests", on(notifiers, Notifiers::send_away_for_keys));
        // The pass checks again whether any task has dependencies.
        remembered.add("dependents", on(notifiers, |notifiers| notifiers.expect_dependents(true)));
        remembered.follow(&self.continuity);
        self
    }
}

fn on<T: Clone, F: Fn(&T)>(memory: &T, drop: F) -> impl Fn() + use<T, F> {
    let memory = memory.clone();
    move || drop(&memory)
}
