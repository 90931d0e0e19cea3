//! A real `tenure-worker` on a real server: the log, artifacts, and inputs from other tasks, byte
//! by byte.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tenure_api::ids::SlugId;
use tenure_client::{Client, RetryPolicy};
use tenure_tests::server::Launch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Child;
use tokio::sync::{Semaphore, watch};

use crate::rig::{Rig, eventually, new_task, worker_program};

const QUEUE: &str = "made/linux";
const BACKING_LOG: &str = "public/logs/live_backing.log";
const LIVE_LOG: &str = "public/logs/live.log";

struct Shop {
    rig: Rig,
    /// The only worker, unless a test starts more.
    worker: Option<Child>,
}

impl Shop {
    async fn open() -> Self {
        Self::open_with(|launch| launch).await
    }

    async fn open_with(settings: impl FnOnce(Launch) -> Launch) -> Self {
        let mut shop = Self { rig: Rig::start_with(settings).await, worker: None };
        shop.worker = Some(shop.hire("worker"));
        shop
    }

    fn hire(&self, name: &str) -> Child {
        let rig = &self.rig;
        let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, name, rig.folder.path());
        program.args(["--capacity", "2", "--keep"]).spawn().expect("build it with `cargo build --workspace`")
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.rig.folder.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    fn file(&self, task: SlugId, path: &str) -> PathBuf {
        self.rig.folder.path().join(format!("work/{task}-0")).join(path)
    }

    async fn create(&self, payload: &Value, more: &Value) -> SlugId {
        let change = |task: &mut Value| {
            task["payload"] = payload.clone();
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        };
        self.rig.create_with(QUEUE, change).await
    }

    async fn end_of(&self, task: SlugId) -> String {
        let status = eventually("the task is resolved", async || {
            let status = self.rig.status(task).await;
            matches!(status["state"].as_str(), Some("completed" | "failed" | "exception")).then_some(status)
        })
        .await;
        status["runs"].as_array().unwrap().last().unwrap()["reasonResolved"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn ends<'a>(&'a self, task: SlugId, reason: &'a str) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let end = self.end_of(task).await;
            let log = std::fs::read_to_string(self.file(task, "live.log")).unwrap_or_default();
            assert_eq!(end, reason, "at {caller}\n{log}\n{}", self.log("worker"));
        }
    }

    fn anonymous(&self) -> Client {
        let retry = RetryPolicy::never();
        Client::builder().root_url(self.rig.server.root_url()).retry_policy(retry).build().unwrap()
    }

    fn root(&self) -> Client {
        self.anonymous().with_credentials(self.rig.root.clone())
    }

    async fn read(&self, client: &Client, task: SlugId, name: &str) -> Result<Vec<u8>, tenure_client::Error> {
        let to = self.rig.folder.path().join(new_task().to_string());
        client.download(task, None, name, &to).await?;
        Ok(std::fs::read(to).unwrap())
    }

    async fn names(&self, task: SlugId) -> Vec<String> {
        let artifacts = self.root().list_artifacts(task, None).await.unwrap();
        artifacts.into_iter().map(|artifact| artifact.name).collect()
    }

    async fn close(mut self) -> Rig {
        let mut worker = self.worker.take().unwrap();
        let pid = i32::try_from(worker.id().expect("it runs")).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
        assert_eq!(worker.wait().await.unwrap().code(), Some(0));
        let log = self.log("worker");
        assert!(!log.contains("sig=") && !log.contains("Credential="), "a signed URL is in the log: {log}");
        self.rig
    }
}

fn shell(script: &str, artifacts: &Value) -> Value {
    json!({"command": [["sh", "-c", script]], "artifacts": artifacts})
}

fn file(name: &str, path: &str) -> Value {
    json!({"name": name, "path": path, "type": "file"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_come_back_as_they_were() {
    let shop = Shop::open().await;
    let script = "mkdir -p 'out/a b'; head -c 50000000 /dev/urandom > large; sha256sum large > out/sum.txt; \
                  printf '\\000\\377\\r\\n' > 'out/a b/x%2Fy.bin'; : > out/empty; head -c 100000 /dev/zero > zeros";
    let mut zeros = file("private/zeros", "zeros");
    zeros["contentEncoding"] = json!("gzip");
    let artifacts = json!([
        file("public/large", "large"), {"name": "public/out", "path": "out", "type": "directory"}, zeros,
    ]);
    let task = shop.create(&shell(script, &artifacts), &json!({})).await;
    shop.ends(task, "completed").await;
    let expected = [
        "private/zeros",
        "public/large",
        LIVE_LOG,
        BACKING_LOG,
        "public/out/a b/x%2Fy.bin",
        "public/out/empty",
        "public/out/sum.txt",
    ];
    assert_eq!(shop.names(task).await, expected);
    let anonymous = shop.anonymous();
    let large = shop.read(&anonymous, task, "public/large").await.unwrap();
    let digest: String = Sha256::digest(&large).iter().map(|byte| format!("{byte:02x}")).collect();
    let sum = shop.read(&anonymous, task, "public/out/sum.txt").await.unwrap();
    assert_eq!((large.len(), String::from_utf8(sum).unwrap()), (50_000_000, format!("{digest}  large\n")));
    for (name, content) in [("public/out/a b/x%2Fy.bin", b"\0\xff\r\n".as_slice()), ("public/out/empty", b"")] {
        assert_eq!(shop.read(&anonymous, task, name).await.unwrap(), content, "{name}");
    }
    assert_eq!(shop.read(&anonymous, task, "private/zeros").await.unwrap_err().status(), Some(403));
    assert!(shop.read(&shop.root(), task, "private/zeros").await.unwrap() == vec![0; 100_000]);
    let listed = shop.root().list_artifacts(task, None).await.unwrap();
    assert_eq!(listed.iter().find(|artifact| artifact.name == "private/zeros").unwrap().content_length, Some(100_000));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_uses_what_its_dependency_made() {
    let shop = Shop::open().await;
    let making = shell("echo secret > s; echo open > o", &json!([file("private/s", "s"), file("public/o", "o")]));
    let maker = shop.create(&making, &json!({})).await;
    let using = |artifacts: &[&str]| {
        let input = |name: &&str| json!({"taskId": maker, "artifact": name, "path": format!("in/{name}")});
        let inputs: Vec<Value> = artifacts.iter().map(input).collect();
        json!({"command": [["sh", "-c", "cat in/*/* > result"]], "inputs": inputs, "artifacts": [file("public/r", "result")]})
    };
    let after = json!({"dependencies": [maker]});
    let allowed = json!({"dependencies": [maker], "scopes": ["queue:get-artifact:private/*"]});
    let of_both = shop.create(&using(&["private/s", "public/o"]), &allowed).await;
    let of_public = shop.create(&using(&["public/o"]), &after).await;
    let without_scopes = shop.create(&using(&["private/s"]), &after).await;
    let of_nothing = shop.create(&using(&["public/none"]), &after).await;
    let elsewhere = shop.create(&using(&["public/o"]), &json!({})).await;
    shop.ends(maker, "completed").await;
    for (task, result) in [(of_both, "secret\nopen\n"), (of_public, "open\n")] {
        shop.ends(task, "completed").await;
        assert_eq!(shop.read(&shop.anonymous(), task, "public/r").await.unwrap(), result.as_bytes());
    }
    for (task, why) in [
        (without_scopes, "the queue answered 403 InsufficientScopes"),
        (of_nothing, "the queue answered 404 ResourceNotFound"),
        (elsewhere, "must be among the task's dependencies"),
    ] {
        shop.ends(task, "malformed-payload").await;
        let log = shop.read(&shop.anonymous(), task, LIVE_LOG).await.unwrap();
        assert!(String::from_utf8_lossy(&log).contains(why), "{}", String::from_utf8_lossy(&log));
        assert_eq!(shop.names(task).await, [LIVE_LOG, BACKING_LOG]);
    }
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_whose_maker_could_not_make_it_is_not_there() {
    let shop = Shop::open().await;
    let maker = shop.create(&shell("true", &json!([file("public/o", "o")])), &json!({})).await;
    let input = json!({"taskId": maker, "artifact": "public/o", "path": "o"});
    let after = json!({"dependencies": [maker], "requires": "all-resolved"});
    let user = shop.create(&json!({"command": [["true"]], "inputs": [input]}), &after).await;
    shop.ends(maker, "failed").await;
    shop.ends(user, "malformed-payload").await;
    let log = shop.read(&shop.anonymous(), user, LIVE_LOG).await.unwrap();
    assert!(String::from_utf8_lossy(&log).contains("424 file-missing-on-worker"), "{}", String::from_utf8_lossy(&log));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q15_reason_follows_from_what_ended_the_task() {
    let shop = Shop::open().await;
    let maker = shop.create(&shell("true", &json!([])), &json!({})).await;
    shop.ends(maker, "completed").await;
    let input = json!({"taskId": maker, "artifact": "public/none", "path": "o"});
    let after = json!({"dependencies": [maker]});
    let mut slow = shell("sleep 60", &json!([]));
    slow["maxRunTime"] = json!(1);
    for (payload, more, reason) in [
        (json!({"command": [["true"]], "surprise": 1}), json!({}), "malformed-payload"),
        (json!({"command": "true"}), json!({}), "malformed-payload"),
        (json!({"command": [["true"]], "inputs": [input]}), after, "malformed-payload"),
        (json!({"command": [["./none"]]}), json!({}), "failed"),
        (shell("exit 3", &json!([])), json!({}), "failed"),
        (shell("kill -9 $$", &json!([])), json!({}), "failed"),
        (slow, json!({}), "failed"),
    ] {
        let task = shop.create(&payload, &more).await;
        shop.ends(task, reason).await;
    }
    let running = shop.create(&shell("sleep 60", &json!([])), &json!({})).await;
    eventually("it runs", async || shop.file(running, "live.log").exists().then_some(())).await;
    let rig = shop.close().await;
    let status = rig.status(running).await;
    assert_eq!((&status["state"], &status["retriesLeft"]), (&json!("pending"), &json!(4)), "{status}");
    assert_eq!(status["runs"][0]["reasonResolved"], "worker-shutdown");
}

/// A proxy of the server on which uploads get stuck after a while, until the test releases them.
struct NarrowWay {
    port: u16,
    stuck: Arc<Semaphore>,
    open: watch::Sender<bool>,
}

/// Bytes of an upload that pass while the proxy is closed.
const COMES_THROUGH: usize = 1 << 20;

impl NarrowWay {
    async fn build() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // The system delivers its buffered part of an upload even if the sender is gone: the buffer
        // must be smaller than the upload.
        socket.set_recv_buffer_size(1 << 16).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(128).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (open, opened) = watch::channel(false);
        let stuck = Arc::new(Semaphore::new(0));
        let semaphore = Arc::clone(&stuck);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (opened, semaphore) = (opened.clone(), Arc::clone(&semaphore));
                tokio::spawn(async move { pass(client, port, opened, &semaphore).await.unwrap_or_default() });
            }
        });
        Self { port, stuck, open }
    }

    fn before(&self, launch: Launch) -> Launch {
        launch.listen(format!("127.0.0.2:{}", self.port)).flag("--root-url", format!("http://127.0.0.1:{}", self.port))
    }
}

async fn pass(
    client: TcpStream,
    port: u16,
    mut opened: watch::Receiver<bool>,
    stuck: &Semaphore,
) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(("127.0.0.2", port)).await?.into_split();
    let back = tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    let mut buffer = vec![0; 1 << 16];
    let mut uploaded = None;
    loop {
        let read = from_client.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        // The client waits for each answer, so that every request begins a piece.
        if buffer.starts_with(b"PUT ") {
            uploaded = Some(0);
        } else if buffer.starts_with(b"POST ") || buffer.starts_with(b"GET ") {
            uploaded = None;
        }
        if let Some(bytes) = &mut uploaded {
            *bytes += read;
            if *bytes > COMES_THROUGH && !*opened.borrow() {
                stuck.add_permits(1);
                let _open = opened.wait_for(|open| *open).await;
            }
        }
        to_server.write_all(&buffer[..read]).await?;
    }
    to_server.shutdown().await?;
    let _end = back.await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_worker_gets_task_of_one_that_dies_uploading() {
    let way = NarrowWay::build().await;
    let mut shop = Shop::open_with(|launch| way.before(launch).flag("--claim-timeout", "5s")).await;
    let script = "head -c 10000000 /dev/urandom > large";
    let task = shop.create(&shell(script, &json!([file("public/large", "large")])), &json!({})).await;
    way.stuck.acquire().await.unwrap().forget();
    // The claim is renewed although the upload takes longer than its lease.
    let claimed = shop.rig.status(task).await["runs"][0]["takenUntil"].clone();
    eventually("a renewal", async || (shop.rig.status(task).await["runs"][0]["takenUntil"] != claimed).then_some(()))
        .await;
    shop.worker.as_mut().unwrap().kill().await.unwrap();
    shop.worker = Some(shop.hire("second"));
    way.open.send_replace(true);
    shop.ends(task, "completed").await;
    let status = shop.rig.status(task).await;
    let runs: Vec<_> = status["runs"].as_array().unwrap().iter().map(|run| &run["reasonResolved"]).collect();
    assert_eq!(runs, ["claim-expired", "completed"]);
    let large = std::fs::read(shop.rig.folder.path().join(format!("work/{task}-1/large"))).unwrap();
    assert!(shop.read(&shop.anonymous(), task, "public/large").await.unwrap() == large);
    let to = shop.rig.folder.path().join("half");
    let half = shop.anonymous().download(task, Some("0".parse().unwrap()), "public/large", &to).await;
    assert_eq!(half.unwrap_err().status(), Some(404));
    shop.close().await;
}
