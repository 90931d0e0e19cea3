//! PostgreSQL fails over to its standby while two servers continue. With a synchronous standby
//! nothing acknowledged is lost, stranded or done twice; with an asynchronous one only the
//! unreplicated part is lost.
//!
//! The suite `failover`; each test prints the recovery time, and the numbers of acknowledged and
//! lost calls.

mod loss;
mod proof;
mod stall;
mod subscriptions;
mod switch;

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use tenure_api::credentials::Credentials;
use tenure_tests::accountant::{Accountant, Audit, Load};
use tenure_tests::history::record::Stamp;
use tenure_tests::replication::Replicated;
use tenure_tests::server::{Launch, Server, create_root_client, fresh_secret_key};

use crate::rig::new_folder;

const QUEUES: [&str; 3] = ["failover/one", "failover/two", "failover/three"];
/// A claim whose answer was lost is claimable again after this.
const CLAIM_TERM: Duration = Duration::from_secs(20);
/// Ten times the two seconds after the failover within which a pending task is claimable.
const STRANDED_AFTER: Duration = Duration::from_secs(20);
const LOAD: Load =
    Load { submitters: 4, workers: 6, backlog: 150, claim_term: CLAIM_TERM, stranded_after: STRANDED_AFTER };
/// Number of tasks that proves recovery between two faults.
const SOME: usize = 60;

struct Stage {
    servers: Vec<Server>,
    root: Credentials,
    database: Replicated,
    _folder: TempDir,
}

impl Stage {
    async fn on(database: Replicated) -> Self {
        let (key, folder) = (fresh_secret_key(), new_folder());
        let url = database.forwarder.url();
        let launch = Launch::on_database(&url, &key)
            .flag("--claim-work-wait", "1s")
            .flag("--deliver-to", "127.0.0.0/8")
            .flag("--claim-timeout", format!("{}s", CLAIM_TERM.as_secs()));
        let first = launch.start(folder.path(), "first").await;
        let second = launch.start(folder.path(), "second").await;
        let root = create_root_client(&url, &key).credentials;
        Self { servers: vec![first, second], root, database, _folder: folder }
    }

    fn load(&self, load: Load) -> Accountant {
        Accountant::start(&self.root, &self.servers, &QUEUES, load)
    }

    fn kill_primary(&mut self, accountant: &Accountant) -> Stamp {
        self.database.primary.kill();
        accountant.accounts().stamp()
    }

    async fn position(&self) -> i64 {
        self.database.primary.ask("SELECT last_value FROM pending_ord").await
    }

    async fn finish(mut self, name: &str, accountant: Accountant) -> Audit {
        let audit = accountant.finish().await;
        println!("failover: {name}: {audit}");
        for server in &mut self.servers {
            assert!(!server.has_ended(), "a server has ended:\n{}", server.log_tail());
        }
        audit.assert_correct();
        let mut session = PgConnection::connect(&self.database.primary.url()).await.unwrap();
        sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut session).await.unwrap();
        let violations = tenure_store::testing::check_invariants_on(&mut session).await;
        assert!(violations.is_empty(), "violated invariants: {violations:#?}");
        for server in self.servers {
            assert!(server.stop().await.success());
        }
        audit
    }
}
