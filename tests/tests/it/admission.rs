//! Limits of queues and keys over HTTP, rates, fairness, and runs assigned to sessions: rows T8, T9,
//! T11 to T13, Z6 and Z10 of the seed's behaviours. Rows T3, T4 and T10 are in
//! `verify_delivery.rs`.

mod assign;
mod fairness;
mod keys;
mod outlook;
mod restart;
mod schedulers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::TENURE_API;

use crate::rig::{Raw, Rig, call, claim, client_of, credentials_of, eventually, ok, run_of};

const QUEUE: &str = "limits/linux";
/// Ten times the interval at which a server without notifications looks for a free slot.
const FREED_SEEN_WITHIN: Duration = Duration::from_secs(10);

async fn create(rig: &Rig, key: Option<&str>) -> SlugId {
    rig.create_with(QUEUE, |task| {
        if let Some(key) = key {
            task["extra"] = json!({"tenure": {"key": key}});
        }
    })
    .await
}

async fn create_urgent(rig: &Rig, key: &str) -> SlugId {
    rig.create_with(QUEUE, |task| {
        task["priority"] = json!("high");
        task["extra"] = json!({"tenure": {"key": key}});
    })
    .await
}

/// Numbers of waiting, ready and claimed runs of the queue.
async fn counts(rig: &Rig) -> (i64, i64, i64) {
    let body = rig.call("GET", &format!("{TENURE_API}/queues/limits%2Flinux"), None).await.body;
    (body["waiting"].as_i64().unwrap(), body["ready"].as_i64().unwrap(), body["claimed"].as_i64().unwrap())
}

fn by_key(claims: &[Value]) -> BTreeMap<String, usize> {
    let mut keys = BTreeMap::new();
    for claim in claims {
        let key = claim["task"]["extra"]["tenure"]["key"].as_str().unwrap_or_default();
        *keys.entry(key.to_owned()).or_default() += 1;
    }
    keys
}

fn keys<const N: usize>(keys: [(&str, usize); N]) -> BTreeMap<String, usize> {
    keys.map(|(key, count)| (key.to_owned(), count)).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_is_not_exceeded_after_idle_time() {
    let limit = json!({"count": 2, "seconds": 600, "burst": 2});
    for (policy, key, own) in [
        (json!({"rate": {"total": limit}}), None, None),
        (json!({"rate": {"perKey": limit}}), Some("a"), None),
        (json!({"concurrency": {"total": 50}}), Some("a"), Some(json!({"rate": limit}))),
    ] {
        let rig = Rig::manual().await;
        rig.put_policy(QUEUE, &policy).await;
        if let Some(rules) = own {
            let path = format!("{TENURE_API}/queues/limits%2Flinux/keys/a");
            ok(rig.call("PUT", &path, Some(&rules)).await);
        }
        for _ in 0..2 {
            create(&rig, key).await;
        }
        rig.advance(800.0).await;
        assert_eq!(rig.claim(QUEUE, 10).await.len(), 2, "the burst");
        for _ in 0..2 {
            create(&rig, key).await;
        }
        rig.advance(0.0).await;
        assert_eq!((rig.claim(QUEUE, 10).await.len(), counts(&rig).await), (0, (2, 0, 2)), "{policy}");
        rig.advance(301.0).await;
        assert_eq!(rig.claim(QUEUE, 10).await.len(), 1, "the next token has come: {policy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_run_at_its_rate_lets_others_start() {
    let rig = Rig::manual().await;
    let rate = json!({"count": 1, "seconds": 3_600});
    rig.put_policy(QUEUE, &json!({"concurrency": {"total": 1}, "rate": {"perKey": rate}})).await;
    create_urgent(&rig, "a").await;
    rig.report(&rig.claim(QUEUE, 1).await[0], "completed", None).await;
    create(&rig, Some("b")).await;
    create_urgent(&rig, "a").await;
    assert_eq!(by_key(&rig.claim(QUEUE, 10).await), keys([("b", 1)]));
    assert_eq!(counts(&rig).await, (1, 0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_runs_start_before_earlier_ones() {
    let rig = Rig::manual().await;
    for (limits, least_of) in [(json!({"total": 2}), ["a", "b", "c"]), (json!({"perKey": 2}), ["a", "a", "a"])] {
        rig.put_policy(QUEUE, &json!({"concurrency": limits})).await;
        let mut created = Vec::new();
        for key in least_of {
            created.push(json!(create(&rig, Some(key)).await));
        }
        let mut expected = Vec::new();
        for _ in 0..2 {
            expected.push(json!(create_urgent(&rig, least_of[2]).await));
        }
        assert_eq!(counts(&rig).await, (5, 0, 0), "{limits}");
        expected.append(&mut created);
        for turn in expected.chunks(2) {
            let claims = rig.claim(QUEUE, 10).await;
            let given: Vec<Value> = claims.iter().map(|claim| claim["status"]["taskId"].clone()).collect();
            assert_eq!(given, turn, "{limits}");
            for claim in &claims {
                rig.report(claim, "completed", None).await;
            }
        }
        assert_eq!(counts(&rig).await, (0, 0, 0), "{limits}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_freed_at_one_server_starts_run_at_another() {
    let rig = Rig::start().await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"total": 1}})).await;
    let other = rig.another("other").await;
    for _ in 0..2 {
        create(&rig, None).await;
    }
    let held = rig.claim(QUEUE, 1).await;
    assert_eq!(held.len(), 1);
    let waiting = async {
        let claims = claim(&mut client_of(&other), &rig.root, QUEUE, 1).await;
        (claims.len(), Instant::now())
    };
    let freeing = async {
        eventually("the request waits", async || {
            let text = Raw::new("GET", "/metrics").send(other.root_url()).await.text();
            let waiting = text.lines().find_map(|line| line.strip_prefix("tenure_batch_waiting{operation=\"claim\"} "));
            waiting.is_some_and(|requests| requests != "0").then_some(())
        })
        .await;
        rig.report(&held[0], "completed", None).await;
        Instant::now()
    };
    let ((claims, claimed), freed) = tokio::join!(waiting, freeing);
    assert_eq!(claims, 1);
    let took = claimed.saturating_duration_since(freed);
    assert!(took < FREED_SEEN_WITHIN, "{took:?}");
    assert!(other.stop().await.success());
}
