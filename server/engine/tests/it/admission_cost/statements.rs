//! Every admission statement, with realistic arguments.

use tenure_domain::admission::{Decided, HeadAfter, HeadState, PRIORITIES, Start, Stop, Taker};
use tenure_domain::election::Active;
use tenure_domain::policy::counts::Counted;
use tenure_domain::policy::document::Admission;
use tenure_domain::policy::keys::KeyRules;
use tenure_store::admission::{
    self, Announced, FoundHeads, HeadInputs, Heads, IfLocked, Leader, Locked, Marks, Reading, Reassigning, Take,
    key_rules, runnable,
};
use tenure_store::transitions::claim::{self, Chosen, Worker};
use tenure_store::transitions::limit;
use tenure_store::{schedulers, session, worker_sessions};

use super::decisions::reading;
use super::fill::{ASSIGNED, PULLED};
use crate::support::*;

/// Statements that are planned as in hot sessions.
pub const HOT: [&str; 15] = [
    "lock_admission",
    "lock_admission_or_skip",
    "name_admission_keys",
    "look_at_keys",
    "count_used",
    "load_heads",
    "load_heads to assign",
    "load_keys",
    "load_sessions",
    "claim_decided",
    "store_decision",
    "lock_waiting",
    "assign_runs",
    "forget_idle_keys",
    "forget_admission",
];

/// Statements of other passes, lists and operations.
pub const OTHERS: [&str; 19] = [
    "list_admission_queues",
    "list_startable",
    "find_waiting",
    "claim_named",
    "has_rates",
    "list_not_accepted",
    "take_back_runs",
    "lock_session_tasks",
    "lock_reassigning",
    "list_given_out",
    "list_still_assigned",
    "list_unseen_keys",
    "key_rules",
    "list_key_names",
    "list_keys_now",
    "runnable",
    "list_schedulers",
    "change_scheduler",
    "set_complete_by",
];

const SERVER: Uuid = Uuid::from_u128(0x5f8b_1f4e_7a53_4c5e_8a39_2f2f_6f0f_4f10);

pub struct Given {
    pulled: i32,
    assigned: i32,
    limits: Admission,
    announced: Vec<Announced>,
    waiting: Vec<(i64, i64)>,
    named: (i64, Uuid),
    waiting_assigned: Vec<(i64, i64)>,
    given_out: Vec<(i64, Uuid)>,
    sessions: Vec<i64>,
    marks: Marks,
}

impl Given {
    pub async fn read(conn: &mut PgConnection, policy: &Policy) -> Self {
        let queue = async |conn: &mut PgConnection, name: &str| -> i32 {
            sqlx::query_scalar("SELECT id FROM task_queues WHERE name = $1").bind(name).fetch_one(conn).await.unwrap()
        };
        let (pulled, assigned) = (queue(conn, PULLED).await, queue(conn, ASSIGNED).await);
        // Keys from the whole index.
        let keys = "SELECT h.key_id, h.from_ord, p.seq FROM (SELECT * FROM admission_heads WHERE queue = $1 ORDER BY key_id LIMIT 500) h
                    JOIN pending p ON p.key_id = h.key_id AND p.ord = h.from_ord AND p.hold = 2";
        let rows: Vec<(i64, i64, i64)> = sqlx::query_as(keys).bind(pulled).fetch_all(&mut *conn).await.unwrap();
        let announced: Vec<Announced> =
            rows.iter().map(|&(key, ord, seq)| Announced { key, waits: Some((4, ord)), seq: Some(seq) }).collect();
        assert_eq!(announced.len(), 500);
        let waiting = async |conn: &mut PgConnection, queue: i32| -> Vec<(i64, i64)> {
            let sql = "SELECT seq, key_id FROM pending WHERE queue = $1 AND hold = 2 ORDER BY key_id LIMIT 200";
            sqlx::query_as(sql).bind(queue).fetch_all(conn).await.unwrap()
        };
        let named = "SELECT key_id, id FROM pending WHERE queue = $1 AND hold = 2 ORDER BY key_id, ord LIMIT 1";
        let given_out = "SELECT seq, id FROM pending WHERE hold = 3 ORDER BY seq";
        Self {
            pulled,
            assigned,
            limits: policy.admission().unwrap(),
            announced,
            waiting: waiting(conn, pulled).await,
            named: sqlx::query_as(named).bind(pulled).fetch_one(&mut *conn).await.unwrap(),
            waiting_assigned: waiting(conn, assigned).await,
            given_out: sqlx::query_as(given_out).fetch_all(&mut *conn).await.unwrap(),
            sessions: sqlx::query_scalar("SELECT epoch FROM worker_sessions").fetch_all(conn).await.unwrap(),
            marks: Marks::default(),
        }
    }

    fn keys(&self) -> Vec<i64> {
        self.announced.iter().map(|one| one.key).collect()
    }

    fn inputs(&self) -> HeadInputs<'_> {
        HeadInputs { queue: self.pulled, admission: &self.limits, least: [0.0; PRIORITIES], marks: &self.marks }
    }

    fn decided(&self) -> Decided {
        let head = |(place, one): (usize, &Announced)| HeadAfter {
            key: one.key,
            priority: 4,
            vtime: place as f64,
            from_ord: one.waits.map(|(_, ord)| ord + 1),
            state: if place % 2 == 0 { HeadState::Ready } else { HeadState::At(4e9) },
        };
        Decided {
            starts: Vec::new(),
            keys: self.announced.iter().map(|one| (one.key, 1.0)).collect(),
            heads: self.announced.iter().enumerate().map(head).collect(),
            tat: 1.0,
            least: [1.0; PRIORITIES],
            unread: false,
            stop: Stop::Keys,
        }
    }

    pub async fn run_hot(&self, conn: &mut PgConnection, statement: &str) {
        session::plan_as_hot(conn).await.unwrap();
        match statement {
            "lock_admission" => self.lock(conn, IfLocked::Wait).await,
            "lock_admission_or_skip" => self.lock(conn, IfLocked::Skip).await,
            "name_admission_keys" => admission::name_keys(conn, self.pulled, &self.announced).await.unwrap(),
            "look_at_keys" => {
                admission::update_heads(conn, &self.inputs(), &self.announced).await.unwrap();
            }
            "count_used" => {
                admission::count_used(conn, Sequenced::default(), self.pulled).await.unwrap();
            }
            "load_heads" | "load_heads to assign" => {
                let assign = statement.ends_with("assign");
                let queue = if assign { self.assigned } else { self.pulled };
                let heads = Heads { queue, least: &[0.0; PRIORITIES], width: 200, assign, locked: &[] };
                assert_eq!(admission::load_heads(conn, heads).await.unwrap().heads.len(), 200);
            }
            "load_keys" => {
                let counted =
                    admission::load_keys(conn, self.pulled, &self.keys(), &self.marks, &self.limits).await.unwrap();
                assert_eq!(counted.keys.len(), 500);
            }
            "load_sessions" => {
                let sessions = admission::load_sessions(conn, self.assigned).await.unwrap();
                assert!(sessions.iter().all(|session| session.held == 4));
            }
            "claim_decided" => {
                let mut locked = self.locked(conn).await;
                self.claim(conn, &mut locked, &self.waiting).await;
            }
            "store_decision" => {
                let mut locked = self.locked(conn).await;
                let found = self.found(conn).await;
                admission::store(conn, &mut locked, &self.decided(), &found).await.unwrap();
            }
            "lock_waiting" => {
                assert_eq!(admission::lock_waiting(conn, &self.assignments()).await.unwrap().len(), 200);
            }
            "assign_runs" => {
                let within = Some(TimeDelta::seconds(60));
                let assigned = admission::assign(conn, self.assigned, &self.assignments(), within).await.unwrap();
                assert_eq!(assigned.0, 200);
            }
            "forget_idle_keys" => {
                let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *conn).await.unwrap();
                assert_eq!(admission::forget_idle_keys(conn, self.pulled, &self.keys(), now).await.unwrap(), Some(0));
            }
            "forget_admission" => {
                // As during a refiling: it is retried repeatedly.
                let off = "UPDATE task_queues SET key_by = NULL WHERE id = $1";
                sqlx::query(off).bind(self.pulled).execute(&mut *conn).await.unwrap();
                assert!(!admission::forget_queue(conn, self.pulled).await.unwrap());
            }
            other => unreachable!("{other}"),
        }
    }

    async fn lock(&self, conn: &mut PgConnection, if_locked: IfLocked) {
        let leader = Leader { server: SERVER, term: Some(1) };
        for queue in [self.pulled, self.assigned] {
            let locked = admission::lock(conn, queue, leader, if_locked, reading(&self.marks, queue)).await.unwrap();
            assert_eq!(locked.unwrap().announced.len(), 500);
        }
    }

    async fn locked(&self, conn: &mut PgConnection) -> Locked {
        let reading = Reading { sequenced: Sequenced::default(), take: Take::Nothing };
        admission::lock_for_start(conn, self.pulled, reading).await.unwrap().unwrap()
    }

    async fn found(&self, conn: &mut PgConnection) -> FoundHeads {
        let rows = "SELECT h.ctid::text FROM unnest($1::bigint[]) WITH ORDINALITY AS i(id, n)
                    JOIN admission_heads h ON h.key_id = i.id AND h.priority = 4 ORDER BY i.n";
        let rows = sqlx::query_scalar(rows).bind(self.keys()).fetch_all(conn).await.unwrap();
        FoundHeads { rows, ..FoundHeads::default() }
    }

    async fn claim(&self, conn: &mut PgConnection, locked: &mut Locked, runs: &[(i64, i64)]) {
        let starts = runs.iter().map(|&run| start(run, Taker::Request(0))).collect();
        let chosen = Chosen {
            name: PULLED,
            decided: &Decided { starts, least: locked.least, tat: 1.0, ..Decided::default() },
            found: &FoundHeads::default(),
            workers: &[Worker { group: "g", id: "w", session: None }],
            lease: LEASE,
            batch: Uuid::new_v4(),
        };
        let claimed = claim::claim_decided(conn, locked, &chosen).await.unwrap();
        assert_eq!(claimed.iter().filter(|row| row.made).count(), runs.len());
    }

    /// Claims as claimTask does, in a session for cold statements.
    async fn claim_named(&self, conn: &mut PgConnection) {
        let (key, task) = self.named;
        let reading = reading(&self.marks, self.pulled);
        let mut locked = admission::lock_for_start(conn, self.pulled, reading).await.unwrap().unwrap();
        let limits = locked.limits.take().unwrap();
        admission::name_keys(conn, self.pulled, &locked.announced).await.unwrap();
        admission::update_heads(conn, &self.inputs(), &locked.announced).await.unwrap();
        let head = admission::find_waiting(conn, self.pulled, task, 0).await.unwrap().unwrap();
        assert_eq!(head.key, key);
        let counted = admission::load_keys(conn, self.pulled, &[key], &self.marks, &limits).await.unwrap();
        assert_eq!(counted.keys.len(), 1);
        self.claim(conn, &mut locked, &[(head.runs[0].seq, key)]).await;
        admission::take_turn(conn, key, 4, 0.5).await.unwrap();
    }

    /// Runs of the assign queue, to its sessions in turn.
    fn assignments(&self) -> Vec<Start> {
        let pairs = self.waiting_assigned.iter().zip(self.sessions.iter().cycle());
        pairs.map(|(&run, &session)| start(run, Taker::Session(session))).collect()
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each statement")]
    pub async fn run_other(&self, conn: &mut PgConnection, statement: &str) {
        let (seqs, tasks): (Vec<i64>, Vec<Uuid>) = self.given_out.iter().copied().unzip();
        match statement {
            "list_admission_queues" => {
                assert!(
                    admission::list_queues(conn, Sequenced::default(), &self.marks)
                        .await
                        .unwrap()
                        .iter()
                        .all(|listed| listed.due)
                );
            }
            "list_startable" => {
                let both = [self.pulled, self.assigned];
                let startable =
                    admission::list_startable(conn, Sequenced::default(), &both, &self.marks).await.unwrap();
                assert_eq!(startable, [self.pulled], "requests start nothing in the other one");
            }
            "find_waiting" => {
                let (key, task) = self.named;
                let head = admission::find_waiting(conn, self.pulled, task, 0).await.unwrap();
                assert!(head.is_some_and(|head| head.key == key));
            }
            "claim_named" => self.claim_named(conn).await,
            "has_rates" => assert!(!key_rules::has_rates(conn, self.pulled).await.unwrap()),
            "list_not_accepted" => {
                assert_eq!(admission::lock_not_accepted(conn, START, 200).await.unwrap().len(), seqs.len() / 2);
            }
            "take_back_runs" => {
                assert_eq!(admission::take_back(conn, &seqs, true).await.unwrap().runs, seqs.len());
            }
            "lock_session_tasks" => {
                let epoch = self.sessions[0];
                let locked = worker_sessions::lock_tasks(conn, epoch, 200).await.unwrap();
                assert_eq!(admission::list_assigned(conn, epoch, &locked).await.unwrap().len(), 4);
            }
            "lock_reassigning" => {
                let leader = Leader { server: SERVER, term: Some(1) };
                assert!(admission::lock_reassigning(conn, self.assigned, leader).await.unwrap().is_some());
            }
            "list_given_out" => {
                let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *conn).await.unwrap();
                let of = Reassigning { queue: self.assigned, before: now, ord: i64::MAX };
                assert_eq!(admission::list_given_out(conn, of, 2_000).await.unwrap().len(), seqs.len());
            }
            "list_still_assigned" => {
                assert_eq!(admission::lock_still_assigned(conn, &tasks).await.unwrap().len(), seqs.len());
            }
            "list_unseen_keys" => {
                let before = sqlx::query_scalar("SELECT now() - interval '1 min'").fetch_one(&mut *conn).await.unwrap();
                assert_eq!(admission::list_unseen_keys(conn, before, 100).await.unwrap().len(), 100);
            }
            "key_rules" => {
                assert_eq!(key_rules::count_rules(conn, self.pulled, "k1002", 100).await.unwrap(), (true, 100));
                let rules = KeyRules { concurrency: Some(4), rate: None, weight: None };
                key_rules::put_rules(conn, self.pulled, "k1002", &rules).await.unwrap();
                assert!(key_rules::delete_rules(conn, self.pulled, "k1002").await.unwrap());
            }
            "list_key_names" => {
                let names = key_rules::list_key_names(conn, self.pulled, None, 100).await.unwrap();
                let after = Some(names[99].as_str());
                assert_eq!(key_rules::list_key_names(conn, self.pulled, after, 100).await.unwrap().len(), 100);
            }
            "list_keys_now" => {
                let names: Vec<String> = (1_001..=1_100).map(|n| format!("k{n}")).collect();
                let keys = key_rules::list_keys_now(conn, self.pulled, &names).await.unwrap();
                assert!(keys.iter().all(|key| key.waiting == 2));
            }
            "runnable" => {
                let counted = Counted { pending: 1_000, claimed: 0, delayed: 0, waiting: 500 };
                assert!(runnable::count(conn, self.pulled, counted, &self.marks).await.unwrap() > 0);
            }
            "list_schedulers" => assert_eq!(schedulers::list(conn).await.unwrap().len(), 1),
            "change_scheduler" => {
                schedulers::lock(conn, self.assigned).await.unwrap().unwrap();
                let seen = Active { queue: self.assigned, server: Some(SERVER), term: 1 };
                let why = tenure_api::states::SchedulerEnd::Lost;
                assert_eq!(schedulers::change(conn, seen, None, why).await.unwrap(), Some(2));
            }
            "set_complete_by" => {
                let claims = "SELECT seq, run, now() FROM claims ORDER BY seq LIMIT 200";
                let claims: Vec<_> = sqlx::query_as(claims).fetch_all(&mut *conn).await.unwrap();
                assert_eq!(limit::set_complete_by(conn, &claims).await.unwrap(), 200);
            }
            other => unreachable!("{other}"),
        }
    }
}

fn start((seq, key): (i64, i64), taker: Taker) -> Start {
    Start { seq, run: 0, key, priority: 4, taker }
}
