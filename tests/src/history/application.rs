//! An application that enqueues tasks from SQL in its own transactions, and rolls some back.

use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tenure_store::enqueued;

use super::RETAINED_QUEUE;
use super::policy::Options;
use super::record::{Answer, Event, PRIORITIES, Stamp, TaskSpec};
use super::storm::advance_clock;
use super::submitter::{BACKLOG_MAX, UNHURRIED_MILLIS};
use super::world::Actor;
use crate::http::QUEUE_API;

const NAME: &str = "shop";
/// Longest pause between two transactions, and longest transaction, in milliseconds.
const PAUSE_MAX: u64 = 60;
const OPEN_MAX: u64 = 200;
const COMMIT_PERCENT: u64 = 80;
const RETRIES_MAX: u64 = 5;
/// Servers create the tasks of committed transactions within this time, while the clock goes on.
const CREATED_WITHIN: Duration = Duration::from_secs(15);
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Stands for a transaction that was not committed.
const ROLLED_BACK: u16 = 0;

/// Allows the user of this URL to enqueue tasks as a client.
pub(super) async fn allow(url: &str, client_id: &str) {
    let mut conn = PgConnection::connect(url).await.expect("the database can be reached");
    let user = sqlx::query_scalar::<_, String>("SELECT session_user::text").fetch_one(&mut conn).await;
    let user = user.expect("a session has a user");
    let allowed = enqueued::allow(&mut conn, &user, client_id).await.expect("an administrator may allow a role");
    assert!(allowed.is_some(), "{user} is a role");
}

/// A task whose creation was not observed yet.
struct Awaited {
    spec: TaskSpec,
    start: Stamp,
    committed: bool,
}

struct Application {
    actor: Actor,
    options: PgConnectOptions,
    session: Option<PgConnection>,
    awaited: Vec<Awaited>,
}

pub(super) async fn enqueue(actor: Actor, url: String) {
    let options = PgConnectOptions::from_str(&url).expect("the URL connected before").application_name(NAME);
    let mut application = Application { actor, options, session: None, awaited: Vec::new() };
    loop {
        let pause = Duration::from_millis(application.actor.random.below(PAUSE_MAX));
        tokio::time::sleep(pause).await;
        let world = Arc::clone(&application.actor.world);
        let is_crowded = world.backlog.load(Ordering::Relaxed) > BACKLOG_MAX;
        if !is_crowded || world.operations_left() == 0 {
            if !world.take_operation() {
                break;
            }
            application.enqueue().await;
        }
        application.observe().await;
    }
    application.settle().await;
}

impl Application {
    async fn enqueue(&mut self) {
        let world = Arc::clone(&self.actor.world);
        let (spec, start) = (self.invent(), world.stamp());
        let answer = self.store(&spec).await;
        world.note_enqueued(spec.task);
        if answer.may_be_done() {
            world.backlog.fetch_add(1, Ordering::Relaxed);
            self.awaited.push(Awaited { spec: spec.clone(), start, committed: answer.done().is_some() });
        }
        world.write(start, Event::Enqueue { task: spec.task, answer });
    }

    fn invent(&mut self) -> TaskSpec {
        let random = &mut self.actor.random;
        TaskSpec {
            task: random.task_id(),
            // No task of these queues is purged, or refused.
            queue: random.below(RETAINED_QUEUE as u64) as usize,
            priority: random.below(PRIORITIES.len() as u64) as usize,
            retries: random.below(RETRIES_MAX + 1) as u32,
            content: 0,
            dependencies: Vec::new(),
            any_end: false,
            options: Options::default(),
        }
    }

    async fn store(&mut self, spec: &TaskSpec) -> Answer<()> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => match self.options.connect().await {
                Ok(session) => session,
                Err(_) => return Answer::Refused(ROLLED_BACK),
            },
        };
        let commits = self.actor.random.percent(COMMIT_PERCENT);
        let open = Duration::from_millis(self.actor.random.below(OPEN_MAX));
        let queue = self.actor.world.queues[spec.queue].clone();
        // Dropping a session rolls back.
        if insert(&mut session, &queue, spec).await.is_err() {
            return Answer::Refused(ROLLED_BACK);
        }
        tokio::time::sleep(open).await;
        let end = if commits { "COMMIT" } else { "ROLLBACK" };
        let ended = sqlx::query(end).execute(&mut session).await;
        match (ended, commits) {
            (Err(_), true) => Answer::Unknown,
            (Err(_), false) => Answer::Refused(ROLLED_BACK),
            (Ok(_), commits) => {
                self.session = Some(session);
                if commits { Answer::Done(()) } else { Answer::Refused(ROLLED_BACK) }
            }
        }
    }

    /// Records the creations of tasks that exist now.
    async fn observe(&mut self) {
        let mut open = Vec::new();
        for awaited in std::mem::take(&mut self.awaited) {
            let path = format!("{QUEUE_API}/task/{}/status", awaited.spec.task);
            if self.actor.call("GET", &path, None).await.done().is_some() {
                self.actor.world.write(awaited.start, Event::Create { task: awaited.spec, answer: Answer::Done(()) });
            } else {
                open.push(awaited);
            }
        }
        self.awaited = open;
    }

    /// Waits for the tasks of committed transactions. Rows that met a lock are handled when the
    /// clock has moved.
    async fn settle(mut self) {
        let deadline = Instant::now() + CREATED_WITHIN;
        while self.awaited.iter().any(|awaited| awaited.committed) && Instant::now() < deadline {
            let world = Arc::clone(&self.actor.world);
            let moving = world.clock.lock().await;
            advance_clock(&mut self.actor, 1).await;
            drop(moving);
            tokio::time::sleep(AGAIN_AFTER).await;
            self.observe().await;
        }
        for Awaited { spec, start, .. } in self.awaited {
            self.actor.world.write(start, Event::Create { task: spec, answer: Answer::Unknown });
        }
    }
}

async fn insert(session: &mut PgConnection, queue: &str, spec: &TaskSpec) -> Result<(), sqlx::Error> {
    let options = json!({
        "taskId": spec.task,
        "priority": PRIORITIES[spec.priority],
        "retries": spec.retries,
        "deadlineAfter": UNHURRIED_MILLIS / 1000,
    });
    sqlx::query("BEGIN").execute(&mut *session).await?;
    sqlx::query("SELECT tenure_enqueue($1, '{}', $2::text::jsonb)")
        .bind(queue)
        .bind(options.to_string())
        .execute(session)
        .await?;
    Ok(())
}
