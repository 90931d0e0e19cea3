//! Two servers on one database, the queues with their policies, and random choices.

use std::sync::Mutex;

use tenure_api::dates::Timestamp;
use tenure_api::policy::QueuePolicy;
use tenure_domain::session::Identity;
use tenure_engine::clock::real_now;
use tenure_store::clock;

use crate::support::*;

/// Some names are keys and projects, so two key sources share keys.
const KEYS: usize = 20;
/// Schedulers, with as many task groups each.
const SCHEDULERS: u64 = 4;
/// Waiting runs at which the creation of tasks pauses.
const BACKLOG: i64 = 250;

/// Indices in [`World::queues`].
pub const ASSIGN: usize = 2;
pub const RATE: usize = 3;

/// Constant rates: starts, seconds, burst.
pub const RATE_TOTAL: (i64, i64, i64) = (12, 10, 4);
pub const RATE_OF_KEY: (i64, i64, i64) = (3, 10, 2);

/// Alternating policies; null is none.
fn policies() -> [(&'static str, Vec<Value>); 4] {
    let rate = |(count, seconds, burst): (i64, i64, i64)| json!({"count": count, "seconds": seconds, "burst": burst});
    [
        (
            "walk/limits",
            vec![
                json!({"concurrency": {"total": 9, "perKey": 2}, "claimTimeout": 30}),
                json!({"concurrency": {"total": 3, "perKey": 1}, "claimTimeout": 30}),
                json!({"concurrency": {"total": 20, "perKey": 3}, "claimTimeout": 30, "delivery": "at-least-once"}),
                json!({"concurrency": {"perKey": 1}, "keyBy": "projectId", "claimTimeout": 30}),
                json!({"concurrency": {"perKey": 2}, "claimTimeout": 30, "retryDelay": {"first": 3}}),
                json!({"concurrency": {"total": 9, "perKey": 2}, "keyBy": "schedulerId", "claimTimeout": 30}),
                json!({"concurrency": {"total": 6}, "keyBy": "taskGroupId", "claimTimeout": 30}),
                Value::Null,
            ],
        ),
        (
            "walk/fair",
            vec![
                json!({"fair": true, "concurrency": {"total": 6}, "claimTimeout": 30}),
                json!({"fair": true, "concurrency": {"total": 2}, "claimTimeout": 30}),
                json!({"fair": true, "concurrency": {"total": 12, "perKey": 1}, "claimTimeout": 30}),
                json!({"fair": true, "concurrency": {"perKey": 1}, "keyBy": "projectId", "claimTimeout": 30}),
                json!({"fair": false, "concurrency": {"total": 6, "perKey": 2}, "claimTimeout": 30}),
                Value::Null,
            ],
        ),
        (
            "walk/assign",
            vec![
                json!({"dispatch": "assign", "acceptTime": 10, "concurrency": {"perKey": 3}, "claimTimeout": 30}),
                json!({"dispatch": "assign", "acceptTime": 4, "concurrency": {"total": 8, "perKey": 1}, "claimTimeout": 30}),
                json!({"dispatch": "assign", "concurrency": {"total": 15}, "keyBy": "projectId", "claimTimeout": 30}),
                json!({"dispatch": "assign", "acceptTime": 10, "fair": true, "delivery": "at-most-once", "completeTime": 12,
                       "claimTimeout": 30}),
            ],
        ),
        (
            "walk/rate",
            vec![json!({"rate": {"total": rate(RATE_TOTAL), "perKey": rate(RATE_OF_KEY)}, "claimTimeout": 30,
                        "concurrency": {"perKey": 5}})],
        ),
    ]
}

/// Deterministic random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn take<T>(&mut self, list: &mut Vec<T>) -> Option<T> {
        (!list.is_empty()).then(|| list.swap_remove(self.index(list.len())))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    pub any: bool,
    pub total: Option<i64>,
    pub per_key: Option<i64>,
    pub assign: bool,
    pub rate: bool,
}

impl Limits {
    pub fn of(policy: &Policy) -> Self {
        policy.admission().map_or_else(Self::default, |admission| Self {
            any: true,
            total: admission.total.map(i64::from),
            per_key: admission.per_key.map(i64::from),
            assign: admission.assign,
            rate: admission.rate_total.is_some() || admission.rate_per_key.is_some(),
        })
    }
}

pub struct Watched {
    pub id: i32,
    pub name: TaskQueueId,
    pub policies: Vec<Value>,
    pub policy: Policy,
    /// Policies since the last snapshot; the last one is current.
    pub since: Vec<Limits>,
    /// Until all runs follow a change of keys: a key may exceed its limit.
    pub keys_move: bool,
    /// Like `keys_move`, for a queue that was unlimited before.
    pub begins: bool,
    /// Assigned and claimed runs over the limit at the last check: no more may start.
    pub total_over: Option<i64>,
    pub keys_over: HashMap<i64, i64>,
}

impl Watched {
    pub fn limits(&self) -> Limits {
        self.since.last().copied().unwrap_or_default()
    }

    /// Records a change at some time before the next snapshot.
    pub fn changed(&mut self, policy: Policy) {
        let limits = Limits::of(&policy);
        self.begins |= !self.limits().any;
        self.keys_move |= self.begins || self.policy.key_by != policy.key_by;
        self.since.push(limits);
        self.policy = policy;
    }
}

pub struct World {
    pub database: TestDatabase,
    pub servers: [Queue; 2],
    pub random: Random,
    pub queues: Vec<Watched>,
    pub sessions: Vec<Identity>,
    pub begun: Mutex<Vec<Identity>>,
    /// Per session: its excess at the last snapshot, and its capacity then.
    pub capacities: HashMap<i64, (i64, i64)>,
    /// Seconds by which the manual clock is ahead.
    pub ahead: i64,
    pub workers: u64,
    pub waiting: i64,
    /// Killed sessions that may not have failed a user yet.
    pub dead_sessions: u64,
    pub done: HashMap<&'static str, u64>,
}

impl World {
    pub async fn new(seed: u64) -> Self {
        let database = TestDatabase::create().await;
        let servers = [Queue::start(database.options()), Queue::start(database.options())];
        let mut queues = Vec::new();
        for (name, policies) in policies() {
            queues.push(Watched {
                id: servers[0].key(name).await,
                name: name.parse().unwrap(),
                policies,
                policy: Policy::none(),
                since: vec![Limits::default()],
                keys_move: false,
                begins: false,
                total_over: None,
                keys_over: HashMap::new(),
            });
        }
        Self {
            database,
            servers,
            random: Random(seed),
            queues,
            sessions: Vec::new(),
            begun: Mutex::default(),
            capacities: HashMap::new(),
            ahead: 0,
            workers: 0,
            waiting: 0,
            dead_sessions: 0,
            done: HashMap::new(),
        }
    }

    pub fn count(&mut self, what: &'static str, steps: u64) {
        *self.done.entry(what).or_default() += steps;
    }

    pub async fn advance(&mut self, seconds: i64) {
        let mut conn = self.database.pool().acquire().await.unwrap();
        clock::advance(&mut conn, seconds as f64).await.unwrap();
        self.ahead += seconds;
    }

    /// For one queue, some with a key, a delay or little time left.
    pub fn tasks(&mut self) -> Vec<NewTask> {
        let count = if self.waiting > BACKLOG { 0 } else { 1 + self.random.below(12) };
        let queue = self.random.index(self.queues.len());
        (0..count).map(|_| self.task(queue)).collect()
    }

    fn task(&mut self, queue: usize) -> NewTask {
        let random = &mut self.random;
        let keys = if random.chance(60) { 4 } else { KEYS as u64 };
        let (key, project) = (random.below(keys), random.below(KEYS as u64));
        let scheduler = random.below(SCHEDULERS);
        let mut options = json!({});
        if random.chance(85) {
            options["key"] = json!(format!("k{key}"));
        }
        if random.chance(12) {
            options["delay"] = json!(1 + random.below(20));
        }
        if random.chance(20) {
            options["delivery"] = json!(["at-least-once", "at-most-once"][random.index(2)]);
        }
        if queue == ASSIGN && random.chance(15) && self.workers > 0 {
            let worker = self.workers - random.below(self.workers.min(8)) - 1;
            options["worker"] =
                json!({"workerGroup": "g", "workerId": format!("s{worker}"), "wait": 1 + random.below(6)});
        }
        let left = if random.chance(10) { 10 + random.below(60) } else { 24 * 3600 };
        let priorities = ["highest", "very-high", "high", "medium", "low", "very-low", "lowest"];
        let mut fields = json!({
            "projectId": format!("k{project}"),
            "schedulerId": format!("k{scheduler}"),
            "priority": if random.chance(50) { "lowest" } else { priorities[random.index(priorities.len())] },
            "retries": random.below(6),
            "deadline": Timestamp::new(real_now() + TimeDelta::seconds(self.ahead + i64::try_from(left).unwrap())),
            "extra": {"tenure": options},
        });
        if random.chance(60) {
            let group = group(scheduler, random.below(SCHEDULERS));
            fields["taskGroupId"] = json!(group);
        }
        new_task(self.queues[queue].name.as_str(), &fields)
    }
}

/// Returns a group; each walk has the same.
fn group(scheduler: u64, n: u64) -> TaskId {
    let mut bytes = [0_u8; 16];
    bytes[0] = 0x70;
    bytes[6] = 0x40;
    bytes[8] = 0x80;
    bytes[14] = u8::try_from(scheduler).unwrap();
    bytes[15] = u8::try_from(n).unwrap();
    TaskId::from_uuid(uuid::Uuid::from_bytes(bytes)).unwrap()
}

pub fn parsed(policy: &Value) -> (QueuePolicy, Policy) {
    let sent: QueuePolicy = serde_json::from_value(policy.clone()).unwrap();
    let policy = Policy::from_request(&sent).unwrap();
    (sent, policy)
}
