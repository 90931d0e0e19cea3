//! Pauses and policies of queues, and the reasons for a task's state on its page.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use super::{HOSTILE, POLICY, QUEUE, form, form_token, get, hides, log_in, own_form, shows, sql};
use crate::rig::{Raw, Rig, ok};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plural_address_of_queue_leads_to_its_page() {
    let rig = Rig::start().await;
    for (asked, leads_to) in [
        ("/queues/page/queue", Some("/queue/page/queue")),
        ("/queues/page/queue?range=7d&refresh=off", Some("/queue/page/queue?range=7d&refresh=off")),
        ("/queues/page/queue?a=%C3%A9%2Fb", Some("/queue/page/queue?a=%C3%A9%2Fb")),
    ] {
        let reply = get(&rig, asked, None).await;
        assert_eq!((reply.status, reply.header("location")), (303, leads_to), "{asked}: {}", reply.text());
    }
    assert_eq!(get(&rig, "/queues/page/%00", None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_and_resume_need_scope_and_form_of_this_page() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let task = rig.create_one(QUEUE).await;
    let (queue, pausing, resuming) = ("/queue/page/queue", "/queue/page/queue/pause", "/queue/page/queue/resume");
    let root = log_in(&rig, &rig.root).await;
    let page = get(&rig, queue, Some(&root)).await;
    shows(&page, &["/queue/page/queue/pause", "Runnable", "The queue has none: a lost worker costs its task a retry."]);
    hides(&get(&rig, queue, None).await, &[pausing]);
    shows(&get(&rig, queue, None).await, &["tenure:get-queue:page/queue"]);
    let form = get(&rig, pausing, Some(&root)).await;
    shows(&form, &["an hour from now"]);
    hides(&form, &["http-equiv=\"refresh\"", "refresh.js"]);
    let token = form_token(&form.text()).to_owned();
    let looker = rig.make_client("looker", &["queue:*", "tenure:get-queue:*"]).await;
    let looker = log_in(&rig, &looker).await;
    let other = form_token(&get(&rig, "/", Some(&looker)).await.text()).to_owned();
    for (cookie, path) in [(None, pausing), (Some(&looker), pausing)] {
        assert_eq!(get(&rig, path, cookie.map(String::as_str)).await.status, 403);
    }
    let fields = [("token", token.as_str()), ("reason", HOSTILE), ("minutes", "60")];
    let refused = [
        (form_of_other_site(&fields), Some(&root), 403),
        (own_form(&rig, pausing, &fields), None, 403),
        (own_form(&rig, pausing, &[("token", other.as_str())]), Some(&root), 403),
        (own_form(&rig, pausing, &[("token", other.as_str())]), Some(&looker), 403),
        (own_form(&rig, pausing, &[("token", token.as_str()), ("minutes", "61")]), Some(&root), 400),
        (own_form(&rig, pausing, &[("token", token.as_str()), ("reason", &"x".repeat(256))]), Some(&root), 400),
        (Raw::new("POST", pausing).header("Origin", rig.server.root_url()), Some(&root), 403),
    ];
    for (number, (raw, cookie, status)) in refused.into_iter().enumerate() {
        let raw = if let Some(cookie) = cookie { raw.header("Cookie", cookie) } else { raw };
        let reply = rig.send(&raw).await;
        assert_eq!(reply.status, status, "{number}: {}", reply.text());
        assert_eq!(reply.header("content-security-policy"), Some(POLICY));
    }
    hides(&get(&rig, queue, Some(&root)).await, &["Paused by"]);
    let reply = rig.send(&own_form(&rig, pausing, &fields).header("Cookie", &root)).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some(queue)), "{}", reply.text());
    let page = get(&rig, queue, Some(&root)).await;
    shows(&page, &["Paused by <code>root</code>", "resumes", "Resume</button>"]);
    hides(&page, &["<script>", "<img"]);
    shows(&get(&rig, queue, Some(&looker)).await, &["Paused by <code>root</code>", "<q>"]);
    let page = get(&rig, queue, None).await;
    shows(&page, &["Paused ", "resumes"]);
    hides(&page, &["Paused by", "<q>"]);
    shows(&get(&rig, "/", Some(&root)).await, &[">paused</span>"]);
    let path = format!("/task/{task}");
    shows(&get(&rig, &path, Some(&looker)).await, &["Its queue was paused by root"]);
    shows(&get(&rig, &path, None).await, &["Its queue was paused at "]);
    let path = format!("{TENURE_API}/queues/page%2Fqueue");
    let shown = rig.call("GET", &path, None).await.body;
    assert_eq!((&shown["pause"]["reason"], &shown["pause"]["by"]), (&json!(HOSTILE), &json!("root")));
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    let reply = rig.send(&own_form(&rig, resuming, &[("token", &token)]).header("Cookie", &root)).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some(queue)), "{}", reply.text());
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
}

fn form_of_other_site(fields: &[(&str, &str)]) -> Raw {
    form("/queue/page/queue/pause", fields)
        .header("Origin", "https://evil.example")
        .header("Sec-Fetch-Site", "cross-site")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_ends_and_results_are_shown_to_who_may_read_them() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let policy = json!({"delivery": "at-least-once", "completeTime": 600});
    ok(rig.call("PUT", &format!("{TENURE_API}/queues/page%2Fqueue/policy"), Some(&policy)).await);
    let root = log_in(&rig, &rig.root).await;
    let page = get(&rig, "/queue/page/queue", Some(&root)).await;
    shows(&page, &["at-least-once", "completeTime", "version 1, by root"]);
    hides(&get(&rig, "/queue/page/queue", None).await, &["at-least-once"]);
    let path = format!("/task/{task}");
    shows(&get(&rig, &path, None).await, &["No eligible worker has asked for work in the last minute."]);
    let claims = rig.claim(QUEUE, 1).await;
    shows(&get(&rig, &path, Some(&root)).await, &["Worker group/worker has held it since"]);
    shows(&get(&rig, &path, None).await, &["A worker has held it since"]);
    rig.report(&claims[0], "exception", Some(&json!({"reason": "worker-shutdown"}))).await;
    sql(&rig, "UPDATE runs SET ended_by = 7; INSERT INTO results SELECT seq, 0, '{\"answer\": \"<b>\"}' FROM runs")
        .await;
    let anonymous = get(&rig, &path, None).await;
    shows(&anonymous, &["ended by complete-time", "tenure:get-result:page/queue"]);
    hides(&anonymous, &["answer"]);
    let page = get(&rig, &path, Some(&root)).await;
    shows(&page, &["answer", "&lt;b&gt;"]);
    hides(&page, &["<b>"]);
    sql(&rig, "DELETE FROM results").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_limits_need_scope_and_task_shows_its_wait() {
    let rig = Rig::start().await;
    let queue = format!("{TENURE_API}/queues/page%2Fqueue");
    let policy = json!({"concurrency": {"perKey": 1}, "fair": true});
    assert_eq!(rig.call("PUT", &format!("{queue}/policy"), Some(&policy)).await.status, 200);
    crate::rig::eventually("all runs follow the policy", async || {
        let policy = rig.call("GET", &format!("{queue}/policy"), None).await.body;
        (policy["refiling"] == 0).then_some(())
    })
    .await;
    let rules = json!({"concurrency": 2, "weight": 2.5, "rate": {"count": 7, "seconds": 60}});
    assert_eq!(rig.call("PUT", &format!("{queue}/keys/%3Cq%3E"), Some(&rules)).await.status, 200);
    let of_acme = |task: &mut Value| task["extra"] = json!({"tenure": {"key": "acme"}});
    rig.create_with(QUEUE, of_acme).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let waiting = rig.create_with(QUEUE, of_acme).await;
    let (page, root) = ("/queue/page/queue", log_in(&rig, &rig.root).await);
    let shown = get(&rig, page, Some(&root)).await;
    shows(
        &shown,
        &["Keys", "acme", "&lt;q&gt;", "its own", "7 in 60 s", "2.5", "At most 1 run of each key at a time."],
    );
    hides(&shown, &["<q>"]);
    let shown = crate::rig::eventually("the second run is held", async || {
        let shown = get(&rig, page, Some(&root)).await;
        shown.text().contains("Held</h2>").then_some(shown)
    })
    .await;
    shows(&shown, &["It waits for a slot of its key &quot;acme&quot;, which has 1.", "Oldest held"]);
    hides(&get(&rig, page, None).await, &["acme", "At most 1 run", "It waits for"]);
    let path = format!("/task/{waiting}");
    shows(
        &get(&rig, &path, Some(&root)).await,
        &["It waits for a slot of its key &quot;acme&quot;, which has 1: taken by"],
    );
    let anonymous = get(&rig, &path, None).await;
    shows(&anonymous, &["It waits for a slot of its key, which has 1."]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlog_of_bounded_queue_is_shown() {
    let rig = Rig::start().await;
    let (page, root) = ("/queue/page/queue", log_in(&rig, &rig.root).await);
    rig.create_one(QUEUE).await;
    hides(&get(&rig, page, Some(&root)).await, &["Backlog", "<meter"]);
    let policy = json!({"backlog": {"tasks": 5_000}});
    ok(rig.call("PUT", &format!("{TENURE_API}/queues/page%2Fqueue/policy"), Some(&policy)).await);
    rig.create_one(QUEUE).await;
    let shown = get(&rig, page, Some(&root)).await;
    shows(&shown, &["Backlog", "2 of 5\u{202f}000", "max=\"5000\"", "value=\"2\""]);
    let policy = json!({"backlog": {"bytes": 1_000_000}});
    ok(rig.call("PUT", &format!("{TENURE_API}/queues/page%2Fqueue/policy"), Some(&policy)).await);
    let bytes = get(&rig, page, Some(&root)).await;
    shows(&bytes, &["Backlog in bytes", "of 1\u{202f}000\u{202f}000", "max=\"1000000\""]);
    // As over the API, the limit is for readers of the queue.
    hides(&get(&rig, page, None).await, &["Backlog", "5\u{202f}000"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_of_queue_need_scope_to_list_them() {
    let rig = Rig::start().await;
    let (page, root) = ("/queue/page/queue", log_in(&rig, &rig.root).await);
    let task = rig.create_one(QUEUE).await;
    hides(&get(&rig, page, Some(&root)).await, &["Schedules"]);
    let long = "x".repeat(17 << 10);
    for (name, queue, payload) in [
        ("nightly", QUEUE, json!({})),
        ("idle", QUEUE, json!({})),
        ("other", "page/other", json!({})),
        ("long", QUEUE, json!({"a": long})),
    ] {
        let body = json!({"cron": "0 3 1 1 *", "timezone": "Europe/Berlin", "paused": name == "idle",
            "task": {"taskQueueId": queue, "payload": payload}});
        ok(rig.call("PUT", &format!("{TENURE_API}/schedules/{name}"), Some(&body)).await);
    }
    let last =
        "UPDATE schedules SET last_at = tenure_now() - interval '3 minutes', last_outcome = 2, error = '<b>no</b>',
                                     last_task = (SELECT id FROM tasks) WHERE name = 'nightly'";
    sql(&rig, last).await;
    let shown = get(&rig, page, Some(&root)).await;
    shows(&shown, &["Schedules", "nightly", "idle", "state paused", "0 3 1 1 *", "Europe/Berlin", "3 m", "skipped"]);
    shows(&shown, &[&format!("/task/{task}"), "&lt;b&gt;no&lt;/b&gt;"]);
    hides(&shown, &["<b>no", ">other<", ">long<"]);
    let looker = log_in(&rig, &rig.make_client("looker", &["queue:*", "tenure:get-queue:*"]).await).await;
    hides(&get(&rig, page, Some(&looker)).await, &["Schedules", "nightly"]);
    hides(&get(&rig, page, None).await, &["Schedules", "nightly"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_held_by_a_rate_are_listed_with_the_reason() {
    let rig = Rig::start().await;
    let (page, root) = ("/queue/page/queue", log_in(&rig, &rig.root).await);
    rig.put_policy(QUEUE, &json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    rig.create_one(QUEUE).await;
    hides(&get(&rig, page, Some(&root)).await, &["Held</h2>"]);
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let held = format!("/task/{}", rig.create_one(QUEUE).await);
    let shown = crate::rig::eventually("the run is held", async || {
        let shown = get(&rig, page, Some(&root)).await;
        shown.text().contains("Held</h2>").then_some(shown)
    })
    .await;
    shows(&shown, &[&held, "The rate allows the next start at "]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_and_their_runs_need_scope_to_see_queue() {
    let rig = Rig::start().await;
    for _ in 0..3 {
        rig.create_one(QUEUE).await;
    }
    let page = "/queue/page/queue";
    let cookie = log_in(&rig, &rig.root).await;
    hides(&get(&rig, page, Some(&cookie)).await, &["Sessions"]);
    let mut sessions = Vec::new();
    for (worker, weight) in [("w1", 5), ("w2", 65_535)] {
        sessions.push(rig.start_session(QUEUE, worker, json!({"weight": weight, "capacity": 17})).await);
    }
    let claiming = json!({"workerGroup": "group", "workerId": "w1", "tasks": 3, "sessionId": sessions[0]});
    let claimed = rig.call("POST", &crate::rig::claim_path(QUEUE), Some(&claiming)).await;
    assert_eq!(claimed.body["tasks"].as_array().map(Vec::len), Some(3), "{}", claimed.body);
    let shown = get(&rig, page, Some(&cookie)).await;
    shows(&shown, &["Sessions", "group/w1", "group/w2", "65\u{202f}535", "17", &sessions[0], &sessions[1]]);
    hides(&shown, &["frozen\""]);
    let anonymous = get(&rig, page, None).await;
    hides(&anonymous, &["Sessions", &sessions[0]]);
    let renewing = format!("{TENURE_API}/sessions/{}/renew", sessions[1]);
    assert_eq!(rig.call("POST", &renewing, Some(&json!({"frozen": true}))).await.status, 200);
    shows(&get(&rig, page, Some(&cookie)).await, &["state frozen"]);
    for session in &sessions {
        assert_eq!(rig.call("DELETE", &format!("{TENURE_API}/sessions/{session}"), None).await.status, 200);
    }
    hides(&get(&rig, page, Some(&cookie)).await, &["Sessions", &sessions[0]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_of_queue_need_scope_to_list_servers() {
    let rig =
        Rig::start_with(|launch| launch.flag("--server-name", "<b>one</b>").flag("--scheduler-weight", "7")).await;
    let (page, root) = ("/queue/page/queue", log_in(&rig, &rig.root).await);
    rig.create_one(QUEUE).await;
    hides(&get(&rig, page, Some(&root)).await, &["Schedulers"]);
    let policy = json!({"dispatch": "assign"});
    ok(rig.call("PUT", &format!("{TENURE_API}/queues/page%2Fqueue/policy"), Some(&policy)).await);
    let shown = crate::rig::eventually("it is the scheduler", async || {
        let shown = get(&rig, page, Some(&root)).await;
        shown.text().contains("state active").then_some(shown)
    })
    .await;
    shows(&shown, &["Schedulers", "&lt;b&gt;one&lt;/b&gt;", "Weight", "Term", "Last beat"]);
    hides(&shown, &["<b>one", "No live server schedules"]);
    let looker = rig.make_client("looker", &["queue:*", "tenure:get-queue:*"]).await;
    let looker = log_in(&rig, &looker).await;
    let denied = get(&rig, page, Some(&looker)).await;
    shows(&denied, &["Schedulers", "tenure:list-servers"]);
    hides(&denied, &["&lt;b&gt;one"]);
    hides(&get(&rig, page, None).await, &["Schedulers"]);
    // As after the kill of a server that another one noticed.
    sql(&rig, "UPDATE admission_queues SET server = gen_random_uuid(), term = term + 1").await;
    let shown = get(&rig, page, Some(&root)).await;
    shows(&shown, &["No live server schedules this queue now", "state standby"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_with_problem_is_listed_beyond_fullest() {
    let rig = Rig::start().await;
    rig.create_one(QUEUE).await;
    let task = |n: usize| {
        json!({"taskQueueId": format!("many/q{n}"), "payload": {"command": [["true"]]},
            "deadline": crate::rig::minutes_from_now(60)})
    };
    // More than the lists read.
    let body = json!({"tasks": (0..205).map(task).collect::<Vec<_>>()});
    ok(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&body)).await);
    let root = log_in(&rig, &rig.root).await;
    let link = "href=\"/queue/page/queue\"";
    crate::rig::eventually("all queues are counted", async || {
        let page = get(&rig, "/queues", Some(&root)).await;
        (page.text().contains("fullest and newest") && !page.text().contains(link)).then_some(())
    })
    .await;
    ok(rig.call("POST", &format!("{TENURE_API}/queues/page%2Fqueue/pause"), Some(&json!({}))).await);
    for path in ["/queues", "/"] {
        crate::rig::eventually(&format!("{path} lists the queue"), async || {
            let page = get(&rig, path, Some(&root)).await.text();
            let rows = page.split_once("<table").is_some_and(|(_, rows)| rows.contains(link));
            rows.then_some(())
        })
        .await;
    }
}
