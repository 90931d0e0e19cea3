//! Sessions of the client library.

use std::time::Duration;

use serde_json::json;
use tenure_client::{
    AccessToken, Client, CommandRequest, Credentials, Error, RenewSessionRequest, RetryPolicy, SessionEnd, SessionId,
    WorkerCommand, WorkerName,
};

use crate::queue::{Queue, Reply, TASK_IDS, TOKEN, ok, refuse};

const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";
const NOW: &str = "2026-01-31T12:00:00.000Z";
const LATER: &str = "2026-01-31T12:02:00.000Z";

fn client(queue: &Queue) -> Client {
    let access_token = AccessToken::new(TOKEN.into());
    let credentials = Credentials { client_id: "worker".into(), access_token, certificate: None };
    Client::builder()
        .root_url(&queue.root_url())
        .credentials(credentials)
        .retry_policy(RetryPolicy::default().first_pause(Duration::from_millis(1)))
        .build()
        .unwrap()
}

fn me() -> WorkerName {
    WorkerName { group: "g".parse().unwrap(), id: "w".parse().unwrap() }
}

fn session() -> SessionId {
    SESSION.parse().unwrap()
}

fn refusal(status: u16, code: &str) -> Reply {
    Reply { body: json!({"code": code, "message": "the server says why\n---\nmore"}), ..refuse(status) }
}

#[tokio::test]
async fn existing_or_ended_session_is_own_error() {
    let queue = Queue::start().await;
    let client = client(&queue);
    let start = me().session(&"p/w".parse().unwrap());
    queue.on("/sessions", |_| refusal(409, "SessionExists"));
    let error = client.start_session(&start).await.unwrap_err();
    assert!(matches!(&error, Error::SessionExists(message) if message == "the server says why"), "{error:?}");
    assert_eq!((error.status(), error.is_transient()), (Some(409), false));
    queue.on("/sessions", |_| refusal(409, "PolicyMismatch"));
    let error = client.start_session(&start).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { status: 409, code, .. } if code == "PolicyMismatch"), "{error:?}");

    queue.on("/inbox", |_| refusal(410, "SessionEnded"));
    queue.on("/renew", |_| refusal(410, "SessionEnded"));
    queue.on("p%2Fw", |_| refusal(410, "SessionEnded"));
    let mine = client.with_session(session());
    for error in [
        client.inbox(session(), 0, Duration::ZERO).await.unwrap_err(),
        client.renew_session(session(), &RenewSessionRequest::default()).await.unwrap_err(),
        mine.claim_work(&"p/w".parse().unwrap(), &me(), 1).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::SessionEnded(message) if message == "the server says why"), "{error:?}");
        assert_eq!((error.status(), error.is_transient()), (Some(410), false));
    }
    for call in ["/sessions", "/inbox", "/renew", "p%2Fw"] {
        assert!(queue.requests(call).len() <= 2, "{call} was repeated");
    }
}

#[tokio::test]
async fn operators_list_and_command_sessions() {
    let queue = Queue::start().await;
    let client = client(&queue);
    let shown = json!({"sessionId": SESSION, "epoch": 7, "taskQueueId": "p/w", "workerGroup": "g", "workerId": "w",
        "ttl": 60, "weight": 1, "capacity": 2, "frozen": false, "started": NOW, "expires": LATER, "running": 0, "assigned": 0,
        "ended": LATER, "endedBy": "expired"});
    queue.on(SESSION, move |_| ok(shown.clone()));
    assert_eq!(client.get_session(session()).await.unwrap().ended_by, Some(SessionEnd::Expired));
    let worker = json!({"workerGroup": "g", "workerId": "w", "sessionId": SESSION, "running": 3, "assigned": 0,
        "capacity": 4, "weight": 1, "frozen": false, "started": NOW, "expires": LATER});
    queue.on("/workers", move |_| ok(json!({ "workers": [worker] })));
    let workers = client.list_workers(&"p/w".parse().unwrap()).await.unwrap().workers;
    assert_eq!((workers.len(), workers[0].session_id, workers[0].running), (1, session(), 3));
    assert_eq!(queue.requests("/workers")[0].call, "GET /api/tenure/v1/queues/p%2Fw/workers");
    queue.on("/commands", |_| Reply { status: 202, ..ok(json!({"id": 9})) });
    let stop = CommandRequest { command: WorkerCommand::StopTask, task_id: Some(TASK_IDS[1].parse().unwrap()) };
    assert_eq!(client.command_session(session(), &stop).await.unwrap(), 9);
    let request = &queue.requests("/commands")[0];
    assert_eq!(request.body, json!({"command": "stop-task", "taskId": TASK_IDS[1]}));
}
