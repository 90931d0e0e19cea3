//! Events are immutable: every position is read before and after every operation of a random walk.

use tenure_domain::artifact::{Artifact, Details};
use tenure_domain::task::Granted;
use tenure_engine::ops::create_artifact::{self, RunRef};
use tenure_engine::ops::{change_priority, task_group};
use tenure_store::events::{Page, read, sequence};
use tenure_store::secrets;

use crate::support::*;

const STEPS: usize = 160;
const KINDS: usize = 14;

/// Counts positions taken before their transaction has an id, which the safe position would pass. A
/// sequence survives rollbacks.
const NUMBER_FIRST: &str = "
    CREATE SEQUENCE unnumbered;
    CREATE FUNCTION number_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF pg_current_xact_id_if_assigned() IS NULL THEN PERFORM nextval('unnumbered'); END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER number_first BEFORE INSERT ON outbox_new FOR EACH ROW EXECUTE FUNCTION number_first();
    CREATE TRIGGER number_first BEFORE INSERT ON pending FOR EACH ROW EXECUTE FUNCTION number_first()";

struct Walk {
    database: TestDatabase,
    reader: PgConnection,
    queue: Queue,
    held: Vec<Granted>,
    known: Vec<TaskId>,
    seen: BTreeMap<i64, String>,
    bits: u64,
}

impl Walk {
    async fn start(seed: u64) -> Self {
        let database = TestDatabase::create().await;
        sqlx::raw_sql(NUMBER_FIRST).execute(database.pool()).await.unwrap();
        let queue = Queue::start(database.options());
        let reader = database.connect().await;
        Self { database, reader, queue, held: Vec::new(), known: Vec::new(), seen: BTreeMap::new(), bits: seed }
    }

    fn random(&mut self, below: usize) -> usize {
        self.bits ^= self.bits << 13;
        self.bits ^= self.bits >> 7;
        self.bits ^= self.bits << 17;
        usize::try_from(self.bits % u64::try_from(below.max(1)).unwrap()).unwrap()
    }

    fn one_of_known(&mut self) -> Option<TaskId> {
        let n = self.random(self.known.len());
        self.known.get(n).copied()
    }

    async fn now(&self) -> DateTime<Utc> {
        sqlx::query_scalar("SELECT now FROM db_now").fetch_one(self.database.pool()).await.unwrap()
    }

    async fn advance(&self, seconds: f64) {
        sqlx::query("UPDATE clock SET clock_offset = clock_offset + make_interval(secs => $1)")
            .bind(seconds)
            .execute(self.database.pool())
            .await
            .unwrap();
        self.queue.passes.run_all_due().await.unwrap();
    }

    /// Compares the whole log with earlier reads.
    async fn read(&mut self, after: &str) {
        sequence(&mut self.reader, Sequenced::default()).await.unwrap();
        let mut position = 0;
        loop {
            let Page::Events(events, end) = read(&mut self.reader, position, 100).await.unwrap() else {
                panic!("nothing is purged here");
            };
            if end == position {
                break;
            }
            position = end;
            for event in events {
                let text = serde_json::to_string(&event).unwrap();
                let before = self.seen.entry(event.position).or_insert_with(|| text.clone());
                assert_eq!(*before, text, "event {} changed by {after}", event.position);
            }
        }
    }

    async fn create(&mut self) {
        let priority = Priority::ALL[self.random(7)].to_string();
        let mut fields = json!({"priority": priority, "retries": 2, "tags": {"n": self.known.len().to_string()}});
        if self.random(2) == 0 {
            fields["extra"] = json!({"tenure": {"retryFailed": true}});
        }
        if let Some(other) = self.one_of_known().filter(|_| self.bits.is_multiple_of(3)) {
            fields["taskGroupId"] = json!(self.known[0]);
            fields["dependencies"] = json!([other]);
            // Extends the retention of a group.
            let expires = self.now().await + TimeDelta::days(400 + i64::try_from(self.known.len()).unwrap());
            fields["expires"] = json!(expires);
        }
        let task = new_task(QUEUE, &fields);
        if self.queue.create(&task).await.is_ok() {
            self.known.push(task.id);
        }
    }

    async fn claim(&mut self) {
        let mut answer = self.queue.claim_work(QUEUE, "worker", 2, Duration::ZERO).await.unwrap();
        if self.random(4) > 0 {
            answer.delivery.delivered();
            self.held.append(&mut answer.claims);
            return;
        }
        drop(answer.delivery);
        for granted in answer.claims {
            eventually("the claim is requeued", async || {
                !matches!(self.queue.status(granted.task.id).await.last, Last::Running(..))
            })
            .await;
        }
    }

    async fn add_artifact(&mut self, granted: &Granted) {
        let details = Details::Reference { url: "https://example.com/".to_owned() };
        let name = format!("public/{}", self.random(4));
        let expires = DateTime::from_timestamp_millis((self.now().await + TimeDelta::minutes(30)).timestamp_millis());
        let content_type = "text/plain".to_owned();
        let artifact = Artifact { name, details, content_type, content_length: None, expires: expires.unwrap() };
        let run_ref = RunRef { task: granted.task.id, run: granted.run };
        let (pool, notifiers) = (&self.queue.engine.pool, &self.queue.engine.notifiers);
        drop(create_artifact::create(pool, notifiers, run_ref, artifact).await);
    }

    /// Creates the events that the test requires.
    async fn one_of_each(&mut self) {
        let task = new_task(QUEUE, &json!({"priority": "low"}));
        self.queue.create(&task).await.unwrap();
        self.known.push(task.id);
        prioritise(&self.queue, task.id, Priority::High).await.unwrap();
        let granted = self.queue.claim_one(QUEUE).await;
        let report = Report::Exception(ExceptionReason::MalformedPayload);
        self.queue.report(granted.task.id, granted.run, report).await.unwrap();
        self.read("the first task").await;
    }

    /// Refusals are tested too.
    async fn step(&mut self) -> &'static str {
        let (pool, notifiers) = (self.queue.engine.pool.clone(), self.queue.engine.notifiers.clone());
        let kind = self.random(KINDS);
        let held = self.random(self.held.len());
        let known = self.one_of_known();
        let priority = Priority::ALL[self.random(7)];
        match (kind, known) {
            (0..=2, _) | (_, None) => {
                self.create().await;
                "create"
            }
            (3 | 4, _) => {
                self.claim().await;
                "claimWork"
            }
            (5 | 6, _) if !self.held.is_empty() => {
                let reports = [Report::Completed, Report::Failed, Report::Exception(ExceptionReason::IntermittentTask)];
                let (run, report) = (self.held.swap_remove(held), reports[self.random(3)]);
                drop(self.queue.report(run.task.id, run.run, report).await);
                "a report"
            }
            (7, _) if !self.held.is_empty() => {
                self.advance(1.5).await;
                let run = &self.held[held];
                drop(self.queue.reclaim(run.task.id, run.run).await);
                "reclaimTask"
            }
            (8, _) if !self.held.is_empty() => {
                let run = self.held[held].clone();
                self.add_artifact(&run).await;
                "createArtifact"
            }
            (9, Some(id)) => {
                let change = [Change::Cancel, Change::Rerun, Change::Schedule][self.random(3)];
                drop(crate::support::change(&self.queue, id, change).await);
                "a change of a task"
            }
            (10, Some(id)) => {
                drop(prioritise(&self.queue, id, priority).await);
                "changeTaskPriority"
            }
            (11, _) => {
                drop(change_priority::change_group(&pool, &notifiers, &ANN, self.known[0], priority).await);
                "changeTaskGroupPriority"
            }
            (12, _) if self.known.len() > 30 => {
                drop(task_group::seal(&pool, &ANN, self.known[0]).await);
                "sealTaskGroup"
            }
            (_, Some(id)) => {
                // Claims expire: runs end and begin.
                if self.random(6) == 0 {
                    self.advance(1300.0).await;
                    self.held.clear();
                } else {
                    drop(self.queue.claim_task(id, RunId::FIRST, "named").await);
                }
                "the passage of time, or claimTask"
            }
        }
    }

    async fn finish(self) {
        let unnumbered = "SELECT is_called FROM unnumbered";
        assert!(!sqlx::query_scalar::<_, bool>(unnumbered).fetch_one(self.database.pool()).await.unwrap());
        finish(self.database, self.queue).await;
    }
}

#[tokio::test]
async fn events_never_change_while_readable() {
    let seed = u64::from_le_bytes(secrets::random()) | 1;
    println!("seed {seed}");
    let mut walk = Walk::start(seed).await;
    walk.one_of_each().await;
    for _ in 0..STEPS {
        let what = walk.step().await;
        walk.read(what).await;
        walk.queue.passes.run_all_due().await.unwrap();
        walk.read("a pass").await;
    }
    let exchanges = |name: &str| walk.seen.values().filter(|event| event.contains(name)).count();
    for name in ["task-defined", "task-pending", "task-running", "task-exception", "task-priority-changed"] {
        assert!(exchanges(name) > 0, "the walk has no {name}");
    }
    walk.finish().await;
}

#[tokio::test]
async fn event_shows_priority_at_its_time() {
    let mut walk = Walk::start(1).await;
    let task = new_task(QUEUE, &json!({"priority": "low"}));
    walk.queue.create(&task).await.unwrap();
    walk.read("its creation").await;
    prioritise(&walk.queue, task.id, Priority::Highest).await.unwrap();
    let claim = walk.queue.claim_one(QUEUE).await;
    walk.read("changeTaskPriority").await;
    let expect = |position: i64, priority: &str| {
        let event: serde_json::Value = serde_json::from_str(&walk.seen[&position]).unwrap();
        assert_eq!(event["payload"]["status"]["priority"], json!(priority), "{event}");
    };
    expect(1, "low");
    expect(2, "low");
    expect(3, "highest");
    expect(4, "highest");
    walk.queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    walk.read("reportCompleted").await;
    walk.finish().await;
}
