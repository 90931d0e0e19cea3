//! The engine of one server, without HTTP, on a test's database. Passes run only if a test starts
//! them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgPool};
use tenure_api::bodies::CreateTaskRequest;
use tenure_api::credentials::SigningKey;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::states::Priority;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::authority::{Authority, Denied, Needed};
use crate::background::registry::{PASSES, Passes};
use crate::background::{PassReport, driver};
use crate::batch::wait_list::Answer;
use crate::blobs::Blobs;
use crate::blobs::settings::{ArtifactSettings, ArtifactsPlace};
use crate::engine::{Database, Engine, EngineSettings, Lifetime};
use crate::events::deliveries::{self, Deliveries, DeliverySettings};
use crate::ops::OpError;
use crate::ops::actor::Actor;
use crate::ops::claim_task::{self, ClaimTask};
use crate::ops::claim_work::Request;
use crate::ops::messages::{self, DeleteRequest, Deleted, GetRequest};
use crate::ops::reclaim::ClaimRenewal;
use crate::ops::report::RunReport;
use crate::route::HotSessions;
use crate::statistics::QUEUES_DEFAULT;
use tenure_domain::create::{NewTask, Requested};
use tenure_domain::delivery::address::{Cidr, DeliverTo};
use tenure_domain::lifecycle::Report;
use tenure_domain::message::QueueName;
use tenure_domain::task::{Granted, Task};
use tenure_store::connector::Connector;
use tenure_store::hot::messages::Got;
use tenure_store::secrets::{SecretKeys, SubscriptionSecrets};
use tenure_store::servers::{self, Member};
use tenure_store::session::Pools;

pub const LEASE: Duration = Duration::from_secs(1200);
/// How long claimWork skips a run whose message was received.
pub const RESERVATION: Duration = Duration::from_secs(2);
pub const VISIBILITY: Duration = Duration::from_secs(300);
pub const AUDIT_RETENTION: Duration = Duration::from_secs(24 * 3600);
pub const QUEUE: &str = "proj/worker";
/// Makes the changes of tests.
pub static ANN: LazyLock<Actor> = LazyLock::new(|| Actor::new("ann"));

/// Denies clients for the reasons that a test gives.
#[derive(Debug, Default)]
pub struct TestAuthority {
    pub denied: Mutex<HashMap<String, String>>,
    /// Clients that may change no task.
    pub lacking: Mutex<HashSet<String>>,
}

impl Authority for TestAuthority {
    fn check<'a>(&'a self, client_id: &'a str, needed: Needed<'a>) -> BoxFuture<'a, Result<(), Denied>> {
        let mut reason = self.denied.lock().unwrap_or_else(PoisonError::into_inner).get(client_id).cloned();
        let lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(needed, Needed::ChangeTask(..)) && lacking.contains(client_id) {
            reason = Some("the client lacks the scopes".to_owned());
        }
        std::future::ready(reason.map_or(Ok(()), |reason| Err(Denied::Refused(reason)))).boxed()
    }
}

pub struct Queue {
    pub engine: Arc<Engine>,
    pub passes: Arc<Passes>,
    pub pools: Pools,
    pub authority: Arc<TestAuthority>,
    pub deliveries: Deliveries,
    lifetime: Lifetime,
}

impl Queue {
    #[must_use]
    pub fn start(options: &PgConnectOptions) -> Self {
        Self::start_apart(options, options, LEASE)
    }

    /// Starts with separate connection options for the wait list, and another claim timeout.
    #[must_use]
    pub fn start_apart(options: &PgConnectOptions, claim_options: &PgConnectOptions, claim_timeout: Duration) -> Self {
        // As on a small machine.
        Self::start_as(options, claim_options, claim_timeout, HotSessions::for_cores(1), no_blobs())
    }

    #[must_use]
    pub fn start_with_blobs(options: &PgConnectOptions, blobs: Blobs) -> Self {
        Self::start_as(options, options, LEASE, HotSessions::for_cores(1), blobs)
    }

    #[must_use]
    pub fn start_with_loops(options: &PgConnectOptions, count: u64) -> Self {
        let hot_sessions = HotSessions::new(count).expect("so many loops are allowed");
        Self::start_as(options, options, LEASE, hot_sessions, no_blobs())
    }

    fn start_as(
        options: &PgConnectOptions,
        claim_options: &PgConnectOptions,
        claim_timeout: Duration,
        hot_sessions: HotSessions,
        blobs: Blobs,
    ) -> Self {
        let stop = CancellationToken::new();
        let lifetime = Lifetime { tasks: TaskTracker::new(), drain: stop.clone(), stop };
        let settings = EngineSettings {
            claim_timeout,
            poll_reservation: RESERVATION,
            message_visibility: VISIBILITY,
            event_retention: Duration::from_secs(3600),
            audit_retention: AUDIT_RETENTION,
            hot_sessions,
            live_log_max: 1 << 30,
            statistics_queues: QUEUES_DEFAULT,
            metrics_queues: 500,
            member: Member { id: Uuid::new_v4(), name: "test".to_owned(), weight: 1 },
        };
        let connector = Connector::new(options.clone());
        let claim_connector = Connector::new(claim_options.clone());
        let database = Database { pools: connector.pools(), connector: connector.clone(), claim_connector };
        let pools = database.pools.clone();
        let engine = Engine::start(database, settings, blobs, &lifetime);
        let authority = Arc::<TestAuthority>::default();
        let of_clients: Arc<dyn Authority> = authority.clone();
        let deliveries = start_deliveries(&engine, Arc::clone(&of_clients), &lifetime);
        let passes = Passes::new(&engine, &connector, &of_clients, &deliveries);
        Self { passes, engine, pools, authority, deliveries, lifetime }
    }

    /// Inserts this server's row: heartbeats only update it.
    pub async fn join(&self, pool: &PgPool) {
        let mut conn = pool.acquire().await.expect("the database answers");
        servers::join(&mut conn, self.engine.schedulers.member()).await.expect("the row is written");
    }

    pub fn run_passes(&self, options: &PgConnectOptions) {
        driver::run_passes(&self.passes, &Connector::new(options.clone()), &self.lifetime);
    }

    pub async fn run_pass(&self, name: &str) -> Result<PassReport, sqlx::Error> {
        PASSES.iter().find(|pass| pass.name == name).expect("a pass has this name").run(&self.passes).await
    }

    pub async fn key(&self, name: &str) -> i32 {
        let name: TaskQueueId = name.parse().expect("the name of a queue");
        self.engine.queues.get_or_create_key(&self.engine.pool, &name).await.expect("the queue can be made")
    }

    pub async fn create(&self, task: &NewTask) -> Result<Task, OpError> {
        self.engine.create_task(Arc::new(task.clone())).await
    }

    pub async fn create_one(&self, queue: &str) -> TaskId {
        let task = new_task(queue, &json!({}));
        self.create(&task).await.expect("a task is created");
        task.id
    }

    pub async fn claim_work(
        &self,
        queue: &str,
        worker: &str,
        tasks: u16,
        wait_timeout: Duration,
    ) -> Result<Answer, OpError> {
        let queue: TaskQueueId = queue.parse().expect("the name of a queue");
        let (group, id) = ("group".to_owned(), worker.to_owned());
        self.engine.claim_work(&Request { queue, group, id, session: None, tasks, share: None, wait_timeout }).await
    }

    /// Claims one run, which must exist, and marks it as delivered.
    pub async fn claim_one(&self, queue: &str) -> Granted {
        let mut answer =
            self.claim_work(queue, "worker", 1, Duration::from_secs(10)).await.expect("a claim is answered");
        answer.delivery.delivered();
        answer.claims.pop().expect("a run is pending")
    }

    pub async fn get_messages(&self, queue: &str, count: u16) -> Vec<Got> {
        let name: TaskQueueId = queue.parse().expect("the name of a queue");
        let queue = QueueName { queue: self.key(queue).await, priority: Priority::Lowest };
        let request = GetRequest { queue, name, count, visibility: VISIBILITY };
        self.engine.messages.get(request).await.expect("a poll is answered")
    }

    pub async fn delete_message(&self, queue: &str, got: &Got) -> Deleted {
        let queue = QueueName { queue: self.key(queue).await, priority: Priority::Lowest };
        let request = DeleteRequest { queue, message: got.message, receipt: got.receipt };
        self.engine.delete_messages.submit(request).await.expect("a deletion is answered")
    }

    pub async fn update_message(&self, queue: &str, got: &Got, visibility: Duration) {
        let queue = QueueName { queue: self.key(queue).await, priority: Priority::Lowest };
        let request = DeleteRequest { queue, message: got.message, receipt: got.receipt };
        let updated = messages::update(&self.engine.pool, &self.engine.notifiers, &request, visibility).await;
        updated.expect("the database answers").expect("the message is there");
    }

    pub async fn claim_task(&self, task: TaskId, run: RunId, worker: &str) -> Result<Granted, OpError> {
        let (worker_group, worker_id) = ("group".to_owned(), worker.to_owned());
        let request = ClaimTask { task, run, worker_group, worker_id, session: None };
        claim_task::claim_task(self.engine.why_parts(), self.engine.settings.claim_timeout, &request)
            .await
            .expect("the database answers")
    }

    pub async fn report(&self, task: TaskId, run: RunId, report: Report) -> Result<Task, OpError> {
        self.engine.report.submit(RunReport::plain(task, run, report)).await
    }

    pub async fn reclaim(&self, task: TaskId, run: RunId) -> Result<Granted, OpError> {
        self.engine.reclaim.submit(ClaimRenewal { task, run }).await
    }

    pub async fn status(&self, task: TaskId) -> Task {
        self.engine.status.submit(task).await.expect("a status is answered")
    }

    pub async fn stop(self) {
        let Self { engine, passes, pools, authority: _, deliveries, lifetime: Lifetime { tasks, stop, .. } } = self;
        drop((engine, passes, deliveries));
        stop.cancel();
        tasks.close();
        tokio::time::timeout(Duration::from_secs(20), tasks.wait()).await.expect("everything ends when it is stopped");
        pools.close().await;
    }
}

/// Delivers to this machine. All servers of a test have the same secret key.
fn start_deliveries(engine: &Engine, authority: Arc<dyn Authority>, lifetime: &Lifetime) -> Deliveries {
    let keys = SecretKeys::parse("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").expect("a key");
    let blocks = ["127.0.0.0/8", "::1"].map(|block| block.parse::<Cidr>().expect("a block of addresses"));
    let deliver_to = DeliverTo::new(blocks.into());
    Deliveries::new(deliveries::Parts {
        pool: engine.background_pool.clone(),
        sequencer: engine.sequencer.clone(),
        tail: engine.tail.clone(),
        server: engine.schedulers.member().id,
        authority,
        secrets: SubscriptionSecrets::new(&keys),
        settings: DeliverySettings { deliver_to, hold: Duration::from_secs(5 * 86_400) },
        tasks: lifetime.tasks.clone(),
        drain: lifetime.drain.clone(),
    })
}

/// Returns a task with a deadline in an hour, and these additional fields.
pub fn new_task(queue: &str, fields: &serde_json::Value) -> NewTask {
    new_task_with_id(TaskId::from_random(tenure_store::secrets::random()), queue, fields)
}

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
    NewTask::from_request(id, &request).and_then(Requested::accept).expect("an acceptable task")
}

/// A store whose folder is created on first use, which these tests avoid.
fn no_blobs() -> Blobs {
    let place = ArtifactsPlace::Folder(std::env::temp_dir().join(format!("tenure-artifacts-{}", Uuid::new_v4())));
    Blobs::new(vec![SigningKey::new(b"tests")], "http://localhost", &ArtifactSettings { place, size_max: 1 << 20 })
}
