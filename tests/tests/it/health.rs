//! Requests of operators and load balancers: liveness, version, metrics.

use std::collections::BTreeSet;

use serde_json::json;
use tenure_engine::background::registry::PASSES;

use crate::rig::{Raw, Rig, definition, eventually, minutes_from_now, new_task};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_has_its_type_and_its_id() {
    let rig = Rig::start().await;
    let reply = rig.send(&Raw::new("GET", "/api/queue/v1/ping").header("x-taskcluster-trace-id", "my-trace")).await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("cache-control"), Some("no-store no-cache must-revalidate"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(reply.header("x-for-trace-id"), Some("my-trace"));
    assert!(reply.header("x-for-request-id").is_some_and(|id| id.len() == 36));
    assert_eq!(reply.header("access-control-allow-origin"), None, "the request was not from a browser");
    let browser = rig.send(&Raw::new("GET", "/api/queue/v1/ping").header("origin", "https://ui.example")).await;
    assert_eq!(browser.header("access-control-allow-origin"), Some("*"));
    let preflight = rig.send(&Raw::new("OPTIONS", "/api/queue/v1/task/x")).await;
    assert_eq!(preflight.status, 200);
    assert!(preflight.header("allow").is_some_and(|methods| methods.contains("PUT")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_count_from_zero_and_follow_the_queue() {
    let rig = Rig::start().await;
    let metrics = async || rig.send(&Raw::new("GET", "/metrics")).await.text();
    let initial = metrics().await;
    for line in [
        "tenure_claims_undelivered_total 0",
        r#"tenure_batch_shed_total{operation="create"} 0"#,
        r#"tenure_http_requests_total{operation="createTask",status="5xx"} 0"#,
        "tenure_database_up 1",
        r#"tenure_build_info{version=""#,
        "process_open_fds ",
    ] {
        assert!(initial.contains(line), "{line} is missing:\n{initial}");
    }
    let names: Vec<&str> = initial.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(names.is_sorted(), "{names:?}");
    for _ in 0..3 {
        rig.create_one("health/check").await;
    }
    assert_eq!(rig.claim("health/check", 1).await.len(), 1);
    eventually("the gauges follow", async || {
        let text = metrics().await;
        [
            r#"queue_pending_tasks{taskQueueId="health/check"} 2"#,
            r#"queue_claimed_tasks{taskQueueId="health/check"} 1"#,
            r#"tenure_batch_members_count{operation="create"} "#,
            r#"tenure_batch_wait_seconds_count{operation="create"} "#,
            r#"tenure_batch_waiting{operation="claim"} 0"#,
            r#"tenure_pass_total{pass="claims",what="found"} "#,
            "tenure_oldest_transaction_seconds ",
            r#"tenure_http_requests_total{operation="createTask",status="2xx"} 3"#,
        ]
        .iter()
        .all(|line| text.contains(line))
        .then_some(())
    })
    .await;
}

/// Value of a metric of a queue. Its label is `task_queue` or `taskQueueId`.
fn value_of(text: &str, metric: &str, queue: &str) -> Option<f64> {
    let (start, queue) = (format!("{metric}{{"), format!("\"{queue}\""));
    let line = text.lines().find(|line| line.starts_with(&start) && line.contains(&queue))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn age_of_held_run_is_told_from_that_of_runnable_run() {
    let rig = Rig::start().await;
    let (rated, plain) = ("health/rated", "health/plain");
    rig.put_policy(rated, &json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    let ages = async |queue: &str| {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        Some((
            value_of(&text, "tenure_oldest_runnable_seconds", queue)?,
            value_of(&text, "tenure_oldest_held_seconds", queue)?,
        ))
    };
    for queue in [rated, rated, plain] {
        rig.create_one(queue).await;
    }
    eventually("a run of each queue may start", async || {
        let (rated, plain) = (ages(rated).await?, ages(plain).await?);
        (rated.0 > 0.0 && plain.0 > 0.0 && (rated.1, plain.1) == (0.0, 0.0)).then_some(())
    })
    .await;
    // The claim takes the only token.
    assert_eq!(rig.claim(rated, 1).await.len(), 1);
    eventually("the other run is held", async || {
        ages(rated).await.filter(|(runnable, held)| *runnable == 0.0 && *held > 0.0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn age_of_counts_grows_while_they_cannot_be_read() {
    let rig = Rig::start().await;
    let age = async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        let line = text.lines().find(|line| line.starts_with("tenure_counts_age_seconds "))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    eventually("the counts are read", async || age().await.filter(|age| *age < 2.0)).await;
    let mut holder = rig.database.connect("holder").await;
    sqlx::raw_sql("BEGIN; LOCK TABLE counters").execute(&mut holder).await.unwrap();
    eventually("their age grows", async || age().await.filter(|age| *age > 4.0)).await;
    drop(holder);
    eventually("they are read again", async || age().await.filter(|age| *age < 2.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_starts_of_limited_queue_and_what_blocks() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let queue = "health/limited";
    rig.put_policy(queue, &json!({"concurrency": {"total": 1}})).await;
    for _ in 0..2 {
        rig.create_one(queue).await;
    }
    eventually("one run starts", async || (rig.claim(queue, 2).await.len() == 1).then_some(())).await;
    eventually("the metrics follow", async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        [
            r#"tenure_admission_started_total{dispatch="pull"} 1"#,
            r#"tenure_admission_started_total{dispatch="assign"} 0"#,
            r#"tenure_admission_blocked_total{reason="total"} 1"#,
            "tenure_admission_announcements 0",
        ]
        .iter()
        .all(|line| text.contains(line))
        .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_name_largest_queues_and_sum_up_others() {
    let rig = Rig::start_with(|launch| launch.flag("--metrics-queues", "1")).await;
    for _ in 0..3 {
        rig.create_one("health/large").await;
    }
    let has = async |line: &str| {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        text.lines().any(|one| one == line).then_some(text)
    };
    eventually("it is named", async || has(r#"queue_pending_tasks{taskQueueId="health/large"} 3"#).await).await;
    for queue in ["health/one", "health/two"] {
        rig.create_one(queue).await;
    }
    let text = eventually("the others are summed up", async || {
        has(r#"tenure_queue_runnable_tasks{task_queue="other"} 2"#).await
    })
    .await;
    assert!(!text.contains("health/one") && !text.contains("health/two"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duration_of_claim_leaves_out_wait_for_work() {
    const WAIT_SECONDS: f64 = 5.0;
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "5s")).await;
    assert!(rig.claim("health/empty", 1).await.is_empty());
    let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
    let sum = text
        .lines()
        .find_map(|line| line.strip_prefix("tenure_http_request_seconds_sum{operation=\"claimWork\"} "))
        .and_then(|sum| sum.parse::<f64>().ok());
    assert!(sum.is_some_and(|sum| sum < WAIT_SECONDS), "{text}");
}

fn passes_of<'a>(metrics: &'a str, name: &str) -> BTreeSet<&'a str> {
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.split("pass=\"").nth(1)?.split('"').next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_registered_pass_has_its_counters_from_the_start() {
    let rig = Rig::start().await;
    let registered: BTreeSet<&str> = PASSES.iter().map(|pass| pass.name).collect();
    // A pass without due work has them too.
    eventually("every pass counts from zero", async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        let counted = |name: &str| passes_of(&text, name) == registered;
        let done = ["found", "done", "retried", "exhausted", "lost_race"];
        let all = |what: &&str| {
            registered
                .iter()
                .all(|pass| text.contains(&format!("tenure_pass_total{{pass=\"{pass}\",what=\"{what}\"}} ")))
        };
        (counted("tenure_pass_failures_total") && counted("tenure_pass_total") && done.iter().all(all)).then_some(())
    })
    .await;
    eventually("every pass has run once", async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        (passes_of(&text, "tenure_pass_seconds_count") == registered).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_count_the_tasks_of_a_queue_that_were_resolved() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    let queue = "health/ends";
    for _ in 0..4 {
        rig.create_one(queue).await;
    }
    let mut left = definition("health/left");
    left["deadline"] = json!(minutes_from_now(24 * 60));
    assert_eq!(rig.create(new_task(), &left).await.status, 200);
    let claims = rig.claim(queue, 4).await;
    for (claim, report) in claims.iter().zip(["completed", "completed", "failed"]) {
        rig.report(claim, report, None).await;
    }
    let cancelled = rig.create_one(queue).await;
    assert_eq!(rig.call("POST", &format!("/task/{cancelled}/cancel"), None).await.status, 200);
    // The last claim expires, which is no resolution; then its task reaches its deadline.
    for minutes in [21, 60] {
        rig.advance(minutes * 60).await;
    }
    let labels = format!(r#"taskQueueId="{queue}",provisionerId="health",workerType="ends""#);
    let expected = [
        format!("queue_completed_tasks{{{labels}}} 2"),
        format!("queue_failed_tasks{{{labels}}} 1"),
        format!(r#"queue_exception_tasks{{{labels},reasonResolved="deadline-exceeded"}} 1"#),
        format!(r#"queue_exception_tasks{{{labels},reasonResolved="canceled"}} 1"#),
        r#"queue_pending_tasks{taskQueueId="health/left"} 1"#.to_owned(),
    ];
    eventually("the counters follow", async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        let has = |line: &String| text.lines().any(|one| one == line);
        (expected.iter().all(has) && !text.contains(r#"reasonResolved="claim-expired""#)).then_some(())
    })
    .await;
    every_metric_of_the_reference_is_published(&rig).await;
}

/// With description, type and labels. Metrics of workers are left out: they are counted only every
/// half minute.
async fn every_metric_of_the_reference_is_published(rig: &Rig) {
    let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
    let reference = rig.send(&Raw::new("GET", "/references/queue/v1/metrics.json")).await.json();
    let metrics = reference["metrics"].as_array().unwrap();
    assert_eq!(metrics.len(), 9, "{reference}");
    for metric in metrics {
        let of = |field: &str| metric[field].as_str().unwrap();
        let name = of("name");
        if name.contains("_workers") {
            continue;
        }
        let head = format!("# HELP {name} {}\n# TYPE {name} {}\n", of("description"), of("type"));
        assert!(text.contains(&head), "{head} is missing:\n{text}");
        let sample = text.lines().find(|line| line.starts_with(name)).unwrap();
        for label in metric["labelNames"].as_array().unwrap() {
            assert!(sample.contains(&format!("{}=\"", label.as_str().unwrap())), "{label}: {sample}");
        }
    }
}
