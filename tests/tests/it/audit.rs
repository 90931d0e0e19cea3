//! The audit over HTTP, on the command line and on the pages.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::policy_commands::{answer, done};
use crate::rig::{Rig, call, minutes_from_now, ok, tenure};

const QUEUE: &str = "audit/linux";

async fn list(rig: &Rig, query: &str) -> Vec<Value> {
    let listed = ok(rig.call("GET", &format!("{TENURE_API}/audit?{query}"), None).await);
    listed["audit"].as_array().unwrap().clone()
}

/// A change, and requests that must not be recorded: a repeat that changes nothing, if there is one.
struct Change {
    action: &'static str,
    object: &'static str,
    method: &'static str,
    path: String,
    body: Option<Value>,
    repeats: bool,
}

/// Changes without a row in the table of endpoints.
fn changes() -> Vec<Change> {
    let queue = format!("{TENURE_API}/queues/audit%2Flinux");
    let schedule = format!("{TENURE_API}/schedules/nightly");
    let cron = json!({"cron": "0 3 1 1 *", "task": {"taskQueueId": QUEUE, "payload": {"token": "hunter2"}}});
    let subscription = format!("{TENURE_API}/subscriptions/billing");
    let partition = format!("{TENURE_API}/partitions/mail");
    let to = json!({"to": {"webhook": {"url": "https://example.com/hunter2"}}, "exchange": ["subscription-suspended"]});
    let until = json!({"reason": "disk", "until": minutes_from_now(60)});
    let change = |action, object, method, path: String, body: Value, repeats| Change {
        action,
        object,
        method,
        path,
        body: Some(body).filter(|body| !body.is_null()),
        repeats,
    };
    vec![
        change("putQueuePolicy", QUEUE, "PUT", format!("{queue}/policy"), json!({"dispatch": "assign"}), true),
        change("putQueueKey", QUEUE, "PUT", format!("{queue}/keys/acme"), json!({"concurrency": 2}), true),
        change("deleteQueueKey", QUEUE, "DELETE", format!("{queue}/keys/acme"), Value::Null, true),
        change("pauseQueue", QUEUE, "POST", format!("{queue}/pause"), until, true),
        change("resumeQueue", QUEUE, "POST", format!("{queue}/resume"), Value::Null, true),
        change("replaceScheduler", QUEUE, "POST", format!("{queue}/scheduler/replace"), Value::Null, false),
        change("deleteQueuePolicy", QUEUE, "DELETE", format!("{queue}/policy"), Value::Null, true),
        change("putSchedule", "nightly", "PUT", schedule.clone(), cron, true),
        change("pauseSchedule", "nightly", "POST", format!("{schedule}/pause"), Value::Null, true),
        change("resumeSchedule", "nightly", "POST", format!("{schedule}/resume"), Value::Null, true),
        change("deleteSchedule", "nightly", "DELETE", schedule, Value::Null, false),
        change("putSubscription", "billing", "PUT", subscription.clone(), to, true),
        change("resumeSubscription", "billing", "POST", format!("{subscription}/resume"), Value::Null, false),
        change("deleteSubscription", "billing", "DELETE", subscription, Value::Null, false),
        change("putPartition", "mail", "PUT", partition.clone(), json!({"interval": 10}), true),
        change("deletePartition", "mail", "DELETE", partition, Value::Null, false),
        change(
            "workerRemoved",
            "audit/linux/group/one",
            "POST",
            format!("{TENURE_API}/workers/audit%2Flinux/group/one/removed"),
            Value::Null,
            false,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_is_recorded_once_and_refusal_never() {
    let rig = Rig::start().await;
    let nobody = rig.make_client("nobody", &[]).await;
    rig.create_one(QUEUE).await;
    for Change { action, object, method, path, body, repeats } in changes() {
        let refused = call(&mut rig.client(), &nobody, method, &path, body.as_ref()).await;
        assert_eq!(refused.status, 403, "{action}: {}", refused.body);
        let query = format!("action={action}");
        assert_eq!(list(&rig, &query).await, [] as [Value; 0], "{action} was refused");
        ok(rig.call(method, &path, body.as_ref()).await);
        if repeats {
            ok(rig.call(method, &path, body.as_ref()).await);
        }
        let entries = list(&rig, &query).await;
        assert_eq!(entries.len(), 1, "{action}: {entries:?}");
        assert_eq!((&entries[0]["clientId"], &entries[0]["object"]), (&json!("root"), &json!(object)), "{action}");
        assert!(entries[0]["traceId"].is_string() && entries[0]["detail"].is_object(), "{action}: {entries:?}");
        assert!(!entries[0].to_string().contains("hunter2"), "{action}: {entries:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_end_is_recorded_for_other_clients_only() {
    let rig = Rig::start().await;
    let scopes = ["queue:claim-work:audit/linux", "queue:worker-id:group/*"];
    let operator = rig.make_client("operator", &scopes).await;
    for worker in ["w1", "w2"] {
        let session = rig.start_session(QUEUE, worker, json!({})).await;
        let path = format!("{TENURE_API}/sessions/{session}");
        if worker == "w1" {
            ok(rig.call("DELETE", &path, None).await);
        } else {
            let freeze = json!({"command": "freeze"});
            let sent = rig.call("POST", &format!("{path}/commands"), Some(&freeze)).await;
            assert_eq!(sent.status, 202, "{}", sent.body);
            ok(call(&mut rig.client(), &operator, "DELETE", &path, None).await);
        }
    }
    let entries = list(&rig, "kind=worker").await;
    let short: Vec<_> = entries.iter().map(|entry| (&entry["action"], &entry["clientId"], &entry["object"])).collect();
    let worker = json!("audit/linux/group/w2");
    let expected = [(json!("endSession"), json!("operator")), (json!("commandSession"), json!("root"))];
    assert_eq!(short, [(&expected[0].0, &expected[0].1, &worker), (&expected[1].0, &expected[1].1, &worker)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_not_recorded() {
    let rig = Rig::start().await;
    let client = "/api/auth/v1/clients/acme%2Fci";
    let body = json!({"description": "d", "expires": minutes_from_now(60), "scopes": ["a:b"]});
    let created = ok(rig.call("PUT", client, Some(&body)).await);
    let reset = ok(rig.call("POST", &format!("{client}/reset"), None).await);
    let worker = "/api/worker-manager/v1/workers/audit%2Flinux/group/one";
    let secret = "s".repeat(44);
    let registered = json!({"expires": minutes_from_now(60), "providerInfo": {"staticSecret": secret,
        "workerConfig": {"password": "hunter2"}}});
    ok(rig.call("PUT", worker, Some(&registered)).await);
    let mut changed = registered.clone();
    changed["capacity"] = json!(2);
    ok(rig.call("POST", worker, Some(&changed)).await);
    let entries = list(&rig, "").await;
    let actions: Vec<_> = entries.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions[..4], ["updateWorker", "createWorker", "resetAccessToken", "createClient"]);
    let text = json!(entries).to_string();
    for token in [&created["accessToken"], &reset["accessToken"], &json!(secret), &json!("hunter2")] {
        assert!(!text.contains(token.as_str().unwrap()), "{text}");
    }
    assert!(!rig.server.log().contains(created["accessToken"].as_str().unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_is_filtered_and_paged() {
    let rig = Rig::start().await;
    let ops = rig.make_client("acme/ops", &["tenure:manage-queue:audit/*"]).await;
    let path = |rest: &str| format!("{TENURE_API}/queues/audit%2Flinux/{rest}");
    for _ in 0..2 {
        for (who, rest) in [(&ops, "pause"), (&rig.root, "resume")] {
            ok(call(&mut rig.client(), who, "POST", &path(rest), None).await);
        }
    }
    let paused = list(&rig, "client=acme%2Fops").await;
    assert!(paused.len() == 2 && paused.iter().all(|entry| entry["action"] == "pauseQueue"), "{paused:?}");
    let of_queue = list(&rig, "object=audit%2Flinux").await;
    assert_eq!(of_queue.len(), 4);
    assert_eq!(of_queue, list(&rig, "kind=queue&object=audit%2Flinux").await);
    assert_eq!(list(&rig, "kind=task&object=audit%2Flinux").await.len(), 0);
    assert_eq!(list(&rig, "action=resumeQueue&client=root").await.len(), 2);
    let since = of_queue[1]["at"].as_str().unwrap();
    assert!(list(&rig, &format!("kind=queue&after={since}")).await.len() < 4);

    let mut ids = Vec::new();
    let mut token = String::new();
    loop {
        let page = ok(rig.call("GET", &format!("{TENURE_API}/audit?kind=queue&limit=3{token}"), None).await);
        ids.extend(page["audit"].as_array().unwrap().iter().map(|entry| entry["id"].as_i64().unwrap()));
        match page["continuationToken"].as_str() {
            Some(next) => token = format!("&continuationToken={next}"),
            None => break,
        }
    }
    assert!(ids.len() == 4 && ids.is_sorted_by(|a, b| a > b), "{ids:?}");

    for (query, name) in [
        ("kind=tasks", "kind"),
        ("action=createTask", "action"),
        ("after=yesterday", "after"),
        ("client=", "client"),
        ("object=%00", "object"),
    ] {
        let refused = rig.call("GET", &format!("{TENURE_API}/audit?{query}"), None).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidRequestArguments"), "{query}: {}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{name}`")), "{query}: {message}");
    }
    let refused = call(&mut rig.client(), &ops, "GET", &format!("{TENURE_API}/audit"), None).await;
    assert_eq!(refused.code(), "InsufficientScopes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_on_the_database_are_recorded() {
    let rig = Rig::start().await;
    let database = [("DATABASE_URL", rig.database.url())];
    rig.make_client("acme/ci", &["a:b"]).await;
    for args in [
        &["role", "create", "deployer", "--scope", "a:b"][..],
        &["role", "update", "deployer", "--scope", "a:b", "--scope", "a:c"],
        &["role", "update", "deployer", "--description", ""],
        &["role", "delete", "deployer"],
        &["client", "disable", "acme/ci"],
        &["client", "disable", "acme/ci"],
        &["client", "delete", "acme/ci"],
    ] {
        let output = tenure(args, &database).await;
        assert!(output.status.success(), "{args:?}: {}", crate::rig::stderr(&output));
    }
    let listed = answer(&rig, &["audit", "--limit", "6"]).await;
    let entries = listed["audit"].as_array().unwrap();
    let actions: Vec<_> = entries.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["deleteClient", "disableClient", "deleteRole", "updateRole", "createRole", "createClient"]);
    assert_eq!(entries[3]["detail"], json!({"addedScopes": ["a:c"]}));
    for entry in entries {
        assert!(entry["clientId"].as_str().unwrap().starts_with("local:"), "{entry}");
        assert!(entry["traceId"].is_null(), "{entry}");
    }
    let table = done(&rig, &["audit", "--object", "acme/ci", "--since", "1h"]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with("TIME"), "{table}");
    assert!(lines[1].contains("deleteClient") && lines[3].contains("createClient"), "{table}");
    let none = done(&rig, &["audit", "--client", "nobody"]).await;
    assert_eq!(none.lines().count(), 1, "{none}");
}
