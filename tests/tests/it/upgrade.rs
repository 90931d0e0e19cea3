//! A rolling upgrade from the previous release under load, back and forth, as docs/operating.md
//! says. The suite `upgrade`: `scripts/test-upgrade` compiles that release.

mod load;

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;
use tenure_api::credentials::Credentials;
use tenure_engine::gate::NEEDED;
use tenure_tests::db::TestDatabase;
use tenure_tests::http::{Account, Answer, TENURE_API, queue_segment};
use tenure_tests::server::{Launch, Server, fresh_secret_key};

use crate::rig::{call, client_of, eventually, finish, new_folder, stderr, tenure};
use load::Load;

/// Environment variable with the program of the previous release.
const OLD_SERVER: &str = "TENURE_OLD_SERVER";
const SERVERS: usize = 2;
const NEW_FEATURE_QUEUE: &str = "upgrade/new-feature";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    Previous,
    This,
}

/// Two servers of one database, each at a fixed address.
struct Site {
    servers: Vec<Server>,
    starts: usize,
    old_program: PathBuf,
    /// Last migration of the previous release.
    known: i64,
    launch: Launch,
    root: Credentials,
    folder: TempDir,
    database: TestDatabase,
}

impl Site {
    /// Starts both servers with the previous release.
    async fn start() -> Self {
        let old_program = std::env::var_os(OLD_SERVER).map(PathBuf::from);
        let old_program = old_program.unwrap_or_else(|| panic!("{OLD_SERVER} is not set: run scripts/test-upgrade"));
        let (database, secret_key, folder) = (TestDatabase::create().await, fresh_secret_key(), new_folder());
        let launch = Launch::on_database(database.url(), &secret_key).flag("--claim-work-wait", "1s");
        let mut servers = Vec::new();
        for n in 0..SERVERS {
            servers.push(launch.clone().program(&old_program).start(folder.path(), &format!("first-{n}")).await);
        }
        let mut command = Command::new(&old_program);
        command
            .args(["client", "create", "root", "--scope", "*", "--json"])
            .env("DATABASE_URL", database.url())
            .env("TENURE_SECRET_KEY", &secret_key);
        let output = finish(command).await;
        assert!(output.status.success(), "{}", stderr(&output));
        let root: Account = serde_json::from_slice(&output.stdout).expect("create prints the credentials");
        let mut site =
            Self { servers, starts: 0, old_program, known: 0, launch, root: root.credentials, folder, database };
        // Each server names its sessions after this migration.
        site.known = site
            .number(
                "SELECT max(substring(application_name FROM '^tenure/([0-9]+)')::bigint) FROM pg_stat_activity
                 WHERE datname = current_database()",
            )
            .await;
        site
    }

    fn launch(&self, release: Release) -> Launch {
        match release {
            Release::Previous => self.launch.clone().program(&self.old_program),
            Release::This => self.launch.clone(),
        }
    }

    /// Stops a server and starts it again at its address.
    async fn restart(&mut self, n: usize, release: Release) {
        let server = self.servers.remove(n);
        let address = server.root_url().strip_prefix("http://").expect("the server has no TLS").to_owned();
        assert!(server.stop().await.success());
        self.starts += 1;
        let launch = self.launch(release).listen(address);
        let server = launch.start(self.folder.path(), &format!("restart-{}", self.starts)).await;
        if release == Release::Previous {
            let log = server.log();
            assert!(log.contains("a later release has migrated the database"), "{log}");
        }
        self.servers.insert(n, server);
    }

    /// Restarts the servers one by one while the load continues. Between the restarts both releases
    /// run.
    async fn roll(&mut self, release: Release, load: &Load) {
        for n in 0..SERVERS {
            self.restart(n, release).await;
            load.progress().await;
            if n == 0 && self.has_new_feature() {
                let refused = self.use_new_feature(if release == Release::This { 0 } else { 1 }).await;
                assert_eq!((refused.status, refused.code()), (409, "RequestConflict"), "{}", refused.body);
                let message = refused.body["message"].as_str().unwrap();
                assert!(message.contains("a server of an older release is connected"), "{message}");
            }
        }
    }

    /// True if this release has features that the previous one cannot carry out.
    fn has_new_feature(&self) -> bool {
        NEEDED > self.known
    }

    /// Uses such a feature. Each release that has some needs another one here.
    async fn use_new_feature(&self, server: usize) -> Answer {
        let path = format!("{TENURE_API}/queues/{}/policy", queue_segment(NEW_FEATURE_QUEUE));
        let policy = json!({"retryFailed": true});
        call(&mut client_of(&self.servers[server]), &self.root, "PUT", &path, Some(&policy)).await
    }

    async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&mut self.database.connect("test").await).await.unwrap()
    }

    async fn needed_migration(&self) -> i64 {
        self.number("SELECT COALESCE(max(value::bigint), 0) FROM settings WHERE name = 'needed-migration'").await
    }

    async fn assert_old_does_not_start(&self) {
        let output = finish(self.launch(Release::Previous).command(&self.folder.path().join("refused"))).await;
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains("a later release has migrated it"), "{text}");
    }
}

async fn upgrade(site: &mut Site, load: &Load) {
    load.progress().await;
    let migrated = tenure(&["migrate"], &[("DATABASE_URL", site.database.url())]).await;
    assert!(migrated.status.success(), "{}", stderr(&migrated));
    load.progress().await;
    site.roll(Release::This, load).await;
    let may_go_back = site.needed_migration().await <= site.known;
    if may_go_back {
        site.roll(Release::Previous, load).await;
        site.roll(Release::This, load).await;
    } else {
        println!("upgrade: a migration needs this release, so going back is not tested");
    }
    if site.has_new_feature() {
        let is_used = async || (site.use_new_feature(0).await.status == 200).then_some(());
        eventually("the new feature can be used", is_used).await;
    }
    if site.has_new_feature() || !may_go_back {
        site.assert_old_does_not_start().await;
    }
    load.progress().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_upgrade_loses_and_repeats_nothing() {
    let mut site = Site::start().await;
    let urls = site.servers.iter().map(|server| server.root_url().to_owned()).collect();
    let load = Load::prepare(urls, site.root.clone()).await;
    let conn = site.database.connect("watch").await;
    let upgrading = async {
        upgrade(&mut site, &load).await;
        load.finish().await;
    };
    tokio::join!(upgrading, load.run(conn));
    load.assert_completed_once().await;
    load.assert_rate_was_kept();
    load.assert_empty().await;
    for server in site.servers.drain(..) {
        assert!(server.stop().await.success());
    }
}
