//! Every statement of admission, with what the passes and operations give to it.

use chrono::TimeDelta;
use sqlx::PgConnection;
use tenure_domain::admission::{Decided, HeadAfter, HeadState, PRIORITIES, Start};
use tenure_domain::election::Active;
use tenure_domain::policy::counts::Counted;
use tenure_domain::policy::document::{Admission, Policy};
use tenure_domain::policy::keys::KeyRules;
use tenure_store::admission::{self, Announced, Leader, Look, Reassigning, Tokens, key_rules, runnable};
use tenure_store::due_marks::START;
use tenure_store::events::Sequenced;
use tenure_store::transitions::limit;
use tenure_store::{schedulers, session, worker_sessions};
use uuid::Uuid;

use super::fill::{ASSIGNED, PULLED, SESSIONS};

/// Those of the pass, which are planned as hot ones are.
pub const OF_PASS: [&str; 21] = [
    "lock_admission",
    "take_admission_work",
    "take_rated_claims",
    "store_tat",
    "name_admission_keys",
    "look_at_keys",
    "load_heads",
    "load_heads to assign",
    "load_keys",
    "load_sessions",
    "count_admitted",
    "count_ready",
    "count_ready_heads",
    "displace_in_queue",
    "displace_in_keys",
    "withdraw_in_keys",
    "admit_runs",
    "assign_runs",
    "store_admission",
    "forget_idle_keys",
    "forget_admission",
];

/// Those of other passes and of operations.
pub const OTHERS: [&str; 15] = [
    "list_admission_queues",
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

/// The server that is the scheduler.
const SERVER: Uuid = Uuid::from_u128(0x5f8b_1f4e_7a53_4c5e_8a39_2f2f_6f0f_4f10);

/// What they are given.
pub struct Given {
    pulled: i32,
    assigned: i32,
    limits: Admission,
    announced: Vec<Announced>,
    waiting: Vec<i64>,
    waiting_assigned: Vec<i64>,
    given_out: Vec<(i64, Uuid)>,
    sessions: Vec<i64>,
}

impl Given {
    /// What there is now.
    pub async fn read(conn: &mut PgConnection, policy: &Policy) -> Self {
        let queue = async |conn: &mut PgConnection, name: &str| -> i32 {
            sqlx::query_scalar("SELECT id FROM task_queues WHERE name = $1").bind(name).fetch_one(conn).await.unwrap()
        };
        let (pulled, assigned) = (queue(conn, PULLED).await, queue(conn, ASSIGNED).await);
        // Keys from all over the index.
        let keys = "SELECT h.key_id, h.from_ord, p.seq FROM (SELECT * FROM admission_heads WHERE queue = $1 ORDER BY key_id LIMIT 500) h
                    JOIN pending p ON p.key_id = h.key_id AND p.ord = h.from_ord AND p.hold = 2";
        let rows: Vec<(i64, i64, i64)> = sqlx::query_as(keys).bind(pulled).fetch_all(&mut *conn).await.unwrap();
        let announced: Vec<Announced> =
            rows.iter().map(|&(key, ord, seq)| Announced { key, waits: Some((4, ord)), seq: Some(seq) }).collect();
        assert_eq!(announced.len(), 500);
        let waiting = async |conn: &mut PgConnection, queue: i32| -> Vec<i64> {
            let sql = "SELECT seq FROM pending WHERE queue = $1 AND hold = 2 ORDER BY key_id LIMIT 200";
            sqlx::query_scalar(sql).bind(queue).fetch_all(conn).await.unwrap()
        };
        let given_out = "SELECT seq, id FROM pending WHERE hold = 3 ORDER BY seq";
        Self {
            pulled,
            assigned,
            limits: policy.admission().unwrap(),
            announced,
            waiting: waiting(conn, pulled).await,
            waiting_assigned: waiting(conn, assigned).await,
            given_out: sqlx::query_as(given_out).fetch_all(&mut *conn).await.unwrap(),
            sessions: sqlx::query_scalar("SELECT epoch FROM worker_sessions").fetch_all(conn).await.unwrap(),
        }
    }

    fn keys(&self) -> Vec<i64> {
        self.announced.iter().map(|one| one.key).collect()
    }

    fn look(&self) -> Look<'_> {
        Look { queue: self.pulled, admission: &self.limits, least: [0.0; PRIORITIES], keeps_times: false }
    }

    fn decided(&self) -> Decided {
        let head = |(place, one): (usize, &Announced)| HeadAfter {
            key: one.key,
            priority: 4,
            vtime: place as f64,
            state: if place % 2 == 0 { HeadState::Ready } else { HeadState::At(4e9) },
        };
        Decided {
            starts: Vec::new(),
            keys: self.announced.iter().map(|one| (one.key, 1.0)).collect(),
            heads: self.announced.iter().enumerate().map(head).collect(),
            tat: 1.0,
            least: [1.0; PRIORITIES],
            unread: false,
        }
    }

    /// Runs one of [`OF_PASS`].
    pub async fn run_of_pass(&self, conn: &mut PgConnection, statement: &str) {
        session::plan_as_hot(conn).await.unwrap();
        let (least, room) = ([0.0; PRIORITIES], [200; PRIORITIES]);
        match statement {
            "lock_admission" => {
                let leader = Leader { server: SERVER, term: Some(1) };
                for queue in [self.pulled, self.assigned] {
                    assert!(admission::lock(conn, queue, leader).await.unwrap().is_some());
                }
            }
            "take_admission_work" => assert_eq!(admission::take_work(conn, self.pulled).await.unwrap().len(), 500),
            "name_admission_keys" => admission::name_keys(conn, self.pulled, &self.announced).await.unwrap(),
            "look_at_keys" => drop(admission::look(conn, &self.look(), &self.announced).await.unwrap()),
            "load_heads" | "load_heads to assign" => {
                let assign = statement.ends_with("assign");
                let queue = if assign { self.assigned } else { self.pulled };
                let heads = admission::load_heads(conn, queue, &least, &room, 200, assign).await.unwrap();
                assert_eq!(heads.len(), 200);
            }
            "load_keys" => {
                let keys = admission::load_keys(conn, self.pulled, &self.keys(), &self.limits).await.unwrap();
                assert_eq!(keys.len(), 500);
            }
            "load_sessions" => {
                let sessions = admission::load_sessions(conn, self.assigned).await.unwrap();
                assert!(sessions.iter().all(|session| session.held == 4));
            }
            "count_admitted" => {
                admission::count_admitted(conn, Sequenced::default(), self.pulled).await.unwrap();
            }
            "take_rated_claims" => {
                assert_eq!(admission::take_tokens(conn, self.pulled).await.unwrap(), Tokens::default());
            }
            "store_tat" => admission::store_times(conn, self.pulled, 1.0, &[]).await.unwrap(),
            "count_ready" => {
                let ready = admission::count_ready(conn, self.pulled, &[0; PRIORITIES], 1_000).await.unwrap();
                assert_eq!(ready.iter().sum::<u32>(), 4 * SESSIONS.unsigned_abs());
            }
            "count_ready_heads" => {
                let heads = admission::count_heads(conn, self.pulled, &least, true, 200).await.unwrap();
                assert_eq!(heads[4], 200);
            }
            "displace_in_queue" => {
                let displaced =
                    admission::displace_in_queue(conn, self.pulled, &[0, 0, 0, 0, 0, 20, 20]).await.unwrap();
                assert_eq!(displaced.iter().sum::<u32>(), 40);
            }
            "displace_in_keys" => {
                drop(admission::displace_in_keys(conn, self.pulled, &self.keys(), true, None, None).await.unwrap());
            }
            "withdraw_in_keys" => admission::withdraw_in_keys(conn, self.pulled, &self.keys(), Some(1)).await.unwrap(),
            "admit_runs" => {
                assert_eq!(admission::admit(conn, self.pulled, PULLED, &self.waiting).await.unwrap(), 200);
            }
            "assign_runs" => self.assign_runs(conn).await,
            "store_admission" => admission::store(conn, self.pulled, &self.decided(), true).await.unwrap(),
            "forget_idle_keys" => {
                let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *conn).await.unwrap();
                // They all have runs.
                assert_eq!(admission::forget_idle_keys(conn, self.pulled, &self.keys(), now).await.unwrap(), Some(0));
            }
            "forget_admission" => {
                // As while its runs are being refiled: then it is tried again and again.
                let off = "UPDATE task_queues SET key_by = NULL WHERE id = $1";
                sqlx::query(off).bind(self.pulled).execute(&mut *conn).await.unwrap();
                assert!(!admission::forget_queue(conn, self.pulled).await.unwrap());
            }
            other => unreachable!("{other}"),
        }
    }

    async fn assign_runs(&self, conn: &mut PgConnection) {
        let to = |(place, &seq): (usize, &i64)| Start {
            seq,
            run: 0,
            key: 0,
            priority: 4,
            session: Some(self.sessions[place % self.sessions.len()]),
        };
        let starts: Vec<Start> = self.waiting_assigned.iter().enumerate().map(to).collect();
        let within = Some(TimeDelta::seconds(60));
        assert_eq!(admission::assign(conn, self.assigned, &starts, within).await.unwrap().0, 200);
    }

    /// Runs one of [`OTHERS`].
    pub async fn run_other(&self, conn: &mut PgConnection, statement: &str) {
        let (seqs, tasks): (Vec<i64>, Vec<Uuid>) = self.given_out.iter().copied().unzip();
        match statement {
            "list_admission_queues" => {
                assert!(admission::list_queues(conn).await.unwrap().iter().all(|listed| listed.due));
            }
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
                assert!(runnable::count(conn, self.pulled, counted).await.unwrap() > 0);
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
