//! Methods of the generated clients, by name.

use std::time::Duration;

use anyhow::{Error, Result, bail};
use serde_json::Value;
use taskcluster::{Auth, ClientBuilder, Credentials, Object, Queue, Retry};

pub struct Arguments<'a> {
    args: Vec<&'a str>,
    payload: &'a Value,
    query: Option<&'a Value>,
    token: Option<&'a str>,
}

impl<'a> Arguments<'a> {
    pub fn of(step: &'a Value) -> Self {
        let args = step["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        Self { args, payload: &step["payload"], query: step.get("query"), token: None }
    }

    /// Returns this call for the page at `token`.
    pub fn after(mut self, token: Option<&'a str>) -> Self {
        self.token = token;
        self
    }

    fn arg(&self, index: usize) -> &'a str {
        self.args.get(index).copied().unwrap_or_else(|| panic!("the step has no argument {index}"))
    }

    fn query(&self, name: &str) -> Option<&'a str> {
        self.query.and_then(|query| query[name].as_str())
    }

    fn token(&self) -> Option<&'a str> {
        self.token.or_else(|| self.query("continuationToken"))
    }

    fn limit(&self) -> Option<&'a str> {
        self.query("limit")
    }
}

pub enum Service {
    Queue(Queue),
    Auth(Auth),
    Object(Object),
}

impl Service {
    pub fn new(
        name: &str,
        root_url: &str,
        credentials: Option<Credentials>,
        scopes: Option<Vec<String>>,
    ) -> Result<Self> {
        let mut builder = ClientBuilder::new(root_url).retry(Retry::default());
        if let Some(credentials) = credentials {
            builder = builder.credentials(credentials);
        }
        if let Some(scopes) = scopes {
            builder = builder.authorized_scopes(scopes);
        }
        Ok(match name {
            "queue" => Self::Queue(Queue::new(builder)?),
            "auth" => Self::Auth(Auth::new(builder)?),
            "object" => Self::Object(Object::new(builder)?),
            other => bail!("there is no service {other}"),
        })
    }

    pub async fn call(&self, method: &str, with: &Arguments<'_>) -> Result<Option<Value>> {
        match self {
            Self::Auth(auth) => call_auth(auth, method, with).await,
            Self::Object(_) => bail!("the object service is only used through the library's helpers"),
            Self::Queue(queue) => match call_tasks(queue, method, with).await {
                None => match call_artifacts(queue, method, with).await {
                    None => call_workers(queue, method, with).await,
                    Some(answer) => answer,
                },
                Some(answer) => answer,
            },
        }
    }

    pub fn signed_url(&self, method: &str, with: &Arguments<'_>, lasts: Duration) -> Result<String> {
        let Self::Queue(queue) = self else { bail!("only URLs of the queue are signed") };
        match method {
            "task" => queue.task_signed_url(with.arg(0), lasts),
            "listTaskGroup" => queue.listTaskGroup_signed_url(with.arg(0), with.token(), with.limit(), lasts),
            "taskQueueCounts" => queue.taskQueueCounts_signed_url(with.arg(0), lasts),
            "getArtifact" => queue.getArtifact_signed_url(with.arg(0), with.arg(1), with.arg(2), lasts),
            "getLatestArtifact" => queue.getLatestArtifact_signed_url(with.arg(0), with.arg(1), lasts),
            other => bail!("the driver knows no signed URL of {other}"),
        }
    }
}

fn nothing(answer: Result<(), Error>) -> Result<Option<Value>> {
    answer.map(|()| None)
}

async fn call_tasks(q: &Queue, method: &str, with: &Arguments<'_>) -> Option<Result<Option<Value>>> {
    let payload = with.payload;
    let one = |index| with.arg(index);
    let answer = match method {
        "ping" => return Some(nothing(q.ping().await)),
        "heartbeat" => return Some(nothing(q.heartbeat().await)),
        "lbheartbeat" => return Some(nothing(q.lbheartbeat().await)),
        "version" => return Some(nothing(q.version().await)),
        "task" => q.task(one(0)).await,
        "tasks" => q.tasks(payload, with.token(), with.limit()).await,
        "status" => q.status(one(0)).await,
        "statuses" => q.statuses(payload, with.token(), with.limit()).await,
        "createTask" => q.createTask(one(0), payload).await,
        "scheduleTask" => q.scheduleTask(one(0)).await,
        "rerunTask" => q.rerunTask(one(0)).await,
        "cancelTask" => q.cancelTask(one(0)).await,
        "changeTaskPriority" => q.changeTaskPriority(one(0), payload).await,
        "listDependentTasks" => q.listDependentTasks(one(0), with.token(), with.limit()).await,
        "getTaskGroup" => q.getTaskGroup(one(0)).await,
        "listTaskGroup" => q.listTaskGroup(one(0), with.token(), with.limit()).await,
        "sealTaskGroup" => q.sealTaskGroup(one(0)).await,
        "cancelTaskGroup" => q.cancelTaskGroup(one(0)).await,
        "changeTaskGroupPriority" => q.changeTaskGroupPriority(one(0), payload).await,
        "claimWork" => q.claimWork(one(0), payload).await,
        "claimTask" => q.claimTask(one(0), one(1), payload).await,
        "reclaimTask" => q.reclaimTask(one(0), one(1)).await,
        "reportCompleted" => q.reportCompleted(one(0), one(1)).await,
        "reportFailed" => q.reportFailed(one(0), one(1)).await,
        "reportException" => q.reportException(one(0), one(1), payload).await,
        _ => return None,
    };
    Some(answer.map(Some))
}

async fn call_artifacts(q: &Queue, method: &str, with: &Arguments<'_>) -> Option<Result<Option<Value>>> {
    let payload = with.payload;
    let one = |index| with.arg(index);
    let answer = match method {
        "finishArtifact" => return Some(nothing(q.finishArtifact(one(0), one(1), one(2), payload).await)),
        "createArtifact" => q.createArtifact(one(0), one(1), one(2), payload).await,
        "getArtifact" => q.getArtifact(one(0), one(1), one(2)).await,
        "getLatestArtifact" => q.getLatestArtifact(one(0), one(1)).await,
        "listArtifacts" => q.listArtifacts(one(0), one(1), with.token(), with.limit()).await,
        "listLatestArtifacts" => q.listLatestArtifacts(one(0), with.token(), with.limit()).await,
        "artifactInfo" => q.artifactInfo(one(0), one(1), one(2)).await,
        "latestArtifactInfo" => q.latestArtifactInfo(one(0), one(1)).await,
        "artifact" => q.artifact(one(0), one(1), one(2)).await,
        "latestArtifact" => q.latestArtifact(one(0), one(1)).await,
        _ => return None,
    };
    Some(answer.map(Some))
}

async fn call_workers(q: &Queue, method: &str, with: &Arguments<'_>) -> Result<Option<Value>> {
    let payload = with.payload;
    let one = |index| with.arg(index);
    let (token, limit) = (with.token(), with.limit());
    let answer = match method {
        "pendingTasks" => q.pendingTasks(one(0)).await,
        "taskQueueCounts" => q.taskQueueCounts(one(0)).await,
        "taskQueueCountsBatch" => q.taskQueueCountsBatch(payload).await,
        "listPendingTasks" => q.listPendingTasks(one(0), token, limit).await,
        "listClaimedTasks" => q.listClaimedTasks(one(0), token, limit).await,
        "listProvisioners" => q.listProvisioners(token, limit).await,
        "getProvisioner" => q.getProvisioner(one(0)).await,
        "listWorkerTypes" => q.listWorkerTypes(one(0), token, limit).await,
        "getWorkerType" => q.getWorkerType(one(0), one(1)).await,
        "listTaskQueues" => q.listTaskQueues(token, limit).await,
        "getTaskQueue" => q.getTaskQueue(one(0)).await,
        "listWorkers" => q.listWorkers(one(0), one(1), token, limit, with.query("quarantined")).await,
        "getWorker" => q.getWorker(one(0), one(1), one(2), one(3)).await,
        "quarantineWorker" => q.quarantineWorker(one(0), one(1), one(2), one(3), payload).await,
        "declareWorker" => q.declareWorker(one(0), one(1), one(2), one(3), payload).await,
        other => bail!("the driver knows no method {other} of the queue"),
    };
    answer.map(Some)
}

async fn call_auth(auth: &Auth, method: &str, with: &Arguments<'_>) -> Result<Option<Value>> {
    let payload = with.payload;
    let one = |index| with.arg(index);
    let answer = match method {
        "ping" => return nothing(auth.ping().await),
        "deleteClient" => return nothing(auth.deleteClient(one(0)).await),
        "deleteRole" => return nothing(auth.deleteRole(one(0)).await),
        "currentScopes" => auth.currentScopes().await,
        "expandScopes" => auth.expandScopes(payload).await,
        "client" => auth.client(one(0)).await,
        "listClients" => auth.listClients(with.query("prefix"), with.token(), with.limit()).await,
        "createClient" => auth.createClient(one(0), payload).await,
        "updateClient" => auth.updateClient(one(0), payload).await,
        "resetAccessToken" => auth.resetAccessToken(one(0)).await,
        "enableClient" => auth.enableClient(one(0)).await,
        "disableClient" => auth.disableClient(one(0)).await,
        "role" => auth.role(one(0)).await,
        "listRoles" => auth.listRoles().await,
        "listRoles2" => auth.listRoles2(with.token(), with.limit()).await,
        "listRoleIds" => auth.listRoleIds(with.token(), with.limit()).await,
        "createRole" => auth.createRole(one(0), payload).await,
        "updateRole" => auth.updateRole(one(0), payload).await,
        other => bail!("the driver knows no method {other} of auth"),
    };
    answer.map(Some)
}
