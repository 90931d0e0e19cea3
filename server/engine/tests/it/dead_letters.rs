//! Dead letters: which tasks are listed, for how long, and how they are run again.

mod once;

use tenure_api::dead_letters::RedriveRequest;
use tenure_domain::dead_letter::{Cursor, Filter, Place, REFUSED_MAX, Redrive, TAG};
use tenure_engine::ops::redrive::{MayCreate, Outcome, redrive};
use tenure_store::dead_letters;

use crate::support::*;

const DEAD: &str = "SELECT count(*) FROM failed_runs WHERE dead";
const COPIES: &str = "SELECT count(*) FROM task_definitions WHERE definition LIKE '%tenure-copy-of%'";

async fn start_listing() -> (TestDatabase, Queue) {
    let (database, queue) = start().await;
    put(&queue, json!({"deadLetters": true})).await;
    (database, queue)
}

/// Ends all pending runs of the tests' queue.
async fn end_all(queue: &Queue, report: Report) {
    loop {
        let answer = queue.claim_work(QUEUE, "worker", 100, Duration::ZERO).await.unwrap();
        answer.delivery.delivered();
        if answer.claims.is_empty() {
            return;
        }
        let reports = answer.claims.iter().map(|claim| queue.report(claim.task.id, claim.run, report));
        for result in join_all(reports).await {
            result.unwrap();
        }
    }
}

/// Copies failed runs from the log.
async fn read_log(queue: &Queue) {
    queue.run_pass("sequence").await.unwrap();
    while queue.run_pass("failures").await.unwrap().done > 0 {}
}

async fn create_many(queue: &Queue, tasks: usize) -> Vec<TaskId> {
    let tasks: Vec<NewTask> = (0..tasks).map(|_| new_task(QUEUE, &json!({}))).collect();
    for result in join_all(tasks.iter().map(|task| queue.create(task))).await {
        result.unwrap();
    }
    tasks.into_iter().map(|task| task.id).collect()
}

async fn fail_one(queue: &Queue) -> TaskId {
    let task = queue.create_one(QUEUE).await;
    end_all(queue, Report::Failed).await;
    task
}

async fn listed_with(queue: &Queue, filter: Filter) -> Vec<TaskId> {
    let (mut all, mut after) = (Vec::new(), Place::START);
    loop {
        let mut conn = queue.engine.pool.acquire().await.unwrap();
        let page = dead_letters::list(&mut conn, queue.key(QUEUE).await, filter, after, 2).await.unwrap();
        all.extend(page.rows.iter().map(|letter| letter.task));
        match page.next {
            Some(next) => after = next,
            None => return all,
        }
    }
}

async fn listed(queue: &Queue) -> Vec<TaskId> {
    listed_with(queue, Filter::default()).await
}

async fn try_redrive(
    queue: &Queue,
    request: Value,
    from: Option<Cursor>,
    may_create: &MayCreate<'_>,
) -> Result<Outcome, OpError> {
    let sent: RedriveRequest = serde_json::from_value(request).unwrap();
    let request = Redrive::from_request(&sent, from).unwrap();
    redrive(queue.engine.queue_parts(), &ANN, &QUEUE.parse().unwrap(), &request, may_create).await
}

async fn redrive_as(queue: &Queue, request: Value, from: Option<Cursor>, may_create: &MayCreate<'_>) -> Outcome {
    try_redrive(queue, request, from, may_create).await.unwrap()
}

async fn redrive_with(queue: &Queue, request: Value) -> Outcome {
    redrive_as(queue, request, None, &|_: &NewTask| Ok(())).await
}

fn counts(outcome: &Outcome) -> (u32, u32, u32) {
    (outcome.redriven, outcome.copied, outcome.refused_count)
}

#[tokio::test]
async fn failed_tasks_are_listed_until_they_run_again() {
    let (database, queue) = start().await;
    fail_one(&queue).await;
    read_log(&queue).await;
    put(&queue, json!({"deadLetters": true})).await;
    let failed = fail_one(&queue).await;
    let malformed = queue.create_one(QUEUE).await;
    end_all(&queue, Report::Exception(ExceptionReason::MalformedPayload)).await;
    let canceled = queue.create_one(QUEUE).await;
    change(&queue, canceled, Change::Cancel).await.unwrap();
    queue.create_one(QUEUE).await;
    end_all(&queue, Report::Completed).await;
    queue.create_one("proj/other").await;
    read_log(&queue).await;
    assert_eq!(listed(&queue).await, [failed, malformed], "since the change of the policy, without cancelled tasks");
    let reason = Some(ReasonResolved::MalformedPayload);
    assert_eq!(listed_with(&queue, Filter { reason, until: None }).await, [malformed]);
    let before = Some(now(&database).await - TimeDelta::hours(1));
    assert_eq!(listed_with(&queue, Filter::new(None, before)).await, []);

    change(&queue, failed, Change::Rerun).await.unwrap();
    assert_eq!(listed(&queue).await, [malformed], "before the log was read");
    read_log(&queue).await;
    assert_eq!(number(database.pool(), DEAD).await, 1);
    end_all(&queue, Report::Failed).await;
    read_log(&queue).await;
    assert_eq!(listed(&queue).await, [malformed, failed]);
    remove_policy(&queue).await;
    fail_one(&queue).await;
    read_log(&queue).await;
    assert_eq!(listed(&queue).await, [malformed, failed], "nothing is added without the policy");
    finish(database, queue).await;
}

#[tokio::test]
async fn retried_task_is_listed_after_its_last_run() {
    let (database, queue) = start_listing().await;
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    queue.report(task, claim.run, Report::Exception(ExceptionReason::WorkerShutdown)).await.unwrap();
    read_log(&queue).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM failed_runs").await, 1);
    assert_eq!(number(database.pool(), DEAD).await, 0);
    end_all(&queue, Report::Failed).await;
    read_log(&queue).await;
    assert_eq!(listed(&queue).await, [task]);
    assert_eq!(number(database.pool(), DEAD).await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn run_that_was_rerun_before_the_log_was_read_is_not_dead() {
    let (database, queue) = start_listing().await;
    let task = fail_one(&queue).await;
    change(&queue, task, Change::Rerun).await.unwrap();
    read_log(&queue).await;
    assert_eq!(number(database.pool(), DEAD).await, 0);
    end_all(&queue, Report::Completed).await;
    read_log(&queue).await;
    assert_eq!(number(database.pool(), DEAD).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn redrive_runs_each_task_once() {
    let (database, queue) = start_listing().await;
    let tasks = create_some(&queue, QUEUE, 3).await;
    end_all(&queue, Report::Failed).await;
    read_log(&queue).await;
    let first = redrive_with(&queue, json!({"limit": 2})).await;
    assert_eq!(counts(&first), (2, 0, 0));
    assert_eq!(listed(&queue).await, [tasks[2]]);
    let unknown = TaskId::from_random([7; 16]);
    let named = redrive_with(&queue, json!({"taskIds": [tasks[0], tasks[2], tasks[2], unknown]})).await;
    assert_eq!(counts(&named), (1, 0, 2), "{named:?}");
    assert!(named.refused.iter().all(|(_, refusal)| matches!(refusal, OpError::NotFound(_))), "{named:?}");
    assert_eq!(counts(&redrive_with(&queue, json!({})).await), (0, 0, 0));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE run = 1").await, 3);
    let entries = "SELECT array_agg(client_id || ' ' || object || ' ' || detail::text ORDER BY id) FROM audit
                   WHERE action = 'redriveQueue'";
    let entries: Vec<String> = sqlx::query_scalar(entries).fetch_one(database.pool()).await.unwrap();
    let entry = |redriven: u32| format!("ann {QUEUE} {{\"copied\": 0, \"redriven\": {redriven}}}");
    assert_eq!(entries, [entry(2), entry(1)], "requests that change nothing are not recorded");
    finish(database, queue).await;
}

#[tokio::test]
async fn tasks_that_fail_again_do_not_prolong_a_redrive() {
    let (database, queue) = start_listing().await;
    create_some(&queue, QUEUE, 3).await;
    end_all(&queue, Report::Failed).await;
    read_log(&queue).await;
    let (mut from, mut tried) = (None, 0);
    loop {
        let outcome = redrive_as(&queue, json!({"limit": 1}), from, &|_: &NewTask| Ok(())).await;
        tried += outcome.redriven;
        end_all(&queue, Report::Failed).await;
        read_log(&queue).await;
        from = outcome.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(tried, 3);
    assert_eq!(listed(&queue).await.len(), 3);
    finish(database, queue).await;
}

#[tokio::test]
async fn refused_tasks_at_the_head_stop_no_redrive() {
    const HALF: usize = 1_500;
    let (database, queue) = start_listing().await;
    let deadline = tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::days(4));
    for fields in [json!({}), json!({ "deadline": deadline })] {
        let tasks: Vec<NewTask> = (0..HALF).map(|_| new_task(QUEUE, &fields)).collect();
        for result in join_all(tasks.iter().map(|task| queue.create(task))).await {
            result.unwrap();
        }
        end_all(&queue, Report::Failed).await;
    }
    read_log(&queue).await;
    advance(&database, "2 hours").await;
    let (mut from, mut sum) = (None, (0, 0, 0));
    loop {
        let outcome = redrive_as(&queue, json!({"limit": 1_000}), from, &|_: &NewTask| Ok(())).await;
        assert!(outcome.refused.len() <= REFUSED_MAX, "{}", outcome.refused.len());
        assert!(outcome.refused.iter().all(|(_, refusal)| matches!(refusal, OpError::Conflict(_))));
        let (redriven, copied, refused) = counts(&outcome);
        sum = (sum.0 + redriven, sum.1 + copied, sum.2 + refused);
        from = outcome.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(sum, (1_500, 0, 1_500));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE run = 1").await, 1_500);
    assert_eq!(number(database.pool(), DEAD).await, 1_500);
    let entries = "SELECT array_agg(detail ->> 'redriven' ORDER BY id) FROM audit WHERE action = 'redriveQueue'";
    let entries: Vec<String> = sqlx::query_scalar(entries).fetch_one(database.pool()).await.unwrap();
    assert_eq!(entries, ["500", "1000"], "one entry for all slices of a request");
    let copied = redrive_with(&queue, json!({"limit": 10, "copy": {"deadlineAfter": 3_600}})).await;
    assert_eq!(counts(&copied), (0, 10, 0));
    assert!(copied.next.is_some());
    finish(database, queue).await;
}

#[tokio::test]
async fn two_redrives_at_once_share_the_tasks() {
    const TASKS: usize = 250;
    let (database, here) = start_listing().await;
    let there = Queue::start(database.options());
    for copies in [false, true] {
        create_many(&here, TASKS).await;
        end_all(&here, Report::Failed).await;
        read_log(&here).await;
        let request = if copies {
            advance(&database, "2 hours").await;
            json!({"copy": {"deadlineAfter": 3_600}})
        } else {
            json!({})
        };
        let (one, other) = tokio::join!(redrive_with(&here, request.clone()), redrive_with(&there, request));
        let (redriven, copied) = (one.redriven + other.redriven, one.copied + other.copied);
        assert_eq!((redriven as usize, copied as usize), if copies { (0, TASKS) } else { (TASKS, 0) });
        assert_eq!(one.refused_count + other.refused_count, 0, "{one:?} {other:?}");
        assert_eq!(number(database.pool(), DEAD).await, 0);
        end_all(&here, Report::Completed).await;
    }
    assert_eq!(number(database.pool(), COPIES).await, TASKS as i64);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks WHERE run > 1").await, 0);
    there.stop().await;
    finish(database, here).await;
}

#[tokio::test]
async fn task_past_its_deadline_is_copied_once() {
    let (database, queue) = start_listing().await;
    let required = queue.create_one(QUEUE).await;
    end_all(&queue, Report::Completed).await;
    let fields = json!({"dependencies": [required], "tags": {"team": "data"}, "payload": {"n": 1}});
    let original = new_task(QUEUE, &fields);
    queue.create(&original).await.unwrap();
    end_all(&queue, Report::Failed).await;
    read_log(&queue).await;
    advance(&database, "2 hours").await;
    let refused = redrive_with(&queue, json!({})).await;
    assert_eq!(counts(&refused), (0, 0, 1));
    let (task, refusal) = &refused.refused[0];
    assert!(*task == original.id && refusal.to_string().contains("deadline"), "{refusal}");

    let copy = json!({"copy": {"deadlineAfter": 86_400}});
    let denied = redrive_as(&queue, copy.clone(), None, &|_: &NewTask| Err(OpError::Forbidden("no".into()))).await;
    assert!(matches!(denied.refused[..], [(_, OpError::Forbidden(_))]), "{denied:?}");
    assert_eq!(number(database.pool(), COPIES).await, 0);
    assert_eq!(counts(&redrive_with(&queue, copy.clone()).await), (0, 1, 0));
    assert_eq!(counts(&redrive_with(&queue, copy).await), (0, 0, 0));
    assert_eq!(listed(&queue).await, []);
    let claim = queue.claim_one(QUEUE).await;
    let sql = format!("SELECT definition FROM task_definitions WHERE definition LIKE '%{TAG}%'");
    let definition: String = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(database.pool()).await.unwrap();
    let definition: Value = serde_json::from_str(&definition).unwrap();
    assert_eq!(definition["tags"], json!({"team": "data", TAG: original.id}));
    assert_eq!((&definition["payload"], &definition["dependencies"]), (&json!({"n": 1}), &json!([])));
    assert_eq!(definition["taskGroupId"], json!(claim.task.id), "a group of its own");
    queue.report(claim.task.id, claim.run, Report::Failed).await.unwrap();
    read_log(&queue).await;
    assert_eq!(listed(&queue).await, [claim.task.id]);
    finish(database, queue).await;
}

#[tokio::test]
async fn names_and_backlog_refuse_single_tasks() {
    let (database, queue) = start_listing().await;
    let named = |fields: Value| {
        let mut fields = fields;
        fields["extra"] = json!({"tenure": {"unique": "invoice-7"}});
        new_task(QUEUE, &fields)
    };
    let first = named(json!({}));
    queue.create(&first).await.unwrap();
    end_all(&queue, Report::Failed).await;
    let free = fail_one(&queue).await;
    let holder = named(json!({}));
    queue.create(&holder).await.unwrap();
    read_log(&queue).await;
    let outcome = redrive_with(&queue, json!({})).await;
    assert_eq!(counts(&outcome), (1, 0, 1), "{outcome:?}");
    assert!(
        matches!(&outcome.refused[..], [(task, OpError::Duplicate(of))] if *task == first.id && of.holder == holder.id)
    );
    assert_eq!(queue.status(free).await.ended.len(), 1);
    end_all(&queue, Report::Completed).await;
    assert_eq!(counts(&redrive_with(&queue, json!({})).await), (1, 0, 0), "its name is free");
    end_all(&queue, Report::Failed).await;

    fail_one(&queue).await;
    put(&queue, json!({"deadLetters": true, "backlog": {"tasks": 1}})).await;
    read_log(&queue).await;
    advance(&database, "2 hours").await;
    let outcome = redrive_with(&queue, json!({"copy": {"deadlineAfter": 3_600}})).await;
    assert_eq!(counts(&outcome), (0, 1, 1), "{outcome:?}");
    assert!(matches!(&outcome.refused[..], [(_, OpError::BacklogFull(_))]), "{outcome:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn dead_letter_stays_as_long_as_its_task() {
    let (database, queue) = start_listing().await;
    // Without a date, so it is kept for 30 days after its end.
    let task = submitted_task(&json!({}));
    queue.create(&task).await.unwrap();
    end_all(&queue, Report::Failed).await;
    for _ in 0..2 {
        queue.passes.run_all_due().await.unwrap();
    }
    advance(&database, "20 days").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(listed(&queue).await, [task.id], "longer than other failed runs");
    advance(&database, "11 days").await;
    queue.passes.run_all_due().await.unwrap();
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(listed(&queue).await, []);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM failed_runs").await, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 0);
    assert_eq!(counts(&redrive_with(&queue, json!({"taskIds": [task.id]})).await), (0, 0, 1));
    finish(database, queue).await;
}

#[tokio::test]
async fn dead_letters_are_counted_by_queue() {
    let (database, queue) = start_listing().await;
    queue.run_pass("dead_letters").await.unwrap();
    create_some(&queue, QUEUE, 3).await;
    end_all(&queue, Report::Failed).await;
    read_log(&queue).await;
    let counted = dead_letters::count(&mut database.connect().await).await.unwrap();
    assert_eq!(counted, [(QUEUE.to_owned(), 3)]);
    assert_eq!(queue.run_pass("dead_letters").await.unwrap().done, 1);
    finish(database, queue).await;
}
