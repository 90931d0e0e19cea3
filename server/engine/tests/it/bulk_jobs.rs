//! Jobs, which change many tasks: changes of a slice, rights of the client, ends of jobs.

mod load;
mod once;

use tenure_api::errors::ErrorCode;
use tenure_api::ids::JobId;
use tenure_api::jobs::StartJobRequest;
use tenure_api::states::JobState;
use tenure_domain::bulk_job::{FAULTS_MAX, Job, NewJob, REFUSED_MAX, RUNNING_MAX, SLICE, TASKS_MAX};
use tenure_engine::ops::actor::Actor;
use tenure_engine::ops::bulk_jobs as ops;
use tenure_store::secrets::random;

use crate::support::*;

const OWNER: &str = "ci";

fn new_id() -> JobId {
    JobId::from_random(random())
}

async fn try_start(queue: &Queue, id: JobId, body: &Value) -> Result<Job, OpError> {
    let sent: StartJobRequest = serde_json::from_value(body.clone()).unwrap();
    let job = NewJob::from_request(&sent).unwrap();
    let counted = queue.engine.count_tasks(&job.which).await?;
    ops::start(&queue.engine.pool, &Actor::new(OWNER), id, &job, counted).await
}

async fn start_job(queue: &Queue, body: &Value) -> Job {
    try_start(queue, new_id(), body).await.unwrap()
}

async fn stored(queue: &Queue, job: &Job) -> Job {
    ops::get(&queue.engine.pool, job.id).await.unwrap()
}

/// Does all slices of the jobs, and returns this one.
async fn finish_job(queue: &Queue, job: &Job) -> Job {
    while queue.run_pass("bulk_jobs").await.unwrap().done > 0 {}
    stored(queue, job).await
}

async fn create_many(queue: &Queue, tasks: usize) -> Vec<TaskId> {
    let tasks: Vec<NewTask> = (0..tasks).map(|_| new_task(QUEUE, &json!({}))).collect();
    for result in join_all(tasks.iter().map(|task| queue.create(task))).await {
        result.unwrap();
    }
    tasks.into_iter().map(|task| task.id).collect()
}

/// Fails all pending tasks of the tests' queue, and copies the failures from the log.
async fn fail_all(queue: &Queue) {
    loop {
        let answer = queue.claim_work(QUEUE, "worker", 100, Duration::ZERO).await.unwrap();
        answer.delivery.delivered();
        if answer.claims.is_empty() {
            break;
        }
        let reports = answer.claims.iter().map(|claim| queue.report(claim.task.id, claim.run, Report::Failed));
        for result in join_all(reports).await {
            result.unwrap();
        }
    }
    queue.run_pass("sequence").await.unwrap();
    while queue.run_pass("failures").await.unwrap().done > 0 {}
}

fn pending() -> Value {
    json!({"action": "cancel", "filter": {"taskQueueId": QUEUE, "state": "pending"}})
}

/// Changed, unchanged and refused tasks.
fn counts(job: &Job) -> (usize, usize, usize) {
    let progress = &job.progress;
    (progress.done as usize, progress.unchanged as usize, progress.refused as usize)
}

async fn recorded(database: &TestDatabase, action: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM audit WHERE action = '{action}' AND client_id = '{OWNER}'");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(database.pool()).await.unwrap()
}

#[tokio::test]
async fn job_cancels_the_tasks_that_match_at_its_start() {
    const TASKS: usize = 2 * SLICE + 50;
    let (database, queue) = start().await;
    let tasks = create_many(&queue, TASKS).await;
    let elsewhere = queue.create_one("proj/other").await;
    let job = start_job(&queue, &pending()).await;
    assert_eq!((job.found as usize, job.more, job.state()), (TASKS, false, JobState::Running));
    let later = queue.create_one(QUEUE).await;
    let ended = finish_job(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended), ended.error), (JobState::Completed, (TASKS, 0, 0), None));
    assert!(matches!(queue.status(tasks[0]).await.ended[..], [ref run] if run.reason == ReasonResolved::Canceled));
    for other in [elsewhere, later] {
        assert!(matches!(queue.status(other).await.last, Last::Pending(_)), "{other}");
    }
    assert_eq!(recorded(&database, "cancelTask").await, TASKS as i64);
    let sql = "SELECT detail::text FROM audit WHERE action = 'startJob'";
    let detail: String = sqlx::query_scalar(sql).fetch_one(database.pool()).await.unwrap();
    let detail: Value = serde_json::from_str(&detail).unwrap();
    assert_eq!((&detail["found"], &detail["done"], &detail["refused"]), (&json!(TASKS), &json!(TASKS), &json!(0)));
    finish(database, queue).await;
}

#[tokio::test]
async fn job_reruns_failed_tasks_once() {
    let (database, queue) = start().await;
    let tasks = create_many(&queue, 5).await;
    fail_all(&queue).await;
    change(&queue, tasks[0], Change::Rerun).await.unwrap();
    let body = json!({"action": "rerun", "filter": {"taskQueueId": QUEUE, "state": "failed"}});
    let job = start_job(&queue, &body).await;
    assert_eq!(job.found, 4);
    let ended = finish_job(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Completed, (4, 0, 0)));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE run = 1").await, 5);
    assert_eq!(recorded(&database, "rerunTask").await, 4);
    finish(database, queue).await;
}

#[tokio::test]
async fn named_tasks_are_changed_or_refused_one_by_one() {
    let (database, queue) = start().await;
    let tasks = create_many(&queue, 3).await;
    change(&queue, tasks[0], Change::Cancel).await.unwrap();
    prioritise(&queue, tasks[1], Priority::High).await.unwrap();
    let unknown = TaskId::from_random([7; 16]);
    let ids = json!([tasks[0], tasks[1], tasks[2], unknown]);
    let raised = start_job(&queue, &json!({"action": "priority", "priority": "high", "taskIds": ids})).await;
    let raised = finish_job(&queue, &raised).await;
    assert_eq!(counts(&raised), (1, 1, 2), "{raised:?}");
    let codes: Vec<ErrorCode> = raised.progress.refusals.iter().map(|refused| refused.code).collect();
    assert_eq!(codes, [ErrorCode::ResourceNotFound, ErrorCode::RequestConflict]);
    assert_eq!(queue.status(tasks[2]).await.priority, Priority::High);

    advance(&database, "2 hours").await;
    let cancelled = start_job(&queue, &json!({"action": "cancel", "taskIds": ids})).await;
    let cancelled = finish_job(&queue, &cancelled).await;
    assert_eq!(counts(&cancelled), (0, 1, 3), "the deadlines have passed: {cancelled:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn unique_name_refuses_one_task_of_a_rerun() {
    let (database, queue) = start().await;
    let named = || new_task(QUEUE, &json!({"extra": {"tenure": {"unique": "invoice-7"}}}));
    let first = named();
    queue.create(&first).await.unwrap();
    let free = queue.create_one(QUEUE).await;
    fail_all(&queue).await;
    queue.create(&named()).await.unwrap();
    let job = start_job(&queue, &json!({"action": "rerun", "taskIds": [first.id, free]})).await;
    let ended = finish_job(&queue, &job).await;
    assert_eq!(counts(&ended), (1, 0, 1));
    assert_eq!(ended.progress.refusals[0].code, ErrorCode::DuplicateTask);
    finish(database, queue).await;
}

#[tokio::test]
async fn scopes_withdrawn_half_way_refuse_the_rest() {
    let (database, queue) = start().await;
    create_many(&queue, 2 * SLICE).await;
    let job = start_job(&queue, &pending()).await;
    assert_eq!(queue.run_pass("bulk_jobs").await.unwrap().done, 1);
    queue.authority.lacking.lock().unwrap().insert(OWNER.to_owned());
    let ended = finish_job(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Completed, (SLICE, 0, SLICE)));
    assert_eq!(ended.progress.refusals.len(), REFUSED_MAX);
    assert!(ended.progress.refusals.iter().all(|refused| refused.code == ErrorCode::InsufficientScopes));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, SLICE as i64);
    finish(database, queue).await;
}

#[tokio::test]
async fn disabled_client_ends_its_job() {
    let (database, queue) = start().await;
    create_many(&queue, SLICE + 1).await;
    let job = start_job(&queue, &pending()).await;
    assert_eq!(queue.run_pass("bulk_jobs").await.unwrap().done, 1);
    let why = "the client is disabled".to_owned();
    queue.authority.denied.lock().unwrap().insert(OWNER.to_owned(), why.clone());
    let ended = finish_job(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended), ended.error), (JobState::Failed, (SLICE, 0, 0), Some(why)));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn stopped_job_changes_no_further_task() {
    let (database, queue) = start().await;
    create_many(&queue, SLICE + 1).await;
    let job = start_job(&queue, &pending()).await;
    assert_eq!(queue.run_pass("bulk_jobs").await.unwrap().done, 1);
    for _ in 0..2 {
        let stopped = ops::stop(&queue.engine.pool, &ANN, job.id).await.unwrap();
        assert_eq!((stopped.state(), stopped.stopped_by.as_deref()), (JobState::Stopped, Some("ann")));
    }
    let ended = finish_job(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Stopped, (SLICE, 0, 0)));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM audit WHERE action = 'stopJob'").await, 1);
    let missing = ops::stop(&queue.engine.pool, &ANN, new_id()).await;
    assert!(matches!(missing, Err(OpError::NotFound(_))), "{missing:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn job_with_tasks_beyond_its_limit_fails() {
    let (database, queue) = start().await;
    create_many(&queue, 2 * SLICE).await;
    let job = start_job(&queue, &pending()).await;
    assert_eq!(queue.run_pass("bulk_jobs").await.unwrap().done, 1);
    run_sql(database.pool(), &format!("UPDATE bulk_jobs SET seen = {TASKS_MAX}")).await;
    let ended = finish_job(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Failed, (SLICE, 0, 0)));
    assert!(ended.error.as_deref().is_some_and(|why| why.contains("start another job")), "{:?}", ended.error);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, SLICE as i64);
    finish(database, queue).await;
}

#[tokio::test]
async fn number_of_running_jobs_is_limited() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let body = json!({"action": "cancel", "taskIds": [task]});
    for _ in 0..RUNNING_MAX {
        start_job(&queue, &body).await;
    }
    let refused = try_start(&queue, new_id(), &body).await;
    assert!(matches!(&refused, Err(OpError::Conflict(message)) if message.contains("running")), "{refused:?}");
    assert_eq!(queue.run_pass("bulk_jobs").await.unwrap().done, 1);
    start_job(&queue, &body).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn repeated_start_returns_the_same_job() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let (id, body) = (new_id(), json!({"action": "cancel", "taskIds": [task]}));
    let job = try_start(&queue, id, &body).await.unwrap();
    assert_eq!(try_start(&queue, id, &body).await.unwrap(), job);
    let other = try_start(&queue, id, &json!({"action": "rerun", "taskIds": [task]})).await;
    assert!(matches!(other, Err(OpError::Conflict(_))), "{other:?}");
    assert_eq!(recorded(&database, "startJob").await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn failing_job_delays_no_other_one() {
    let (database, queue) = start().await;
    let tasks = create_many(&queue, 2).await;
    let [first, second] = [tasks[0], tasks[1]].map(|task| json!({"action": "cancel", "taskIds": [task]}));
    let stuck = start_job(&queue, &first).await;
    let job = start_job(&queue, &second).await;
    let sql = format!("SELECT FROM tasks WHERE id = '{}' FOR UPDATE", tasks[0].uuid());
    let lock = Lock::take(&database, &sql).await;
    let report = queue.run_pass("bulk_jobs").await.unwrap();
    assert_eq!((report.done, report.failing), (1, 1));
    assert_eq!(stored(&queue, &job).await.state(), JobState::Completed);
    lock.release().await;
    assert_eq!(counts(&finish_job(&queue, &stuck).await), (1, 0, 0));
    finish(database, queue).await;
}

#[tokio::test]
async fn slice_that_always_fails_ends_its_job_alone() {
    let (database, queue) = start().await;
    let tasks = create_many(&queue, SLICE + 1).await;
    let ids: Vec<TaskId> = tasks.iter().copied().take(SLICE).collect();
    let failing = start_job(&queue, &json!({"action": "priority", "priority": "high", "taskIds": ids})).await;
    let last = json!({"action": "cancel", "taskIds": [tasks[SLICE]]});
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
                  CREATE TRIGGER refuse BEFORE INSERT ON audit FOR EACH ROW WHEN (NEW.action = 'changeTaskPriority')
                  EXECUTE FUNCTION refuse()";
    run_sql(database.pool(), refuse).await;
    for _ in 1..FAULTS_MAX {
        let report = queue.run_pass("bulk_jobs").await.unwrap();
        assert_eq!((report.done, report.failing), (0, 1));
        assert_eq!(stored(&queue, &failing).await.state(), JobState::Running);
    }
    let other = start_job(&queue, &last).await;
    assert_eq!(queue.run_pass("bulk_jobs").await.unwrap().done, 1);
    // On a busy machine a slice may have failed for want of an answer, which is no fault.
    for _ in 0..FAULTS_MAX {
        queue.run_pass("bulk_jobs").await.unwrap();
    }
    let ended = stored(&queue, &failing).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Failed, (0, 0, 0)));
    assert!(ended.error.as_deref().is_some_and(|why| why.contains("failed 5 times")), "{:?}", ended.error);
    assert_eq!(stored(&queue, &other).await.state(), JobState::Completed);
    assert_eq!(queue.run_pass("bulk_jobs").await.unwrap().found, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn undecodable_job_fails_alone() {
    let (database, queue) = start().await;
    let tasks = create_many(&queue, 2).await;
    let body = json!({"action": "cancel", "taskIds": [tasks[0]]});
    let unknown = start_job(&queue, &body).await;
    let job = start_job(&queue, &json!({"action": "cancel", "taskIds": [tasks[1]]})).await;
    run_sql(database.pool(), &format!("UPDATE bulk_jobs SET action = 99 WHERE seq = {}", unknown.seq)).await;
    let ended = finish_job(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Completed, (1, 0, 0)));
    let (listed, next) = ops::list(&queue.engine.pool, None, 1).await.unwrap();
    assert_eq!((listed, next), (vec![ended], Some(job.seq)), "the newest one");
    let failed = stored(&queue, &unknown).await;
    assert_eq!((failed.state(), counts(&failed)), (JobState::Failed, (0, 0, 0)));
    let (listed, next) = ops::list(&queue.engine.pool, next, 1).await.unwrap();
    assert_eq!((listed, next), (vec![failed], None));
    let repeated = try_start(&queue, unknown.id, &body).await;
    assert!(matches!(repeated, Err(OpError::Conflict(_))), "{repeated:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn undecodable_job_is_read_as_failed() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    for (column, value) in [
        ("action", "99"),
        ("priority", "99"),
        ("filter", r#"'{"colour": "red"}'"#),
        ("refusals", r#"'[{"code": "NotInvented"}]'"#),
        ("done", "-1"),
    ] {
        let job = start_job(&queue, &pending()).await;
        let set = async |what: &str| {
            run_sql(database.pool(), &format!("UPDATE bulk_jobs SET {what} WHERE seq = {}", job.seq)).await;
        };
        set(&format!("{column} = {value}")).await;
        let read = stored(&queue, &job).await;
        assert_eq!((read.state(), counts(&read), read.ended), (JobState::Failed, (0, 0, 0), None), "{column}");
        assert!(read.error.as_ref().is_some_and(|why| why.contains(column)), "{:?}", read.error);
        assert_eq!(read.order.is_none(), ["action", "priority"].contains(&column), "{column}");
        assert_eq!(read.which.is_none(), column == "filter");
        let ended = finish_job(&queue, &job).await;
        assert!(ended.ended.is_some(), "{column}");
        assert_eq!(Job { ended: None, ..ended }, read);
        set("error = NULL").await;
        assert_eq!(stored(&queue, &job).await.state(), JobState::Completed, "by another release: {column}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn ended_job_is_purged_after_two_weeks() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let body = json!({"action": "cancel", "taskIds": [task]});
    let ended = start_job(&queue, &body).await;
    finish_job(&queue, &ended).await;
    let running = start_job(&queue, &body).await;
    advance(&database, "13 days").await;
    assert_eq!(queue.run_pass("old_jobs").await.unwrap().done, 0);
    advance(&database, "2 days").await;
    assert_eq!(queue.run_pass("old_jobs").await.unwrap().done, 1);
    assert_eq!(stored(&queue, &running).await.state(), JobState::Running);
    finish(database, queue).await;
}
