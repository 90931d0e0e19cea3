//! A worker without supervision: its files, a full disk, and failing tasks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;
use tenure_worker::{Limits, Settings};

use crate::binary::{bare_program, end, send};
use crate::queue::{Queue, Reply, TASK_IDS, TOKEN, claim, ok, refuse, until};
use crate::worker::{LEASE, Running, given_back, shell};

/// Empty for a missing directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn directory_is_removed_after_any_report() {
    // Some tools create directories without write permission for their owner.
    let script = "mkdir -p deep/closed; echo x > deep/closed/file; chmod 500 deep/closed; chmod 0 deep";
    for (payload, report) in [
        (shell(script), "completed"),
        (shell(&format!("{script}; exit 1")), "failed"),
        (json!({"command": 1}), "exception"),
        (shell(&format!("{script}; sleep 1000")), "reclaim"),
    ] {
        let queue = Queue::start().await;
        queue.on("reclaim", |_| refuse(409));
        let lease = if report == "reclaim" { Duration::from_secs(1) } else { LEASE };
        queue.hand_out(&[claim(TASK_IDS[0], lease, &payload)]);
        let running = Running::with_settings(queue, |settings| Settings { keep: false, ..settings });
        running.queue.wait_for(report, 1).await;
        let work = running.dir.path().join("work");
        until("an empty work directory", || (names(&work) == [".tenure-worker"]).then_some(())).await;
        until("no record", || names(&work.join(".tenure-worker")).is_empty().then_some(())).await;
        running.stop().await;
    }
}

#[tokio::test]
async fn log_never_exceeds_its_limit() {
    let limits = Limits { log_bytes: 100_000, ..Limits::default() };
    let script = "yes | head -c 20000000; stat -c %s live.log > size; echo end";
    let running = Running::with_limits(Queue::start().await, limits, &shell(script));
    running.queue.wait_for("completed", 1).await;
    let size = std::fs::read_to_string(running.directory().join("size")).unwrap();
    assert!(size.trim().parse::<u64>().unwrap() <= 100_000, "{size}");
    let log = running.kept_log().await;
    assert!(log.len() < 101_000 && log.contains("bytes are left out here") && log.contains("\nend\n"), "{}", log.len());
    running.stop().await;
}

#[tokio::test]
async fn worker_claims_nothing_without_disk_space() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    let log = dir.path().join("log");
    let mut program = bare_program(&queue.root_url(), &dir.path().join("work"));
    program.args(["--disk-free-min", "9999999GiB"]).env("TASKCLUSTER_ACCESS_TOKEN", TOKEN);
    let child = program.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let says_so = || std::fs::read_to_string(&log).unwrap().contains("too little space for another task").then_some(());
    until("the worker to say so", says_so).await;
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).await.0, Some(0));
    assert_eq!(queue.requests("p%2Fw").len(), 0);
}

/// None if this user cannot create one.
struct FullDisk(TempDir);

impl FullDisk {
    fn make() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(dir.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            println!("skipped: making a full disk needs the right to mount one");
            return None;
        }
        let disk = Self(dir);
        let full = std::fs::write(disk.0.path().join("large"), vec![0; 1 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        Some(disk)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn task_without_disk_space_is_given_back() {
    let Some(disk) = FullDisk::make() else { return };
    let queue = Queue::start().await;
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell("true"))]);
    let work_dir = disk.0.path().to_owned();
    let running = Running::with_settings(queue, |settings| Settings { work_dir, ..settings });
    let report = running.queue.wait_for("exception", 1).await;
    assert_eq!(report[0].body["reason"], "worker-shutdown");
    assert_eq!(report[0].body["failure"]["kind"], "no-space");
    assert_eq!(running.queue.reports().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn worker_with_failing_tasks_backs_off_and_logs() {
    let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
    queue.on("p%2Fw", |_| ok(json!({"tasks": [claim(TASK_IDS[0], LEASE, &shell("exit 1"))]})));
    let mut program = bare_program(&queue.root_url(), dir.path());
    let child = program.env("TASKCLUSTER_ACCESS_TOKEN", TOKEN).spawn().unwrap();
    let requests = queue.wait_for("p%2Fw", 7).await;
    // The fifth and the sixth task have failed as fast as the others.
    for (call, least) in [(5, 1000), (6, 2000)] {
        let pause = requests[call].at.duration_since(requests[call - 1].at).as_millis();
        assert!(pause >= least, "{pause} ms before call {call}");
    }
    send(&child, Signal::SIGTERM);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("several tasks in a row failed"), "{log}");
}

#[tokio::test]
async fn stopping_worker_drops_its_waiting_call() {
    let queue = Queue::start().await;
    let script = "trap 'sleep 0.3; exit 0' TERM; touch ready; while :; do sleep 0.05; done";
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell(script))]);
    queue.on("p%2Fw", |_| Reply { after: Duration::from_secs(60), ..ok(json!({"tasks": []})) });
    let two = 2.try_into().unwrap();
    let running = Running::with_settings(queue, |settings| Settings { capacity: two, ..settings });
    running.queue.wait_for("p%2Fw", 2).await;
    until("the task to run", || running.directory().join("ready").exists().then_some(())).await;
    let queue = running.queue.clone();
    running.stop().await;
    let reports = queue.reports();
    assert_eq!((reports.len(), &reports[0].body), (1, &given_back("the worker shuts down")));
    let hung_up = queue.hung_up("p%2Fw");
    assert_eq!((hung_up.len(), queue.requests("p%2Fw").len()), (1, 2));
    assert!(hung_up[0] < reports[0].at, "the task was reported while the worker asked for more");
}
