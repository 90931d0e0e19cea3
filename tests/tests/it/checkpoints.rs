//! Checkpoints of tasks and commands for tasks. Commands in inboxes are in
//! `server/engine/tests/it/sessions/commands.rs`.

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Raw, Rig, call, credentials_of, definition, eventually, minutes_from_now, new_task, ok};

const QUEUE: &str = "checkpoints/linux";
const WEEK: f64 = 7.0 * 86_400.0;

fn of_task(task: SlugId, rest: &str) -> String {
    format!("{TENURE_API}/tasks/{task}/{rest}")
}

async fn put_as(rig: &Rig, who: &Credentials, task: SlugId, run: u64, body: &Value) -> Answer {
    call(&mut rig.client(), who, "PUT", &of_task(task, &format!("runs/{run}/checkpoint")), Some(body)).await
}

async fn put(rig: &Rig, claim: &Value, checkpoint: Value) -> Answer {
    let task = claim["status"]["taskId"].as_str().unwrap().parse().unwrap();
    put_as(rig, &credentials_of(claim), task, claim["runId"].as_u64().unwrap(), &json!({"checkpoint": checkpoint}))
        .await
}

async fn read(rig: &Rig, task: SlugId) -> Answer {
    rig.call("GET", &of_task(task, "checkpoint"), None).await
}

async fn command(rig: &Rig, task: SlugId, body: Value) -> Answer {
    rig.call("PUT", &of_task(task, "command"), Some(&body)).await
}

async fn release(rig: &Rig, claim: &Value, delay: i64) {
    let path =
        format!("{TENURE_API}/tasks/{}/runs/{}/release", claim["status"]["taskId"].as_str().unwrap(), claim["runId"]);
    let body = json!({"delay": delay});
    ok(call(&mut rig.client(), &credentials_of(claim), "POST", &path, Some(&body)).await);
}

async fn counts(rig: &Rig) -> (Value, Value) {
    let now = rig.call("GET", &format!("{TENURE_API}/queues/checkpoints%2Flinux"), None).await.body;
    (now["ready"].clone(), now["delayed"].clone())
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status, answer.code().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_next_run_reads_and_replaces_checkpoint() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    assert_eq!(code(&read(&rig, task).await), (404, "ResourceNotFound".to_owned()));
    let first = rig.claim(QUEUE, 1).await.remove(0);
    let worker = credentials_of(&first);
    for checkpoint in [json!({"done": 1}), json!(null), json!("ä \u{0} \""), json!({"done": [2, 1.50]})] {
        let stored = ok(put(&rig, &first, checkpoint.clone()).await);
        let expected = json!({"taskId": task, "runId": 0, "checkpoint": checkpoint, "updated": stored["updated"]});
        assert_eq!(read(&rig, task).await.body, expected);
        let own = call(&mut rig.client(), &worker, "GET", &of_task(task, "checkpoint"), None).await;
        assert_eq!((own.status, own.body), (200, expected), "its own credentials are good for it");
    }
    release(&rig, &first, 0).await;
    assert_eq!(code(&put(&rig, &first, json!(1)).await), (409, "RequestConflict".to_owned()));
    let old = call(&mut rig.client(), &worker, "GET", &of_task(task, "checkpoint"), None).await;
    assert_eq!(code(&old), (403, "InsufficientScopes".to_owned()), "another run holds the checkpoint");
    let second = rig.claim(QUEUE, 1).await.remove(0);
    let found = call(&mut rig.client(), &credentials_of(&second), "GET", &of_task(task, "checkpoint"), None).await;
    assert_eq!((&found.body["runId"], &found.body["checkpoint"]), (&json!(0), &json!({"done": [2, 1.50]})));
    assert_eq!(put(&rig, &second, json!("on")).await.status, 200);
    let found = read(&rig, task).await.body;
    assert_eq!((&found["runId"], &found["checkpoint"]), (&json!(1), &json!("on")));
    let path = format!("/task/{task}/runs/1/completed");
    let completed = call(&mut rig.client(), &credentials_of(&second), "POST", &path, None).await;
    assert_eq!(completed.status, 200);
    assert_eq!(code(&put(&rig, &second, json!(1)).await), (409, "RequestConflict".to_owned()), "it was reported");
    assert_eq!(read(&rig, task).await.body, found);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_needs_its_run_or_the_read_scope() {
    let rig = Rig::start().await;
    let (task, other) = (rig.create_one(QUEUE).await, rig.create_one(QUEUE).await);
    let claims = [rig.claim(QUEUE, 1).await.remove(0), rig.claim(QUEUE, 1).await.remove(0)];
    let of = |task: SlugId| claims.iter().find(|claim| claim["status"]["taskId"] == task.to_string()).unwrap();
    let (mine, theirs) = (credentials_of(of(task)), credentials_of(of(other)));
    let body = json!({"checkpoint": 1});
    assert_eq!(put_as(&rig, &mine, task, 0, &body).await.status, 200);
    for (who, run) in [(&theirs, 0), (&mine, 1)] {
        assert_eq!(code(&put_as(&rig, who, task, run, &body).await), (403, "InsufficientScopes".to_owned()));
    }
    let forbidden = (403, "InsufficientScopes".to_owned());
    let reader = rig.make_client("reader", &[&format!("tenure:get-result:{QUEUE}")]).await;
    let stranger = rig.make_client("stranger", &["tenure:get-result:checkpoints/other", "queue:status:*"]).await;
    let commander = rig.make_client("commander", &[&format!("tenure:command-worker:{QUEUE}")]).await;
    let as_who = async |who: &Credentials, method: &str, rest: &str, body: Option<Value>| {
        call(&mut rig.client(), who, method, &of_task(task, rest), body.as_ref()).await
    };
    assert_eq!(as_who(&reader, "GET", "checkpoint", None).await.status, 200);
    for who in [&stranger, &commander, &theirs] {
        assert_eq!(code(&as_who(who, "GET", "checkpoint", None).await), forbidden);
    }
    let run = || Some(json!({"command": "run"}));
    assert_eq!(as_who(&commander, "PUT", "command", run()).await.status, 200);
    for who in [&mine, &reader, &stranger] {
        assert_eq!(code(&as_who(who, "PUT", "command", run()).await), forbidden);
    }
    for (who, status) in [(&mine, 200), (&commander, 200), (&theirs, 403), (&reader, 403)] {
        assert_eq!(as_who(who, "GET", "command", None).await.status, status);
    }
    for (method, rest) in [("GET", "checkpoint"), ("GET", "command"), ("PUT", "command"), ("PUT", "runs/0/checkpoint")]
    {
        let body = (method == "PUT").then_some(&b"{}"[..]);
        let reply = Raw::new(method, &of_task(task, rest)).json(body).send(rig.server.root_url()).await;
        assert!(matches!(reply.status, 401 | 403), "{method} {rest}: {}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checkpoints_keep_one_and_none_after_run_end() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let held = rig.claim(QUEUE, 1).await.remove(0);
    let sent: Vec<Value> = (0..20).map(|n| json!({"n": n, "pad": "x".repeat(1_000)})).collect();
    let stored = futures_util::future::join_all(sent.iter().map(|one| put(&rig, &held, one.clone()))).await;
    assert!(stored.iter().all(|answer| answer.status == 200));
    assert!(sent.contains(&read(&rig, task).await.body["checkpoint"]));
    // Each checkpoint beside the report precedes it or is refused.
    let path = format!("/task/{task}/runs/0/completed");
    let worker = credentials_of(&held);
    let report = async {
        let mut client = rig.client();
        call(&mut client, &worker, "POST", &path, None).await
    };
    let puts = futures_util::future::join_all(sent.iter().map(|one| put(&rig, &held, one.clone())));
    let (reported, puts) = tokio::join!(report, puts);
    assert_eq!(reported.status, 200, "{}", reported.body);
    assert!(
        puts.iter().all(|answer| matches!(answer.status, 200 | 409)),
        "{:?}",
        puts.iter().map(code).collect::<Vec<_>>()
    );
    assert_eq!(put(&rig, &held, json!("late")).await.status, 409);
    assert!(sent.contains(&read(&rig, task).await.body["checkpoint"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_and_command_expire_with_task_or_after_week() {
    let rig = Rig::manual().await;
    let task = new_task();
    let mut short = definition(QUEUE);
    (short["deadline"], short["expires"]) = (minutes_from_now(10).into(), minutes_from_now(20).into());
    assert_eq!(rig.create(task, &short).await.status, 200);
    let held = rig.claim(QUEUE, 1).await.remove(0);
    assert_eq!(put(&rig, &held, json!({"done": 1})).await.status, 200);
    assert_eq!(command(&rig, task, json!({"command": "pause"})).await.status, 200);
    let rows = async || {
        let mut database = rig.database.connect("test").await;
        let sql = "SELECT (SELECT count(*) FROM checkpoints) * 10 + (SELECT count(*) FROM task_commands)";
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut database).await.unwrap()
    };
    assert_eq!(rows().await, 11);
    rig.advance(700.0).await;
    assert_eq!(read(&rig, task).await.body["checkpoint"], json!({"done": 1}), "it outlives the deadline");
    assert_eq!(code(&command(&rig, task, json!({"command": "run"})).await), (409, "RequestConflict".to_owned()));
    rig.advance(700.0).await;
    eventually("they are purged with the task", async || (rows().await == 0).then_some(())).await;
    assert_eq!(read(&rig, task).await.status, 404);

    let task = new_task();
    let mut long = definition(QUEUE);
    long["created"] = minutes_from_now(23).into();
    long["deadline"] = minutes_from_now(60).into();
    long["expires"] = minutes_from_now(60 * 24 * 30).into();
    assert_eq!(rig.create(task, &long).await.status, 200);
    assert_eq!(command(&rig, task, json!({"command": "pause"})).await.status, 200);
    rig.advance(WEEK - 60.0).await;
    assert_eq!((rows().await, rig.call("GET", &of_task(task, "command"), None).await.status), (1, 200));
    rig.advance(120.0).await;
    eventually("it is a week old", async || (rows().await == 0).then_some(())).await;
    assert_eq!(rig.call("GET", &of_task(task, "command"), None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m17_command_ends_delay_of_release_but_not_of_task() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    release(&rig, &rig.claim(QUEUE, 1).await.remove(0), 3_000).await;
    assert_eq!(counts(&rig).await, (json!(0), json!(1)));
    assert_eq!(command(&rig, task, json!({"command": "run"})).await.status, 200);
    assert_eq!(counts(&rig).await, (json!(1), json!(0)));
    let second = rig.claim(QUEUE, 1).await.remove(0);
    assert_eq!((&second["runId"], &second["status"]["retriesLeft"]), (&json!(1), &json!(5)));
    let read = call(&mut rig.client(), &credentials_of(&second), "GET", &of_task(task, "command"), None).await;
    assert_eq!((read.status, &read.body["command"]), (200, &json!("run")), "the next worker reads it");

    // A worker that has not read the command when it releases the task: the task returns at once,
    // and only once.
    let another = command(&rig, task, json!({"command": "kill"})).await;
    release(&rig, &second, 3_000).await;
    assert_eq!(counts(&rig).await, (json!(1), json!(0)));
    let third = rig.claim(QUEUE, 1).await.remove(0);
    let body = json!({"checkpoint": 1, "commandId": another.body["id"]});
    assert_eq!(put_as(&rig, &credentials_of(&third), task, 2, &body).await.status, 200);
    release(&rig, &third, 3_000).await;
    assert_eq!(counts(&rig).await, (json!(0), json!(1)), "with its command carried out it stays released");

    let later = new_task();
    let mut delayed = definition(QUEUE);
    delayed["extra"] = json!({"tenure": {"delay": 3_000}});
    assert_eq!(rig.create(later, &delayed).await.status, 200);
    assert_eq!(command(&rig, later, json!({"command": "run"})).await.status, 200);
    assert_eq!(counts(&rig).await, (json!(0), json!(2)), "a task's own delay is no release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ignored_command_does_not_end_later_release_delays() {
    let rig = Rig::manual().await;
    let task = rig.create_one(QUEUE).await;
    assert_eq!(command(&rig, task, json!({"command": "pause"})).await.status, 200);
    rig.advance(120.0).await;
    release(&rig, &rig.claim(QUEUE, 1).await.remove(0), 30).await;
    assert_eq!(counts(&rig).await, (json!(0), json!(1)), "it was there to be read for two minutes");
    rig.advance(31.0).await;
    assert_eq!(counts(&rig).await, (json!(1), json!(0)));
}
