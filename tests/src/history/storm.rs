//! Runs a storm: two servers on one database with all actors, then quiet, then a drain of the
//! queues.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tokio::task::{JoinHandle, JoinSet};

use super::check::History;
use super::ground::Ground;
use super::last_sessions;
use super::log_reader::LogReader;
use super::member::Member;
use super::operator::{operate, resume};
use super::policy::DELAY_MAX;
use super::reader::read;
use super::record::{Answer, Event, RunKey};
use super::redriver::redrive;
use super::saboteur::sabotage;
use super::snapshot::{Counts, Snapshot, Status};
use super::submitter::{UNHURRIED_MILLIS, submit};
use super::subscriber::{Delivered, Subscriber};
use super::worker::Worker;
use super::world::{Actor, World};
use super::{BACKLOG, BOUNDED_QUEUE, RETAIN_COMPLETED, RETAIN_FAILED, RETAINED_QUEUE, application, schedules};
use crate::http::{QUEUE_API, TENURE_API, queue_segment};
use crate::random::Random;
use crate::server::{Launch, Server, create_root_client, fresh_secret_key};

const SUBMITTERS: u64 = 4;
const WORKERS: usize = 8;
const REDRIVERS: u64 = 2;
/// Numbers of workers with sessions. Two processes that share a number end each other's sessions.
const MEMBERS: [usize; 3] = [20, 21, 21];
/// Tasks per request: one page of statuses.
const TASKS_PER_CALL: usize = 1_000;
const QUEUES: [&str; 6] =
    ["storm/alpha", "storm/beta", "storm/gamma", "storm/polled", "storm/retained", "storm/bounded"];
const CLAIM_TERM_SECONDS: u64 = 60;
/// Longest pause between two moves of the clock, in milliseconds, and longest move, in seconds.
const CLOCK_PAUSE_MAX: u64 = 200;
pub(super) const CLOCK_MOVE_MAX: u64 = 15;
/// A server whose sessions were killed answers reads again within this time.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// Requests of clients that hung up may still run in the server. On a slow machine claims expire or
/// delays end during every read, until none is left. So this is twice a claim's longest life plus
/// the longest delay.
const QUIET_WITHIN: Duration = Duration::from_secs(2 * CLAIM_TERM_SECONDS + DELAY_MAX);
/// Limit for a server that is broken on purpose and may never be quiet.
const QUIET_WITHIN_WHEN_BROKEN: Duration = Duration::from_secs(4);
/// Least number of reads, since a read of many tasks can take long.
const LOOKS_MIN: u32 = 5;
const QUIET_POLL: Duration = Duration::from_millis(250);
/// Limit of the bytes of the bounded queue: never reached, but they are counted.
const BACKLOG_BYTES: i64 = 1_000_000;
const BACKLOG_COUNTED_EVERY: Duration = Duration::from_millis(500);
/// How often claims may expire and delays end before remaining tasks count as stuck.
const DRAIN_ROUNDS: usize = 12;

#[derive(Debug, Clone)]
pub struct Plan {
    /// Decides every choice of every actor, but not how their calls interleave.
    pub seed: u64,
    /// Operations of all submitters and workers together.
    pub operations: u64,
    /// An invariant that the server breaks on purpose: a value of `TENURE_BREAK`.
    pub breakage: Option<&'static str>,
    /// True if a subscription sends completions to a receiver that fails at random. It keeps resolved
    /// tasks longer, so the other histories do without.
    pub subscriber: bool,
    /// True if the database fails over and loses the end of its log. It then has its own cluster.
    pub failovers: bool,
}

pub async fn run(plan: &Plan) -> History {
    let ground = Ground::create(plan.failovers).await;
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let servers = start_servers(plan, &ground.url(), folder.path()).await;
    let root = servers.root;
    let root_urls = servers.running.iter().map(|server| server.root_url().to_owned()).collect();
    let queues = QUEUES.map(str::to_owned).to_vec();
    let world = Arc::new(World::new(root, root_urls, queues, plan.seed, plan.operations));
    let mut first = Actor::patient(Arc::clone(&world), 0);
    read_clock(&mut first).await;
    set_policies(&mut first).await;
    application::allow(&ground.url(), &world.root.client_id).await;
    let group = schedules::start(&mut first).await;

    let mut actors = JoinSet::new();
    for number in 1..=SUBMITTERS {
        actors.spawn(submit(Actor::new(Arc::clone(&world), number)));
    }
    actors.spawn(application::enqueue(Actor::new(Arc::clone(&world), 130), ground.url()));
    for number in 0..WORKERS {
        let actor = Actor::new(Arc::clone(&world), 100 + number as u64);
        actors.spawn(Worker::new(actor, number).work());
    }
    for (place, number) in MEMBERS.into_iter().enumerate() {
        let actor = Actor::new(Arc::clone(&world), 120 + place as u64);
        actors.spawn(Member::new(actor, number).work());
    }
    let mut trouble = JoinSet::new();
    trouble.spawn(move_clock(Actor::patient(Arc::clone(&world), 200)));
    trouble.spawn(operate(Actor::patient(Arc::clone(&world), 203)));
    trouble.spawn(count_backlog(Actor::patient(Arc::clone(&world), 204)));
    trouble.spawn(read(Actor::patient(Arc::clone(&world), 205)));
    for number in 0..REDRIVERS {
        trouble.spawn(redrive(Actor::new(Arc::clone(&world), 210 + number)));
    }
    let subscriber = if plan.subscriber {
        let subscriber = Subscriber::start(Actor::patient(Arc::clone(&world), 206)).await;
        Some(tokio::spawn(subscriber.misbehave()))
    } else {
        None
    };
    let sabotaged = tokio::spawn(sabotage(Arc::clone(&world), ground, 201));
    let log = tokio::spawn(LogReader::new(Actor::patient(Arc::clone(&world), 202)).follow());
    while let Some(ended) = actors.join_next().await {
        ended.expect("an actor does its work without failing");
    }
    world.end();
    while let Some(ended) = trouble.join_next().await {
        ended.expect("an actor does its work without failing");
    }

    let ground = sabotaged.await.expect("an actor does its work without failing");
    let mut log = log.await.expect("an actor does its work without failing");
    let fires = vec![schedules::finish(&mut first, group).await];
    let limit = if plan.breakage.is_some() { QUIET_WITHIN_WHEN_BROKEN } else { QUIET_WITHIN };
    resume_all(&world).await;
    last_sessions::play(&world).await;
    let sessions = last_sessions::read(&world, limit).await;
    let quiet = Snapshot { sessions, ..take_snapshot(&world, limit).await };
    let settled = drain(&world, limit).await;
    let sessions = last_sessions::let_expire(&world, limit).await;
    let drained = Snapshot { sessions, ..take_snapshot(&world, limit).await };
    let results = read_results(&world, &drained).await;
    log.read_all_again().await;
    let delivered = listen_to_end(subscriber, limit).await;
    for server in servers.running {
        assert!(server.stop().await.success(), "a server that is asked to stop ends with success");
    }
    ground.finish(plan.breakage.is_some()).await;
    History { quiet, settled, drained, results, fires, delivered, ..world.history() }
}

async fn listen_to_end(subscriber: Option<JoinHandle<Subscriber>>, limit: Duration) -> Option<Delivered> {
    let subscriber = subscriber?.await.expect("an actor does its work without failing");
    Some(subscriber.catch_up(limit).await)
}

struct Servers {
    running: Vec<Server>,
    root: tenure_api::credentials::Credentials,
}

async fn start_servers(plan: &Plan, database_url: &str, folder: &std::path::Path) -> Servers {
    let secret = fresh_secret_key();
    let mut launch = Launch::on_database(database_url, &secret)
        .flag("--clock", "manual")
        .flag("--claim-timeout", format!("{CLAIM_TERM_SECONDS}s"))
        .flag("--claim-work-wait", "1s")
        .flag("--deliver-to", "127.0.0.0/8");
    if let Some(breakage) = plan.breakage {
        launch = launch.env("TENURE_BREAK", breakage);
    }
    let first = launch.clone().flag("--hot-sessions", "1").start(folder, "first").await;
    let second = launch.flag("--hot-sessions", "3").start(folder, "second").await;
    let root = create_root_client(database_url, &secret).credentials;
    Servers { running: vec![first, second], root }
}

/// Stores the policies that are never changed.
async fn set_policies(actor: &mut Actor) {
    let retention = json!({"retain": {"completed": RETAIN_COMPLETED, "failed": RETAIN_FAILED}, "deadLetters": true});
    let backlog = json!({"backlog": {"tasks": BACKLOG, "bytes": BACKLOG_BYTES}, "deadLetters": true});
    for (queue, policy) in [(RETAINED_QUEUE, retention), (BOUNDED_QUEUE, backlog)] {
        let path = format!("{TENURE_API}/queues/{}/policy", queue_segment(QUEUES[queue]));
        until_answered(actor, "PUT", &path, Some(&policy.to_string())).await.expect("a policy is stored");
    }
}

/// Advances the clock in steps small enough that a request in flight does not expire.
async fn move_clock(mut actor: Actor) {
    while !actor.world.is_over() {
        tokio::time::sleep(Duration::from_millis(actor.random.below(CLOCK_PAUSE_MAX))).await;
        let seconds = 1 + actor.random.below(CLOCK_MOVE_MAX);
        let world = Arc::clone(&actor.world);
        let _moving = world.clock.lock().await;
        advance_clock(&mut actor, seconds).await;
    }
}

pub(super) async fn advance_clock(actor: &mut Actor, seconds: u64) {
    let body = format!(r#"{{"seconds":{seconds}}}"#);
    // Without an answer it is unknown if the clock moved, so it is read in any case.
    let _ = actor.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&body)).await;
    read_clock(actor).await;
}

/// Corrects the backlog: it still counts most tasks that were resolved without a report, and
/// submitters would wait for them forever.
async fn count_backlog(mut actor: Actor) {
    while !actor.world.is_over() {
        tokio::time::sleep(BACKLOG_COUNTED_EVERY).await;
        let mut backlog = 0;
        for queue in QUEUES {
            let path = format!("{QUEUE_API}/task-queues/{}/counts", queue_segment(queue));
            if let Answer::Done(answer) = actor.call("GET", &path, None).await {
                let counts = Counts::deserialize(answer).expect("taskQueueCounts answers with two counts");
                backlog += counts.pending_tasks + counts.claimed_tasks;
            }
        }
        actor.world.backlog.store(backlog.cast_signed(), Ordering::Relaxed);
    }
}

async fn read_clock(actor: &mut Actor) {
    let start = actor.world.stamp();
    let answer = until_answered(actor, "GET", &format!("{TENURE_API}/clock"), None).await;
    let answer = answer.expect("the clock can be read");
    let now = answer["now"].as_str().and_then(|now| chrono::DateTime::parse_from_rfc3339(now).ok());
    let now = now.expect("the clock shows a date").timestamp_millis();
    actor.world.set_server_millis(now);
    actor.world.write(start, Event::Clock(now));
}

/// Repeats a call until it is answered, for a limited time. `None` means 404.
pub(super) async fn until_answered(actor: &mut Actor, method: &str, path: &str, body: Option<&str>) -> Option<Value> {
    let deadline = Instant::now() + ANSWERED_WITHIN;
    loop {
        match actor.call(method, path, body).await {
            Answer::Done(body) => return Some(body),
            Answer::Refused(404) => return None,
            Answer::Refused(status) => panic!("{method} {path} was refused with {status}"),
            Answer::Unknown => {
                assert!(Instant::now() < deadline, "{method} {path} had no answer for {ANSWERED_WITHIN:?}");
            }
        }
        tokio::time::sleep(QUIET_POLL).await;
    }
}

/// Reads the state until the counts are the same before and after and match the tasks: then nothing
/// was in flight. If that never happens, returns the last state, and the checker will report it.
async fn take_snapshot(world: &Arc<World>, limit: Duration) -> Snapshot {
    let deadline = Instant::now() + limit;
    let mut reader = Actor::patient(Arc::clone(world), 300);
    let mut looks = 0;
    loop {
        looks += 1;
        let before = read_counts(&mut reader).await;
        let tasks = read_tasks(world).await;
        let delayed = read_delayed(&mut reader, &tasks).await;
        let counts = read_counts(&mut reader).await;
        let snapshot = Snapshot { tasks, delayed, counts, ..Snapshot::default() };
        // The clock goes on: a claim that expires during the read makes statuses and counts differ.
        let settled = before == snapshot.counts && snapshot.counts == count(&snapshot);
        if settled || (Instant::now() > deadline && looks >= LOOKS_MIN) {
            return snapshot;
        }
        tokio::time::sleep(QUIET_POLL).await;
    }
}

fn count(snapshot: &Snapshot) -> Vec<Counts> {
    QUEUES.iter().map(|queue| snapshot.recount(queue)).collect()
}

async fn read_delayed(reader: &mut Actor, tasks: &HashMap<SlugId, Status>) -> HashSet<SlugId> {
    let mut delayed = HashSet::new();
    for (task, _) in tasks.iter().filter(|(_, status)| status.state == "pending") {
        let path = format!("{TENURE_API}/tasks/{task}/why");
        let why = until_answered(reader, "GET", &path, None).await.unwrap_or_default();
        let reasons = why["reasons"].as_array().map_or(&[][..], Vec::as_slice);
        if reasons.iter().any(|reason| reason["code"] == "delay") {
            delayed.insert(*task);
        }
    }
    delayed
}

/// Reads the results of all runs of tasks that returned any: a late result is that of a later run.
async fn read_results(world: &Arc<World>, drained: &Snapshot) -> HashMap<RunKey, Value> {
    let mut reader = Actor::patient(Arc::clone(world), 320);
    let mut results = HashMap::new();
    let tasks: HashSet<SlugId> = world.returned().into_iter().map(|(task, _)| task).collect();
    let known = tasks.into_iter().filter_map(|task| Some((task, drained.tasks.get(&task)?)));
    let runs = known.flat_map(|(task, status)| status.runs.iter().map(move |run| (task, run.run_id)));
    for run in runs.collect::<Vec<RunKey>>() {
        let path = format!("{TENURE_API}/tasks/{}/result?runId={}", run.0, run.1);
        if let Some(answer) = until_answered(&mut reader, "GET", &path, None).await {
            results.insert(run, answer["result"].clone());
        }
    }
    results
}

async fn read_counts(reader: &mut Actor) -> Vec<Counts> {
    let mut all = Vec::with_capacity(QUEUES.len());
    for queue in QUEUES {
        let path = format!("{QUEUE_API}/task-queues/{}/counts", queue_segment(queue));
        let answer = until_answered(reader, "GET", &path, None).await.unwrap_or_default();
        let counts = Counts::deserialize(answer).expect("taskQueueCounts answers with two counts");
        let path = format!("{TENURE_API}/queues/{}", queue_segment(queue));
        let answer = until_answered(reader, "GET", &path, None).await.unwrap_or_default();
        // A count below zero is an error for the checker to report.
        let delayed = answer["delayed"].as_i64().unwrap_or_else(|| panic!("getQueue answers with counts: {answer}"));
        let delayed = u64::try_from(delayed).unwrap_or(u64::MAX);
        all.push(Counts { delayed, ..counts });
    }
    all
}

async fn read_tasks(world: &Arc<World>) -> HashMap<SlugId, Status> {
    let mut reader = Actor::patient(Arc::clone(world), 310);
    let tasks = world.all_tasks();
    let mut found = HashMap::with_capacity(tasks.len());
    for ids in tasks.chunks(TASKS_PER_CALL) {
        let body = json!({ "taskIds": ids }).to_string();
        let answer = until_answered(&mut reader, "POST", &format!("{QUEUE_API}/tasks/status"), Some(&body)).await;
        let page = StatusPage::deserialize(answer.unwrap_or_default()).expect("statuses answers with statuses");
        found.extend(page.statuses.into_iter().map(|entry| (entry.task_id, entry.status)));
    }
    found
}

#[derive(Deserialize)]
struct StatusPage {
    statuses: Vec<StatusEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusEntry {
    task_id: SlugId,
    status: Status,
}

async fn resume_all(world: &Arc<World>) {
    let mut actor = Actor::patient(Arc::clone(world), 330);
    let deadline = Instant::now() + ANSWERED_WITHIN;
    for (queue, name) in QUEUES.iter().enumerate() {
        while !resume(&mut actor, queue).await {
            assert!(Instant::now() < deadline, "{name} was not resumed within {ANSWERED_WITHIN:?}");
            tokio::time::sleep(QUIET_POLL).await;
        }
    }
}

/// Lets claims expire and delays end, and completes the requeued runs, until only tasks with
/// unsatisfied dependencies are left. Returns that state, after which it lets their deadlines pass.
async fn drain(world: &Arc<World>, limit: Duration) -> Snapshot {
    let mut clock = Actor::patient(Arc::clone(world), 400);
    // One for each queue: an answer from an empty queue takes a second.
    let worker = |queue: usize| Worker::new(Actor::patient(Arc::clone(world), 410 + queue as u64), WORKERS + queue);
    let mut workers: Vec<Worker> = (0..QUEUES.len()).map(worker).collect();
    for _ in 0..DRAIN_ROUNDS {
        advance_clock(&mut clock, CLAIM_TERM_SECONDS + DELAY_MAX + 1).await;
        join_all(workers.iter_mut().enumerate().map(|(queue, worker)| worker.drain(queue))).await;
        if read_tasks(world).await.values().all(|status| status.is_resolved() || status.is_unscheduled()) {
            break;
        }
    }
    // The call returns when every due pass has run.
    advance_clock(&mut clock, 1).await;
    let settled = take_snapshot(world, limit).await;
    advance_clock(&mut clock, (UNHURRIED_MILLIS / 1000).unsigned_abs() + 1).await;
    settled
}

#[must_use]
pub fn seed() -> u64 {
    std::env::var("TENURE_HISTORY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(Random::fresh_seed)
}
