//! Rules of single keys, and the state of keys.

use super::*;
use tenure_api::credentials::Credentials;
use tenure_tests::http::Answer;

const KEYS: &str = "/queues/limits%2Flinux/keys";

fn path(key: &str) -> String {
    format!("{TENURE_API}{KEYS}/{key}")
}

async fn put(rig: &Rig, key: &str, rules: &Value) -> Answer {
    rig.call("PUT", &path(key), Some(rules)).await
}

async fn set(rig: &Rig, key: &str, rules: Value) {
    ok(put(rig, key, &rules).await);
}

async fn remove(rig: &Rig, key: &str) {
    let answer = rig.call("DELETE", &path(key), None).await;
    assert_eq!((answer.status, &answer.body), (200, &json!({})));
}

async fn list(rig: &Rig, limit: usize) -> (Vec<Value>, usize) {
    let (mut found, mut pages, mut query) = (Vec::new(), 0, format!("?limit={limit}"));
    loop {
        let answer = ok(rig.call("GET", &format!("{TENURE_API}{KEYS}{query}"), None).await);
        found.extend(answer["keys"].as_array().unwrap().clone());
        pages += 1;
        let Some(token) = answer["continuationToken"].as_str() else { return (found, pages) };
        query = format!("?limit={limit}&continuationToken={token}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_concurrency_of_key_applies_at_once_to_waiting_runs() {
    let rig = Rig::manual().await;
    set(&rig, "big", json!({"concurrency": 3})).await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"perKey": 1}})).await;
    for key in ["big", "small"] {
        for _ in 0..6 {
            create(&rig, Some(key)).await;
        }
    }
    rig.advance(0.0).await;
    assert_eq!(by_key(&rig.claim(QUEUE, 20).await), keys([("big", 3), ("small", 1)]));
    let (listed, _) = list(&rig, 10).await;
    assert_eq!(
        listed,
        [
            json!({"key": "big", "used": 3, "limit": 3, "waiting": 3, "concurrency": 3}),
            json!({"key": "small", "used": 1, "limit": 1, "waiting": 5}),
        ]
    );
    set(&rig, "small", json!({"concurrency": 2})).await;
    set(&rig, "big", json!({"concurrency": 5, "weight": 2})).await;
    rig.advance(0.0).await;
    assert_eq!(by_key(&rig.claim(QUEUE, 20).await), keys([("big", 2), ("small", 1)]));
    // A lower limit ends no run, and starts none.
    remove(&rig, "big").await;
    remove(&rig, "big").await;
    rig.advance(0.0).await;
    assert!(rig.claim(QUEUE, 20).await.is_empty());
    let missing = rig.call("GET", &path("big"), None).await;
    assert_eq!((missing.status, missing.code()), (404, "ResourceNotFound"));
    let (listed, _) = list(&rig, 10).await;
    assert_eq!(listed[0], json!({"key": "big", "used": 5, "limit": 1, "waiting": 1}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_rate_of_key_replaces_policy_until_removed() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"rate": {"perKey": {"count": 1, "seconds": 3600}}})).await;
    for key in ["a", "b"] {
        for _ in 0..10 {
            create(&rig, Some(key)).await;
        }
    }
    rig.advance(0.0).await;
    assert_eq!(by_key(&rig.claim(QUEUE, 20).await), keys([("a", 1), ("b", 1)]));
    set(&rig, "a", json!({"rate": {"count": 6, "seconds": 60}})).await;
    // The next start was an hour away; now it is one interval of the new rate away.
    assert!(rig.claim(QUEUE, 20).await.is_empty());
    let mut started = Vec::new();
    for _ in 0..3 {
        rig.advance(10.5).await;
        started.push(by_key(&rig.claim(QUEUE, 20).await));
    }
    assert_eq!(started, [keys([("a", 1)]), keys([("a", 1)]), keys([("a", 1)])]);
    remove(&rig, "a").await;
    rig.advance(60.0).await;
    // Tokens of the old rate that came before the removal.
    assert!(rig.claim(QUEUE, 20).await.len() <= 1);
    rig.advance(600.0).await;
    assert!(rig.claim(QUEUE, 20).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_any_text_up_to_255_characters_listed_in_pages() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"perKey": 1}})).await;
    let long = "k".repeat(255);
    for (sent, key) in
        [("a%2Fb", "a/b"), ("%C3%A9%20%E2%82%AC", "é €"), (long.as_str(), long.as_str()), ("keys", "keys")]
    {
        set(&rig, sent, json!({"concurrency": 7})).await;
        let answer = rig.call("GET", &path(sent), None).await;
        assert_eq!(answer.body, json!({"key": key, "used": 0, "limit": 7, "waiting": 0, "concurrency": 7}));
        let other_form = format!("{TENURE_API}/queues/limits/linux/keys/{sent}");
        assert_eq!(rig.call("GET", &other_form, None).await.body, answer.body);
    }
    create(&rig, Some("a/b")).await;
    create(&rig, None).await;
    eventually("the runs are counted", async || {
        let (listed, pages) = list(&rig, 2).await;
        let waiting: Vec<(&str, &Value)> =
            listed.iter().map(|key| (key["key"].as_str().unwrap(), &key["waiting"])).collect();
        let all = listed.len() == 5 && waiting.contains(&("", &json!(1))) && waiting.contains(&("a/b", &json!(1)));
        (all && pages >= 3).then_some(())
    })
    .await;
    let (listed, _) = list(&rig, 100).await;
    let names: Vec<&str> = listed.iter().map(|key| key["key"].as_str().unwrap()).collect();
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), 5, "each once: {names:?}");
    assert_eq!(listed[0].get("limit"), None, "runs without a key share no limit");
    for token in ["x", "IlwwIg"] {
        let answer = rig.call("GET", &format!("{TENURE_API}{KEYS}?continuationToken={token}"), None).await;
        assert_eq!((answer.status, answer.body["keys"].as_array().unwrap().len()), (200, 5));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_rule_key_or_caller_is_refused() {
    let rig = Rig::start().await;
    for (rules, code, part) in [
        (json!({}), "InputError", "at least one"),
        (json!({"concurrency": 0}), "InputError", "concurrency"),
        (json!({"concurrency": 1001}), "InputError", "concurrency"),
        (json!({"weight": 0}), "InputError", "weight"),
        (json!({"weight": 1000.5}), "InputError", "weight"),
        (json!({"rate": {"count": 1, "seconds": 0}}), "InputError", "rate.seconds"),
        (json!({"rate": {"count": 1, "seconds": 1, "burst": 2}}), "InputError", "rate.burst"),
        (json!({"concurrency": "1"}), "InputValidationError", "number"),
        (json!({"rate": 5}), "InputValidationError", ""),
        (json!({"limit": 5}), "InputValidationError", "limit"),
        (json!([1]), "InputValidationError", ""),
    ] {
        let answer = put(&rig, "k", &rules).await;
        assert_eq!((answer.status, answer.code()), (400, code), "{rules}: {}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains(part), "{rules}: {}", answer.body);
    }
    for key in ["k".repeat(256), "%C3%A9".repeat(256), "a%00b".to_owned()] {
        for method in ["PUT", "GET", "DELETE"] {
            let body = json!({"weight": 1});
            let answer = rig.call(method, &path(&key), (method == "PUT").then_some(&body)).await;
            assert_eq!((answer.status, answer.code()), (400, "InputError"), "{method}: {}", answer.body);
        }
    }
    assert_eq!(put(&rig, "", &json!({"weight": 1})).await.status, 404, "an empty key is no path");
    // A missing queue has no keys, and a read does not create it.
    let none = format!("{TENURE_API}/queues/limits%2Fnone/keys");
    assert_eq!(rig.call("GET", &none, None).await.body, json!({"keys": []}));
    assert_eq!(rig.call("GET", &format!("{none}/k"), None).await.status, 404);
    assert_eq!(rig.call("DELETE", &format!("{none}/k"), None).await.status, 200);

    let (mut client, body) = (rig.client(), json!({"weight": 1}));
    let reader =
        rig.make_client("reader", &["tenure:get-queue:limits/linux", "tenure:manage-queue:limits/other"]).await;
    let stranger = rig.make_client("stranger", &["tenure:get-queue:limits/other"]).await;
    let calls: [(&Credentials, &str, &str, u16); 6] = [
        (&reader, "PUT", "k", 403),
        (&reader, "DELETE", "k", 403),
        (&reader, "GET", "k", 404),
        (&stranger, "GET", "k", 403),
        (&stranger, "PUT", "k", 403),
        (&stranger, "DELETE", "k", 403),
    ];
    for (who, method, key, status) in calls {
        let answer = call(&mut client, who, method, &path(key), (method == "PUT").then_some(&body)).await;
        assert_eq!(answer.status, status, "{method}: {}", answer.body);
    }
    let listing = format!("{TENURE_API}{KEYS}");
    assert_eq!(call(&mut client, &reader, "GET", &listing, None).await.status, 200);
    assert_eq!(call(&mut client, &stranger, "GET", &listing, None).await.status, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_rules_do_not_mix_and_their_number_is_bounded() {
    let rig = Rig::start().await;
    let (one_rule, other_rule) = (json!({"concurrency": 1}), json!({"weight": 2}));
    let (one, other) = tokio::join!(put(&rig, "k", &one_rule), put(&rig, "k", &other_rule));
    assert_eq!((one.status, other.status), (200, 200));
    let last = rig.call("GET", &path("k"), None).await.body;
    assert!(last["concurrency"].is_null() != last["weight"].is_null(), "one of them, and no mixture: {last}");
    let mut conn = rig.database.connect("test").await;
    let fill = "INSERT INTO queue_keys (queue, key, weight)
        SELECT q.id, 'filled-' || n, 1 FROM task_queues q, generate_series(1, 9999) n WHERE q.name = 'limits/linux'";
    sqlx::raw_sql(fill).execute(&mut conn).await.unwrap();
    let refused = put(&rig, "one%20more", &one_rule).await;
    assert_eq!((refused.status, refused.code()), (409, "RequestConflict"), "{}", refused.body);
    assert!(refused.body["message"].as_str().unwrap().contains("10000"), "{}", refused.body);
    set(&rig, "k", json!({"concurrency": 2})).await;
    remove(&rig, "k").await;
    set(&rig, "one%20more", json!({"concurrency": 2})).await;
}
