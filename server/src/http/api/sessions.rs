//! Sessions of workers. The path has only the session's id, but the scopes its queue and worker. So
//! the session is looked up between authentication and authorization.

use std::time::Duration;

use chrono::DateTime;
use http::StatusCode;
use tenure_api::errors::ErrorCode::{PolicyMismatch, SessionEnded, SessionExists};
use tenure_api::sessions::{
    CommandRequest, CommandSent, Inbox, QueueWorker, QueueWorkers, RenewSessionRequest, Session, SessionRenewed,
    SessionReturned, SessionStarted, StartSessionRequest,
};

use crate::http::api::prelude::*;
use crate::http::declaration::ANSWER_MAX;
use crate::http::docs::sample::SESSION;
use tenure_domain::session::{COMMANDS_MAX, Identity, Start, Stated, WAIT_MAX};
use tenure_engine::ops::sessions;
use tenure_store::worker_sessions::{Member, Stored};

pub(super) const OWN: Template =
    AllOf(&[Scope("queue:claim-work:<taskQueueId>"), Scope("queue:worker-id:<workerGroup>/<workerId>")]);
const READING: Template = Scope("tenure:get-queue:<taskQueueId>");

async fn identify(app: &Api, call: &Call) -> Result<Identity, ApiError> {
    Ok(sessions::identify(app.engine.session_parts(), call.session_id()?).await?)
}

fn values(identity: &Identity) -> Values<'_> {
    Values::of_path()
        .text("taskQueueId", identity.queue.as_str())
        .text("workerGroup", identity.worker_group.as_str())
        .text("workerId", identity.worker_id.as_str())
}

/// For the session's worker, or a client with the same scopes.
async fn of_worker(app: &Api, call: &Call) -> Result<Identity, ApiError> {
    let identity = identify(app, call).await?;
    call.authorize(&values(&identity))?;
    Ok(identity)
}

fn answer(status: StatusCode, body: &impl Serialize) -> Result<Response, ApiError> {
    let mut response = ok(body)?;
    *response.status_mut() = status;
    Ok(response)
}

fn of_a_session(operation: Operation) -> Operation {
    operation.refuses(ResourceNotFound, "the session does not exist, or ended more than a day ago")
}

fn of_a_live_session(operation: Operation) -> Operation {
    of_a_session(operation).refuses(SessionEnded, "the session has ended; the message has the cause")
}

/// For claims with a session.
pub(super) fn of_a_claim(operation: Operation) -> Operation {
    operation
        .refuses(InputError, "`sessionId` is the session of another worker, or of another queue")
        .refuses(SessionEnded, "the session has ended; the message has the cause")
}

fn example_start() -> Value {
    json!({"taskQueueId": QUEUE, "workerGroup": "rack-1", "workerId": "worker-1", "ttl": 60, "capacity": 4})
}

fn example_worker(sample: &Sample) -> Value {
    json!({
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "sessionId": SESSION,
        "running": 2,
        "assigned": 0,
        "capacity": 4,
        "weight": 1,
        "frozen": false,
        "started": sample.after(0),
        "expires": sample.after(1),
    })
}

/// `POST /api/tenure/v1/sessions/:sessionId/commands`
pub fn command_session() -> Endpoint {
    Endpoint::post("commandSession", handle_command_session)
        .scopes(Scope("tenure:command-worker:<taskQueueId>"))
        .described("tenure", "Send a command to the worker of a session", describe_command_session)
}

fn describe_command_session(operation: Operation, _: &Sample) -> Operation {
    of_a_session(operation)
        .about(
            "The worker finds it in its inbox within a second and executes it: `freeze`, `unfreeze`, `balance`, \
             `stop-task` with a `taskId`, or `shutdown`. The server only delivers it; to stop a worker that does not \
             cooperate, quarantine it. Commands end with their session; an ended session is not found.",
        )
        .takes::<CommandRequest>(&json!({"command": "freeze"}))
        .answers_json::<CommandSent>(202, "The command is in the inbox", &json!({"id": 5}))
        .refuses(InputError, "`stop-task` lacks a `taskId`, or another command has one")
        .refuses(RequestConflict, &format!("{COMMANDS_MAX} commands are not acknowledged yet"))
}

async fn handle_command_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = identify(&app, &call).await?;
    call.authorize(&values(&identity))?;
    call.no_query()?;
    let command: CommandRequest = call.json()?;
    let id = sessions::command(app.engine.session_parts(), &call.actor()?, &identity, &command).await?;
    answer(StatusCode::ACCEPTED, &CommandSent { id })
}

/// `DELETE /api/tenure/v1/sessions/:sessionId`
pub fn end_session() -> Endpoint {
    Endpoint::delete("endSession", handle_end_session).scopes(OWN).described(
        "tenure",
        "End a session, and release its runs",
        describe_end_session,
    )
}

fn describe_end_session(operation: Operation, _: &Sample) -> Operation {
    of_a_session(operation)
        .about(
            "Up to 2,000 of its runs become pending again in one transaction, without using a retry. Runs of \
             `at-most-once` tasks end as exceptions instead, because their work may have begun. A repeat, or ending \
             a session that has already ended, returns the same.",
        )
        .answers::<SessionReturned>("The number of runs that left the session", &json!({"returned": 2}))
}

async fn handle_end_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = of_worker(&app, &call).await?;
    call.no_query()?;
    let returned = sessions::close(app.engine.session_parts(), &call.actor()?, &identity).await?;
    ok(&SessionReturned { returned })
}

/// `GET /api/tenure/v1/sessions/:sessionId`
pub fn get_session() -> Endpoint {
    Endpoint::get("getSession", handle_get_session).scopes(READING).described(
        "tenure",
        "Read a session",
        describe_get_session,
    )
}

fn describe_get_session(operation: Operation, sample: &Sample) -> Operation {
    of_a_session(operation)
        .about("An ended session is kept for a day, with `ended` and `endedBy`.")
        .answers::<Session>("The session", &example(sample))
}

fn example(sample: &Sample) -> Value {
    let mut session = example_worker(sample);
    if let Value::Object(fields) = &mut session {
        fields.extend(
            [("epoch", json!(1)), ("taskQueueId", json!(QUEUE)), ("ttl", json!(60))]
                .map(|(name, value)| (name.to_owned(), value)),
        );
    }
    session
}

async fn handle_get_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let found = sessions::find(app.engine.session_parts(), call.session_id()?).await?;
    call.authorize(&values(&found.identity))?;
    call.no_query()?;
    ok(&session_body(found))
}

fn session_body(found: Stored) -> Session {
    let Stored { identity, weight, capacity, frozen, until, ended, running, assigned } = found;
    let (ended, ended_by) = ended.map(|(ended, by, _)| (Timestamp::new(ended), by)).unzip();
    Session {
        session_id: identity.id,
        epoch: identity.epoch,
        task_queue_id: identity.queue,
        worker_group: identity.worker_group,
        worker_id: identity.worker_id,
        ttl: identity.ttl,
        weight: weight.into(),
        capacity: capacity.into(),
        frozen,
        started: identity.started.into(),
        expires: until.into(),
        running,
        assigned,
        ended,
        ended_by,
    }
}

/// `GET /api/tenure/v1/queues/:taskQueueId/workers`
pub fn list_queue_workers() -> Endpoint {
    Endpoint::get("listQueueWorkers", handle_list_queue_workers).scopes(READING).large_answer().described(
        "tenure",
        "List the workers that have a session in a queue",
        describe_list_queue_workers,
    )
}

fn describe_list_queue_workers(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The live sessions with their numbers of runs, read in one snapshot: an ending session is listed with \
             all of its runs or not at all. Workers without a session are in listWorkers. A queue that does not \
             exist yet has none.",
        )
        .answers::<QueueWorkers>("The sessions", &json!({"workers": [example_worker(sample)]}))
}

async fn handle_list_queue_workers(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let workers =
        sessions::list_workers(app.engine.session_parts(), &queue).await?.into_iter().map(worker_body).collect();
    ok(&QueueWorkers { workers })
}

fn worker_body(member: Member) -> QueueWorker {
    let Member { identity, weight, capacity, frozen, until, running, assigned } = member;
    QueueWorker {
        worker_group: identity.worker_group,
        worker_id: identity.worker_id,
        session_id: identity.id,
        running,
        assigned,
        capacity: capacity.into(),
        weight: weight.into(),
        frozen,
        started: identity.started.into(),
        expires: until.into(),
    }
}

/// `POST /api/tenure/v1/sessions/:sessionId/renew`
pub fn renew_session() -> Endpoint {
    Endpoint::post("renewSession", handle_renew_session).no_pool().scopes(OWN).described(
        "tenure",
        "Renew a session",
        describe_renew_session,
    )
}

fn describe_renew_session(operation: Operation, sample: &Sample) -> Operation {
    of_a_live_session(operation)
        .about(
            "Renews it for `ttl` seconds from now, even if it is overdue, unless it has ended. Omitted fields do not \
             change. A worker that reads its inbox needs this only to report changes.",
        )
        .may_take_json::<RenewSessionRequest>(&json!({"weight": 5, "frozen": false}))
        .checks_body()
        .answers::<SessionRenewed>(
            "The session is renewed",
            &json!({"expires": sample.after(1), "serverTime": sample.after(0)}),
        )
        .refuses(InputError, "a number is out of range; the message names it")
}

async fn handle_renew_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = of_worker(&app, &call).await?;
    call.no_query()?;
    // An unchanged session needs no body.
    let stated = Stated::from_request(&call.json_or_default::<RenewSessionRequest>()?)?;
    let renewed = sessions::renew(app.engine.session_parts(), &identity, stated).await?;
    ok(&SessionRenewed { expires: renewed.until.into(), server_time: renewed.now.into() })
}

/// `GET /api/tenure/v1/sessions/:sessionId/inbox?after=&wait=`
pub fn session_inbox() -> Endpoint {
    Endpoint::get("sessionInbox", handle_session_inbox)
        .no_pool()
        .scopes(OWN)
        .waits(|_| ANSWER_MAX + WAIT_MAX)
        .described("tenure", "Renew a session, and wait for items of its inbox", describe_session_inbox)
}

fn describe_session_inbox(operation: Operation, sample: &Sample) -> Operation {
    let most = WAIT_MAX.as_secs();
    let after = json!({"type": "integer", "minimum": 0, "maximum": i64::MAX, "default": 0});
    let wait = json!({"type": "integer", "minimum": 0, "maximum": most, "default": most});
    of_a_live_session(operation)
        .about(
            "The session is renewed when the request arrives, unless it waits, acknowledges nothing new and was \
             renewed within the last twelfth of its `ttl` (5 seconds at most); `expires` is the new end. The \
             response comes with the first items, or when the wait is over. Items are runs assigned to the session, \
             runs that ended without a report of the worker, which should stop working on them, and commands for the \
             worker and its tasks. Items up to `after` are deleted; all others are returned again, so a lost \
             response loses nothing. The wait is at most a third of the session's `ttl`, so a worker that repeats \
             the request at once never expires.",
        )
        .query("after", "The greatest `id` that the worker has processed", &after, &Value::Null)
        .query("wait", "Seconds to wait if the inbox is empty", &wait, &json!(1))
        .answers::<Inbox>(
            "The items that are not acknowledged, oldest first",
            &json!({"expires": sample.after(1), "serverTime": sample.after(0), "policyVersion": 0, "items": [
                {"id": 4, "kind": "run-ended", "taskId": sample.task, "runId": 0, "state": "exception",
                    "reasonResolved": "canceled"},
                {"id": 5, "kind": "command", "command": "freeze"},
            ]}),
        )
}

async fn handle_session_inbox(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = of_worker(&app, &call).await?;
    let (after, wait) = read_query(&call)?;
    let asked = DateTime::from_timestamp_millis(app.intake.now().await?.server_ms).unwrap_or_default();
    let reading = sessions::inbox(app.engine.session_parts(), &identity, after, wait, asked);
    let sessions::Read { renewed, items, waited } = call.wait_for(&app.intake, &values(&identity), reading).await?;
    call.note_wait(waited);
    // Base of the worker's remaining lease; the renewal happened before the wait.
    let now =
        DateTime::from_timestamp_millis(app.intake.now().await?.server_ms).unwrap_or(renewed.now).max(renewed.now);
    ok(&Inbox {
        expires: renewed.until.into(),
        server_time: Timestamp::new(now),
        policy_version: renewed.policy_version,
        items,
    })
}

fn read_query(call: &Call) -> Result<(i64, Duration), ApiError> {
    let (mut after, mut wait) = (0, WAIT_MAX);
    for (name, value) in call.query(&["after", "wait"])? {
        if name == "after" {
            after = whole(&name, "whole number", &value, i64::MAX)?;
        } else {
            let most = i64::try_from(WAIT_MAX.as_secs()).unwrap_or(i64::MAX);
            wait = Duration::from_secs(whole(&name, "whole number of seconds", &value, most)?.unsigned_abs());
        }
    }
    Ok((after, wait))
}

fn whole(name: &str, what: &str, value: &str, most: i64) -> Result<i64, ApiError> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { value.parse().ok() } else { None };
    number
        .filter(|number| *number <= most)
        .ok_or_else(|| ApiError::arguments(format!("the query parameter `{name}` must be a {what} from 0 to {most}")))
}

/// `POST /api/tenure/v1/sessions`
pub fn start_session() -> Endpoint {
    Endpoint::post("startSession", handle_start_session).scopes(OWN).described(
        "tenure",
        "Start a session of a worker",
        describe_start_session,
    )
}

fn describe_start_session(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The worker names its session in claimWork, claimTask or `work`. All of its runs are then released in \
             one transaction when the session ends: `ttl` seconds after the last renewal, or at once by endSession. \
             Claims end with their session or their lease, whichever ends first. A worker has one live session in a \
             queue; with `takeover` the new one ends it like an expiry. The queue need not exist yet.",
        )
        .takes::<StartSessionRequest>(&example_start())
        .names(&[("sessionId", "$response.body#/sessionId")])
        .answers_json::<SessionStarted>(
            201,
            "The session has begun",
            &json!({"sessionId": SESSION, "epoch": 1, "started": sample.after(0), "expires": sample.after(1),
                "serverTime": sample.after(0), "policyVersion": 0}),
        )
        .refuses(InputError, "a number is out of range; the message names it")
        .refuses(
            SessionExists,
            "the worker has a live session in this queue, and `takeover` is not set or that session is less than a \
             second old; the message has its start and expiry",
        )
        .refuses(
            PolicyMismatch,
            "the queue's policy has another version than `policyVersion`; the message has the version",
        )
}

async fn handle_start_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let body: StartSessionRequest = call.json()?;
    let asking = Values::of_path()
        .text("taskQueueId", body.task_queue_id.as_str())
        .text("workerGroup", body.worker_group.as_str())
        .text("workerId", body.worker_id.as_str());
    call.authorize(&asking)?;
    let start = Start::from_request(body)?;
    let sessions::Started { identity, until, policy_version } =
        sessions::start(app.engine.session_parts(), &start, &call.actor()?.client_id).await?;
    let started = SessionStarted {
        session_id: identity.id,
        epoch: identity.epoch,
        started: identity.started.into(),
        expires: until.into(),
        server_time: identity.started.into(),
        policy_version,
    };
    answer(StatusCode::CREATED, &started)
}
