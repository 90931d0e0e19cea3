//! Jobs over HTTP and on the command line: their scopes, progress and refusals.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::policy_commands::{answer, done, run};
use crate::rig::{Raw, Rig, Signature, body_hash, call, client_of, eventually, new_task, ok, refusal, stdout};

const QUEUE: &str = "jobs/linux";

fn path(rest: &str) -> String {
    format!("{TENURE_API}/jobs{rest}")
}

fn pending() -> Value {
    json!({"action": "cancel", "filter": {"taskQueueId": QUEUE, "state": "pending"}})
}

async fn create_some(rig: &Rig, tasks: usize) {
    for _ in 0..tasks {
        rig.create_one(QUEUE).await;
    }
}

async fn ended(rig: &Rig, job: &Value) -> Value {
    let target = path(&format!("/{}", job["jobId"].as_str().unwrap()));
    eventually("the job has ended", async || {
        let job = ok(rig.call("GET", &target, None).await);
        (job["state"] != "running").then_some(job)
    })
    .await
}

fn short(job: &Value) -> (i64, i64, i64) {
    let number = |name: &str| job[name].as_i64().unwrap();
    (number("done"), number("unchanged"), number("refusedCount"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_counted_started_read_and_listed() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    create_some(&rig, 3).await;
    let mut counting = pending();
    counting["dryRun"] = json!(true);
    let counted = ok(rig.call("POST", &path(""), Some(&counting)).await);
    assert_eq!(counted, json!({"found": 3, "more": false}));
    let mut body = pending();
    body["jobId"] = json!(new_task());
    let started = ok(rig.call("POST", &path(""), Some(&body)).await);
    assert_eq!(started, json!({"jobId": body["jobId"], "found": 3, "more": false}));
    let job = ended(&rig, &started).await;
    assert_eq!((&job["state"], short(&job)), (&json!("completed"), (3, 0, 0)), "{job}");
    assert_eq!((&job["action"], &job["filter"]), (&body["action"], &body["filter"]));
    let again = ok(rig.call("POST", &path(""), Some(&body)).await);
    assert_eq!(again["jobId"], started["jobId"], "a repeat");
    let other = json!({"action": "rerun", "taskIds": [new_task()], "jobId": body["jobId"]});
    let other = rig.call("POST", &path(""), Some(&other)).await;
    assert_eq!((other.status, other.code()), (409, "RequestConflict"));
    let named = ok(rig.call("POST", &path(""), Some(&json!({"action": "cancel", "taskIds": [new_task()]}))).await);
    let named = ended(&rig, &named).await;
    assert_eq!((short(&named), &named["refused"][0]["code"]), ((0, 0, 1), &json!("ResourceNotFound")));

    let page = ok(rig.call("GET", &path("?limit=1"), None).await);
    assert_eq!(page["jobs"], json!([named]));
    let rest = path(&format!("?limit=1&continuationToken={}", page["continuationToken"].as_str().unwrap()));
    let rest = ok(rig.call("GET", &rest, None).await);
    assert_eq!((&rest["jobs"], &rest["continuationToken"]), (&json!([job]), &Value::Null));
    let audit = ok(rig.call("GET", &format!("{TENURE_API}/audit?kind=job"), None).await);
    assert_eq!(audit["audit"][1]["detail"]["done"], 3, "{audit}");
    let audit = ok(rig.call("GET", &format!("{TENURE_API}/audit?action=cancelTask"), None).await);
    assert_eq!(audit["audit"].as_array().unwrap().len(), 3);
    assert_eq!(audit["audit"][0]["detail"], json!({"jobId": started["jobId"]}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_does_what_its_client_may_do() {
    let rig = Rig::start().await;
    let other = rig.another("other").await;
    create_some(&rig, 2).await;
    let starter = rig.make_client("starter", &["tenure:start-job", "tenure:cancel-task:jobs/other"]).await;
    let stranger = rig.make_client("stranger", &["queue:status:*", "tenure:start-job"]).await;
    let started = ok(call(&mut client_of(&other), &starter, "POST", &path(""), Some(&pending())).await);
    let job = ended(&rig, &started).await;
    assert_eq!((short(&job), &job["refused"][0]["code"]), ((0, 0, 2), &json!("InsufficientScopes")), "{job}");
    assert!(job["refused"][0]["message"].as_str().unwrap().contains("tenure:cancel-task:jobs/linux"), "{job}");
    let own = path(&format!("/{}", job["jobId"].as_str().unwrap()));
    for (method, target) in [("GET", own.clone()), ("POST", format!("{own}/stop"))] {
        ok(call(&mut rig.client(), &starter, method, &target, None).await);
        let refused = call(&mut rig.client(), &stranger, method, &target, None).await;
        assert_eq!((refused.status, refused.code()), (403, "InsufficientScopes"), "{target}");
    }
    for (method, target) in [("GET", path("")), ("GET", format!("{own}x"))] {
        assert!([400, 403].contains(&call(&mut rig.client(), &starter, method, &target, None).await.status));
    }
    let worker = rig.make_client("worker", &["tenure:cancel-task:*"]).await;
    let refused = call(&mut rig.client(), &worker, "POST", &path(""), Some(&pending())).await;
    assert_eq!((refused.status, refused.code()), (403, "InsufficientScopes"));
}

/// The job would have all scopes of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_with_authorized_scopes_starts_no_job() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let (target, body) = (path(""), pending().to_string().into_bytes());
    let (hash, ext) = (Some(body_hash(&body)), Some(json!({"authorizedScopes": ["tenure:start-job"]})));
    let of = Signature::of(&rig.server);
    let signature = Signature { who: &rig.root, method: "POST", target: &target, hash, ext, ..of };
    let refused =
        rig.send(&Raw::new("POST", &target).authorization(&signature.header()).json(Some(body.as_slice()))).await;
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("InsufficientScopes")), "{}", refused.text());
    assert_eq!(rig.status(task).await["state"], "pending");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_jobs_are_refused_by_field() {
    let rig = Rig::start().await;
    for (body, name) in [
        (json!({"action": "cancel"}), "filter"),
        (json!({"action": "frob", "taskIds": [new_task()]}), "action"),
        (json!({"action": "cancel", "taskIds": []}), "taskIds"),
        (json!({"action": "cancel", "filter": {}}), "filter"),
        (json!({"action": "cancel", "filter": {"taskQueueId": "a b"}}), "taskQueueId"),
        (json!({"action": "cancel", "filter": {"taskQueueId": null}}), "taskQueueId"),
        (json!({"action": "cancel", "filter": {"since": "soon"}}), "since"),
        (json!({"action": "rerun", "filter": {"taskQueueId": QUEUE}}), "state"),
        (json!({"action": "priority", "taskIds": [new_task()]}), "priority"),
        (json!({"action": "cancel", "taskIds": [new_task()], "jobId": "short"}), "jobId"),
    ] {
        let refused = rig.call("POST", &path(""), Some(&body)).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{name}")) || message.contains(&format!("{name}`")), "{body}: {message}");
    }
    let missing = rig.call("GET", &path(&format!("/{}", new_task())), None).await;
    assert_eq!((missing.status, missing.code()), (404, "ResourceNotFound"));
}

/// Counting reads many rows: it must leave connections to writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_of_job_needs_read_slot() {
    /// Of a server.
    const READ_SLOTS: i64 = 8;
    let rig = Rig::start().await;
    let why = format!("{TENURE_API}/tasks/{}/why", rig.create_one(QUEUE).await);
    let (mut lock, mut look) = (rig.database.connect("lock").await, rig.database.connect("look").await);
    // Keeps reads running, and their slots taken.
    sqlx::raw_sql("BEGIN; LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE").execute(&mut lock).await.unwrap();
    let reads = join_all((0..READ_SLOTS).map(|_| rig.call("GET", &why, None)));
    let starting = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("all slots are taken", async || {
            let number: i64 = sqlx::query_scalar(waiting).fetch_one(&mut look).await.unwrap();
            (number >= READ_SLOTS).then_some(())
        })
        .await;
        let mut counting = pending();
        counting["dryRun"] = json!(true);
        rig.call("POST", &path(""), Some(&counting)).await
    };
    let (_, refused) = tokio::join!(reads, starting);
    assert_eq!(refused.status, 503, "{}", refused.body);
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("too many requests are reading the database"), "{message}");
    sqlx::raw_sql("ROLLBACK").execute(&mut lock).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_start_follow_and_show_jobs() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let filter = ["--queue", QUEUE, "--state", "pending"];
    let command = |words: &[&'static str]| [words, &filter[..], &["--yes"][..]].concat();
    assert!(done(&rig, &command(&["task", "cancel"])).await.contains("No task matches."));
    let first = rig.create_one(QUEUE).await;
    rig.create_one(QUEUE).await;
    let asks = refusal(&run(&rig, &[&["task", "cancel"][..], &filter[..]].concat()).await, 2);
    assert!(asks.contains("Cancel 2 tasks?") && asks.contains("--yes"), "{asks}");
    assert!(done(&rig, &command(&["task", "priority", "high"])).await.contains("2 of 2 tasks changed"));
    let task = rig.create_one(QUEUE).await;
    assert!(done(&rig, &["task", "priority", &task.to_string(), "low"]).await.contains("The priority is low."));
    assert_eq!(rig.status(task).await["priority"], "low");
    let group_of = async |task| rig.status(task).await["taskGroupId"].as_str().unwrap().to_owned();
    let group = group_of(task).await;
    for claim in rig.claim(QUEUE, 3).await {
        rig.report(&claim, "failed", None).await;
    }
    let rerun = done(&rig, &["group", "rerun", &group, "--failed", "--yes"]).await;
    assert!(rerun.contains("1 of 1 tasks changed"), "{rerun}");
    let cancelled = answer(&rig, &command(&["task", "cancel"])).await;
    assert_eq!(short(&cancelled), (1, 0, 0), "{cancelled}");
    let table = done(&rig, &["job", "list"]).await;
    assert!(table.lines().count() == 4 && table.starts_with("JOB"), "{table}");
    let id = cancelled["jobId"].as_str().unwrap();
    for verb in ["show", "stop"] {
        assert!(done(&rig, &["job", verb, id]).await.contains("completed"), "{verb}");
    }
    // Tasks that were resolved keep their priority.
    let group = group_of(first).await;
    let refused = run(&rig, &["task", "priority", "low", "--group", &group, "--state", "failed", "--yes"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stdout(&refused).contains("RequestConflict"), "{}", stdout(&refused));
}
