//! Forms that act on tasks, groups, queues, workers and sessions: with and without the scopes, from
//! this page and from others, and with bad input.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use super::{HOSTILE, POLICY, QUEUE, form, form_token, get, hides, log_in, own_form, shows};
use crate::rig::{RawReply, Rig, eventually, minutes_from_now, new_task, ok};

/// A logged-in client.
pub(super) struct Visitor {
    pub(super) cookie: String,
    token: String,
}

impl Visitor {
    pub(super) async fn root(rig: &Rig) -> Self {
        let cookie = log_in(rig, &rig.root).await;
        Self::with(rig, cookie).await
    }

    pub(super) async fn new(rig: &Rig, id: &str, scopes: &[&str]) -> Self {
        let cookie = log_in(rig, &rig.make_client(id, scopes).await).await;
        Self::with(rig, cookie).await
    }

    async fn with(rig: &Rig, cookie: String) -> Self {
        let token = form_token(&get(rig, "/login", Some(&cookie)).await.text()).to_owned();
        Self { cookie, token }
    }

    pub(super) async fn get(&self, rig: &Rig, path: &str) -> RawReply {
        get(rig, path, Some(&self.cookie)).await
    }

    pub(super) async fn send(&self, rig: &Rig, path: &str, fields: &[(&str, &str)]) -> RawReply {
        let fields = [&[("token", self.token.as_str())], fields].concat();
        rig.send(&own_form(rig, path, &fields).header("Cookie", &self.cookie)).await
    }

    /// Carries an action out. Returns where it leads, and the line shown there.
    pub(super) async fn done(&self, rig: &Rig, path: &str, fields: &[(&str, &str)]) -> (String, String) {
        let reply = self.send(rig, path, fields).await;
        assert_eq!(reply.status, 303, "{path}: {}", reply.text());
        assert_eq!(reply.header("content-security-policy"), Some(POLICY));
        let location = reply.header("location").expect("it leads to a page").to_owned();
        let cookie = reply.header("set-cookie").expect("a line is shown").split(';').next().unwrap().to_owned();
        let page = get(rig, &location, Some(&format!("{}; {cookie}", self.cookie))).await;
        assert!(page.header("set-cookie").is_some_and(|gone| gone.contains("Max-Age=0")), "{path}: shown once");
        let text = page.text();
        let (_, rest) = text.split_once("<p class=\"done\" role=\"status\">").expect("the page has the line");
        (location, rest.split("</p>").next().unwrap().to_owned())
    }
}

/// Value of a hidden field.
pub(super) fn hidden(reply: &RawReply, name: &str) -> String {
    let (text, start) = (reply.text(), format!("type=\"hidden\" name=\"{name}\" value=\""));
    let (_, rest) = text.split_once(&start).unwrap_or_else(|| panic!("no field {name}: {text}"));
    rest.split('"')
        .next()
        .unwrap()
        .replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

async fn start() -> Rig {
    Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_actions_change_the_task() {
    let rig = start().await;
    let (task, root) = (rig.create_one(QUEUE).await, Visitor::root(&rig).await);
    let dependent = rig.create_with(QUEUE, |body| body["dependencies"] = json!([task])).await;
    let (page, path) = (format!("/task/{task}"), |action: &str| format!("/task/{task}/{action}"));
    let shown = root.get(&rig, &page).await;
    shows(&shown, &["Cancel…", "Priority…", "Command…", "Create again…"]);
    hides(&shown, &["Rerun", "Schedule…", "Release…"]);
    let line = |text: &str| (page.clone(), text.to_owned());
    let high = [("newPriority", "high")];
    assert_eq!(root.done(&rig, &path("priority"), &high).await, line("The priority of the task is high."));
    assert_eq!(rig.status(task).await["priority"], "high");
    shows(&root.get(&rig, &path("cancel")).await, &["1 task needs it.", &format!("tenure task cancel {task}")]);
    assert_eq!(root.done(&rig, &path("cancel"), &[]).await, line("The task is cancelled."));
    assert_eq!(rig.status(task).await["runs"][0]["reasonResolved"], "canceled");
    shows(&root.get(&rig, &page).await, &["<button type=\"submit\">Rerun</button>"]);
    assert_eq!(root.done(&rig, &path("rerun"), &[]).await, line("The task was rerun and is pending."));
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    shows(&root.get(&rig, &path("cancel")).await, &["Worker <code>group/worker</code> holds it."]);
    let until = minutes_from_now(9);
    let sleep = [("command", "sleep"), ("until", until.as_str())];
    assert_eq!(root.done(&rig, &path("command"), &sleep).await, line("The command sleep was sent."));
    let of_earlier_run = root.send(&rig, &path("release"), &[("runId", "0")]).await;
    assert!(of_earlier_run.status == 409 && of_earlier_run.text().contains("open the form again"));
    assert_eq!(hidden(&root.get(&rig, &path("release")).await, "runId"), "1");
    assert_eq!(
        root.done(&rig, &path("release"), &[("runId", "1"), ("delay", "600")]).await,
        line("Run 1 was released.")
    );
    assert_eq!(rig.status(task).await["runs"][1]["reasonResolved"], "worker-shutdown");
    let audit = ok(rig.call("GET", &format!("{TENURE_API}/audit?object={task}&action=releaseTask"), None).await);
    let entry = &audit["audit"][0];
    assert_eq!((&entry["clientId"], &entry["detail"]["runId"]), (&json!("root"), &json!(1)), "{audit}");
    let scheduled = root.done(&rig, &format!("/task/{dependent}/schedule"), &[]).await;
    assert_eq!(scheduled.1, "The task was scheduled and is pending.");
    assert_eq!(rig.status(dependent).await["state"], "pending");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_shown_and_run_again() {
    let rig = start().await;
    let root = Visitor::root(&rig).await;
    let (page, path) = ("/queue/page/queue", "/queue/page/queue/redrive");
    rig.put_policy(QUEUE, &json!({"deadLetters": true})).await;
    let task = rig.create_one(QUEUE).await;
    hides(&root.get(&rig, page).await, &["Dead letters", "Run failed tasks again"]);
    let claim = rig.claim(QUEUE, 1).await.pop().unwrap();
    rig.report(&claim, "failed", None).await;
    eventually("the page lists it", async || {
        root.get(&rig, page).await.text().contains("A dead letter goes with its task").then_some(())
    })
    .await;
    shows(&root.get(&rig, page).await, &["Dead letters", "Run failed tasks again…", &format!("/task/{task}")]);
    shows(&root.get(&rig, path).await, &["Number of tasks", "tenure queue redrive page/queue"]);
    for (fields, field) in [([("limit", "0")], "limit"), ([("copy.deadlineAfter", "5")], "copy.deadlineAfter")] {
        let refused = root.send(&rig, path, &fields).await;
        assert_eq!(refused.status, 400, "{field}: {}", refused.text());
        assert!(refused.text().contains(&format!("<code>{field}</code>")), "{}", refused.text());
    }
    let (location, line) = root.done(&rig, path, &[("limit", "10"), ("copy.deadlineAfter", "")]).await;
    assert_eq!((location.as_str(), line.as_str()), (page, "Tasks run again: 1. Copied: 0. Refused: 0."));
    assert_eq!(rig.status(task).await["state"], "pending");
    hides(&root.get(&rig, page).await, &["Dead letters"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_names_the_field_and_is_kept() {
    let rig = start().await;
    let (task, root) = (rig.create_one(QUEUE).await, Visitor::root(&rig).await);
    rig.claim(QUEUE, 1).await;
    let session = rig.start_session(QUEUE, "w1", json!({})).await;
    let (task, session) = (format!("/task/{task}"), format!("/session/{session}"));
    let (queue, worker) = ("/queue/page/queue", "/worker/group/worker/page/queue");
    let (id, deadline) = (new_task().to_string(), minutes_from_now(9));
    let again = |deadline, payload| {
        let queue = ("taskQueueId", QUEUE);
        [("taskId", id.as_str()), queue, ("newPriority", "low"), ("deadline", deadline), ("payload", payload)]
    };
    for (path, fields, field, kept) in [
        (format!("{task}/priority"), &[("newPriority", "urgent")][..], "newPriority", ""),
        (format!("{task}/release"), &[("delay", "<x>")], "delay", "value=\"&lt;x&gt;\""),
        (format!("{task}/release"), &[("delay", "-1")], "delay", "value=\"-1\""),
        (format!("{task}/command"), &[("command", "sleep")], "until", "value=\"sleep\" selected"),
        (format!("{task}/command"), &[("command", "pause"), ("until", "soon")], "until", "value=\"soon\""),
        (format!("{task}/create-again"), &again("soon", "{}"), "deadline", "value=\"soon\""),
        (format!("{task}/create-again"), &again(deadline.as_str(), "{<x>"), "payload", "{&lt;x&gt;</textarea>"),
        (format!("{queue}/policy"), &[("policy", "{\"fair\": 7}")], "policy", "{&quot;fair&quot;: 7}</textarea>"),
        (format!("{queue}/policy"), &[("policy", HOSTILE)], "policy", "&lt;script&gt;"),
        (format!("{queue}/key"), &[("key", "acme"), ("weight", "heavy")], "weight", "value=\"heavy\""),
        (format!("{queue}/key"), &[("key", "acme"), ("rate.count", "5")], "rate.seconds", "value=\"5\""),
        (format!("{queue}/key"), &[("key", ""), ("weight", "2")], "key", "value=\"2\""),
        (format!("{queue}/delete-key"), &[("key", "acme")], "key", "value=\"acme\""),
        (
            format!("{worker}/quarantine"),
            &[("quarantineUntil", "61"), ("quarantineInfo", "dusty")],
            "quarantineUntil",
            "dusty",
        ),
        (format!("{session}/stop-task"), &[("taskId", "x")], "taskId", "value=\"x\""),
        (format!("{session}/stop-task"), &[], "taskId", ""),
    ] {
        let reply = root.send(&rig, &path, fields).await;
        assert_eq!(reply.status, 400, "{path} {fields:?}: {}", reply.text());
        let text = reply.text();
        assert!(text.contains(&format!("<code>{field}</code>")), "{path} {fields:?} does not name {field}: {text}");
        assert!(text.contains("aria-invalid=\"true\""), "{path} {fields:?} marks no field: {text}");
        assert!(text.contains(kept), "{path} {fields:?} loses the input: {text}");
        hides(&reply, &["<script", "<x>"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_is_created_again_once_with_changes() {
    let rig = start().await;
    let root = Visitor::root(&rig).await;
    let first = rig.create_one(QUEUE).await;
    let task = rig
        .create_with(QUEUE, |body| {
            body["dependencies"] = json!([first]);
            body["payload"] = json!({"command": ["old"]});
            body["tags"] = json!({"kind": "test"});
        })
        .await;
    let path = format!("/task/{task}/create-again");
    let form = root.get(&rig, &path).await;
    shows(&form, &["&quot;old&quot;", "the same", "value=\"page/queue\""]);
    let (id, deadline) = (hidden(&form, "taskId"), minutes_from_now(30));
    let fields = [
        ("taskId", id.as_str()),
        ("taskQueueId", "page/other"),
        ("newPriority", "medium"),
        ("deadline", deadline.as_str()),
        ("expires", ""),
        ("dependencies", "none"),
        ("payload", "{\"command\": [\"new\"]}"),
    ];
    let (location, line) = root.done(&rig, &path, &fields).await;
    assert_eq!((location, line), (format!("/task/{id}"), format!("Created again from task {task}.")));
    let made = ok(rig.call("GET", &format!("/task/{id}"), None).await);
    let expected = json!({"taskQueueId": "page/other", "priority": "medium", "dependencies": [], "deadline": deadline,
        "payload": {"command": ["new"]}, "tags": {"kind": "test"}, "taskGroupId": id});
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&made[field], value, "{field}");
    }
    let (location, line) = root.done(&rig, &path, &fields).await;
    assert_eq!((location, line.as_str()), (format!("/task/{id}"), "The task was created by this form before."));
    let other = new_task().to_string();
    let mut same = fields;
    (same[0].1, same[5].1) = (other.as_str(), "same");
    root.done(&rig, &path, &same).await;
    assert_eq!(ok(rig.call("GET", &format!("/task/{other}"), None).await)["dependencies"], json!([first]));
    // The changed task decides the scopes.
    let low = [
        "queue:get-task:*",
        "queue:create-task:lowest:page/queue",
        "queue:create-task:project:none",
        "queue:scheduler-id:-",
    ];
    let low = Visitor::new(&rig, "low", &low).await;
    assert_eq!(low.get(&rig, &path).await.status, 200);
    let reply = low.send(&rig, &path, &same).await;
    assert_eq!(reply.status, 403);
    assert!(reply.text().contains("queue:create-task:medium:page/other"), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_actions_change_its_tasks() {
    let rig = start().await;
    let (group, root) = (new_task(), Visitor::root(&rig).await);
    let of_group = |body: &mut Value| body["taskGroupId"] = json!(group);
    let tasks = [rig.create_with(QUEUE, of_group).await, rig.create_with(QUEUE, of_group).await];
    let (page, path) = (format!("/group/{group}"), |action: &str| format!("/group/{group}/{action}"));
    let line = |text: &str| (page.clone(), text.to_owned());
    shows(&root.get(&rig, &page).await, &["Seal…", "Cancel…", "Priority…"]);
    let low = [("newPriority", "low")];
    assert_eq!(root.done(&rig, &path("priority"), &low).await, line("The priority of 2 tasks is low."));
    let reply = root.send(&rig, &path("cancel"), &[]).await;
    assert_eq!(reply.status, 409);
    assert!(reply.text().contains("is not sealed"), "{}", reply.text());
    assert_eq!(root.done(&rig, &path("seal"), &[]).await, line("The group is sealed."));
    shows(&root.get(&rig, &path("cancel")).await, &["2 unresolved tasks", &format!("tenure group cancel {group}")]);
    assert_eq!(root.done(&rig, &path("cancel"), &[]).await, line("2 tasks of 2 were cancelled."));
    for task in tasks {
        assert_eq!(rig.status(task).await["state"], "exception");
    }
    shows(&root.get(&rig, &path("cancel")).await, &["no task to cancel"]);
    hides(&root.get(&rig, &page).await, &["Seal…"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_is_stored_after_its_words_were_shown() {
    let rig = start().await;
    rig.create_one(QUEUE).await;
    let root = Visitor::root(&rig).await;
    let (page, path) = ("/queue/page/queue", "/queue/page/queue/policy");
    let api = format!("{TENURE_API}/queues/page%2Fqueue/policy");
    let policy = "{\"concurrency\": {\"perKey\": 2}}";
    let shown = root.get(&rig, path).await;
    shows(&shown, &["The queue has no policy.", "tenure queue policy set page/queue FILE"]);
    assert_eq!(hidden(&shown, "version"), "");
    let reply = root.send(&rig, path, &[("policy", policy), ("version", "")]).await;
    shows(&reply, &["At most 2 runs of each key at a time.", "Store the policy"]);
    assert_eq!(rig.call("GET", &api, None).await.status, 404, "it was only shown");
    let reviewed = hidden(&reply, "reviewed");
    let fields = [("policy", policy), ("version", ""), ("reviewed", &reviewed)];
    assert_eq!(root.done(&rig, path, &fields).await, (page.to_owned(), "The policy has version 1.".to_owned()));
    // Another text is shown again, and another version is refused.
    let other = [("policy", "{\"fair\": true}"), ("version", "1"), ("reviewed", &reviewed)];
    shows(&root.send(&rig, path, &other).await, &["Each key gets a share by its weight."]);
    ok(rig.call("PUT", &api, Some(&json!({"concurrency": {"total": 9}}))).await);
    for version in ["", "1"] {
        let reply = root.send(&rig, path, &[("policy", policy), ("version", version), ("reviewed", &reviewed)]).await;
        assert_eq!(reply.status, 409, "{}", reply.text());
        assert!(
            reply.text().contains("{&quot;concurrency&quot;: {&quot;perKey&quot;: 2}}</textarea>"),
            "{}",
            reply.text()
        );
        assert_eq!(hidden(&reply, "version"), version);
    }
    let path = "/queue/page/queue/delete-policy";
    let shown = root.get(&rig, path).await;
    shows(&shown, &["Deletes version 2", "At most 9 runs of the queue at a time."]);
    assert_eq!(root.send(&rig, path, &[("version", "1")]).await.status, 409);
    assert_eq!(root.done(&rig, path, &[("version", &hidden(&shown, "version"))]).await.1, "The queue has no policy.");
    assert_eq!(rig.call("GET", &api, None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_limits_are_stored_shown_and_deleted() {
    let rig = start().await;
    rig.create_one(QUEUE).await;
    rig.put_policy(QUEUE, &json!({"fair": true})).await;
    let root = Visitor::root(&rig).await;
    let key = format!("{TENURE_API}/queues/page%2Fqueue/keys/acme");
    let fields = [
        ("key", "acme"),
        ("concurrency", "3"),
        ("rate.count", "7"),
        ("rate.seconds", "60"),
        ("rate.burst", ""),
        ("weight", "2.5"),
    ];
    let (_, line) = root.done(&rig, "/queue/page/queue/key", &fields).await;
    assert_eq!(line, "The limits of key &quot;acme&quot; are stored.");
    let stored = ok(rig.call("GET", &key, None).await);
    assert_eq!(
        (&stored["concurrency"], &stored["weight"], &stored["rate"]["count"]),
        (&json!(3), &json!(2.5), &json!(7))
    );
    shows(&root.get(&rig, "/queue/page/queue/key?key=acme").await, &["value=\"3\"", "value=\"2.5\"", "value=\"60\""]);
    let path = "/queue/page/queue/delete-key";
    let reply = root.send(&rig, path, &[("key", "acme")]).await;
    shows(&reply, &["Concurrency: 3", "Rate: 7 in 60 s", "Delete the limits"]);
    assert_eq!(rig.call("GET", &key, None).await.status, 200, "they were only shown");
    let (_, line) = root.done(&rig, path, &[("key", "acme"), ("reviewed", "acme")]).await;
    assert_eq!(line, "Key &quot;acme&quot; has no limits of its own.");
    assert_eq!(rig.call("GET", &key, None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_is_replaced_in_queues_that_assign() {
    let rig = start().await;
    rig.create_one(QUEUE).await;
    let (root, path) = (Visitor::root(&rig).await, "/queue/page/queue/replace-scheduler");
    hides(&root.get(&rig, "/queue/page/queue").await, &["Replace the scheduler…"]);
    assert_eq!(root.send(&rig, path, &[]).await.status, 409);
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    eventually("the queue has a scheduler", async || {
        let page = root.get(&rig, "/queue/page/queue").await;
        page.text().contains("state active").then_some(())
    })
    .await;
    shows(&root.get(&rig, "/queue/page/queue").await, &["Replace the scheduler…"]);
    let (_, line) = root.done(&rig, path, &[]).await;
    assert!(line.starts_with("The scheduler was replaced: term "), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_is_quarantined_released_and_declared_gone() {
    let rig = start().await;
    let task = rig.create_one(QUEUE).await;
    let root = Visitor::root(&rig).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let (page, path) = ("/worker/group/worker", |action: &str| format!("/worker/group/worker/page/queue/{action}"));
    let api = "/provisioners/page/worker-types/queue/workers/group/worker";
    shows(&root.get(&rig, page).await, &["In queue", "Quarantine…", "Declare gone…"]);
    hides(&root.get(&rig, page).await, &["Lift the quarantine"]);
    let fields = [("quarantineInfo", HOSTILE), ("quarantineUntil", "60")];
    let (location, line) = root.done(&rig, &path("quarantine"), &fields).await;
    assert_eq!(location, page);
    assert!(line.starts_with("The worker is quarantined until 2"), "{line}");
    let shown = ok(rig.call("GET", api, None).await);
    let change = &shown["quarantineDetails"][0];
    assert_eq!((&change["quarantineInfo"], &change["clientId"]), (&json!(HOSTILE), &json!("root")));
    rig.create_one(QUEUE).await;
    assert!(rig.claim(QUEUE, 1).await.is_empty(), "it gets no work");
    shows(&root.get(&rig, page).await, &["<button type=\"submit\">Lift the quarantine</button>"]);
    assert_eq!(root.done(&rig, &path("lift"), &[]).await.1, "The quarantine is lifted.");
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    shows(&root.get(&rig, &path("gone")).await, &["The 2 runs that it holds end."]);
    assert_eq!(root.done(&rig, &path("gone"), &[]).await.1, "The worker is gone; 2 runs were ended.");
    assert_eq!(rig.status(task).await["runs"][0]["reasonResolved"], "worker-shutdown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_gets_commands_and_is_ended() {
    let rig = start().await;
    let (task, root) = (rig.create_one(QUEUE).await, Visitor::root(&rig).await);
    let session = rig.start_session(QUEUE, "worker", json!({})).await;
    let claiming = json!({"workerGroup": "group", "workerId": "worker", "tasks": 1, "sessionId": session});
    ok(rig.call("POST", &crate::rig::claim_path(QUEUE), Some(&claiming)).await);
    let (page, path) = (format!("/session/{session}"), |action: &str| format!("/session/{session}/{action}"));
    shows(&root.get(&rig, "/queue/page/queue").await, &[&page]);
    shows(&root.get(&rig, &page).await, &["group/worker", "Freeze", "Shut down…", "Stop a task…", "End…"]);
    assert_eq!(get(&rig, &page, None).await.status, 403);
    let id = task.to_string();
    shows(&root.get(&rig, &path("stop-task")).await, &[&id]);
    let stop: &[(&str, &str)] = &[("taskId", &id)];
    let commands = [("freeze", &[][..]), ("unfreeze", &[]), ("shutdown", &[]), ("stop-task", stop)];
    for (command, fields) in commands {
        let (location, line) = root.done(&rig, &path(command), fields).await;
        assert_eq!((location, line), (page.clone(), format!("The command {command} is in the inbox of the session.")));
    }
    let inbox = ok(rig.call("GET", &format!("{TENURE_API}/sessions/{session}/inbox?wait=0"), None).await);
    let items = inbox["items"].as_array().unwrap();
    let sent: Vec<&str> = items.iter().filter_map(|item| item["command"].as_str()).collect();
    assert_eq!(sent, commands.map(|(command, _)| command));
    assert_eq!(items.last().unwrap()["taskId"], json!(id));
    shows(&root.get(&rig, &path("end")).await, &["Its 1 running and 0 assigned runs leave it.", "tenure session end"]);
    assert_eq!(root.done(&rig, &path("end"), &[]).await.1, "The session has ended; 1 run left it.");
    assert_eq!(rig.status(task).await["state"], "pending");
    shows(&root.get(&rig, &page).await, &["ended"]);
    hides(&root.get(&rig, &page).await, &["End…"]);
}

/// Waits for the end of a job, and returns its page.
async fn ended_job(rig: &Rig, visitor: &Visitor, location: &str) -> RawReply {
    eventually("the job has ended", async || {
        let page = visitor.get(rig, location).await;
        (!page.text().contains("<progress")).then_some(page)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_tasks_of_a_group_run_again_as_a_job() {
    let (rig, group) = (start().await, new_task());
    let task = rig.create_with(QUEUE, |body| body["taskGroupId"] = json!(group)).await;
    for claim in rig.claim(QUEUE, 1).await {
        rig.report(&claim, "failed", None).await;
    }
    let root = Visitor::root(&rig).await;
    let (page, path) = (format!("/group/{group}"), format!("/group/{group}/rerun-failed"));
    shows(&root.get(&rig, &page).await, &["Rerun failed…"]);
    let asked = root.get(&rig, &path).await;
    shows(&asked, &["Failed: 1 task.", &format!("tenure group rerun --failed {group}")]);
    let id = hidden(&asked, "job_id");
    let (location, line) = root.done(&rig, &path, &[("job_id", &id), ("state", "failed")]).await;
    assert_eq!((location.as_str(), line.as_str()), (format!("/jobs/{id}").as_str(), "The job was started."));
    shows(&ended_job(&rig, &root, &location).await, &["Run tasks again", "1 of 1 tasks changed", "All jobs"]);
    assert_eq!(rig.status(task).await["state"], "pending");
    let wrong = root.send(&rig, &path, &[("job_id", &id), ("state", "lost")]).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_of_a_form_shows_its_number_before_it_starts() {
    let rig = start().await;
    let (task, other) = (rig.create_one(QUEUE).await, rig.create_one(QUEUE).await);
    let root = Visitor::root(&rig).await;
    let matching = [("action", "cancel"), ("priority", "low"), ("queue", QUEUE), ("state", "pending")];
    let asked = root.send(&rig, "/jobs", &matching).await;
    assert_eq!(asked.status, 200, "{}", asked.text());
    shows(&asked, &["2 tasks.", &format!("tenure task cancel --queue {QUEUE} --state pending"), "Start the job"]);
    assert_eq!(rig.status(task).await["state"], "pending", "nothing has started");
    let (id, task) = (hidden(&asked, "job_id"), task.to_string());
    let chosen = [("action", "cancel"), ("task_id", task.as_str()), ("job_id", &id), ("confirmed", "yes")];
    for _ in 0..2 {
        let (location, _) = root.done(&rig, "/jobs", &chosen).await;
        assert_eq!(location, format!("/jobs/{id}"), "sent twice, started once");
        shows(&ended_job(&rig, &root, &location).await, &["1 of 1 tasks changed"]);
    }
    assert_eq!(rig.status(other).await["state"], "pending");
    shows(&root.get(&rig, "/jobs").await, &[&format!("/jobs/{id}"), "1 selected"]);
    for (fields, part) in [
        (&[("action", "rerun"), ("queue", QUEUE)][..], "only resolved tasks can be rerun"),
        (&[("action", "cancel")], "Select tasks first"),
        (&[("action", "frob"), ("queue", QUEUE)], "action"),
        (&[("action", "priority"), ("priority", "urgent"), ("queue", QUEUE)], "priority"),
    ] {
        let wrong = root.send(&rig, "/jobs", fields).await;
        assert!(wrong.status == 400 && wrong.text().contains(part), "{fields:?}: {}", wrong.text());
    }
    let looker = Visitor::new(&rig, "looker", &["queue:status:*"]).await;
    for (raw, scope) in [
        (looker.send(&rig, "/jobs", &matching).await, "tenure:start-job"),
        (looker.send(&rig, &format!("/jobs/{id}/stop"), &[]).await, "tenure:stop-job:"),
        (looker.get(&rig, "/jobs").await, "tenure:list-jobs"),
        (looker.get(&rig, &format!("/jobs/{id}")).await, "tenure:get-job:"),
    ] {
        assert!(raw.status == 403 && raw.text().contains(scope), "{scope}: {}", raw.text());
    }
    let foreign = form("/jobs", &[("token", root.token.as_str())]).header("Origin", "https://evil.example");
    let foreign = rig.send(&foreign.header("Cookie", &root.cookie)).await;
    assert!(foreign.status == 403 && foreign.text().contains("was not sent from this page"), "{}", foreign.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_of_newer_release_is_shown_as_failed() {
    let rig = start().await;
    let root = Visitor::root(&rig).await;
    let mut conn = rig.database.connect("newer").await;
    let (path, body) = (format!("{TENURE_API}/jobs"), json!({"action": "cancel", "filter": {"taskQueueId": QUEUE}}));
    for (field, newer) in [
        ("action", "UPDATE bulk_jobs SET ended = NULL, action = 99"),
        ("filter", r#"UPDATE bulk_jobs SET ended = NULL, filter = '{"colour": "red"}'"#),
    ] {
        let started = ok(rig.call("POST", &path, Some(&body)).await);
        let id = started["jobId"].as_str().unwrap();
        ended_job(&rig, &root, &format!("/jobs/{id}")).await;
        sqlx::raw_sql(newer).execute(&mut conn).await.unwrap();
        let job = ok(rig.call("GET", &format!("{path}/{id}"), None).await);
        assert_eq!((&job["state"], &job[field], &job["found"]), (&json!("failed"), &Value::Null, &json!(0)), "{job}");
        let listed = ok(rig.call("GET", &path, None).await);
        assert_eq!((&listed["jobs"][0]["jobId"], &listed["jobs"][0]["state"]), (&json!(id), &json!("failed")));
        shows(&root.get(&rig, &format!("/jobs/{id}")).await, &["It ended early", job["error"].as_str().unwrap()]);
        shows(&root.get(&rig, "/jobs").await, &[&format!("/jobs/{id}"), "unreadable"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_conditions_of_a_job_are_escaped() {
    let rig = start().await;
    rig.create_with(QUEUE, |body| body["metadata"]["name"] = HOSTILE.into()).await;
    let root = Visitor::root(&rig).await;
    let fields = [("action", "cancel"), ("queue", QUEUE), ("name", HOSTILE)];
    let asked = root.send(&rig, "/jobs", &fields).await;
    shows(&asked, &["1 task."]);
    assert_eq!(hidden(&asked, "name"), HOSTILE);
    let id = hidden(&asked, "job_id");
    let confirmed = [&fields[..], &[("job_id", id.as_str()), ("confirmed", "yes")]].concat();
    let (location, _) = root.done(&rig, "/jobs", &confirmed).await;
    let ended = ended_job(&rig, &root, &location).await;
    shows(&ended, &["1 of 1 tasks changed"]);
    for page in [asked, ended, root.get(&rig, "/jobs").await] {
        shows(&page, &["&lt;script&gt;alert(1)"]);
        hides(&page, &["<script>", "<img"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actions_need_scope_and_form_of_this_session() {
    let rig = start().await;
    let group = new_task();
    let task = rig.create_with(QUEUE, |body| body["taskGroupId"] = json!(group)).await;
    rig.claim(QUEUE, 1).await;
    let session = rig.start_session(QUEUE, "w1", json!({})).await;
    let looker = Visitor::new(&rig, "looker", &["tenure:get-queue:*", "queue:get-task:*"]).await;
    let root = Visitor::root(&rig).await;
    let objects = [
        (
            format!("/task/{task}"),
            &["cancel", "rerun", "schedule", "priority", "release", "command", "create-again"][..],
        ),
        (format!("/group/{group}"), &["seal", "cancel", "priority", "rerun-failed"]),
        (
            "/queue/page/queue".to_owned(),
            &["policy", "delete-policy", "key", "delete-key", "replace-scheduler", "redrive"],
        ),
        ("/worker/group/worker/page/queue".to_owned(), &["quarantine", "lift", "gone"]),
        (format!("/session/{session}"), &["freeze", "unfreeze", "shutdown", "stop-task", "end"]),
        ("/access".to_owned(), &["create-client", "create-role"]),
        ("/client/looker".to_owned(), &["change", "disable", "enable", "reset-token", "delete"]),
        ("/role/anonymous".to_owned(), &["change", "delete"]),
    ];
    let before = rig.status(task).await;
    for path in
        objects.iter().flat_map(|(object, actions)| actions.iter().map(move |action| format!("{object}/{action}")))
    {
        let fields = [("token", root.token.as_str())];
        let foreign = form(&path, &fields).header("Origin", "https://evil.example").header("Cookie", &root.cookie);
        for (raw, what) in [
            (foreign, "from another site"),
            (form(&path, &fields).header("Cookie", &root.cookie), "without an origin"),
            (own_form(&rig, &path, &fields), "without a session"),
            (
                own_form(&rig, &path, &[("token", looker.token.as_str())]).header("Cookie", &root.cookie),
                "of another session",
            ),
            (own_form(&rig, &path, &[]).header("Cookie", &root.cookie), "without a token"),
        ] {
            let reply = rig.send(&raw).await;
            assert_eq!(reply.status, 403, "{path} {what}: {}", reply.text());
            assert!(reply.text().contains("was not sent from this page"), "{path} {what}: {}", reply.text());
        }
        for reply in [looker.get(&rig, &path).await, looker.send(&rig, &path, &[]).await] {
            assert_eq!(reply.status, 403, "{path}: {}", reply.text());
            assert!(reply.text().contains("To see this you need"), "{path}: {}", reply.text());
        }
        assert_eq!(get(&rig, &path, None).await.status, 403, "{path} without a login");
    }
    assert_eq!(rig.status(task).await, before);
    let worker = ok(rig.call("GET", "/provisioners/page/worker-types/queue/workers/group/worker", None).await);
    assert_eq!(worker["quarantineDetails"], json!([]));
    let live = ok(rig.call("GET", &format!("{TENURE_API}/sessions/{session}"), None).await);
    assert_eq!(live.get("ended"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sent_form_is_logged_with_its_client() {
    let rig = Rig::start_with(|launch| launch.env("TENURE_LOG", "info,access=info")).await;
    let (task, root) = (rig.create_one(QUEUE).await, Visitor::root(&rig).await);
    for path in ["/queue/page/queue/resume".to_owned(), format!("/task/{task}/cancel")] {
        root.done(&rig, &path, &[]).await;
        let expected = (json!("POST"), json!("page"), json!("root"));
        eventually("the form is in the log", async || {
            let log = rig.server.log();
            let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let mut fields = lines.map(|mut line| line["fields"].take()).filter(|fields| fields["http.path"] == *path);
            let found = |fields: Value| {
                (fields["http.method"].clone(), fields["operation"].clone(), fields["client.id"].clone()) == expected
            };
            fields.any(found).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn button_without_scope_is_disabled_and_names_it() {
    let rig = start().await;
    let task = rig.create_one(QUEUE).await;
    rig.claim(QUEUE, 1).await;
    let session = rig.start_session(QUEUE, "w1", json!({})).await;
    let scopes = ["tenure:get-queue:*", "tenure:cancel-task:page/queue"];
    let visitor = Visitor::new(&rig, "some", &scopes).await;
    let page = visitor.get(&rig, &format!("/task/{task}")).await;
    shows(
        &page,
        &[
            &format!("<a class=\"button\" href=\"/task/{task}/cancel\">Cancel…</a>"),
            "<button type=\"button\" disabled>Priority…</button> needs <code>any of [queue:change-task-priority:",
            "<button type=\"button\" disabled>Command…</button> needs <code>tenure:command-worker:page/queue</code>",
        ],
    );
    for (path, button, scope) in [
        ("/queue/page/queue".to_owned(), "Pause…", "tenure:manage-queue:page/queue"),
        ("/queue/page/queue".to_owned(), "Policy…", "tenure:manage-queue:page/queue"),
        ("/worker/group/worker".to_owned(), "Quarantine…", "queue:quarantine-worker:page/queue/group/worker"),
        ("/worker/group/worker".to_owned(), "Declare gone…", "worker-manager:remove-worker:page/queue/group/worker"),
        (format!("/session/{session}"), "Freeze", "tenure:command-worker:page/queue"),
    ] {
        let page = visitor.get(&rig, &path).await;
        shows(&page, &[&format!("<button type=\"button\" disabled>{button}</button> needs <code>{scope}</code>")]);
        hides(&get(&rig, &path, None).await, &[button]);
    }
    assert_eq!(visitor.done(&rig, &format!("/task/{task}/cancel"), &[]).await.1, "The task is cancelled.");
    assert_eq!(rig.status(task).await["state"], "exception");
}
