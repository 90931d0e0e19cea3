//! The role `anonymous` grants reads without credentials: it exists from the start, is changed like
//! any role, and is closed by removing its scopes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::{QUEUE_API, TENURE_API};
use tenure_tests::server::Launch;

use crate::accounts::{DENIED, a_role, by};
use crate::rig::{
    Raw, RawReply, Rig, Signature, body_hash, credentials_of, eventually, minutes_from_now, ok, run_of, stderr, stdout,
    tenure,
};
use crate::sse::{Item, Stream};

const QUEUE: &str = "acme/linux";
const AUTH_API: &str = "/api/auth/v1";
const PURGE_API: &str = "/api/purge-cache/v1/purge-cache";
/// Ten times the three seconds after which a stream checks its reader's scopes.
const STREAM_ENDS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    TheStart,
    Never,
}
use self::From::{Never, TheStart};

struct Reading {
    method: &'static str,
    path: String,
    body: Option<Value>,
    scopes: Vec<String>,
    open: From,
    status: u16,
}

fn read(open: From, path: impl Into<String>, scopes: &[String]) -> Reading {
    let path = path.into();
    let path = if path.starts_with("/api") { path } else { format!("{QUEUE_API}{path}") };
    Reading { method: "GET", path, body: None, scopes: scopes.to_vec(), open, status: 200 }
}

impl Reading {
    fn post(self, body: Value) -> Self {
        Self { method: "POST", body: Some(body), ..self }
    }

    fn answers(self, status: u16) -> Self {
        Self { status, ..self }
    }

    async fn send(&self, rig: &Rig, authorization: Option<&str>) -> RawReply {
        let body = self.body.as_ref().map(|body| body.to_string().into_bytes());
        let raw = Raw::new(self.method, &self.path).json(body.as_deref());
        rig.send(&match authorization {
            Some(authorization) => raw.authorization(authorization),
            None => raw,
        })
        .await
    }

    async fn send_with(&self, rig: &Rig, scopes: &[String]) -> RawReply {
        let hash = self.body.as_ref().map(|body| body_hash(body.to_string().as_bytes()));
        let ext = Some(json!({"authorizedScopes": scopes}));
        let of = Signature::of(&rig.server);
        let signature = Signature { who: &rig.root, method: self.method, target: &self.path, hash, ext, ..of };
        self.send(rig, Some(&signature.header())).await
    }

    async fn gives(&self, what: &str, reply: RawReply) {
        let Self { method, path, .. } = self;
        assert_eq!(reply.status, self.status, "{what}: {method} {path}: {}", reply.text());
    }

    async fn is_refused(&self, what: &str, reply: RawReply) {
        let Self { method, path, .. } = self;
        let code = reply.json()["code"].as_str().unwrap_or_default().to_owned();
        assert_eq!((reply.status, code.as_str()), (403, DENIED), "{what}: {method} {path}: {}", reply.text());
    }
}

fn scopes<const N: usize>(of: [&str; N]) -> [String; N] {
    of.map(str::to_owned)
}

/// Every operation that reads: first the Queue API's, in the order of its table, then the other
/// services'.
fn readings(task: SlugId) -> Vec<Reading> {
    let of = |action: &str| [format!("queue:{action}:{task}")];
    let queue = |action: &str| [format!("queue:{action}:{QUEUE}")];
    let artifact = scopes(["queue:get-artifact:public/log"]);
    let listing = [format!("queue:list-artifacts:{task}")];
    let listing_run = [format!("queue:list-artifacts:{task}:0")];
    let counts = scopes(["queue:pending-count:acme/linux", "queue:claimed-count:acme/linux"]);
    let types = "/provisioners/acme/worker-types";
    let worker = format!("{types}/linux/workers/group/worker");
    let (ids, run) = (json!({"taskIds": [task]}), format!("/task/{task}/runs/0"));
    let group = of("list-task-group");
    vec![
        read(TheStart, format!("/task/{task}"), &of("get-task")),
        read(TheStart, "/tasks", &of("get-task")).post(ids.clone()),
        read(TheStart, "/tasks/status", &of("status")).post(ids),
        read(TheStart, format!("/task/{task}/status"), &of("status")),
        read(TheStart, format!("/task-group/{task}/list"), &group),
        read(TheStart, format!("/task-group/{task}"), &group),
        read(TheStart, format!("/task/{task}/dependents"), &of("list-dependent-tasks")),
        read(TheStart, format!("{run}/artifacts/public/log"), &artifact).answers(303),
        read(TheStart, format!("/task/{task}/artifacts/public/log"), &artifact).answers(303),
        read(TheStart, format!("{run}/artifacts"), &listing_run),
        read(TheStart, format!("/task/{task}/artifacts"), &listing),
        read(TheStart, format!("{run}/artifact-info/public/log"), &listing_run),
        read(TheStart, format!("/task/{task}/artifact-info/public/log"), &listing),
        read(TheStart, format!("{run}/artifact-content/public/log"), &artifact),
        read(TheStart, format!("/task/{task}/artifact-content/public/log"), &artifact),
        read(TheStart, "/provisioners", &scopes(["queue:list-provisioners"])),
        read(TheStart, "/provisioners/acme", &scopes(["queue:get-provisioner:acme"])),
        read(TheStart, "/pending/acme%2Flinux", &queue("pending-count")),
        read(Never, "/task-queues/acme%2Flinux/counts", &counts),
        read(Never, "/task-queues/counts", &counts).post(json!({"taskQueueIds": [QUEUE]})),
        read(Never, "/task-queues/acme%2Flinux/pending", &queue("pending-list")),
        read(Never, "/task-queues/acme%2Flinux/claimed", &queue("claimed-list")),
        read(TheStart, types, &scopes(["queue:list-worker-types:acme"])),
        read(TheStart, format!("{types}/linux"), &queue("get-worker-type")),
        read(Never, "/task-queues", &scopes(["queue:list-task-queues"])),
        read(Never, "/task-queues/acme%2Flinux", &queue("get-task-queue")),
        read(TheStart, format!("{types}/linux/workers"), &queue("list-workers")),
        read(TheStart, worker, &[format!("queue:get-worker:{QUEUE}/group/worker")]),
        read(TheStart, format!("{AUTH_API}/scopes/current"), &scopes(["auth:current-scopes"])),
        read(TheStart, format!("{AUTH_API}/scopes/expand"), &scopes(["auth:expand-scopes"]))
            .post(json!({"scopes": []})),
        read(Never, format!("{AUTH_API}/clients/"), &scopes(["auth:list-clients"])),
        read(Never, format!("{AUTH_API}/roles/"), &scopes(["auth:list-roles"])),
        read(Never, format!("{AUTH_API}/roles/anonymous"), &scopes(["auth:get-role:anonymous"])),
        read(TheStart, format!("{TENURE_API}/tasks/{task}/wait?seconds=1"), &of("status")),
        read(TheStart, format!("{PURGE_API}/list"), &scopes(["purge-cache:all-purge-requests"])),
        read(TheStart, format!("{PURGE_API}/acme%2Flinux"), &scopes(["purge-cache:purge-requests::acme/linux"])),
        read(Never, format!("{TENURE_API}/queues"), &scopes(["queue:list-task-queues"])),
        read(Never, format!("{TENURE_API}/events"), &scopes(["tenure:list-events"])),
    ]
}

async fn a_task(rig: &Rig) -> SlugId {
    let task = rig.create_one(QUEUE).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let body = json!({
        "storageType": "reference",
        "expires": minutes_from_now(60),
        "contentType": "text/plain",
        "url": "https://example.com/log",
    });
    let path = format!("{}/artifacts/public%2Flog", run_of(&claim));
    let who = credentials_of(&claim);
    ok(crate::rig::call(&mut rig.client(), &who, "POST", &path, Some(&body)).await);
    task
}

async fn role(rig: &Rig, args: &[&str]) -> String {
    let args = [&["role"], args].concat();
    let output = tenure(&args, &[("DATABASE_URL", rig.database.url()), ("TENURE_SECRET_KEY", &rig.secret_key)]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

async fn is_open(rig: &Rig) -> bool {
    let path = format!("{AUTH_API}/scopes/current");
    rig.send(&Raw::new("GET", &path)).await.status == 200
}

async fn until(rig: &Rig, open: bool) {
    eventually("a change of what everyone may read", async || (is_open(rig).await == open).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_everyone_may_read_can_be_closed_and_opened_again() {
    let rig = Rig::start().await;
    let task = a_task(&rig).await;
    let readings = readings(task);
    let nothing: &[String] = &[];
    for reading in &readings {
        let reply = reading.send(&rig, None).await;
        match reading.open {
            TheStart => reading.gives("from the start", reply).await,
            Never => reading.is_refused("from the start", reply).await,
        }
        reading.gives("with the scopes", reading.send_with(&rig, &reading.scopes).await).await;
    }
    assert!(role(&rig, &["show", "anonymous"]).await.contains("queue:status:*"));

    role(&rig, &["update", "anonymous", "--no-scopes"]).await;
    until(&rig, false).await;
    for reading in &readings {
        reading.is_refused("closed", reading.send(&rig, None).await).await;
        reading.is_refused("closed, with no scopes", reading.send_with(&rig, nothing).await).await;
        reading.gives("closed, with the scopes", reading.send_with(&rig, &reading.scopes).await).await;
        for missing in &reading.scopes {
            let rest: Vec<String> = reading.scopes.iter().filter(|scope| *scope != missing).cloned().collect();
            reading.is_refused(missing, reading.send_with(&rig, &rest).await).await;
        }
    }
    // Operations without scopes stay open: health and documentation.
    for path in [
        "/ping",
        "/__heartbeat__",
        "/__lbheartbeat__",
        "/livez",
        "/readyz",
        "/__version__",
        "/openapi.json",
        "/docs/",
        "/login",
    ] {
        assert_eq!(rig.send(&Raw::new("GET", path)).await.status, 200, "{path}");
    }

    by(&rig, &rig.root).post("/roles/anonymous", Some(a_role(&["queue:status:*", "auth:current-scopes"]))).await;
    until(&rig, true).await;
    for reading in &readings {
        let reply = reading.send(&rig, None).await;
        let open =
            reading.scopes.iter().all(|scope| scope.starts_with("queue:status:") || scope == "auth:current-scopes");
        if open { reading.gives("opened", reply).await } else { reading.is_refused("not opened", reply).await }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_keeps_changed_or_deleted_role() {
    let mut rig = Rig::start().await;
    let changes: [&[&str]; 2] = [&["update", "anonymous", "--no-scopes"], &["delete", "anonymous"]];
    for (number, change) in changes.into_iter().enumerate() {
        role(&rig, change).await;
        until(&rig, false).await;
        let again = Launch::on_database(rig.database.url(), &rig.secret_key);
        let name = format!("again-{number}");
        std::mem::replace(&mut rig.server, again.start(rig.folder.path(), &name).await).stop().await;
        assert!(!is_open(&rig).await, "after {change:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_reading_refuses_every_operation_with_scopes() {
    let rig = Rig::start().await;
    let task = a_task(&rig).await;
    role(&rig, &["delete", "anonymous"]).await;
    until(&rig, false).await;
    let document = rig.send(&Raw::new("GET", "/openapi.json")).await.json();
    let mut tried = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if operation["x-taskcluster-scopes"].is_null() {
                continue;
            }
            let mut filled = path.clone();
            for parameter in operation["parameters"].as_array().unwrap().iter().filter(|one| one["in"] == "path") {
                let name = parameter["name"].as_str().unwrap();
                let value = match name {
                    "taskId" | "taskGroupId" => task.to_string(),
                    "runId" => "0".to_owned(),
                    "name" => "public%2Flog".to_owned(),
                    "workerGroup" => "group".to_owned(),
                    "workerId" => "worker".to_owned(),
                    _ => parameter["example"].as_str().unwrap().replace('/', "%2F"),
                };
                filled = filled.replace(&format!("{{{name}}}"), &value);
            }
            let example = &operation["requestBody"]["content"]["application/json"]["example"];
            let body = (!example.is_null()).then(|| example.to_string().into_bytes());
            let reply = rig.send(&Raw::new(&method.to_uppercase(), &filled).json(body.as_deref())).await;
            // Where scopes depend on stored data, the data may be missing or in another state
            // first.
            assert!(
                [400, 403, 404, 409].contains(&reply.status),
                "{method} {filled}: {} {}",
                reply.status,
                reply.text()
            );
            tried += 1;
        }
    }
    assert!(tried > 50, "{tried}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_page_and_the_event_stream_close_with_it() {
    let rig = Rig::start().await;
    let root = by(&rig, &rig.root);
    let task = a_task(&rig).await;
    let failed = rig.create_one(QUEUE).await;
    assert_eq!(rig.call("POST", &format!("/task/{failed}/cancel"), None).await.status, 200);
    let pages = [
        "/".to_owned(),
        format!("/task/{task}"),
        format!("/group/{task}"),
        format!("/queue/{QUEUE}"),
        "/worker/group/worker".to_owned(),
        "/tasks".to_owned(),
    ];
    let get = async |path: &str| rig.send(&Raw::new("GET", path)).await;
    for path in &pages {
        assert_eq!(get(path).await.status, 200, "{path}");
    }
    // A stream opened to every caller also closes for its current readers.
    root.post("/roles/anonymous", Some(a_role(&["tenure:list-events", "auth:current-scopes"]))).await;
    let mut stream = Stream::try_open(&rig.server, None, "", None).await.ok().expect("the stream is open to everyone");
    role(&rig, &["update", "anonymous", "--no-scopes"]).await;
    let closed = Instant::now();
    loop {
        let left = STREAM_ENDS_WITHIN.saturating_sub(closed.elapsed());
        match tokio::time::timeout(left, stream.next()).await.expect("a stream that is closed ends") {
            Item::End | Item::Broken => break,
            Item::Event { .. } | Item::Other => {}
        }
    }
    let refused = Stream::try_open(&rig.server, None, "", None).await.err().expect("the stream is closed");
    refused.refused(403, DENIED);

    let names = [task.to_string(), failed.to_string(), QUEUE.to_owned(), "group/worker".to_owned()];
    for path in &pages {
        let page = get(path).await;
        assert!([403, 404].contains(&page.status), "{path}: {}", page.status);
        let text = page.text();
        assert!(text.contains("Log in"), "{path} leads to the login");
        for name in names.iter().filter(|name| !path.contains(name.as_str())) {
            assert!(!text.contains(name.as_str()), "{path} shows {name}: {text}");
        }
    }
    assert!(!get("/").await.text().contains("transaction"), "the overview shows nothing at all");
}

/// Every client also holds the role `anonymous`, so closing it affects clients too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_is_for_callers_with_credentials_too() {
    let rig = Rig::start().await;
    let small = rig.make_client("small", &[]).await;
    let path = format!("{AUTH_API}/scopes/current");
    let current = async || {
        let of = Signature::of(&rig.server);
        let header = Signature { who: &small, target: &path, ..of }.header();
        rig.send(&Raw::new("GET", &path).authorization(&header)).await
    };
    let open = current().await;
    assert!(open.json()["scopes"].as_array().unwrap().contains(&json!("queue:status:*")), "{}", open.text());
    role(&rig, &["update", "anonymous", "--no-scopes"]).await;
    eventually("closed for a client as well", async || (current().await.status == 403).then_some(())).await;
}
