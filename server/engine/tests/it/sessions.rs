//! Sessions of workers. `scripts/with-pg cargo test -p tenure-engine --test it -- sessions`.

mod claims;
mod clock;
mod commands;
mod ends;
mod inbox;
mod life;
mod looks;
mod races;
mod storms;

use tenure_api::sessions::StartSessionRequest;
use tenure_domain::events::note::Note;
use tenure_domain::events::{Event, Payload};
use tenure_domain::session::{Identity, Start, Stated};
use tenure_engine::background::{PassReport, sessions as passes};
use tenure_engine::ops::claim_work::Request;
use tenure_engine::ops::sessions::{self, Started};
use tenure_store::clock as store_clock;
use tenure_store::events::{self, Page};

use crate::support::*;

const TTL: i64 = 60;
/// Longer than any test here takes.
const LONG: Duration = Duration::from_secs(60);
/// Until the end of a session takes effect; tests assert ten times that.
const PROMISE: Duration = Duration::from_millis(250);

struct Ground {
    database: TestDatabase,
    queue: Queue,
    conn: PgConnection,
}

impl Ground {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let (queue, conn) = (Queue::start(database.options()), database.connect().await);
        Self { database, queue, conn }
    }

    async fn advance(&mut self, seconds: i64) {
        store_clock::advance(&mut self.conn, seconds as f64).await.unwrap();
    }

    async fn pass(&self) -> PassReport {
        passes::pass(&self.queue.engine).await.unwrap()
    }

    /// On a stalled machine the pass first assumes an outage.
    async fn expire(&mut self, session: &Identity) {
        self.pass().await;
        while self.ended(session).await.is_none() {
            self.advance(session.ttl + 1).await;
            self.pass().await;
        }
    }

    async fn ended(&self, session: &Identity) -> Option<SessionEnd> {
        let stored = sessions::find(self.queue.engine.session_parts(), session.id).await.unwrap();
        stored.ended.map(|(_, by, _)| by)
    }

    async fn finish(self) {
        finish(self.database, self.queue).await;
    }
}

/// Every inbox request then renews its session.
const LATER: chrono::DateTime<chrono::Utc> = chrono::DateTime::<chrono::Utc>::MAX_UTC;

fn start_of(worker: &str) -> Start {
    Start::from_request(request(worker)).unwrap()
}

fn request(worker: &str) -> StartSessionRequest {
    StartSessionRequest {
        task_queue_id: QUEUE.parse().unwrap(),
        worker_group: "group".parse().unwrap(),
        worker_id: worker.parse().unwrap(),
        ttl: Some(TTL),
        weight: None,
        capacity: None,
        takeover: false,
        policy_version: None,
    }
}

async fn try_begin(queue: &Queue, start: &Start) -> Result<Started, OpError> {
    sessions::start(queue.engine.session_parts(), start, "client").await
}

async fn begin(queue: &Queue, worker: &str) -> Identity {
    try_begin(queue, &start_of(worker)).await.unwrap().identity
}

fn claim_of(session: &Identity, tasks: u16, wait_timeout: Duration) -> Request {
    Request {
        queue: session.queue.clone(),
        group: session.worker_group.to_string(),
        id: session.worker_id.to_string(),
        session: Some(session.epoch),
        tasks,
        share: None,
        wait_timeout,
    }
}

async fn claim(queue: &Queue, session: &Identity, runs: usize) -> Vec<TaskId> {
    let mut claimed = Vec::new();
    while claimed.len() < runs {
        let tasks = u16::try_from(runs - claimed.len()).unwrap().min(32);
        let answer = queue.engine.claim_work(&claim_of(session, tasks, LONG)).await.unwrap();
        answer.delivery.delivered();
        claimed.extend(answer.claims.iter().map(|claim| claim.task.id));
    }
    claimed
}

async fn renew(queue: &Queue, session: &Identity) -> Result<(), OpError> {
    sessions::renew(queue.engine.session_parts(), session, Stated::default()).await.map(drop)
}

async fn create(queue: &Queue, tasks: usize, options: &serde_json::Value) -> Vec<TaskId> {
    let mut created = Vec::new();
    for _ in 0..tasks {
        let task = new_task(QUEUE, &json!({"extra": {"tenure": options}}));
        queue.create(&task).await.unwrap();
        created.push(task.id);
    }
    created
}

async fn notes(conn: &mut PgConnection) -> Vec<Note> {
    events::sequence(conn, Sequenced::default()).await.unwrap();
    let Page::Events(events, _) = events::read(conn, 0, 100_000).await.unwrap() else { panic!("it is gone") };
    let note = |event: Event| match event.payload {
        Payload::Note(note) => Some(note),
        _ => None,
    };
    events.into_iter().filter_map(note).collect()
}

/// Returns how the only ended run ended, if the task is pending again.
fn tried_again(task: &Task) -> Option<(Outcome, Option<EndedBy>)> {
    let (Last::Pending(open), [ended]) = (&task.last, task.ended.as_slice()) else { return None };
    (open.reason == ReasonCreated::Retry).then(|| (ended.outcome(), ended.ended_by))
}

/// Outcome of a run ended by its session.
const SHUT_DOWN: Outcome = Outcome::Exception(ReasonResolved::WorkerShutdown);

/// Returns the reason, if the session has ended.
fn end_of<T>(answer: Result<T, OpError>) -> Option<SessionEnd> {
    match answer.err()? {
        OpError::SessionEnded(by) => Some(by),
        _ => None,
    }
}

const FIRST: RunId = RunId::FIRST;
