//! A server under test, and raw requests that no well-behaved client sends.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::clock::{unix_millis, unix_seconds, wire_date};
use tenure_tests::db::TestDatabase;
use tenure_tests::http::{Account, Answer, Client, QUEUE_API, TENURE_API, queue_segment};
use tenure_tests::random::Random;
use tenure_tests::server::{Launch, Server, binary, create_root_client, fresh_secret_key};
use tenure_tests::wire::Target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

/// Much longer than any step takes, for machines that are busy with other tests.
pub const TIMEOUT: Duration = Duration::from_secs(120);
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
const HOUR_MS: i64 = 3_600_000;

/// A server on its own database. Dropping it kills the server and checks the invariants of the
/// database.
pub struct Rig {
    pub server: Server,
    pub root: Credentials,
    pub secret_key: String,
    pub database: TestDatabase,
    pub folder: TempDir,
}

impl Rig {
    pub async fn start() -> Self {
        Self::start_with(|launch| launch).await
    }

    pub async fn start_with(settings: impl FnOnce(Launch) -> Launch) -> Self {
        let (database, secret_key, folder) = (TestDatabase::create_migrated().await, fresh_secret_key(), new_folder());
        let launch = settings(Launch::on_database(database.url(), &secret_key));
        let server = launch.start(folder.path(), "server").await;
        let root = create_root_client(database.url(), &secret_key).credentials;
        Self { server, root, secret_key, database, folder }
    }

    /// Starts a server with a manual clock, whose claimWork does not wait. The clock also runs, so
    /// compared times must be minutes apart.
    pub async fn manual() -> Self {
        Self::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s")).await
    }

    pub async fn another(&self, name: &str) -> Server {
        Launch::on_database(self.database.url(), &self.secret_key).start(self.folder.path(), name).await
    }

    pub fn client(&self) -> Client {
        client_of(&self.server)
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        call(&mut self.client(), &self.root, method, path, body).await
    }

    pub async fn create(&self, task: SlugId, definition: &Value) -> Answer {
        self.call("PUT", &format!("/task/{task}"), Some(definition)).await
    }

    pub async fn create_one(&self, queue: &str) -> SlugId {
        self.create_with(queue, |_| {}).await
    }

    pub async fn create_with(&self, queue: &str, change: impl FnOnce(&mut Value)) -> SlugId {
        let (task, mut body) = (new_task(), definition(queue));
        change(&mut body);
        ok(self.create(task, &body).await);
        task
    }

    pub async fn report(&self, claim: &Value, how: &str, body: Option<&Value>) {
        report(&self.server, claim, how, body).await;
    }

    pub async fn advance(&self, seconds: impl Into<Value>) {
        let seconds: Value = seconds.into();
        ok(self.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&json!({ "seconds": seconds }))).await);
    }

    pub async fn put_policy(&self, queue: &str, policy: &Value) {
        let path = format!("{TENURE_API}/queues/{}/policy", queue_segment(queue));
        ok(self.call("PUT", &path, Some(policy)).await);
        eventually("all runs follow the policy", async || {
            (self.call("GET", &path, None).await.body["refiling"] == 0).then_some(())
        })
        .await;
    }

    /// Starts a session of this worker, with a `ttl` of an hour unless `more` has another. Returns
    /// its id.
    pub async fn start_session(&self, queue: &str, worker: &str, more: Value) -> String {
        let mut body = json!({"taskQueueId": queue, "workerGroup": "group", "workerId": worker, "ttl": 3600});
        let Value::Object(more) = more else { panic!("{more} is no object") };
        body.as_object_mut().expect("it is one").extend(more);
        let answer = self.call("POST", &format!("{TENURE_API}/sessions"), Some(&body)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.body["sessionId"].as_str().expect("a session has an id").to_owned()
    }

    pub async fn status(&self, task: SlugId) -> Value {
        status(&mut self.client(), &self.root, task).await
    }

    pub async fn claim(&self, queue: &str, tasks: u16) -> Vec<Value> {
        claim(&mut self.client(), &self.root, queue, tasks).await
    }

    pub fn signed(&self, who: &Credentials, method: &str, path: &str, body: Option<&[u8]>) -> Raw {
        let target = format!("{QUEUE_API}{path}");
        let signature = Signature { who, method, target: &target, ..Signature::of(&self.server) };
        Raw::new(method, &target).authorization(&signature.header()).json(body)
    }

    pub async fn send(&self, raw: &Raw) -> RawReply {
        raw.send(self.server.root_url()).await
    }

    pub async fn administrate(&self, args: &[&str]) -> Output {
        let args = [&["client"], args].concat();
        tenure(&args, &[("DATABASE_URL", self.database.url()), ("TENURE_SECRET_KEY", &self.secret_key)]).await
    }

    pub async fn make_client(&self, id: &str, scopes: &[&str]) -> Credentials {
        let mut args = vec!["create", id, "--json"];
        args.extend(scopes.iter().flat_map(|scope| ["--scope", scope]));
        let output = self.administrate(&args).await;
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<Account>(&output.stdout).expect("create prints the credentials").credentials
    }
}

pub fn worker_program(root_url: &str, who: &Credentials, queue: &str, name: &str, folder: &Path) -> Command {
    let log = std::fs::File::create(folder.join(format!("{name}.log"))).expect("the folder can be written");
    let mut command = Command::new(binary().with_file_name("tenure-worker"));
    command
        .args(["run", "--task-queue", queue, "--worker-group", "group", "--worker-id", name])
        .arg("--work-dir")
        .arg(folder.join("work"))
        .env("TASKCLUSTER_ROOT_URL", root_url)
        .env("TASKCLUSTER_CLIENT_ID", &who.client_id)
        .env("TASKCLUSTER_ACCESS_TOKEN", who.access_token.expose())
        .env_remove("TASKCLUSTER_CERTIFICATE")
        .stdin(std::process::Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    command
}

pub fn new_folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::Builder::new().prefix("tenure-it-").tempdir_in("/tmp").expect("/tmp can be written");
    let open = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(folder.path(), open).expect("the folder is ours");
    folder
}

pub fn client_of(server: &Server) -> Client {
    Client::new(server.root_url()).expect("a server prints a root URL")
}

pub async fn call(client: &mut Client, who: &Credentials, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let body = body.map(|body| body.to_string().into_bytes());
    let path = if path.starts_with("/api") { path.to_owned() } else { format!("{QUEUE_API}{path}") };
    let answer = tokio::time::timeout(TIMEOUT, client.call(who, method, &path, body.as_deref())).await;
    answer.expect("the server answers").expect("the server keeps the connection")
}

/// Sends a request again while the server asks for that: on a busy machine the first commits of a
/// database take long.
pub async fn call_patiently(
    client: &mut Client,
    who: &Credentials,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Answer {
    let until = Instant::now() + TIMEOUT;
    loop {
        let answer = call(client, who, method, path, body).await;
        if answer.status != 503 || Instant::now() > until {
            return answer;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Sends a signed request on a new connection; any answer is accepted.
pub async fn send(server: &Server, who: &Credentials, method: &str, path: &str, body: Option<&Value>) -> RawReply {
    let target = if path.starts_with("/api") { path.to_owned() } else { format!("{QUEUE_API}{path}") };
    let header = Signature { who, method, target: &target, ..Signature::of(server) }.header();
    let body = body.map(|body| body.to_string().into_bytes());
    Raw::new(method, &target).authorization(&header).json(body.as_deref()).send(server.root_url()).await
}

#[track_caller]
pub fn ok(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

pub async fn report(server: &Server, claim: &Value, how: &str, body: Option<&Value>) {
    let path = format!("{}/{how}", run_of(claim));
    ok(call(&mut client_of(server), &credentials_of(claim), "POST", &path, body).await);
}

pub async fn status(client: &mut Client, who: &Credentials, task: SlugId) -> Value {
    ok(call(client, who, "GET", &format!("/task/{task}/status"), None).await)["status"].clone()
}

pub async fn claim(client: &mut Client, who: &Credentials, queue: &str, tasks: u16) -> Vec<Value> {
    let answer = ok(call(client, who, "POST", &claim_path(queue), Some(&worker(tasks))).await);
    answer["tasks"].as_array().expect("claims are a list").clone()
}

pub fn claim_path(queue: &str) -> String {
    format!("/claim-work/{}", queue_segment(queue))
}

pub fn worker(tasks: u16) -> Value {
    json!({"workerGroup": "group", "workerId": "worker", "tasks": tasks})
}

pub fn credentials_of(claim: &Value) -> Credentials {
    serde_json::from_value(claim["credentials"].clone()).expect("a claim has credentials")
}

pub fn run_of(claim: &Value) -> String {
    format!("/task/{}/runs/{}", claim["status"]["taskId"].as_str().unwrap_or_default(), claim["runId"])
}

pub fn new_task() -> SlugId {
    Random::from_seed(Random::fresh_seed()).task_id()
}

pub fn definition(queue: &str) -> Value {
    let now = unix_millis();
    json!({
        "taskQueueId": queue,
        "created": wire_date(now),
        "deadline": wire_date(now + HOUR_MS),
        "payload": {"command": ["true"]},
        "metadata": {"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com/"},
    })
}

pub fn minutes_from_now(minutes: i64) -> String {
    wire_date(unix_millis() + minutes * 60_000)
}

pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

pub async fn tenure(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = std::process::Command::new(binary());
    command.args(args).envs(env.iter().copied());
    finish(command).await
}

pub async fn finish(command: std::process::Command) -> Output {
    let mut command = Command::from(command);
    let output = tokio::time::timeout(TIMEOUT, command.kill_on_drop(true).output()).await;
    output.expect("the command ends by itself").expect("the program can be started")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
pub fn refusal(output: &Output, code: i32) -> String {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("tenure")).collect();
    assert_eq!(lines.len(), 1, "not one line: {text}");
    assert_eq!(text.lines().count(), 1, "more than one line: {text}");
    lines[0].to_owned()
}

pub struct DataFolder {
    pub folder: TempDir,
}

impl DataFolder {
    pub fn new() -> Self {
        Self { folder: new_folder() }
    }

    pub fn data_dir(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    pub async fn start(&self, launch: &Launch) -> (Server, Credentials) {
        let server = launch.start(self.folder.path(), "data").await;
        let account = read_root(&self.data_dir());
        assert_eq!(account.root_url, server.root_url());
        (server, account.credentials)
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        if let Some(pid) = postmaster_of(&self.data_dir()) {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT);
        }
    }
}

pub fn embedded() -> Launch {
    let launch = Launch::default().flag("--claim-work-wait", "1s");
    match std::env::var_os("TENURE_TEST_PG_BIN") {
        Some(folder) => launch.flag("--pg-bin", folder),
        None => launch,
    }
}

fn read_root(data_dir: &Path) -> Account {
    let text = std::fs::read_to_string(data_dir.join("root-credentials.json")).expect("root-credentials.json");
    serde_json::from_str(&text).expect("root-credentials.json holds credentials")
}

pub fn postmaster_of(data_dir: &Path) -> Option<nix::unistd::Pid> {
    let text = std::fs::read_to_string(data_dir.join("pg/postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok().map(nix::unistd::Pid::from_raw)
}

#[derive(Clone)]
pub struct Raw {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

pub struct RawReply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Raw {
    pub fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), headers: Vec::new(), body: None }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self
    }

    pub fn authorization(self, value: &str) -> Self {
        self.header("Authorization", value)
    }

    pub fn json(mut self, body: Option<&[u8]>) -> Self {
        self.body = body.map(<[u8]>::to_vec);
        if body.is_some() { self.header("Content-Type", "application/json") } else { self }
    }

    pub async fn send(&self, root_url: &str) -> RawReply {
        tokio::time::timeout(TIMEOUT, self.exchange(root_url)).await.expect("the server answers")
    }

    async fn exchange(&self, root_url: &str) -> RawReply {
        let target = Target::parse(root_url).expect("a server prints a root URL");
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await.expect("the server listens");
        let mut request = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.target, target.authority);
        for (name, value) in &self.headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("Connection: close\r\n\r\n");
        let (mut incoming, mut outgoing) = stream.into_split();
        let sending = async {
            // A server may answer before it has read everything, and close.
            drop(outgoing.write_all(request.as_bytes()).await);
            drop(outgoing.write_all(self.body.as_deref().unwrap_or_default()).await);
            outgoing
        };
        let receiving = async {
            let mut bytes = Vec::new();
            drop(incoming.read_to_end(&mut bytes).await);
            bytes
        };
        let (_outgoing, bytes) = tokio::join!(sending, receiving);
        RawReply::parse(&bytes)
    }
}

impl RawReply {
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a reply has a head");
        let head = std::str::from_utf8(&bytes[..end]).expect("a head is text");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        let mut reply = Self {
            status: status.expect("a status line"),
            headers: headers.collect(),
            body: bytes[end + 4..].to_vec(),
        };
        if let Some(encoding) = reply.header("transfer-encoding") {
            assert_eq!(encoding, "chunked");
            reply.body = join_chunks(&reply.body);
        }
        reply
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> String {
        let body = self.json();
        assert_eq!((self.status, body["code"].as_str()), (status, Some(code)), "{}", self.text());
        body["message"].as_str().unwrap_or_default().to_owned()
    }
}

fn join_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").expect("a chunk has a head");
        let size = std::str::from_utf8(&rest[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.expect("a chunk has a size");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
}

/// A Hawk signature, implemented from the specification alone.
pub struct Signature<'a> {
    pub who: &'a Credentials,
    pub method: &'a str,
    pub target: &'a str,
    pub host: String,
    pub port: u16,
    pub ts: i64,
    pub hash: Option<String>,
    pub ext: Option<Value>,
}

impl Signature<'static> {
    /// A signature by an unknown client for this server, with defaults to be replaced.
    pub fn of(server: &Server) -> Self {
        static NOBODY: std::sync::LazyLock<Credentials> = std::sync::LazyLock::new(|| Credentials {
            client_id: "nobody".to_owned(),
            access_token: tenure_api::credentials::AccessToken::new("none".to_owned()),
            certificate: None,
        });
        let target = Target::parse(server.root_url()).expect("a server prints a root URL");
        let (host, port) = (target.host, target.port);
        Self { who: &NOBODY, method: "GET", target: "/", host, port, ts: unix_seconds(), hash: None, ext: None }
    }
}

impl Signature<'_> {
    pub fn header(&self) -> String {
        let certificate =
            self.who.certificate.as_deref().map(
                |text| json!({"certificate": serde_json::from_str::<Value>(text).expect("a certificate is JSON")}),
            );
        let ext = self.ext.clone().or(certificate).map(|ext| STANDARD.encode(ext.to_string())).unwrap_or_default();
        let hash = self.hash.clone().unwrap_or_default();
        let Self { method, target, host, port, ts, .. } = self;
        let text = format!("hawk.1.header\n{ts}\nabcdef\n{method}\n{target}\n{host}\n{port}\n{hash}\n{ext}\n");
        let mac = STANDARD.encode(hmac_sha256(self.who.access_token.expose().as_bytes(), text.as_bytes()));
        let mut header = format!("Hawk id=\"{}\", ts=\"{ts}\", nonce=\"abcdef\"", self.who.client_id);
        for (name, value) in [("hash", &hash), ("ext", &ext), ("mac", &mac)] {
            if !value.is_empty() {
                header.push_str(&format!(", {name}=\"{value}\""));
            }
        }
        header
    }
}

pub fn body_hash(body: &[u8]) -> String {
    let text = [b"hawk.1.payload\napplication/json\n".as_slice(), body, b"\n"].concat();
    STANDARD.encode(Sha256::digest(text))
}

fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 64;
    let mut block = if key.len() > BLOCK { Sha256::digest(key).to_vec() } else { key.to_vec() };
    block.resize(BLOCK, 0);
    let padded = |pad: u8| block.iter().map(|byte| byte ^ pad).collect::<Vec<u8>>();
    let inner = Sha256::digest([padded(0x36).as_slice(), text].concat());
    Sha256::digest([padded(0x5c).as_slice(), inner.as_slice()].concat()).to_vec()
}
