//! An outage that is over before it is noticed, and a long one under load.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};

use super::{QUEUE, create, create_until_it_works, finish_all, heartbeat, send};
use crate::proxy::Proxy;
use crate::rig::{Rig, claim_path, eventually, new_folder, new_task, worker};

const AWAY: Duration = Duration::from_secs(4);
/// Log lines of an outage: its start, one for each connection in use, its end.
const LINES_MAX: usize = 40;
/// Two seconds are promised: the longest pause between two attempts, and an attempt.
const BACK_WITHIN: Duration = Duration::from_secs(20);
/// During a known outage requests for the database are refused at once. Half a second is promised.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_does_not_notice_an_outage_that_is_over() {
    let rig = Rig::start().await;
    let proxy = Proxy::before(rig.database.url()).await;
    let folder = new_folder();
    let server = Launch::on_database(proxy.url(), &rig.secret_key).start(folder.path(), "behind").await;
    let task = create_until_it_works(&server, &rig.root).await;
    for path in [format!("/task/{task}/status"), format!("/task/{task}")] {
        for _ in 0..3 {
            assert_eq!(send(&server, &rig.root, "GET", &path, None).await.status, 200);
            proxy.interrupt().await;
            // One connection works again, but the reads below use another.
            eventually("it is over", async || (heartbeat(&server).await.status == 200).then_some(())).await;
            let reply = send(&server, &rig.root, "GET", &path, None).await;
            assert_eq!(reply.status, 200, "{path}: {}\n{}", reply.text(), server.log_tail());
        }
    }
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_under_load_is_logged_once_and_ends_soon() {
    let database = tenure_tests::db::TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let launch = Launch::on_database(proxy.url(), &key).flag("--claim-work-wait", "1s");
    let server = launch.start(folder.path(), "server").await;
    let root = create_root_client(database.url(), &key).credentials;
    let mut kept = vec![create_until_it_works(&server, &root).await];
    let status = format!("/task/{}/status", kept[0]);
    let task = format!("/task/{}", kept[0]);
    let (claims, body) = (claim_path(QUEUE), worker(1));
    let before = server.log().lines().count();
    proxy.cut().await;
    let until = Instant::now() + AWAY;
    let asking = join_all((0..8).map(async |_| {
        let mut refused = 0;
        while Instant::now() < until {
            for (method, path, body) in [("GET", &status, None), ("GET", &task, None), ("POST", &claims, Some(&body))] {
                let asked = Instant::now();
                let reply = send(&server, &root, method, path, body).await;
                assert!([200, 503].contains(&reply.status), "{method} {path}: {}", reply.text());
                assert!(asked.elapsed() < REFUSED_WITHIN, "{method} {path} took {:?}", asked.elapsed());
                refused += usize::from(reply.status == 503);
            }
            let _ = create(&server, &root, new_task()).await;
        }
        refused
    }));
    let refused: usize = asking.await.into_iter().sum();
    assert!(refused > 2 * LINES_MAX, "there was no load: {refused}");
    proxy.mend();
    let mended = Instant::now();
    kept.push(create_until_it_works(&server, &root).await);
    assert!(mended.elapsed() < BACK_WITHIN, "{:?}", mended.elapsed());
    eventually("it is healthy", async || (heartbeat(&server).await.status == 200).then_some(())).await;
    let log = server.log();
    let lines: Vec<&str> = log.lines().skip(before).collect();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let all = lines.join("\n");
    assert_eq!(count("no connection to the database can be made"), 1, "{all}");
    assert_eq!(count("the database can be reached again"), 1, "{all}");
    assert!(lines.len() <= LINES_MAX, "{} lines for {refused} refusals:\n{all}", lines.len());
    println!("{} lines for {refused} refusals, back after {:?}", lines.len(), mended.elapsed());
    finish_all(&server, &root, kept).await;
    assert!(server.stop().await.success());
}
