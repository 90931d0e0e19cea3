//! A worker that reports finished runs and claims the next ones in one request.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Raw, Rig, call, credentials_of, definition, eventually, new_task, run_of};

const QUEUE: &str = "work/shop";
/// More than one answer can hold.
const LARGE: usize = 9 << 20;

fn path() -> String {
    format!("{TENURE_API}/work")
}

fn body(mut fields: Value) -> Value {
    let mut body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "worker"});
    body.as_object_mut().unwrap().append(fields.as_object_mut().unwrap());
    body
}

fn result(task: SlugId, outcome: &str) -> Value {
    json!({"taskId": task, "runId": 0, "outcome": outcome})
}

async fn work_as(rig: &Rig, who: &Credentials, fields: Value) -> Answer {
    call(&mut rig.client(), who, "POST", &path(), Some(&body(fields))).await
}

async fn work(rig: &Rig, fields: Value) -> Value {
    let answer = work_as(rig, &rig.root, fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

async fn claimed(rig: &Rig) -> (SlugId, Value) {
    let task = rig.create_one(QUEUE).await;
    (task, rig.claim(QUEUE, 1).await.remove(0))
}

fn verdicts(answer: &Value) -> Vec<&str> {
    let of = |result: &Value| -> Option<String> { result["taskId"].as_str().map(str::to_owned) };
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|result| of(result).is_some()), "{answer}");
    results.iter().map(|one| one["status"]["state"].as_str().or(one["error"]["code"].as_str()).unwrap()).collect()
}

fn ids(answer: &Value) -> Vec<&str> {
    answer["tasks"].as_array().unwrap().iter().map(|claim| claim["status"]["taskId"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_lives_on_one_request_for_each_round() {
    let rig = Rig::start().await;
    let (first, second) = (rig.create_one(QUEUE).await, rig.create_one(QUEUE).await);
    let round = work(&rig, json!({"claim": 1, "wait": 5})).await;
    assert_eq!((verdicts(&round), ids(&round)), (vec![], vec![first.to_string().as_str()]));
    let claim = &round["tasks"][0];
    assert_eq!(
        (&claim["workerGroup"], &claim["workerId"], &claim["runId"]),
        (&json!("group"), &json!("worker"), &json!(0))
    );
    assert_eq!(claim["task"]["payload"]["command"], json!(["true"]));
    let round = work(&rig, json!({"results": [result(first, "completed")], "claim": 100, "wait": 5})).await;
    assert_eq!((verdicts(&round), ids(&round)), (vec!["completed"], vec![second.to_string().as_str()]));
    // Credentials of a claim are as from claimWork: they allow its reports, but not this call.
    let credentials = credentials_of(&round["tasks"][0]);
    let refused = work_as(&rig, &credentials, json!({"results": [result(second, "completed")]})).await;
    assert_eq!((refused.status, refused.code()), (403, "InsufficientScopes"));
    let report = format!("{}/completed", run_of(&round["tasks"][0]));
    assert_eq!(call(&mut rig.client(), &credentials, "POST", &report, None).await.status, 200);
    let last = work(&rig, json!({"results": [result(second, "completed")]})).await;
    assert_eq!(verdicts(&last), ["completed"], "the same result by the other way is a repeat");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_reports_only_runs_of_its_own_worker_in_the_queue() {
    let rig = Rig::start().await;
    let scopes =
        |queue: &str, worker: &str| [format!("queue:claim-work:{queue}"), format!("queue:worker-id:group/{worker}")];
    let mut clients = Vec::new();
    for (name, queue, worker) in
        [("shop/own", QUEUE, "worker"), ("shop/other", QUEUE, "other"), ("shop/elsewhere", "work/yard", "worker")]
    {
        let scopes = scopes(queue, worker);
        clients.push(rig.make_client(name, &[&scopes[0], &scopes[1]]).await);
    }
    let half = rig.make_client("shop/half", &[&scopes(QUEUE, "worker")[0]]).await;
    let (task, _) = claimed(&rig).await;
    let results = json!({"results": [result(task, "completed")]});
    for (who, status) in [(&half, 403), (&clients[1], 403), (&clients[2], 403)] {
        let answer = work_as(&rig, who, results.clone()).await;
        assert_eq!((answer.status, answer.code()), (status, "InsufficientScopes"), "{}", answer.body);
    }
    // Under their own names they may ask, but the run is not theirs.
    for (who, name, value) in [(&clients[1], "workerId", "other"), (&clients[2], "taskQueueId", "work/yard")] {
        let mut asked = results.clone();
        asked[name] = value.into();
        let answer = work_as(&rig, who, asked).await;
        assert_eq!((answer.status, verdicts(&answer.body)), (200, vec!["InsufficientScopes"]), "{}", answer.body);
        let message = answer.body["results"][0]["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("run 0 of task {task} is not held by worker group/")), "{message}");
    }
    assert_eq!(rig.status(task).await["state"], "running");
    let answer = work_as(&rig, &clients[0], results).await;
    assert_eq!((answer.status, verdicts(&answer.body)), (200, vec!["completed"]), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_stored_before_wait_and_survive_hang_up() {
    let rig = Rig::start().await;
    let (task, _) = claimed(&rig).await;
    let send = async |fields: Value| {
        let mut client = rig.client();
        client.start(&rig.root, "POST", &path(), Some(body(fields).to_string().as_bytes())).await.unwrap();
        client
    };
    let mut waiting = send(json!({"results": [result(task, "completed")], "claim": 1, "wait": 20})).await;
    eventually("the result is stored", async || (rig.status(task).await["state"] == "completed").then_some(())).await;
    waiting.hang_up();
    // The hung-up caller may have been given it before the server noticed: then this is the
    // following run.
    let (second, claim) = claimed(&rig).await;
    let finished = json!({"taskId": second, "runId": claim["runId"], "outcome": "completed"});
    // Larger than the buffers of the sockets.
    let (large, mut content) = (new_task(), definition(QUEUE));
    content["payload"] = json!({"large": "x".repeat(LARGE)});
    assert_eq!(rig.create(large, &content).await.status, 200);
    let mut taking = send(json!({"results": [finished], "claim": 1})).await;
    eventually("it is claimed", async || (rig.status(large).await["state"] == "running").then_some(())).await;
    eventually("the result is stored", async || (rig.status(second).await["state"] == "completed").then_some(())).await;
    taking.hang_up();
    let again = eventually("it is claimed again", async || rig.claim(QUEUE, 1).await.pop()).await;
    assert_eq!(again["runId"], 1, "it was requeued");
    let status = rig.status(large).await;
    assert_eq!((&status["retriesLeft"], &status["runs"][0]["reasonResolved"]), (&json!(5), &json!("worker-shutdown")));
    let runs = rig.status(second).await["runs"].as_array().unwrap().len();
    assert_eq!(Some(runs - 1), claim["runId"].as_u64().map(|run| run as usize), "it was not run again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_result_affects_no_other_result() {
    let rig = Rig::start().await;
    let mut results = Vec::new();
    for returned in [65_000, 65_000, 65_000, 65_000, 65_535] {
        let mut one = result(claimed(&rig).await.0, "completed");
        one["result"] = json!("x".repeat(returned));
        results.push(one);
    }
    let mut large = definition(QUEUE);
    large["payload"]["text"] = json!("x".repeat(400_000));
    let next = new_task();
    assert_eq!(rig.create(next, &large).await.status, 200);
    let fields = json!({"results": results, "claim": 1, "wait": 0});
    let round = tokio::time::timeout(Duration::from_secs(20), work(&rig, fields)).await.expect("no answer");
    assert_eq!(verdicts(&round), ["completed", "completed", "completed", "completed", "InputError"]);
    assert_eq!(ids(&round), [next.to_string()]);
    let retried = json!({"results": [result(serde_json::from_value(results[4]["taskId"].clone()).unwrap(), "failed")]});
    assert_eq!(verdicts(&work(&rig, retried).await), ["failed"], "it was left as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_until_past_date_grants_no_claim() {
    let rig = Rig::start().await;
    let role = json!({"scopes": ["queue:claim-work:*", "queue:worker-id:*"], "description": ""});
    assert_eq!(rig.call("POST", "/api/auth/v1/roles/anonymous", Some(&role)).await.status, 200);
    let (task, _) = claimed(&rig).await;
    let mut released = result(task, "released");
    released["notBefore"] = "2000-01-01T00:00:00Z".into();
    let asked = |claim: u16| body(json!({"results": [released], "claim": claim, "wait": 0}));
    let unsigned = async |claim: u16| {
        let sent = asked(claim).to_string().into_bytes();
        rig.send(&Raw::new("POST", &path()).json(Some(&sent))).await
    };
    // The server may have cached the role's former scopes for a while.
    let refused = eventually("every caller may ask", async || {
        let reply = unsigned(1).await;
        (reply.status != 403).then_some(reply)
    })
    .await;
    assert!(refused.refused(400, "InputError").contains("`claim` must be 0"), "{}", refused.text());
    let signed = rig.call("POST", &path(), Some(&asked(1))).await;
    assert_eq!((signed.status, signed.code()), (400, "InputError"), "{}", signed.body);
    assert_eq!(rig.status(task).await["state"], "running", "nothing was reported");
    assert_eq!(verdicts(&unsigned(0).await.json()), ["pending"]);
}
