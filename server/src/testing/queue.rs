//! The operations of one server without HTTP: batchers, claim line and hand-back on a test's database. No pass runs by
//! itself; a test runs the one that it wants.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::json;
use sqlx::postgres::PgConnectOptions;
use tenure_api::bodies::CreateTaskRequest;
use tenure_api::credentials::SigningKey;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::states::Priority;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::background::Context;
use crate::background::groups::Memory;
use crate::background::removals::Told;
use crate::batch::Batcher;
use crate::batch::claim_line::{self, Answer, ClaimLine};
use crate::batch::delivery::HandBack;
use crate::batch::marks::MarkTable;
use crate::batch::message_queue::MessageQueue;
use crate::blobs::Blobs;
use crate::clock::ClockSkew;
use crate::config::{ArtifactSettings, ArtifactsPlace};
use crate::domain::create::NewTask;
use crate::domain::lifecycle::Report;
use crate::domain::message::QueueName;
use crate::domain::task::Task;
use crate::domain::worker::WorkerKey;
use crate::ops::claim_work::Granted;
use crate::ops::create_task::{self, CreateTask};
use crate::ops::messages::{DeleteMessages, DeleteRequest, Deleted, GetMessages, GetRequest};
use crate::ops::reclaim::{self, Reclaim};
use crate::ops::report::{self, ReportRun};
use crate::ops::status::ReadStatus;
use crate::ops::{OpError, claim_task};
use crate::store::hot::messages::Got;
use crate::store::queues::Queues;
use crate::store::session;
use crate::wakeup::Bells;
use crate::workers::Workers;

/// The term of claims unless a test says otherwise.
pub const TERM: Duration = Duration::from_secs(1200);
/// How long claimWork leaves a run alone whose message was got.
pub const RESERVATION: Duration = Duration::from_secs(2);
/// How long a message is hidden.
pub const VISIBILITY: Duration = Duration::from_secs(300);
/// The queue that the tests use.
pub const QUEUE: &str = "proj/worker";

/// One server's operations.
pub struct Queue {
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
    /// Where undelivered claims go.
    pub back: HandBack,
    /// What the passes work with.
    pub passes: Context,
    /// The low-water marks.
    pub marks: MarkTable,
    /// Keys of queues.
    pub queues: Queues,
    term: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Queue {
    /// Starts the operations on a database.
    #[must_use]
    pub fn start(options: &PgConnectOptions) -> Self {
        Self::start_apart(options, options, TERM)
    }

    /// Starts them with a way of its own to the database for the claim line, and another term of claims.
    #[must_use]
    pub fn start_apart(options: &PgConnectOptions, line_options: &PgConnectOptions, term: Duration) -> Self {
        let (tasks, stop, bells) = (TaskTracker::new(), CancellationToken::new(), Bells::default());
        let (pool, queues, marks) = (session::pool(options), Queues::default(), MarkTable::default());
        let workers = Workers::default();
        let back = HandBack::start(options, bells.clone(), &tasks, stop.clone());
        let line = claim_line::Parts {
            database: line_options.clone(),
            pool: pool.clone(),
            queues: queues.clone(),
            marks: marks.clone(),
            bells: bells.clone(),
            back: back.clone(),
            term,
            workers: workers.clone(),
        };
        let reclaim = Reclaim { queues: queues.clone(), pool: pool.clone(), term, workers: workers.clone() };
        let report = ReportRun { queues: queues.clone(), pool: pool.clone() };
        let get = GetMessages { marks: marks.clone(), reservation: RESERVATION };
        let delete = DeleteMessages { visibility: VISIBILITY };
        Self {
            messages: MessageQueue::new(Batcher::start(get, options, &bells, &tasks), bells.clone()),
            delete_messages: Batcher::start(delete, options, &bells, &tasks),
            create: Batcher::start(CreateTask, options, &bells, &tasks),
            reclaim: Batcher::start(reclaim, options, &bells, &tasks),
            report: Batcher::start(report, options, &bells, &tasks),
            status: Batcher::start(ReadStatus, options, &bells, &tasks),
            line: ClaimLine::start(line, &tasks, stop.clone()),
            back,
            passes: Context {
                blobs: no_blobs(),
                pool,
                bells,
                event_retention: Duration::from_secs(3600),
                witnesses: Memory::default(),
                told: Told::default(),
                skew: ClockSkew::default(),
                workers,
            },
            marks,
            queues,
            term,
            tasks,
            stop,
        }
    }

    /// The key of a queue.
    pub async fn key(&self, name: &str) -> i32 {
        let name: TaskQueueId = name.parse().expect("the name of a queue");
        self.queues.make_key(&self.passes.pool, &name).await.expect("the queue can be made")
    }

    /// createTask.
    pub async fn create(&self, task: &NewTask) -> Result<Task, OpError> {
        let queue = self.key(task.queue.as_str()).await;
        self.create.submit(create_task::Request { task: Arc::new(task.clone()), queue }).await
    }

    /// createTask for a simple task; its id.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn create_one(&self, queue: &str) -> TaskId {
        let task = new_task(queue, &json!({}));
        self.create(&task).await.expect("a task is created");
        task.id
    }

    /// claimWork.
    pub async fn claim_work(
        &self,
        queue: &str,
        worker: &str,
        tasks: u16,
        patience: Duration,
    ) -> Result<Answer, OpError> {
        let queue = self.key(queue).await;
        let worker = WorkerKey { queue, group: "group".to_owned(), id: worker.to_owned() };
        self.line.claim(claim_line::Request { worker, tasks, patience }).await
    }

    /// claimWork for one run that must be there; it counts as delivered.
    ///
    /// # Panics
    /// If there is none.
    pub async fn claim_one(&self, queue: &str) -> Granted {
        let mut answer =
            self.claim_work(queue, "worker", 1, Duration::from_secs(2)).await.expect("a claim is answered");
        answer.delivery.delivered();
        answer.claims.pop().expect("a run is pending")
    }

    /// Gets messages of the lowest priority.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn get_messages(&self, queue: &str, count: u16) -> Vec<Got> {
        let name: TaskQueueId = queue.parse().expect("the name of a queue");
        let queue = QueueName { queue: self.key(queue).await, priority: Priority::Lowest };
        let request = GetRequest { queue, name, count, visibility: VISIBILITY };
        self.messages.get(request).await.expect("a poll is answered")
    }

    /// Deletes a message of the lowest priority.
    ///
    /// # Panics
    /// If it is neither done nor refused by a rule.
    pub async fn delete_message(&self, queue: &str, got: &Got) -> Deleted {
        let queue = QueueName { queue: self.key(queue).await, priority: Priority::Lowest };
        let request = DeleteRequest { queue, message: got.message, receipt: got.receipt };
        self.delete_messages.submit(request).await.expect("a deletion is answered")
    }

    /// claimTask.
    pub async fn claim_task(&self, task: TaskId, run: RunId, worker: &str) -> Result<Granted, OpError> {
        let (worker_group, worker_id) = ("group".to_owned(), worker.to_owned());
        let request = claim_task::Request { task, run, worker_group, worker_id };
        claim_task::claim_task(&self.passes.pool, &self.passes.workers, self.term, &request)
            .await
            .expect("the database answers")
    }

    /// A report.
    pub async fn report(&self, task: TaskId, run: RunId, report: Report) -> Result<Task, OpError> {
        self.report.submit(report::Request { task, run, report }).await
    }

    /// reclaimTask.
    pub async fn reclaim(&self, task: TaskId, run: RunId) -> Result<Granted, OpError> {
        self.reclaim.submit(reclaim::Request { task, run }).await
    }

    /// status.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn status(&self, task: TaskId) -> Task {
        self.status.submit(task).await.expect("a status is answered")
    }

    /// Ends everything and waits for it.
    ///
    /// # Panics
    /// If something does not end.
    pub async fn stop(self) {
        let Remains { tasks, stop, passes } = self.dismantle();
        stop.cancel();
        tasks.close();
        tokio::time::timeout(Duration::from_secs(20), tasks.wait()).await.expect("everything ends when it is stopped");
        passes.pool.close().await;
    }

    /// Drops the fronts, so that the workers behind them end.
    fn dismantle(self) -> Remains {
        Remains { tasks: self.tasks, stop: self.stop, passes: self.passes }
    }
}

struct Remains {
    tasks: TaskTracker,
    stop: CancellationToken,
    passes: Context,
}

/// A task for a queue, an hour before its deadline, with these fields besides.
///
/// # Panics
/// If the fields are not acceptable.
#[must_use]
pub fn new_task(queue: &str, fields: &serde_json::Value) -> NewTask {
    new_task_with_id(TaskId::from_random(crate::secrets::random()), queue, fields)
}

/// The same with a given id.
///
/// # Panics
/// If the fields are not acceptable.
#[must_use]
pub fn new_task_with_id(id: TaskId, queue: &str, fields: &serde_json::Value) -> NewTask {
    let now = crate::clock::real_now();
    let date = |time: chrono::DateTime<chrono::Utc>| tenure_api::dates::Timestamp::new(time);
    let mut body = json!({
        "taskQueueId": queue,
        "created": date(now),
        "deadline": date(now + TimeDelta::hours(1)),
        "payload": {},
        "metadata": {"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com/"},
    });
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    let body = body.to_string();
    let request: CreateTaskRequest<'_> = serde_json::from_str(&body).expect("a body of createTask");
    NewTask::from_request(id, &request).expect("an acceptable task")
}

/// A store of bytes whose folder is made when it is used, which these tests do not.
fn no_blobs() -> Blobs {
    let place = ArtifactsPlace::Folder(std::env::temp_dir().join(format!("tenure-artifacts-{}", Uuid::new_v4())));
    Blobs::new(vec![SigningKey::new(b"tests")], "http://localhost", &ArtifactSettings { place, size_max: 1 << 20 })
}
