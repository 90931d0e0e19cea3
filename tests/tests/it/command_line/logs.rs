//! `tenure task logs` and `tenure task run`: their output, during and after the run, and their exit
//! codes.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, binary};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;

use super::{QUEUE, account, created, done, run, start_worker};
use crate::artifacts::put;
use crate::rig::{
    Rig, TIMEOUT, call, client_of, credentials_of, eventually, finish, minutes_from_now, new_task, ok, refusal, run_of,
    stderr, stdout, tenure,
};

async fn claim(rig: &Rig) -> Value {
    eventually("there is a task to claim", async || rig.claim(QUEUE, 1).await.pop()).await
}

async fn append(rig: &Rig, claim: &Value, offset: u64, text: &str) -> u64 {
    let (task, run) = (claim["status"]["taskId"].as_str().unwrap(), &claim["runId"]);
    let path = format!("{TENURE_API}/tasks/{task}/runs/{run}/live-log?offset={offset}");
    let answer =
        client_of(&rig.server).call(&credentials_of(claim), "PUT", &path, Some(text.as_bytes())).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["next"].as_u64().unwrap()
}

async fn store_log(rig: &Rig, claim: &Value, text: &'static str) {
    let path = format!("{}/artifacts/public/logs/live_backing.log", run_of(claim));
    let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
    let answer = ok(call(&mut rig.client(), &credentials_of(claim), "POST", &path, Some(&body)).await);
    let stored = put(rig, answer["putUrl"].as_str().unwrap(), "text/plain", text.as_bytes()).await;
    assert_eq!(stored.status, 200, "{}", stored.text());
}

async fn report(rig: &Rig, claim: &Value, how: &str, body: Option<Value>) {
    rig.report(claim, how, body.as_ref()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_followed_to_its_end_or_read_as_far_as_it_is() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "make"]).await;
    assert!(refusal(&run(&rig, &["task", "logs", &task]).await, 1).contains("has no log"));
    let work = async {
        let claim = claim(&rig).await;
        let next = append(&rig, &claim, 0, "one\n").await;
        assert_eq!(done(&rig, &["task", "logs", &task]).await, "one\n", "as far as it is");
        append(&rig, &claim, next + 100, "two\n").await;
        report(&rig, &claim, "completed", None).await;
    };
    let follow = ["task", "logs", "-f", &task];
    let (output, ()) = tokio::join!(run(&rig, &follow), work);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let whole = "one\n\n[tenure] 100 bytes of the log are missing here\ntwo\n";
    assert_eq!(stdout(&output), whole);
    assert_eq!(done(&rig, &["task", "logs", &task, "--run", "0", "--follow"]).await, whole, "it has ended");
    for (args, expected) in [
        (&["task", "logs", &task, "--run", "1"][..], "has no run 1"),
        (&["task", "logs", &new_task().to_string()], "does not exist"),
    ] {
        let line = refusal(&run(&rig, args).await, 1);
        assert!(line.contains(expected), "{line}");
    }
    let line = refusal(&run(&rig, &["task", "logs", &task, "--json"]).await, 2);
    assert!(line.contains("--json: a log is printed unchanged"), "{line}");
}

/// The server is killed during a follow, and away for longer than an ordinary command would wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_survives_absence_of_server() {
    const AWAY: Duration = Duration::from_secs(8);
    let mut rig = Rig::start().await;
    let address = rig.server.root_url().trim_start_matches("http://").to_owned();
    let mut command = std::process::Command::new(binary());
    command.args(["task", "run", "-q", QUEUE, "--", "make"]).envs(account(&rig));
    let command = tokio::spawn(finish(command));
    let first = claim(&rig).await;
    append(&rig, &first, 0, "before\n").await;
    rig.server.kill().unwrap();
    tokio::time::sleep(AWAY).await;
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key).listen(address);
    rig.server = launch.start(rig.folder.path(), "again").await;
    append(&rig, &first, "before\n".len() as u64, "after\n").await;
    report(&rig, &first, "completed", None).await;
    let output = command.await.unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "before\nafter\n"), "{}", stderr(&output));
}

/// The worker stores a shortened log, unlike the followed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differing_stored_log_is_printed_from_its_start() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "make"]).await;
    let work = async {
        let claim = claim(&rig).await;
        append(&rig, &claim, 0, "the first line\nthe second line\n").await;
        // If the command starts later, it has printed nothing, and prints the same in the end.
        tokio::time::sleep(Duration::from_secs(2)).await;
        store_log(&rig, &claim, "[left out]\nthe end\n").await;
        report(&rig, &claim, "completed", None).await;
    };
    let follow = ["task", "logs", "-f", &task];
    let (output, ()) = tokio::join!(run(&rig, &follow), work);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).ends_with("[left out]\nthe end\n"), "{}", stdout(&output));
}

/// The store has sent a part and hangs, and the command may be interrupted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_log_has_no_file_while_it_is_downloaded() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "make"]).await;
    let claim = claim(&rig).await;
    let store = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/log", store.local_addr().unwrap());
    let path = format!("{}/artifacts/public/logs/live_backing.log", run_of(&claim));
    let expires = minutes_from_now(60);
    let body = json!({"storageType": "reference", "contentType": "text/plain", "expires": expires, "url": url});
    let answer = call(&mut rig.client(), &credentials_of(&claim), "POST", &path, Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    report(&rig, &claim, "completed", None).await;
    let temporary = rig.folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let temporary = temporary.canonicalize().unwrap();
    let mut command = Command::new(binary());
    command.args(["task", "logs", &task]).envs(account(&rig)).env("TMPDIR", &temporary);
    let command = command.stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let (mut stream, _) = tokio::time::timeout(TIMEOUT, store.accept()).await.unwrap().unwrap();
    let (mut request, mut piece) = (Vec::new(), [0; 4_096]);
    while !request.ends_with(b"\r\n\r\n") {
        let length = tokio::time::timeout(TIMEOUT, stream.read(&mut piece)).await.unwrap().unwrap();
        assert_ne!(length, 0, "it asks for the log");
        request.extend_from_slice(&piece[..length]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\na line\n").await.unwrap();
    let open = format!("/proc/{}/fd", command.id().unwrap());
    eventually("it has a file to write to", async || {
        let mut files = std::fs::read_dir(&open).unwrap().filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        files.any(|file| file.starts_with(&temporary)).then_some(())
    })
    .await;
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}

/// An interrupt in the middle leaves no chance for cleanup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_log_has_no_file_left_while_it_is_printed() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "make"]).await;
    let claim = claim(&rig).await;
    store_log(&rig, &claim, "a line\n".repeat(100_000).leak()).await;
    report(&rig, &claim, "completed", None).await;
    let temporary = rig.folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = Command::new(binary());
    command.args(["task", "logs", &task]).envs(account(&rig)).env("TMPDIR", &temporary);
    let mut command = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut begun = [0; 6];
    let read = command.stdout.as_mut().unwrap().read_exact(&mut begun);
    tokio::time::timeout(TIMEOUT, read).await.unwrap().unwrap();
    assert_eq!((&begun, std::fs::read_dir(&temporary).unwrap().count()), (b"a line", 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_prints_log_and_exits_with_code_of_task() {
    let rig = Rig::start().await;
    let work = async {
        let first = claim(&rig).await;
        append(&rig, &first, 0, "first\n").await;
        report(&rig, &first, "exception", Some(json!({"reason": "worker-shutdown"}))).await;
        let second = claim(&rig).await;
        append(&rig, &second, 0, "second\n").await;
        report(&rig, &second, "failed", Some(json!({"failure": {"message": "exit code 3", "exitCode": 3}}))).await;
        second["status"]["taskId"].as_str().unwrap().to_owned()
    };
    let (output, task) = tokio::join!(run(&rig, &["task", "run", "-q", QUEUE, "--", "make", "all"]), work);
    let progress = stderr(&output);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), "first\nsecond\n"), "{progress}");
    let lines: Vec<&str> = progress.lines().collect();
    assert_eq!(lines[..2], [&*format!("task {task}  {}/task/{task}", rig.server.root_url()), "run 1 follows"]);
    assert!(lines[2].starts_with("Failed on group/worker after ") && lines.len() == 3, "{progress}");
    assert!(lines[2].ends_with(": exit code 3"), "{progress}");
    let output = run(&rig, &["task", "run", "-q", QUEUE, "--after", &task, "--", "true"]).await;
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{}", stderr(&output));
    assert!(stderr(&output).lines().last().unwrap().contains(": cannot run, make all "), "{}", stderr(&output));
    let output = run(&rig, &["task", "run", "--json", "-q", QUEUE, "--after", &task, "--", "true"]).await;
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((output.status.code(), &answer["status"]["state"]), (Some(1), &json!("unscheduled")), "{answer}");
}

/// The command's temporary directory, which receives a stored log first, is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_without_readable_log_exits_with_code_of_task() {
    let rig = Rig::start().await;
    let work = async {
        let claim = claim(&rig).await;
        store_log(&rig, &claim, "not shown\n").await;
        report(&rig, &claim, "failed", Some(json!({"failure": {"message": "exit code 3", "exitCode": 3}}))).await;
    };
    let env = [account(&rig).as_slice(), &[("TMPDIR", "/nowhere")]].concat();
    let (output, ()) = tokio::join!(tenure(&["task", "run", "-q", QUEUE, "--", "make"], &env), work);
    let progress = stderr(&output);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), ""), "{progress}");
    assert!(progress.contains("the log of run 0 is not shown to its end: "), "{progress}");
    let last = progress.lines().last().unwrap();
    assert!(last.starts_with("Failed on ") && last.ends_with(": exit code 3"), "{progress}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_run_prints_outcome_and_sends_log_to_stderr() {
    let rig = Rig::start().await;
    let failure = json!({"message": "exit code 3", "exitCode": 3});
    let work = async {
        let claim = claim(&rig).await;
        append(&rig, &claim, 0, "a line of the log\n").await;
        report(&rig, &claim, "failed", Some(json!({ "failure": failure }))).await;
        claim["status"]["taskId"].clone()
    };
    let (output, task) = tokio::join!(run(&rig, &["task", "run", "--json", "-q", QUEUE, "--", "make"]), work);
    let (answer, aside) = (stdout(&output), stderr(&output));
    let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!((output.status.code(), &answer["status"]["taskId"]), (Some(3), &task), "{aside}");
    assert_eq!((&answer["status"]["state"], &answer["failure"]), (&json!("failed"), &failure), "{answer}");
    assert!(aside.lines().any(|line| line == "a line of the log"), "{aside}");
}

/// For `x=$(tenure task run …)`: lines of the worker and the server go to standard error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_prints_the_output_of_its_command_alone() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    for (script, expected) in [
        ("echo 42", "42\n"),
        ("printf 42", "42\n"),
        ("echo begun; sleep 3; echo done", "begun\ndone\n"),
        ("echo '[tenure'; echo ' [tenure-worker] x'", "[tenure\n [tenure-worker] x\n"),
        ("true", ""),
    ] {
        let output = run(&rig, &["task", "run", "-q", QUEUE, "--", "sh", "-c", script]).await;
        let aside = stderr(&output);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), expected), "{script}: {aside}");
        assert!(aside.lines().any(|line| line == "[tenure-worker] exit code 0"), "{aside}");
        assert!(aside.lines().last().unwrap().starts_with("Completed on "), "{aside}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_prints_lines_of_the_server_aside() {
    let rig = Rig::start().await;
    let work = async {
        let claim = claim(&rig).await;
        let next = append(&rig, &claim, 0, "one\n[tenure-wor").await;
        append(&rig, &claim, next + 100, "two\n[tenure-worker] exit").await;
        report(&rig, &claim, "completed", None).await;
    };
    let (output, ()) = tokio::join!(run(&rig, &["task", "run", "-q", QUEUE, "--", "make"]), work);
    let aside = stderr(&output);
    assert_eq!(stdout(&output), "one\n[tenure-wor\ntwo\n", "{aside}");
    for line in ["[tenure] 100 bytes of the log are missing here", "[tenure-worker] exit"] {
        assert!(aside.lines().any(|printed| printed == line), "{aside}");
    }
}
