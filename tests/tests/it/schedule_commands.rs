//! `tenure schedule` as people run it, with a real server.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::policy_commands::{answer, done, run};
use crate::rig::{Rig, ok, refusal, stderr};

const QUEUE: &str = "schedule/commands";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_is_set_shown_paused_and_deleted() {
    let rig = Rig::start().await;
    let missing = refusal(&run(&rig, &["schedule", "show", "nightly"]).await, 1);
    assert!(missing.contains("(404 ResourceNotFound)"), "{missing}");
    let when = ["schedule", "set", "nightly", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin"];
    let what = ["-q", QUEUE, "--unique", "nightly", "--on-duplicate", "queue", "--", "make", "report"];
    let set = done(&rig, &[&when[..], &what].concat()).await;
    for line in ["schedule  nightly\n", "cron      0 3 * * *\n", "timezone  Europe/Berlin\n", "unique    nightly\n"] {
        assert!(set.contains(line), "{line}:\n{set}");
    }
    assert_eq!(set.matches("\nnext      20").count(), 5, "{set}");
    let shown = answer(&rig, &["schedule", "show", "nightly"]).await;
    let direct = ok(rig.call("GET", &format!("{TENURE_API}/schedules/nightly"), None).await);
    assert_eq!(shown, direct);
    assert_eq!(shown["task"]["payload"], json!({"command": [["make", "report"]]}));
    let listed = answer(&rig, &["schedule", "list"]).await;
    assert_eq!(
        (listed["schedules"].as_array().map(Vec::len), &listed["schedules"][0]["name"]),
        (Some(1), &shown["name"])
    );

    for _ in 0..2 {
        assert_eq!(done(&rig, &["schedule", "pause", "nightly"]).await, "Schedule nightly is paused.\n");
    }
    let table = done(&rig, &["schedule", "list"]).await;
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["nightly", "0", "3", "*", "*", "*", "Europe/Berlin", "paused", "-", "-", "-"]);
    let resumed = done(&rig, &["schedule", "resume", "nightly"]).await;
    assert!(resumed.starts_with("Schedule nightly is not paused. Next: 20"), "{resumed}");

    assert_eq!(done(&rig, &["schedule", "delete", "nightly"]).await, "Schedule nightly is deleted.\n");
    assert_eq!(answer(&rig, &["schedule", "list"]).await, json!({"schedules": []}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trigger_creates_task_unless_its_name_is_taken() {
    let rig = Rig::start().await;
    let file = rig.folder.path().join("task.json");
    let task = json!({"taskQueueId": QUEUE, "payload": {"n": 1}, "options": {"unique": "only one"}});
    std::fs::write(&file, task.to_string()).unwrap();
    let file = file.to_str().unwrap();
    done(&rig, &["schedule", "set", "yearly", "--cron", "@yearly", "--task", file, "--deadline-after", "2h"]).await;
    let triggered = answer(&rig, &["schedule", "trigger", "yearly"]).await;
    let task = triggered["taskId"].as_str().unwrap();
    let created = answer(&rig, &["task", "show", task]).await;
    assert_eq!((&created["status"]["state"], &created["task"]["payload"]), (&json!("pending"), &json!({"n": 1})));
    let date =
        |field: &str| -> chrono::DateTime<chrono::Utc> { created["task"][field].as_str().unwrap().parse().unwrap() };
    assert_eq!((date("deadline") - date("created")).num_seconds(), 7_200);

    let refused = refusal(&run(&rig, &["schedule", "trigger", "yearly"]).await, 1);
    assert!(refused.contains(&format!("(409 DuplicateTask, task {task})")), "{refused}");
    done(&rig, &["task", "cancel", task]).await;
    let again = done(&rig, &["schedule", "trigger", "yearly"]).await;
    assert!(again.starts_with("Schedule yearly created task ") && !again.contains(task), "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_schedule_is_refused() {
    let rig = Rig::start().await;
    let set = async |cron: &str, zone: &str| {
        let args = ["schedule", "set", "wrong", "--cron", cron, "--timezone", zone, "-q", QUEUE, "--", "true"];
        refusal(&run(&rig, &args).await, 1)
    };
    for (cron, zone) in [("0 25 * * *", "UTC"), ("* * * * * *", "UTC"), ("0 0 30 2 *", "UTC"), ("@daily", "Mars/North")]
    {
        let refused = set(cron, zone).await;
        assert!(refused.contains("(400 "), "{cron} {zone}: {refused}");
    }
    assert_eq!(answer(&rig, &["schedule", "list"]).await["schedules"], Value::Array(Vec::new()));
    let none = run(&rig, &["schedule", "trigger", "wrong"]).await;
    assert!(refusal(&none, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&none));
}
