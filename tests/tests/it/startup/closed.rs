//! Terminals and pipes that the other side closes.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_tests::http::QUEUE_API;
use tenure_tests::server::{Launch, Server, binary, fresh_secret_key};
use tokio::process::Command;

use crate::rig::{
    DataFolder, Raw, Rig, TIMEOUT, call, claim_path, client_of, embedded, eventually, new_folder, postmaster_of, worker,
};

fn send(server: &Server, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(server.pid()).unwrap()), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_terminal_drains_the_server_as_sigterm_does() {
    let mut rig = Rig::start_with(Launch::with_a_terminal).await;
    let mut waiting = rig.client();
    let path = format!("{QUEUE_API}{}", claim_path("startup/queue"));
    waiting.start(&rig.root, "POST", &path, Some(worker(1).to_string().as_bytes())).await.unwrap();
    let mut database = rig.database.connect("test").await;
    eventually("the request arrives", async || {
        let found = sqlx::query("SELECT FROM task_queues").fetch_optional(&mut database).await.unwrap();
        found.map(|_| ())
    })
    .await;
    // A shell passes on the signal that the terminal sent already: the second one does not hurry
    // the drain.
    send(&rig.server, Signal::SIGHUP);
    send(&rig.server, Signal::SIGHUP);
    let reply = tokio::time::timeout(TIMEOUT, waiting.finish()).await.unwrap().unwrap();
    assert_eq!((reply.status, reply.body.as_slice()), (200, br#"{"tasks":[]}"#.as_slice()));
    assert_eq!(rig.server.ended().await.code(), Some(0), "{}", rig.server.log_tail());
    assert!(rig.server.log().contains("stopped"), "{}", rig.server.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_terminal_stops_the_embedded_postgresql_too() {
    let data_folder = DataFolder::new();
    let (mut server, _) = data_folder.start(&embedded().with_a_terminal()).await;
    send(&server, Signal::SIGHUP);
    assert_eq!(server.ended().await.code(), Some(0), "{}", server.log_tail());
    assert_eq!(postmaster_of(&data_folder.data_dir()), None, "PostgreSQL is left running");
}

/// A port that was free at the call, for servers whose output is not read.
fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

async fn serving(mut command: Command, address: &str) -> tokio::process::Child {
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    eventually("the server listens", async || tokio::net::TcpStream::connect(address).await.ok().map(|_| ())).await;
    let reply = Raw::new("GET", &format!("{QUEUE_API}/ping")).send(&format!("http://{address}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(child.try_wait().unwrap().is_none());
    child
}

pub(super) fn signal(child: &tokio::process::Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()), signal).unwrap();
}

pub(super) async fn ended(child: &mut tokio::process::Child) -> Option<i32> {
    tokio::time::timeout(TIMEOUT, child.wait()).await.expect("the server ends").unwrap().code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_waiting_for_migrations_stops_on_request() {
    let (database, folder, key) = (tenure_tests::db::TestDatabase::create().await, new_folder(), fresh_secret_key());
    let _made = tenure_tests::server::create_root_client(database.url(), &key);
    // Two sessions: inside a transaction all reads of pg_stat_activity see the same.
    let (mut holder, mut looker) = (database.connect("test").await, database.connect("test").await);
    sqlx::raw_sql("BEGIN; LOCK TABLE _sqlx_migrations").execute(&mut holder).await.unwrap();
    let mut command = Command::from(Launch::on_database(database.url(), &key).command(folder.path()));
    let mut server = command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    eventually("the server waits", async || {
        let waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        sqlx::query(waiting).fetch_optional(&mut looker).await.unwrap().map(|_| ())
    })
    .await;
    signal(&server, Signal::SIGTERM);
    assert_eq!(ended(&mut server).await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_output_is_not_read_serves_and_drains() {
    let (database, folder, address) = (tenure_tests::db::TestDatabase::create().await, new_folder(), free_address());
    let launch = Launch::on_database(database.url(), &fresh_secret_key())
        .listen(&address)
        .env("TENURE_LOG", "debug,access=info,sqlx=warn");
    let mut command = Command::from(launch.command(folder.path()));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = serving(command, &address).await;
    signal(&child, Signal::SIGTERM);
    assert_eq!(ended(&mut child).await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_started_by_nohup_outlives_the_terminal() {
    if !std::path::Path::new("/proc/self/status").exists() {
        // Only Linux shows the ignored signals of a process.
        return;
    }
    let (database, folder, address) = (tenure_tests::db::TestDatabase::create().await, new_folder(), free_address());
    let launch = Launch::on_database(database.url(), &fresh_secret_key()).listen(&address).command(folder.path());
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" HUP; exec "$@""#, "sh"]).arg(launch.get_program()).args(launch.get_args());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = serving(command, &address).await;
    signal(&child, Signal::SIGHUP);
    let reply = Raw::new("GET", &format!("{QUEUE_API}/ping")).send(&format!("http://{address}")).await;
    assert_eq!(reply.status, 200);
    // Signals come in no certain order; a draining server would accept no connections.
    let ends = tokio::time::timeout(Duration::from_millis(500), child.wait()).await;
    assert!(ends.is_err(), "the server ended with its terminal");
    signal(&child, Signal::SIGTERM);
    assert_eq!(ended(&mut child).await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_reader_has_gone_ends_in_silence() {
    let rig = Rig::start().await;
    assert!(call(&mut client_of(&rig.server), &rig.root, "GET", "/ping", None).await.is_success());
    for args in [
        &["client", "list"][..],
        &["client", "show", "root", "--json"],
        &["role", "list"],
        &["queue", "list"],
        &["openapi"],
        &["migrate"],
        &["--help"],
        &["--version"],
    ] {
        let mut command = Command::new(binary());
        command
            .args(args)
            .env("DATABASE_URL", rig.database.url())
            .env("TENURE_SECRET_KEY", &rig.secret_key)
            .env("TASKCLUSTER_ROOT_URL", rig.server.root_url())
            .env("TASKCLUSTER_CLIENT_ID", &rig.root.client_id)
            .env("TASKCLUSTER_ACCESS_TOKEN", rig.root.access_token.expose())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.as_ref()), (Some(0), ""), "{args:?}");
    }
    // A failed write for another reason is an error.
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let child = Command::new(binary()).arg("openapi").stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.starts_with("tenure: the result cannot be written"), "{errors}");
    }
}
