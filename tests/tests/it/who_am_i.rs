//! Scopes and credentials as shown to callers, other services, tests of clients and operators.

use serde_json::{Value, json};
use tenure_tests::http::QUEUE_API;

use crate::accounts::{API, a_client, a_role, by, credentials, lend};
use crate::rig::{Raw, Rig, Signature, body_hash, eventually, stderr, stdout, tenure};

/// More than is expanded between other requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_has_all_scopes_of_large_roles() {
    let rig = Rig::start().await;
    let scopes: Vec<String> = (0..1_500).map(|n| format!("{n}:{}", "x".repeat(200))).collect();
    let role = a_role(&scopes.iter().map(String::as_str).collect::<Vec<_>>());
    by(&rig, &rig.root).put("/roles/large", role).await;
    for who in [rig.make_client("member", &["assume:large"]).await, lend(&rig.root, &["assume:large"])] {
        let current = by(&rig, &who).scopes().await;
        assert!(scopes.iter().all(|scope| current.contains(scope)), "{} scopes", current.len());
    }
}

fn as_seen_elsewhere(method: &str, target: &str, authorization: Option<&str>) -> Value {
    let mut seen = json!({"method": method, "resource": target, "host": "elsewhere.example", "port": 443});
    if let Some(authorization) = authorization {
        seen["authorization"] = json!(authorization);
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_services_can_ask_who_sent_them_a_request() {
    let rig = Rig::start().await;
    let root = by(&rig, &rig.root);
    let asked = async |seen: Value| {
        let body = seen.to_string().into_bytes();
        let raw = Raw::new("POST", &format!("{API}/authenticate-hawk")).json(Some(&body));
        let reply = rig.send(&raw).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    };
    let made = root.put("/clients/ci", a_client(&["a"])).await;
    let who = credentials(&made);
    let sign = |hash: Option<String>| {
        let (host, port) = ("elsewhere.example".to_owned(), 443);
        Signature { who: &who, method: "POST", target: "/x?y=1", host, port, hash, ..Signature::of(&rig.server) }
            .header()
    };
    let header = sign(None);
    let success = asked(as_seen_elsewhere("post", "/x?y=1", Some(&header))).await;
    assert_eq!((&success["status"], &success["clientId"]), (&json!("auth-success"), &json!("ci")));
    assert_eq!((&success["scheme"], &success["expires"]), (&json!("hawk"), &made["expires"]));
    assert_eq!(success.get("hash"), None);
    assert!(success["scopes"].as_array().unwrap().contains(&json!("a")));
    // The other service has the body, and so checks its hash.
    let hash = body_hash(b"whatever");
    let success = asked(as_seen_elsewhere("post", "/x?y=1", Some(&sign(Some(hash.clone()))))).await;
    assert_eq!((&success["status"], &success["hash"]), (&json!("auth-success"), &json!(hash)));
    // The header may be as long as for the claim of a task with as many scopes as allowed.
    let scopes: Vec<String> = (10..30).map(|n| format!("{n}{}", "x".repeat(4_090))).collect();
    let lent = lend(&rig.root, &scopes.iter().map(String::as_str).collect::<Vec<_>>());
    let (host, port) = ("elsewhere.example".to_owned(), 443);
    let long = Signature { who: &lent, target: "/x", host, port, ..Signature::of(&rig.server) }.header();
    assert!(long.len() > 100_000, "{}", long.len());
    let success = asked(as_seen_elsewhere("get", "/x", Some(&long))).await;
    assert_eq!((&success["status"], &success["clientId"]), (&json!("auth-success"), &json!(rig.root.client_id)));

    let basic = format!("Basic {}", rig.root.access_token.expose());
    for (method, target, authorization) in [
        ("get", "/x?y=1", &header),
        ("post", "/x", &header),
        ("post", "/x?y=1", &basic),
        ("post", "/x?bewit=a", &header),
    ] {
        let failed = asked(as_seen_elsewhere(method, target, Some(authorization))).await;
        assert_eq!(failed["status"], "auth-failed", "{failed}");
        assert!(failed["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    let unsigned = asked(as_seen_elsewhere("get", "/x", None)).await;
    assert_eq!((&unsigned["status"], &unsigned["scheme"]), (&json!("no-auth"), &json!("none")));
    assert!(unsigned["scopes"].as_array().unwrap().contains(&json!("queue:status:*")));
    for (field, value) in [("port", json!(70_000)), ("host", json!(null)), ("other", json!(1))] {
        let mut seen = as_seen_elsewhere("get", "/x", Some(&header));
        seen[field] = value;
        let refused = root.call("POST", "/authenticate-hawk", Some(seen)).await;
        assert_eq!((refused.status, refused.code()), (400, "InputValidationError"), "{}", refused.body);
        // Errors appear in logs, and the header would allow a repeat of the request.
        assert_eq!(refused.body["requestInfo"]["payload"], Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_line_edits_clients_and_roles_of_running_server() {
    let rig = Rig::start().await;
    let env = [("DATABASE_URL", rig.database.url())];
    let role = async |args: &[&str]| tenure(&[&["role"], args].concat(), &env).await;
    let who = rig.make_client("ci", &["assume:r"]).await;
    let ci = by(&rig, &who);
    assert!(!ci.scopes().await.contains(&"x".to_owned()));
    let made = role(&["create", "r", "--scope", "x", "--json"]).await;
    assert!(made.status.success(), "{}", stderr(&made));
    assert_eq!(serde_json::from_slice::<Value>(&made.stdout).unwrap()["scopes"], json!(["x"]));
    eventually("the role takes effect", async || ci.scopes().await.contains(&"x".to_owned()).then_some(())).await;
    assert!(stdout(&role(&["list"]).await).lines().any(|line| line.split_whitespace().eq(["r", "x"])));
    let refused = role(&["create", "r2", "--scope", "assume:r2"]).await;
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert_eq!(role(&["create", "r3", "--scope", "a**"]).await.status.code(), Some(2));
    assert_eq!(role(&["show", "nobody"]).await.status.code(), Some(1));
    let disabled = rig.administrate(&["disable", "ci"]).await;
    assert!(disabled.status.success(), "{}", stderr(&disabled));
    let out = async || (ci.call("GET", "/scopes/current", None).await.status == 401).then_some(());
    eventually("the client is shut out", out).await;
    assert_eq!(rig.send(&Raw::new("GET", &format!("{QUEUE_API}/ping"))).await.status, 200);
}
