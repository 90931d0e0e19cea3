//! What scopes and credentials amount to, for those that ask: callers, other services, tests of clients, operators.

use serde_json::{Value, json};
use tenure_api::credentials::{AccessToken, Credentials};
use tenure_tests::http::QUEUE_API;

use crate::accounts::{API, DENIED, a_client, a_role, by, credentials, lend};
use crate::rig::{Raw, Rig, Signature, body_hash, eventually, stderr, stdout, tenure};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_are_expanded_for_any_caller() {
    let rig = Rig::start().await;
    let root = by(&rig, &rig.root);
    root.put("/roles/repo%3A*", a_role(&["branch:<..>"])).await;
    let expand = async |scopes: Value| root.post("/scopes/expand", Some(json!({"scopes": scopes}))).await;
    let expanded = expand(json!(["b", "assume:repo:x", "b:*", "b:c"])).await;
    assert_eq!(expanded, json!({"scopes": ["assume:repo:x", "b", "b:*", "branch:x"]}));
    assert_eq!(expand(json!([])).await, json!({"scopes": []}));
    for wrong in [json!(["a**"]), json!("a"), json!([1])] {
        let body = Some(json!({"scopes": wrong}));
        root.refused(("POST", "/scopes/expand"), body, 400, "InputValidationError").await;
    }
    assert_eq!(root.scopes().await, ["*"]);
    // Without credentials as well, with what the role for every caller gives.
    let of_every_caller = a_role(&["assume:repo:public", "auth:current-scopes", "queue:status:*"]);
    root.post("/roles/anonymous", Some(of_every_caller)).await;
    let current = rig.send(&Raw::new("GET", &format!("{API}/scopes/current"))).await;
    assert_eq!(current.status, 200, "{}", current.text());
    let scopes = current.json()["scopes"].as_array().unwrap().clone();
    for scope in ["assume:anonymous", "branch:public", "queue:status:*"] {
        assert!(scopes.contains(&json!(scope)), "{scope}");
    }
    rig.server.stop().await;
}

/// More than is worked out between other requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_to_whom_roles_give_much_has_all_of_it() {
    let rig = Rig::start().await;
    let scopes: Vec<String> = (0..1_500).map(|n| format!("{n}:{}", "x".repeat(200))).collect();
    let role = a_role(&scopes.iter().map(String::as_str).collect::<Vec<_>>());
    by(&rig, &rig.root).put("/roles/large", role).await;
    for who in [rig.make_client("member", &["assume:large"]).await, lend(&rig.root, &["assume:large"])] {
        let current = by(&rig, &who).scopes().await;
        assert!(scopes.iter().all(|scope| current.contains(scope)), "{} scopes", current.len());
    }
    rig.server.stop().await;
}

/// What another service would ask about a request that it got.
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
    // The body is with the other service, and so is the check of its hash.
    let hash = body_hash(b"whatever");
    let success = asked(as_seen_elsewhere("post", "/x?y=1", Some(&sign(Some(hash.clone()))))).await;
    assert_eq!((&success["status"], &success["hash"]), (&json!("auth-success"), &json!(hash)));
    // The header may be as long as that of a claim whose task has as many scopes as a task may have.
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
        // Errors end up in logs, and who has the header can send the request again.
        assert_eq!(refused.body["requestInfo"]["payload"], Value::Null);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_api_can_try_out_how_they_sign() {
    let rig = Rig::start().await;
    let access_token = AccessToken::new("no-secret".to_owned());
    let tester = Credentials { client_id: "tester".to_owned(), access_token, certificate: None };
    let tester = by(&rig, &tester);
    let path = "/test-authenticate";
    let test = |held: &[&str], required: &[&str]| Some(json!({"clientScopes": held, "requiredScopes": required}));
    let answer = tester.post(path, test(&["test:a"], &["test:a"])).await;
    assert_eq!(answer, json!({"clientId": "tester", "scopes": ["assume:anonymous", "test:a"]}));
    tester.refused(("POST", path), test(&["test:a"], &["test:b"]), 403, DENIED).await;
    by(&rig, &rig.root).refused(("POST", path), test(&["a"], &["a"]), 401, "AuthenticationFailed").await;
    tester.refused(("POST", path), test(&["a**"], &[]), 400, "InputValidationError").await;
    // Anyone may have scopes compared, and so not that many of them.
    tester.refused(("POST", path), test(&["a"; 1_001], &["b"; 1_000]), 400, "InputValidationError").await;
    let lent = lend(tester.who, &["test:a:b"]);
    let answer = by(&rig, &lent).post(path, test(&["test:*"], &["test:a:b"])).await;
    assert_eq!(answer["scopes"], json!(["assume:anonymous", "test:a:b"]));
    assert_eq!(tester.get("/test-authenticate-get/").await["clientId"], "tester");
    let narrow = lend(tester.who, &["test:other"]);
    by(&rig, &narrow).refused(("GET", "/test-authenticate-get/"), None, 403, DENIED).await;
    // It is no client of anything else.
    tester.refused(("GET", "/scopes/current"), None, 401, "AuthenticationFailed").await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_changes_clients_and_roles_with_the_server_running() {
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
    rig.server.stop().await;
}
