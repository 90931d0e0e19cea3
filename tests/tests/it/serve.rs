//! `tenure serve` for an operator: starts and refusals, and an embedded database that dies.

use std::process::Output;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::Account;
use tenure_tests::server::{Launch, Server, fresh_secret_key};

use crate::faults_of_the_database::create_until_it_works;
use crate::fleet::{NOTIFIED_WITHIN, another_without_fallbacks, until_they_hear, wake};
use crate::rig::{
    DataFolder, Rig, call, call_patiently, claim, client_of, credentials_of, definition, embedded, eventually, finish,
    new_folder, new_task, ok, postmaster_of, refusal, run_of, send, stderr, stdout, tenure,
};

const QUEUE: &str = "serve/queue";
/// The uid of the user `nobody` on every system that has it.
const NOBODY: u32 = 65_534;

async fn create(server: &Server, who: &Credentials, queue: &str) -> SlugId {
    let task = new_task();
    let path = format!("/task/{task}");
    ok(call_patiently(&mut client_of(server), who, "PUT", &path, Some(&definition(queue))).await);
    task
}

async fn state(server: &Server, who: &Credentials, task: SlugId) -> String {
    let path = format!("/task/{task}/status");
    let answer = ok(call_patiently(&mut client_of(server), who, "GET", &path, None).await);
    answer["status"]["state"].as_str().expect("a state").to_owned()
}

async fn counts(server: &Server, who: &Credentials) -> (Value, Value) {
    let answer = call(&mut client_of(server), who, "GET", "/task-queues/serve%2Fqueue/counts", None).await;
    (answer.body["pendingTasks"].clone(), answer.body["claimedTasks"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_server_makes_its_root_client_and_keeps_its_tasks() {
    use std::os::unix::fs::PermissionsExt as _;
    let data_folder = DataFolder::new();
    let (server, root) = data_folder.start(&embedded()).await;
    assert_eq!(root.client_id, "root");
    let mode = std::fs::metadata(data_folder.data_dir().join("root-credentials.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(server.log_tail().contains("embedded mode"), "{}", server.log_tail());
    let task = create(&server, &root, QUEUE).await;

    let second = refusal(&finish(embedded().command(&data_folder.data_dir())).await, 1);
    assert!(second.contains("in use by another tenure process"), "{second}");
    assert!(second.contains(&server.pid().to_string()), "{second}");
    assert_eq!(state(&server, &root, task).await, "pending");
    administrate_beside(&data_folder, &server).await;

    assert!(server.stop().await.success());
    assert_eq!(postmaster_of(&data_folder.data_dir()), None, "PostgreSQL stops with its server");
    let (server, again) = data_folder.start(&embedded()).await;
    assert_eq!(again, root, "a restart changes no token");
    assert_eq!(state(&server, &root, task).await, "pending");
    assert_eq!(claim(&mut client_of(&server), &root, QUEUE, 1).await.len(), 1);
    assert!(server.stop().await.success());
}

/// Runs `tenure client` and `tenure migrate` beside the server that runs the cluster.
async fn administrate_beside(data_folder: &DataFolder, server: &Server) {
    let data_dir = data_folder.data_dir();
    let run = async |args: &[&str]| tenure(args, &[("TENURE_DATA_DIR", data_dir.to_str().unwrap())]).await;
    let created = run(&["client", "create", "ci", "--scope", "queue:claimed-count:*", "--json"]).await;
    assert!(created.status.success(), "{}", stderr(&created));
    let who = serde_json::from_slice::<Account>(&created.stdout).unwrap().credentials;
    let reply = send(server, &who, "GET", "/task-queues/serve%2Fqueue/counts", None).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let listed = run(&["client", "list"]).await;
    assert!(stdout(&listed).contains("root") && stdout(&listed).contains("ci"), "{}", stdout(&listed));
    assert!(run(&["migrate"]).await.status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_server_survives_every_violent_death() {
    let data_folder = DataFolder::new();
    let (mut server, root) = data_folder.start(&embedded()).await;
    let first = create(&server, &root, QUEUE).await;

    // Kills the server: the next one adopts its PostgreSQL.
    server.kill().unwrap();
    let postmaster = postmaster_of(&data_folder.data_dir()).expect("PostgreSQL outlives a killed server");
    let (mut server, _) = data_folder.start(&embedded()).await;
    assert_eq!(postmaster_of(&data_folder.data_dir()), Some(postmaster), "adopted, not started again");
    assert_eq!(state(&server, &root, first).await, "pending");

    // Kills PostgreSQL: the server restarts it.
    let second = create(&server, &root, QUEUE).await;
    kill(postmaster, Signal::SIGKILL).unwrap();
    // Sessions of the dead PostgreSQL may finish their work; their acknowledgements count.
    let third = create_until_it_works(&server, &root).await;
    let restarted = eventually("PostgreSQL runs again", async || {
        postmaster_of(&data_folder.data_dir()).filter(|&restarted| restarted != postmaster)
    })
    .await;
    let fourth = create_until_it_works(&server, &root).await;

    server.kill().unwrap();
    kill(restarted, Signal::SIGKILL).unwrap();
    let (server, _) = data_folder.start(&embedded()).await;
    for task in [first, second, third, fourth] {
        assert_eq!(state(&server, &root, task).await, "pending", "an acknowledged task is lost");
    }
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_server_runs_as_an_ordinary_user() {
    if !nix::unistd::geteuid().is_root() {
        // All other tests run as an ordinary user then.
        return;
    }
    let data_folder = DataFolder::new();
    let path = data_folder.folder.path();
    nix::unistd::chown(path, Some(NOBODY.into()), Some(NOBODY.into())).unwrap();
    let (server, root) = data_folder.start(&embedded().user(NOBODY)).await;
    let task = create(&server, &root, QUEUE).await;
    assert_eq!(state(&server, &root, task).await, "pending");
    let owner = |name: &str| {
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(data_folder.data_dir().join(name)).unwrap())
    };
    assert_eq!((owner("pg"), owner("root-credentials.json")), (NOBODY, NOBODY));
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_cannot_be_is_refused_in_one_line() {
    let folder = new_folder();
    let data_dir = folder.path().join("data");
    let start = async |launch: Launch| -> Output { finish(launch.command(&data_dir)).await };
    let missing = refusal(&start(Launch::default().flag("--pg-bin", "/nonexistent")).await, 1);
    assert!(missing.contains("/nonexistent") && missing.contains("apt install postgresql"), "{missing}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = refusal(&start(Launch::default().listen(&address)).await, 2);
    assert!(line.contains("--listen") && line.contains(&address), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_of_one_server_wakes_worker_at_another() {
    let rig = Rig::start().await;
    let other = another_without_fallbacks(&rig, "other").await;
    until_they_hear(&mut rig.database.connect("test").await, 2).await;
    for round in 0..5 {
        let took = wake(&rig, &other, &format!("serve/round-{round}")).await;
        assert!(took < NOTIFIED_WITHIN, "round {round}: {took:?}");
    }
    assert!(other.stop().await.success());
    assert!(rig.server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advance_of_manual_clock_waits_for_due_passes() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    let task = rig.create_one(QUEUE).await;
    let advance = async |seconds: Value| {
        rig.call("POST", "/api/tenure/v1/clock/advance", Some(&json!({"seconds": seconds}))).await
    };
    let now = async || rig.call("GET", "/api/tenure/v1/clock", None).await.body["now"].as_str().unwrap().to_owned();
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);

    let before = now().await;
    let answer = advance(json!(20 * 60 + 1)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.body["now"].as_str().unwrap() > before.as_str() && now().await > before);
    let status = rig.status(task).await;
    let run = |n: usize, field: &str| status["runs"][n][field].clone();
    assert_eq!((run(0, "state"), run(0, "reasonResolved")), (json!("exception"), json!("claim-expired")));
    assert_eq!((run(1, "state"), run(1, "reasonCreated")), (json!("pending"), json!("retry")));
    assert_eq!(status["retriesLeft"], 4);
    let claims = rig.claim(QUEUE, 1).await;
    assert_eq!(claims[0]["runId"], 1, "the retry can be claimed at once");

    assert_eq!(advance(json!(3_600)).await.status, 200);
    let status = rig.status(task).await;
    let last = &status["runs"].as_array().unwrap().last().unwrap()["reasonResolved"];
    assert_eq!((&status["state"], last), (&json!("exception"), &json!("deadline-exceeded")), "{status}");
    assert_eq!(counts(&rig.server, &rig.root).await, (json!(0), json!(0)));
    // The claim ended with the deadline, or its run before that.
    let path = format!("{}/completed", run_of(&claims[0]));
    assert!(
        [401, 409].contains(&call(&mut rig.client(), &credentials_of(&claims[0]), "POST", &path, None).await.status)
    );

    for wrong in [json!(-1), json!("1"), json!(1e12), Value::Null] {
        assert_eq!(advance(wrong).await.code(), "InputValidationError");
    }
    assert!(rig.server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_not_manual_cannot_be_moved() {
    let rig = Rig::start().await;
    let answer = rig.call("POST", "/api/tenure/v1/clock/advance", Some(&json!({"seconds": 1}))).await;
    assert_eq!((answer.status, answer.code()), (409, "RequestConflict"), "{}", answer.body);
    assert_eq!(rig.call("GET", "/api/tenure/v1/clock", None).await.status, 200);
    assert!(rig.server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_encrypt_need_the_secret_key() {
    let database = tenure_tests::db::TestDatabase::create().await;
    let key = fresh_secret_key();
    let env = [("DATABASE_URL", database.url()), ("TENURE_SECRET_KEY", key.as_str())];
    let run = async |args: &[&str]| tenure(args, &env).await;
    let migrated = run(&["migrate"]).await;
    assert_eq!((migrated.status.code(), stdout(&migrated).lines().count()), (Some(0), 1), "{}", stderr(&migrated));
    assert_eq!(run(&["migrate"]).await.status.code(), Some(0), "a repeat is harmless");

    let keyless = async |args: &[&str]| tenure(args, &[("DATABASE_URL", database.url())]).await;
    assert!(run(&["client", "create", "ci/two"]).await.status.success());
    for args in [&["client", "create", "x"], &["client", "reset-token", "ci/two"]] {
        assert!(refusal(&keyless(args).await, 2).contains("--secret-key"), "{args:?}");
    }
    // A database whose key is lost gets a new one in this way.
    for args in [&["client", "list"][..], &["client", "delete", "ci/two"]] {
        let output = keyless(args).await;
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }
}
