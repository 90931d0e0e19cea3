//! Partition groups: members that are killed, frozen or stopped, servers that are killed, and a
//! database that nobody can use for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sqlx::Connection as _;
use tenure_api::partitions::slot_of_key;
use tenure_tests::http::{TENURE_API, queue_segment};
use tenure_tests::server::{Launch, Server};

use crate::policy_commands::{done, run};
use crate::rig::{LOOK_EVERY, Rig, client_of, eventually, ok, refusal};

const QUEUE: &str = "divided/linux";
const KEYS: usize = 60;
/// In seconds.
const INTERVAL: i64 = 2;

fn path(rest: &str) -> String {
    format!("{TENURE_API}/partitions/mail{rest}")
}

async fn tick(rig: &Rig, member: &str) -> Value {
    ok(rig.call("POST", &path("/tick"), Some(&json!({"memberId": member}))).await)
}

/// A running member. Dropping it kills the process.
struct Process {
    name: String,
    child: Child,
    output: PathBuf,
}

impl Process {
    fn start(rig: &Rig, server: &Server, name: &str) -> Self {
        Self::start_with_keys(rig, server, name, KEYS)
    }

    fn start_with_keys(rig: &Rig, server: &Server, name: &str, keys: usize) -> Self {
        let output = rig.folder.path().join(format!("{name}.txt"));
        let child = Command::new(env!("CARGO_BIN_EXE_partition_member"))
            .args(["mail", name, &keys.to_string()])
            .env("TASKCLUSTER_ROOT_URL", server.root_url())
            .env("TASKCLUSTER_CLIENT_ID", &rig.root.client_id)
            .env("TASKCLUSTER_ACCESS_TOKEN", rig.root.access_token.expose())
            .env_remove("TASKCLUSTER_CERTIFICATE")
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&output).unwrap())
            .spawn()
            .unwrap();
        Self { name: name.to_owned(), child, output }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Key, begin and end of each piece of work.
    fn work(&self) -> Vec<(usize, i64, i64)> {
        let text = std::fs::read_to_string(&self.output).unwrap();
        text.lines()
            .map(|line| {
                let mut words = line.split(' ');
                let mut next = || words.next().unwrap();
                (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap())
            })
            .collect()
    }

    fn keys_after(&self, lines: usize) -> BTreeSet<usize> {
        self.work()[lines..].iter().map(|(key, ..)| *key).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the epoch of the group if exactly these members have a share.
async fn epoch_of(rig: &Rig, members: &[&Process]) -> Option<i64> {
    let group = ok(rig.call("GET", &path(""), None).await);
    let having = group["members"].as_array().unwrap().iter().filter(|member| !member["index"].is_null());
    let having: BTreeSet<&str> = having.map(|member| member["memberId"].as_str().unwrap()).collect();
    let expected: BTreeSet<&str> = members.iter().map(|member| member.name.as_str()).collect();
    group["epoch"].as_i64().filter(|_| group["state"] == "active" && having == expected)
}

/// Waits until these members have a share, and then until a member has worked on each key.
async fn check_shares(rig: &Rig, members: &[&Process]) {
    eventually("each key has one of the members", async || {
        let epoch = epoch_of(rig, members).await?;
        let before: Vec<usize> = members.iter().map(|member| member.work().len()).collect();
        let keys = loop {
            let keys: Vec<BTreeSet<usize>> =
                members.iter().zip(&before).map(|(member, lines)| member.keys_after(*lines)).collect();
            if keys.iter().flatten().collect::<BTreeSet<_>>().len() == KEYS {
                break keys;
            }
            tokio::time::sleep(LOOK_EVERY).await;
            // On a busy machine a member may call too late, and shares move.
            epoch_of(rig, members).await.filter(|now| *now == epoch)?;
        };
        epoch_of(rig, members).await.filter(|now| *now == epoch)?;
        assert_eq!(keys.iter().map(BTreeSet::len).sum::<usize>(), KEYS, "a key has two members: {keys:?}");
        Some(())
    })
    .await;
}

async fn check_named(rig: &Rig, members: &[Process], numbers: &[usize]) {
    let is_one = |member: &&Process| numbers.iter().any(|number| member.name == format!("m{number}"));
    let chosen: Vec<&Process> = members.iter().filter(is_one).collect();
    check_shares(rig, &chosen).await;
}

/// Lists pieces of work on a key by two members at the same time.
fn overlaps(members: &[Process]) -> Vec<String> {
    let mut by_key: BTreeMap<usize, Vec<(i64, i64, &str)>> = BTreeMap::new();
    for member in members {
        for (key, begin, end) in member.work() {
            by_key.entry(key).or_default().push((begin, end, &member.name));
        }
    }
    let mut found = Vec::new();
    for (key, mut pieces) in by_key {
        pieces.sort_unstable();
        for pair in pieces.windows(2) {
            let [(_, end, first), (begin, _, second)] = pair else { continue };
            if first != second && begin < end {
                found.push(format!("key {key}: {pair:?}"));
            }
        }
    }
    found
}

#[track_caller]
fn check_overlap(members: &[Process]) {
    assert_eq!(overlaps(members), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_has_two_members_or_none() {
    let rig = Rig::start().await;
    let mut other = rig.another("other").await;
    ok(rig.call("PUT", &path(""), Some(&json!({"interval": INTERVAL}))).await);
    let mut members: Vec<Process> =
        (0..5).map(|n| Process::start(&rig, if n % 2 == 0 { &rig.server } else { &other }, &format!("m{n}"))).collect();
    check_named(&rig, &members, &[0, 1, 2, 3, 4]).await;
    members[0].signal(Signal::SIGKILL);
    check_named(&rig, &members, &[1, 2, 3, 4]).await;
    members.push(Process::start(&rig, &rig.server, "m5"));
    members[1].signal(Signal::SIGSTOP);
    check_named(&rig, &members, &[2, 3, 4, 5]).await;
    members[1].signal(Signal::SIGCONT);
    check_named(&rig, &members, &[1, 2, 3, 4, 5]).await;
    members[2].signal(Signal::SIGTERM);
    check_named(&rig, &members, &[1, 3, 4, 5]).await;
    // Members of the other server stop by themselves.
    other.kill().unwrap();
    check_named(&rig, &members, &[4, 5]).await;
    check_overlap(&members);
}

/// Proves that the test above can fail. The members go through their keys at different speeds, so
/// that they meet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_catches_overlapping_shares() {
    let rig = Rig::start_with(|launch| launch.env("TENURE_BREAK", "share-overlap")).await;
    ok(rig.call("PUT", &path(""), Some(&json!({"interval": INTERVAL}))).await);
    let start = |n: usize| Process::start_with_keys(&rig, &rig.server, &format!("m{n}"), KEYS - 7 * n);
    let members: Vec<Process> = (0..3).map(start).collect();
    eventually("two members work on a key", async || (!overlaps(&members).is_empty()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_outage_moves_no_share() {
    let rig = Rig::start().await;
    ok(rig.call("PUT", &path(""), Some(&json!({"interval": INTERVAL}))).await);
    let members: Vec<Process> = (0..3).map(|n| Process::start(&rig, &rig.server, &format!("m{n}"))).collect();
    let all: Vec<&Process> = members.iter().collect();
    check_shares(&rig, &all).await;
    let before = ok(rig.call("GET", &path(""), None).await);
    // Nobody can call: to the group, this is a database that is away.
    let mut conn = rig.database.connect("outage").await;
    let mut transaction = conn.begin().await.unwrap();
    sqlx::query("SELECT FROM partition_groups FOR UPDATE").execute(&mut *transaction).await.unwrap();
    eventually("five intervals have passed", async || {
        let group = ok(rig.call("GET", &path(""), None).await);
        let ticked = group["members"][0]["number"].as_i64().unwrap();
        let seconds: f64 = sqlx::query_scalar("SELECT extract(epoch FROM tenure_now())::float8")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        (seconds as i64 / INTERVAL > ticked + 5).then_some(())
    })
    .await;
    let stopped: Vec<usize> = members.iter().map(|member| member.work().len()).collect();
    transaction.rollback().await.unwrap();
    eventually("all members work again", async || {
        members.iter().zip(&stopped).all(|(member, lines)| member.work().len() > lines + KEYS).then_some(())
    })
    .await;
    check_shares(&rig, &all).await;
    let after = ok(rig.call("GET", &path(""), None).await);
    assert_eq!(after["epoch"], before["epoch"]);
    let indices = |group: &Value| -> Vec<Value> {
        group["members"].as_array().unwrap().iter().map(|member| member["index"].clone()).collect()
    };
    assert_eq!(indices(&after), indices(&before));
    check_overlap(&members);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_comes_in_second_interval_and_is_repeated() {
    let rig = Rig::manual().await;
    ok(rig.call("PUT", &path(""), Some(&json!({"interval": 600}))).await);
    for state in ["waiting", "waiting", "active"] {
        assert_eq!(tick(&rig, "one").await["state"], state);
        rig.advance(600).await;
    }
    let (first, again) = (tick(&rig, "one").await, tick(&rig, "one").await);
    for field in ["state", "index", "replicas", "epoch", "number", "validUntil"] {
        assert_eq!(first[field], again[field], "{field}");
    }
    assert_eq!((&first["index"], &first["replicas"], &first["epoch"]), (&json!(0), &json!(1), &json!(1)));
    let events = ok(rig.call("GET", &format!("{TENURE_API}/events?exchange=partitions-changed"), None).await);
    assert_eq!(events["events"].as_array().unwrap().len(), 1);
    assert_eq!(
        events["events"][0]["payload"],
        json!({"version": 1, "name": "mail", "epoch": 1, "state": "active",
        "replicas": 1})
    );
}

/// Rows P1 to P4: from one to six members at two servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_each_share_has_one_member_at_two_servers() {
    const INTERVAL: i64 = 600;
    let rig = Rig::manual().await;
    let other = Launch::on_database(rig.database.url(), &rig.secret_key).flag("--clock", "manual");
    let other = other.start(rig.folder.path(), "other").await;
    ok(rig.call("PUT", &path(""), Some(&json!({"interval": INTERVAL}))).await);
    let tick_all = async |members: usize, acked: &Value| {
        let mut answers = Vec::new();
        for number in 0..members {
            let mut body = json!({"memberId": format!("m{number}")});
            if !acked.is_null() {
                body["acked"] = acked.clone();
            }
            let server = if number % 2 == 0 { &rig.server } else { &other };
            let answer = crate::rig::call(&mut client_of(server), &rig.root, "POST", &path("/tick"), Some(&body)).await;
            answers.push(ok(answer));
        }
        answers
    };
    // The clock also runs: begin early in an interval.
    let now = ok(rig.call("GET", &format!("{TENURE_API}/clock"), None).await);
    let now = chrono::DateTime::parse_from_rfc3339(now["now"].as_str().unwrap()).unwrap().timestamp();
    rig.advance(INTERVAL - now % INTERVAL).await;
    for members in 1..=6 {
        let mut proposed = Value::Null;
        for _ in 0..3 {
            rig.advance(INTERVAL).await;
            let answers = tick_all(members, &proposed).await;
            proposed = answers[0]["next"]["epoch"].clone();
        }
        // Those who lose slots have acknowledged the map.
        let answers = tick_all(members, &proposed).await;
        let answers = if answers[0]["state"] == "active" { answers } else { tick_all(members, &Value::Null).await };
        let mut indices = Vec::new();
        for answer in &answers {
            assert_eq!((&answer["state"], &answer["replicas"]), (&json!("active"), &json!(members)), "{answer}");
            assert_eq!(answer["epoch"], answers[0]["epoch"]);
            let valid_until = chrono::DateTime::parse_from_rfc3339(answer["validUntil"].as_str().unwrap()).unwrap();
            assert_eq!(valid_until.timestamp(), (answer["number"].as_i64().unwrap() + 2) * INTERVAL);
            indices.push(answer["index"].as_u64().unwrap());
        }
        let owners = |key: usize| {
            let slot = u64::from(slot_of_key(&key.to_string()));
            indices.iter().filter(|index| slot % members as u64 == **index).count()
        };
        assert!((0..10_000).all(|key| owners(key) == 1), "{indices:?}");
        indices.sort_unstable();
        assert_eq!(indices, (0..members as u64).collect::<Vec<_>>());
    }
}

/// A frozen member claims by the map that it knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_with_older_map_claims_nothing() {
    let rig = Rig::manual().await;
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key);
    let launch = launch.flag("--clock", "manual").flag("--claim-work-wait", "0s");
    let other = launch.start(rig.folder.path(), "other").await;
    ok(rig.call("PUT", &path(""), Some(&json!({"interval": 60}))).await);
    rig.put_policy(QUEUE, &json!({"partition": "mail"})).await;
    for _ in 0..3 {
        tick(&rig, "frozen").await;
        rig.advance(60).await;
    }
    let known = tick(&rig, "frozen").await;
    assert_eq!((&known["index"], &known["replicas"]), (&json!(0), &json!(1)));
    // Another one joins, and the frozen one is missed.
    for _ in 0..3 {
        rig.advance(60).await;
        tick(&rig, "new").await;
    }
    let task = rig.create_one(QUEUE).await;
    let claim = |epoch: &Value| {
        json!({"workerGroup": "group", "workerId": "worker", "tasks": 32,
        "partition": {"name": "mail", "epoch": epoch, "index": 0}})
    };
    let claim_work = format!("/claim-work/{}", queue_segment(QUEUE));
    for server in [&rig.server, &other] {
        let body = claim(&known["epoch"]);
        let answer = crate::rig::call(&mut client_of(server), &rig.root, "POST", &claim_work, Some(&body)).await;
        assert_eq!((answer.status, &answer.body["code"]), (409, &json!("StalePartition")), "{}", answer.body);
        assert_eq!(answer.body["epoch"], 2);
    }
    assert_eq!(rig.status(task).await["state"], "pending");
    let claimed = ok(rig.call("POST", &claim_work, Some(&claim(&json!(2)))).await);
    assert_eq!(claimed["tasks"][0]["status"]["taskId"], json!(task));
    let deleted = rig.call("DELETE", &path(""), None).await;
    assert_eq!((deleted.status, &deleted.body["code"]), (409, &json!("RequestConflict")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_calls_are_refused() {
    let rig = Rig::start().await;
    let call = async |method: &str, path: String, body: Option<Value>| {
        let answer = rig.call(method, &path, body.as_ref()).await;
        (answer.status, answer.body["code"].as_str().unwrap_or_default().to_owned())
    };
    let refused = |status: u16, code: &str| (status, code.to_owned());
    let one = json!({"memberId": "one"});
    assert_eq!(call("POST", path("/tick"), Some(one.clone())).await, refused(404, "ResourceNotFound"));
    assert_eq!(call("PUT", path(""), Some(json!({"interval": 0}))).await, refused(400, "InputError"));
    assert_eq!(call("PUT", path(""), Some(json!({"interval": 20}))).await.0, 200);
    assert_eq!(call("PUT", path(""), Some(json!({"interval": 21}))).await, refused(409, "RequestConflict"));
    assert_eq!(call("POST", path("/tick"), Some(json!({"memberId": "a/b"}))).await, refused(400, "InputError"));
    assert_eq!(call("DELETE", path("/members/one"), None).await.0, 200);
    let nobody = rig.make_client("nobody", &["tenure:join-partition:other"]).await;
    let answer = crate::rig::call(&mut rig.client(), &nobody, "POST", &path("/tick"), Some(&one)).await;
    assert_eq!((answer.status, &answer.body["code"]), (403, &json!("InsufficientScopes")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_is_set_shown_and_deleted_by_commands() {
    let rig = Rig::start().await;
    let missing = refusal(&run(&rig, &["partition", "show", "mail"]).await, 1);
    assert!(missing.contains("(404 ResourceNotFound)"), "{missing}");
    let shown = done(&rig, &["partition", "set", "mail", "--interval", "1m", "--drain-timeout", "90"]).await;
    for line in ["partition       mail\n", "interval        60s\n", "drain timeout   90s\n"] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    tick(&rig, "one").await;
    let shown = done(&rig, &["partition", "show", "mail"]).await;
    assert!(shown.lines().any(|line| line.starts_with("one ")), "{shown}");
    assert_eq!(done(&rig, &["partition", "delete", "mail"]).await, "Partition group mail is deleted.\n");
}
