//! Row Z7: readers at another server see all runs of a session, or none after its end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, TENURE_API};
use tenure_tests::server::{Launch, Server};

use super::{QUEUE, claim, path};
use crate::rig::{Rig, call_patiently, client_of, eventually, ok};

/// As many runs as a session can be assigned, and as an inbox shows.
const ALL: usize = 1_000;
/// Most runs of a claim.
const CLAIM_MAX: u16 = 32;
/// Less than the lease of a claim, in seconds.
const TTL: i64 = 600;

/// Readers of the end of a session. Each of their answers must show the state before the end or the
/// state after it. A read that begins after an answer of the second kind must be of that kind too,
/// even if the answers show different numbers.
struct Readers<'a> {
    server: &'a Server,
    root: &'a Credentials,
    /// Readers with a first answer.
    ready: AtomicUsize,
    /// An answer showed the state after the end.
    seen: AtomicBool,
    /// The end is complete.
    over: AtomicBool,
}

impl<'a> Readers<'a> {
    fn new(server: &'a Server, root: &'a Credentials) -> Self {
        Self { server, root, ready: AtomicUsize::new(0), seen: AtomicBool::new(false), over: AtomicBool::new(false) }
    }

    /// Repeats a read until the end is over. `states` has the contents of its answers before and after.
    async fn read(&self, path: &str, states: (Value, Value), shown: impl Fn(&Answer) -> Value) {
        let (before, after) = states;
        let mut client = client_of(self.server);
        let mut is_first = true;
        loop {
            let (seen, over) = (self.seen.load(Ordering::SeqCst), self.over.load(Ordering::SeqCst));
            let now = shown(&call_patiently(&mut client, self.root, "GET", path, None).await);
            assert!(now == before || now == after, "{path} shows a part of the end: {now}");
            if now == after {
                self.seen.store(true, Ordering::SeqCst);
            } else {
                assert!(!seen && !over, "{path} shows {now} after an answer from after the end");
            }
            if is_first {
                self.ready.fetch_add(1, Ordering::SeqCst);
                is_first = false;
            }
            if over {
                return;
            }
        }
    }

    async fn until_ready(&self, readers: usize) {
        eventually("all have read", async || (self.ready.load(Ordering::SeqCst) == readers).then_some(())).await;
        assert!(!self.seen.load(Ordering::SeqCst), "the session has not ended yet");
    }

    fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

fn body(answer: &Answer) -> &Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    &answer.body
}

/// Returns this field of each listed worker.
fn of_workers(answer: &Answer, field: &str) -> Value {
    body(answer)["workers"].as_array().unwrap().iter().map(|worker| worker[field].clone()).collect()
}

fn of_queue(rest: &str) -> String {
    format!("{TENURE_API}/queues/sessions%2Flinux{rest}")
}

async fn create_all(rig: &Rig) {
    let tasks = vec![json!({"taskQueueId": QUEUE}); ALL];
    ok(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": tasks }))).await);
}

/// Fails if the runs are given back in several transactions, or an answer is read in two snapshots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z7_expired_session_loses_all_claimed_runs_at_once() {
    let settings = |launch: Launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s");
    let rig = Rig::start_with(settings).await;
    let other = settings(Launch::on_database(rig.database.url(), &rig.secret_key));
    let other = other.start(rig.folder.path(), "other").await;
    let session = rig.start_session(QUEUE, "w1", json!({"ttl": TTL})).await;
    create_all(&rig).await;
    let mut claimed = 0;
    while claimed < ALL {
        let claims = claim(&rig, "w1", Some(&session), CLAIM_MAX).await;
        assert!(!claims.is_empty(), "{claimed} of {ALL} runs are claimed");
        claimed += claims.len();
    }
    let (queue, workers, stored) = (of_queue(""), of_queue("/workers"), path(&session, ""));
    let readers = Readers::new(&other, &rig.root);
    let numbers = || (json!([ALL, 0]), json!([0, ALL]));
    let queue = readers.read(&queue, numbers(), |answer| json!([body(answer)["claimed"], body(answer)["pending"]]));
    let counts = readers.read("/task-queues/sessions%2Flinux/counts", numbers(), |answer| {
        json!([body(answer)["claimedTasks"], body(answer)["pendingTasks"]])
    });
    let workers = readers.read(&workers, (json!([ALL]), json!([])), |answer| of_workers(answer, "running"));
    let session = readers.read(&stored, (json!([ALL, null]), json!([0, "expired"])), |answer| {
        json!([body(answer)["running"], body(answer)["endedBy"]])
    });
    let expiry = async {
        readers.until_ready(4).await;
        rig.advance(TTL + 1).await;
        eventually("the session expires", async || {
            (rig.call("GET", &stored, None).await.body["endedBy"] == "expired").then_some(())
        })
        .await;
        readers.stop();
    };
    tokio::join!(queue, counts, workers, session, expiry);
    other.stop().await;
}

/// Fails if the inbox is emptied, the runs return to the queue, or the session ends, each by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z7_ended_session_loses_all_assigned_runs_at_once() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let other = rig.another("other").await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let session = rig.start_session(QUEUE, "w1", json!({"capacity": ALL})).await;
    create_all(&rig).await;
    let (queue, workers) = (of_queue(""), of_queue("/workers"));
    eventually("all runs are assigned", async || {
        (rig.call("GET", &queue, None).await.body["assigned"] == ALL).then_some(())
    })
    .await;
    let inbox = path(&session, "/inbox?wait=0&after=0");
    let readers = Readers::new(&other, &rig.root);
    let queue = readers.read(&queue, (json!([ALL, 0]), json!([0, ALL])), |answer| {
        json!([body(answer)["assigned"], body(answer)["waiting"]])
    });
    let workers = readers.read(&workers, (json!([ALL]), json!([])), |answer| of_workers(answer, "assigned"));
    let inbox = readers.read(&inbox, (json!(ALL), json!(0)), |answer| {
        if answer.status == 410 {
            return json!(0);
        }
        let items = body(answer)["items"].as_array().unwrap().iter();
        json!(items.filter(|item| item["kind"] == "assigned").count())
    });
    let end = async {
        readers.until_ready(3).await;
        let ended = call_patiently(&mut rig.client(), &rig.root, "DELETE", &path(&session, ""), None).await;
        assert_eq!((ended.status, &ended.body["returned"]), (200, &json!(ALL)), "{}", ended.body);
        readers.stop();
    };
    tokio::join!(queue, workers, inbox, end);
    other.stop().await;
}
