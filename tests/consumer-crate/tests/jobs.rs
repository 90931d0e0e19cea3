//! Payloads that a handler gets, from a server in this test.

use consumer_crate::Shape;
use serde::de::DeserializeOwned;
use tenure_client::Client;
use tenure_client::RawValue;
use tenure_client::consumer::source::ClaimWork;
use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const STATUS: &str = r#"{"taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "state": "running", "retriesLeft": 5, "runs": []}"#;

fn claimed(payload: &str) -> String {
    format!(
        r#"{{"tasks": [{{"status": {STATUS}, "runId": 0, "takenUntil": "2999-01-01T00:00:00.000Z",
            "credentials": {{"clientId": "task", "accessToken": "secret"}},
            "task": {{"taskQueueId": "acme/shapes", "taskGroupId": "9HrBC1jMQ3KlZw4CssPUeQ",
                "deadline": "2999-01-01T00:00:00.000Z", "expires": "2999-01-01T00:00:00.000Z", "payload": {payload},
                "metadata": {{"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com"}}}}}}]}}"#
    )
}

async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_lowercase();
            let length = length.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap());
            if body.len() >= length.parse().unwrap() {
                return head.lines().next().map(str::to_owned);
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap() == 0 {
            return None;
        }
    }
}

async fn serve(listener: TcpListener, payload: &'static str) {
    let given = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let given = given.clone();
        tokio::spawn(async move {
            while let Some(line) = request(&mut stream).await {
                let body = if !line.contains("/claim-work/") {
                    format!(r#"{{"status": {STATUS}}}"#)
                } else if given.swap(true, std::sync::atomic::Ordering::SeqCst) {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    r#"{"tasks": []}"#.to_owned()
                } else {
                    claimed(payload)
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            }
        });
    }
}

/// Returns the payload of a job, parsed for its handler, and raw as in its definition.
async fn handled<P: DeserializeOwned + Send + Sync + 'static>(payload: &'static str) -> (P, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(serve(listener, payload));
    let client = Client::builder().root_url(&url).build().unwrap();
    let (sent, mut handled) = mpsc::unbounded_channel();
    let queue: tenure_client::TaskQueueId = "acme/shapes".parse().unwrap();
    let me = tenure_client::WorkerName { group: "g".parse().unwrap(), id: "w".parse().unwrap() };
    let consumer = Consumer::builder(client.clone(), queue.clone())
        .name("g", "w")
        .source(ClaimWork::new(client, queue, me))
        .handler(move |job: Job<P>, _stop: Stop| {
            let definition = job.task().payload.to_string();
            sent.send((job.into_payload(), definition)).unwrap();
            async { Outcome::Completed(None) }
        })
        .build()
        .unwrap();
    let running = tokio::spawn(consumer.run_until(std::future::pending::<()>()));
    let within = std::time::Duration::from_secs(20);
    let payload = tokio::time::timeout(within, handled.recv()).await.expect("no job was handled").unwrap();
    running.abort();
    serving.abort();
    payload
}

#[tokio::test]
async fn tagged_enum_is_a_payload() {
    let (shape, _) = handled::<Shape>(r#"{"t": "square", "side": 2.25}"#).await;
    assert_eq!(shape, Shape::Square { side: 2.25 });
}

#[tokio::test]
async fn raw_payload_keeps_every_digit() {
    for payload in
        [r#"{"n": 123456789012345678901234567890, "x": 0.10000000000000000001, "y": 1.50}"#, r#"[1e400, -0.0]"#]
    {
        let (raw, definition) = handled::<Box<RawValue>>(payload).await;
        assert_eq!((raw.get(), definition.as_str()), (payload, payload));
    }
}
