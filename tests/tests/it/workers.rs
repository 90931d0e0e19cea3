//! Task queues and workers as views, and quarantine, on real servers.

mod servers;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, Client, QUEUE_API};
use tenure_tests::server::{Launch, Server};

use crate::rig::{Raw, Rig, call, claim_path, client_of, credentials_of, eventually, minutes_from_now, ok, run_of};

const QUEUE: &str = "views/linux";

async fn rig() -> Rig {
    Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "2s")).await
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

async fn claim_at(client: &mut Client, who: &Credentials, queue: &str, id: &str, tasks: u16) -> Vec<Value> {
    let body = json!({"workerGroup": "rack", "workerId": id, "tasks": tasks});
    let answer = ok(call(client, who, "POST", &claim_path(queue), Some(&body)).await);
    answer["tasks"].as_array().unwrap().clone()
}

async fn claim(rig: &Rig, queue: &str, id: &str) -> Vec<Value> {
    claim_at(&mut rig.client(), &rig.root, queue, id, 1).await
}

async fn create(rig: &Rig, queue: &str) -> String {
    rig.create_one(queue).await.to_string()
}

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
    ok(rig.call("PUT", &worker_path(QUEUE, id), Some(&body)).await)
}

/// Taskcluster accepts more characters in these paths than a queue's name may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_worker_type_has_no_views_or_declarations() {
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

/// All entries of a list, in pages of this size; `between` runs after each page.
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
    // After the first page (w0, w1) some appear before its end and some after it.
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
async fn the_paths_of_old_clients_work_too() {
    let rig = rig().await;
    work(&rig, QUEUE, "w1").await;
    let old = rig.send(&Raw::new("GET", "/v1/provisioners/views/worker-types/linux/workers/rack/w1")).await;
    assert_eq!((old.status, old.json()["workerId"].as_str()), (200, Some("w1")), "{}", old.text());
    let new = rig.send(&Raw::new("GET", &format!("{QUEUE_API}{}", worker_path(QUEUE, "w1")))).await;
    assert_eq!(new.json(), old.json());
}
