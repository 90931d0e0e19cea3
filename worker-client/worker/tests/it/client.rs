//! The client: signatures, retries, and claims.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_client::keep::Terms;
use tenure_client::{
    AccessToken, Client, Credentials, Error, ExceptionReason, Failure, LostBecause, Renewal, Reported, RetryPolicy,
    WorkerName,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::mailbox::{Mailbox, QUEUES};
use crate::queue::{Queue, Reply, TASK_IDS, TOKEN, claim, ok, refuse, renewed};

const LEASE: Duration = Duration::from_secs(60);

fn client(queue: &Queue, retry: RetryPolicy) -> Client {
    let access_token = AccessToken::new(TOKEN.into());
    let credentials = Credentials { client_id: "worker".into(), access_token, certificate: None };
    Client::builder().root_url(&queue.root_url()).credentials(credentials).retry_policy(retry).build().unwrap()
}

fn eager() -> RetryPolicy {
    RetryPolicy::default().first_pause(Duration::from_millis(1))
}

fn me() -> WorkerName {
    WorkerName { group: "g".parse().unwrap(), id: "w".parse().unwrap() }
}

async fn claim_one(client: &Client) -> tenure_client::Claim {
    client.claim_work(&"p/w".parse().unwrap(), &me(), 1).await.unwrap().pop().unwrap()
}

#[tokio::test]
async fn parameters_are_encoded_and_calls_signed() {
    let queue = Queue::start().await;
    let client = client(&queue, eager());
    queue.on("counts", |_| ok(json!({"taskQueueId": "p/w", "pendingTasks": 3, "claimedTasks": 2})));
    let counts = client.counts(&"p/w".parse().unwrap()).await.unwrap();
    assert_eq!((counts.pending_tasks, counts.claimed_tasks), (3, 2));
    client.claim_work(&"p/w".parse().unwrap(), &me(), 99).await.unwrap();
    assert_eq!(queue.requests("counts")[0].call, "GET /api/queue/v1/task-queues/p%2Fw/counts");
    let request = &queue.requests("p%2Fw")[0];
    assert_eq!(request.call, "POST /api/queue/v1/claim-work/p%2Fw");
    assert_eq!(request.body, json!({"workerGroup": "g", "workerId": "w", "tasks": 32}));
    assert_eq!(request.signed_by, "worker");
}

#[tokio::test]
async fn claim_reports_why_it_ends() {
    let queue = Queue::start().await;
    let client = client(&queue, RetryPolicy::never());
    queue.hand_out(&[0, 1].map(|at| claim(TASK_IDS[at], LEASE, &json!({}))));
    let mut claims = client.claim_work(&"p/w".parse().unwrap(), &me(), 2).await.unwrap();
    let failure = |message: &str| Failure { message: message.to_owned(), kind: None, exit_code: Some(7) };
    claims.pop().unwrap().fail_because(&failure("exit\0code")).await.unwrap();
    let reason = ExceptionReason::ResourceUnavailable;
    claims.pop().unwrap().exception_because(reason, &failure("no disk")).await.unwrap();
    let sent = |message: &str| json!({"message": message, "exitCode": 7});
    assert_eq!(queue.requests("failed")[0].body, json!({"failure": sent("exit\u{fffd}code")}));
    let exception = json!({"reason": "resource-unavailable", "failure": sent("no disk")});
    assert_eq!(queue.requests("exception")[0].body, exception);
}

#[tokio::test]
async fn later_page_of_keys_is_requested_in_query() {
    let queue = Queue::start().await;
    let client = client(&queue, RetryPolicy::never());
    queue.on("/keys", |_| ok(json!({"keys": []})));
    for continuation in [None, Some("a/b+c=")] {
        client.list_queue_keys(&"p/w".parse().unwrap(), continuation).await.unwrap();
    }
    let asked = queue.requests("/keys");
    assert!(asked.iter().all(|request| request.call == "GET /api/tenure/v1/queues/p%2Fw/keys"), "{asked:?}");
    let queries: Vec<&str> = asked.iter().map(|request| request.query.as_str()).collect();
    assert_eq!(queries, ["", "continuationToken=a%2Fb%2Bc%3D"]);
}

#[tokio::test]
async fn answer_that_is_no_object_is_error() {
    let queue = Queue::start().await;
    let client = client(&queue, RetryPolicy::never());
    for strange in [json!([]), json!("ok"), json!(1), json!(null)] {
        queue.once("/list", ok(strange.clone()));
        queue.once("/status", ok(strange.clone()));
        let listed = client.list_group(TASK_IDS[0].parse().unwrap()).await;
        assert!(matches!(listed, Err(Error::BadAnswer(_))), "{strange}: {listed:?}");
        let found = client.get_task(TASK_IDS[0].parse().unwrap()).await;
        assert!(matches!(found, Err(Error::BadAnswer(_))), "{strange}: {found:?}");
    }
}

#[tokio::test]
async fn retries_end_and_dead_server_is_error() {
    let queue = Queue::start().await;
    queue.on("counts", |_| refuse(503));
    let error = client(&queue, eager()).counts(&"p/w".parse().unwrap()).await.unwrap_err();
    assert_eq!((error.status(), queue.requests("counts").len()), (Some(503), 6));

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dead = Client::builder().root_url(&format!("http://{closed}")).retry_policy(eager()).build().unwrap();
    assert!(matches!(dead.counts(&"p/w".parse().unwrap()).await, Err(Error::Network(_))));
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let queue = Queue::start().await;
    queue.once("counts", Reply { headers: vec![("retry-after", "1".into())], ..refuse(429) });
    queue.once("counts", ok(json!({"pendingTasks": 0, "claimedTasks": 0})));
    let start = Instant::now();
    client(&queue, eager()).counts(&"p/w".parse().unwrap()).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn wrong_clock_is_corrected() {
    let queue = Queue::start().await;
    let header = |status| Reply { headers: vec![("date", "Fri, 01 Jan 2100 00:00:00 GMT".into())], ..refuse(status) };
    queue.once("counts", header(401));
    queue.once("counts", Reply { body: json!({"pendingTasks": 0, "claimedTasks": 0}), ..header(200) });
    let client = client(&queue, RetryPolicy::never());
    client.counts(&"p/w".parse().unwrap()).await.unwrap();
    let year_2100 = 4_102_444_800;
    let signed: Vec<i64> = queue.requests("counts").iter().map(|request| request.timestamp).collect();
    assert!(signed[0] < year_2100 && (signed[1] - year_2100).abs() <= 5, "{signed:?}");
    assert!((client.now().time().timestamp() - year_2100).abs() <= 5, "{}", client.now());
}

#[tokio::test]
async fn lease_counts_from_start_of_slow_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let body = json!({"tasks": [claim(TASK_IDS[0], LEASE, &json!({}))]}).to_string();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before_the_body = tokio::time::Instant::now();
        stream.write_all(body.as_bytes()).await.unwrap();
        // Kept open until it is read.
        (before_the_body, stream)
    });
    let client = Client::builder().root_url(&format!("http://{address}")).build().unwrap();
    let claim = claim_one(&client).await;
    let (before_the_body, _stream) = answering.await.unwrap();
    assert!(claim.lease().ends() <= before_the_body + LEASE);
}

#[tokio::test]
async fn renewal_is_retried_despite_retry_after() {
    let queue = Queue::start().await;
    queue.hand_out(&[claim(TASK_IDS[0], Duration::from_secs(8), &json!({}))]);
    queue.once("reclaim", Reply { headers: vec![("retry-after", "30".into())], ..refuse(503) });
    queue.on("reclaim", |_| renewed(16_000, "task-1"));
    let mut claim = claim_one(&client(&queue, RetryPolicy::default())).await;
    tokio::select! {
        unkept = claim.keep(Terms::default()) => panic!("{unkept:?}"),
        _renewals = queue.wait_for("reclaim", 2) => {}
    }
}

#[tokio::test]
async fn attempt_counts_used_retries() {
    for (retries, left, attempt) in [(json!(5), 5, 1), (json!(5), 3, 3), (json!(2), 3, 1), (json!(null), 5, 1)] {
        let queue = Queue::start().await;
        let mut claimed = claim(TASK_IDS[0], LEASE, &json!({}));
        let allowed: Option<u32> = serde_json::from_value(retries.clone()).unwrap();
        claimed["task"]["retries"] = retries;
        claimed["status"]["retriesLeft"] = json!(left);
        queue.hand_out(&[claimed]);
        let claimed = claim_one(&client(&queue, eager())).await;
        assert_eq!((claimed.attempt(), claimed.task().retries), (attempt, allowed));
    }
}

#[tokio::test]
async fn lost_claim_is_a_value() {
    for status in [403, 404, 409, 410] {
        let queue = Queue::start().await;
        queue.hand_out(&[claim(TASK_IDS[0], LEASE, &json!({}))]);
        queue.on("reclaim", move |_| refuse(status));
        queue.on("completed", move |_| refuse(status));
        let mut claim = claim_one(&client(&queue, eager())).await;
        let because = LostBecause::Refused { status, message: "the test says no".into() };
        assert!(matches!(claim.reclaim().await.unwrap(), Renewal::Lost(lost) if lost.because == because));
        assert!(matches!(claim.complete().await.unwrap(), Reported::Lost(lost) if lost.because == because));
    }
}

#[tokio::test]
async fn failed_report_returns_claim() {
    let queue = Queue::start().await;
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &json!({}))]);
    queue.once("completed", refuse(503));
    let claim = claim_one(&client(&queue, RetryPolicy::never())).await;
    let refused = claim.complete().await.unwrap_err();
    assert_eq!(refused.error.status(), Some(503));
    assert!(matches!(refused.claim.complete().await.unwrap(), Reported::Accepted(_)));
}

#[tokio::test]
async fn poll_error_has_code_and_message() {
    let mailbox = Mailbox::open(json!({})).await;
    let client = client(&mailbox.queue, eager());
    let urls = client.poll_task_urls(&"p/w".parse().unwrap()).await.unwrap();
    let xml = "<?xml version=\"1.0\"?><Error><Code>ServerBusy</Code><Message>come later\nRequestId:1</Message></Error>";
    let headers = vec![("x-ms-error-code", "ServerBusy".to_owned())];
    mailbox.queue.once(QUEUES[0], Reply { headers, xml: Some(xml.into()), ..refuse(503) });
    let error = client.messages(&urls.queues[0], 1).await.err().unwrap();
    assert_eq!(error.to_string(), "the queue answered 503 ServerBusy: come later");
    assert_eq!(mailbox.queue.requests(QUEUES[0]).len(), 1);
}
