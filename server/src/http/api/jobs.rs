//! Jobs, which change many tasks.

use tenure_api::ids::JobId;
use tenure_api::jobs::{Job as JobOnWire, Jobs, StartJobRequest, StartedJob};
use uuid::Uuid;

use crate::http::api::prelude::*;
use crate::http::docs::parameters::paged_up_to;
use crate::http::docs::sample::JOB;
use tenure_domain::bulk_job::{Job, NewJob, Order, RUNNING_MAX, TASKS_MAX, Which};
use tenure_engine::ops::bulk_jobs as ops;

/// Scope of startJob, also for the pages.
pub(in crate::http) const START: &str = "tenure:start-job";
/// Scope of listJobs, likewise.
pub(in crate::http) const LIST: &str = "tenure:list-jobs";
const STARTING: Template = Scope(START);
/// Condition: the caller started the job.
const OWN: &str = "callerStartedTheJob";
const OF_OWNER: Template = Template::If { condition: OWN, then: &STARTING };
pub(in crate::http) const READING: Template = AnyOf(&[Scope("tenure:get-job:<jobId>"), OF_OWNER]);
pub(in crate::http) const STOPPING: Template = AnyOf(&[Scope("tenure:stop-job:<jobId>"), OF_OWNER]);
/// Jobs per page: each lists refused tasks.
const JOBS_PAGE_MAX: usize = 50;
const NO_JOB: &str = "the job does not exist; jobs are kept for 14 days after their end";

pub(in crate::http) fn shown(job: Job) -> JobOnWire {
    let state = job.state();
    let Job { id, client_id, order, which, found, more, started, ended, stopped_by, error, progress, .. } = job;
    JobOnWire {
        job_id: id,
        state,
        action: order.map(Order::action),
        priority: order.and_then(Order::priority),
        filter: match which {
            Some(Which::Filter(filter)) => Some(*filter),
            Some(Which::Tasks(_)) | None => None,
        },
        client_id,
        started: started.into(),
        ended: ended.map(Timestamp::new),
        stopped_by,
        error,
        found,
        more,
        done: progress.done,
        unchanged: progress.unchanged,
        refused_count: progress.refused,
        refused: progress.refusals,
    }
}

/// Values for the scopes of a job's operations.
pub(in crate::http) fn values(job: &Job, caller: Option<&str>) -> Values<'static> {
    Values::of_path().text("jobId", job.id.to_string()).condition(OWN, caller == Some(job.client_id.as_str()))
}

pub(in crate::http) fn new_id() -> JobId {
    JobId::from_random(Uuid::new_v4().into_bytes())
}

fn job_id(call: &Call) -> Result<JobId, ApiError> {
    let text = call.text_param("jobId");
    text.parse::<JobId>().map_err(|error| ApiError::arguments(format!("the path parameter `jobId`: {error}")))
}

fn example(sample: &Sample) -> Value {
    json!({
        "jobId": JOB,
        "state": "completed",
        "action": "cancel",
        "filter": {"taskQueueId": QUEUE, "state": "pending"},
        "clientId": "ci",
        "started": sample.after(0),
        "ended": sample.after(1),
        "found": 120,
        "more": false,
        "done": 117,
        "unchanged": 2,
        "refusedCount": 1,
        "refused": [{
            "taskId": sample.task,
            "code": "RequestConflict",
            "message": "the deadline has passed",
        }],
    })
}

/// `POST /jobs`
pub fn start_job() -> Endpoint {
    Endpoint::post("startJob", handle_start_job).scopes(STARTING).described(
        "tenure",
        "Cancel, rerun or reprioritise many tasks",
        describe_start_job,
    )
}

fn describe_start_job(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Answers at once; the servers then change the tasks in slices, each as cancelTask, rerunTask or \
             changeTaskPriority would for the caller. The caller needs the scopes of that operation for each task at \
             the time of its slice; a task without them is refused and stops no other one. A disabled, expired or \
             deleted client ends its jobs. With `filter`, tasks that are created, or that fail, after the start are \
             left out. A repeat with the same `jobId` starts no second job. `dryRun` counts the tasks, and starts \
             nothing.",
        )
        .takes::<StartJobRequest>(&json!({"action": "cancel", "filter": {"taskQueueId": QUEUE, "state": "pending"}}))
        .names(&[("jobId", "$response.body#/jobId")])
        .answers::<StartedJob>("The job", &json!({"jobId": JOB, "found": 120, "more": false}))
        .refuses(
            InputError,
            "neither or both of `filter` and `taskIds` are given, the filter is invalid or empty, it has no resolved \
             `state` although the action is `rerun`, or `priority` does not fit the action",
        )
        .refuses(
            RequestConflict,
            &format!(
                "more than {TASKS_MAX} tasks match, {RUNNING_MAX} jobs are running, or another job has the id: send \
                 the request again when a job has ended"
            ),
        )
}

async fn handle_start_job(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let sent: StartJobRequest = call.json()?;
    let job = NewJob::from_request(&sent)?;
    check_owner(&call)?;
    let counted = {
        let _slot = app.intake.read_slots.take(call.share()).await?;
        app.engine.count_tasks(&job.which).await?
    };
    if sent.dry_run {
        return ok(&StartedJob { job_id: None, found: counted.found, more: counted.more });
    }
    let id = sent.job_id.unwrap_or_else(new_id);
    let started = ops::start(&app.engine.pool, &call.actor()?, id, &job, counted).await?;
    ok(&StartedJob { job_id: Some(started.id), found: started.found, more: started.more })
}

/// A job has all rights of its client, and may outlive temporary credentials.
fn check_owner(call: &Call) -> Result<(), ApiError> {
    let principal = call.principal()?;
    match &principal.client_id {
        Some(_) if !principal.is_temporary && !principal.is_narrowed => Ok(()),
        Some(_) | None => Err(ApiError::new(
            ErrorCode::InsufficientScopes,
            "a job needs a client as its owner, and has all of its scopes: temporary credentials, requests with \
             `authorizedScopes` and anonymous callers cannot start one",
        )),
    }
}

/// `GET /jobs/:jobId`
pub fn get_job() -> Endpoint {
    Endpoint::get("getJob", handle_get_job).scopes(READING).described("tenure", "Read a job", |operation, sample| {
        operation.answers::<JobOnWire>("The job and its progress", &example(sample)).refuses(ResourceNotFound, NO_JOB)
    })
}

async fn handle_get_job(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = job_id(&call)?;
    call.no_query()?;
    let job = ops::get(&app.engine.pool, id).await?;
    call.authorize(&values(&job, call.client_id()))?;
    ok(&shown(job))
}

/// `POST /jobs/:jobId/stop`
pub fn stop_job() -> Endpoint {
    Endpoint::post("stopJob", handle_stop_job).scopes(STOPPING).described(
        "tenure",
        "Stop a job",
        |operation, sample| {
            let mut stopped = example(sample);
            stopped["state"] = "stopped".into();
            stopped["stoppedBy"] = "ops".into();
            operation
                .about("Tasks that were changed stay changed. A job that has ended is returned unchanged.")
                .answers::<JobOnWire>("The job", &stopped)
                .refuses(ResourceNotFound, NO_JOB)
        },
    )
}

async fn handle_stop_job(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = job_id(&call)?;
    call.no_query()?;
    let job = ops::get(&app.engine.pool, id).await?;
    call.authorize(&values(&job, call.client_id()))?;
    ok(&shown(ops::stop(&app.engine.pool, &call.actor()?, id).await?))
}

/// `GET /jobs`
pub fn list_jobs() -> Endpoint {
    Endpoint::get("listJobs", handle_list_jobs).scopes(Scope(LIST)).large_answer().described(
        "tenure",
        "List jobs",
        describe_list_jobs,
    )
}

fn describe_list_jobs(operation: Operation, sample: &Sample) -> Operation {
    paged_up_to(operation, JOBS_PAGE_MAX)
        .about("Newest first; jobs are kept for 14 days after their end.")
        .answers::<Jobs>("A page; with a token if there may be more", &json!({"jobs": [example(sample)]}))
        .refuses(InputError, "`continuationToken` is invalid")
}

async fn handle_list_jobs(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let query = call.query(&["limit", "continuationToken"])?;
    let page = Page::read(&query)?;
    let before = page.after.as_deref().map(str::parse::<i64>).transpose().map_err(|_| ApiError::unknown_token())?;
    let limit = page.limit.unwrap_or(JOBS_PAGE_MAX).min(JOBS_PAGE_MAX);
    let (jobs, next) = ops::list(&app.engine.pool, before, limit).await?;
    let next = next.map(|seq| Page::token(&seq.to_string()));
    ok(&Jobs { jobs: jobs.into_iter().map(shown).collect(), continuation_token: next })
}
