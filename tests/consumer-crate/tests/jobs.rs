//! Payloads that a handler gets, from a server in this test.

mod server;

use consumer_crate::Shape;
use serde::de::DeserializeOwned;
use tenure_client::Client;
use tenure_client::RawValue;
use tenure_client::consumer::source::ClaimWork;
use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Returns the payload of a job, parsed for its handler, and raw as in its definition.
async fn handled<P: DeserializeOwned + Send + Sync + 'static>(payload: &'static str) -> (P, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(server::serve(listener, payload));
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
