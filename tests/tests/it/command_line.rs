//! `tenure task`, `tenure group` and `tenure queue` as people run them, with a real server and a
//! real worker.

mod events;
mod interrupted;
mod logs;
mod options;
mod outcomes;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::binary;

use crate::policy_commands::{account, answer, done, run};
use crate::rig::{Rig, eventually, finish, new_folder, new_task, ok, refusal, stderr, stdout, tenure};

const QUEUE: &str = "command/line";
const QUEUES: &str = "PENDING  WAITING  RUNNABLE  CLAIMED  DELAYED  PAUSED  QUEUE\n";

struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // A failed test must leave no process behind. The worker may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_worker(rig: &Rig) -> Worker {
    let mut command = Command::new(binary().with_file_name("tenure-worker"));
    command
        .args([
            "run",
            "--task-queue",
            QUEUE,
            "--worker-group",
            "g",
            "--worker-id",
            "w",
            "--capacity",
            "2",
            "--work-dir",
        ])
        .arg(rig.folder.path().join("work"))
        .envs(account(rig))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Worker(command.spawn().expect("tenure-worker is beside tenure: cargo build -p tenure-worker"))
}

async fn created(rig: &Rig, args: &[&str]) -> String {
    let mut words = vec!["task", "create", "-q", QUEUE, "--json"];
    words.extend(args);
    let answer: Value = serde_json::from_str(&done(rig, &words).await).unwrap();
    answer["tasks"][0]["taskId"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_need_no_certificates_for_http() {
    let rig = Rig::start().await;
    let (folder, file) = (rig.folder.path().join("certificates"), rig.folder.path().join("certificates.pem"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&file, "").unwrap();
    let mut env = account(&rig).to_vec();
    env.extend([("SSL_CERT_DIR", folder.to_str().unwrap()), ("SSL_CERT_FILE", file.to_str().unwrap())]);
    let output = tenure(&["queue", "list"], &env).await;
    assert!(output.status.success(), "{}", stderr(&output));
    env.push(("TASKCLUSTER_ROOT_URL", "https://127.0.0.1:1"));
    let refused = stderr(&tenure(&["queue", "list"], &env).await);
    assert!(refused.contains("CA certificates"), "{refused}");
}

/// Stops with it.
struct TlsServer(Child);

impl Drop for TlsServer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts a server with a self-signed certificate that answers every request with a page.
async fn start_tls(folder: &Path) -> (TlsServer, PathBuf, String) {
    let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1"]);
    // A certificate authority is no valid server certificate.
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let made = openssl.arg("-out").arg(&certificate).arg("-keyout").arg(&key).output().expect("scripts/setup --tests");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut serving = Command::new("openssl");
    serving.args(["s_server", "-quiet", "-www", "-accept", &address, "-cert"]).arg(&certificate).arg("-key").arg(&key);
    let serving = serving.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let server = TlsServer(serving);
    eventually("it listens", async || std::net::TcpStream::connect(&address).ok()).await;
    (server, certificate, format!("https://{address}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_certificate_is_one_line_and_ca_trusts_it() {
    let folder = new_folder();
    let (_server, certificate, root_url) = start_tls(folder.path()).await;
    let env =
        [("TASKCLUSTER_ROOT_URL", root_url.as_str()), ("TASKCLUSTER_CLIENT_ID", ""), ("TASKCLUSTER_ACCESS_TOKEN", "")];
    let output = tenure(&["queue", "list"], &env).await;
    let refused = stderr(&output);
    assert!(!output.status.success() && refused.lines().count() == 1, "{refused}");
    assert!(refused.contains(&format!("the certificate of {root_url} is not trusted")), "{refused}");
    assert!(refused.contains("--ca"), "{refused}");
    let trusted = stderr(&tenure(&["queue", "list", "--ca", certificate.to_str().unwrap()], &env).await);
    assert!(trusted.contains("is not one of Tenure"), "{trusted}");
    let output = tenure(&["queue", "list", "--ca", "/dev/null"], &env).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it has no certificate"), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_run_and_waited_for() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    let file = rig.folder.path().join("made");
    let command = format!("echo made > {}", file.display());
    let output =
        run(&rig, &["task", "create", "-q", QUEUE, "--name", "make it", "--wait", "--", "sh", "-c", &command]).await;
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "made\n");
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("group  ") || lines[0].starts_with("group "), "{text}");
    assert!(lines[1].starts_with("TASK ") && lines[2].contains("  completed  "), "{text}");
    let progress = stderr(&output);
    let group = lines[0].strip_prefix("group ").unwrap().trim();
    assert_eq!(progress.lines().next(), Some(&*format!("group {group}  {}/group/{group}", rig.server.root_url())));
    assert_eq!(progress.lines().last(), Some(&*format!("make it ({})  completed", &group[..8])), "{progress}");
    assert!(!progress.contains('\x1b'), "no terminal, no codes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_fails_fails_the_wait() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    let output = run(&rig, &["task", "create", "-q", QUEUE, "--wait", "--", "false"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("  failed  "), "{}", stdout(&output));
    let (good, bad) = (created(&rig, &["--", "true"]).await, created(&rig, &["--", "false"]).await);
    let output = run(&rig, &["task", "wait", &good, &bad]).await;
    assert_eq!(output.status.code(), Some(1));
    let (text, progress) = (stdout(&output), stderr(&output));
    assert!(text.contains(&format!("{good}  completed")) && text.contains(&format!("{bad}  failed")), "{text}");
    assert!(progress.contains(&format!("true ({})  completed\n", &good[..8])), "{progress}");
    let failed = progress.lines().find(|line| line.starts_with(&format!("false ({})  Failed", &bad[..8])));
    assert!(failed.is_some_and(|line| line.contains(" on g/w after ")), "{progress}");
    for group in [&good, &bad] {
        assert!(progress.contains(&format!("group {group}  {}/group/{group}\n", rig.server.root_url())), "{progress}");
    }
    assert_eq!(run(&rig, &["task", "wait", &good]).await.status.code(), Some(0));
    let json = answer(&rig, &["task", "wait", &good]).await;
    assert_eq!(
        (&json["tasks"][0]["resolved"], &json["tasks"][0]["status"]["state"]),
        (&Value::Bool(true), &"completed".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_from_a_file_runs_in_its_order() {
    let rig = Rig::start().await;
    let file = rig.folder.path().join("order");
    let append = |word: &str| format!(r#"["sh", "-c", "echo {word} >> {}"]"#, file.display());
    let graph = format!(
        r#"{{"tasks": [
            {{"name": "third", "taskQueueId": "{QUEUE}", "dependencies": ["second"], "payload": {{"command": [{}]}}}},
            {{"name": "first", "taskQueueId": "{QUEUE}", "payload": {{"command": [{}]}}}},
            {{"name": "second", "taskQueueId": "{QUEUE}", "dependencies": ["first"], "payload": {{"command": [{}]}}}}
        ]}}"#,
        append("third"),
        append("first"),
        append("second")
    );
    let path = rig.folder.path().join("graph.json");
    std::fs::write(&path, graph).unwrap();
    let _worker = start_worker(&rig);
    let output = run(&rig, &["task", "create", "--wait", "--json", "--file", path.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "first\nsecond\nthird\n");
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&answer["tasks"][0]["name"], &answer["tasks"][0]["status"]["state"]),
        (&"third".into(), &"completed".into())
    );
    let last = answer["tasks"][0]["taskId"].as_str().unwrap();
    let after = created(&rig, &["--after", last, "--", "true"]).await;
    assert_eq!(run(&rig, &["task", "wait", &after]).await.status.code(), Some(0));
    let group = answer["taskGroupId"].as_str().unwrap();
    let list = done(&rig, &["task", "list", "--group", group]).await;
    assert_eq!((list.lines().count(), list.matches("  completed  ").count()), (4, 3), "{list}");
    let shown = done(&rig, &["group", "show", group]).await;
    assert!(shown.contains("tasks          3\n") && shown.contains("  completed    3"), "{shown}");
    let mut input = Command::new(binary());
    input
        .args(["task", "create", "--json", "--file", "-"])
        .envs(account(&rig))
        .stdin(std::fs::File::open(&path).unwrap());
    let output = finish(input).await;
    let again: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_ne!(again["taskGroupId"], answer["taskGroupId"], "another call is another graph");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_shown_with_the_beginning_of_its_checkpoint() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "true"]).await;
    rig.claim(QUEUE, 1).await;
    let path = format!("{}/tasks/{task}/runs/0/checkpoint", tenure_tests::http::TENURE_API);
    for (checkpoint, shown) in [
        (json!({"done": 3, "of": 12}), r#"checkpoint     {"done":3,"of":12}  (run 0, "#.to_owned()),
        (json!("x".repeat(10_000)), format!("checkpoint     \"{}…  (run 0, ", "x".repeat(399))),
    ] {
        ok(rig.call("PUT", &path, Some(&json!({"checkpoint": checkpoint}))).await);
        let text = done(&rig, &["task", "show", &task]).await;
        assert!(text.contains(&shown), "{text}");
        let json = answer(&rig, &["task", "show", &task]).await;
        assert_eq!((&json["checkpoint"]["runId"], &json["checkpoint"]["checkpoint"]), (&json!(0), &checkpoint));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_groups_and_queues_are_shown_and_changed() {
    let rig = Rig::start().await;
    let options = ["--name", "shown", "--priority", "high", "--retries", "1", "--deadline", "2h", "--", "make", "all"];
    let task = created(&rig, &options).await;
    let text = done(&rig, &["task", "show", &task]).await;
    for line in [
        "name           shown",
        "state          pending",
        "priority       high",
        "retries left   1",
        "payload        {\"command\":[[\"make\",\"all\"]]}",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let shown = answer(&rig, &["task", "show", &task]).await;
    assert_eq!(
        (&shown["status"]["taskId"], &shown["task"]["metadata"]["name"]),
        (&task.clone().into(), &"shown".into())
    );
    assert!(!text.contains("checkpoint"), "{text}");
    let counts = format!("{QUEUES}1        0        1         0        0        -       command/line\n");
    assert_eq!(done(&rig, &["queue", "list"]).await, counts);
    let text = done(&rig, &["queue", "show", QUEUE]).await;
    for line in ["queue            command/line", "ready            1", "runnable         1", "paused           no"] {
        assert!(text.lines().any(|one| one == line), "{line}:\n{text}");
    }
    let shown = answer(&rig, &["queue", "show", QUEUE]).await;
    let mut expected = rig.call("GET", &format!("{TENURE_API}/queues/{QUEUE}"), None).await.body;
    (expected["pendingTasks"], expected["claimedTasks"]) = (json!(1), json!(0));
    assert_eq!(shown, expected);
    assert_eq!((&shown["pending"], &shown["delayed"]), (&json!(1), &json!(0)));
    assert_eq!(answer(&rig, &["queue", "list"]).await["queues"][0]["taskQueueId"], QUEUE);
    let cancelled = done(&rig, &["task", "cancel", &task]).await;
    assert!(cancelled.contains(&format!("{task}  exception  1     canceled")), "{cancelled}");
    assert_eq!(run(&rig, &["task", "wait", &task]).await.status.code(), Some(1));
    let rerun = done(&rig, &["task", "rerun", &task]).await;
    assert!(rerun.contains(&format!("{task}  pending")), "{rerun}");
    let open = run(&rig, &["group", "cancel", &task]).await;
    assert!(refusal(&open, 1).contains("seal"), "a group that is cancelled must be sealed first");
    assert!(done(&rig, &["group", "seal", &task]).await.starts_with(&format!("Group {task} is sealed since ")));
    assert!(done(&rig, &["group", "cancel", &task]).await.starts_with("1 of the 1 tasks"));
    assert!(answer(&rig, &["group", "show", &task]).await["sealed"].is_string());
    assert!(done(&rig, &["group", "show", &task]).await.contains("exception    1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_one_line_and_the_exit_code_attributes_it() {
    let rig = Rig::start().await;
    let missing = new_task().to_string();
    for (args, expected) in [
        (&["task", "show", &missing][..], "does not exist (404 ResourceNotFound)"),
        (&["task", "wait", &missing], "does not exist"),
        (&["task", "cancel", &missing], "does not exist"),
        (&["task", "rerun", &missing], "does not exist"),
        (&["task", "list", "--group", &missing], "does not exist"),
        (&["group", "seal", &missing], "does not exist"),
        (&["task", "create", "-q", QUEUE, "--after", &missing, "--", "true"], "create them first"),
        (&["task", "create", "-q", QUEUE, "--retries", "99", "--", "true"], "`retries`"),
    ] {
        let line = refusal(&run(&rig, args).await, 1);
        assert!(line.contains(expected), "{args:?}: {line}");
    }
    let missing = rig.folder.path().join("missing");
    let missing = missing.to_str().unwrap();
    for (args, expected) in [
        (&["task", "create", "-q", QUEUE][..], "--queue"),
        (&["task", "create", "-q", "my_queue", "--", "true"], "is 'my_queue'"),
        (&["task", "create", "--file", missing], "cannot be read"),
        (&["task", "wait", "x"], "is 'x'"),
        (&["task"], "no command given"),
        (&["queue", "show", "x_y"], "is 'x_y'"),
    ] {
        let line = refusal(&run(&rig, args).await, 2);
        assert!(args.len() < 4 || args[1] == "create" || line.contains(expected), "{args:?}: {line}");
    }
    let wrong = [account(&rig)[0], account(&rig)[1], ("TASKCLUSTER_ACCESS_TOKEN", "wrong")];
    assert!(refusal(&tenure(&["queue", "list"], &wrong).await, 1).contains("TASKCLUSTER_ACCESS_TOKEN"));
    let half = refusal(&tenure(&["queue", "list"], &account(&rig)[..2]).await, 2);
    assert!(half.contains("--access-token (TASKCLUSTER_ACCESS_TOKEN) is missing"), "{half}");
    let none = refusal(&tenure(&["queue", "list", "--data-dir", missing], &[]).await, 2);
    assert!(none.contains("root-credentials.json cannot be read"), "{none}");
    let [_, id, token] = account(&rig);
    let away = tenure(&["queue", "list"], &[("TASKCLUSTER_ROOT_URL", "http://127.0.0.1:9"), id, token]).await;
    assert!(refusal(&away, 1).contains("http://127.0.0.1:9 does not answer"), "{}", stderr(&away));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_data_directory_has_the_server_and_the_client() {
    let rig = Rig::start().await;
    let data = rig.folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let [(_, root_url), (_, id), (_, token)] = account(&rig);
    let credentials = serde_json::json!({"rootUrl": root_url, "clientId": id, "accessToken": token});
    std::fs::write(data.join("root-credentials.json"), credentials.to_string()).unwrap();
    let output = tenure(&["queue", "list", "--data-dir", data.to_str().unwrap()], &[]).await;
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), QUEUES.to_owned()), "{}", stderr(&output));
}

/// Ids that other programs may have generated: with a leading dash, and like options.
fn foreign_ids() -> impl Iterator<Item = String> {
    ["-", "--", "-h", "-V", "-q", "-hV", "--a"].into_iter().map(|start| {
        let id = format!("{start}{}", &new_task().to_string()[start.len()..]);
        assert!(id.parse::<tenure_api::ids::TaskId>().is_ok(), "{id}");
        id
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_begins_with_a_dash_is_taken_in_every_position() {
    let rig = Rig::start().await;
    let ids: Vec<String> = foreign_ids().collect();
    for id in &ids {
        let task = id.parse().unwrap();
        assert!(rig.create(task, &crate::rig::definition(QUEUE)).await.is_success());
        assert_eq!(answer(&rig, &["task", "show", id]).await["status"]["taskId"], *id);
        assert_eq!(answer(&rig, &["task", "list", "--group", id]).await["taskGroupId"], *id);
        assert_eq!(answer(&rig, &["group", "show", id]).await["taskGroupId"], *id);
        assert_eq!(answer(&rig, &["group", "seal", id]).await["taskGroupId"], *id);
        assert_eq!(answer(&rig, &["group", "cancel", id]).await["taskGroupId"], *id);
        assert_eq!(answer(&rig, &["task", "rerun", id]).await["tasks"][0]["status"]["state"], "pending");
    }
    let words: Vec<&str> = ids.iter().map(String::as_str).collect();
    let after = [&["--after"], &words[..], &["--name", "n", "--", "--after", "-x"]].concat();
    let task = created(&rig, &after).await;
    let mut wanted = ids.clone();
    let made = answer(&rig, &["task", "show", &task]).await;
    let mut dependencies: Vec<String> = serde_json::from_value(made["task"]["dependencies"].clone()).unwrap();
    wanted.sort();
    dependencies.sort();
    assert_eq!(dependencies, wanted);
    assert_eq!(made["task"]["payload"]["command"], serde_json::json!([["--after", "-x"]]));
    let cancelled = answer(&rig, &[&["task", "cancel"], &words[..]].concat()).await;
    assert_eq!(cancelled["tasks"].as_array().unwrap().len(), ids.len());
    let (first, rest) = words.split_at(2);
    let waited = run(&rig, &[&["task", "wait"], first, &["--client-id", "root"], rest, &["--json"]].concat()).await;
    let waited: Value = serde_json::from_str(&stdout(&waited)).unwrap();
    let waited: Vec<&Value> =
        waited["tasks"].as_array().unwrap().iter().map(|task| &task["status"]["taskId"]).collect();
    assert_eq!(waited, ids.iter().collect::<Vec<_>>(), "in the order in which they were given");
    answer(&rig, &["queue", "show", "-prov/linux"]).await;
    for args in [&["create", "-ci", "--scope", "-x"][..], &["show", "-ci"], &["reset-token", "-ci"], &["delete", "-ci"]]
    {
        let output = rig.administrate(args).await;
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_ids_never_begin_with_a_dash() {
    let rig = Rig::start().await;
    // Without the rule, 1 in 64 would begin with a dash, and all would pass with a probability of 1
    // in 10,000.
    let body = serde_json::json!({"tasks": vec![serde_json::json!({"taskQueueId": QUEUE, "payload": {}}); 600]});
    let path = rig.folder.path().join("many.json");
    std::fs::write(&path, body.to_string()).unwrap();
    let made = answer(&rig, &["task", "create", "--file", path.to_str().unwrap()]).await;
    let ids = made["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].as_str().unwrap());
    assert!(ids.chain([made["taskGroupId"].as_str().unwrap()]).all(|id| !id.starts_with(['-', '_'])), "{made}");
    assert!((0..600).all(|_| !new_task().to_string().starts_with('-')));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slip_on_the_command_line_gets_a_suggestion() {
    for (args, expected) in [
        (&["task", "create", "-q", "a/b", "echo", "hello"][..], "write two dashes before the command"),
        (&["task", "create", "-q", "a/b", "sh", "-c", "x"], "write two dashes before the command"),
        (&["task", "create", "-q", "a/b", "--wait", "-c", "x"], "write two dashes before the command"),
        (&["task", "run", "-q", "a/b", "echo", "hello"], "as in: tenure task run --queue acme/linux -- echo hello"),
        (&["task", "run", "-q", "a/b", "sh", "-c", "x"], "write two dashes before the command"),
        (&["task", "command", "9HrBC1jMQ3KlZw4CssPUeQ", "run", "now"], "see --help"),
        (&["task", "create", "-q", "a/b", "--nmae", "n", "--", "x"], "did you mean --name?"),
        (&["task", "create", "-q", "a/b", "--", "x", "--file"], "is missing"),
        (&["serve", "--listne", "x"], "did you mean --listen?"),
        (&["serv"], "did you mean server, serve?"),
        (&["client", "lits"], "did you mean list?"),
        (&["serve", "--listen", "localhost"], "the port is missing: write 127.0.0.1:8080 or localhost:8080"),
        (&["serve", "--listen", ":8080"], "write 127.0.0.1:8080 for this machine alone, or 0.0.0.0:8080"),
        (&["serve", "--listen", "::1:8080"], "write [::1]:8080"),
        (&["serve", "--listen", "localhost:http"], "the port is no number"),
        (&["serve", "--listen", "tenure.invalid:8080"], "the host name is not known"),
    ] {
        let line =
            refusal(&tenure(args, &[("TASKCLUSTER_CLIENT_ID", "half"), ("TENURE_DATA_DIR", "/nowhere")]).await, 2);
        assert!(line.contains(expected), "{args:?}: {line}");
    }
}
