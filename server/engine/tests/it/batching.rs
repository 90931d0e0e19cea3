//! The batcher: refusals under load, and the search for a failing member.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use tenure_engine::batch::tick::Ticks;
use tenure_engine::batch::{BATCH_BYTES_MAX, BATCH_MEMBERS_MAX, Batcher, Operation, Verdict, WAITING_BYTES_MAX};
use tenure_engine::notifiers::{Effects, Notifiers};
use tenure_engine::route::HotSessions;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::support::*;

const LONG: Duration = Duration::from_secs(10);

/// Divides a hundred by each number, in one statement.
struct Divide {
    /// Each batch needs a permit.
    turns: Arc<Semaphore>,
    begun: Arc<AtomicUsize>,
}

#[derive(Clone, Copy)]
struct Number {
    value: i32,
    /// The size it claims to have.
    bytes: usize,
}

impl Operation for Divide {
    type Member = Number;
    type Answer = i32;
    const NAME: &'static str = "divide";
    const WAITING_MAX: usize = 300;
    type Decoded = ();

    fn weight(member: &Number) -> usize {
        member.bytes
    }

    fn task(_: &Number) -> Option<Uuid> {
        None
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Number],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<i32>>, sqlx::Error> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.turns.acquire().await.unwrap().forget();
        let values: Vec<i32> = members.iter().map(|member| member.value).collect();
        sqlx::query(
            "INSERT INTO quotients (value, quotient, batch)
             SELECT value, 100 / value, $2 FROM unnest($1::int[]) AS value",
        )
        .bind(&values)
        .bind(i32::try_from(members.len()).unwrap())
        .execute(conn)
        .await?;
        Ok(values.into_iter().map(|value| Verdict::Done(100 / value)).collect())
    }
}

struct Rig {
    database: TestDatabase,
    batcher: Batcher<Divide>,
    turns: Arc<Semaphore>,
    begun: Arc<AtomicUsize>,
    tasks: TaskTracker,
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<i32, OpError>> + 'a>>;

impl Rig {
    async fn start() -> Self {
        let database = TestDatabase::create().await;
        run_sql(database.pool(), "CREATE TABLE quotients (value int, quotient int, batch int)").await;
        let (turns, begun, tasks) = (Arc::new(Semaphore::new(0)), Arc::default(), TaskTracker::new());
        let operation = Divide { turns: Arc::clone(&turns), begun: Arc::clone(&begun) };
        let connector = database.connector();
        let ticks = Ticks::start(&connector, HotSessions::MIN, &tasks);
        let batcher = Batcher::start(operation, &connector, &Notifiers::default(), &ticks, &tasks);
        Self { database, batcher, turns, begun, tasks }
    }

    /// Enqueues a member, which then waits or is refused.
    async fn submit(&self, value: i32, bytes: usize) -> Waiting<'_> {
        let mut answer: Waiting<'_> = Box::pin(self.batcher.submit(Number { value, bytes }));
        match futures_util::poll!(answer.as_mut()) {
            Poll::Ready(answer) => Box::pin(std::future::ready(answer)),
            Poll::Pending => answer,
        }
    }

    /// Waits until its batch has begun: later members share a batch.
    async fn submit_first(&self) -> Waiting<'_> {
        let first = self.submit(1, 1).await;
        eventually("the first batch begins", async || self.begun.load(Ordering::SeqCst) == 1).await;
        first
    }

    fn let_go(&self) {
        self.turns.add_permits(10_000);
    }

    async fn finish(self) {
        drop(self.batcher);
        self.tasks.close();
        tokio::time::timeout(LONG, self.tasks.wait()).await.expect("the workers end");
        self.database.finish().await;
    }
}

#[tokio::test]
async fn refused_member_fails_no_other() {
    let rig = Rig::start().await;
    let first = rig.submit_first().await;
    let (zeros, count) = ([17, 118], 150);
    let mut asked = Vec::new();
    for n in 2..count {
        asked.push((n, rig.submit(if zeros.contains(&n) { 0 } else { n }, 1).await));
    }
    rig.let_go();
    assert_eq!(first.await.unwrap(), 100);
    for (n, answer) in asked {
        let answer = tokio::time::timeout(LONG, answer).await.expect("an answer");
        if zeros.contains(&n) {
            // Division by zero: createTask should have checked it.
            let Err(OpError::Internal(cause)) = &answer else { panic!("{n}: {answer:?}") };
            assert!(cause.to_string().contains("division by zero"), "{cause}");
        } else {
            assert_eq!(answer.unwrap(), 100 / n);
        }
    }
    let pool = rig.database.pool();
    assert_eq!(number(pool, "SELECT count(*) FROM quotients").await, i64::from(count - 3));
    assert_eq!(number(pool, "SELECT count(*) - count(DISTINCT value) FROM quotients").await, 0, "run twice");
    // Bisected: of 148 members, a quarter without a zero shares a statement.
    assert_eq!(number(pool, "SELECT max(batch)::bigint FROM quotients").await, 37);
    rig.finish().await;
}

#[tokio::test]
async fn full_queue_refuses_at_once_and_serves_members() {
    let rig = Rig::start().await;
    let first = rig.submit_first().await;
    let mut held = Vec::new();
    for _ in 0..Divide::WAITING_MAX {
        held.push(rig.submit(2, 1).await);
    }
    // No batch may continue before this response.
    let refused = tokio::time::timeout(LONG, rig.submit(3, 1).await).await.expect("a refusal waits for nothing");
    assert!(matches!(refused, Err(OpError::Overloaded("divide"))), "{refused:?}");
    rig.let_go();
    assert_eq!(first.await.unwrap(), 100);
    for answer in held {
        assert_eq!(answer.await.unwrap(), 50);
    }
    assert_eq!(rig.submit(4, 1).await.await.unwrap(), 25, "there is room again");
    let pool = rig.database.pool();
    assert_eq!(number(pool, "SELECT count(*) FROM quotients WHERE value = 3").await, 0);
    let most = i64::try_from(BATCH_MEMBERS_MAX).unwrap();
    assert_eq!(number(pool, "SELECT max(batch)::bigint FROM quotients").await, most);
    rig.finish().await;
}

#[tokio::test]
async fn members_are_limited_by_bytes_in_every_path() {
    // Large members wait in the blocking path, small ones in the queue.
    for bytes in [WAITING_BYTES_MAX / 4, BATCH_BYTES_MAX] {
        let rig = Rig::start().await;
        let fits = WAITING_BYTES_MAX / bytes + 1;
        let mut held = Vec::new();
        for _ in 0..fits {
            held.push(rig.submit(5, bytes).await);
            // Until the member waits there.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..3 {
            let refused = rig.submit(6, bytes).await.await;
            assert!(matches!(refused, Err(OpError::Overloaded("divide"))), "{refused:?}");
        }
        rig.let_go();
        for answer in held {
            assert_eq!(answer.await.unwrap(), 20);
        }
        eventually("there is room again", async || rig.submit(7, bytes).await.await.is_ok()).await;
        rig.finish().await;
    }
}

#[tokio::test]
async fn members_gather_during_statement_of_other_operation() {
    let rig = Rig::start().await;
    let shared = Ticks::start(&rig.database.connector(), HotSessions::MIN, &rig.tasks);
    let operation = || Divide { turns: Arc::clone(&rig.turns), begun: Arc::clone(&rig.begun) };
    let start = || Batcher::start(operation(), &rig.database.connector(), &Notifiers::default(), &shared, &rig.tasks);
    let (one, other) = (start(), start());
    let mut first: Waiting<'_> = Box::pin(one.submit(Number { value: 1, bytes: 1 }));
    assert!(futures_util::poll!(first.as_mut()).is_pending());
    eventually("the first batch begins", async || rig.begun.load(Ordering::SeqCst) == 1).await;
    let mut gathered: Vec<Waiting<'_>> = Vec::new();
    for value in 2..5 {
        let mut answer: Waiting<'_> = Box::pin(other.submit(Number { value, bytes: 1 }));
        assert!(futures_util::poll!(answer.as_mut()).is_pending());
        gathered.push(answer);
        // Until its own batch would begin.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rig.begun.load(Ordering::SeqCst), 1, "two statements run at a time");
    rig.let_go();
    assert_eq!(first.await.unwrap(), 100);
    for answer in gathered {
        answer.await.unwrap();
    }
    let pool = rig.database.pool();
    assert_eq!(number(pool, "SELECT min(batch)::bigint FROM quotients WHERE value > 1").await, 3, "not together");
    drop((one, other, shared));
    rig.finish().await;
}
