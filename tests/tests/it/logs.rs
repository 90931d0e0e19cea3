//! Machine-readable logs: each field has one type and one form wherever it is logged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::rig::{
    DataFolder, Rig, call, claim_path, client_of, definition, embedded, eventually, minutes_from_now, new_task, worker,
};

const QUEUE: &str = "logs/queue";

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) | Value::Object(_) => "structure",
    }
}

fn lines_of(log: &str) -> Vec<BTreeMap<String, Value>> {
    let fields = |line: &str| serde_json::from_value(serde_json::from_str::<Value>(line).unwrap()["fields"].take());
    log.lines().filter(|line| line.starts_with('{')).map(|line| fields(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_fields_have_one_type_and_form() {
    let folder = DataFolder::new();
    let (server, root) = folder.start(&embedded().env("TENURE_LOG", "info,access=info")).await;
    let mut client = client_of(&server);
    let mut done = async |method: &str, path: &str, body: Option<Value>| {
        let answer = call(&mut client, &root, method, path, body.as_ref()).await;
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.body);
        answer.body
    };
    let policy = format!("{TENURE_API}/queues/logs%2Fqueue/policy");
    done("PUT", &policy, Some(json!({"completeTime": 60}))).await;
    done("DELETE", &policy, None).await;
    let rules = format!("{TENURE_API}/queues/logs%2Fqueue/keys/acme");
    done("PUT", &rules, Some(json!({"concurrency": 2}))).await;
    done("PUT", &format!("/task/{}", new_task()), Some(definition(QUEUE))).await;
    done("POST", &claim_path(QUEUE), Some(worker(1))).await;
    let starting = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "worker"});
    let session = done("POST", &format!("{TENURE_API}/sessions"), Some(starting)).await;
    let session = session["sessionId"].as_str().unwrap();
    done("DELETE", &format!("{TENURE_API}/sessions/{session}"), None).await;
    let quarantine = json!({"quarantineUntil": minutes_from_now(60), "quarantineInfo": "bad disk"});
    done("PUT", "/provisioners/logs/worker-types/queue/workers/group/worker", Some(quarantine)).await;
    done("POST", &format!("{TENURE_API}/workers/logs%2Fqueue/group/worker/removed"), None).await;
    let log = server.log();
    server.stop().await;

    let lines = lines_of(&log);
    let mut kinds: BTreeMap<&str, (&str, &Value)> = BTreeMap::new();
    for (name, value) in lines.iter().flatten() {
        let (first, other) = kinds.entry(name).or_insert((kind(value), value));
        assert_eq!(*first, kind(value), "{name} is {other} in one line and {value} in another");
        let is_a_number = value.as_str().is_some_and(|text| text.parse::<f64>().is_ok());
        assert!(!is_a_number, "{name} is a number as text: {value}");
    }
    for (name, documented) in documented() {
        if let Some((kind, value)) = kinds.get(name) {
            assert_eq!(*kind, documented, "{name} is {value}");
        }
    }
    let accesses: Vec<_> = lines.iter().filter(|line| line.contains_key("http.path")).collect();
    let created = accesses.iter().find(|line| line.get("operation") == Some(&json!("createTask"))).unwrap();
    assert_eq!(created["client.id"], json!("root"), "{created:?}");
    assert!(created["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{created:?}");
    for name in ["took_us", "bytes", "http.status", "postgres.pid"] {
        assert_eq!(kinds.get(name).map(|(kind, _)| *kind), Some("number"), "{name}");
    }
    let workers: Vec<_> = lines.iter().filter(|line| line.contains_key("worker.id")).collect();
    assert_eq!(workers.len(), 3, "a session begins and ends, a removal: {workers:?}");
    for line in workers {
        assert_eq!((&line["worker.group"], &line["worker.id"]), (&json!("group"), &json!("worker")), "{line:?}");
    }
    let audit: Vec<_> = lines.iter().filter(|line| line.contains_key("audit.id")).collect();
    let actions: Vec<_> = audit.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["putQueuePolicy", "deleteQueuePolicy", "putQueueKey", "quarantineWorker", "workerRemoved"]);
    assert!(audit.iter().all(|line| line["message"] == "audit" && line["client.id"] == "root"), "{audit:?}");
}

/// Types of the fields in the table of the document.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let (_, table) = include_str!("../../../docs/logs.md").split_once("## Fields").expect("the section");
    let mut found = BTreeMap::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let types: Vec<&str> = cells[1].split(", ").collect();
        for (n, name) in cells[0].split('`').skip(1).step_by(2).enumerate() {
            found.insert(name, *types.get(n).unwrap_or(&types[0]));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_runs_are_logged_one_by_one() {
    let rig = Rig::manual().await;
    let task = rig.create_one(QUEUE).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    rig.advance(1_500).await;
    let line = eventually("the run is logged", async || {
        let lines = lines_of(&rig.server.log());
        lines.into_iter().find(|line| line.contains_key("ended_by"))
    })
    .await;
    let fields = ["task.id", "run.id", "queue.id", "worker.group", "worker.id", "ended_by"].map(|name| &line[name]);
    assert_eq!(
        fields,
        [&json!(task), &json!(0), &json!(QUEUE), &json!("group"), &json!("worker"), &json!("lease")],
        "{line:?}"
    );
}

/// Rust files of the server, the client library and its worker, without tests.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !["tests", "target", "examples"].contains(&&*name) {
                walk(&path, found);
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    for folder in ["server", "worker-client"] {
        walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder), &mut found);
    }
    found
}

fn logging(source: &str) -> Vec<&str> {
    let begins = source.match_indices("tracing::").filter_map(|(at, path)| {
        let name = &source[at + path.len()..];
        let length = name.find(|c: char| !c.is_ascii_lowercase() && c != '_')?;
        name[length..].strip_prefix("!(")
    });
    let until_closed = |arguments: &'_ str| {
        let (mut depth, mut in_text, mut escaped) = (1, false, false);
        arguments.find(|c| {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = in_text,
                '"' => in_text = !in_text,
                '(' if !in_text => depth += 1,
                ')' if !in_text => depth -= 1,
                _ => {}
            }
            depth == 0
        })
    };
    begins.filter_map(|arguments| Some(&arguments[..until_closed(arguments)?])).collect()
}

/// Checks log lines that no request of the test above causes.
#[test]
fn logged_numbers_are_numbers_and_workers_have_a_group() {
    let mut seen = 0;
    for (path, source) in sources() {
        for arguments in logging(&source) {
            seen += 1;
            let wrong = |why: &str| format!("{}: {why}: tracing!({arguments})", path.display());
            // u128 is text in JSON.
            for long in ["as_micros()", "as_millis()", "as_nanos()"] {
                assert!(!arguments.contains(long), "{}", wrong("text in JSON"));
            }
            let run = arguments.split_once("run.id = ").map_or("", |(_, value)| value);
            let value = run.split([',', '\n']).next().unwrap_or_default();
            let is_text = value.starts_with(['%', '?']) || value.contains("display") || value.contains("debug");
            assert!(!is_text, "{}", wrong("run.id is text"));
            let (has_id, has_group) = (arguments.contains("worker.id ="), arguments.contains("worker.group ="));
            assert_eq!(has_id, has_group, "{}", wrong("worker.id without worker.group"));
        }
    }
    assert!(seen > 150, "{seen} lines are logged");
}
