//! Lines on stderr of a program without a `tracing` subscriber.

mod server;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::consumer::source::ClaimWork;
use tenure_client::consumer::{Consumer, Job, Stop};
use tenure_client::{Client, WorkerName};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// Set if the program has a subscriber.
const HEARD: &str = "CONSUMER_CRATE_HEARD";

/// A program of its own: see below.
#[tokio::test]
#[ignore = "started by another test, which reads its stderr"]
async fn program_with_failing_job() {
    if std::env::var_os(HEARD).is_some() {
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

fn stderr(set_up: impl FnOnce(&mut Command)) -> String {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--ignored", "--exact", "program_with_failing_job", "--nocapture"]);
    set_up(&mut program);
    let output = program.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn failed_job_is_a_line_without_subscriber() {
    let text = stderr(|_program| {});
    let line = "tenure: task 9HrBC1jMQ3KlZw4CssPUeQ run 0: the run ended as failed: no such mailbox";
    assert!(text.lines().any(|said| said == line), "{text}");
    let text = stderr(|program| {
        program.env(HEARD, "yes");
    });
    assert!(!text.contains("tenure:"), "{text}");
}
