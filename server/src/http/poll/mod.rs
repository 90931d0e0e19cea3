//! The poll API: signed URLs compatible with Azure's queue service, one message queue per task
//! queue and priority.
//!
//! A URL is a capability without credentials. Its signature is checked before the request is read,
//! so a forged URL reveals nothing.

pub(super) mod common;
pub(super) mod description;
pub(super) mod error;
mod request;
pub mod state;
pub mod urls;
mod xml;

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskQueueId;
use tenure_api::sas::Permission;

use self::common::{CommonHeaders, unreadable_path};
use self::error::{Code, PollError};
use self::request::PollQuery;
use self::state::Poll;
use self::xml::http_date;
use super::body;
use super::budget::Share;
use super::declaration::ANSWER_MAX;
use crate::auth::first_forwarded;
use tenure_domain::message::{MessageId, QueueName};
use tenure_engine::ops::messages::{self, DeleteRequest, GetRequest};

/// Azure accepts texts of up to 64 KiB.
const BODY_MAX: usize = 80 << 10;
const POP_RECEIPT: HeaderName = HeaderName::from_static("x-ms-popreceipt");
const TIME_NEXT_VISIBLE: HeaderName = HeaderName::from_static("x-ms-time-next-visible");
const MESSAGES_COUNT: HeaderName = HeaderName::from_static("x-ms-approximate-messages-count");

/// An error if the escapes decode to invalid UTF-8.
type Names<T> = Result<Path<T>, PathRejection>;

/// `/{queue}`: the number of messages.
pub async fn queue(State(app): State<Poll>, path: Names<String>, request: Request) -> Response {
    match path {
        Ok(Path(queue)) => answer(app, &queue, None, request, PollResource::Queue).await,
        Err(_) => unreadable_path(request.headers()),
    }
}

/// `/{queue}/messages`: get or peek.
pub async fn messages(State(app): State<Poll>, path: Names<String>, request: Request) -> Response {
    match path {
        Ok(Path(queue)) => answer(app, &queue, None, request, PollResource::Messages).await,
        Err(_) => unreadable_path(request.headers()),
    }
}

/// `/{queue}/messages/{messageId}`: delete or update.
pub async fn message(State(app): State<Poll>, path: Names<(String, String)>, request: Request) -> Response {
    match path {
        Ok(Path((queue, id))) => answer(app, &queue, Some(id), request, PollResource::Message).await,
        Err(_) => unreadable_path(request.headers()),
    }
}

#[derive(Clone, Copy)]
enum PollResource {
    Queue,
    Messages,
    Message,
}

#[derive(Clone, Copy)]
enum Operation {
    Get,
    Peek,
    Delete,
    Update,
    Metadata,
}

impl Operation {
    /// Azure's operations for submitters, such as putting messages, are never granted: createTask
    /// replaces them.
    fn find(resource: PollResource, method: &Method, query: &PollQuery) -> Result<(Self, Permission), PollError> {
        let peek = matches!(query.get("peekonly"), Some(value) if value.eq_ignore_ascii_case("true"));
        let found = match resource {
            PollResource::Messages if method == Method::GET && peek => (Self::Peek, Permission::Read),
            PollResource::Messages if method == Method::GET => (Self::Get, Permission::Process),
            PollResource::Message if method == Method::DELETE => (Self::Delete, Permission::Process),
            PollResource::Message if method == Method::PUT => (Self::Update, Permission::Update),
            PollResource::Queue if method == Method::GET || method == Method::HEAD => {
                (Self::Metadata, Permission::Read)
            }
            PollResource::Queue | PollResource::Messages | PollResource::Message => {
                let methods = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE];
                let code = if methods.contains(method) {
                    Code::AuthorizationPermissionMismatch
                } else {
                    Code::UnsupportedHttpVerb
                };
                return Err(PollError::new(code, format!("a signed URL does not allow {method} here")));
            }
        };
        Ok(found)
    }
}

async fn answer(app: Poll, queue: &str, id: Option<String>, request: Request, resource: PollResource) -> Response {
    let common = CommonHeaders::of(request.headers());
    let serving = tokio::time::timeout(ANSWER_MAX, serve(&app, queue, id, request, resource)).await;
    common.answer(serving.unwrap_or_else(|_| Err(PollError::no_answer())))
}

async fn serve(
    app: &Poll,
    queue: &str,
    id: Option<String>,
    request: Request,
    resource: PollResource,
) -> Result<Response, PollError> {
    let (parts, body) = request.into_parts();
    let query = PollQuery::read(parts.uri.query().unwrap_or_default())?;
    let grant = app.poll_urls.verify(queue, &query, app.intake.now().await?)?;
    let forwarded = parts.headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    let is_plain = forwarded.is_some_and(|protos| first_forwarded(protos).eq_ignore_ascii_case("http"));
    if grant.is_https_only() && is_plain {
        return Err(PollError::new(Code::AuthorizationProtocolMismatch, "this URL is for https only"));
    }
    let (operation, permission) = Operation::find(resource, &parts.method, &query)?;
    if !grant.allows(permission) {
        let text = "this URL's signature does not allow the operation";
        return Err(PollError::new(Code::AuthorizationPermissionMismatch, text));
    }
    // This server issued the name, so it can be parsed.
    let unknown = || PollError::new(Code::QueueNotFound, format!("there is no queue {queue}"));
    let name: QueueName = queue.parse().map_err(|_| unknown())?;
    let task_queue = app.engine.queues.get_name(&app.engine.pool, name.queue).await.map_err(|error| match error {
        sqlx::Error::RowNotFound => unknown(),
        other => PollError::from(other),
    })?;
    match operation {
        Operation::Get => get(app, name, task_queue, &query).await,
        Operation::Peek => peek(app, name, &query).await,
        Operation::Delete => delete(app, name, id.as_deref().unwrap_or_default(), &query).await,
        Operation::Update => {
            let read = body::read(&app.intake.bodies, Share::Authenticated, BODY_MAX, &parts.headers, body).await;
            let body = read.map_err(|error| match error.code() {
                ErrorCode::ServiceUnavailable => PollError::new(
                    Code::ServerBusy,
                    "the bodies of other requests use all memory for request bodies; try again",
                ),
                ErrorCode::MalformedPayload => PollError::new(Code::InvalidXmlDocument, "the body is incomplete"),
                _ => {
                    PollError::new(Code::RequestBodyTooLarge, format!("the body is over the limit of {BODY_MAX} bytes"))
                }
            })?;
            update(app, name, id.as_deref().unwrap_or_default(), &query, &body.bytes).await
        }
        Operation::Metadata => metadata(app, name, &query).await,
    }
}

fn xml_answer(body: String) -> Response {
    ([(CONTENT_TYPE, "application/xml")], body).into_response()
}

async fn get(app: &Poll, queue: QueueName, name: TaskQueueId, query: &PollQuery) -> Result<Response, PollError> {
    let request = GetRequest { queue, name, count: query.count()?, visibility: query.visibility_of_get()? };
    let got = app.engine.messages.get(request).await?;
    Ok(xml_answer(xml::got(&got)?))
}

async fn peek(app: &Poll, queue: QueueName, query: &PollQuery) -> Result<Response, PollError> {
    let (key, priority) = (queue.queue, queue.priority.code());
    let limit = i64::from(query.count()?);
    let _slot = app.intake.read_slots.take(Share::Authenticated).await?;
    let peeked = tenure_store::messages::peek(&app.engine.pool, key, priority, limit).await?;
    Ok(xml_answer(xml::peeked(&peeked)?))
}

fn named(queue: QueueName, id: &str, query: &PollQuery) -> Result<DeleteRequest, PollError> {
    let receipt = query.required("popreceipt")?;
    let message = id.parse().ok().and_then(MessageId::from_uuid);
    let message = message.ok_or_else(|| {
        PollError::new(Code::MessageNotFound, "there is no message with this id: it must be the MessageId of an answer")
    })?;
    let receipt = receipt.parse().map_err(|_| {
        let hint = "this pop receipt is invalid; in a URL, write its + as %2B";
        PollError::new(Code::PopReceiptMismatch, hint)
    })?;
    Ok(DeleteRequest { queue, message, receipt })
}

async fn delete(app: &Poll, queue: QueueName, id: &str, query: &PollQuery) -> Result<Response, PollError> {
    app.engine.delete_messages.submit(named(queue, id, query)?).await??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn update(app: &Poll, queue: QueueName, id: &str, query: &PollQuery, body: &[u8]) -> Result<Response, PollError> {
    let request = named(queue, id, query)?;
    let visibility: Duration = query.visibility_of_update()?;
    if !body.is_empty()
        && let Some(task) = tenure_store::messages::find_task(&app.engine.pool, request.message.seq).await?
    {
        xml::check_update(body, task, request.message.run)?;
    }
    let (receipt, visible) = messages::update(&app.engine.pool, &app.engine.notifiers, &request, visibility).await??;
    let mut response = StatusCode::NO_CONTENT.into_response();
    let text = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"));
    response.headers_mut().insert(POP_RECEIPT, text(&receipt.to_string()));
    response.headers_mut().insert(TIME_NEXT_VISIBLE, text(&http_date(visible)));
    Ok(response)
}

async fn metadata(app: &Poll, queue: QueueName, query: &PollQuery) -> Result<Response, PollError> {
    if query.get("comp") != Some("metadata") {
        let text = "only the metadata of a queue can be read: append comp=metadata";
        return Err(PollError::new(Code::InvalidQueryParameterValue, text));
    }
    let _slot = app.intake.read_slots.take(Share::Authenticated).await?;
    let mut conn = app.engine.pool.acquire().await?;
    let count = tenure_store::messages::count(&mut conn, queue.queue, queue.priority.code()).await?;
    Ok((StatusCode::OK, [(MESSAGES_COUNT, count.to_string())]).into_response())
}
