//! The server as PID 1, as in a container without an init.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tenure_tests::server::{Launch, Server};
use tenure_tests::wire::Target;
use tokio::net::TcpStream;

use super::signals::half_a_request;
use crate::rig::{Raw, Rig, call, claim_path, client_of, embedded, eventually, new_folder, worker};

/// True if a PID namespace can be created here. Otherwise prints that the test is skipped.
fn can_unshare(test: &str) -> bool {
    let mut unshare = Command::new("unshare");
    let made = unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "true"]).stderr(Stdio::null()).status();
    let can = made.is_ok_and(|status| status.success());
    if !can {
        let line = format!("SKIPPED 1 test: {test}: no PID namespace can be made here, which takes unshare and root\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    can
}

#[derive(Debug)]
struct Process {
    pid: Pid,
    parent: Pid,
    name: String,
    is_zombie: bool,
}

fn processes() -> Vec<Process> {
    let read = |entry: std::fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let is_zombie = fields.next()? == "Z";
        let parent = Pid::from_raw(fields.next()?.parse().ok()?);
        Some(Process { pid, parent, name: name.to_owned(), is_zombie })
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(read).collect()
}

fn children(parent: Pid) -> Vec<Process> {
    processes().into_iter().filter(|process| process.parent == parent).collect()
}

fn zombies(parent: Pid) -> usize {
    children(parent).iter().filter(|process| process.is_zombie).count()
}

fn descendants(of: Pid) -> Vec<Process> {
    let mut found = children(of);
    let mut at = 0;
    while at < found.len() {
        let more = children(found[at].pid);
        found.extend(more);
        at += 1;
    }
    found
}

fn pid_one(server: &Server) -> Pid {
    let [first] = &children(Pid::from_raw(i32::try_from(server.pid()).unwrap()))[..] else { panic!("one child") };
    first.pid
}

/// PostgreSQL's own processes; all others are sessions.
const OWN_PROCESSES: usize = 6;

/// Waits until a PostgreSQL below this process has sessions of its server, and returns its
/// postmaster. Skips `killed`, which may be listed for a moment.
async fn used_postmaster(first: Pid, killed: Option<Pid>) -> Pid {
    eventually("PostgreSQL has sessions", async || {
        let is_used = |it: &Process| it.name == "postgres" && !it.is_zombie && children(it.pid).len() > OWN_PROCESSES;
        descendants(first).iter().find(|it| is_used(it) && Some(it.pid) != killed).map(|it| it.pid)
    })
    .await
}

async fn start(launch: Launch) -> (TempDir, Server, Pid) {
    let folder = new_folder();
    let server = launch.as_pid_one().start(folder.path(), "data").await;
    let first = pid_one(&server);
    (folder, server, first)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pid_one_reaps_orphans_of_crashed_postgresql() {
    if !can_unshare("pid_one_reaps_orphans_of_crashed_postgresql") {
        return;
    }
    let (_folder, mut server, first) = start(embedded()).await;
    let mut postmaster = used_postmaster(first, None).await;
    for _ in 0..2 {
        let sessions = children(postmaster);
        kill(postmaster, Signal::SIGKILL).unwrap();
        for session in sessions {
            let _ = kill(session.pid, Signal::SIGKILL);
        }
        postmaster = used_postmaster(first, Some(postmaster)).await;
    }
    println!("{} zombies", zombies(first));
    eventually("no zombie is left", async || (zombies(first) == 0).then_some(())).await;
    kill(first, Signal::SIGTERM).unwrap();
    assert!(server.ended().await.success(), "{}", server.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pid_one_drains_on_sigterm() {
    if !can_unshare("pid_one_drains_on_sigterm") {
        return;
    }
    let rig = Rig::start().await;
    let (_folder, mut server, first) = start(Launch::on_database(rig.database.url(), &rig.secret_key)).await;
    let mut client = client_of(&server);
    let (claims, body) = (claim_path("pid/one"), worker(1));
    let (answer, ()) = tokio::join!(call(&mut client, &rig.root, "POST", &claims, Some(&body)), async {
        let metric = "tenure_batch_waiting{operation=\"claim\"} 1";
        eventually("the request waits", async || {
            let text = Raw::new("GET", "/metrics").send(server.root_url()).await.text();
            text.lines().any(|line| line == metric).then_some(())
        })
        .await;
        kill(first, Signal::SIGTERM).unwrap();
    });
    assert_eq!((answer.status, answer.body["tasks"].as_array().map(Vec::len)), (200, Some(0)), "{}", answer.body);
    assert!(server.ended().await.success(), "{}", server.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pid_one_ends_with_exit_code_of_server() {
    if !can_unshare("pid_one_ends_with_exit_code_of_server") {
        return;
    }
    let rig = Rig::start().await;
    let launch = || Launch::on_database(rig.database.url(), &rig.secret_key);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = new_folder();
    let refused = launch().listen(taken.local_addr().unwrap().to_string()).as_pid_one().command(folder.path()).output();
    assert_eq!(refused.unwrap().status.code(), Some(2));
    let (_folder, mut server, first) = start(launch()).await;
    let target = Target::parse(server.root_url()).unwrap();
    let _half = half_a_request(&server, &target).await;
    kill(first, Signal::SIGTERM).unwrap();
    eventually("the server takes no more connections", async || {
        TcpStream::connect((target.host.as_str(), target.port)).await.is_err().then_some(())
    })
    .await;
    assert!(!server.has_ended());
    kill(first, Signal::SIGTERM).unwrap();
    assert_eq!(server.ended().await.code(), Some(143));
    let (_folder, mut server, first) = start(launch()).await;
    let [inner] = &children(first)[..] else { panic!("PID 1 has one child, the server") };
    kill(inner.pid, Signal::SIGKILL).unwrap();
    assert_eq!(server.ended().await.code(), Some(137));
}
