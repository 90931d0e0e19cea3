//! Task queues and workers as views, and quarantine, on real servers.

mod servers;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, Client, QUEUE_API, TENURE_API};
use tenure_tests::server::{Launch, Server};

use crate::rig::{
    Raw, Rig, call, claim_path, client_of, credentials_of, definition, eventually, minutes_from_now, new_task, run_of,
};

const QUEUE: &str = "views/linux";
/// Its clients wait that long for work.
const WAIT: Duration = Duration::from_secs(2);
/// On other servers a quarantine holds after that time.
const ELSEWHERE: Duration = Duration::from_secs(1);

async fn rig() -> Rig {
    Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "2s")).await
}

fn provisioner(queue: &str) -> &str {
    queue.split_once('/').unwrap().0
}

fn types(queue: &str) -> String {
    let (provisioner, worker_type) = queue.split_once('/').unwrap();
    format!("/provisioners/{provisioner}/worker-types/{worker_type}")
}

fn worker_path(queue: &str, id: &str) -> String {
    format!("{}/workers/rack/{id}", types(queue))
}

async fn get(rig: &Rig, path: &str) -> Value {
    let answer = rig.call("GET", path, None).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

async fn refused(rig: &Rig, method: &str, path: &str, body: Option<&Value>, status: u16, code: &str) -> String {
    let answer = rig.call(method, path, body).await;
    assert_eq!((answer.status, answer.code()), (status, code), "{method} {path} {body:?}: {}", answer.body);
    answer.body["message"].as_str().unwrap().to_owned()
}

/// claimWork as a worker of the group `rack`.
async fn claim_at(client: &mut Client, who: &Credentials, queue: &str, id: &str, tasks: u16) -> Vec<Value> {
    let body = json!({"workerGroup": "rack", "workerId": id, "tasks": tasks});
    let answer = call(client, who, "POST", &claim_path(queue), Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["tasks"].as_array().unwrap().clone()
}

async fn claim(rig: &Rig, queue: &str, id: &str) -> Vec<Value> {
    claim_at(&mut rig.client(), &rig.root, queue, id, 1).await
}

async fn create(rig: &Rig, queue: &str) -> String {
    let task = new_task();
    assert_eq!(rig.create(task, &definition(queue)).await.status, 200);
    task.to_string()
}

/// A task, claimed by this worker.
async fn work(rig: &Rig, queue: &str, id: &str) -> String {
    let task = create(rig, queue).await;
    let claims = claim(rig, queue, id).await;
    assert_eq!(claims[0]["status"]["taskId"], task.as_str());
    task
}

async fn declare(rig: &Rig, queue: &str, group: &str, id: &str, expires: &str) -> Answer {
    let path = format!("{}/{group}/{id}", types(queue));
    rig.call("PUT", &path, Some(&json!({"expires": expires}))).await
}

async fn quarantine(rig: &Rig, id: &str, until: &str) -> Value {
    let body = json!({"quarantineUntil": until, "quarantineInfo": "tests"});
    let answer = rig.call("PUT", &worker_path(QUEUE, id), Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

async fn advance(rig: &Rig, seconds: i64) {
    let answer = rig.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&json!({"seconds": seconds}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn fields(body: &Value) -> BTreeSet<&str> {
    body.as_object().unwrap().keys().map(String::as_str).collect()
}

fn set<const N: usize>(names: [&'static str; N]) -> BTreeSet<&'static str> {
    names.into_iter().collect()
}

/// Taskcluster takes more in these paths than a queue can be called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_worker_type_that_no_queue_can_have_there_is_nothing_and_nothing_is_declared() {
    let rig = rig().await;
    let (until, expires) = (json!({"quarantineUntil": minutes_from_now(60)}), json!({"expires": minutes_from_now(60)}));
    for worker_type in ["Linux_1", "1", "-", "x-"] {
        let types = types(&format!("acme/{worker_type}"));
        assert_eq!(get(&rig, &format!("{types}/workers")).await, json!({"workers": []}));
        let worker = format!("{types}/workers/rack/w1");
        for (method, path, body) in [("GET", &types, None), ("GET", &worker, None), ("PUT", &worker, Some(&until))] {
            refused(&rig, method, path, body, 404, "ResourceNotFound").await;
        }
        let declared = format!("{types}/rack/w1");
        let message = refused(&rig, "PUT", &declared, Some(&expires), 400, "InvalidRequestArguments").await;
        assert!(message.contains("`workerType`") && message.contains("^[a-z]("), "{message}");
    }
    for (queue, named) in [("a.b/linux", "`provisionerId`"), ("acme/a%2Fb", "`workerType`")] {
        let types = types(queue);
        for (method, below, body) in [
            ("GET", "", None),
            ("GET", "/workers", None),
            ("GET", "/workers/rack/w1", None),
            ("PUT", "/workers/rack/w1", Some(&until)),
            ("PUT", "/rack/w1", Some(&expires)),
        ] {
            let path = format!("{types}{below}");
            let message = refused(&rig, method, &path, body, 400, "InvalidRequestArguments").await;
            assert!(message.contains(named), "{method} {path}: {message}");
        }
    }
}

/// All runs of one claimWork have the same time, and ids say nothing about the order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claims_of_one_batch_stand_in_the_order_of_claiming_and_the_newest_twenty_are_kept() {
    let rig = rig().await;
    let ids = |claims: &[Value]| -> Vec<Value> {
        let run = |claim: &Value| json!({"taskId": claim["status"]["taskId"], "runId": claim["runId"]});
        claims.iter().map(run).collect()
    };
    let mut claimed = Vec::new();
    for tasks in [5, 32, 3, 7] {
        for number in 0..tasks {
            let mut body = definition(QUEUE);
            body["priority"] = json!(if number % 4 == 0 { "high" } else { "low" });
            assert_eq!(rig.create(new_task(), &body).await.status, 200);
        }
        let claims = claim_at(&mut rig.client(), &rig.root, QUEUE, "w1", tasks).await;
        assert_eq!(claims.len(), usize::from(tasks));
        claimed.extend(ids(&claims));
        let newest = &claimed[claimed.len().saturating_sub(20)..];
        assert_eq!(get(&rig, &worker_path(QUEUE, "w1")).await["recentTasks"], json!(newest), "after {tasks} more");
        let list = get(&rig, &format!("{}/workers", types(QUEUE))).await;
        assert_eq!(list["workers"][0]["latestTask"], claimed[claimed.len() - 1]);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_claim_its_worker_its_queue_and_its_provisioner_are_shown() {
    let rig = rig().await;
    for path in [format!("/task-queues/{QUEUE}"), types(QUEUE), format!("/provisioners/{}", provisioner(QUEUE))] {
        refused(&rig, "GET", &path, None, 404, "ResourceNotFound").await;
    }
    let task = work(&rig, QUEUE, "w1").await;
    let queue = get(&rig, "/task-queues/views%2Flinux").await;
    assert_eq!(fields(&queue), set(["taskQueueId", "stability", "description", "expires", "lastDateActive"]));
    assert_eq!((&queue["taskQueueId"], &queue["stability"]), (&json!(QUEUE), &json!("experimental")));
    assert_eq!(get(&rig, "/task-queues/views/linux").await, queue, "the same in two segments");
    assert_eq!(get(&rig, "/task-queues").await, json!({"taskQueues": [queue]}));

    let mut worker_type = get(&rig, &types(QUEUE)).await;
    assert_eq!((&worker_type["workerType"], &worker_type["actions"]), (&json!("linux"), &json!([])));
    assert_eq!(worker_type["expires"], queue["expires"]);
    worker_type.as_object_mut().unwrap().remove("actions");
    assert_eq!(get(&rig, "/provisioners/views/worker-types").await, json!({"workerTypes": [worker_type]}));
    let provisioner = get(&rig, "/provisioners/views").await;
    assert_eq!(
        fields(&provisioner),
        set(["provisionerId", "stability", "description", "expires", "lastDateActive", "actions"])
    );
    assert_eq!(get(&rig, "/provisioners").await, json!({"provisioners": [provisioner]}));

    let worker = get(&rig, &worker_path(QUEUE, "w1")).await;
    let always = ["provisionerId", "workerType", "taskQueueId", "workerGroup", "workerId", "recentTasks", "expires"];
    let times = ["firstClaim", "lastDateActive", "quarantineDetails", "actions"];
    assert_eq!(fields(&worker), always.into_iter().chain(times).collect());
    assert_eq!(worker["recentTasks"], json!([{"taskId": task, "runId": 0}]));
    let listed = get(&rig, &format!("{}/workers", types(QUEUE))).await["workers"][0].clone();
    assert_eq!(listed["latestTask"], json!({"taskId": task, "runId": 0}));
    assert_eq!(
        fields(&listed),
        set(["workerGroup", "workerId", "firstClaim", "lastDateActive", "latestTask"]),
        "not quarantined"
    );
    for path in [format!("{}/workers", types("views/other")), "/provisioners/nobody/worker-types".to_owned()] {
        let body = get(&rig, &path).await;
        assert!(body.as_object().unwrap().values().all(|list| *list == json!([])), "{path}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_expire_as_promised() {
    let rig = rig().await;
    work(&rig, QUEUE, "w1").await;
    let named = create(&rig, "views/named").await;
    let body = json!({"workerGroup": "rack", "workerId": "poller"});
    assert_eq!(rig.call("POST", &format!("/task/{named}/runs/0/claim"), Some(&body)).await.status, 200);
    advance(&rig, 23 * 3_600).await;
    get(&rig, &worker_path(QUEUE, "w1")).await;
    get(&rig, &worker_path("views/named", "poller")).await;
    advance(&rig, 2 * 3_600).await;
    for path in [worker_path(QUEUE, "w1"), worker_path("views/named", "poller"), types(QUEUE)] {
        refused(&rig, "GET", &path, None, 404, "ResourceNotFound").await;
    }
    assert_eq!(get(&rig, "/task-queues").await["taskQueues"][0]["taskQueueId"], "views/named");
    advance(&rig, 4 * 86_400).await;
    assert_eq!(get(&rig, "/task-queues").await, json!({"taskQueues": []}));
    assert_eq!(get(&rig, "/provisioners").await, json!({"provisioners": []}));
}

/// All entries of a list, by pages of this size; `between` runs after each page.
async fn all(rig: &Rig, path: &str, list: &str, limit: usize, mut between: impl AsyncFnMut(usize)) -> Vec<Value> {
    let (mut found, mut token, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let more = token.map_or_else(String::new, |token| format!("&continuationToken={token}"));
        let join = if path.contains('?') { '&' } else { '?' };
        let page = get(rig, &format!("{path}{join}limit={limit}{more}")).await;
        let entries = page[list].as_array().unwrap();
        assert!(entries.len() <= limit && (page["continuationToken"].is_null() || entries.len() == limit), "{page}");
        found.extend(entries.iter().cloned());
        pages += 1;
        between(pages).await;
        match page.get("continuationToken") {
            Some(next) => token = Some(next.as_str().unwrap().to_owned()),
            None => return found,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_paged_without_short_pages_while_entries_come() {
    let rig = rig().await;
    let soon = minutes_from_now(600);
    for number in 0..7 {
        let answer = declare(&rig, &format!("p{}/type-{number}", number % 3), "rack", "w", &soon).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        declare(&rig, QUEUE, "rack", &format!("w{number}"), &soon).await;
    }
    for number in [1, 4, 5] {
        quarantine(&rig, &format!("w{number}"), &minutes_from_now(60)).await;
    }
    let nothing = async |_| {};
    let texts = |list: &[Value], field: &str| -> Vec<String> {
        list.iter().map(|one| one[field].as_str().unwrap().to_owned()).collect()
    };
    let queues = all(&rig, "/task-queues", "taskQueues", 3, nothing).await;
    let expected = ["p0/type-0", "p0/type-3", "p0/type-6", "p1/type-1", "p1/type-4", "p2/type-2", "p2/type-5", QUEUE];
    assert_eq!(texts(&queues, "taskQueueId"), expected);
    let provisioners = all(&rig, "/provisioners", "provisioners", 2, nothing).await;
    assert_eq!(texts(&provisioners, "provisionerId"), ["p0", "p1", "p2", "views"]);
    let worker_types = all(&rig, "/provisioners/p0/worker-types", "workerTypes", 1, nothing).await;
    assert_eq!(texts(&worker_types, "workerType"), ["type-0", "type-3", "type-6"]);

    let list = format!("{}/workers", types(QUEUE));
    let bad = all(&rig, &format!("{list}?quarantined=true"), "workers", 2, nothing).await;
    assert_eq!(texts(&bad, "workerId"), ["w1", "w4", "w5"]);
    assert!(bad.iter().all(|worker| worker["quarantineUntil"].is_string()));
    let good = all(&rig, &format!("{list}?quarantined=false"), "workers", 2, nothing).await;
    assert_eq!(texts(&good, "workerId"), ["w0", "w2", "w3", "w6"]);
    // After the first page (w0, w1) some come before its end and some behind it.
    let come = async |page: usize| {
        if page == 1 {
            for id in ["w00", "w11", "w9"] {
                declare(&rig, QUEUE, "rack", id, &soon).await;
            }
            declare(&rig, QUEUE, "aisle", "w0", &soon).await;
            declare(&rig, QUEUE, "tower", "w0", &soon).await;
        }
    };
    let found = all(&rig, &list, "workers", 2, come).await;
    assert_eq!(texts(&found, "workerId"), ["w0", "w1", "w11", "w2", "w3", "w4", "w5", "w6", "w9", "w0"]);
    assert_eq!(found.last().unwrap()["workerGroup"], "tower");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_look_alike_are_distinguished() {
    let rig = rig().await;
    let soon = minutes_from_now(60);
    // A worker type that is called like the last word of another path.
    declare(&rig, "views/counts", "rack", "w", &soon).await;
    assert_eq!(get(&rig, "/task-queues/views/counts").await["taskQueueId"], "views/counts");
    assert_eq!(get(&rig, "/task-queues/views%2Fcounts").await["taskQueueId"], "views/counts");
    for path in ["/task-queues/views%2Fcounts/counts", "/task-queues/views/counts/counts"] {
        assert_eq!(get(&rig, path).await["pendingTasks"], 0, "{path}");
    }
    assert_eq!(get(&rig, "/task-queues/views%2Flinux/counts").await["taskQueueId"], QUEUE);
    refused(&rig, "GET", "/task-queues/nobody/counts", None, 404, "ResourceNotFound").await;
    refused(&rig, "GET", "/task-queues/no.body/counts", None, 400, "InvalidRequestArguments").await;
    let reader = rig.make_client("counter", &["queue:pending-count:*", "queue:claimed-count:*"]).await;
    let answer = call(&mut rig.client(), &reader, "GET", "/task-queues/views/counts", None).await;
    assert_eq!(answer.code(), "InsufficientScopes", "it is a queue, not a count: {}", answer.body);
    // A worker group, and a worker, that are called like a word of the path.
    for (group, id) in [("workers", "w1"), ("rack", "workers"), ("workers", "workers")] {
        assert_eq!(declare(&rig, QUEUE, group, id, &soon).await.status, 200);
        let path = format!("{}/workers/{group}/{id}", types(QUEUE));
        let worker = get(&rig, &path).await;
        assert_eq!((&worker["workerGroup"], &worker["workerId"]), (&json!(group), &json!(id)));
        let body = json!({"quarantineUntil": minutes_from_now(5)});
        let answer = rig.call("PUT", &path, Some(&body)).await;
        assert_eq!((answer.status, answer.body["workerGroup"].as_str()), (200, Some(group)), "{}", answer.body);
        assert_eq!(answer.body["quarantineDetails"][0]["quarantineInfo"], "[unspecified]");
    }
    let declared = get(&rig, &format!("{}/workers", types(QUEUE))).await;
    assert_eq!(declared["workers"].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unknown_forbidden_or_malformed_is_refused() {
    let rig = rig().await;
    work(&rig, QUEUE, "w1").await;
    let (worker, workers) = (worker_path(QUEUE, "w1"), format!("{}/workers", types(QUEUE)));
    let body = |value: Value| Some(value);
    let later = minutes_from_now(60);
    let good = body(json!({"quarantineUntil": later}));
    for path in [worker_path(QUEUE, "w2"), worker_path("views/unknown", "w1"), worker.replace("/rack/", "/other/")] {
        refused(&rig, "GET", &path, None, 404, "ResourceNotFound").await;
        refused(&rig, "PUT", &path, good.as_ref(), 404, "ResourceNotFound").await;
    }
    for path in ["/task-queues/views/unknown", "/provisioners/unknown", "/provisioners/views/worker-types/unknown"] {
        refused(&rig, "GET", path, None, 404, "ResourceNotFound").await;
    }
    for (path, code) in [
        (format!("{workers}?quarantined=maybe"), "InvalidRequestArguments"),
        (format!("{workers}?quarantined="), "InvalidRequestArguments"),
        (format!("{workers}?quarantined=true&quarantined=false"), "InvalidRequestArguments"),
        (format!("{workers}?limit=0"), "InvalidRequestArguments"),
        (format!("{workers}?state=idle"), "InvalidRequestArguments"),
        (format!("{workers}?continuationToken=x"), "InputError"),
        // A token of another list: there is no slash in it.
        (format!("{workers}?continuationToken=dmlld3M"), "InputError"),
        (format!("{worker}?limit=1"), "InvalidRequestArguments"),
        ("/task-queues?limit=-1".to_owned(), "InvalidRequestArguments"),
        ("/task-queues?continuationToken=%3F".to_owned(), "InputError"),
        ("/provisioners?x=1".to_owned(), "InvalidRequestArguments"),
        ("/provisioners/views/worker-types?limit=a".to_owned(), "InvalidRequestArguments"),
        ("/task-queues/views%2FLINUX".to_owned(), "InvalidRequestArguments"),
        ("/provisioners/a.b".to_owned(), "InvalidRequestArguments"),
        (worker.replace("/w1", &format!("/{}", "w".repeat(39))), "InvalidRequestArguments"),
        (worker.replace("/rack/", "/r%2Fack/"), "InvalidRequestArguments"),
    ] {
        refused(&rig, "GET", &path, None, 400, code).await;
    }
    let declared = format!("{}/rack/w1", types(QUEUE));
    for wrong in [
        json!({}),
        json!({"quarantineUntil": null}),
        json!({"quarantineUntil": "tomorrow"}),
        json!({"quarantineUntil": "2026-02-30T00:00:00Z"}),
        json!({"quarantineUntil": 5}),
        json!({"quarantineUntil": later, "quarantineInfo": 5}),
        json!({"quarantineUntil": later, "quarantineInfo": null}),
        json!({"quarantineUntil": later, "quarantineInfo": "x".repeat(4_001)}),
        json!({"quarantineUntil": later, "quarantineInfo": "a\0b"}),
        json!({"quarantineUntil": later, "reason": "x"}),
        json!([]),
    ] {
        refused(&rig, "PUT", &worker, Some(&wrong), 400, "InputValidationError").await;
    }
    for wrong in
        [json!({}), json!({"expires": "soon"}), json!({"expires": null}), json!({"expires": later, "x": 1}), json!([1])]
    {
        refused(&rig, "PUT", &declared, Some(&wrong), 400, "InputValidationError").await;
    }
    refused(&rig, "PUT", &worker, None, 400, "MalformedPayload").await;
    refused(&rig, "PUT", &declared, None, 400, "MalformedPayload").await;
    for method in ["POST", "DELETE"] {
        let raw = rig.signed(&rig.root, method, &worker, None);
        assert_eq!(rig.send(&raw).await.status, 405, "{method}");
    }
    assert_eq!(get(&rig, &worker).await["quarantineDetails"], json!([]), "nothing of it was done");
    let most = json!({"quarantineUntil": later, "quarantineInfo": "ü".repeat(4_000)});
    assert_eq!(rig.call("PUT", &worker, Some(&most)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_operation_needs_its_own_scope() {
    let rig = rig().await;
    work(&rig, QUEUE, "w1").await;
    let nobody = rig.make_client("nobody", &[]).await;
    let later = minutes_from_now(60);
    let calls = [
        ("GET", "/task-queues".to_owned(), None, "queue:list-task-queues", false),
        ("GET", "/task-queues/views%2Flinux".to_owned(), None, "queue:get-task-queue:views/linux", false),
        ("GET", "/task-queues/views/linux".to_owned(), None, "queue:get-task-queue:views/linux", false),
        ("GET", "/provisioners".to_owned(), None, "queue:list-provisioners", true),
        ("GET", "/provisioners/views".to_owned(), None, "queue:get-provisioner:views", true),
        ("GET", "/provisioners/views/worker-types".to_owned(), None, "queue:list-worker-types:views", true),
        ("GET", types(QUEUE), None, "queue:get-worker-type:views/linux", true),
        ("GET", format!("{}/workers", types(QUEUE)), None, "queue:list-workers:views/linux", true),
        ("GET", worker_path(QUEUE, "w1"), None, "queue:get-worker:views/linux/rack/w1", true),
        (
            "PUT",
            worker_path(QUEUE, "w1"),
            Some(json!({"quarantineUntil": later})),
            "queue:quarantine-worker:views/linux/rack/w1",
            false,
        ),
        (
            "PUT",
            format!("{}/rack/w1", types(QUEUE)),
            Some(json!({"expires": later})),
            "queue:declare-worker:views/linux/rack/w1#expires",
            false,
        ),
    ];
    for (turn, (method, path, body, scope, open)) in calls.iter().enumerate() {
        let answer = call(&mut rig.client(), &nobody, method, path, body.as_ref()).await;
        // Reading what workers do is public, as with Taskcluster; lists of queues are not.
        assert_eq!(answer.status, if *open { 200 } else { 403 }, "{path}: {}", answer.body);
        let able = rig.make_client(&format!("able-{turn}"), &[scope]).await;
        let answer = call(&mut rig.client(), &able, method, path, body.as_ref()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let details = get(&rig, &worker_path(QUEUE, "w1")).await["quarantineDetails"].clone();
    assert_eq!((details.as_array().unwrap().len(), &details[0]["clientId"]), (1, &json!("able-9")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantined_worker_keeps_what_it_has_and_gets_nothing_new() {
    let rig = rig().await;
    let held = work(&rig, QUEUE, "bad").await;
    let until = minutes_from_now(30);
    let answer = quarantine(&rig, "bad", &until).await;
    assert_eq!(answer["quarantineUntil"], until.as_str());
    assert_eq!(answer["quarantineDetails"][0]["quarantineInfo"], "tests");
    assert_eq!(answer["quarantineDetails"][0]["clientId"], rig.root.client_id.as_str());
    let task = create(&rig, QUEUE).await;
    let asked = Instant::now();
    assert!(claim(&rig, QUEUE, "bad").await.is_empty());
    assert!(asked.elapsed() >= WAIT, "it waits as long as if there were nothing: {:?}", asked.elapsed());
    let body = json!({"workerGroup": "rack", "workerId": "bad"});
    let path = format!("/task/{task}/runs/0/claim");
    let why = refused(&rig, "POST", &path, Some(&body), 409, "RequestConflict").await;
    assert!(why.contains("rack/bad is quarantined"), "{why}");
    // What it holds it can claim again, renew and report.
    let again = rig.call("POST", &format!("/task/{held}/runs/0/claim"), Some(&body)).await;
    assert_eq!(again.status, 200, "{}", again.body);
    let credentials = credentials_of(&again.body);
    for step in ["reclaim", "completed"] {
        let path = format!("{}/{step}", run_of(&again.body));
        let answer = call(&mut rig.client(), &credentials, "POST", &path, None).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    // It does not expire, and has work again when the date has come.
    // The date is of the real clock, which went on while the server's stood still: a minute to spare.
    advance(&rig, 1_860).await;
    assert_eq!(claim(&rig, QUEUE, "bad").await[0]["status"]["taskId"], task.as_str());
    quarantine(&rig, "bad", &minutes_from_now(10 * 24 * 60)).await;
    advance(&rig, 5 * 86_400).await;
    let list = get(&rig, &format!("{}/workers?quarantined=true", types(QUEUE))).await;
    assert_eq!(list["workers"][0]["workerId"], "bad");
    let lifted = quarantine(&rig, "bad", &minutes_from_now(-1)).await;
    assert_eq!(lifted["quarantineDetails"].as_array().unwrap().len(), 3);
    let list = get(&rig, &format!("{}/workers", types(QUEUE))).await;
    assert!(list["workers"][0]["quarantineUntil"].is_null(), "{list}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_workers_that_claim_at_once_are_listed() {
    const WORKERS: usize = 100;
    let rig = rig().await;
    for _ in 0..WORKERS {
        create(&rig, QUEUE).await;
    }
    let claims = (0..WORKERS).map(|number| {
        let (mut client, root) = (rig.client(), rig.root.clone());
        tokio::spawn(async move { claim_at(&mut client, &root, QUEUE, &format!("w{number:02}"), 1).await.len() })
    });
    for claim in claims.collect::<Vec<_>>() {
        assert_eq!(claim.await.unwrap(), 1);
    }
    let found = all(&rig, &format!("{}/workers", types(QUEUE)), "workers", 33, async |_| {}).await;
    assert_eq!(found.len(), WORKERS);
    let tasks: BTreeSet<String> = found.iter().map(|worker| worker["latestTask"]["taskId"].to_string()).collect();
    assert_eq!(tasks.len(), WORKERS, "each has its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_paths_of_old_clients_work_too() {
    let rig = rig().await;
    work(&rig, QUEUE, "w1").await;
    let old = rig.send(&Raw::new("GET", "/v1/provisioners/views/worker-types/linux/workers/rack/w1")).await;
    assert_eq!((old.status, old.json()["workerId"].as_str()), (200, Some("w1")), "{}", old.text());
    let new = rig.send(&Raw::new("GET", &format!("{QUEUE_API}{}", worker_path(QUEUE, "w1")))).await;
    assert_eq!(new.json(), old.json());
}
