//! HTTP handlers of the floor, the baseline server: each checks the signature, parses the body and
//! submits to a batch.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::routing::{get, post, put};
use serde::Deserialize;
use serde_json::Value;
use tenure_api::credentials::{Credentials, SigningKey};
use tenure_api::hawk::{Header, Target, payload_hash};
use tenure_api::ids::SlugId;

use super::batches::{Batches, Creation};

struct Server {
    batches: Batches,
    key: SigningKey,
    /// Credentials for reports, as JSON. A server of the Queue API issues temporary ones for each
    /// claim.
    credentials: String,
    host: String,
    port: u16,
}

/// A task definition. All fields are parsed, because parsing is part of the measured work.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Definition {
    task_queue_id: String,
    scheduler_id: String,
    project_id: String,
    task_group_id: String,
    dependencies: Vec<String>,
    requires: String,
    routes: Vec<String>,
    priority: String,
    retries: u32,
    created: String,
    deadline: String,
    expires: String,
    scopes: Vec<String>,
    payload: Value,
    metadata: HashMap<String, String>,
    tags: HashMap<String, String>,
    extra: Value,
}

/// A response body, or an error status.
type Answer = Result<String, StatusCode>;

pub(super) fn routes(batches: Batches, credentials: &Credentials, address: SocketAddr) -> std::io::Result<Router> {
    let server = Server {
        batches,
        key: credentials.access_token.key(),
        credentials: serde_json::to_string(credentials)?,
        host: address.ip().to_string(),
        port: address.port(),
    };
    Ok(Router::new()
        .route("/api/queue/v1/task/{task}", put(create))
        .route("/api/queue/v1/claim-work/{queue}", post(claim))
        .route("/api/queue/v1/task/{task}/runs/{run}/completed", post(complete))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(server)))
}

impl Server {
    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Result<(), StatusCode> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let header = text(AUTHORIZATION).and_then(|value| Header::parse(value).ok()).ok_or(StatusCode::UNAUTHORIZED)?;
        let target = Target { method: method.as_str(), resource: uri.path(), host: &self.host, port: self.port };
        let hash = payload_hash(text(CONTENT_TYPE).unwrap_or_default(), body);
        let whole = header.hash.map_or(body.is_empty(), |signed| hash.matches(signed));
        if whole && header.signed_by(&self.key, &target) { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) }
    }
}

async fn create(
    State(server): State<Arc<Server>>,
    Path(task): Path<SlugId>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    server.check(&method, &uri, &headers, &body)?;
    let parsed: Definition = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let priority = match parsed.priority.as_str() {
        "highest" => 0,
        "very-high" => 1,
        "high" => 2,
        "medium" => 3,
        "low" => 4,
        "very-low" => 5,
        _ => 6,
    };
    let definition = String::from_utf8(body.to_vec()).map_err(|_| StatusCode::BAD_REQUEST)?;
    let creation = Creation { task: task.uuid(), priority, definition };
    server.batches.create.submit(creation).await.ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    let queue = parsed.task_queue_id;
    Ok(format!(r#"{{"status":{{"taskId":"{task}","state":"pending","taskQueueId":"{queue}"}}}}"#))
}

async fn claim(State(server): State<Arc<Server>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Answer {
    server.check(&method, &uri, &headers, &body)?;
    let claimed = server.batches.claim.submit(()).await.ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    let Some(claimed) = claimed else { return Ok(r#"{"tasks":[]}"#.to_owned()) };
    let task = SlugId::from_uuid(claimed.task).ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    let (credentials, definition) = (&server.credentials, claimed.definition);
    Ok(format!(
        r#"{{"tasks":[{{"status":{{"taskId":"{task}"}},"runId":0,"credentials":{credentials},"task":{definition}}}]}}"#
    ))
}

async fn complete(
    State(server): State<Arc<Server>>,
    Path((task, _run)): Path<(SlugId, u16)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    server.check(&method, &uri, &headers, &body)?;
    server.batches.report.submit(task.uuid()).await.ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(format!(r#"{{"status":{{"taskId":"{task}","state":"completed"}}}}"#))
}

async fn metrics(State(server): State<Arc<Server>>) -> String {
    server.batches.metrics()
}
