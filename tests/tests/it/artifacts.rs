//! Artifacts over HTTP: each storage type and each refusal, links, expiry, pages, and bytes end to
//! end.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, QUEUE_API, TENURE_API};

use crate::rig::{Raw, RawReply, Rig, call, credentials_of, definition, minutes_from_now, new_task, ok, run_of};

const QUEUE: &str = "artifacts/queue";

pub struct Worker {
    pub rig: Rig,
    pub task: SlugId,
    pub run: String,
    pub credentials: Credentials,
}

impl Worker {
    pub async fn start() -> Self {
        Self::of(Rig::start_with(|launch| launch.flag("--clock", "manual")).await).await
    }

    pub async fn of(rig: Rig) -> Self {
        let task = rig.create_one(QUEUE).await;
        let claim = rig.claim(QUEUE, 1).await.remove(0);
        Self { rig, task, run: run_of(&claim), credentials: credentials_of(&claim) }
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        call(&mut self.rig.client(), &self.credentials, method, path, body).await
    }

    pub async fn create(&self, name: &str, body: &Value) -> Answer {
        self.call("POST", &format!("{}/artifacts/{}", self.run, segment(name)), Some(body)).await
    }

    pub async fn created(&self, name: &str, body: &Value) -> Value {
        ok(self.create(name, body).await)
    }

    #[track_caller]
    pub fn refused(answer: &Answer, status: u16, code: &str, say: &str) {
        assert_eq!((answer.status, answer.body["code"].as_str()), (status, Some(code)), "{}", answer.body);
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(say), "{message}");
    }

    pub async fn anonymous(&self, path: &str) -> RawReply {
        self.rig.send(&Raw::new("GET", &format!("{QUEUE_API}{path}"))).await
    }

    pub async fn root(&self, path: &str) -> RawReply {
        self.rig.send(&self.rig.signed(&self.rig.root, "GET", path, None)).await
    }

    pub fn latest(&self, name: &str) -> String {
        format!("/task/{}/artifacts/{}", self.task, segment(name))
    }

    pub async fn events(&self) -> Vec<Value> {
        let path = format!("{TENURE_API}/events?exchange=artifact-created&after=0");
        let answer = ok(self.rig.call("GET", &path, None).await);
        answer["events"].as_array().unwrap().clone()
    }
}

pub fn segment(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn s3(minutes: i64) -> Value {
    json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(minutes)})
}

fn reference(url: &str, minutes: i64) -> Value {
    json!({"storageType": "reference", "contentType": "text/plain", "url": url, "expires": minutes_from_now(minutes)})
}

fn link(to: &str) -> Value {
    json!({"storageType": "link", "artifact": to, "expires": minutes_from_now(60)})
}

fn error() -> Value {
    let reason = "file-missing-on-worker";
    json!({"storageType": "error", "reason": reason, "message": "no file", "expires": minutes_from_now(60)})
}

pub fn target<'a>(rig: &Rig, url: &'a str) -> &'a str {
    url.strip_prefix(rig.server.root_url().trim_end_matches('/')).unwrap_or_else(|| panic!("{url} is elsewhere"))
}

pub async fn put(rig: &Rig, url: &str, content_type: &str, bytes: &[u8]) -> RawReply {
    let mut raw = Raw::new("PUT", target(rig, url)).header("Content-Type", content_type);
    raw.body = Some(bytes.to_vec());
    rig.send(&raw).await
}

pub async fn get(rig: &Rig, url: &str) -> RawReply {
    rig.send(&Raw::new("GET", target(rig, url))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_up_by_the_put_url_and_come_back_by_the_redirection() {
    let worker = Worker::start().await;
    let rig = &worker.rig;
    let name = "public/logs/a b:c@d(e),f%2Fg+h.log";
    let created = worker.created(name, &s3(60)).await;
    assert_eq!((&created["storageType"], &created["contentType"]), (&json!("s3"), &json!("text/plain")));
    let url = created["putUrl"].as_str().unwrap();
    let bytes = b"what was built\n".repeat(1000);
    assert_eq!(put(rig, url, "text/html", &bytes).await.status, 403, "another content type");
    assert_eq!(put(rig, url, "text/plain", &bytes).await.status, 200);

    // Names of artifacts may have literal or escaped slashes, and are decoded once.
    let escaped = worker.latest(name);
    let literal = escaped.replacen("%2F", "/", 2);
    for path in [escaped.as_str(), &literal, &format!("{}/artifacts/{}", worker.run, segment(name))] {
        let reply = worker.anonymous(path).await;
        assert_eq!(reply.status, 303, "{path}: {}", reply.text());
        let found = reply.json();
        assert_eq!(reply.header("x-taskcluster-artifact-storage-type"), Some("s3"));
        assert_eq!((found["storageType"].as_str(), found["url"].as_str()), (Some("s3"), reply.header("location")));
        let read = get(rig, reply.header("location").unwrap()).await;
        assert_eq!((read.status, read.header("content-type")), (200, Some("text/plain")));
        assert!(read.body == bytes);
    }
    let info = worker.anonymous(&format!("/task/{}/artifact-info/{}", worker.task, segment(name))).await.json();
    assert_eq!((&info["name"], &info["size"]), (&json!(name), &json!(bytes.len())));
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(info["sha256"], json!(digest));
    let content = worker.anonymous(&format!("{}/artifact-content/{}", worker.run, segment(name))).await.json();
    assert_eq!(content["storageType"], "s3");
    assert!(get(rig, content["url"].as_str().unwrap()).await.body == bytes);
    // A repeat gives a URL for another upload, which replaces the first bytes.
    let again = worker.created(name, &s3(90)).await;
    assert_eq!(put(rig, again["putUrl"].as_str().unwrap(), "text/plain", b"second").await.status, 200);
    let reply = worker.anonymous(&escaped).await;
    assert_eq!(get(rig, reply.header("location").unwrap()).await.body, b"second");
    assert!(worker.events().await.is_empty(), "no event for bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_any_printable_text_with_slashes() {
    let worker = Worker::start().await;
    for name in ["//public//x/", "/", "..", "a/../b", ".", "%2F", "%", "a?b#c", "artifacts", "x/artifacts/y", "~ !*'()"]
    {
        worker.created(name, &reference(&format!("https://example.com/{}", segment(name)), 60)).await;
        let reply = worker.root(&worker.latest(name)).await;
        let expected = format!("https://example.com/{}", segment(name));
        assert_eq!(
            (reply.status, reply.header("location")),
            (303, Some(expected.as_str())),
            "{name}: {}",
            reply.text()
        );
    }
    let list = worker.anonymous(&format!("{}/artifacts", worker.run)).await.json();
    assert_eq!(list["artifacts"].as_array().unwrap().len(), 11);
    let long = "x".repeat(1024);
    worker.created(&long, &error()).await;
    for bad in [format!("{long}x"), "a\nb".to_owned(), "\u{e9}".to_owned()] {
        let answer = worker.create(&bad, &error()).await;
        Worker::refused(&answer, 400, "InvalidRequestArguments", "artifact name");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_log_is_a_reference_and_then_a_link() {
    let worker = Worker::start().await;
    let live = "public/logs/live.log";
    let answer = worker.created(live, &reference("https://worker.example/live", 60)).await;
    assert_eq!(answer, json!({"storageType": "reference"}));
    let reply = worker.anonymous(&worker.latest(live)).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("https://worker.example/live")));
    worker.created(live, &reference("https://worker.example/other", 60)).await;
    let backing = worker.created("public/logs/live_backing.log", &s3(60)).await;
    let put_url = backing["putUrl"].as_str().unwrap();
    assert_eq!(put(&worker.rig, put_url, "text/plain", b"the log").await.status, 200);
    let answer = worker.created(live, &link("public/logs/live_backing.log")).await;
    assert_eq!(answer, json!({"storageType": "link"}));
    let reply = worker.anonymous(&worker.latest(live)).await;
    assert_eq!((reply.status, &reply.json()["storageType"]), (303, &json!("s3")));
    assert_eq!(get(&worker.rig, reply.header("location").unwrap()).await.body, b"the log");
    let answer = worker.create(live, &reference("https://worker.example/live", 60)).await;
    Worker::refused(&answer, 409, "RequestConflict", "storageType");

    let events = worker.events().await;
    let emitted: Vec<&Value> = events.iter().map(|event| &event["payload"]["artifact"]["storageType"]).collect();
    assert_eq!(emitted, ["reference", "reference", "link"]);
    let payload = &events[2]["payload"];
    assert_eq!(payload["artifact"]["name"], live);
    // The type of the reference, as in Taskcluster: a link stores a location, not a type.
    assert_eq!(payload["artifact"]["contentType"], "text/plain");
    let info = worker.anonymous(&format!("{}/artifact-info/{}", worker.run, segment(live))).await.json();
    assert_eq!((&info["storageType"], &info["contentType"]), (&json!("link"), &json!("text/plain")));
    let mut typed_link = link("public/logs/live_backing.log");
    typed_link["contentType"] = json!("text/html");
    worker.created(live, &typed_link).await;
    let info = worker.anonymous(&format!("{}/artifact-info/{}", worker.run, segment(live))).await.json();
    assert_eq!(info["contentType"], "text/plain");
    assert_eq!((&payload["runId"], &payload["workerGroup"]), (&json!(0), &json!("group")));
    assert_eq!((&payload["status"]["state"], &payload["task"]), (&json!("running"), &Value::Null));
    let key = format!("primary.{}.0.group.worker.artifacts.queue.-.{}._", worker.task, worker.task);
    assert_eq!(events[2]["routingKey"], json!(key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_artifact_cannot_be_is_refused_and_the_field_is_named() {
    let worker = Worker::start().await;
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let without = |mut body: Value, field: &str| {
        body.as_object_mut().unwrap().remove(field);
        body
    };
    let schema = [
        (json!({}), "storageType"),
        (with(s3(60), "storageType", json!("azure")), "storageType"),
        (without(s3(60), "expires"), "expires"),
        (without(s3(60), "contentType"), "contentType"),
        (with(s3(60), "contentType", json!("x".repeat(256))), "contentType"),
        (with(s3(60), "contentType", json!("text/plain\r\nX: y")), "contentType"),
        (with(s3(60), "contentType", json!(7)), "contentType"),
        (with(s3(60), "contentLength", json!(-1)), "contentLength"),
        (with(s3(60), "contentLength", json!(1.5)), "contentLength"),
        (with(s3(60), "contentLength", Value::Null), "contentLength"),
        (with(s3(60), "contentLength", json!(1_u64 << 60)), "contentLength"),
        (with(s3(60), "url", json!("https://a/")), "url"),
        (with(s3(60), "expires", json!("tomorrow")), "expires"),
        (without(reference("https://a/", 60), "url"), "url"),
        (reference("/relative", 60), "url"),
        (reference("https://a/\r\nSet-Cookie: x", 60), "url"),
        (with(reference("https://a/", 60), "contentLength", json!(1)), "contentLength"),
        (link(""), "artifact"),
        (link(&"x".repeat(1025)), "artifact"),
        (without(link("a"), "artifact"), "artifact"),
        (with(error(), "reason", json!("other")), "reason"),
        (with(error(), "message", json!("x".repeat(4097))), "message"),
        (with(error(), "message", json!("\u{0}")), "message"),
        (with(error(), "contentType", json!("text/plain")), "contentType"),
    ];
    for (body, field) in schema {
        let answer = worker.create("x", &body).await;
        Worker::refused(&answer, 400, "InputValidationError", field);
    }
    Worker::refused(&worker.create("x", &s3(-16)).await, 400, "InputError", "15 minutes");
    Worker::refused(&worker.create("x", &s3(600_000)).await, 400, "InputError", "that of the task");
    let expires = minutes_from_now(60);
    let fine = [
        s3(-14),
        json!({"storageType": "s3", "contentType": "a", "contentLength": 0, "expires": expires}),
        with(error(), "message", json!("x".repeat(4096))),
        with(link("a"), "contentType", json!("text/html")),
    ];
    for (n, body) in fine.iter().enumerate() {
        worker.created(&format!("fine-{n}"), body).await;
    }
    // A caller without the scope, which depends only on the path, learns nothing else.
    let nobody = worker.rig.make_client("nobody", &[]).await;
    let pending = new_task();
    assert_eq!(worker.rig.create(pending, &definition("artifacts/other")).await.status, 200);
    let refusals = [
        (worker.task, 0, s3(-16), "15 minutes"),
        (new_task(), 0, s3(60), "does not exist"),
        (worker.task, 1, s3(60), "no run 1"),
        (pending, 0, s3(60), "never claimed"),
    ];
    for (task, run, body, message) in refusals {
        let path = format!("/task/{task}/runs/{run}/artifacts/x");
        let create = async |who| call(&mut worker.rig.client(), who, "POST", &path, Some(&body)).await;
        Worker::refused(&create(&worker.rig.root).await, 400, "InputError", message);
        Worker::refused(&create(&nobody).await, 403, "InsufficientScopes", "create-artifact");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_links_need_a_scope_for_each_name() {
    let worker = Worker::start().await;
    for (name, to) in
        [("public/a", "public/b"), ("public/b", "private/c"), ("public/x", "public/y"), ("public/y", "public/x")]
    {
        worker.created(name, &link(to)).await;
    }
    worker.created("public/gone", &link("public/nothing")).await;
    for path in ["artifacts", "artifact-content"] {
        for of in [worker.run.clone(), format!("/task/{}", worker.task)] {
            let refused = worker.anonymous(&format!("{of}/{path}/public/a")).await;
            let message = refused.refused(403, "InsufficientScopes");
            assert!(message.contains("missing queue:get-artifact:private/c; required all of ["), "{message}");
            for name in ["public/a", "public/b", "private/c"] {
                assert!(message.contains(&format!("queue:get-artifact:{name}")), "{message}");
            }
        }
    }
    worker.anonymous(&worker.latest("private/c")).await.refused(403, "InsufficientScopes");
    worker.created("private/c", &reference("https://c/", 60)).await;
    worker.anonymous(&worker.latest("public/a")).await.refused(403, "InsufficientScopes");
    let reader = worker.rig.make_client("reader", &["queue:get-artifact:private/*"]).await;
    for path in [worker.latest("public/a"), format!("{}/artifacts/public/a", worker.run)] {
        let reply = worker.rig.send(&worker.rig.signed(&reader, "GET", &path, None)).await;
        assert_eq!((reply.status, reply.header("location")), (303, Some("https://c/")), "{}", reply.text());
    }
    assert!(worker.anonymous(&worker.latest("public/x")).await.refused(400, "InputError").contains("met before"));
    worker.anonymous(&worker.latest("public/gone")).await.refused(404, "ResourceNotFound");
    worker.anonymous(&worker.latest("public/none")).await.refused(404, "ResourceNotFound");
    let other_run = format!("/task/{}/runs/1/artifacts/public/a", worker.task);
    worker.anonymous(&other_run).await.refused(404, "ResourceNotFound");
    worker.anonymous(&format!("/task/{}/artifacts/public/a", new_task())).await.refused(404, "ResourceNotFound");
    worker.anonymous(&format!("{}?x=1", worker.latest("public/a"))).await.refused(400, "InvalidRequestArguments");
    let info = worker.anonymous(&format!("{}/artifact-info/public/a", worker.run)).await;
    assert_eq!((info.status, &info.json()["storageType"]), (200, &json!("link")));
    worker.anonymous(&format!("{}/artifact-info/public/none", worker.run)).await.refused(404, "ResourceNotFound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_latest_artifacts_are_those_of_the_last_run() {
    let worker = Worker::start().await;
    worker.created("public/x", &reference("https://first/", 60)).await;
    let body = json!({"reason": "worker-shutdown"});
    ok(worker.call("POST", &format!("{}/exception", worker.run), Some(&body)).await);
    worker.anonymous(&worker.latest("public/x")).await.refused(404, "ResourceNotFound");
    let of_run = worker.anonymous(&format!("{}/artifacts/public/x", worker.run)).await;
    assert_eq!(of_run.header("location"), Some("https://first/"));
    let list = format!("/task/{}/artifacts", worker.task);
    assert_eq!(worker.anonymous(&list).await.json(), json!({"artifacts": []}));
    // The first run accepts artifacts for a while, the second one when it is claimed.
    worker.created("public/late.log", &reference("https://late/", 60)).await;
    let claim = worker.rig.claim(QUEUE, 1).await.remove(0);
    let path = format!("{}/artifacts/public%2Fx", run_of(&claim));
    let body = reference("https://second/", 60);
    ok(call(&mut worker.rig.client(), &credentials_of(&claim), "POST", &path, Some(&body)).await);
    assert_eq!(worker.anonymous(&worker.latest("public/x")).await.header("location"), Some("https://second/"));
    let first = worker.call("POST", &path, Some(&body)).await;
    Worker::refused(&first, 403, "InsufficientScopes", "create-artifact");
    worker.rig.advance(25 * 60).await;
    let late = worker.rig.call("POST", &format!("{}/artifacts/y", worker.run), Some(&error_until(120))).await;
    Worker::refused(&late, 409, "RequestConflict", "has ended");
    worker.anonymous(&format!("/task/{}/artifacts", new_task())).await.refused(404, "ResourceNotFound");
}

fn error_until(minutes: i64) -> Value {
    let mut body = error();
    body["expires"] = json!(minutes_from_now(minutes));
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_artifact_is_gone_then_unknown_with_its_bytes() {
    let worker = Worker::start().await;
    for name in ["public/bytes", "private/bytes"] {
        let created = worker.created(name, &s3(30)).await;
        let put_url = created["putUrl"].as_str().unwrap();
        assert_eq!(put(&worker.rig, put_url, "text/plain", b"x").await.status, 200);
    }
    // By run id: the claim expires meanwhile, which makes another run the last one.
    let bytes = format!("{}/artifacts/public/bytes", worker.run);
    // A URL for reading expires with its artifact, although a signed URL otherwise lasts half an
    // hour.
    worker.rig.advance(29 * 60).await;
    let url = worker.anonymous(&bytes).await.header("location").unwrap().to_owned();
    let private = format!("{}/artifacts/private/bytes", worker.run);
    let signed = worker.root(&private).await.header("location").unwrap().to_owned();
    for url in [&url, &signed] {
        assert_eq!(get(&worker.rig, url).await.status, 200);
    }
    worker.rig.advance(2 * 60).await;
    assert_eq!(get(&worker.rig, &url).await.status, 410);
    assert_eq!(get(&worker.rig, &signed).await.status, 403);
    // The bytes are kept while an upload may be in flight; reads are refused all the same.
    worker.anonymous(&bytes).await.refused(410, "ResourceExpired");
    worker.anonymous(&format!("{}/artifact-content/public/bytes", worker.run)).await.refused(410, "ResourceExpired");
    worker.rig.advance(2 * 3600).await;
    worker.anonymous(&bytes).await.refused(404, "ResourceNotFound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_have_each_artifact_once_while_others_are_created() {
    let worker = Worker::start().await;
    for n in 0..10 {
        worker.created(&format!("a{n}"), &error()).await;
    }
    let (mut names, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let path = format!("{}/artifacts?limit=3{token}", worker.run);
        let page = worker.anonymous(&path).await;
        assert_eq!(page.status, 200, "{}", page.text());
        let page = page.json();
        names.extend(page["artifacts"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()));
        worker.created(&format!("A{pages}"), &error()).await;
        worker.created(&format!("z{pages}"), &error()).await;
        pages += 1;
        match page.get("continuationToken") {
            Some(next) => token = format!("&continuationToken={}", next.as_str().unwrap()),
            None => break,
        }
    }
    let old: Vec<String> = (0..10).map(|n| format!("a{n}")).collect();
    assert_eq!(names[..10], old);
    assert!(names[10..].iter().all(|name| name.starts_with('z')), "{names:?}");
    let entry = &worker.anonymous(&format!("{}/artifacts?limit=1", worker.run)).await.json()["artifacts"][0];
    let mut fields: Vec<&String> = entry.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["contentType", "expires", "name", "storageType"]);
}
