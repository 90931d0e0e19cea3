//! A case's queue and task, removed afterwards.

use std::cell::Cell;

use chrono::TimeDelta;
use serde_json::json;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{SessionId, TaskId, TaskQueueId};
use tokio::time::Instant;

use super::calls::Calls;
use super::part::Part;
use crate::cli::http::CommandError;

/// Provisioner of all played queues.
pub const PROVISIONER: &str = "tenure-verify";
/// Short, in case this program is killed.
const DEADLINE: TimeDelta = TimeDelta::minutes(10);
const EXPIRES: TimeDelta = TimeDelta::hours(1);

pub struct Stage {
    pub part: Part,
    pub queue: TaskQueueId,
    pub task: TaskId,
    /// Retries at the task's creation.
    pub retries: Cell<u16>,
    pub first_session: Cell<Option<SessionId>>,
    pub second_session: Cell<Option<SessionId>>,
    pub start: Instant,
    is_set_up: Cell<bool>,
}

impl Stage {
    /// Creates a unique queue name.
    #[must_use]
    pub fn new(part: Part) -> Self {
        let name = format!("{PROVISIONER}/v{}", uuid::Uuid::new_v4().simple());
        let queue = name.parse().expect("a letter and 32 digits are a worker type");
        let task = TaskId::from_random(uuid::Uuid::new_v4().into_bytes());
        Self {
            part,
            queue,
            task,
            retries: Cell::default(),
            first_session: Cell::default(),
            second_session: Cell::default(),
            start: Instant::now(),
            is_set_up: Cell::default(),
        }
    }

    /// Sets the policy and creates the task. In an assigning queue, the workers must come first.
    pub async fn set_up(&self, calls: &Calls<'_>) -> Result<(), CommandError> {
        self.is_set_up.set(true);
        calls.set_policy(&self.queue, &self.part.policy()).await?;
        if self.part.assigns() { Ok(()) } else { self.create_task(calls).await }
    }

    pub async fn create_task(&self, calls: &Calls<'_>) -> Result<(), CommandError> {
        let now = calls.now().time();
        let task = json!({
            "taskId": self.task,
            "taskQueueId": self.queue,
            "deadline": Timestamp::new(now + DEADLINE),
            "expires": Timestamp::new(now + EXPIRES),
            "metadata": {"name": self.part.name(), "description": "Made by `tenure verify delivery`, which cancels it."},
        });
        self.retries.set(calls.create(&task).await?.retries_left);
        Ok(())
    }

    pub async fn clean_up(&self, calls: &Calls<'_>) -> Result<(), CommandError> {
        if !self.is_set_up.get() {
            return Ok(());
        }
        let mut done = calls.cancel(self.task).await;
        for session in [self.first_session.get(), self.second_session.get()].into_iter().flatten() {
            done = calls.close_session(session).await.and(done);
        }
        calls.delete_policy(&self.queue).await.and(done)
    }
}
