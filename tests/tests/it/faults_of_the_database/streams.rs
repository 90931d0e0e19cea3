//! Event streams after a stall of PostgreSQL, and of the server itself.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_api::credentials::Credentials;
use tenure_tests::server::{Launch, Server, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::create_until_it_works;
use crate::rig::{Rig, eventually, new_folder};
use crate::sse::Stream;

const POSTGRES_STOPPED: Duration = Duration::from_secs(4);
const SERVER_STOPPED: Duration = Duration::from_secs(8);
/// A second is promised: the longest pause after a slow read.
const EVENT_WITHIN: Duration = Duration::from_secs(10);

async fn assert_event_soon(server: &Server, who: &Credentials, stream: &mut Stream) {
    let resumed = Instant::now();
    let task = create_until_it_works(server, who).await.to_string();
    while stream.event().await.1["payload"]["status"]["taskId"] != task.as_str() {}
    assert!(resumed.elapsed() < EVENT_WITHIN, "it came after {:?}", resumed.elapsed());
    println!("the event came after {:?}", resumed.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_goes_on_soon_after_stall_of_postgresql() {
    let cluster = Cluster::start(&[]).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let url = cluster.url("postgres");
    let server = Launch::on_database(&url, &key).start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let mut stream = Stream::open(&server, &root, "").await.begun().await;
    create_until_it_works(&server, &root).await;
    stream.event().await;
    cluster.freeze();
    tokio::time::sleep(POSTGRES_STOPPED).await;
    cluster.thaw();
    assert_event_soon(&server, &root, &mut stream).await;
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_goes_on_soon_after_stall_of_server() {
    let rig = Rig::start().await;
    let mut stream = Stream::open(&rig.server, &rig.root, "").await.begun().await;
    create_until_it_works(&rig.server, &rig.root).await;
    stream.event().await;
    let pid = Pid::from_raw(i32::try_from(rig.server.pid()).unwrap());
    // The server is stopped while its read of the log waits for the lock.
    let (mut holder, mut other) = (rig.database.connect("test").await, rig.database.connect("test").await);
    sqlx::raw_sql("BEGIN; LOCK TABLE outbox_order IN ACCESS EXCLUSIVE MODE").execute(&mut holder).await.unwrap();
    let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                   AND query LIKE '-- event_ends%' AND wait_event_type = 'Lock')";
    eventually("the log is being read", async || {
        let waits: bool = sqlx::query_scalar(waiting).fetch_one(&mut other).await.unwrap();
        waits.then_some(())
    })
    .await;
    kill(pid, Signal::SIGSTOP).unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    tokio::time::sleep(SERVER_STOPPED).await;
    kill(pid, Signal::SIGCONT).unwrap();
    assert_event_soon(&rig.server, &rig.root, &mut stream).await;
    drop((holder, other));
}
