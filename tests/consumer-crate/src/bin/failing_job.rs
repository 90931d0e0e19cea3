//! A worker whose only job fails. With an argument it has a `tracing` subscriber.

#[path = "../../tests/server/mod.rs"]
mod server;

use std::sync::Arc;
use std::time::Duration;

use tenure_client::consumer::source::ClaimWork;
use tenure_client::consumer::{Consumer, Job, Stop};
use tenure_client::{Client, WorkerName};
use tokio::net::TcpListener;
use tokio::sync::Notify;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if std::env::args_os().len() > 1 {
        tracing::dispatcher::set_global_default(tracing::dispatcher::Dispatch::none()).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::builder().root_url(&format!("http://{}", listener.local_addr().unwrap())).build().unwrap();
    let serving = tokio::spawn(server::serve(listener, r#"{"to": "nobody"}"#));
    let queue: tenure_client::TaskQueueId = "acme/mail".parse().unwrap();
    let me = WorkerName { group: "g".parse().unwrap(), id: "w".parse().unwrap() };
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let consumer = Consumer::builder(client.clone(), queue.clone())
        .name("g", "w")
        .source(ClaimWork::new(client, queue, me))
        .handler(move |_job: Job, _stop: Stop| {
            begins.notify_one();
            async { Err::<(), _>("no such mailbox") }
        })
        .build()
        .unwrap();
    // A shutdown waits for the report.
    let worked = consumer.run_until(begun.notified());
    tokio::time::timeout(Duration::from_secs(20), worked).await.expect("it ends").unwrap();
    serving.abort();
}
