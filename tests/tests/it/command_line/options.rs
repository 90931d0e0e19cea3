//! Options of `tenure task create` and `run`, artifacts, exit codes, and the line that says why
//! nothing starts.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use super::interrupted::interruptible;
use super::{QUEUE, account, answer, created, done, run, start_worker};
use crate::rig::{Rig, TIMEOUT, definition, new_task, ok, refusal, stderr, stdout};

/// The task that `task run` names first on standard error.
fn task_in(stderr: &str) -> String {
    stderr.lines().find_map(|line| line.strip_prefix("task ")?.split(' ').next()).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_are_made_listed_downloaded_and_used() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    let make = [
        "task",
        "run",
        "-q",
        QUEUE,
        "--env",
        "WORD=42",
        "--max-run-time",
        "10m",
        "--artifact",
        "sum.txt=public/sum.txt",
        "--artifact",
        "out/=public/out",
        "--",
        "sh",
        "-c",
        "mkdir out; echo a > out/a; echo $WORD | tee sum.txt",
    ];
    let output = run(&rig, &make).await;
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "42\n"), "{}", stderr(&output));
    let task = task_in(&stderr(&output));
    let list = done(&rig, &["task", "artifacts", &task]).await;
    assert!(list.starts_with("BYTES  STORED AS  TYPE") && list.contains("  public/out/a\n"), "{list}");
    let listed = answer(&rig, &["task", "artifacts", &task, "--run", "0"]).await;
    assert!(listed["artifacts"].as_array().unwrap().iter().any(|artifact| artifact["name"] == "public/sum.txt"));

    let folder = rig.folder.path().to_str().unwrap();
    let told = done(&rig, &["task", "download", &task, "public/sum.txt", "-o", folder]).await;
    let file = rig.folder.path().join("sum.txt");
    assert_eq!(told, format!("{}: 3 bytes\n", file.display()));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "42\n");
    assert_eq!(done(&rig, &["task", "download", &task, "public/sum.txt", "-o", "-"]).await, "42\n");
    let missing = run(&rig, &["task", "download", &task, "public/none", "--output", folder]).await;
    assert!(refusal(&missing, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&missing));
    assert!(!rig.folder.path().join("none").exists());

    let input = format!("{task}/public/sum.txt=in/sum.txt");
    let output = run(&rig, &["task", "run", "-q", QUEUE, "--input", &input, "--", "cat", "in/sum.txt"]).await;
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "42\n"), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_name_tasks_of_the_same_request() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    let graph = json!({"tasks": [
        {"name": "use", "taskQueueId": QUEUE, "dependencies": ["make it"], "payload": {
            "command": [["grep", "made", "in.txt"]],
            "inputs": [{"taskId": "make it", "artifact": "public/out.txt", "path": "in.txt"}]}},
        {"name": "make it", "taskQueueId": QUEUE, "payload": {
            "command": [["sh", "-c", "echo made > out.txt"]],
            "artifacts": [{"name": "public/out.txt", "path": "out.txt", "type": "file"}]}},
    ]});
    let path = rig.folder.path().join("inputs.json");
    std::fs::write(&path, graph.to_string()).unwrap();
    let output = run(&rig, &["task", "create", "--wait", "--file", path.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_exits_like_shell_without_exit_code() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    for (command, code) in [
        (&["no-such-program"][..], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "exit 3"], 3),
    ] {
        let output = run(&rig, &[&["task", "run", "-q", QUEUE, "--"], command].concat()).await;
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_of_create_reach_the_task() {
    let rig = Rig::start().await;
    let first = created(&rig, &["--", "true"]).await;
    let options = ["--group", &first, "--delay", "1h", "--key", "acme", "--", "true"];
    let task = created(&rig, &options).await;
    let shown = answer(&rig, &["task", "show", &task]).await;
    assert_eq!(shown["status"]["taskGroupId"], first);
    assert_eq!(shown["task"]["extra"]["tenure"], json!({"delay": 3_600, "key": "acme"}));
    let why = done(&rig, &["task", "why", &task]).await;
    assert!(why.starts_with("It is delayed until "), "{why}");
}

fn start(rig: &Rig, args: &[&str]) -> (Child, Lines<BufReader<ChildStderr>>) {
    let mut command = interruptible();
    command.args(args).envs(account(rig)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    (child, lines)
}

async fn next_with(lines: &mut Lines<BufReader<ChildStderr>>, part: &str) -> String {
    let found = async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap_or_else(|| panic!("no line has {part:?}"));
            if line.contains(part) {
                return line;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, found).await.unwrap_or_else(|_| panic!("no line has {part:?} yet"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_run_cancels_its_task() {
    let rig = Rig::start().await;
    let args = ["task", "run", "--cancel-on-interrupt", "-q", QUEUE, "--unique", "one", "--", "true"];
    let (mut child, mut lines) = start(&rig, &args);
    let task = task_in(&next_with(&mut lines, "task ").await);
    let coalesce = [&args[..7], &["--on-duplicate", "coalesce"], &args[7..]].concat();
    let (mut second, mut second_lines) = start(&rig, &coalesce);
    assert_eq!(task_in(&next_with(&mut second_lines, "task ").await), task);
    interrupt(&second);
    next_with(&mut second_lines, "existed before and is not cancelled").await;
    assert_eq!(second.wait().await.unwrap().code(), Some(130));
    interrupt(&child);
    next_with(&mut lines, &format!("task {task} is cancelled")).await;
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
    let status: Value = answer(&rig, &["task", "show", &task]).await["status"].take();
    assert_eq!((&status["state"], &status["runs"][0]["reasonResolved"]), (&json!("exception"), &json!("canceled")));
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()), Signal::SIGINT).unwrap();
}

/// A reader that stops reading blocks the command, which must end nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_download_to_output_ends() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    // More than a pipe holds.
    let make = ["task", "run", "-q", QUEUE, "--artifact", "zeros=public/zeros", "--", "sh", "-c"];
    let output = run(&rig, &[&make[..], &["head -c 4000000 /dev/zero > zeros"]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let task = task_in(&stderr(&output));
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let mut command = interruptible();
        command.args(["task", "download", &task, "public/zeros", "-o", "-"]).envs(account(&rig));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        tokio::time::timeout(TIMEOUT, out.read_u8()).await.unwrap().unwrap();
        kill(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()), signal).unwrap();
        next_with(&mut lines, "interrupted").await;
        let ended = tokio::time::timeout(TIMEOUT, child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("the download goes on after {signal}")).unwrap();
        assert_eq!(status.code(), Some(code), "{signal}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_list_has_conditions_on_project_and_end() {
    let rig = Rig::start().await;
    let (mut body, task) = (definition(QUEUE), new_task());
    body["projectId"] = json!("acme");
    ok(rig.create(task, &body).await);
    rig.create_one(QUEUE).await;
    for (conditions, number) in
        [(&["--project", "acme"][..], 1), (&["--project", "none", "--since", "1h"], 1), (&["--until", "1h"], 0)]
    {
        let listed = answer(&rig, &[&["task", "list", "--queue", QUEUE], conditions].concat()).await;
        assert_eq!(listed["tasks"].as_array().map(Vec::len), Some(number), "{conditions:?}: {listed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_says_why_nothing_starts() {
    let rig = Rig::start().await;
    done(&rig, &["queue", "pause", QUEUE, "--reason", "the disks are full"]).await;
    let task = created(&rig, &["--", "true"]).await;
    let later = created(&rig, &["--after", &task, "--", "true"]).await;
    let last = created(&rig, &["--after", &task, "--", "true"]).await;
    let commands = [
        (&["task", "run", "-q", QUEUE, "--", "true"][..], "(the disks are full)"),
        (&["task", "wait", &task, &later], "(the disks are full)"),
        (&["task", "wait", &later], "It waits for 1 task"),
        (&["task", "wait", &later, &last], "It waits for 1 task"),
        (&["task", "logs", "-f", &task], "(the disks are full)"),
        (&["task", "logs", "-f", &later], "It waits for 1 task"),
    ];
    let started: Vec<_> = commands.iter().map(|(args, why)| (start(&rig, args), args, why)).collect();
    for ((_child, mut lines), args, why) in started {
        let line = next_with(&mut lines, " does not start: ").await;
        assert!(line.contains(why), "{args:?}: {line}");
    }
}
