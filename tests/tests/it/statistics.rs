//! Numbers of queues over time: requests, rights, the command line, and servers that stop.

use serde_json::Value;
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, QUEUE_API, TENURE_API};
use tenure_tests::server::Server;

use crate::policy_commands::{answer, done};
use crate::rig::{Raw, Rig, call, client_of, definition, eventually, new_task, ok};

const QUEUE: &str = "statistics/linux";

fn path(query: &str) -> String {
    format!("{TENURE_API}/queues/statistics%2Flinux/statistics{query}")
}

async fn read(rig: &Rig, who: &Credentials, path: &str) -> Answer {
    call(&mut rig.client(), who, "GET", path, None).await
}

fn sum(answer: &Value, field: &str) -> i64 {
    answer["points"].as_array().unwrap().iter().map(|point| point[field].as_i64().unwrap()).sum()
}

/// Reads until servers have stored this: they do so every ten seconds.
async fn stored(rig: &Rig, path: &str, is_stored: impl Fn(&Value) -> bool) -> Value {
    eventually("the numbers are stored", async || {
        Some(ok(read(rig, &rig.root, path).await)).filter(|answer| is_stored(answer))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_of_queue_and_of_all_are_read() {
    let rig = Rig::start().await;
    for queue in [QUEUE, QUEUE, "statistics/other"] {
        rig.create_one(queue).await;
    }
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    rig.report(&claim, "completed", None).await;
    let of_queue = stored(&rig, &path(""), |answer| sum(answer, "completed") == 1).await;
    let numbers = ["created", "started", "completed", "failed", "exception", "lost"].map(|name| sum(&of_queue, name));
    assert_eq!(numbers, [2, 1, 1, 0, 0, 0], "{of_queue}");
    assert_eq!(of_queue["step"], 60);
    let waits: Vec<&Value> = of_queue["points"].as_array().unwrap().iter().map(|point| &point["waitP95"]).collect();
    assert_eq!(waits.iter().filter(|wait| wait.is_number()).count(), 1, "{of_queue}");
    let of_all = ok(read(&rig, &rig.root, &format!("{TENURE_API}/statistics")).await);
    assert_eq!((sum(&of_all, "created"), sum(&of_all, "completed")), (3, 1));
    let unused = ok(read(&rig, &rig.root, &format!("{TENURE_API}/queues/statistics/never/statistics")).await);
    assert_eq!((sum(&unused, "created"), &unused["points"][0]["waitP50"]), (0, &Value::Null));

    assert_eq!(answer(&rig, &["queue", "statistics", QUEUE]).await["step"], 60);
    let table = done(&rig, &["queue", "statistics", QUEUE, "--since", "2h", "--step", "1h"]).await;
    assert!(table.starts_with("FROM") && table.lines().count() <= 3, "{table}");
    let nothing = done(&rig, &["queue", "statistics", "statistics/never"]).await;
    assert_eq!(nothing, "Nothing happened in this time.\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_parameters_are_refused_by_name() {
    let rig = Rig::start().await;
    for (query, code, word) in [
        ("?step=61", "InvalidRequestArguments", "`step` must be 60, 600 or 3600"),
        ("?from=yesterday", "InvalidRequestArguments", "`from`"),
        ("?to=2026-01-31", "InvalidRequestArguments", "`to`"),
        ("?since=1h", "InvalidRequestArguments", "since"),
        ("?from=2100-01-01T00:00:00Z", "InputError", "`from`"),
        ("?from=2020-01-01T00:00:00Z", "InputError", "90 days"),
        ("?from=2020-01-01T00:00:00Z&step=60", "InputError", "24 hours"),
    ] {
        let refused = read(&rig, &rig.root, &path(query)).await;
        assert_eq!((refused.status, refused.code()), (400, code), "{query}: {}", refused.body);
        assert!(refused.body["message"].as_str().unwrap().contains(word), "{query}: {}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scope_of_queue_reads_its_statistics_only() {
    let rig = Rig::start().await;
    let one = rig.make_client("one", &["tenure:get-queue:statistics/linux"]).await;
    let all = rig.make_client("all", &["tenure:get-queue:*"]).await;
    let (other, together) =
        (format!("{TENURE_API}/queues/statistics%2Fother/statistics"), format!("{TENURE_API}/statistics"));
    for (who, path, status) in [
        (&one, path(""), 200),
        (&one, other.clone(), 403),
        (&one, together.clone(), 403),
        (&all, path(""), 200),
        (&all, other, 200),
        (&all, together, 200),
    ] {
        assert_eq!(read(&rig, who, &path).await.status, status, "{} {path}", who.client_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_stores_its_last_numbers() {
    let rig = Rig::start().await;
    rig.create_one(QUEUE).await;
    let other = rig.another("other").await;
    for _ in 0..3 {
        let task = format!("{QUEUE_API}/task/{}", new_task());
        ok(call(&mut client_of(&other), &rig.root, "PUT", &task, Some(&definition(QUEUE))).await);
    }
    assert!(other.stop().await.success());
    let of_other = sum(&ok(read(&rig, &rig.root, &path("")).await), "created");
    assert!((3..=4).contains(&of_other), "{of_other}");
    stored(&rig, &path(""), |answer| sum(answer, "created") == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_loses_its_last_numbers_only() {
    let rig = Rig::start().await;
    let mut other = rig.another("other").await;
    let create = async |server: &Server| {
        let task = format!("{QUEUE_API}/task/{}", new_task());
        ok(call(&mut client_of(server), &rig.root, "PUT", &task, Some(&definition(QUEUE))).await);
    };
    for _ in 0..3 {
        create(&other).await;
    }
    stored(&rig, &path(""), |answer| sum(answer, "created") == 3).await;
    create(&other).await;
    other.kill().unwrap();
    create(&rig.server).await;
    let created = sum(&stored(&rig, &path(""), |answer| sum(answer, "created") > 3).await, "created");
    assert!((4..=5).contains(&created), "{created}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_of_tasks_begin_at_zero() {
    let rig = Rig::start().await;
    rig.create_one(QUEUE).await;
    let series = |text: &str| -> Option<()> {
        let lines = [
            "tenure_tasks_created_total{task_queue=\"statistics/linux\"} 1",
            "tenure_tasks_resolved_total{task_queue=\"statistics/linux\",state=\"failed\",reason=\"failed\"} 0",
            "tenure_runs_lost_total{task_queue=\"statistics/linux\",ended_by=\"lease\"} 0",
            "tenure_run_wait_seconds_count{task_queue=\"statistics/linux\"} 0",
            "tenure_run_seconds_count{task_queue=\"statistics/linux\",state=\"exception\"} 0",
        ];
        lines.iter().all(|line| text.lines().any(|one| one == *line)).then_some(())
    };
    eventually("the metrics name the queue", async || {
        let text = Raw::new("GET", "/metrics").send(rig.server.root_url()).await.text();
        series(&text)
    })
    .await;
}
