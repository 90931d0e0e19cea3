//! The OpenAPI document against a real server. Each operation is sent as in its example, by a
//! client with exactly the described scopes, and must succeed as described. Refusals are in
//! `endpoints/table`.

mod fits;
mod signed_bodies;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub use fits::fits;

use crate::rig::{Raw, Rig, new_task, ok};
use crate::sse::Stream;

/// Operations in order: later ones depend on earlier ones. `new task` puts another task into the
/// examples.
const WALK: &[&str] = &[
    "ping",
    "heartbeat",
    "lbheartbeat",
    "livez",
    "readyz",
    "version",
    "metrics",
    "robots",
    "openapi",
    "docs",
    "docsFile",
    "manifest",
    "reference",
    "schema",
    "commonSchema",
    "createTask",
    "task",
    "status",
    "pendingTasks",
    "taskQueueCounts",
    "taskQueueCountsBatch",
    "tasks",
    "statuses",
    "listPendingTasks",
    "listClaimedTasks",
    "pollTaskUrls",
    "claimWork",
    "claimTask",
    "reclaimTask",
    "appendLiveLog",
    "getLiveLog",
    "putTaskCommand",
    "getTaskCommand",
    "putCheckpoint",
    "getCheckpoint",
    "createArtifact",
    "listArtifacts",
    "listLatestArtifacts",
    "artifactInfo",
    "latestArtifactInfo",
    "getArtifact",
    "getLatestArtifact",
    "artifact",
    "latestArtifact",
    "createUpload",
    "finishUpload",
    "startDownload",
    "object",
    "download",
    "reportCompleted",
    "getTaskResult",
    "new task",
    "createTask",
    "claimTask",
    "reportFailed",
    "new task",
    "createTask",
    "claimTask",
    "reportException",
    "new task",
    "createTask",
    "claimTask",
    "work",
    "new task",
    "createTask",
    "claimTask",
    "releaseTask",
    "new task",
    "createTask",
    "listDependentTasks",
    "scheduleTask",
    "changeTaskPriority",
    "changeTaskGroupPriority",
    "getTaskGroup",
    "listTaskGroup",
    "cancelTask",
    "waitForTask",
    "whyTask",
    "rerunTask",
    "sealTaskGroup",
    "cancelTaskGroup",
    "createTasks",
    "listTasks",
    "listRefusedEnqueues",
    "listQueues",
    "putSchedule",
    "schedule",
    "listSchedules",
    "triggerSchedule",
    "pauseSchedule",
    "resumeSchedule",
    "deleteSchedule",
    "putSubscription",
    "subscription",
    "listSubscriptions",
    "testSubscription",
    "resumeSubscription",
    "deleteSubscription",
    "putPartition",
    "partition",
    "tickPartition",
    "leavePartition",
    "deletePartition",
    "listServers",
    "listAudit",
    "listProblems",
    "putQueuePolicy",
    "queuePolicy",
    "putQueueKey",
    "queueKey",
    "listQueueKeys",
    "deleteQueueKey",
    "pauseQueue",
    "getQueue",
    "getQueueStatistics",
    "getStatistics",
    "listDeadLetters",
    "redriveQueue",
    "resumeQueue",
    "deleteQueuePolicy",
    "startSession",
    "getSession",
    "sessionInbox",
    "renewSession",
    "commandSession",
    "listQueueWorkers",
    "endSession",
    "listTaskQueues",
    "getTaskQueue",
    "listProvisioners",
    "getProvisioner",
    "listWorkerTypes",
    "getWorkerType",
    "listWorkers",
    "getWorker",
    "quarantineWorker",
    "declareWorker",
    "createRole",
    "role",
    "updateRole",
    "listRoles",
    "listRoles2",
    "listRoleIds",
    "expandScopes",
    "currentScopes",
    "createClient",
    "client",
    "updateClient",
    "resetAccessToken",
    "disableClient",
    "enableClient",
    "listClients",
    "deleteClient",
    "deleteRole",
    "createWorker",
    "worker",
    "updateWorker",
    "registerWorker",
    "shouldWorkerTerminate",
    "workerRemoved",
    "removeWorker",
    "purgeCache",
    "purgeRequests",
    "allPurgeRequests",
    "authenticateHawk",
    "testAuthenticate",
    "listEvents",
    "streamEvents",
    "getClock",
    "advanceClock",
    // Last, because it cancels tasks.
    "startJob",
    "getJob",
    "stopJob",
    "listJobs",
];
/// Operations with a signature or a secret, which no document can contain; other tests send them.
const BY_SIGNATURE: &[&str] = &[
    "getMessageQueue",
    "getMessages",
    "updateMessage",
    "deleteMessage",
    "testAuthenticateGet",
    "reregisterWorker",
    "uploadArtifact",
    "downloadArtifact",
];

/// Operations with the uploadId of an answer; other tests send them.
const BY_UPLOAD: &[&str] = &["finishArtifact"];

/// Operations with a queue that assigns its runs, where workers of the walk would get nothing;
/// other tests send them.
const BY_SCHEDULER: &[&str] = &["replaceScheduler"];

/// Operations with a task that was enqueued from SQL and refused; other tests send them.
const BY_ENQUEUE: &[&str] = &["retryEnqueue"];

pub struct Operation {
    pub method: String,
    pub path: String,
    pub described: Value,
}

impl Operation {
    pub fn all(document: &Value) -> Vec<Self> {
        let of_path = |(path, methods): (&String, &Value)| {
            let methods = methods.as_object().unwrap().iter();
            let one = |(method, described): (&String, &Value)| Self {
                method: method.to_uppercase(),
                path: path.clone(),
                described: described.clone(),
            };
            methods.map(one).collect::<Vec<_>>()
        };
        document["paths"].as_object().unwrap().iter().flat_map(of_path).collect()
    }

    pub fn find(document: &Value, name: &str) -> Self {
        let found = Self::all(document).into_iter().find(|operation| operation.name() == name);
        found.unwrap_or_else(|| panic!("the document has no {name}"))
    }

    pub fn name(&self) -> &str {
        self.described["operationId"].as_str().unwrap()
    }

    pub fn parameters(&self, place: &str) -> Vec<String> {
        let parameters = self.described["parameters"].as_array().unwrap().iter();
        let names = parameters.filter(|one| one["in"] == place).map(|one| one["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    pub fn refusals(&self) -> Vec<String> {
        let responses = self.described["responses"].as_object().unwrap().values();
        let codes = |response: &Value| {
            let schema = &response["content"]["application/json"]["schema"];
            schema["properties"]["code"]["enum"].as_array().cloned().unwrap_or_default()
        };
        responses.flat_map(codes).map(|code| code.as_str().unwrap().to_owned()).collect()
    }

    pub fn refuses(&self, code: &str) -> bool {
        self.refusals().iter().any(|known| known == code)
    }

    pub fn body(&self) -> Value {
        self.described["requestBody"]["content"]["application/json"]["example"].clone()
    }

    /// The object whose fields a scope uses: the body, its task, or the first of its tasks, which
    /// are alike in these fields.
    fn fields(&self) -> Value {
        let body = self.body();
        match (&body["tasks"][0], &body["task"]) {
            (Value::Null, Value::Null) => body,
            (Value::Null, task) => task.clone(),
            (first, _) => first.clone(),
        }
    }

    fn value(&self, name: &str) -> String {
        let body = self.fields();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let parameters = self.described["parameters"].as_array().unwrap();
        let parameter = |name: &str| parameters.iter().find(|one| one["name"] == name).map(|one| text(&one["example"]));
        match name {
            _ if !body[name].is_null() => text(&body[name]),
            "projectId" => "none".to_owned(),
            "schedulerId" => "-".to_owned(),
            // The path does not name the task's group: its first task has the same id.
            "taskGroupId" => parameter(name).or_else(|| parameter("taskId")).unwrap(),
            // The path does not name the task's queue.
            "taskQueueId" => parameter(name).unwrap_or_else(|| "acme/linux".to_owned()),
            // The path does not name the session's worker.
            "workerGroup" => parameter(name).unwrap_or_else(|| "rack-1".to_owned()),
            "workerId" => parameter(name).unwrap_or_else(|| "worker-1".to_owned()),
            _ => parameter(name).unwrap_or_else(|| panic!("{}: no value for <{name}>", self.path)),
        }
    }

    fn scopes(&self, expression: &Value) -> Vec<String> {
        if let Some(scope) = expression.as_str() {
            return vec![self.fill(scope)];
        }
        if let Some(parts) = expression["AllOf"].as_array() {
            return parts.iter().flat_map(|part| self.scopes(part)).collect();
        }
        if let Some(parts) = expression["AnyOf"].as_array() {
            return self.scopes(&parts[0]);
        }
        if let Some(condition) = expression["if"].as_str() {
            // No example meets the condition.
            let known = ["optionsHaveDelivery", "resultIsAskedFor", "callerStartedTheJob"];
            assert!(known.contains(&condition), "{condition}");
            return Vec::new();
        }
        let (each, body) = (expression["each"].as_str().unwrap(), self.fields());
        let list = match expression["in"].as_str().unwrap() {
            "prioritiesFromHighestToThatOfTheTask" => json!([body["priority"]]),
            "scopesThatAreNew" => body["scopes"].clone(),
            // The name of an artifact that is no link.
            "names" => json!([self.value("name")]),
            name => body[name].clone(),
        };
        let placeholder = format!("<{}>", expression["for"].as_str().unwrap());
        let items = list.as_array().cloned().unwrap_or_default();
        items.iter().map(|item| self.fill(&each.replace(&placeholder, item.as_str().unwrap()))).collect()
    }

    fn fill(&self, text: &str) -> String {
        match text
            .split_once('<')
            .and_then(|(before, rest)| rest.split_once('>').map(|(name, after)| (before, name, after)))
        {
            Some((before, name, after)) => format!("{before}{}{}", self.value(name), self.fill(after)),
            None => text.to_owned(),
        }
    }

    fn target(&self) -> String {
        let mut target = self.path.clone();
        let mut query = Vec::new();
        for parameter in self.described["parameters"].as_array().unwrap() {
            let name = parameter["name"].as_str().unwrap();
            if parameter["in"] == "path" {
                target = target.replace(&format!("{{{name}}}"), &self.value(name).replace('/', "%2F"));
            } else if !parameter["example"].is_null() {
                query.push(format!("{name}={}", parameter["example"]));
            }
        }
        if query.is_empty() { target } else { format!("{target}?{}", query.join("&")) }
    }

    pub fn request(&self) -> Raw {
        let body = self.body();
        let text = &self.described["requestBody"]["content"]["text/plain"]["example"];
        let bytes = match text.as_str() {
            Some(text) => Some(text.as_bytes().to_vec()),
            None => (!body.is_null()).then(|| body.to_string().into_bytes()),
        };
        Raw::new(&self.method, &self.target()).json(bytes.as_deref())
    }
}

pub fn basic(id: &str, token: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{id}:{token}")))
}

async fn make_client(rig: &Rig, id: &str, scopes: &[String]) -> String {
    let body = json!({"description": "", "expires": "2999-01-01T00:00:00Z", "scopes": scopes});
    let answer = ok(rig.call("PUT", &format!("/api/auth/v1/clients/{id}"), Some(&body)).await);
    basic(id, answer["accessToken"].as_str().unwrap())
}

async fn fetch(rig: &Rig) -> Value {
    let reply = rig.send(&Raw::new("GET", "/openapi.json")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn with_another_task(document: &Value) -> Value {
    with_another(document, "/paths/~1api~1queue~1v1~1task~1{taskId}/get/parameters/0", &new_task().to_string())
}

fn with_another(document: &Value, parameter: &str, value: &str) -> Value {
    let example = document.pointer(parameter).expect("the document has the parameter")["example"].clone();
    let text = document.to_string().replace(example.as_str().expect("the parameter has an example"), value);
    serde_json::from_str(&text).expect("a document stays one")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_succeeds_with_the_described_scopes() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    let mut document = fetch(&rig).await;
    let mut sent = BTreeSet::new();
    for (turn, name) in WALK.iter().enumerate() {
        if *name == "new task" {
            document = with_another_task(&document);
            continue;
        }
        sent.insert((*name).to_owned());
        let operation = Operation::find(&document, name);
        let expression = &operation.described["x-taskcluster-scopes"];
        if expression.is_null() {
            fits(&document, name, &operation, &rig.send(&operation.request()).await);
            continue;
        }
        let scopes = operation.scopes(expression);
        let id = format!("example-{turn}");
        if !operation.described["responses"]["200"]["content"]["text/event-stream"].is_null() {
            let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
            let caller = rig.make_client(&id, &scopes).await;
            Stream::open(&rig.server, &caller, "").await.begun().await;
            continue;
        }
        let caller = make_client(&rig, &id, &scopes).await;
        let reply = rig.send(&operation.request().authorization(&caller)).await;
        assert!((200..400).contains(&reply.status), "{name} with {scopes:?}: {}", reply.text());
        fits(&document, name, &operation, &reply);
        if *name == "startJob" {
            let job = reply.json()["jobId"].as_str().unwrap().to_owned();
            document = with_another(&document, "/paths/~1api~1tenure~1v1~1jobs~1{jobId}/get/parameters/0", &job);
        }
        if *name == "startSession" {
            let session = reply.json()["sessionId"].as_str().unwrap().to_owned();
            document =
                with_another(&document, "/paths/~1api~1tenure~1v1~1sessions~1{sessionId}/get/parameters/0", &session);
        }
    }
    let paths = document["paths"].as_object().unwrap();
    let all = paths.values().flat_map(|methods| methods.as_object().unwrap().values());
    let unsent: Vec<&str> = all
        .filter_map(|described| described["operationId"].as_str())
        .filter(|name| {
            !sent.contains(*name) && ![BY_SIGNATURE, BY_UPLOAD, BY_SCHEDULER, BY_ENQUEUE].concat().contains(name)
        })
        .collect();
    assert!(unsent.is_empty(), "add to WALK in tests/tests/it/openapi.rs: {unsent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_interface_comes_from_the_server_alone() {
    let rig = Rig::start().await;
    let moved = rig.send(&Raw::new("GET", "/docs")).await;
    assert_eq!((moved.status, moved.header("location")), (308, Some("docs/")));
    let page = rig.send(&Raw::new("GET", "/docs/")).await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
    assert!(!page.text().contains("http://") && !page.text().contains("https://"), "{}", page.text());
    assert!(page.text().contains("<a href=\"../workers\">Workers</a>"), "{}", page.text());
    for file in [
        "swagger-ui.css",
        "swagger-ui-bundle.js",
        "swagger-ui-standalone-preset.js",
        "swagger-initializer.js",
        "tenure.css",
        "tenure.js",
    ] {
        let reply = rig.send(&Raw::new("GET", &format!("/docs/{file}")).header("origin", "http://x")).await;
        assert_eq!(reply.status, 200, "{file}");
        assert_eq!(reply.header("content-security-policy"), Some(policy), "{file}");
    }
    let elsewhere = rig.send(&Raw::new("GET", "/api/queue/v1/ping").header("origin", "http://x")).await;
    assert_eq!(elsewhere.header("content-security-policy"), Some("default-src 'none'"));
}
