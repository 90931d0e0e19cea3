//! `tenure events`: prints events as they happen, even if the stream is cut.

use serde_json::{Value, json};
use tenure_tests::server::binary;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};

use super::{QUEUE, account};
use crate::rig::{Rig, TIMEOUT, definition, new_task, refusal, tenure};

struct Printing {
    _command: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Printing {
    fn start(account: &[(&str, &str)], args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.arg("events").args(args).envs(account.iter().copied());
        let mut command = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(command.stdout.take().unwrap()).lines();
        Self { _command: command, lines }
    }

    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(TIMEOUT, self.lines.next_line()).await.expect("an event comes");
        serde_json::from_str(&line.unwrap().expect("the command goes on")).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_printed_as_they_happen_one_a_line() {
    let rig = Rig::start().await;
    let names = ["--after", "0", "--exchange", "task-running", "--exchange", "task-pending"];
    let mut printing = Printing::start(&account(&rig), &names);
    let tasks = [new_task(), new_task()];
    for task in tasks {
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
        let event = printing.next().await;
        assert_eq!(event["exchange"], "exchange/taskcluster-queue/v1/task-pending");
        assert_eq!(event["payload"]["status"]["taskId"], json!(task));
    }
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let running = printing.next().await;
    assert_eq!(running["exchange"], "exchange/taskcluster-queue/v1/task-running");
    let before = (running["position"].as_u64().unwrap() - 1).to_string();
    let mut again = Printing::start(&account(&rig), &["--after", &before, "--json"]);
    assert_eq!(again.next().await, running);

    let unknown = tenure(&["events", "--exchange", "task-lost"], &account(&rig)).await;
    assert!(refusal(&unknown, 1).contains("`exchange`"));
    let [_, id, token] = account(&rig);
    let away = tenure(&["events"], &[("TASKCLUSTER_ROOT_URL", "http://127.0.0.1:9"), id, token]).await;
    assert!(refusal(&away, 1).contains("http://127.0.0.1:9 does not answer"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_is_opened_again_where_it_was() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let root_url = format!("http://{}", listener.local_addr().unwrap());
    let mut printing = Printing::start(&[("TASKCLUSTER_ROOT_URL", &root_url)], &[]);
    let streams = [
        (
            "after=latest",
            "id: 5\n\nid: 6\nevent: task-pending\ndata: {\"position\":6}\n\n: keep-alive\nid: 9\n\nid: 10\nev",
        ),
        ("after=9", "id: 9\n\nid: 10\nevent: task-pending\ndata: {\"position\":10}\n\n"),
        ("after=10", "id: 10\n\nid: 11\nevent: task-pending\ndata: {\"position\":11}\n\n"),
    ];
    for ((query, frames), position) in streams.into_iter().zip([6, 10, 11]) {
        let (mut socket, _) = tokio::time::timeout(TIMEOUT, listener.accept()).await.expect("it comes back").unwrap();
        let mut request = vec![0; 4096];
        let length = socket.read(&mut request).await.unwrap();
        let head = String::from_utf8_lossy(&request[..length]).into_owned();
        assert!(head.starts_with(&format!("GET /api/tenure/v1/events/stream?{query} HTTP/1.1\r\n")), "{head}");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{frames}");
        socket.write_all(answer.as_bytes()).await.unwrap();
        drop(socket);
        assert_eq!(printing.next().await, json!({ "position": position }));
    }
}
