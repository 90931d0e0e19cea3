//! Ticks: shared transactions, and statements that fail or wait.

use std::pin::Pin;

use tenure_engine::batch::tick::{Kind, Ticks};
use tenure_engine::batch::{Batcher, DIVIDED_MIN, Operation, Verdict};
use tenure_engine::events::sequencer::Sequencer;
use tenure_engine::notifiers::{Effects, Notifiers};
use tenure_engine::ops::create_task::{CreateTask, NewTaskInQueue};
use tenure_engine::route::HotSessions;
use tenure_store::connector::Connector;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::queues::Queues;
use tenure_store::transitions::claim::TICK_BYTES_MAX;
use tokio_util::task::TaskTracker;

use crate::support::*;

const LONG: Duration = Duration::from_secs(20);
/// Stores values with their transaction.
const NOTE: &str = "INSERT INTO notes (value, quotient, tick)
                    SELECT value, 100 / value, pg_current_xact_id()::text FROM unnest($1::int[]) AS value";

/// An operation with the first or second statement of a tick.
struct Note<const SECOND: bool>;

struct Number {
    value: i32,
    task: Uuid,
}

fn values(members: &[&Number]) -> Vec<i32> {
    members.iter().map(|member| member.value).collect()
}

impl<const SECOND: bool> Operation for Note<SECOND> {
    type Member = Number;
    type Answer = ();
    type Decoded = ();
    const NAME: &'static str = "note";
    const WAITING_MAX: usize = 1_000;
    const KIND: Option<Kind> = Some(if SECOND { Kind::End } else { Kind::Create });

    fn weight(_: &Number) -> usize {
        1
    }

    fn task(member: &Number) -> Option<Uuid> {
        Some(member.task)
    }

    fn is_special(&self, member: &Number) -> bool {
        member.value <= 0
    }

    fn statement(&self, members: &[&Number]) -> Option<Statement> {
        Some(Statement::new(NOTE).with(&values(members)))
    }

    fn decode(&self, _: &[&Number], _: &Rows, _: &mut Effects) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn judge(&self, _: &mut PgConnection, members: &[&Number], (): ()) -> Result<Vec<Verdict<()>>, sqlx::Error> {
        Ok(members.iter().map(|_| Verdict::Done(())).collect())
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Number],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<()>>, sqlx::Error> {
        sqlx::query(NOTE).bind(values(members)).execute(conn).await?;
        Ok(members.iter().map(|_| Verdict::Done(())).collect())
    }

    async fn wait(&self, _: &mut PgConnection, _: &Number) -> Result<(), sqlx::Error> {
        Ok(())
    }
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), OpError>> + 'a>>;

struct Rig {
    database: TestDatabase,
    first: Batcher<Note<false>>,
    second: Batcher<Note<true>>,
    ticks: Ticks,
    tasks: TaskTracker,
}

impl Rig {
    async fn start() -> Self {
        let database = TestDatabase::create().await;
        let connector = database.connector();
        Self::start_by(database, &connector).await
    }

    /// Starts a rig; both statements were run once.
    async fn start_by(database: TestDatabase, connector: &Connector) -> Self {
        sqlx::query("CREATE TABLE notes (value int, quotient int, tick text)").execute(database.pool()).await.unwrap();
        let (notifiers, tasks) = (Notifiers::default(), TaskTracker::new());
        let ticks = Ticks::start(connector, HotSessions::MIN, &tasks);
        let first = Batcher::start(Note::<false>, connector, &notifiers, &ticks, &tasks);
        let second = Batcher::start(Note::<true>, connector, &notifiers, &ticks, &tasks);
        let rig = Self { database, first, second, ticks, tasks };
        rig.first.submit(Number { value: 1, task: Uuid::new_v4() }).await.unwrap();
        rig.second.submit(Number { value: 1, task: Uuid::new_v4() }).await.unwrap();
        rig
    }

    /// Submits both to the same tick.
    async fn submit_both(&self, one: Number, other: Number) -> (Result<(), OpError>, Result<(), OpError>) {
        let held = self.ticks.hold().await;
        let mut one: Waiting<'_> = Box::pin(self.first.submit(one));
        let mut other: Waiting<'_> = Box::pin(self.second.submit(other));
        assert!(futures_util::poll!(one.as_mut()).is_pending() && futures_util::poll!(other.as_mut()).is_pending());
        // Until the operations wait for the tick.
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(held);
        tokio::time::timeout(LONG, async { tokio::join!(one, other) }).await.expect("both are answered")
    }

    async fn transactions(&self, values: [i32; 2]) -> i64 {
        sqlx::query_scalar("SELECT count(DISTINCT tick) FROM notes WHERE value = ANY($1)")
            .bind(values)
            .fetch_one(self.database.pool())
            .await
            .unwrap()
    }

    async fn finish(self) {
        drop((self.first, self.second, self.ticks));
        self.tasks.close();
        tokio::time::timeout(LONG, self.tasks.wait()).await.expect("the workers and the ticks end");
        self.database.finish().await;
    }
}

fn value(value: i32) -> Number {
    Number { value, task: Uuid::new_v4() }
}

#[tokio::test]
async fn waiting_operations_share_one_transaction() {
    let rig = Rig::start().await;
    // Without a transaction block, it is the last statement of its session.
    let last = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE 'INSERT INTO notes%'";
    eventually("the lone statement has ended", async || number(rig.database.pool(), last).await == 1).await;
    let (one, other) = rig.submit_both(value(10), value(20)).await;
    one.unwrap();
    other.unwrap();
    assert_eq!(rig.transactions([10, 20]).await, 1, "the two statements were committed apart");
    rig.finish().await;
}

#[tokio::test]
async fn members_of_same_task_never_share_transaction() {
    let rig = Rig::start().await;
    let task = Uuid::new_v4();
    let (one, other) = rig.submit_both(Number { value: 10, task }, Number { value: 20, task }).await;
    one.unwrap();
    other.unwrap();
    assert_eq!(rig.transactions([10, 20]).await, 2);
    rig.finish().await;
}

#[tokio::test]
async fn failed_statement_does_not_fail_others_of_tick() {
    let rig = Rig::start().await;
    let (one, other) = rig.submit_both(value(10), value(0)).await;
    one.unwrap();
    assert!(matches!(other, Err(OpError::Internal(_))), "{other:?}");
    let pool = rig.database.pool();
    assert_eq!(number(pool, "SELECT count(*) FROM notes WHERE value = 10").await, 1, "lost, or run twice");
    // For a while the operation runs its statements separately.
    let (one, other) = rig.submit_both(value(11), value(21)).await;
    one.unwrap();
    other.unwrap();
    assert_eq!(number(pool, "SELECT count(*) FROM notes WHERE value IN (11, 21)").await, 2);
    rig.finish().await;
}

#[tokio::test]
async fn callers_of_lost_tick_are_asked_to_retry() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::start(&database).await;
    let connector = Connector::new(proxy.options().clone());
    let rig = Rig::start_by(database, &connector).await;
    proxy.lose_the_next_answer();
    let (one, other) = rig.submit_both(value(10), value(20)).await;
    assert!(matches!(one, Err(OpError::Unavailable)), "{one:?}");
    assert!(matches!(other, Err(OpError::Unavailable)), "{other:?}");
    let stored = number(rig.database.pool(), "SELECT count(*) FROM notes WHERE value IN (10, 20)").await;
    assert!([0, 2].contains(&stored), "{stored}: done in part, or run again");
    proxy.heal();
    rig.first.submit(value(30)).await.unwrap();
    rig.finish().await;
}

/// True if one transaction created and claimed the task.
async fn is_claimed_by_its_create(queue: &Queue, database: &TestDatabase) -> bool {
    let claim = queue.claim_work(QUEUE, "worker", 1, LONG);
    let create = async {
        // The worker waits or is about to.
        let tried = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '-- claim_work%'";
        eventually("the worker waits", async || number(database.pool(), tried).await == 1).await;
        queue.create_one(QUEUE).await
    };
    let (claim, task) = tokio::join!(claim, create);
    let claim = claim.unwrap();
    claim.delivery.delivered();
    assert_eq!(claim.claims[0].task.id, task);
    let together = "SELECT count(*) FROM tasks t JOIN claims c ON c.id = t.id AND c.xmin::text = t.xmin::text";
    let is_so = number(database.pool(), together).await == 1;
    assert!(matches!(queue.status(task).await.last, Last::Running(..)));
    is_so
}

#[tokio::test]
async fn waiting_worker_claims_task_in_its_create_transaction() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let mut is_so = false;
    for _ in 0..CREATES_MAX {
        is_so = is_so || is_claimed_by_its_create(&queue, &database).await;
    }
    assert!(is_so, "created and claimed by two transactions");
    finish(database, queue).await;
}

/// Terminates idle sessions first. True on success.
async fn creates_after_its_sessions_were_ended(queue: &Queue, database: &TestDatabase) -> bool {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name LIKE 'tenure/% hot'";
    assert!(number(database.pool(), end).await > 0, "a session exists");
    eventually("the sessions are gone", async || number(database.pool(), end).await == 0).await;
    // The server notices the close.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let done = queue.create(&new_task(QUEUE, &json!({}))).await.is_ok();
    if !done {
        queue.create_one(QUEUE).await;
    }
    done
}

#[tokio::test]
async fn closed_idle_session_is_not_reused() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    let mut done = false;
    for _ in 0..CREATES_MAX {
        done = creates_after_its_sessions_were_ended(&queue, &database).await || done;
    }
    assert!(done, "each create has met the session that was closed");
    finish(database, queue).await;
}

#[tokio::test]
async fn worker_keeps_waiting_while_creates_lack_session() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let admit = async |admitted: bool| {
        let sql = "UPDATE pg_database SET datallowconn = $1 WHERE datname = current_database()";
        sqlx::query(sql).bind(admitted).execute(database.pool()).await.unwrap();
    };
    let claim = queue.claim_work(QUEUE, "worker", 1, LONG);
    let create = async {
        let tried = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '-- claim_work%'";
        eventually("the worker waits", async || number(database.pool(), tried).await == 1).await;
        admit(false).await;
        for _ in 0..CREATES_MAX {
            let refused = queue.create(&new_task(QUEUE, &json!({}))).await;
            assert!(matches!(refused, Err(OpError::Unavailable)), "{refused:?}");
        }
        admit(true).await;
        let task = new_task(QUEUE, &json!({}));
        eventually("tasks are created again", async || queue.create(&task).await.is_ok()).await;
        task.id
    };
    let (claim, task) = tokio::join!(claim, create);
    let claim = claim.expect("it has waited for the task");
    claim.delivery.delivered();
    assert_eq!(claim.claims[0].task.id, task);
    finish(database, queue).await;
}

/// The worker may not wait yet, or the end of a session may not be noticed.
const CREATES_MAX: usize = 10;
/// Ten times the delay that a waiting statement may cause in its tick.
const LET_GO: Duration = Duration::from_secs(1);

#[tokio::test]
async fn blocked_create_releases_others_of_its_tick() {
    let rig = Rig::start().await;
    let connector = rig.database.connector();
    // Creates share the ticks of the second operation.
    let (ticks, tasks) = (Ticks::start(&connector, HotSessions::MIN, &rig.tasks), &rig.tasks);
    let creates = Batcher::start(
        CreateTask::new(&Queues::default(), Sequencer::default().reader()),
        &connector,
        &Notifiers::default(),
        &ticks,
        tasks,
    );
    let notes = Batcher::start(Note::<true>, &connector, &Notifiers::default(), &ticks, tasks);
    let queue = Queue::start(rig.database.options());
    let key = queue.key(QUEUE).await;
    let create = |task: NewTask| creates.submit(NewTaskInQueue { task: Arc::new(task), queue: key, link: None });
    create(new_task(QUEUE, &json!({}))).await.unwrap();
    notes.submit(value(1)).await.unwrap();

    let (waits, other) =
        (new_task(QUEUE, &json!({"taskGroupId": TaskId::from_random([9; 16])})), new_task(QUEUE, &json!({})));
    let mut conn = rig.database.connect().await;
    let mut maker = conn.begin().await.unwrap();
    sqlx::query("INSERT INTO task_groups (id, scheduler, expires) VALUES ($1, $2, now() + interval '2 years')")
        .bind(waits.group.uuid())
        .bind(waits.scheduler.as_str())
        .execute(&mut *maker)
        .await
        .unwrap();
    let held = ticks.hold().await;
    let mut waiting = Box::pin(create(waits));
    let (mut created, mut noted) = (Box::pin(create(other)), Box::pin(notes.submit(value(10))));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    assert!(futures_util::poll!(created.as_mut()).is_pending() && futures_util::poll!(noted.as_mut()).is_pending());
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(held);
    let others = tokio::time::timeout(LET_GO, async { tokio::join!(created, noted) }).await;
    let (created, noted) = others.expect("they wait no longer than their tick");
    created.unwrap();
    noted.unwrap();
    let stored = "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM notes WHERE value = 10)";
    assert_eq!(number(rig.database.pool(), stored).await, 3);
    assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "the create did not have to wait");
    maker.commit().await.unwrap();
    tokio::time::timeout(LONG, waiting).await.expect("an answer").unwrap();
    drop((creates, notes, ticks));
    queue.stop().await;
    rig.finish().await;
}

async fn submit_together<O: Operation>(
    ticks: &Ticks,
    batcher: &Batcher<O>,
    members: Vec<O::Member>,
) -> Vec<Result<O::Answer, OpError>> {
    let held = ticks.hold().await;
    let mut all = Box::pin(join_all(members.into_iter().map(|member| batcher.submit(member))));
    assert!(futures_util::poll!(all.as_mut()).is_pending());
    // Until the operation waits for the tick.
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(held);
    tokio::time::timeout(LONG, all).await.expect("all are answered")
}

#[tokio::test]
async fn task_with_many_requests_delays_no_other() {
    let rig = Rig::start().await;
    let task = Uuid::new_v4();
    let mut members: Vec<Number> = (0..300).map(|_| Number { value: 20, task }).collect();
    members.push(value(21));
    for answer in submit_together(&rig.ticks, &rig.first, members).await {
        answer.unwrap();
    }
    let before = "SELECT count(*) FROM notes WHERE value = 20 AND tick::bigint < (SELECT tick::bigint FROM notes WHERE value = 21)";
    assert_eq!(number(rig.database.pool(), before).await, 0, "in the first tick");
    rig.finish().await;
}

#[tokio::test]
async fn tasks_without_options_use_their_own_statement() {
    let database = TestDatabase::create().await;
    let (connector, tasks) = (database.connector(), TaskTracker::new());
    let ticks = Ticks::start(&connector, HotSessions::MIN, &tasks);
    let operation = CreateTask::new(&Queues::default(), Sequencer::default().reader());
    let creates = Batcher::start(operation, &connector, &Notifiers::default(), &ticks, &tasks);
    let queue = Queue::start(database.options());
    let key = queue.key(QUEUE).await;
    let delayed = || new_task(QUEUE, &json!({"extra": {"tenure": {"delay": 60}}}));
    // Each statement leaves a row in `due`.
    let left = "SELECT cardinality(seqs)::bigint, xmin::text FROM due ORDER BY ctid OFFSET $1";
    let mut seen = 0_i64;
    for (plain, rows) in [(50, vec![50, 1]), (DIVIDED_MIN, vec![20, 1]), (DIVIDED_MIN - 1, vec![20])] {
        let mut new: Vec<NewTask> = (0..plain).map(|_| new_task(QUEUE, &json!({}))).collect();
        new.insert(plain / 2, delayed());
        let members =
            new.iter().map(|task| NewTaskInQueue { task: Arc::new(task.clone()), queue: key, link: None }).collect();
        for (answer, task) in submit_together(&ticks, &creates, members).await.into_iter().zip(&new) {
            assert_eq!(answer.unwrap().id, task.id);
        }
        let found: Vec<(i64, String)> = sqlx::query_as(left).bind(seen).fetch_all(database.pool()).await.unwrap();
        seen += i64::try_from(found.len()).unwrap();
        assert_eq!(found.iter().map(|(tasks, _)| *tasks).collect::<Vec<_>>(), rows, "{plain} without options");
        assert!(found.iter().all(|(_, by)| *by == found[0].1), "by two transactions");
    }
    let held = "SELECT count(*) FROM pending p JOIN task_options o USING (seq) WHERE p.hold = 1";
    assert_eq!(number(database.pool(), held).await, 3);
    drop((creates, ticks));
    finish(database, queue).await;
}

#[tokio::test]
async fn partly_failed_batch_is_retried_once() {
    let rig = Rig::start().await;
    let values = (1..=25).chain([0]).chain([-7]);
    let answers = submit_together(&rig.ticks, &rig.second, values.map(value).collect()).await;
    let failed: Vec<usize> = (0..answers.len()).filter(|&place| answers[place].is_err()).collect();
    assert_eq!(failed, [25], "{answers:?}");
    let pool = rig.database.pool();
    // The first was also stored when the rig started.
    assert_eq!(number(pool, "SELECT count(*) FROM notes WHERE value > 1").await, 24, "lost, or run twice");
    assert_eq!(number(pool, "SELECT count(*) FROM notes WHERE value = -7").await, 1);
    rig.finish().await;
}

#[tokio::test]
async fn oversized_definitions_are_read_after_tick() {
    const TASKS: u16 = 7;
    let (database, queue) = start().await;
    let mut definitions = HashMap::new();
    for n in 0..TASKS {
        // Definitions together far over the limit of a tick.
        let bytes = if n + 1 == TASKS { 10 } else { usize::try_from(TICK_BYTES_MAX).unwrap() / 4 + usize::from(n) };
        let task = new_task(QUEUE, &json!({"payload": {"text": "x".repeat(bytes)}}));
        queue.create(&task).await.unwrap();
        definitions.insert(task.id, task.definition);
    }
    let mut answer = queue.claim_work(QUEUE, "worker", TASKS, LONG).await.unwrap();
    answer.delivery.delivered();
    for claim in answer.claims.drain(..) {
        let (whole, got) = (definitions.remove(&claim.task.id).unwrap(), claim.definition.unwrap());
        assert!(got == whole, "{} bytes of {}", got.len(), whole.len());
    }
    assert!(definitions.is_empty(), "{} are not claimed", definitions.len());
    // Another session ran the tick's statement.
    let read = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND query LIKE '-- list_definitions%'";
    assert_eq!(number(database.pool(), read).await, 1, "the tick has answered with all of them");
    finish(database, queue).await;
}
