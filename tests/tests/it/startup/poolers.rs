//! Poolers between a server and its database that drop settings or sessions: refused with one line.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sqlx::Connection as _;
use tempfile::TempDir;
use tenure_tests::db::TestDatabase;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};

use crate::proxy::Proxy;
use crate::rig::{Raw, eventually, finish, new_folder, refusal, stderr, tenure};

async fn refusals(url: &str) -> [String; 2] {
    let (folder, key) = (new_folder(), fresh_secret_key());
    let output = finish(Launch::on_database(url, &key).command(folder.path())).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let server = stderr(&output).lines().last().unwrap_or_default().to_owned();
    let env = [("DATABASE_URL", url), ("TENURE_SECRET_KEY", key.as_str())];
    [server, refusal(&tenure(&["client", "create", "x"], &env).await, 1)]
}

#[track_caller]
fn assert_each_has(lines: &[String; 2], parts: &[&str]) {
    for line in lines {
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in: {line}");
        }
    }
}

const FIX: [&str; 3] = ["connect to PostgreSQL itself", "PgBouncer", "--database-url (DATABASE_URL)"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_settings_are_noticed_at_start() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    proxy.drop_options();
    let lines = refusals(proxy.url()).await;
    assert_each_has(&lines, &["statement_timeout is 0, not 30s", "ignore_startup_parameters = options"]);
    assert_each_has(&lines, &FIX);
    proxy.mend();
    assert!(tenure(&["migrate"], &[("DATABASE_URL", proxy.url())]).await.status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_server_uses_no_connection_without_settings() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::before(database.url()).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let server = Launch::on_database(proxy.url(), &key).start(folder.path(), "server").await;
    let _ = create_root_client(database.url(), &key);
    let heartbeat = async || Raw::new("GET", "/__heartbeat__").send(server.root_url()).await.status;
    assert_eq!(heartbeat().await, 200);
    proxy.drop_options();
    proxy.cut().await;
    eventually("the cut is noticed", async || (heartbeat().await == 503).then_some(())).await;
    // The proxy is open again, but its connections are not used.
    proxy.open();
    let dropped = "statement_timeout is 0, not 30s";
    eventually("it is refused", async || (heartbeat().await == 503 && server.log().contains(dropped)).then_some(()))
        .await;
    proxy.mend();
    eventually("it is used again", async || (heartbeat().await == 200).then_some(())).await;
    assert!(server.stop().await.success());
}

struct PgBouncer {
    _folder: TempDir,
    process: Child,
    url: String,
}

impl PgBouncer {
    async fn before(url: &str, mode: &str, more: &str) -> Self {
        let (before, after) = url.rsplit_once('@').expect("the test cluster's URL has a user");
        let (authority, name) = after.split_once('/').expect("and a database");
        let (host, port) = authority.split_once(':').expect("and a port");
        let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = new_folder();
        let users = folder.path().join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={host} port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\n{more}\n",
            users.display()
        );
        std::fs::write(&settings, text).unwrap();
        let process = start(folder.path(), &settings);
        let bouncer = Self { _folder: folder, process, url: format!("{before}@127.0.0.1:{listen}/{name}") };
        // Its own database answers in any mode.
        let own = format!("{before}@127.0.0.1:{listen}/pgbouncer");
        eventually("PgBouncer listens", async || {
            let address = own.rsplit_once('@')?.1.split_once('/')?.0.to_owned();
            tokio::net::TcpStream::connect(address).await.ok().map(drop)
        })
        .await;
        bouncer
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// PgBouncer refuses to run as root.
fn start(folder: &Path, settings: &Path) -> Child {
    let mut command = Command::new(program().expect("scripts/setup --tests installs pgbouncer"));
    if nix::unistd::geteuid().is_root() {
        let user = nix::unistd::User::from_name("postgres").ok().flatten().expect("the user postgres");
        for path in [folder, settings, &folder.join("users")] {
            std::os::unix::fs::chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command.arg(settings).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("pgbouncer can be started")
}

/// Debian installs it outside of the PATH of ordinary users.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
}

/// True if the test can run here; otherwise prints that it is skipped, even if the output of tests
/// is captured.
fn is_installed() -> bool {
    let installed = program().is_some();
    if !installed {
        let _ = std::io::stderr().write_all(b"SKIPPED 1 test: PgBouncer is not installed: scripts/setup --tests\n");
    }
    installed
}

const DROPS_OPTIONS: &str = "ignore_startup_parameters = extra_float_digits,options";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgbouncer_is_refused_in_each_of_its_modes() {
    if !is_installed() {
        return;
    }
    let database = TestDatabase::create().await;
    let as_it_is = PgBouncer::before(database.url(), "session", "").await;
    assert_each_has(&refusals(&as_it_is.url).await, &["startup parameter"]);
    assert_each_has(&refusals(&as_it_is.url).await, &FIX);

    let session = PgBouncer::before(database.url(), "session", DROPS_OPTIONS).await;
    let lines = refusals(&session.url).await;
    assert_each_has(&lines, &["statement_timeout is 0, not 30s", "ignore_startup_parameters = options"]);
    assert_each_has(&lines, &FIX);

    for turns in ["0", "1"] {
        let more = format!("{DROPS_OPTIONS}\nserver_round_robin = {turns}");
        let transaction = PgBouncer::before(database.url(), "transaction", &more).await;
        // Backends used by other clients before, so that there is a choice.
        let mut others = Vec::new();
        for _ in 0..3 {
            let mut other = sqlx::PgConnection::connect(&transaction.url).await.unwrap();
            sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
            others.push(other);
        }
        for mut other in others {
            sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        }
        let lines = refusals(&transaction.url).await;
        assert_each_has(&lines, &["PgBouncer's transaction mode"]);
        assert_each_has(&lines, &FIX);
    }
}
