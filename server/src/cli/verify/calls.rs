//! The calls that the workers of a cell make, all as one client.

use serde_json::{Value, json};
use tenure_api::bodies::Status;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId, TaskQueueId};
use tenure_api::states::EndedBy;
use tenure_api::why::{Reason, WhyAnswer};
use tenure_client::{Error, Method, SessionStarted, StartSessionRequest, TaskChange, WorkerName};

use super::seen::Resolution;
use crate::cli::http::{CommandError, Server, entries};

const QUEUE_API: &str = "/api/queue/v1";
const EVENTS: &str = "/api/tenure/v1/events";
/// Events of one page; the most that a server gives.
const PAGE: u16 = 1_000;
/// The exchanges on which ends of runs are emitted.
const ENDS: &str = "task-completed,task-failed,task-exception";
/// The group of all workers.
const GROUP: &str = "tenure-verify";
/// The status of a call that was done.
pub const OK: u16 = 200;

/// Calls the server that is verified.
pub struct Calls<'a> {
    server: &'a Server,
}

impl<'a> Calls<'a> {
    /// Calls this server.
    pub fn new(server: &'a Server) -> Self {
        Self { server }
    }

    /// Sets the policy of a queue.
    pub async fn set_policy(&self, queue: &TaskQueueId, policy: &Value) -> Result<(), CommandError> {
        self.server.client.set_queue_policy(queue, policy).await.map(drop).map_err(|error| self.error(&error))
    }

    /// Removes it.
    pub async fn delete_policy(&self, queue: &TaskQueueId) -> Result<(), CommandError> {
        self.server.client.delete_queue_policy(queue).await.map(drop).map_err(|error| self.error(&error))
    }

    /// Creates the task; the key makes repeats harmless.
    pub async fn create(&self, body: &Value) -> Result<Status, CommandError> {
        let key = uuid::Uuid::new_v4().to_string();
        let answer = self.server.client.create_tasks(body, &key).await.map_err(|error| self.error(&error))?;
        self.read(answer["tasks"][0]["status"].clone())
    }

    /// Starts a session for this worker that goes on for so many seconds.
    pub async fn start_session(
        &self,
        queue: &TaskQueueId,
        worker: &str,
        ttl: i64,
    ) -> Result<SessionStarted, CommandError> {
        let is_name = "letters and a dash are a name";
        let me = WorkerName { group: GROUP.parse().expect(is_name), id: worker.parse().expect(is_name) };
        let start = StartSessionRequest { ttl: Some(ttl), ..me.session(queue) };
        self.server.client.start_session(&start).await.map_err(|error| self.error(&error))
    }

    /// Ends a session, whether it has ended or not.
    pub async fn close_session(&self, session: SessionId) -> Result<(), CommandError> {
        self.server.client.close_session(session).await.map(drop).map_err(|error| self.error(&error))
    }

    /// Asks for work as this worker, in its session if it has one: a run, and when its claim ends.
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

    /// Renews a claim, and gives the status of the answer.
    pub async fn reclaim(&self, task: TaskId, run: RunId) -> Result<u16, CommandError> {
        self.verdict(&format!("{QUEUE_API}/task/{task}/runs/{run}/reclaim")).await
    }

    /// Reports that a run is completed, and gives the status of the answer.
    pub async fn complete(&self, task: TaskId, run: RunId) -> Result<u16, CommandError> {
        self.verdict(&format!("{QUEUE_API}/task/{task}/runs/{run}/completed")).await
    }

    /// The status of a task.
    pub async fn status(&self, task: TaskId) -> Result<Status, CommandError> {
        let answer = self.send(Method::GET, &format!("{QUEUE_API}/task/{task}/status"), None).await?;
        self.read(answer["status"].clone())
    }

    /// Whether a task is resolved, for which it waits this long.
    pub async fn is_resolved(&self, task: TaskId, wait_s: u32) -> Result<bool, CommandError> {
        let answer = self.server.client.wait_for_task(task, wait_s).await.map_err(|error| self.error(&error))?;
        Ok(answer["resolved"] == Value::Bool(true))
    }

    /// What ended the last run of a task that has ended.
    pub async fn ended_by(&self, task: TaskId) -> Result<Option<EndedBy>, CommandError> {
        let answer = self.server.client.why(task).await.map_err(|error| self.error(&error))?;
        let why: WhyAnswer = self.read(answer)?;
        Ok(why.reasons.iter().find_map(|reason| match reason {
            Reason::Resolved { ended_by, .. } => *ended_by,
            Reason::Dependencies { .. }
            | Reason::Delay { .. }
            | Reason::Waiting { .. }
            | Reason::Assigned { .. }
            | Reason::NoSession { .. }
            | Reason::NotAccepted { .. }
            | Reason::AssignQueue
            | Reason::Paused { .. }
            | Reason::Reserved { .. }
            | Reason::NoWorker { .. }
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
            // It was resolved in between.
            Err(Error::Refused { status: 409, .. }) | Ok(_) => Ok(()),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// Where the event log ends.
    pub async fn log_end(&self) -> Result<i64, CommandError> {
        let answer = self.send(Method::GET, &format!("{EVENTS}?after=latest"), None).await?;
        self.read(answer["after"].clone())
    }

    /// The ends of runs in the queues of this provisioner, between two positions of the event log.
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

    /// The status of the answer to a call that a task's state may forbid.
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

    /// Credentials that may not do what is to be done are wrong arguments: they say nothing of the server.
    fn error(&self, error: &Error) -> CommandError {
        match (error.status(), self.server.error(error)) {
            (Some(401 | 403), CommandError::Refused(message)) => CommandError::Usage(message),
            (_, other) => other,
        }
    }
}
