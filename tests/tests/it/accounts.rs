//! Clients and roles over the API: their lives, and attempts to gain scopes. Refusals are in
//! `endpoints/table/auth.rs`.

use serde_json::{Value, json};
use tenure_api::credentials::{AccessToken, Credentials, Grant, issue, seed};
use tenure_tests::clock::unix_millis;
use tenure_tests::http::Answer;
use tenure_tests::server::Server;

use crate::rig::{Rig, call, client_of, eventually, minutes_from_now};

pub const API: &str = "/api/auth/v1";
pub const DENIED: &str = "InsufficientScopes";

pub struct Caller<'a> {
    pub server: &'a Server,
    pub who: &'a Credentials,
}

impl Caller<'_> {
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        call(&mut client_of(self.server), self.who, method, &format!("{API}{path}"), body.as_ref()).await
    }

    #[track_caller]
    fn good(answer: Answer) -> Value {
        assert!(answer.is_success(), "{} {}", answer.status, answer.body);
        answer.body
    }

    pub async fn get(&self, path: &str) -> Value {
        Self::good(self.call("GET", path, None).await)
    }

    pub async fn put(&self, path: &str, body: Value) -> Value {
        Self::good(self.call("PUT", path, Some(body)).await)
    }

    pub async fn post(&self, path: &str, body: Option<Value>) -> Value {
        Self::good(self.call("POST", path, body).await)
    }

    pub async fn delete(&self, path: &str) {
        assert_eq!(self.call("DELETE", path, None).await.status, 204);
    }

    pub async fn refused(&self, (method, path): (&str, &str), body: Option<Value>, status: u16, code: &str) -> String {
        let answer = self.call(method, path, body).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{method} {path}: {}", answer.body);
        answer.body["message"].as_str().unwrap().to_owned()
    }

    pub async fn scopes(&self) -> Vec<String> {
        serde_json::from_value(self.get("/scopes/current").await["scopes"].take()).unwrap()
    }
}

pub fn by<'a>(rig: &'a Rig, who: &'a Credentials) -> Caller<'a> {
    Caller { server: &rig.server, who }
}

pub fn a_client(scopes: &[&str]) -> Value {
    json!({"description": "d", "expires": minutes_from_now(60), "scopes": scopes})
}

pub fn a_role(scopes: &[&str]) -> Value {
    json!({"description": "d", "scopes": scopes})
}

pub fn credentials(client: &Value) -> Credentials {
    Credentials {
        client_id: client["clientId"].as_str().unwrap().to_owned(),
        access_token: AccessToken::new(client["accessToken"].as_str().unwrap().to_owned()),
        certificate: None,
    }
}

pub fn lend(issuer: &Credentials, scopes: &[&str]) -> Credentials {
    let now = unix_millis();
    let grant = Grant {
        name: None,
        scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
        start_ms: now,
        expiry_ms: now + 60_000,
        seed: seed([7; 33]),
    };
    issue(&issuer.client_id, &issuer.access_token.key(), grant)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_lives_from_its_creation_to_its_deletion() {
    let rig = Rig::start().await;
    let root = by(&rig, &rig.root);
    let definition = a_client(&["queue:claimed-count:*"]);
    let path = "/clients/ci%2Fone";
    let made = root.put(path, definition.clone()).await;
    let mine = credentials(&made);
    assert_eq!(mine.client_id, "ci/one");
    assert_eq!(made["expandedScopes"], json!(["assume:client-id:ci/one", "queue:claimed-count:*"]));
    assert!(by(&rig, &mine).scopes().await.contains(&"queue:claimed-count:*".to_owned()));

    // A repeated create returns the same client; another definition is a conflict.
    assert_eq!(root.put(path, definition.clone()).await["accessToken"], made["accessToken"]);
    for (field, value) in [("description", json!("other")), ("scopes", json!([])), ("deleteOnExpiration", json!(true))]
    {
        let mut other = definition.clone();
        other[field] = value;
        root.refused(("PUT", path), Some(other), 409, "RequestConflict").await;
    }

    let mut shown = root.get(path).await;
    assert_eq!(shown.get("accessToken"), None);
    assert_eq!((&shown["disabled"], &shown["deleteOnExpiration"]), (&json!(false), &json!(false)));
    shown["lastDateUsed"] = made["lastDateUsed"].clone();
    shown["accessToken"] = made["accessToken"].clone();
    assert_eq!(shown, made);

    let mut changed = a_client(&["queue:get-task:*"]);
    changed["deleteOnExpiration"] = json!(true);
    let changed = root.post(path, Some(changed)).await;
    assert_eq!((&changed["scopes"], &changed["deleteOnExpiration"]), (&json!(["queue:get-task:*"]), &json!(true)));
    assert!(!by(&rig, &mine).scopes().await.contains(&"queue:claimed-count:*".to_owned()), "takes effect at once");
    let unchanged = json!({"description": "new", "expires": minutes_from_now(60)});
    assert_eq!(root.post(path, Some(unchanged)).await["scopes"], json!(["queue:get-task:*"]));

    let reset = root.post(&format!("{path}/reset"), None).await;
    assert_ne!(reset["accessToken"], made["accessToken"]);
    assert_ne!(reset["lastRotated"], made["lastRotated"]);
    assert_eq!(by(&rig, &mine).call("GET", "/scopes/current", None).await.status, 401);
    let mine = credentials(&reset);
    for (verb, status) in [("disable", 401), ("disable", 401), ("enable", 200), ("enable", 200)] {
        let answer = root.post(&format!("{path}/{verb}"), None).await;
        assert_eq!(answer["disabled"], json!(verb == "disable"));
        assert_eq!(by(&rig, &mine).call("GET", "/scopes/current", None).await.status, status, "{verb}");
    }
    let used = async || (root.get(path).await["lastDateUsed"] != made["created"]).then_some(());
    eventually("the use of the client is noted", used).await;

    for _ in 0..2 {
        root.delete(path).await;
    }
    assert_eq!(by(&rig, &mine).call("GET", "/scopes/current", None).await.status, 401);
    for (method, path) in [("GET", path), ("POST", path)] {
        let body = (method == "POST").then(|| a_client(&[]));
        root.refused((method, path), body, 404, "ResourceNotFound").await;
    }
    for verb in ["reset", "enable", "disable"] {
        root.refused(("POST", &format!("{path}/{verb}")), None, 404, "ResourceNotFound").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_gains_scopes_by_editing_clients_or_roles() {
    let rig = Rig::start().await;
    let root = by(&rig, &rig.root);
    root.put("/roles/held", a_role(&["from-role:*"])).await;
    root.put("/roles/other", a_role(&["secret"])).await;
    root.put("/clients/mine%2Fbig", a_client(&["big", "a:b"])).await;
    root.put("/roles/mine-big", a_role(&["big", "a:b"])).await;
    let scopes = [
        "a:*",
        "assume:held",
        "auth:create-client:mine/*",
        "auth:update-client:mine/*",
        "auth:create-role:mine*",
        "auth:update-role:mine*",
    ];
    let climber = rig.make_client("climber", &scopes).await;
    let climber = by(&rig, &climber);

    for (number, granted) in [&["a:b"][..], &["a:*"], &["assume:held"], &["from-role:x"], &[]].into_iter().enumerate() {
        climber.put(&format!("/clients/mine%2F{number}"), a_client(granted)).await;
        climber.put(&format!("/roles/mine-{number}"), a_role(granted)).await;
    }
    for granted in [&["*"][..], &["a*"], &["big"], &["a:b", "big"], &["assume:other"], &["assume:*"], &["a:*", "as*"]] {
        for verb in ["PUT", "POST"] {
            for (path, body) in [("/clients/mine%2F0", a_client(granted)), ("/roles/mine-0", a_role(granted))] {
                let message = climber.refused((verb, path), Some(body), 403, DENIED).await;
                assert!(message.contains("climber"), "{message}");
            }
        }
    }
    for path in ["/clients/mine%2F0", "/roles/mine-0"] {
        assert_eq!(root.get(path).await["scopes"], json!(["a:b"]), "{path}");
    }
    // The author of a parameterized role must hold all scopes with the fixed prefix.
    climber.put("/roles/mine-starred-a*", a_role(&["a:<..>:x"])).await;
    for granted in ["from<..>", "<..>", "b:<..>", "assume:<..>", "assume:held<..>"] {
        let message = climber.refused(("PUT", "/roles/mine-starred-b*"), Some(a_role(&[granted])), 403, DENIED).await;
        assert!(message.contains(&granted.replace("<..>", "*")), "{message}");
    }
    for path in ["/clients/climber", "/clients/other"] {
        climber.refused(("PUT", path), Some(a_client(&[])), 403, DENIED).await;
        climber.refused(("POST", path), Some(a_client(&["*"])), 403, DENIED).await;
    }
    climber.refused(("PUT", "/roles/client-id%3Aclimber"), Some(a_role(&["a:b"])), 403, DENIED).await;
    climber.refused(("PUT", "/roles/anonymous"), Some(a_role(&["a:b"])), 403, DENIED).await;

    // Existing scopes may stay and go, but not return.
    for (path, body) in [("/clients/mine%2Fbig", a_client as fn(&[&str]) -> Value), ("/roles/mine-big", a_role)] {
        climber.post(path, Some(body(&["big", "a:b", "a:c"]))).await;
        climber.post(path, Some(body(&["a:b"]))).await;
        climber.refused(("POST", path), Some(body(&["big", "a:b"])), 403, DENIED).await;
    }
    climber.refused(("POST", "/clients/mine%2Fbig/reset"), None, 403, DENIED).await;
    // Temporary credentials cannot lend a role that their issuer lacks.
    let lent = lend(climber.who, &["assume:other"]);
    assert_eq!(by(&rig, &lent).call("GET", "/scopes/current", None).await.status, 401);
    let lent = lend(climber.who, &["assume:held"]);
    assert!(by(&rig, &lent).scopes().await.contains(&"from-role:*".to_owned()));
}
