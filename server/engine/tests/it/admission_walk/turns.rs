//! Turns of keys under `fair` across two servers, with random tasks.

use tenure_domain::policy::keys::KeyRules;
use tenure_engine::ops::{queue_keys, queue_policy};

use super::number;
use super::steps::put;
use super::world::Random;
use crate::support::*;

const QUEUE: &str = "walk/turns";
const WEIGHTS: [f64; KEYS] = [1.0, 1.0, 2.0, 3.0, 0.5];
const KEYS: usize = 5;
const PRIORITIES: [&str; 2] = ["high", "lowest"];
/// A head is a key in one priority.
const HEADS: usize = KEYS * PRIORITIES.len();
const ROUNDS: u64 = 200;
/// Waiting runs at which the creation of tasks pauses.
const BACKLOG: u64 = 60;
/// A shorter stretch proves nothing.
const CLAIMS_LEAST: u64 = 30;

/// While two keys of a priority continuously have waiting runs.
#[derive(Default)]
struct Stretch {
    claims: u64,
    /// Weighted claims of the first key minus weighted claims of the second.
    lead: f64,
    least: f64,
    most: f64,
}

struct Known {
    random: Random,
    heads: HashMap<TaskId, usize>,
    waiting: [u64; HEADS],
    claimed: Vec<(TaskId, RunId)>,
    stretches: HashMap<(usize, usize), Stretch>,
}

impl Known {
    fn tasks(&mut self) -> Vec<NewTask> {
        let is_full = self.waiting.iter().sum::<u64>() >= BACKLOG;
        let count = if is_full { 0 } else { self.random.below(12) };
        (0..count).map(|_| self.task()).collect()
    }

    fn task(&mut self) -> NewTask {
        let keys = if self.random.chance(40) { 2 } else { KEYS };
        let key = self.random.index(keys);
        let priority = usize::from(self.random.chance(70));
        let fields = json!({"priority": PRIORITIES[priority], "extra": {"tenure": {"key": key_name(key)}}});
        let task = new_task(QUEUE, &fields);
        self.heads.insert(task.id, priority * KEYS + key);
        task
    }

    /// `claims` is the number of claims of each head.
    fn judge(&mut self, claims: &[u64; HEADS]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (one, other) in pairs() {
            let stretch = self.stretches.entry((one, other)).or_default();
            // A head without waiting runs may have had its last run before the other's claims.
            if [one, other].iter().any(|head| self.waiting[*head] <= claims[*head]) {
                *stretch = Stretch::default();
                continue;
            }
            let [weight, of_other] = [one, other].map(|head| WEIGHTS[head % KEYS]);
            stretch.claims += claims[one] + claims[other];
            stretch.lead += claims[one] as f64 / weight - claims[other] as f64 / of_other;
            stretch.least = stretch.least.min(stretch.lead);
            stretch.most = stretch.most.max(stretch.lead);
            let (apart, allowed) = (stretch.most - stretch.least, 1.0 / weight + 1.0 / of_other);
            if apart > allowed + 1e-9 {
                let claims = stretch.claims;
                wrong.push(format!(
                    "heads {one} and {other} were {apart} turns apart within {claims} claims, at most {allowed}"
                ));
            }
        }
        wrong
    }
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    let all = (0..HEADS).flat_map(|one| (one + 1..HEADS).map(move |other| (one, other)));
    all.filter(|(one, other)| one / KEYS == other / KEYS)
}

fn key_name(key: usize) -> String {
    format!("k{key}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_take_turns_across_two_servers() {
    let seed = number("TENURE_ADMISSION_SEED").unwrap_or_else(|| u64::from_le_bytes(tenure_store::secrets::random()));
    println!("TENURE_ADMISSION_SEED={seed}");
    let database = TestDatabase::create().await;
    let servers = [Queue::start(database.options()), Queue::start(database.options())];
    begin(&servers).await;
    let mut known = Known {
        random: Random(seed),
        heads: HashMap::new(),
        waiting: [0; HEADS],
        claimed: Vec::new(),
        stretches: HashMap::new(),
    };
    let mut longest = 0;
    for n in 0..ROUNDS {
        let Round { created, claimed } = take(&servers, &mut known).await;
        let wrong = known.judge(&claimed);
        assert!(wrong.is_empty(), "TENURE_ADMISSION_SEED={seed}, in round {n}: {wrong:?}");
        longest = known.stretches.values().map(|stretch| stretch.claims).fold(longest, u64::max);
        for (waiting, (created, claimed)) in known.waiting.iter_mut().zip(created.into_iter().zip(claimed)) {
            *waiting = *waiting + created - claimed;
        }
    }
    assert!(longest >= CLAIMS_LEAST, "the longest stretch has {longest} claims");
    for server in servers {
        server.stop().await;
    }
    database.finish().await;
}

/// Waits until both servers know the limits.
async fn begin(servers: &[Queue; 2]) {
    let name: TaskQueueId = QUEUE.parse().unwrap();
    let engine = &servers[0].engine;
    put(&servers[0], &name, &json!({"fair": true, "concurrency": {"total": 30}})).await.unwrap();
    for (key, weight) in WEIGHTS.into_iter().enumerate() {
        let rules = KeyRules { concurrency: None, rate: None, weight: Some(weight) };
        queue_keys::put(engine.queue_parts(), &ANN, &name, &key_name(key), &rules).await.unwrap();
    }
    while queue_policy::get(engine.queue_parts(), &name).await.unwrap().refiling > 0 {
        servers[0].run_pass("refile").await.unwrap();
    }
    for server in servers {
        server.run_pass("admission").await.unwrap();
    }
}

struct Round {
    created: [u64; HEADS],
    claimed: [u64; HEADS],
}

/// Creates, claims and completes concurrently, at either server.
async fn take(servers: &[Queue; 2], known: &mut Known) -> Round {
    let tasks = known.tasks();
    let ends = known.random.below(9).min(known.claimed.len() as u64);
    let ends: Vec<(TaskId, RunId)> = (0..ends).filter_map(|_| known.random.take(&mut known.claimed)).collect();
    let requests = 1 + known.random.below(2);
    let requests: Vec<u16> = (0..requests).map(|_| 1 + known.random.below(5) as u16).collect();
    let mut at = || &servers[known.random.index(2)];
    let created: Vec<_> = tasks.iter().map(|task| at().create(task)).collect();
    let ended: Vec<_> = ends.iter().map(|(task, run)| at().report(*task, *run, Report::Completed)).collect();
    let answers: Vec<_> = requests.iter().map(|runs| at().claim_work(QUEUE, "w", *runs, Duration::ZERO)).collect();
    let (created, ended, answers) = tokio::join!(join_all(created), join_all(ended), join_all(answers));
    let mut round = Round { created: [0; HEADS], claimed: [0; HEADS] };
    for task in created {
        round.created[known.heads[&task.unwrap().id]] += 1;
    }
    for end in ended {
        end.unwrap();
    }
    for answer in answers {
        let answer = answer.unwrap();
        answer.delivery.delivered();
        for granted in answer.claims {
            round.claimed[known.heads[&granted.task.id]] += 1;
            known.claimed.push((granted.task.id, granted.run));
        }
    }
    round
}
