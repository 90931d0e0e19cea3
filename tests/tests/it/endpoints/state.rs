//! A server, and the states in which the cases begin.

use std::cell::Cell;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tenure_api::ids::{SessionId, SlugId};
use tenure_tests::clock::{unix_millis, wire_date};

use super::row::{State, Who, a_task, a_task_with, an_upload, an_upload_with};
use crate::rig::{Raw, RawReply, Rig, Signature, new_task};

/// Characters that a path parameter may have unescaped.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
pub const QUEUE_API: &str = "/api/queue/v1";
const AUTH_API: &str = "/api/auth/v1";
const WORKERS_API: &str = "/api/worker-manager/v1";
const QUEUES: &str = "/api/tenure/v1/queues";
const SESSIONS: &str = "/api/tenure/v1/sessions";
const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;

/// Values of the placeholders of a case.
pub type Facts = BTreeMap<&'static str, String>;

pub struct Bench {
    pub rig: Rig,
    root: String,
    without_scopes: String,
    ahead_ms: Cell<i64>,
    states: Cell<u32>,
    audit: tokio::sync::Mutex<sqlx::PgConnection>,
    moving: tokio::sync::Mutex<()>,
}

impl Bench {
    pub async fn start() -> Self {
        let settings =
            |launch: tenure_tests::server::Launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "1s");
        let rig = Rig::start_with(settings).await;
        let audit = tokio::sync::Mutex::new(rig.database.connect("audit").await);
        let root = basic(&rig.root.client_id, rig.root.access_token.expose());
        let without_scopes = rig.make_client("nobody", &[]).await;
        let without_scopes = basic(&without_scopes.client_id, without_scopes.access_token.expose());
        Self {
            rig,
            root,
            without_scopes,
            ahead_ms: Cell::new(0),
            states: Cell::new(0),
            audit,
            moving: tokio::sync::Mutex::new(()),
        }
    }

    pub fn sign(&self, who: Who, request: Raw) -> Raw {
        match who {
            Who::Root => request.authorization(&self.root),
            Who::WithoutScopes => request.authorization(&self.without_scopes),
            Who::Impostor => request.authorization(&basic("nobody", "wrong")),
            Who::Anonymous => request,
            Who::Tester => {
                let tester = tenure_api::credentials::Credentials {
                    client_id: "tester".to_owned(),
                    access_token: tenure_api::credentials::AccessToken::new("no-secret".to_owned()),
                    certificate: None,
                };
                let (method, target) = (request.method.clone(), request.target.clone());
                let of = Signature::of(&self.rig.server);
                let signature = Signature { who: &tester, method: &method, target: &target, ..of };
                request.authorization(&signature.header())
            }
        }
    }

    /// Returns how many changes of this operation the request with this trace id has recorded.
    pub async fn count_recorded(&self, trace_id: &str, operation: &str) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM audit WHERE trace_id = $1 AND action = $2");
        let mut conn = self.audit.lock().await;
        count.bind(trace_id).bind(operation).fetch_one(&mut *conn).await.unwrap()
    }

    pub async fn must(&self, method: &str, target: &str, body: Option<&Value>) -> Value {
        let body = body.map(|body| body.to_string().into_bytes());
        let reply: RawReply =
            self.rig.send(&self.sign(Who::Root, Raw::new(method, target).json(body.as_deref()))).await;
        assert!((200..300).contains(&reply.status), "{method} {target}: {}", reply.text());
        reply.json()
    }

    fn new_facts(&self) -> Facts {
        let number = self.states.replace(self.states.get() + 1);
        let now = unix_millis() + self.ahead_ms.get();
        let (task, worker_type) = (new_task().to_string(), format!("q{number}"));
        Facts::from([
            ("taskGroupId", task.clone()),
            ("taskId", task),
            ("missing", new_task().to_string()),
            ("runId", "0".to_owned()),
            ("taskQueueId", format!("endpoints/{worker_type}")),
            ("workerPoolId", format!("endpoints/{worker_type}")),
            ("provisionerId", "endpoints".to_owned()),
            ("workerType", worker_type),
            ("workerGroup", "group".to_owned()),
            ("workerId", "worker".to_owned()),
            ("name", format!("logs/{number}")),
            ("projectId", "endpoints".to_owned()),
            ("uploadId", new_task().to_string()),
            ("sessionId", SessionId::new(new_task().uuid()).to_string()),
            ("secret", "s".repeat(44)),
            ("clientId", format!("client/{number}")),
            ("roleId", format!("role:{number}")),
            ("created", wire_date(now)),
            ("deadline", wire_date(now + HOUR_MS)),
            ("soon", wire_date(now + MINUTE_MS)),
            ("past", wire_date(now - HOUR_MS)),
            ("lately", wire_date(now - MINUTE_MS)),
            ("in4Days", wire_date(now + 96 * HOUR_MS)),
            ("expires", wire_date(now + 24 * HOUR_MS)),
        ])
    }

    pub async fn make(&self, state: State) -> Facts {
        let mut facts = self.new_facts();
        match state {
            State::Nothing => {}
            State::Pending => self.create(&facts, a_task()).await,
            State::Unscheduled | State::Required => {
                let required = new_task().to_string();
                self.must("PUT", &format!("{QUEUE_API}/task/{required}"), Some(&fill(&a_task(), &facts))).await;
                facts.insert("required", required.clone());
                self.create(&facts, a_task_with(json!({"dependencies": [required]}))).await;
                // Lists are in the order of the ids' bits, not of their letters.
                let mut both: Vec<SlugId> = [&facts["taskId"], &required].map(|id| id.parse().unwrap()).to_vec();
                both.sort_by_key(|id| id.uuid());
                facts.insert("first", both[0].to_string());
                facts.insert("second", both[1].to_string());
                if state == State::Required {
                    facts.insert("dependent", facts["taskId"].clone());
                    facts.insert("taskId", required);
                }
            }
            State::Claimed | State::Completed => {
                self.create(&facts, a_task()).await;
                self.claim(&facts).await;
                if state == State::Completed {
                    self.must("POST", &run(&facts, "completed"), None).await;
                }
            }
            State::Cancelled => {
                self.create(&facts, a_task()).await;
                self.must("POST", &format!("{QUEUE_API}/task/{}/cancel", facts["taskId"]), None).await;
            }
            State::Overdue => {
                // One at a time: a concurrent advance of the clock would expire a task that is just
                // created.
                let _moving = self.moving.lock().await;
                facts = self.new_facts();
                self.create(&facts, a_task_with(json!({"deadline": "<soon>", "expires": "<expires>"}))).await;
                self.claim(&facts).await;
                self.advance(MINUTE_MS).await;
            }
            State::Sealed => {
                self.create(&facts, a_task()).await;
                self.must("POST", &format!("{QUEUE_API}/task-group/{}/seal", facts["taskGroupId"]), None).await;
            }
            State::Client => {
                let body = json!({"description": "", "expires": facts["expires"]});
                self.must("PUT", &target(&format!("{AUTH_API}/clients/{{clientId}}"), &facts), Some(&body)).await;
            }
            State::Limited => self.limit(&facts).await,
            State::Artifacts | State::Uploaded | State::Finished | State::Stored => {
                self.create(&facts, a_task()).await;
                self.claim(&facts).await;
                self.make_artifacts(state, &mut facts).await;
            }
            State::Upload | State::Object => self.make_object(&facts, &an_upload(), state == State::Object).await,
            State::OldObject => {
                self.make_object(&facts, &an_upload_with(json!({"expires": "<lately>"})), true).await;
            }
            State::Role => {
                let body = json!({"description": "", "scopes": []});
                self.must("PUT", &target(&format!("{AUTH_API}/roles/{{roleId}}"), &facts), Some(&body)).await;
            }
            State::Session | State::SessionEnded => {
                self.create(&facts, a_task()).await;
                self.start_session(&mut facts).await;
                if state == State::SessionEnded {
                    self.must("DELETE", &target(&format!("{SESSIONS}/{{sessionId}}"), &facts), None).await;
                }
            }
            State::WorkerCreated | State::Registered | State::Removed => self.make_worker(&mut facts, state).await,
        }
        facts
    }

    async fn create(&self, facts: &Facts, body: Value) {
        self.must("PUT", &format!("{QUEUE_API}/task/{}", facts["taskId"]), Some(&fill(&body, facts))).await;
    }

    async fn claim(&self, facts: &Facts) {
        let worker = json!({"workerGroup": "group", "workerId": "worker"});
        self.must("POST", &run(facts, "claim"), Some(&worker)).await;
    }

    async fn limit(&self, facts: &Facts) {
        let policy = json!({"concurrency": {"total": 1}});
        self.must("PUT", &target(&format!("{QUEUES}/{{taskQueueId}}/policy"), facts), Some(&policy)).await;
    }

    async fn start_session(&self, facts: &mut Facts) {
        let body = json!({"taskQueueId": "<taskQueueId>", "workerGroup": "group", "workerId": "worker", "ttl": 3600});
        let started = self.must("POST", SESSIONS, Some(&fill(&body, facts))).await;
        facts.insert("sessionId", started["sessionId"].as_str().unwrap().to_owned());
    }

    async fn make_worker(&self, facts: &mut Facts, state: State) {
        let path = target(&format!("{WORKERS_API}/workers/{{workerPoolId}}/{{workerGroup}}/{{workerId}}"), facts);
        let proof = json!({"staticSecret": facts["secret"]});
        self.must("PUT", &path, Some(&json!({"expires": facts["expires"], "providerInfo": proof}))).await;
        if state == State::Registered {
            let body = json!({
                "workerPoolId": facts["workerPoolId"],
                "providerId": "static",
                "workerGroup": facts["workerGroup"],
                "workerId": facts["workerId"],
                "workerIdentityProof": proof,
            });
            let registered = self.must("POST", &format!("{WORKERS_API}/worker/register"), Some(&body)).await;
            facts.insert("secret", registered["secret"].as_str().unwrap().to_owned());
        }
        if state == State::Removed {
            self.must("DELETE", &path, None).await;
        }
    }

    async fn advance(&self, by_ms: i64) {
        self.must("POST", "/api/tenure/v1/clock/advance", Some(&json!({"seconds": by_ms / 1000}))).await;
        self.ahead_ms.set(self.ahead_ms.get() + by_ms);
    }
}

fn basic(id: &str, token: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{id}:{token}")))
}

fn run(facts: &Facts, what: &str) -> String {
    format!("{QUEUE_API}/task/{}/runs/{}/{what}", facts["taskId"], facts["runId"])
}

/// Fills the parameters of a path with facts, each as one segment.
pub fn target(path: &str, facts: &Facts) -> String {
    let mut filled = path.to_owned();
    for (name, value) in facts {
        filled = filled.replace(&format!("{{{name}}}"), &utf8_percent_encode(value, &PLAIN).to_string());
    }
    assert!(!filled.contains('{'), "no fact for a parameter of {path}");
    filled
}

pub fn fill_text(text: &str, facts: &Facts) -> String {
    facts.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value))
}

pub fn fill(body: &Value, facts: &Facts) -> Value {
    match body {
        Value::String(text) => fill_text(text, facts).into(),
        Value::Array(items) => items.iter().map(|item| fill(item, facts)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (fill_text(name, facts), fill(value, facts))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => body.clone(),
    }
}
