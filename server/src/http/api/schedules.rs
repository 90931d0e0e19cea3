//! Schedules: tasks at the times of a cron pattern.

use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};
use tenure_api::schedules::{LastTime, Schedule as ScheduleOnWire, ScheduleRequest, Schedules, Triggered};

use super::create_task;
use super::create_tasks::{BAD_KEY, IDEMPOTENCY_KEY, idempotency_key, key_schema};
use crate::http::api::prelude::*;
use crate::http::docs::parameters::paged_up_to;
use tenure_domain::json::raw as raw_value;
use tenure_domain::schedule::UPCOMING;
use tenure_domain::schedule::definition::{Definition, Occasion, Schedule, named};
use tenure_engine::ops::schedules as ops;
use tenure_store::clock;

const MANAGING: Template = Scope("tenure:manage-schedule:<scheduleName>");
const LISTING: Template = Scope("tenure:list-schedules");
/// Schedules per page: the next times of each are computed.
const SCHEDULES_PAGE_MAX: usize = 100;
const NO_SCHEDULE: &str = "the schedule does not exist";
const BAD_NAME: &str = "the name has other characters than letters, digits, hyphens and underscores, or more than 64";

fn parts(app: &Api) -> ops::Parts<'_> {
    app.engine.schedule_parts(&app.engine.pool, &*app.authority)
}

fn name(call: &Call) -> Result<String, ApiError> {
    Ok(named(call.text_param("scheduleName"))?)
}

fn shown(schedule: Schedule) -> Result<ScheduleOnWire, ApiError> {
    let Schedule { name, definition, next, try_at: _, last, error, client_id, created, changed } = schedule;
    let pattern = definition.pattern().ok().filter(|_| !definition.paused);
    let following = |time: &DateTime<Utc>| pattern.as_ref()?.next_after(*time);
    let times = std::iter::successors(next.filter(|_| pattern.is_some()), following);
    let next = times.take(UPCOMING).map(Timestamp::new).collect();
    let task = raw_value(definition.task).map_err(|error| ApiError::internal(&error.to_string()))?;
    Ok(ScheduleOnWire {
        name,
        cron: definition.cron,
        timezone: definition.timezone,
        task,
        deadline_after: definition.deadline_after.map(|after| after.num_seconds()),
        expires_after: definition.expires_after.map(|after| after.num_seconds()),
        catch_up: definition.catch_up,
        paused: definition.paused,
        next,
        last: last.map(|last| LastTime { at: Timestamp::new(last.at), outcome: last.outcome, task_id: last.task }),
        error,
        client_id,
        created: Timestamp::new(created),
        last_modified: Timestamp::new(changed),
    })
}

fn example_request() -> Value {
    json!({
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "task": {"taskQueueId": QUEUE, "priority": "low", "payload": {"command": [["make", "report"]]}},
        "deadlineAfter": 7_200,
    })
}

fn example(sample: &Sample) -> Value {
    let mut schedule = example_request();
    schedule["name"] = "nightly".into();
    schedule["catchUp"] = "last".into();
    schedule["paused"] = false.into();
    schedule["next"] = json!([sample.after(60)]);
    schedule["last"] = json!({"at": sample.after(0), "outcome": "created", "taskId": sample.task});
    schedule["clientId"] = "ci".into();
    schedule["created"] = sample.after(0);
    schedule["lastModified"] = sample.after(0);
    schedule
}

/// `PUT /schedules/:scheduleName`
pub fn put_schedule() -> Endpoint {
    Endpoint::put("putSchedule", handle_put_schedule).scopes(AllOf(&[MANAGING, create_task::SCOPES])).described(
        "tenure",
        "Store a schedule",
        describe_put_schedule,
    )
}

fn describe_put_schedule(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Creates or replaces it; the caller becomes its owner. Tasks are created with the rights of the owner, who \
             needs the scopes of createTask then, too. A changed `cron` or `timezone` counts from now. A pattern with \
             `*` or a step in the hour follows elapsed time when clocks change; others have each local time once, and \
             the first time after the gap for local times that are skipped. `options.unique` in `task` keeps tasks of \
             a schedule apart.",
        )
        .takes::<ScheduleRequest<'_>>(&example_request())
        .names(&[("scheduleName", "$response.body#/name")])
        .answers::<ScheduleOnWire>("The schedule", &example(sample))
        .refuses(
            InputError,
            "the pattern has seconds or no time within ten years, the time zone does not exist, the task is not \
             acceptable or over 1 MiB, or the name is too long or has other characters than letters, digits, hyphens \
             and underscores",
        )
        .refuses(
            RequestConflict,
            "10,000 schedules exist, or a server of an older release is connected to the database",
        )
}

async fn handle_put_schedule(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let name = name(&call)?;
    let sent: ScheduleRequest<'_> = call.json()?;
    let definition = Definition::from_request(&sent)?;
    let owner = owner(&call)?;
    let at = clock::get_now(&mut *app.engine.pool.acquire().await?).await?;
    let task = ops::draft(parts(&app), &definition, &owner, Occasion { name: &name, at }).await?;
    call.authorize(&create_task::values(&task))?;
    ops::put(parts(&app), &call.actor()?, &name, ops::Put { definition, paused: sent.paused }).await?;
    ok(&shown(ops::get(parts(&app), &name).await?)?)
}

/// A schedule would outlive temporary credentials.
fn owner(call: &Call) -> Result<String, ApiError> {
    let principal = call.principal()?;
    match &principal.client_id {
        Some(client_id) if !principal.is_temporary => Ok(client_id.clone()),
        Some(_) | None => Err(ApiError::new(
            ErrorCode::InsufficientScopes,
            "a schedule needs a client as its owner; temporary credentials and anonymous callers cannot store one",
        )),
    }
}

/// `GET /schedules/:scheduleName`
pub fn get_schedule() -> Endpoint {
    Endpoint::get("schedule", handle_get_schedule).scopes(AnyOf(&[LISTING, MANAGING])).described(
        "tenure",
        "Read a schedule",
        describe_get_schedule,
    )
}

fn describe_get_schedule(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("With its next five times and the result of the last one.")
        .answers::<ScheduleOnWire>("The schedule", &example(sample))
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_SCHEDULE)
}

async fn handle_get_schedule(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&shown(ops::get(parts(&app), &name(&call)?).await?)?)
}

/// `GET /schedules`
pub fn list_schedules() -> Endpoint {
    Endpoint::get("listSchedules", handle_list_schedules).scopes(LISTING).large_answer().described(
        "tenure",
        "List schedules",
        describe_list_schedules,
    )
}

fn describe_list_schedules(operation: Operation, sample: &Sample) -> Operation {
    paged_up_to(operation, SCHEDULES_PAGE_MAX)
        .about("All schedules, by name. A page ends earlier once its tasks have 16 MiB together.")
        .answers::<Schedules>("A page; with a token if there are more", &json!({"schedules": [example(sample)]}))
        .refuses(InputError, "`continuationToken` is invalid")
}

async fn handle_list_schedules(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let page = Page::read(&call.query(&["continuationToken", "limit"])?)?;
    let limit = page.limit.unwrap_or(SCHEDULES_PAGE_MAX).min(SCHEDULES_PAGE_MAX);
    // PostgreSQL cannot store NUL, so no valid token has it.
    let after = page.after.filter(|after| !after.contains('\0'));
    let ops::Listed { schedules: mut rows, is_cut } =
        ops::list(parts(&app), after.as_deref(), Page::rows(limit)).await?;
    let mut continuation_token = Page::cut(limit, &mut rows, |schedule| &schedule.name);
    if is_cut && continuation_token.is_none() {
        continuation_token = rows.last().map(|last| Page::token(&last.name));
    }
    let schedules = rows.into_iter().map(shown).collect::<Result<Vec<_>, _>>()?;
    ok(&Schedules { schedules, continuation_token })
}

/// `DELETE /schedules/:scheduleName`
pub fn delete_schedule() -> Endpoint {
    Endpoint::delete("deleteSchedule", handle_delete_schedule).scopes(MANAGING).described(
        "tenure",
        "Delete a schedule",
        describe_delete_schedule,
    )
}

fn describe_delete_schedule(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Its tasks stay.")
        .answers_with(
            200,
            "The schedule does not exist any more",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_SCHEDULE)
}

async fn handle_delete_schedule(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ops::delete(parts(&app), &call.actor()?, &name(&call)?).await?;
    Ok(raw("{}"))
}

/// `POST /schedules/:scheduleName/trigger`
pub fn trigger_schedule() -> Endpoint {
    Endpoint::post("triggerSchedule", handle_trigger_schedule).scopes(MANAGING).described(
        "tenure",
        "Create a task of a schedule now",
        describe_trigger_schedule,
    )
}

fn describe_trigger_schedule(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("Also while the schedule is paused, and with the rights of its owner. Its next times stay.")
        .header(
            IDEMPOTENCY_KEY,
            "Makes it safe to repeat the request: for a day, the same key returns the same task",
            &key_schema(),
        )
        .answers::<Triggered>("The task", &json!({"taskId": sample.task}))
        .refuses(InputError, "the task is no longer acceptable, or the name of the schedule is not")
        .refuses(ResourceNotFound, NO_SCHEDULE)
        .refuses(ErrorCode::InvalidRequestArguments, BAD_KEY)
        .refuses(
            RequestConflict,
            "the owner lacks a scope, the group of the task is sealed, or the `Idempotency-Key` was sent with another \
             request within a day",
        )
        .refuses(ErrorCode::DuplicateTask, "an unresolved task has the unique name of the task")
        .refuses(
            ErrorCode::BacklogLimitReached,
            "the queue has as many pending tasks, or bytes of them, as its policy allows",
        )
}

async fn handle_trigger_schedule(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = name(&call)?;
    let key = idempotency_key(&call, || Ok(Sha256::digest(format!("trigger {name}")).to_vec()))?;
    let task_id = ops::trigger(parts(&app), &name, key.as_ref()).await?;
    ok(&Triggered { task_id })
}

/// `POST /schedules/:scheduleName/pause`
pub fn pause_schedule() -> Endpoint {
    Endpoint::post("pauseSchedule", handle_pause_schedule).scopes(MANAGING).described(
        "tenure",
        "Pause a schedule",
        describe_pause_schedule,
    )
}

fn describe_pause_schedule(operation: Operation, sample: &Sample) -> Operation {
    let mut paused = example(sample);
    paused["paused"] = true.into();
    paused["next"] = json!([]);
    operation
        .about("It creates no tasks until it is resumed. Also succeeds if it is paused.")
        .answers::<ScheduleOnWire>("The schedule", &paused)
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_SCHEDULE)
}

async fn handle_pause_schedule(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    set_paused(&app, &call, true).await
}

/// `POST /schedules/:scheduleName/resume`
pub fn resume_schedule() -> Endpoint {
    Endpoint::post("resumeSchedule", handle_resume_schedule).scopes(MANAGING).described(
        "tenure",
        "Resume a schedule",
        describe_resume_schedule,
    )
}

fn describe_resume_schedule(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("Times while it was paused are not made up. Also succeeds if it is not paused.")
        .answers::<ScheduleOnWire>("The schedule", &example(sample))
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_SCHEDULE)
}

async fn handle_resume_schedule(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    set_paused(&app, &call, false).await
}

async fn set_paused(app: &Api, call: &Call, paused: bool) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&shown(ops::set_paused(parts(app), &call.actor()?, &name(call)?, paused).await?)?)
}
