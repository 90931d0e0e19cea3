//! One file per endpoint or resource: declaration, scopes, description and handler. A handler reads
//! the call, checks the scopes, runs the operation and renders the response; it has no rules.

pub mod artifacts;
pub mod audit;
pub mod authority;
pub mod change_task;
pub mod change_task_group_priority;
pub mod change_task_priority;
pub mod checkpoint;
pub mod claim_task;
pub mod claim_work;
pub mod clients;
pub mod clock;
pub mod counts;
pub mod create_task;
pub mod create_tasks;
pub mod dead_letters;
pub mod enqueued;
pub mod events;
mod exposition;
pub mod health;
pub mod jobs;
pub mod list_dependent_tasks;
pub mod list_queues;
pub mod list_tasks;
mod listed_task;
pub mod live_log;
pub mod metrics;
pub mod objects;
pub mod pages;
pub mod partitions;
pub mod poll_task_urls;
mod prelude;
pub mod problems;
pub mod purge_cache;
pub mod queue_keys;
pub mod queue_lists;
pub mod queue_policy;
pub mod queue_views;
pub mod reclaim_task;
pub mod recorded;
pub mod report;
pub mod roles;
pub mod schedules;
pub mod scopes;
pub mod servers;
pub mod sessions;
pub mod state;
pub mod statistics;
pub mod status;
pub mod subscriptions;
pub mod task;
pub mod task_batches;
pub mod task_group;
pub mod task_result;
pub mod wait_for_task;
pub mod why;
pub mod work;
pub mod worker_manager;
pub mod workers;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use tenure_api::bodies::{Claim, Status};
use tenure_api::credentials::Credentials;
use tenure_api::dates::Timestamp;
use utoipa::ToSchema;

use self::state::Api;
use super::error::ApiError;
use crate::auth::ClaimedRun;
use tenure_domain::task::Granted;
use tenure_engine::traces;

fn ok(body: &impl Serialize) -> Result<Response, ApiError> {
    Ok(raw(to_bytes(body)?))
}

fn nothing() -> Response {
    http::StatusCode::NO_CONTENT.into_response()
}

/// Returns 303 with `url` in the header `Location`; the body should repeat it.
fn see_other(url: &str, body: &impl Serialize) -> Result<Response, ApiError> {
    let mut response = raw(to_bytes(body)?);
    *response.status_mut() = http::StatusCode::SEE_OTHER;
    let location = http::HeaderValue::from_str(url).map_err(|error| ApiError::internal(&error.to_string()))?;
    response.headers_mut().insert(http::header::LOCATION, location);
    Ok(response)
}

fn raw(json: impl Into<Body>) -> Response {
    let mut response = Response::new(json.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Reads a time in the query.
fn query_time(name: &str, value: &str) -> Result<DateTime<Utc>, ApiError> {
    let time: Result<Timestamp, _> = serde_json::from_value(value.into());
    let wrong =
        |_| ApiError::arguments(format!("the query parameter `{name}` must be a time such as 2027-01-31T12:00:00Z"));
    Ok(time.map_err(wrong)?.time())
}

/// Initial capacity of a response, in bytes: a status with a few runs fits.
const SMALL_ANSWER: usize = 1 << 10;
/// Initial capacity for a claim without its definition, in bytes.
const CLAIM_ROOM: usize = 3 << 9;

fn to_bytes(body: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    let mut json = Vec::with_capacity(SMALL_ANSWER);
    write_json(&mut json, body)?;
    Ok(json)
}

fn to_json(body: &impl Serialize) -> Result<String, ApiError> {
    String::from_utf8(to_bytes(body)?).map_err(|error| ApiError::internal(&error.to_string()))
}

/// Appends to `json`. Callers preallocate it, because growing a buffer copies it.
fn write_json(json: &mut Vec<u8>, body: &impl Serialize) -> Result<(), ApiError> {
    serde_json::to_writer(json, body).map_err(|error| ApiError::internal(&error.to_string()))
}

/// Response with the status of a task.
#[derive(Serialize, ToSchema)]
pub(super) struct StatusBody<'a> {
    /// The task's status.
    status: &'a Status,
}

/// Serializes a claim with newly issued credentials.
fn claim_json(app: &Api, granted: &Granted) -> Result<Vec<u8>, ApiError> {
    let mut json = Vec::with_capacity(room_for(granted));
    write_claim(&mut json, app, granted)?;
    Ok(json)
}

fn room_for(granted: &Granted) -> usize {
    CLAIM_ROOM + granted.definition.as_ref().map_or(0, String::len)
}

fn room_for_all(claims: &[Granted]) -> usize {
    claims.iter().map(room_for).sum()
}

fn claims_json(app: &Api, claims: &[Granted]) -> Result<Vec<u8>, ApiError> {
    let mut json = Vec::with_capacity(room_for_all(claims));
    json.push(b'{');
    write_claims(&mut json, app, claims)?;
    json.push(b'}');
    Ok(json)
}

fn write_claims(json: &mut Vec<u8>, app: &Api, claims: &[Granted]) -> Result<(), ApiError> {
    json.extend_from_slice(b"\"tasks\":[");
    for (index, granted) in claims.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        write_claim(json, app, granted)?;
    }
    json.push(b']');
    Ok(())
}

fn write_claim(json: &mut Vec<u8>, app: &Api, granted: &Granted) -> Result<(), ApiError> {
    let invalid = |what: &str| ApiError::internal(&format!("a stored claim has an invalid {what}"));
    let status = granted.task.status();
    let scopes: Vec<String> = serde_json::from_str(&granted.scopes).map_err(|_| invalid("scopes"))?;
    let credentials: Credentials = app.intake.authenticator.task_credentials().issue(&ClaimedRun {
        task_id: granted.task.id,
        run_id: granted.run,
        worker_group: &granted.tenancy.worker_group.parse().map_err(|_| invalid("worker group"))?,
        worker_id: &granted.tenancy.worker_id.parse().map_err(|_| invalid("worker id"))?,
        start: granted.now,
        taken_until: granted.tenancy.taken_until,
        task_scopes: &scopes,
    });
    let claim = Claim {
        status: &status,
        run_id: granted.run,
        worker_group: &granted.tenancy.worker_group,
        worker_id: &granted.tenancy.worker_id,
        taken_until: Timestamp::new(granted.tenancy.taken_until),
        task: None,
        credentials,
        traceparent: traces::traceparent_of_run(granted.task.id.uuid(), granted.run.number()),
    };
    write_json(json, &claim)?;
    if let Some(definition) = &granted.definition {
        // Replaces the closing brace: the stored JSON is appended as text, without parsing it.
        json.pop();
        json.extend_from_slice(b",\"task\":");
        json.extend_from_slice(definition.as_bytes());
        json.push(b'}');
    }
    Ok(())
}
