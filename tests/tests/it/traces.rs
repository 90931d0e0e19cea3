//! Traces of tasks and requests, sent to a collector.

use serde_json::json;
use tenure_api::ids::SlugId;
use tenure_tests::collector::{Collected, Collector, hex};
use tenure_tests::server::{Launch, Server};

use crate::rig::{Raw, Rig, definition, eventually, new_folder, new_task, ok, worker_program};

const QUEUE: &str = "traced/linux";
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
const CALLERS_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLERS_SPAN: [u8; 8] = [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];

fn traced(launch: Launch, endpoint: &str, ratio: &str, name: &str) -> Launch {
    launch
        .flag("--otlp-endpoint", endpoint)
        .flag("--trace-ratio", ratio)
        .flag("--server-name", name)
        .env("TENURE_LOG", "info,access=info")
}

struct Pair {
    rig: Rig,
    second: Server,
    collector: Collector,
}

impl Pair {
    async fn start(ratio: &str) -> Self {
        let collector = Collector::start().await;
        let endpoint = collector.endpoint();
        let rig = Rig::start_with(|launch| traced(launch, &endpoint, ratio, "first")).await;
        let second = traced(Launch::on_database(rig.database.url(), &rig.secret_key), &endpoint, ratio, "second");
        let second = second.start(rig.folder.path(), "second").await;
        Self { rig, second, collector }
    }

    /// Waits for a span of the trace.
    async fn span(&self, trace: &str, name: &str) -> Collected {
        let is_wanted = |found: &Collected| found.trace() == trace && found.span.name == name;
        eventually(name, async || self.collector.spans().into_iter().find(is_wanted)).await
    }
}

fn trace_of(task: SlugId) -> String {
    hex(task.uuid().as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_is_one_trace_over_two_servers_and_a_worker() {
    let pair = Pair::start("1").await;
    let (rig, folder) = (&pair.rig, new_folder());
    let seen = folder.path().join("traceparent");
    let (task, mut body) = (new_task(), definition(QUEUE));
    let script = format!("printf %s \"$TRACEPARENT\" > {}", seen.display());
    body["payload"] = json!({"command": [["/bin/sh", "-c", script]]});
    let body = body.to_string().into_bytes();
    let create = rig.signed(&rig.root, "PUT", &format!("/task/{task}"), Some(&body)).header("traceparent", CALLER);
    let created = rig.send(&create).await;
    assert_eq!(created.status, 200, "{}", created.text());
    assert_eq!(created.header("x-for-trace-id"), Some(CALLERS_TRACE));

    let mut worker = worker_program(pair.second.root_url(), &rig.root, QUEUE, "worker", folder.path());
    let mut worker = worker.spawn().expect("build it with `cargo build --workspace`");
    let trace = trace_of(task);
    let submit = pair.span(&trace, "submit").await;
    let wait = pair.span(&trace, "wait").await;
    let run = pair.span(&trace, "run 0").await;
    let report = pair.span(&trace, "report").await;
    worker.kill().await.unwrap();

    assert_eq!((submit.server.as_str(), run.server.as_str()), ("first", "second"));
    assert_eq!(submit.span.parent_span_id, Vec::<u8>::new());
    for (child, parent) in [(&wait, &submit), (&run, &submit), (&report, &run)] {
        assert_eq!(child.span.parent_span_id, parent.span.span_id, "{}", child.span.name);
    }
    assert_eq!(submit.links(), [CALLERS_SPAN.to_vec()]);
    let times = [&submit.span, &wait.span, &run.span].map(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
    assert!(times[0].1 <= times[1].0 && times[1].0 <= times[1].1 && times[1].1 == times[2].0, "{times:?}");
    let facts = ["task.id", "run.id", "worker.group", "worker.id"].map(|key| run.attribute(key));
    assert_eq!(facts, [task.to_string().as_str(), "0", "group", "worker"]);
    assert_eq!((report.attribute("reason").as_str(), run.span.status.clone()), ("completed", None));
    let traceparent = std::fs::read_to_string(&seen).unwrap();
    assert_eq!(traceparent, format!("00-{trace}-{}-01", hex(&run.span.span_id)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_does_not_see_the_traceparent_of_its_worker() {
    let (rig, folder) = (Rig::start().await, new_folder());
    let seen = folder.path().join("traceparent");
    let (task, mut body) = (new_task(), definition(QUEUE));
    let script = format!("printf %s \"${{TRACEPARENT-none}}\" > {0}.new && mv {0}.new {0}", seen.display());
    body["payload"] = json!({"command": [["/bin/sh", "-c", script]]});
    ok(rig.create(task, &body).await);
    let mut worker = worker_program(rig.server.root_url(), &rig.root, QUEUE, "worker", folder.path());
    let mut worker = worker.env("TRACEPARENT", CALLER).spawn().expect("build it with `cargo build --workspace`");
    let found = eventually("the task has run", async || std::fs::read_to_string(&seen).ok()).await;
    worker.kill().await.unwrap();
    assert_eq!(found, "none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_is_a_span_of_its_caller_and_links_to_its_tick() {
    let pair = Pair::start("1").await;
    let rig = &pair.rig;
    let body = definition(QUEUE).to_string().into_bytes();
    let create = rig.signed(&rig.root, "PUT", &format!("/task/{}", new_task()), Some(&body));
    assert_eq!(rig.send(&create.header("traceparent", CALLER)).await.status, 200);
    let request = pair.span(CALLERS_TRACE, "createTask").await;
    assert_eq!(request.span.parent_span_id, CALLERS_SPAN);
    assert_eq!(request.attribute("http.response.status_code"), "200");
    let [tick] = request.span.links.as_slice() else { panic!("{request:?}") };
    let tick = pair.span(&hex(&tick.trace_id), "tick").await;
    assert_eq!(request.links(), std::slice::from_ref(&tick.span.span_id));
    assert!(tick.links().contains(&request.span.span_id), "{tick:?}");
    let is_access = |line: &str| line.contains("createTask") && line.contains(CALLERS_TRACE);
    eventually("the line in the log", async || rig.server.log().lines().any(is_access).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_request_links_to_no_tick() {
    let pair = Pair::start("1").await;
    let rig = &pair.rig;
    let task = new_task();
    let mut body = definition(QUEUE);
    ok(rig.create(task, &body).await);
    body["metadata"]["name"] = json!("another one");
    let body = body.to_string().into_bytes();
    let create = rig.signed(&rig.root, "PUT", &format!("/task/{task}"), Some(&body));
    assert_eq!(rig.send(&create.header("traceparent", CALLER)).await.status, 409);
    let request = pair.span(CALLERS_TRACE, "createTask").await;
    assert_eq!(request.attribute("http.response.status_code"), "409");
    assert_eq!(request.links(), Vec::<Vec<u8>>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_caller_with_credentials_chooses_recorded_trace() {
    const TRACE: &str = "0af7651916cd43dd84ffffffffffffff";
    let pair = Pair::start("0.000001").await;
    let rig = &pair.rig;
    let chosen = format!("00-{TRACE}-b7ad6b7169203331-01");
    for _ in 0..10 {
        let ping = Raw::new("GET", "/api/queue/v1/ping").header("traceparent", &chosen);
        assert_eq!(rig.send(&ping).await.status, 200);
    }
    let body = definition(QUEUE).to_string().into_bytes();
    let create = rig.signed(&rig.root, "PUT", &format!("/task/{}", new_task()), Some(&body));
    assert_eq!(rig.send(&create.header("traceparent", &chosen)).await.status, 200);
    pair.span(TRACE, "createTask").await;
    // Spans are sent in order.
    let spans = pair.collector.spans().into_iter().filter(|found| found.trace() == TRACE);
    assert_eq!(spans.map(|found| found.span.name).collect::<Vec<_>>(), ["createTask"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_run_ends_its_trace_and_unrecorded_task_has_none() {
    let pair = Pair::start("0.5").await;
    let rig = &pair.rig;
    // The last 56 bits of the id decide.
    let [recorded, other] = [0xff, 0x00].map(|byte| {
        let mut bytes = *new_task().uuid().as_bytes();
        bytes[9] = byte;
        SlugId::from_random(bytes)
    });
    for task in [other, recorded] {
        ok(rig.create(task, &definition(QUEUE)).await);
    }
    let claims = rig.claim(QUEUE, 2).await;
    assert_eq!(claims.len(), 2);
    for claim in &claims {
        let is_recorded = claim["status"]["taskId"] == json!(recorded);
        let traceparent = claim["traceparent"].as_str().unwrap();
        assert!(traceparent.ends_with(if is_recorded { "-01" } else { "-00" }), "{traceparent}");
    }
    for task in [other, recorded] {
        ok(rig.call("POST", &format!("/task/{task}/cancel"), None).await);
    }
    let run = pair.span(&trace_of(recorded), "run 0").await;
    let report = pair.span(&trace_of(recorded), "report").await;
    assert_eq!(report.span.parent_span_id, run.span.span_id);
    assert_eq!(report.attribute("reason"), "canceled");
    assert_eq!(run.span.status.map(|status| status.message).as_deref(), Some("canceled"));
    // Spans are sent in order.
    assert!(pair.collector.spans().iter().all(|found| found.trace() != trace_of(other)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_collector_loses_spans_and_nothing_else() {
    // Nothing listens there.
    let rig = Rig::start_with(|launch| traced(launch, "http://127.0.0.1:1", "1", "first")).await;
    let failed = async || {
        let metrics = rig.send(&Raw::new("GET", "/metrics")).await.text();
        let line = metrics.lines().find_map(|line| line.strip_prefix("tenure_trace_spans_total{outcome=\"failed\"} "));
        line.expect("the counter begins at 0").parse::<u64>().unwrap()
    };
    let mut before = failed().await;
    for _ in 0..2 {
        rig.create_one(QUEUE).await;
        let last = before;
        before = eventually("spans are lost", async || Some(failed().await).filter(|now| *now > last)).await;
    }
    let warned = rig.server.log().matches("spans could not be sent").count();
    assert_eq!(warned, 1, "{}", rig.server.log_tail());
}
