//! Operations that wait for locked rows, skip them, or give up.

use tenure_domain::task::Granted;
use tenure_engine::background::deadlines;
use tenure_engine::ops::report::RunReport;
use tenure_store::tasks;
use tenure_store::transitions::end::{self, Member, Resolved};
use tenure_store::transitions::end_open::end_open;

use crate::support::*;

const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait of `run_all_due`.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3);

async fn claimed() -> (TestDatabase, Queue, Granted) {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    (database, queue, claim)
}

async fn move_deadlines(database: &TestDatabase) {
    let past = "UPDATE task_definitions SET deadline = now() - interval '1 second';
                UPDATE due SET deadline = now() - interval '1 second'";
    sqlx::raw_sql(past).execute(database.pool()).await.unwrap();
}

const LOCK_TASKS: &str = "SELECT FROM tasks ORDER BY id FOR UPDATE";

#[tokio::test]
async fn claim_does_not_wait_for_cancel_which_ends_it() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await.uuid();
    let mut conn = database.connect().await;
    // The statements of a cancel, with a claim between them.
    let mut canceller = conn.begin().await.unwrap();
    tasks::lock(&mut canceller, task).await.unwrap();
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!(end_open(&mut canceller, &[task], ReasonResolved::Canceled).await.unwrap().tasks, [task]);
    canceller.commit().await.unwrap();
    let late = queue.report(claim.task.id, claim.run, Report::Completed).await;
    assert!(matches!(late, Err(OpError::Conflict(_))), "{late:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn claim_skips_run_being_cancelled() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let gate = Gate::close(&database, "runs").await;
    let claiming = async {
        until_a_session_waits(database.pool()).await;
        let nothing = queue.claim_work(QUEUE, "worker", 1, Duration::from_millis(50)).await.unwrap();
        gate.open().await;
        nothing.claims.len()
    };
    let (cancelled, claimed) = tokio::join!(change(&queue, task, Change::Cancel), claiming);
    assert_eq!((cancelled.unwrap().ended.len(), claimed), (1, 0));
    assert!(queue.claim_work(QUEUE, "worker", 1, Duration::from_millis(50)).await.unwrap().claims.is_empty());
    finish(database, queue).await;
}

#[tokio::test]
async fn deadline_pass_skips_run_being_claimed() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let gate = Gate::close(&database, "claims").await;
    // The claim has read the deadline already.
    let passing = meet(&database, gate, async {
        move_deadlines(&database).await;
        deadlines::pass(&queue.engine).await
    });
    let (claim, first) = tokio::join!(queue.claim_one(QUEUE), passing);
    let first = first.unwrap();
    assert_eq!((first.found, first.done), (1, 0));
    assert!(matches!(queue.status(task).await.last, Last::Running(..)));
    let second = deadlines::pass(&queue.engine).await.unwrap();
    assert_eq!((second.found, second.done), (1, 1));
    let late = queue.report(task, claim.run, Report::Completed).await;
    assert!(matches!(late, Err(OpError::Conflict(_))), "{late:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn locked_run_delays_only_its_own_deadline() {
    let (database, queue, held) = claimed().await;
    let (waiting, free) = (queue.create_one(QUEUE).await, queue.create_one(QUEUE).await);
    // As a pass of a server that stopped midway locks runs.
    let pending = format!("SELECT FROM pending WHERE id = '{}' FOR UPDATE", waiting.uuid());
    let holder = Lock::take(&database, &format!("SELECT FROM claims FOR UPDATE; {pending}")).await;
    move_deadlines(&database).await;
    let first = deadlines::pass(&queue.engine).await.unwrap();
    assert_eq!((first.found, first.done), (3, 1));
    assert!(matches!(queue.status(free).await.last, Last::Ended));
    assert!(matches!(queue.status(held.task.id).await.last, Last::Running(..)));
    assert!(matches!(queue.status(waiting).await.last, Last::Pending(_)));
    holder.release().await;
    let second = deadlines::pass(&queue.engine).await.unwrap();
    assert_eq!((second.found, second.done), (2, 2));
    finish(database, queue).await;
}

#[tokio::test]
async fn report_of_locked_task_waits_in_blocking_path() {
    let (database, queue, locked) = claimed().await;
    let foreign = Lock::take(&database, LOCK_TASKS).await;
    queue.create_one(QUEUE).await;
    let free = queue.claim_one(QUEUE).await;
    let others = async {
        until_a_session_waits(database.pool()).await;
        queue.report(free.task.id, free.run, Report::Completed).await.unwrap();
        assert!(matches!(queue.status(locked.task.id).await.last, Last::Running(..)));
        foreign.release().await;
    };
    let (answer, ()) = tokio::join!(queue.report(locked.task.id, locked.run, Report::Failed), others);
    assert_eq!(answer.unwrap().ended.len(), 1);
    finish(database, queue).await;
}

/// Keeping the position locks the row of its queue.
#[tokio::test]
async fn release_in_locked_queue_waits_in_blocking_path() {
    let (database, queue, held) = claimed().await;
    queue.create_one("proj/free").await;
    let free = queue.claim_one("proj/free").await;
    let mut hot = database.connect_hot().await;
    // As a change of priorities.
    let lock = format!("SELECT FROM task_queues WHERE name = '{QUEUE}' FOR NO KEY UPDATE");
    let foreign = Lock::take(&database, &lock).await;
    let members = [&held, &free].map(|claim| Member::new(claim.task.id.uuid(), 0, Ending::Released));
    let mut undone = hot.begin().await.unwrap();
    let ended = end::end(&mut undone, &members).await.unwrap();
    undone.rollback().await.unwrap();
    assert_eq!(ended.iter().map(Resolved::member).collect::<Vec<_>>(), [1]);
    let release = RunReport { ending: Ending::Released, ..RunReport::plain(held.task.id, held.run, Report::Completed) };
    let unlocked = async {
        until_a_session_waits(database.pool()).await;
        foreign.release().await;
    };
    let (answer, ()) = tokio::join!(queue.engine.report.submit(release), unlocked);
    assert_eq!(answer.unwrap().ended.len(), 1);
    assert_eq!(queue.claim_one(QUEUE).await.run.number(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn renewal_of_locked_claim_waits_in_blocking_path() {
    let (database, queue, claim) = claimed().await;
    let foreign = Lock::take(&database, "SELECT FROM claims FOR UPDATE").await;
    let unlocked = async {
        until_a_session_waits(database.pool()).await;
        foreign.release().await;
    };
    let (answer, ()) = tokio::join!(queue.reclaim(claim.task.id, claim.run), unlocked);
    assert!(answer.unwrap().tenancy.taken_until > claim.tenancy.taken_until);
    finish(database, queue).await;
}

#[tokio::test]
async fn long_lock_makes_operations_unavailable() {
    let (database, queue, claim) = claimed().await;
    let before = number(database.pool(), "SELECT count(*) FROM transitions").await;
    let foreign = Lock::take(&database, &format!("{LOCK_TASKS}; SELECT FROM claims FOR UPDATE")).await;
    let started = Instant::now();
    let (report, reclaim, cancel, priority) = tokio::join!(
        queue.report(claim.task.id, claim.run, Report::Completed),
        queue.reclaim(claim.task.id, claim.run),
        change(&queue, claim.task.id, Change::Cancel),
        prioritise(&queue, claim.task.id, Priority::High)
    );
    let took = started.elapsed();
    for answer in [report.err(), reclaim.err(), cancel.err(), priority.err()] {
        assert!(matches!(answer, Some(OpError::Unavailable)), "{answer:?}");
    }
    assert!(took >= LOCK_TIMEOUT && took < 10 * LOCK_TIMEOUT, "{took:?}");
    foreign.release().await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM transitions").await, before);
    let Last::Running(_, tenancy) = queue.status(claim.task.id).await.last else { panic!("the claim is gone") };
    assert_eq!(tenancy.taken_until, claim.tenancy.taken_until);
    queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn run_all_due_gives_up_on_foreign_locks() {
    let (database, queue, held) = claimed().await;
    let free = queue.create_one(QUEUE).await;
    let lock = format!("SELECT FROM tasks WHERE id = '{}' FOR UPDATE", held.task.id.uuid());
    let holder = Lock::take(&database, &lock).await;
    advance(&database, "2 hours").await;
    let began = Instant::now();
    queue.passes.run_all_due().await.unwrap();
    let took = began.elapsed();
    assert!(took >= GIVEN_UP_AFTER, "it gave up after {took:?}");
    assert!(took < 10 * GIVEN_UP_AFTER, "it did not give up for {took:?}");
    assert!(matches!(queue.status(free).await.last, Last::Ended), "rows without a lock are processed");
    assert!(matches!(queue.status(held.task.id).await.last, Last::Running(..)), "locked rows are skipped");
    holder.release().await;
    queue.passes.run_all_due().await.unwrap();
    assert!(matches!(queue.status(held.task.id).await.last, Last::Ended));
    finish(database, queue).await;
}

#[tokio::test]
async fn run_all_due_waits_for_uncommitted_pass() {
    let (database, queue, held) = claimed().await;
    advance(&database, "2 hours").await;
    // A pass whose commit takes a while.
    let gate = Gate::close(&database, "runs").await;
    let ending = async { deadlines::pass(&queue.engine).await.unwrap() };
    let running = async {
        until_a_session_waits(database.pool()).await;
        let opened = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            gate.open().await;
        };
        tokio::join!(queue.passes.run_all_due(), opened).0.unwrap();
        assert!(matches!(queue.status(held.task.id).await.last, Last::Ended), "answered before it was done");
    };
    let (report, ()) = tokio::join!(ending, running);
    assert_eq!(report.exhausted, 1);
    finish(database, queue).await;
}
