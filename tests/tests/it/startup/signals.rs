//! Signals, and their effect on the embedded PostgreSQL.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sqlx::{PgConnection, Row as _};
use tenure_tests::http::QUEUE_API;
use tenure_tests::postgres::connect_embedded;
use tenure_tests::server::{Server, binary};
use tenure_tests::wire::Target;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::closed::{ended, signal};
use crate::rig::{DataFolder, Raw, embedded, eventually, postmaster_of};

pub(super) async fn half_a_request(server: &Server, target: &Target) -> TcpStream {
    let mut half = TcpStream::connect((target.host.as_str(), target.port)).await.unwrap();
    let head = format!("POST {QUEUE_API}/claim-work/a%2Fb HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n");
    half.write_all(head.as_bytes()).await.unwrap();
    // This request is accepted after the incomplete one.
    let reply = Raw::new("GET", &format!("{QUEUE_API}/ping")).send(server.root_url()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    half
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_signal_stops_server_and_postgresql_at_once() {
    let data_folder = DataFolder::new();
    let (mut server, _) = data_folder.start(&embedded()).await;
    let target = Target::parse(server.root_url()).unwrap();
    let _half = half_a_request(&server, &target).await;
    server.terminate().unwrap();
    eventually("the server takes no more connections", async || {
        TcpStream::connect((target.host.as_str(), target.port)).await.is_err().then_some(())
    })
    .await;
    assert!(!server.has_ended());
    let signalled = Instant::now();
    server.terminate().unwrap();
    assert_eq!(server.ended().await.code(), Some(143));
    // Less than a drain's wait for requests, which is six seconds.
    assert!(signalled.elapsed() < Duration::from_secs(4), "{:?}", signalled.elapsed());
    eventually("PostgreSQL ends", async || postmaster_of(&data_folder.data_dir()).is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_postgresql_writes_out_while_its_server_drains() {
    let data_folder = DataFolder::new();
    let (mut server, _) = data_folder.start(&embedded()).await;
    let mut database = connect_embedded(&data_folder.data_dir()).await.expect("PostgreSQL runs");
    let mut last_checkpoint = async || -> String {
        let redo = "SELECT redo_lsn::text FROM pg_control_checkpoint()";
        sqlx::query(redo).fetch_one(&mut database).await.expect("PostgreSQL runs still").get(0)
    };
    let target = Target::parse(server.root_url()).unwrap();
    let half = half_a_request(&server, &target).await;
    let before = last_checkpoint().await;
    server.terminate().unwrap();
    eventually("a checkpoint", async || (last_checkpoint().await != before).then_some(())).await;
    assert!(!server.has_ended());
    drop(half);
    assert!(server.ended().await.success());
}

/// Starts a `tenure migrate` that waits for a lock on the tables of this data directory; also
/// returns the session with the lock.
async fn waiting_command(data_dir: &Path) -> (Child, PgConnection) {
    let connect = async || connect_embedded(data_dir).await.expect("PostgreSQL runs");
    let (mut holder, mut looker) = (connect().await, connect().await);
    sqlx::raw_sql("BEGIN; LOCK TABLE _sqlx_migrations").execute(&mut holder).await.unwrap();
    let mut command = Command::new(binary());
    command.args(["migrate", "--data-dir"]).arg(data_dir).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(folder) = std::env::var_os("TENURE_TEST_PG_BIN") {
        command.arg("--pg-bin").arg(folder);
    }
    let child = command.kill_on_drop(true).spawn().unwrap();
    eventually("the command waits", async || {
        let waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%_sqlx_migrations%'";
        sqlx::query(waiting).fetch_optional(&mut looker).await.unwrap().map(|_| ())
    })
    .await;
    (child, holder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_command_stops_only_its_own_postgresql() {
    let data_folder = DataFolder::new();
    let data_dir = data_folder.data_dir();
    let (mut server, _) = data_folder.start(&embedded()).await;
    // Without its server, PostgreSQL belongs to the command.
    server.kill().unwrap();
    let (mut command, _holder) = waiting_command(&data_dir).await;
    signal(&command, Signal::SIGTERM);
    assert_eq!(ended(&mut command).await, Some(143));
    eventually("PostgreSQL ends", async || postmaster_of(&data_dir).is_none().then_some(())).await;

    let (server, _) = data_folder.start(&embedded()).await;
    let postmaster = postmaster_of(&data_dir);
    let (mut command, holder) = waiting_command(&data_dir).await;
    signal(&command, Signal::SIGINT);
    assert_eq!(ended(&mut command).await, Some(130));
    drop(holder);
    assert!(connect_embedded(&data_dir).await.is_some());
    assert_eq!(postmaster_of(&data_dir), postmaster);
    assert!(server.stop().await.success());
}
