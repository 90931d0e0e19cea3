//! Numbers on the overview, on the list of queues and on the page of a queue.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use super::{QUEUE, get, hides, log_in, shows, sql};
use crate::rig::{RawReply, Rig, eventually, ok};

const OF_QUEUE: &str = "/queue/page/queue";
/// In bytes.
const PAGE_MAX: usize = 60_000;
const CHART: &str = "viewBox=\"0 0 600 170\"";

async fn fail(rig: &Rig, claim: &Value, exit_code: i64) {
    let body = json!({"failure": {"message": "broken", "exitCode": exit_code}});
    rig.report(claim, "failed", Some(&body)).await;
}

/// Waits until the servers have stored numbers of all queues: they do so every ten seconds.
async fn stored(rig: &Rig, field: &str, number: i64) {
    eventually("the numbers are stored", async || {
        let answer = ok(rig.call("GET", &format!("{TENURE_API}/statistics"), None).await);
        let sum: i64 = answer["points"].as_array().unwrap().iter().filter_map(|point| point[field].as_i64()).sum();
        (sum == number).then_some(())
    })
    .await;
}

#[track_caller]
fn is_small(path: &str, reply: &RawReply) {
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    assert!(reply.text().len() <= PAGE_MAX, "{path} has {} bytes", reply.text().len());
    hides(reply, &["style=", " NaN", "MNaN"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charts_show_minutes_that_have_ended() {
    let rig = Rig::manual().await;
    for _ in 0..4 {
        rig.create_one(QUEUE).await;
    }
    let claims = rig.claim(QUEUE, 3).await;
    rig.report(&claims[0], "completed", None).await;
    rig.report(&claims[1], "completed", None).await;
    fail(&rig, &claims[2], 3).await;
    stored(&rig, "failed", 1).await;
    let root = log_in(&rig, &rig.root).await;
    shows(&get(&rig, "/", Some(&root)).await, &["Resolved, last hour", "33 %"]);
    rig.advance(180).await;
    for path in ["/", OF_QUEUE] {
        let page = get(&rig, path, Some(&root)).await;
        shows(&page, &["Resolved per 2 minutes", " failed</title>", " created</title>", "95 % within"]);
        assert_eq!(page.text().matches(CHART).count(), 3, "{path}");
        is_small(path, &page);
        let week = get(&rig, &format!("{path}?range=7d"), Some(&root)).await;
        shows(&week, &["of the last", "aria-current=\"true\">week</a>", "--since 7d"]);
        let other = get(&rig, &format!("{path}?range=nonsense"), Some(&root)).await;
        shows(&other, &["aria-current=\"true\">hour</a>"]);
    }
    let looker = rig.make_client("looker", &["tenure:get-queue:page/queue"]).await;
    let looker = log_in(&rig, &looker).await;
    shows(&get(&rig, OF_QUEUE, Some(&looker)).await, &[CHART]);
    let page = get(&rig, "/", Some(&looker)).await;
    shows(&page, &["To see this you need <code>tenure:get-queue:*</code>", "class=\"spark\""]);
    hides(&page, &[CHART]);
    let anonymous = get(&rig, OF_QUEUE, None).await;
    shows(&anonymous, &["tenure:get-queue:page/queue"]);
    hides(&anonymous, &[CHART]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_grouped_by_reason_and_worker() {
    let rig = Rig::start().await;
    for _ in 0..4 {
        rig.create_one(QUEUE).await;
    }
    let claims = rig.claim(QUEUE, 4).await;
    fail(&rig, &claims[0], 137).await;
    fail(&rig, &claims[1], 137).await;
    rig.report(&claims[2], "exception", Some(&json!({"reason": "malformed-payload"}))).await;
    rig.report(&claims[3], "completed", None).await;
    let root = log_in(&rig, &rig.root).await;
    for path in ["/", OF_QUEUE] {
        let page = eventually("the failed runs are copied", async || {
            let page = get(&rig, path, Some(&root)).await;
            page.text().contains("malformed-payload</a>").then_some(page)
        })
        .await;
        shows(&page, &["Failures by reason", "exit code 137</a>", "/worker/group/worker", "/tasks?state=failed"]);
        shows(&page, &["/tasks?state=exception&amp;reason=malformed-payload"]);
        let anonymous = get(&rig, path, None).await;
        shows(&anonymous, &["Failures by reason", ">failed</a>"]);
        hides(&anonymous, &["exit code"]);
    }
    shows(&get(&rig, OF_QUEUE, Some(&root)).await, &["Failures by worker", "exit code 137 ×2, malformed-payload ×1"]);
}

/// As a bulk cancel leaves them: newer than a failed run.
const MANY_CANCELLED: &str = "
    INSERT INTO failed_runs (queue, resolved, seq, run, state, reason, exit_code, worker_group, worker_id, final, blocks)
        SELECT q.id, now() - m * interval '10 ms', 900000000 + m, 0, CASE WHEN m = 2001 THEN 4 ELSE 5 END,
               CASE WHEN m = 2001 THEN 1 ELSE 3 END, NULL, NULL, NULL, true, false
        FROM task_queues q, generate_series(1, 2001) m WHERE q.name = 'page/queue';";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_runs_do_not_deny_older_failures() {
    let rig = Rig::start().await;
    rig.create_one(QUEUE).await;
    let root = log_in(&rig, &rig.root).await;
    shows(&get(&rig, OF_QUEUE, Some(&root)).await, &["No run failed in the last hour."]);
    sql(&rig, MANY_CANCELLED).await;
    for path in ["/", OF_QUEUE] {
        let page = get(&rig, path, Some(&root)).await;
        shows(&page, &["None of the newest 2\u{202f}000 runs of the last hour that failed or were cancelled"]);
        hides(&page, &["No run failed"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_that_holds_runs_is_named_in_list_and_on_page() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"total": 1}})).await;
    for n in 0..3 {
        let priority = if n == 2 { "high" } else { "low" };
        rig.create_with(QUEUE, |body| body["priority"] = priority.into()).await;
    }
    assert_eq!(rig.claim(QUEUE, 2).await.len(), 1);
    let root = log_in(&rig, &rig.root).await;
    for path in ["/", "/queues", "/queues?order=name"] {
        let page = eventually("the runs are held", async || {
            let page = get(&rig, path, Some(&root)).await;
            page.text().contains("1 of 1 slots used").then_some(page)
        })
        .await;
        shows(&page, &["What holds it"]);
        hides(&get(&rig, path, None).await, &["slots used"]);
    }
    let page = get(&rig, OF_QUEUE, Some(&root)).await;
    shows(
        &page,
        &["What holds its runs", "aria-label=\"2 held by limits\"", "Slots used", "1 of 1", "Wait by priority"],
    );
    shows(&page, &["A lost worker costs its task a retry.", "At most 1 run of the queue at a time.", "As JSON"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_are_listed_by_name_or_with_problems_first() {
    let rig = Rig::start().await;
    for (queue, tasks) in [("list/b", 1), ("list/a", 3), ("list/c", 2)] {
        for _ in 0..tasks {
            rig.create_one(queue).await;
        }
    }
    ok(rig.call("POST", &format!("{TENURE_API}/queues/list%2Fc/pause"), Some(&json!({"reason": "tests"}))).await);
    let root = log_in(&rig, &rig.root).await;
    let order = |page: &RawReply| {
        let text = page.text();
        let mut found: Vec<(usize, &str)> =
            ["a", "b", "c"].map(|name| (text.find(&format!(">list/{name}</a>")).expect(name), name)).into();
        found.sort_unstable();
        found.into_iter().map(|(_, name)| name).collect::<String>()
    };
    eventually("the pause is a problem", async || {
        let page = get(&rig, "/queues", Some(&root)).await;
        (order(&page) == "cab").then_some(())
    })
    .await;
    assert_eq!(order(&get(&rig, "/queues?order=name", Some(&root)).await), "abc");
    let page = get(&rig, "/queues?order=name&after=list%2Fa", Some(&root)).await;
    shows(&page, &[">list/b</a>", "after list/a"]);
    hides(&page, &[">list/a</a>"]);
    for odd in ["/queues?order=name&after=%00", "/queues?order=name&after=zz", "/queues?order=%22%3E%3Cscript%3E"] {
        let page = get(&rig, odd, Some(&root)).await;
        assert_eq!(page.status, 200, "{odd}");
        hides(&page, &["<script>"]);
    }
}

/// Numbers of an hour in every row that has a line, and of a week in every chart.
const MANY_QUEUES: &str = "
    INSERT INTO task_queues (name)
        SELECT 'a-provisioner-of-many/a-queue-with-a-long-name-' || n FROM generate_series(1, 1000) n;
    INSERT INTO queue_minutes (queue, step, minute, created, started, lost, reasons, ends, waits, runs, pending_most, claimed_most)
        SELECT q.id, 1, date_trunc('minute', now()) - m * interval '1 min', 17 + m, 19 + m, 1, '{0,1,2}', ARRAY[1000 + m, 17 + m, m],
               ARRAY[0,m,0,m,0,m,0,m,0,0,0,0], ARRAY[0,m,0,m,0,m,0,m,0,0,0,0], 1000 + m * m % 997, 10 + m * m % 97
        FROM (SELECT id FROM task_queues WHERE id IN (SELECT id FROM task_queues ORDER BY id DESC LIMIT 200)
              UNION ALL SELECT id FROM task_queues WHERE name = 'page/queue' UNION ALL SELECT -1) q, generate_series(0, 120) m
    ON CONFLICT DO NOTHING;
    INSERT INTO queue_minutes (queue, step, minute, created, started, lost, reasons, ends, waits, runs, pending_most, claimed_most)
        SELECT -1, 60, date_trunc('hour', now()) - m * interval '1 h', 17 + m, 19 + m, 1, '{0,1,2}', ARRAY[1000 + m, 17 + m, m],
               ARRAY[0,m,0,m,0,m,0,m,0,0,0,0], ARRAY[0,m,0,m,0,m,0,m,0,0,0,0], 1000 + m * m % 997, 10 + m * m % 97
        FROM generate_series(1, 170) m;
    INSERT INTO failed_runs (queue, resolved, seq, run, state, reason, exit_code, worker_group, worker_id, final, blocks)
        SELECT q.id, now() - m * interval '1 s', 900000000 + m, 0, 4, 1, m % 20, 'a-group-of-workers', 'worker-' || m % 30, true, false
        FROM task_queues q, generate_series(1, 2000) m WHERE q.name = 'page/queue';";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_stay_small_with_many_queues() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"perKey": 1}, "fair": true, "backlog": {"tasks": 1_000}})).await;
    for n in 0..40 {
        let key = format!("a-customer-{}", n % 20);
        rig.create_with(QUEUE, |body| body["extra"] = json!({"tenure": {"key": key}})).await;
    }
    let claims = rig.claim(QUEUE, 20).await;
    for claim in claims.iter().take(10) {
        fail(&rig, claim, 1).await;
    }
    sql(&rig, MANY_QUEUES).await;
    let root = log_in(&rig, &rig.root).await;
    for path in
        ["/", "/?range=24h", "/?range=7d", "/queues", "/queues?order=name", OF_QUEUE, "/queue/page/queue?range=7d"]
    {
        let page = get(&rig, path, Some(&root)).await;
        is_small(path, &page);
        if !path.contains("order=name") {
            shows(&page, &["<svg"]);
        }
    }
    shows(&get(&rig, "/queues?order=name", Some(&root)).await, &["Next queues"]);
}
