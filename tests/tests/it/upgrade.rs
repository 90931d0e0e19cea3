//! An upgrade from an earlier release whose server keeps running, as docs/operating.md allows. The
//! suite `upgrade`: `scripts/test-upgrade` compiles that release.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tempfile::TempDir;
use tenure_api::credentials::Credentials;
use tenure_tests::db::TestDatabase;
use tenure_tests::http::{Account, Answer, TENURE_API, queue_segment};
use tenure_tests::server::{Launch, Server, fresh_secret_key};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::rig::{
    LOOK_EVERY, Raw, call, claim, client_of, credentials_of, definition, eventually, finish, new_folder, new_task,
    run_of, stderr,
};

/// Environment variable with the program of the earlier release.
const OLD_SERVER: &str = "TENURE_OLD_SERVER";
const LIMITED: &str = "upgrade/limited";
const FAIR: &str = "upgrade/fair";
const RATED: &str = "upgrade/rated";
const ASSIGNED: &str = "upgrade/assigned";
const PLAIN: &str = "upgrade/plain";
const PULLED: [&str; 4] = [LIMITED, FAIR, RATED, PLAIN];
const QUEUES: [&str; 5] = [LIMITED, FAIR, RATED, PLAIN, ASSIGNED];
/// Limits of `LIMITED`.
const TOTAL: usize = 3;
const PER_KEY: usize = 2;
/// Starts of `RATED`. The next one comes an hour later.
const BURST: usize = 3;
/// Runs that the session of `ASSIGNED` may have.
const CAPACITY: usize = 3;
const WORKER: &str = "worker";
const KEYS: [&str; 3] = ["a", "b", "c"];
/// Tasks of each key and queue that are created before the upgrade, and after it.
const TASKS: usize = 8;
const LATER_TASKS: usize = 2;
const WORKERS: usize = 3;
const WORKED_OFF_WITHIN: Duration = Duration::from_secs(60);
/// Counts claims of `LIMITED`, the claims of its busiest key, and ready runs of limited queues
/// after the migration. Locks the tables in the migration's order.
const SNAPSHOT: &str = "WITH ready AS (
        SELECT count(*) AS runs FROM pending WHERE hold IS NULL AND key_id IS NOT NULL
        AND EXISTS (SELECT FROM settings WHERE name = 'needed-migration')
    ),
    of_keys AS (
        SELECT count(*) AS runs FROM claims c JOIN task_queues q ON q.id = c.queue WHERE q.name = $1 GROUP BY c.key_id
    )
    SELECT COALESCE(sum(of_keys.runs), 0)::bigint, COALESCE(max(of_keys.runs), 0), (SELECT runs FROM ready) FROM of_keys";
const SNAPSHOT_EVERY: Duration = Duration::from_millis(5);

struct Site {
    old_program: PathBuf,
    launch: Launch,
    root: Credentials,
    folder: TempDir,
    database: TestDatabase,
}

impl Site {
    async fn start() -> (Self, Server) {
        let old_program = std::env::var_os(OLD_SERVER).map(PathBuf::from);
        let old_program = old_program.unwrap_or_else(|| panic!("{OLD_SERVER} is not set: run scripts/test-upgrade"));
        let (database, secret_key, folder) = (TestDatabase::create().await, fresh_secret_key(), new_folder());
        let launch = Launch::on_database(database.url(), &secret_key).flag("--claim-work-wait", "1s");
        let server = launch.clone().program(&old_program).start(folder.path(), "old").await;
        let mut command = Command::new(&old_program);
        command
            .args(["client", "create", "root", "--scope", "*", "--json"])
            .env("DATABASE_URL", database.url())
            .env("TENURE_SECRET_KEY", &secret_key);
        let output = finish(command).await;
        assert!(output.status.success(), "{}", stderr(&output));
        let root: Account = serde_json::from_slice(&output.stdout).expect("create prints the credentials");
        (Self { old_program, launch, root: root.credentials, folder, database }, server)
    }

    async fn assert_old_does_not_start(&self) {
        let launch = self.launch.clone().program(&self.old_program);
        let output = finish(launch.command(&self.folder.path().join("refused"))).await;
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains("a later release has migrated it"), "{text}");
    }
}

#[derive(Clone, Default)]
struct Tasks {
    created: BTreeMap<String, String>,
    claimed: BTreeSet<String>,
    completed: BTreeSet<String>,
    retried: BTreeSet<String>,
}

impl Tasks {
    fn are_left(&self, queue: &str) -> bool {
        self.created.iter().any(|(task, of)| of == queue && !self.completed.contains(task))
    }
}

fn task_of(claim: &Value) -> String {
    claim["status"]["taskId"].as_str().unwrap().to_owned()
}

#[derive(Clone, Copy)]
struct At<'a> {
    server: &'a Server,
    site: &'a Site,
    tasks: &'a RefCell<Tasks>,
}

impl At<'_> {
    async fn call(self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        call(&mut client_of(self.server), &self.site.root, method, path, body).await
    }

    async fn ok(self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.call(method, path, body).await;
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        answer.body
    }

    async fn put_policy(self, queue: &str, policy: &Value) {
        let path = format!("{TENURE_API}/queues/{}/policy", queue_segment(queue));
        self.ok("PUT", &path, Some(policy)).await;
        eventually("all runs follow the policy", async || {
            (self.ok("GET", &path, None).await["refiling"] == 0).then_some(())
        })
        .await;
    }

    async fn counts(self, queue: &str) -> Value {
        self.ok("GET", &format!("{TENURE_API}/queues/{}", queue_segment(queue)), None).await
    }

    async fn until_ready(self, queue: &str, runs: usize) {
        eventually(&format!("{runs} runs of {queue} are ready"), async || {
            (self.counts(queue).await["ready"] == runs).then_some(())
        })
        .await;
    }

    async fn create(self, queue: &str, tasks: usize) {
        for key in KEYS.iter().flat_map(|key| std::iter::repeat_n(key, tasks)) {
            let (task, mut body) = (new_task(), definition(queue));
            body["extra"] = json!({"tenure": {"key": key}});
            self.ok("PUT", &format!("/task/{task}"), Some(&body)).await;
            self.tasks.borrow_mut().created.insert(task.to_string(), queue.to_owned());
        }
    }

    async fn claim(self, queue: &str, runs: u16) -> Vec<Value> {
        let claims = claim(&mut client_of(self.server), &self.site.root, queue, runs).await;
        claims.iter().for_each(|claim| self.note_claim(claim));
        claims
    }

    fn note_claim(self, claim: &Value) {
        let run = run_of(claim);
        assert!(self.tasks.borrow_mut().claimed.insert(run.clone()), "{run} was claimed twice");
    }

    async fn of_run(self, claim: &Value, what: &str, body: Option<&Value>) {
        let path = format!("{}/{what}", run_of(claim));
        let answer = call(&mut client_of(self.server), &credentials_of(claim), "POST", &path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }

    async fn renew(self, claim: &Value) {
        self.of_run(claim, "reclaim", None).await;
    }

    async fn complete(self, claim: &Value) {
        self.of_run(claim, "completed", Some(&json!({}))).await;
        let task = task_of(claim);
        assert!(self.tasks.borrow_mut().completed.insert(task.clone()), "{task} was completed twice");
    }

    async fn retry(self, claim: &Value) {
        self.of_run(claim, "exception", Some(&json!({"reason": "intermittent-task"}))).await;
        self.tasks.borrow_mut().retried.insert(task_of(claim));
    }

    async fn start_session(self) -> String {
        let body = json!({
            "taskQueueId": ASSIGNED, "workerGroup": "group", "workerId": WORKER, "ttl": 3600, "capacity": CAPACITY,
        });
        let answer = self.call("POST", &format!("{TENURE_API}/sessions"), Some(&body)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.body["sessionId"].as_str().unwrap().to_owned()
    }

    async fn assigned(self, session: &str) -> BTreeSet<String> {
        let path = format!("{TENURE_API}/sessions/{session}/inbox?wait=0&after=0");
        let inbox = self.ok("GET", &path, None).await;
        let items = inbox["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "assigned");
        items.map(|item| item["taskId"].as_str().unwrap().to_owned()).collect()
    }

    async fn until_assigned(self, session: &str, tasks: usize) -> BTreeSet<String> {
        eventually("runs are assigned", async || {
            let assigned = self.assigned(session).await;
            (assigned.len() == tasks).then_some(assigned)
        })
        .await
    }

    async fn accept(self, session: &str, task: &str) -> Value {
        let body = json!({"workerGroup": "group", "workerId": WORKER, "sessionId": session});
        let claim = self.ok("POST", &format!("/task/{task}/runs/0/claim"), Some(&body)).await;
        self.note_claim(&claim);
        claim
    }

    async fn poll_url(self) -> String {
        let urls = self.ok("GET", &format!("/poll-task-url/{LIMITED}"), None).await;
        let url = urls["queues"][6]["signedPollUrl"].as_str().unwrap();
        url.strip_prefix(self.server.root_url()).unwrap().to_owned()
    }

    async fn poll(self, url: &str) -> Option<String> {
        let reply = Raw::new("GET", url).send(self.server.root_url()).await;
        let text = reply.text();
        assert_eq!(reply.status, 200, "{text}");
        let message = text.split_once("<MessageText>")?.1.split_once("</MessageText>")?.0;
        let content: Value = serde_json::from_slice(&STANDARD.decode(message).unwrap()).unwrap();
        Some(content["taskId"].as_str().unwrap().to_owned())
    }
}

struct Given {
    claims: BTreeMap<&'static str, Vec<Value>>,
    session: String,
    assigned: BTreeSet<String>,
    poll_url: String,
    polled: String,
}

impl Given {
    fn claims_of(&mut self, queue: &'static str) -> &mut Vec<Value> {
        self.claims.entry(queue).or_default()
    }
}

/// Fills the queues through the old server. Workers claim some of the tasks, and complete one of
/// each queue.
async fn fill(old: At<'_>) -> Given {
    for (queue, policy) in [
        (LIMITED, json!({"concurrency": {"total": TOTAL, "perKey": PER_KEY}})),
        (FAIR, json!({"fair": true})),
        (RATED, json!({"rate": {"total": {"count": BURST, "seconds": BURST * 3_600, "burst": BURST}}})),
        (ASSIGNED, json!({"dispatch": "assign", "onSchedulerLoss": "keep"})),
    ] {
        old.put_policy(queue, &policy).await;
    }
    for queue in QUEUES {
        old.create(queue, TASKS).await;
    }
    let mut claims = BTreeMap::new();
    let all = TASKS * KEYS.len();
    for (queue, ready, runs) in [(LIMITED, TOTAL, 3), (FAIR, all, 4), (RATED, BURST, 2), (PLAIN, all, 4)] {
        old.until_ready(queue, ready).await;
        let mut claimed = old.claim(queue, runs).await;
        assert_eq!(claimed.len(), usize::from(runs), "{queue}");
        old.complete(&claimed.remove(0)).await;
        claims.insert(queue, claimed);
    }
    let session = old.start_session().await;
    let mut accepted = Vec::new();
    for task in old.until_assigned(&session, CAPACITY).await.iter().take(2) {
        accepted.push(old.accept(&session, task).await);
    }
    old.complete(&accepted.remove(0)).await;
    claims.insert(ASSIGNED, accepted);
    let assigned = old.until_assigned(&session, 2).await;
    old.until_ready(LIMITED, 1).await;
    let poll_url = old.poll_url().await;
    let polled = old.poll(&poll_url).await.expect("a run is ready");
    Given { claims, session, assigned, poll_url, polled }
}

/// Starts the new server, which migrates. Meanwhile work in the plain queue continues at the old
/// one.
async fn start_beside(old: At<'_>) -> Server {
    let is_starting = Cell::new(true);
    let starting = async {
        let server = old.site.launch.start(old.site.folder.path(), "new").await;
        is_starting.set(false);
        server
    };
    let working = async {
        while is_starting.get() {
            work_in_plain_queue(old).await;
        }
    };
    let (server, ()) = tokio::join!(starting, working);
    server
}

/// Returns how many tasks were completed.
async fn work_in_plain_queue(at: At<'_>) -> usize {
    at.create(PLAIN, 1).await;
    let claims = at.claim(PLAIN, 3).await;
    for claim in &claims {
        at.renew(claim).await;
        at.complete(claim).await;
    }
    claims.len()
}

async fn assert_starts_nothing_of_limited_queues(old: At<'_>, given: &Given) {
    for queue in [LIMITED, FAIR, RATED] {
        assert_eq!(old.claim(queue, 10).await, Vec::<Value>::new(), "{queue}");
    }
    assert_eq!(old.poll(&given.poll_url).await, None);
    let body = json!({"workerGroup": "group", "workerId": WORKER});
    let refused = old.call("POST", &format!("/task/{}/runs/0/claim", given.polled), Some(&body)).await;
    assert_eq!((refused.status, refused.code()), (409, "RequestConflict"), "{}", refused.body);
    eventually("the log has the pass that fails", async || {
        let log = old.server.log();
        log.lines().any(|line| line.contains("background pass failed") && line.contains("admission")).then_some(())
    })
    .await;
}

/// Claims of the old server count against the limits of the new one, and both servers renew them.
async fn assert_claims_go_on(old: At<'_>, new: At<'_>, given: &mut Given) {
    let free = TOTAL - given.claims_of(LIMITED).len();
    let claimed = new.claim(LIMITED, 10).await;
    assert_eq!((claimed.len(), new.claim(LIMITED, 10).await.len()), (free, 0));
    given.claims_of(LIMITED).extend(claimed);
    let left = BURST - given.claims_of(RATED).len() - 1;
    let claimed = new.claim(RATED, 10).await;
    assert!(claimed.len() <= left, "{}", claimed.len());
    given.claims_of(RATED).extend(claimed);
    let claimed = new.claim(FAIR, 3).await;
    assert_eq!(claimed.len(), 3);
    given.claims_of(FAIR).extend(claimed);
    assert_eq!(new.assigned(&given.session).await, given.assigned);
    for (task, at) in given.assigned.clone().iter().zip([old, new]) {
        let claimed = at.accept(&given.session, task).await;
        given.claims_of(ASSIGNED).push(claimed);
    }
    for claim in given.claims.values().flatten() {
        old.renew(claim).await;
        new.renew(claim).await;
    }
}

/// Ends half of the claims at each server. Two tasks are retried.
async fn end_claims(old: At<'_>, new: At<'_>, given: &mut Given) {
    old.complete(&given.claims_of(LIMITED).remove(0)).await;
    let next = eventually("a slot that was freed at the old server starts a run", async || {
        let claims = new.claim(LIMITED, 10).await;
        (!claims.is_empty()).then_some(claims)
    })
    .await;
    assert_eq!(next.len(), 1);
    given.claims_of(LIMITED).extend(next);
    old.retry(&given.claims_of(LIMITED).remove(0)).await;
    old.retry(&given.claims_of(FAIR).remove(0)).await;
    for (claim, at) in given.claims.values().flatten().zip([old, new].into_iter().cycle()) {
        at.complete(claim).await;
    }
}

async fn work_off(old: At<'_>, new: At<'_>, queue: &str) {
    let deadline = Instant::now() + WORKED_OFF_WITHIN;
    while new.tasks.borrow().are_left(queue) {
        assert!(Instant::now() < deadline, "tasks of {queue} are left: {}", new.counts(queue).await);
        for (claim, at) in new.claim(queue, 2).await.iter().zip([old, new]) {
            at.complete(claim).await;
        }
    }
}

async fn work_off_assigned(new: At<'_>, session: &str) {
    let deadline = Instant::now() + WORKED_OFF_WITHIN;
    while new.tasks.borrow().are_left(ASSIGNED) {
        assert!(Instant::now() < deadline, "tasks of {ASSIGNED} are left: {}", new.counts(ASSIGNED).await);
        for task in new.assigned(session).await {
            let claim = new.accept(session, &task).await;
            new.complete(&claim).await;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn assert_completed_once(new: At<'_>) {
    let tasks = new.tasks.borrow().clone();
    for task in tasks.created.keys() {
        let status = new.ok("GET", &format!("/task/{task}/status"), None).await["status"].clone();
        let runs = status["runs"].as_array().unwrap().iter();
        let states: Vec<&str> = runs.map(|run| run["state"].as_str().unwrap()).collect();
        let expected = if tasks.retried.contains(task) { vec!["exception", "completed"] } else { vec!["completed"] };
        assert_eq!(states, expected, "{status}");
    }
    assert_eq!(tasks.claimed.len(), tasks.created.len() + tasks.retried.len());
}

async fn assert_empty(at: At<'_>) {
    for queue in QUEUES {
        let counts = at.ok("GET", &format!("/task-queues/{}/counts", queue_segment(queue)), None).await;
        assert_eq!((&counts["pendingTasks"], &counts["claimedTasks"]), (&json!(0), &json!(0)), "{queue}");
        let counts = at.counts(queue).await;
        for name in ["pending", "waiting", "ready", "assigned", "claimed"] {
            assert_eq!(counts[name], 0, "{queue}: {counts}");
        }
    }
}

/// Takes snapshots until it is stopped. Returns the maximum of each column of `SNAPSHOT`.
fn watch(mut conn: PgConnection, mut stopped: oneshot::Receiver<()>) -> JoinHandle<(i64, i64, i64)> {
    tokio::spawn(async move {
        let mut most = (0, 0, 0);
        loop {
            let (claims, of_key, ready): (i64, i64, i64) =
                sqlx::query_as(SNAPSHOT).bind(LIMITED).fetch_one(&mut conn).await.unwrap();
            most = (most.0.max(claims), most.1.max(of_key), most.2.max(ready));
            tokio::select! {
                _ = &mut stopped => return most,
                () = tokio::time::sleep(SNAPSHOT_EVERY) => {}
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_is_completed_once_beside_the_old_server() {
    let (site, old_server) = Site::start().await;
    let tasks = RefCell::default();
    let old = At { server: &old_server, site: &site, tasks: &tasks };
    let (stop, stopped) = oneshot::channel();
    let watching = watch(site.database.connect("watch").await, stopped);
    let mut given = fill(old).await;

    let new_server = start_beside(old).await;
    let new = At { server: &new_server, site: &site, tasks: &tasks };
    assert_starts_nothing_of_limited_queues(old, &given).await;
    assert_claims_go_on(old, new, &mut given).await;
    assert_eq!(work_in_plain_queue(old).await, 3);
    for queue in QUEUES {
        old.create(queue, LATER_TASKS).await;
    }
    end_claims(old, new, &mut given).await;
    new.put_policy(RATED, &json!({"rate": {"total": {"count": 100, "seconds": 1, "burst": 10}}})).await;
    let queues = PULLED.into_iter().flat_map(|queue| [queue; WORKERS]);
    join_all(queues.map(|queue| work_off(old, new, queue))).await;
    for queue in [LIMITED, FAIR, RATED] {
        assert_eq!(old.claim(queue, 10).await, Vec::<Value>::new(), "{queue}");
    }
    site.assert_old_does_not_start().await;

    // Until then the old server may be the scheduler.
    assert!(old_server.stop().await.success());
    work_off_assigned(new, &given.session).await;
    assert_completed_once(new).await;
    stop.send(()).unwrap();
    let (claims, of_key, ready) = watching.await.unwrap();
    assert_eq!((usize::try_from(claims), usize::try_from(of_key), ready), (Ok(TOTAL), Ok(PER_KEY), 0));

    assert!(new_server.stop().await.success());
    let server = site.launch.start(site.folder.path(), "restarted").await;
    assert_empty(At { server: &server, site: &site, tasks: &tasks }).await;
    assert!(server.stop().await.success());
}
