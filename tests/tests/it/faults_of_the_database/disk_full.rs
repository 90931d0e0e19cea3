//! The disk of the embedded PostgreSQL is full: a real small file system, filled by a file.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::Answer;
use tenure_tests::postgres::connect_embedded;
use tenure_tests::random::Random;
use tenure_tests::server::Server;

use super::{QUEUE, RECOVERED_WITHIN, assert_unavailable, create_until_it_works, finish_all, heartbeat, send, skipped};
use crate::rig::{DataFolder, TIMEOUT, call, client_of, definition, embedded, eventually, new_task, postmaster_of};

const DISK: &str = "160m";
const PAYLOAD_BYTES: usize = 60_000;
/// More creates than fit into the space that PostgreSQL has allocated.
const CREATES_MAX: usize = 2_000;

struct Disk {
    at: PathBuf,
}

impl Disk {
    fn mount(at: &Path) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("only root may mount a small file system".to_owned());
        }
        fs::create_dir(at).map_err(|error| error.to_string())?;
        let options = format!("size={DISK},mode=0711");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tenure-test"]).arg(at).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(Self { at: at.to_owned() });
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }

    fn fill(&self) {
        let mut ballast = fs::File::options().create(true).append(true).open(self.ballast()).unwrap();
        for size in [1 << 20, 4 << 10] {
            while ballast.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a PostgreSQL left behind by a failed test is about to end.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

async fn create_until_it_is_full(server: &Server, root: &Credentials, disk: &Disk) -> Vec<SlugId> {
    let mut random = Random::from_seed(Random::fresh_seed());
    let mut acknowledged = Vec::new();
    for _ in 0..CREATES_MAX {
        let mut payload = String::new();
        random.push_hex(&mut payload, PAYLOAD_BYTES);
        let (task, mut body) = (new_task(), definition(QUEUE));
        body["payload"] = json!({ "payload": payload });
        let asked = Instant::now();
        let reply = send(server, root, "PUT", &format!("/task/{task}"), Some(&body)).await;
        assert!(asked.elapsed() < Duration::from_secs(15), "an answer took {:?}", asked.elapsed());
        if reply.status != 200 {
            assert_unavailable(&reply);
            return acknowledged;
        }
        acknowledged.push(task);
        disk.fill();
    }
    panic!("the disk never got full:\n{}", server.log_tail());
}

/// Switches to a new WAL segment, whose space is allocated by its first write. So the test's writes
/// before it fills the disk again cannot cause the failure. Returns the task of that write.
async fn with_a_new_segment(server: &Server, root: &Credentials, data_dir: &Path) -> SlugId {
    let mut database = connect_embedded(data_dir).await.expect("PostgreSQL runs");
    sqlx::query("SELECT pg_switch_wal()").execute(&mut database).await.unwrap();
    create_until_it_works(server, root).await
}

async fn read_soon(server: &Server, root: &Credentials, task: SlugId) -> Answer {
    let began = Instant::now();
    loop {
        let answer = call(&mut client_of(server), root, "GET", &format!("/task/{task}/status"), None).await;
        if answer.status == 200 {
            return answer;
        }
        assert!(began.elapsed() < TIMEOUT, "existing tasks cannot be read: {answer:?}\n{}", server.log_tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_refuses_new_tasks_and_loses_nothing() {
    let data_folder = DataFolder::new();
    let disk = match Disk::mount(&data_folder.data_dir()) {
        Ok(disk) => disk,
        Err(why) => return skipped("a full disk", &why),
    };
    let (mut server, root) = data_folder.start(&embedded()).await;
    let mut kept = vec![create_until_it_works(&server, &root).await];
    let at_first = postmaster_of(&data_folder.data_dir());

    // Tables cannot grow: new tasks are refused, existing ones can be read.
    kept.push(with_a_new_segment(&server, &root, &data_folder.data_dir()).await);
    disk.fill();
    kept.extend(create_until_it_is_full(&server, &root, &disk).await);
    let read = read_soon(&server, &root, kept[0]).await;
    assert_eq!(read.body["status"]["state"], "pending");
    assert!(server.log().contains("No space left on device"), "the log has the reason:\n{}", server.log_tail());
    disk.free();
    kept.push(create_until_it_works(&server, &root).await);

    // The WAL cannot grow: PostgreSQL stops, cannot start, and is restarted until it can.
    disk.fill();
    eventually("PostgreSQL gives up", async || {
        disk.fill();
        let Some(mut database) = connect_embedded(&data_folder.data_dir()).await else { return Some(()) };
        let switch = "SELECT pg_logical_emit_message(true, 'test', repeat('x', 1000000)), pg_switch_wal()";
        sqlx::query(switch).execute(&mut database).await.err().map(drop)
    })
    .await;
    let full = Instant::now();
    while full.elapsed() < Duration::from_secs(3) {
        disk.fill();
        let task = new_task();
        let reply = super::create(&server, &root, task).await;
        if reply.status == 200 {
            kept.push(task);
        } else {
            assert_unavailable(&reply);
        }
    }
    assert!(!server.has_ended(), "{}", server.log_tail());
    disk.free();
    let freed = Instant::now();
    kept.push(create_until_it_works(&server, &root).await);
    assert!(freed.elapsed() < RECOVERED_WITHIN);
    println!(
        "PostgreSQL: {at_first:?}, then {:?}; back after {:?}",
        postmaster_of(&data_folder.data_dir()),
        freed.elapsed()
    );

    eventually("it is healthy", async || (heartbeat(&server).await.status == 200).then_some(())).await;
    println!("{}", server.log_tail());
    finish_all(&server, &root, kept).await;
    let mut database = connect_embedded(&data_folder.data_dir()).await.expect("PostgreSQL runs");
    let violations = tenure_store::testing::check_invariants_on(&mut database).await;
    assert!(violations.is_empty(), "violated invariants: {violations:#?}");
    drop(database);
    assert!(server.stop().await.success());
    drop(disk);
}
