//! `tenure client --http` and `tenure role --http` as people run them, with a real server.

use serde_json::{Value, json};

use crate::policy_commands::{account, answer, done, run};
use crate::rig::{Rig, refusal, stderr, tenure};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_is_managed_over_http() {
    let rig = Rig::start().await;
    let create = ["client", "--http", "create", "acme/ci", "--scope", "queue:list-task-queues", "--description", "CI"];
    let made: Value = serde_json::from_str(&done(&rig, &create).await).unwrap();
    let token = made["accessToken"].as_str().unwrap();
    assert_eq!((&made["clientId"], &made["rootUrl"]), (&json!("acme/ci"), &json!(rig.server.root_url())));
    let own = [account(&rig)[0], ("TASKCLUSTER_CLIENT_ID", "acme/ci"), ("TASKCLUSTER_ACCESS_TOKEN", token)];
    assert!(tenure(&["queue", "list"], &own).await.status.success());
    let shown = done(&rig, &["client", "show", "acme/ci", "--http"]).await;
    assert!(shown.contains("description    CI\n") && shown.contains("expires        never\n"), "{shown}");
    let changed =
        answer(&rig, &["client", "--http", "update", "acme/ci", "--no-scopes", "--expires", "2099-01-31T12:00:00Z"])
            .await;
    assert_eq!((&changed["scopes"], &changed["description"]), (&json!([]), &json!("CI")));
    assert_eq!(changed["expires"], "2099-01-31T12:00:00.000Z");
    let disabled = done(&rig, &["client", "--http", "disable", "acme/ci"]).await;
    assert!(disabled.contains("state          disabled\n"), "{disabled}");
    done(&rig, &["client", "--http", "enable", "acme/ci"]).await;
    let reset: Value =
        serde_json::from_str(&done(&rig, &["client", "--http", "reset-token", "acme/ci"]).await).unwrap();
    assert_ne!(reset["accessToken"], made["accessToken"]);
    assert!(done(&rig, &["client", "--http", "list"]).await.contains("\nacme/ci "));
    let deleted = done(&rig, &["client", "--http", "delete", "acme/ci"]).await;
    assert_eq!(deleted, "Deleted client acme/ci.\n");
    let missing = run(&rig, &["client", "--http", "show", "acme/ci"]).await;
    assert!(refusal(&missing, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&missing));
    let narrow = tenure(&["client", "--http", "list"], &own).await;
    assert_eq!(narrow.status.code(), Some(1), "{}", stderr(&narrow));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_is_managed_over_http() {
    let rig = Rig::start().await;
    let create = ["role", "--http", "create", "team:*", "--scope", "queue:list-task-queues", "--description", "d"];
    assert!(done(&rig, &create).await.contains("role           team:*\n"));
    let changed = answer(&rig, &["role", "--http", "update", "team:*", "--description", "e"]).await;
    assert_eq!((&changed["scopes"], &changed["description"]), (&json!(["queue:list-task-queues"]), &json!("e")));
    assert_eq!(answer(&rig, &["role", "--http", "show", "team:*"]).await, changed);
    assert!(done(&rig, &["role", "--http", "list"]).await.contains("\nteam:*"));
    assert_eq!(done(&rig, &["role", "--http", "delete", "team:*"]).await, "Deleted role team:*.\n");
    let missing = run(&rig, &["role", "--http", "show", "team:*"]).await;
    assert!(refusal(&missing, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&missing));
}
