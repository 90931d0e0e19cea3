//! A request, read and authenticated, with accessors for operations.

use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams, Request};
use axum::response::Response;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::header::{AUTHORIZATION, CONTENT_TYPE, EXPECT, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tenure_api::errors::ErrorCode;
use tenure_api::hawk::bewit::split_url;
use tenure_api::ids::{
    ArtifactName, InvalidId, ObjectName, ProvisionerId, RunId, SessionId, TaskGroupId, TaskId, TaskQueueId,
    WorkerGroup, WorkerId, WorkerType, WorkerTypeInPath,
};
use tenure_api::query::Query;

use super::access::{Access, REAUTHORIZE_EVERY};
use super::body;
use super::budget::{Reservation, Share};
use super::connection::Connection;
use super::declaration::Declaration;
use super::error::{ApiError, REPEATED_BODY_MAX};
use super::heavy::LARGE_MIN;
use super::intake::Intake;
use super::scopes::{Template, Values};
use crate::auth::{Now, Principal, RequestParts, SignedPayload};
use tenure_domain::json;
use tenure_engine::ops::actor::Actor;
use tenure_engine::ops::list_tasks::{Cursor, PAGE_MAX};
use tenure_engine::traces;
use tenure_engine::wait_limit::Caller;
use tokio::time::{Instant, sleep};

/// A request that waited this long is authenticated again before its response.
const REAUTHORIZE_AFTER: Duration = Duration::from_millis(100);
/// Clock of unsigned requests, which do not depend on the time.
const NO_TIME: Now = Now { real_ms: 0, server_ms: 0 };

/// Recorded for requests without credentials, if the role `anonymous` has the scope.
const ANONYMOUS: &str = "anonymous";

const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

pub struct Call {
    pub endpoint: Arc<Declaration>,
    /// Decoded path parameters; none if the path is invalid.
    params: Option<RawPathParams>,
    pub body: Bytes,
    pub connection: Option<Connection>,
    head: Parts,
    arrived: Now,
    principal: Option<Principal>,
    principal_after_wait: OnceLock<Principal>,
    waited: AtomicBool,
    /// Budget share of the body, held until the call ends.
    reservation: Option<Reservation>,
}

/// A check before the body is read.
pub type Check = fn(&Call) -> Result<(), ApiError>;

impl Call {
    /// Reads and authenticates a request. A caller without access is refused before the body is
    /// read. The error is the response.
    pub async fn read(
        intake: &Intake,
        endpoint: Arc<Declaration>,
        early_check: Option<Check>,
        request: Request,
    ) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let params = RawPathParams::from_request_parts(&mut parts, &()).await;
        let mut call = Self {
            endpoint,
            params: None,
            body: Bytes::new(),
            connection: parts.extensions.get::<Connection>().cloned(),
            head: parts,
            arrived: NO_TIME,
            principal: None,
            principal_after_wait: OnceLock::new(),
            waited: AtomicBool::new(false),
            reservation: None,
        };
        let admitted = match params {
            Ok(params) => {
                call.params = Some(params);
                call.admit(intake, early_check).await
            }
            Err(error) => Err(ApiError::arguments(format!("the path cannot be read: {error}"))),
        };
        if let Err(error) = admitted {
            Box::pin(call.read_what_is_repeated(intake, body)).await;
            return Err(call.refuse(error));
        }
        match call.read_body(intake, body).await {
            Ok(()) => Ok(call),
            Err(error) => Err(call.refuse(error)),
        }
    }

    async fn admit(&mut self, intake: &Intake, early_check: Option<Check>) -> Result<(), ApiError> {
        if self.endpoint.is_authenticated() {
            let request = self.request_without_body();
            let now = if request.is_signed() { intake.now().await? } else { NO_TIME };
            self.principal = Some(intake.authenticate(&request, now).await?);
            self.arrived = now;
        }
        if self.client_id().is_some() {
            traces::honour_caller();
        }
        early_check.map_or(Ok(()), |check| check(self))
    }

    /// Reads the body and checks it against the signed hash.
    async fn read_body(&mut self, intake: &Intake, body: Body) -> Result<(), ApiError> {
        let share = self.share();
        let read = body::read(&intake.bodies, share, self.endpoint.body_max(share), &self.head.headers, body).await?;
        (self.body, self.reservation) = (read.bytes, read.reservation);
        if self.principal.is_none() {
            return Ok(());
        }
        let (authorization, content_type) = (self.text_of(AUTHORIZATION), self.text_of(CONTENT_TYPE));
        let Some(signed) = SignedPayload::of(authorization, content_type) else { return Ok(()) };
        if self.body.len() < LARGE_MIN {
            return Ok(signed.check(&self.body)?);
        }
        let (signed, body) = (signed.into_owned(), self.body.clone());
        Ok(intake.heavy.run(body.len(), move || signed.check(&body)).await?)
    }

    /// Reads the body of a refused request, if small enough for the error to repeat; otherwise
    /// discards it.
    async fn read_what_is_repeated(&mut self, intake: &Intake, body: Body) {
        let small = body::announced_length(&self.head.headers).is_some_and(|length| length <= REPEATED_BODY_MAX);
        if !small || self.head.headers.contains_key(EXPECT) {
            return body::pass_over(&self.head.headers, body).await;
        }
        let read = body::read(&intake.bodies, Share::Anonymous, REPEATED_BODY_MAX, &self.head.headers, body).await;
        if let Ok(read) = read {
            (self.body, self.reservation) = (read.bytes, read.reservation);
        }
    }

    pub fn share(&self) -> Share {
        let authenticated = self.principal.as_ref().is_some_and(|principal| principal.client_id.is_some());
        if authenticated { Share::Authenticated } else { Share::Anonymous }
    }

    pub fn caller(&self) -> Caller {
        match self.share() {
            Share::Anonymous => Caller::Anonymous,
            Share::Authenticated => Caller::Authenticated,
        }
    }

    /// Leaves this time out of the metric of the operation: the caller asked to wait.
    pub fn note_wait(&self, waited: Duration) {
        if let Some(connection) = self.connection.as_ref().filter(|_| !waited.is_zero()) {
            connection.note_wait(waited);
        }
    }

    /// Awaits `answer` and then checks the caller's access again: its client may have changed
    /// meanwhile. A refused answer is dropped, which requeues its claims. Afterwards
    /// [`Call::principal`] is the new principal.
    pub async fn wait_for<T, E: Into<ApiError>>(
        &self,
        intake: &Intake,
        values: &Values<'_>,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) => {
                // The error does not say how long the call waited.
                self.note_wait(began.elapsed());
                return Err(error.into());
            }
        };
        self.waited.store(true, Ordering::Relaxed);
        if began.elapsed() >= REAUTHORIZE_AFTER {
            let principal = self.authorize_again(intake, values).await?;
            drop(self.principal_after_wait.set(principal));
        }
        Ok(answer)
    }

    /// True after a wait. If it was long, the caller has been checked again.
    pub(super) fn has_waited(&self) -> bool {
        self.waited.load(Ordering::Relaxed)
    }

    pub async fn authorize_again(&self, intake: &Intake, values: &Values<'_>) -> Result<Principal, ApiError> {
        // Boxed, to keep requests that do not wait small.
        let principal = Box::pin(intake.authenticate(&self.request_without_body(), self.arrived)).await?;
        self.check_scopes(&principal, &self.scopes()?, values)?;
        Ok(principal)
    }

    /// Waits until the client loses its access, judged by the path alone.
    pub async fn access_ended(&self, intake: &Intake) {
        loop {
            sleep(REAUTHORIZE_EVERY).await;
            if let Err(error) = self.authorize_again(intake, &Values::of_path()).await
                && matches!(error.code(), ErrorCode::AuthenticationFailed | ErrorCode::InsufficientScopes)
            {
                return;
            }
            // The signature was valid on arrival, but temporary credentials expire.
            if let Some(end_ms) = self.credentials_end_ms()
                && intake.now().await.is_ok_and(|now| end_ms <= now.real_ms.min(now.server_ms))
            {
                return;
            }
        }
    }

    /// In milliseconds since 1970.
    #[must_use]
    pub fn credentials_end_ms(&self) -> Option<i64> {
        self.principal.as_ref().and_then(|principal| principal.expires_ms)
    }

    #[must_use]
    pub fn refuse(&self, error: ApiError) -> Response {
        let params: serde_json::Map<String, serde_json::Value> =
            self.params().map(|(name, value)| (name.to_owned(), value.into())).collect();
        // Errors end up in logs, where secrets must not.
        let secretive = self.endpoint.has_secret_body;
        // JSON that this server rejects, such as half a surrogate pair, may break the caller's
        // parser too.
        let repeated = !secretive && self.body.len() <= REPEATED_BODY_MAX && json::check(&self.body).is_ok();
        let payload = if repeated { serde_json::from_slice(&self.body).ok() } else { None };
        error.answer(self.endpoint.name, params, payload)
    }

    /// A header that is not text becomes `?`, which matches nothing.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap_or("?"))
    }

    fn text_of(&self, name: HeaderName) -> Option<&str> {
        self.head.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn request_parts(&self) -> RequestParts<'_> {
        let authority = || self.head.uri.authority().map(http::uri::Authority::as_str);
        RequestParts {
            method: self.head.method.as_str(),
            target: self.target(),
            host: self.text_of(HOST).or_else(authority).unwrap_or_default(),
            forwarded_port: self.text_of(FORWARDED_PORT),
            forwarded_proto: self.text_of(FORWARDED_PROTO),
            // Text or not, the header must count as present.
            authorization: self.head.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap_or("?")),
            content_type: self.text_of(CONTENT_TYPE),
            body: &self.body,
            body_is_elsewhere: false,
        }
    }

    /// Returns the parts for use before the body is read, or after its hash was compared.
    fn request_without_body(&self) -> RequestParts<'_> {
        RequestParts { body_is_elsewhere: true, ..self.request_parts() }
    }

    /// Path and query as sent, because the signature covers them.
    fn target(&self) -> &str {
        self.head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str)
    }

    /// None for anonymous callers.
    pub fn client_id(&self) -> Option<&str> {
        self.principal_after_wait.get().or(self.principal.as_ref())?.client_id.as_deref()
    }

    pub fn principal(&self) -> Result<&Principal, ApiError> {
        self.principal_after_wait
            .get()
            .or(self.principal.as_ref())
            .ok_or_else(|| ApiError::internal("a request was not authenticated"))
    }

    /// Returns the caller, for the record of a change.
    pub fn actor(&self) -> Result<Actor, ApiError> {
        let client_id = self.principal()?.client_id.as_deref().unwrap_or(ANONYMOUS);
        Ok(Actor::new(client_id).traced(self.connection.as_ref().and_then(Connection::trace_id)))
    }

    /// Checks the endpoint's scopes. `values` fills placeholders that are not path parameters.
    pub fn authorize(&self, values: &Values<'_>) -> Result<(), ApiError> {
        self.authorize_with(&self.scopes()?, values)
    }

    /// Checks the endpoint's scopes, whose placeholders are all path parameters.
    pub fn authorize_by_path(&self) -> Result<(), ApiError> {
        self.authorize(&Values::of_path())
    }

    /// Arrival time by the server's clock; none for unsigned requests.
    #[must_use]
    pub fn arrived(&self) -> Option<DateTime<Utc>> {
        if self.arrived.server_ms == NO_TIME.server_ms {
            return None;
        }
        DateTime::from_timestamp_millis(self.arrived.server_ms)
    }

    /// Checks another endpoint's scopes, for a path shared by two endpoints.
    pub fn authorize_with(&self, scopes: &Template, values: &Values<'_>) -> Result<(), ApiError> {
        self.check_scopes(self.principal()?, scopes, values)
    }

    /// True if the caller has further scopes. Callers without credentials have the scopes of the
    /// role `anonymous`.
    pub fn is_allowed(&self, scopes: &Template, values: &Values<'_>) -> Result<bool, ApiError> {
        Ok(scopes.is_held(&self.principal()?.scopes, values, &self.path_values())?)
    }

    fn scopes(&self) -> Result<Template, ApiError> {
        match self.endpoint.access {
            Access::Scopes(scopes) => Ok(scopes),
            Access::Open | Access::SignedUrl | Access::ArtifactUrl | Access::PlainArtifactUrl => {
                Err(ApiError::internal("an endpoint without scopes authorizes its callers"))
            }
        }
    }

    fn check_scopes(&self, principal: &Principal, scopes: &Template, values: &Values<'_>) -> Result<(), ApiError> {
        let path = self.path_values();
        if scopes.is_held(&principal.scopes, values, &path)? {
            return Ok(());
        }
        Ok(principal.authorize(&scopes.fill(values, &path)?)?)
    }

    fn path_values(&self) -> Values<'_> {
        let mut path = Values::of_path();
        for (name, value) in self.params() {
            path = if name == "taskQueueId" { path.text(name, self.task_queue_text()) } else { path.text(name, value) };
        }
        // The id of a queue or worker pool may span two segments.
        let has = |half| self.params().any(|(name, _)| name == half);
        if has("provisionerId") && has("workerType") {
            let queue = self.task_queue_text();
            path = path.text("workerPoolId", queue.clone()).text("taskQueueId", queue);
        }
        path
    }

    /// In path order.
    pub fn params(&self) -> impl Iterator<Item = (&str, &str)> {
        self.params.iter().flatten()
    }

    pub fn text_param(&self, name: &str) -> &str {
        self.params().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    pub fn header_values(&self, name: &str) -> Vec<&HeaderValue> {
        self.head.headers.get_all(name).iter().collect()
    }

    fn param<T: FromStr<Err = InvalidId>>(&self, name: &str) -> Result<T, ApiError> {
        self.text_param(name)
            .parse()
            .map_err(|error| ApiError::arguments(format!("the path parameter `{name}`: {error}")))
    }

    pub fn task_id(&self) -> Result<TaskId, ApiError> {
        self.param("taskId")
    }

    pub fn task_group_id(&self) -> Result<TaskGroupId, ApiError> {
        self.param("taskGroupId")
    }

    pub fn run_id(&self) -> Result<RunId, ApiError> {
        self.param("runId")
    }

    pub fn session_id(&self) -> Result<SessionId, ApiError> {
        self.param("sessionId")
    }

    pub fn artifact_name(&self) -> Result<ArtifactName, ApiError> {
        self.param("name")
    }

    pub fn object_name(&self) -> Result<ObjectName, ApiError> {
        self.param("name")
    }

    /// Queue id in the path, in one segment or two; not validated. A short name is completed if the
    /// operation accepts it, because scopes contain the full name.
    pub fn task_queue_text(&self) -> Cow<'_, str> {
        let mut params = self.params();
        if let (Some(("provisionerId", provisioner)), Some((_, worker_type))) = (params.next(), params.next()) {
            return format!("{provisioner}/{worker_type}").into();
        }
        let sent = self.text_param("taskQueueId");
        if sent.contains('/') {
            return sent.into();
        }
        self.parse_queue(sent).map_or(Cow::Borrowed(sent), |queue| Cow::Owned(queue.to_string()))
    }

    fn parse_queue(&self, text: &str) -> Result<TaskQueueId, InvalidId> {
        if self.endpoint.accepts_short_queue_names() { text.parse() } else { TaskQueueId::read_full(text) }
    }

    pub fn task_queue_id(&self) -> Result<TaskQueueId, ApiError> {
        let has_halves = self.params().any(|(name, _)| name == "workerType");
        let named = if has_halves { "parameters `provisionerId` and `workerType`" } else { "parameter `taskQueueId`" };
        let invalid = |error: InvalidId| ApiError::arguments(format!("the path {named}: {error}"));
        self.parse_queue(&self.task_queue_text()).map_err(invalid)
    }

    /// For operations without other arguments: checks the scopes, refuses a query string, returns
    /// the queue.
    pub fn only_task_queue(&self) -> Result<TaskQueueId, ApiError> {
        self.authorize_by_path()?;
        let queue = self.task_queue_id()?;
        self.no_query()?;
        Ok(queue)
    }

    /// Resolves a path that ends like another route. In `/task-queues/acme/counts`, `acme` is no
    /// queue id, so the path means the queue `acme/counts`.
    pub fn queue_ending_in(&self, word: &str) -> Option<String> {
        let mut params = self.params();
        let (Some((name, provisioner)), None) = (params.next(), params.next()) else { return None };
        (name == "taskQueueId" && !provisioner.contains('/')).then(|| format!("{provisioner}/{word}"))
    }

    pub fn provisioner_id(&self) -> Result<ProvisionerId, ApiError> {
        self.param("provisionerId")
    }

    /// The worker type of a queue to create.
    pub fn worker_type(&self) -> Result<WorkerType, ApiError> {
        self.param("workerType")
    }

    /// Queue id in two segments. None if invalid: no such queue can exist.
    pub fn queue_of_halves(&self) -> Result<Option<TaskQueueId>, ApiError> {
        self.provisioner_id()?;
        self.param::<WorkerTypeInPath>("workerType")?;
        Ok(TaskQueueId::read_full(&self.task_queue_text()).ok())
    }

    pub fn worker_group(&self) -> Result<WorkerGroup, ApiError> {
        self.param("workerGroup")
    }

    pub fn worker_id(&self) -> Result<WorkerId, ApiError> {
        self.param("workerId")
    }

    /// Parses the query string and refuses other parameters. A bewit is ignored.
    pub fn query(&self, names: &[&str]) -> Result<Vec<(String, String)>, ApiError> {
        let unsigned = split_url(self.target());
        let target = unsigned.as_ref().map_or_else(|| self.target(), |url| url.resource.as_ref());
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let query = Query::parse(query).map_err(|error| ApiError::arguments(error.to_string()))?;
        if let Some(name) = query.names().find(|name| !names.contains(name)) {
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(ApiError::arguments(format!(
                "the query parameter `{name}` is unknown; this operation has: {known}"
            )));
        }
        Ok(query.into_pairs())
    }

    pub fn page_and_token(&self) -> Result<(u16, Option<String>), ApiError> {
        let (mut limit, mut token) = (PAGE_MAX, None);
        for (name, value) in self.query(&["limit", "continuationToken"])? {
            if name == "limit" {
                let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                limit = if digits { value.parse().unwrap_or(PAGE_MAX).min(PAGE_MAX) } else { 0 };
                if limit == 0 {
                    return Err(ApiError::arguments("the query parameter `limit` must be a whole number, 1 or more"));
                }
            } else if value.is_empty() {
                return Err(ApiError::arguments("the query parameter `continuationToken` must not be empty"));
            } else {
                token = Some(value);
            }
        }
        Ok((limit, token))
    }

    pub fn page(&self) -> Result<Cursor, ApiError> {
        let (limit, token) = self.page_and_token()?;
        let after = token.map(|token| token.parse().map_err(|_| ApiError::unknown_token())).transpose()?;
        Ok(Cursor { after, limit })
    }

    pub fn no_query(&self) -> Result<(), ApiError> {
        self.query(&[]).map(drop)
    }

    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ApiError> {
        if !is_json(&self.head.headers) {
            return Err(ApiError::new(
                ErrorCode::MalformedPayload,
                "the body must be JSON and be sent with Content-Type: application/json",
            ));
        }
        read_object(&self.body)
    }

    pub fn json_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, ApiError> {
        if self.body.is_empty() { Ok(T::default()) } else { self.json() }
    }
}

/// Reads a JSON object.
pub fn read_object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    json::check(body).map_err(|error| {
        ApiError::new(ErrorCode::MalformedPayload, format!("the body is not acceptable JSON: {error}"))
    })?;
    let refused = |code, message| Err(ApiError::new(code, message));
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        // The parsers that serde derives for structs also accept arrays.
        Some(b'[') => {
            return refused(ErrorCode::InputValidationError, "the body must be a JSON object, not an array");
        }
        _ => return refused(ErrorCode::MalformedPayload, "the body must be a JSON object"),
    }
    // The body is known to be JSON, so every error is a schema violation.
    serde_json::from_slice(body)
        .map_err(|error| ApiError::new(ErrorCode::InputValidationError, invalid::<T>(body, &error)))
}

/// Adds the path of the invalid field to serde's message.
fn invalid<'a, T: Deserialize<'a>>(body: &'a [u8], plain: &serde_json::Error) -> String {
    let mut parser = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, T>(&mut parser) {
        Err(error) if error.path().iter().len() > 0 => format!("the body: `{}`: {}", error.path(), error.inner()),
        _ => format!("the body: {plain}"),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}
