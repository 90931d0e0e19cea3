//! Calls of a case's workers, all as one client.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::bodies::Status;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId, TaskQueueId};
use tenure_api::servers::{SchedulerReplaced, Servers};
use tenure_api::states::EndedBy;
use tenure_api::why::{Reason, WhyAnswer};
use tenure_client::{
    Error, InboxEvent, Method, RenewSessionRequest, SessionStarted, StartSessionRequest, TaskChange, WorkerName,
};

use super::observations::Resolution;
use crate::cli::http::{CommandError, Server, entries};

const QUEUE_API: &str = "/api/queue/v1";
const EVENTS: &str = "/api/tenure/v1/events";
/// The server's maximum.
const PAGE: u16 = 1_000;
/// Exchanges with ends of runs.
const ENDS: &str = "task-completed,task-failed,task-exception";
const GROUP: &str = "tenure-verify";
pub const OK: u16 = 200;
/// Status of a late call: the run is another worker's, or has ended.
pub const CONFLICT: u16 = 409;

pub struct Calls<'a> {
    server: &'a Server,
}

impl<'a> Calls<'a> {
    pub fn new(server: &'a Server) -> Self {
        Self { server }
    }

    pub fn now(&self) -> Timestamp {
        self.server.client.now()
    }

    pub async fn set_policy(&self, queue: &TaskQueueId, policy: &Value) -> Result<(), CommandError> {
        self.server.client.set_queue_policy(queue, policy).await.map(drop).map_err(|error| self.error(&error))
    }

    pub async fn delete_policy(&self, queue: &TaskQueueId) -> Result<(), CommandError> {
        self.server.client.delete_queue_policy(queue).await.map(drop).map_err(|error| self.error(&error))
    }

    /// The idempotency key makes retries harmless.
    pub async fn create(&self, body: &Value) -> Result<Status, CommandError> {
        let key = uuid::Uuid::new_v4().to_string();
        let answer = self.server.client.create_tasks(body, &key).await.map_err(|error| self.error(&error))?;
        self.read(answer["tasks"][0]["status"].clone())
    }

    /// `ttl` is in seconds, from each renewal.
    pub async fn start_session(
        &self,
        queue: &TaskQueueId,
        worker: &str,
        ttl: i64,
        weight: i64,
    ) -> Result<SessionStarted, CommandError> {
        let is_name = "letters and a dash are a name";
        let me = WorkerName { group: GROUP.parse().expect(is_name), id: worker.parse().expect(is_name) };
        let start = StartSessionRequest { ttl: Some(ttl), weight: Some(weight), ..me.session(queue) };
        self.server.client.start_session(&start).await.map_err(|error| self.error(&error))
    }

    /// Sets a session's capacity to 0, against further assignments.
    pub async fn take_no_more(&self, session: SessionId) -> Result<(), CommandError> {
        let none = RenewSessionRequest { capacity: Some(0), ..RenewSessionRequest::default() };
        self.server.client.renew_session(session, &none).await.map(drop).map_err(|error| self.error(&error))
    }

    /// Waits for the assignment of this task to a session. Returns its run and acceptance deadline.
    pub async fn assigned(
        &self,
        session: SessionId,
        task: TaskId,
        wait: Duration,
    ) -> Result<Option<(RunId, Option<Timestamp>)>, CommandError> {
        let inbox = self.server.client.inbox(session, 0, wait).await.map_err(|error| self.error(&error))?;
        Ok(inbox.items.into_iter().find_map(|item| match item.what? {
            InboxEvent::Assigned { task_id, run_id, accept_by, .. } => (task_id == task).then_some((run_id, accept_by)),
            InboxEvent::RunEnded { .. } | InboxEvent::Command { .. } | InboxEvent::TaskCommand { .. } => None,
        }))
    }

    /// Returns the end of the claim, or the status of a refusal.
    pub async fn accept(
        &self,
        task: TaskId,
        run: RunId,
        worker: &str,
        session: SessionId,
    ) -> Result<Result<Timestamp, u16>, CommandError> {
        let path = format!("{QUEUE_API}/task/{task}/runs/{run}/claim");
        let body = json!({"workerGroup": GROUP, "workerId": worker, "sessionId": session});
        match self.server.client.request(Method::POST, &path, Some(&body)).await {
            Ok(claim) => self.read(claim["takenUntil"].clone()).map(Ok),
            Err(Error::Refused { status: 409, .. }) => Ok(Err(CONFLICT)),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// Returns the start of the new scheduler's term; none if no server took over.
    pub async fn replace_scheduler(&self, queue: &TaskQueueId) -> Result<Option<Timestamp>, CommandError> {
        let replaced = self.server.client.replace_scheduler(queue).await.map_err(|error| self.error(&error))?;
        let SchedulerReplaced { term, .. } = self.read(replaced)?;
        let listed = self.server.client.list_servers().await.map_err(|error| self.error(&error))?;
        let Servers { servers } = self.read(listed)?;
        let mut terms = servers.into_iter().flat_map(|server| server.queues);
        Ok(terms.find(|one| one.task_queue_id == *queue && one.term == term).map(|one| one.since))
    }

    pub async fn close_session(&self, session: SessionId) -> Result<(), CommandError> {
        self.server.client.close_session(session).await.map(drop).map_err(|error| self.error(&error))
    }

    /// Returns a run and the end of its claim.
    pub async fn claim(
        &self,
        queue: &TaskQueueId,
        worker: &str,
        session: Option<SessionId>,
    ) -> Result<Option<(RunId, Timestamp)>, CommandError> {
        let path = format!("{QUEUE_API}/claim-work/{}", queue.as_str().replace('/', "%2F"));
        let mut body = json!({"workerGroup": GROUP, "workerId": worker, "tasks": 1});
        if let Some(session) = session {
            body["sessionId"] = json!(session);
        }
        let answer = self.send(Method::POST, &path, Some(&body)).await?;
        let Some(claim) = entries(&answer, "tasks").first() else { return Ok(None) };
        Ok(Some((self.read(claim["runId"].clone())?, self.read(claim["takenUntil"].clone())?)))
    }

    pub async fn reclaim(&self, task: TaskId, run: RunId) -> Result<u16, CommandError> {
        self.verdict(&format!("{QUEUE_API}/task/{task}/runs/{run}/reclaim")).await
    }

    pub async fn complete(&self, task: TaskId, run: RunId) -> Result<u16, CommandError> {
        self.verdict(&format!("{QUEUE_API}/task/{task}/runs/{run}/completed")).await
    }

    pub async fn status(&self, task: TaskId) -> Result<Status, CommandError> {
        let answer = self.send(Method::GET, &format!("{QUEUE_API}/task/{task}/status"), None).await?;
        self.read(answer["status"].clone())
    }

    /// Waits up to `wait_s` seconds.
    pub async fn is_resolved(&self, task: TaskId, wait_s: u32) -> Result<bool, CommandError> {
        let answer = self.server.client.wait_for_task(task, wait_s).await.map_err(|error| self.error(&error))?;
        Ok(answer["resolved"] == Value::Bool(true))
    }

    pub async fn ended_by(&self, task: TaskId) -> Result<Option<EndedBy>, CommandError> {
        let answer = self.server.client.why(task).await.map_err(|error| self.error(&error))?;
        let why: WhyAnswer = self.read(answer)?;
        Ok(why.reasons.iter().find_map(|reason| match reason {
            Reason::Resolved { ended_by, .. } => *ended_by,
            Reason::Dependencies { .. }
            | Reason::Delay { .. }
            | Reason::Waiting { .. }
            | Reason::Assigned { .. }
            | Reason::NoScheduler { .. }
            | Reason::NoSession { .. }
            | Reason::NotAccepted { .. }
            | Reason::AssignQueue
            | Reason::PollLimited
            | Reason::Paused { .. }
            | Reason::Reserved { .. }
            | Reason::NoWorker { .. }
            | Reason::Partition { .. }
            | Reason::Behind { .. }
            | Reason::Running { .. } => None,
        }))
    }

    /// Cancels a task unless it is resolved, or was never created.
    pub async fn cancel(&self, task: TaskId) -> Result<(), CommandError> {
        match self.server.client.wait_for_task(task, 0).await {
            Ok(answer) if answer["resolved"] == Value::Bool(false) => {}
            Ok(_) | Err(Error::Refused { status: 404, .. }) => return Ok(()),
            Err(error) => return Err(self.error(&error)),
        }
        match self.server.client.change_task(task, TaskChange::Cancel).await {
            // Resolved in between.
            Err(Error::Refused { status: 409, .. }) | Ok(_) => Ok(()),
            Err(error) => Err(self.error(&error)),
        }
    }

    pub async fn log_end(&self) -> Result<i64, CommandError> {
        let answer = self.send(Method::GET, &format!("{EVENTS}?after=latest"), None).await?;
        self.read(answer["after"].clone())
    }

    /// Returns ends of runs in the provisioner's queues, between two positions of the event log.
    pub async fn resolutions(
        &self,
        provisioner: &str,
        mut after: i64,
        end: i64,
    ) -> Result<Vec<(TaskId, Resolution)>, CommandError> {
        let mut found = Vec::new();
        while after < end {
            let filter = format!("exchange={ENDS}&routingKeyPattern=primary.*.*.*.*.{provisioner}.%23");
            let path = format!("{EVENTS}?after={after}&limit={PAGE}&{filter}");
            let answer = self.send(Method::GET, &path, None).await?;
            for event in entries(&answer, "events") {
                let exchange = event["exchange"].as_str().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
                let run = event["payload"]["runId"].as_u64().unwrap_or_default();
                let task = self.read(event["payload"]["status"]["taskId"].clone())?;
                found.push((task, Resolution { run, exchange: exchange.to_owned() }));
            }
            let next: i64 = self.read(answer["after"].clone())?;
            if next == after {
                break;
            }
            after = next;
        }
        Ok(found)
    }

    /// Returns the response status of a call that may conflict with the task's state.
    async fn verdict(&self, path: &str) -> Result<u16, CommandError> {
        match self.server.client.request(Method::POST, path, None).await {
            Ok(_) => Ok(OK),
            Err(Error::Refused { status: status @ (404 | 409 | 410), .. }) => Ok(status),
            Err(error) => Err(self.error(&error)),
        }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, CommandError> {
        self.server.client.request(method, path, body).await.map_err(|error| self.error(&error))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, value: Value) -> Result<T, CommandError> {
        serde_json::from_value(value).map_err(|error| self.server.strange(&error))
    }

    /// Insufficient credentials are wrong arguments: they say nothing about the server.
    fn error(&self, error: &Error) -> CommandError {
        match (error.status(), self.server.error(error)) {
            (Some(401 | 403), CommandError::Refused(message)) => CommandError::Usage(message),
            (_, other) => other,
        }
    }
}
