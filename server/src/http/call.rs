//! One request: read, authenticated, and taken apart as the operations need it.

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
use tenure_engine::ops::list_tasks::{Cursor, PAGE_MAX};
use tenure_engine::rooms::Caller;
use tokio::time::{Instant, sleep};

/// A request that waited this long is authenticated again before it is answered.
const REAUTHORIZE_AFTER: Duration = Duration::from_millis(100);
/// For requests that are not signed: nothing about them depends on the time.
const NO_TIME: Now = Now { real_ms: 0, server_ms: 0 };

/// What a proxy says of the port and the scheme that the caller used.
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A request.
pub struct Call {
    /// What is called.
    pub endpoint: Arc<Declaration>,
    /// The parameters of the path, decoded; none if it cannot be read.
    params: Option<RawPathParams>,
    /// The body.
    pub body: Bytes,
    /// The connection that the answer will be written to.
    pub connection: Option<Connection>,
    head: Parts,
    arrived: Now,
    principal: Option<Principal>,
    /// The caller after the request has waited; see [`Call::wait_for`].
    principal_after_wait: OnceLock<Principal>,
    waited: AtomicBool,
    /// The body's part of the budget, for as long as the call is worked on.
    reservation: Option<Reservation>,
}

/// What can be refused before the body is read, because it needs no more than the path.
pub type Check = fn(&Call) -> Result<(), ApiError>;

impl Call {
    /// Reads a request and authenticates its sender. A caller without access is refused before its body is read. The
    /// error is the answer.
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

    /// The checks that need no body.
    async fn admit(&mut self, intake: &Intake, early_check: Option<Check>) -> Result<(), ApiError> {
        if self.endpoint.is_authenticated() {
            let request = self.request_without_body();
            let now = if request.is_signed() { intake.now().await? } else { NO_TIME };
            self.principal = Some(intake.authenticate(&request, now).await?);
            self.arrived = now;
        }
        early_check.map_or(Ok(()), |check| check(self))
    }

    /// Reads the body, and compares it with what was signed.
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

    /// The body of a request that is refused already, because the error repeats it; what is too large for that is
    /// discarded.
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

    /// Which part of the budgets the request uses.
    pub fn share(&self) -> Share {
        let authenticated = self.principal.as_ref().is_some_and(|principal| principal.client_id.is_some());
        if authenticated { Share::Authenticated } else { Share::Anonymous }
    }

    /// The same, as the engine calls it.
    pub fn caller(&self) -> Caller {
        match self.share() {
            Share::Anonymous => Caller::Anonymous,
            Share::Authenticated => Caller::Authenticated,
        }
    }

    /// Awaits `answer`, which may take long, and then checks again that the caller has access: by now its client may be
    /// disabled, deleted or have other scopes. An answer that is refused is dropped, and with it its claims are requeued.
    /// From then on the call's principal is the present one.
    ///
    /// # Errors
    /// If `answer` fails, or the caller has lost its access.
    pub async fn wait_for<T, E: Into<ApiError>>(
        &self,
        intake: &Intake,
        values: &Values<'_>,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        let began = Instant::now();
        let answer = answer.await.map_err(Into::into)?;
        self.waited.store(true, Ordering::Relaxed);
        if began.elapsed() >= REAUTHORIZE_AFTER {
            let principal = self.authorize_again(intake, values).await?;
            // A call waits once.
            drop(self.principal_after_wait.set(principal));
        }
        Ok(answer)
    }

    /// True if the request has waited and its caller was checked again where that took long.
    pub(super) fn has_waited(&self) -> bool {
        self.waited.load(Ordering::Relaxed)
    }

    /// Checks that the caller, as it is now, has access.
    pub async fn authorize_again(&self, intake: &Intake, values: &Values<'_>) -> Result<Principal, ApiError> {
        // In a box, so that it makes no request larger that does not wait.
        let principal = Box::pin(intake.authenticate(&self.request_without_body(), self.arrived)).await?;
        self.check_scopes(&principal, &self.scopes()?, values)?;
        Ok(principal)
    }

    /// Waits until the client has no access any more to what only the path decides about.
    pub async fn access_ended(&self, intake: &Intake) {
        loop {
            sleep(REAUTHORIZE_EVERY).await;
            if let Err(error) = self.authorize_again(intake, &Values::of_path()).await
                && matches!(error.code(), ErrorCode::AuthenticationFailed | ErrorCode::InsufficientScopes)
            {
                return;
            }
            // The signature was good when it came. Temporary credentials expire nevertheless.
            if let Some(end_ms) = self.credentials_end_ms()
                && intake.now().await.is_ok_and(|now| end_ms <= now.real_ms.min(now.server_ms))
            {
                return;
            }
        }
    }

    /// When the caller's credentials end, in milliseconds since 1970.
    #[must_use]
    pub fn credentials_end_ms(&self) -> Option<i64> {
        self.principal.as_ref().and_then(|principal| principal.expires_ms)
    }

    /// The answer that this error is.
    #[must_use]
    pub fn refuse(&self, error: ApiError) -> Response {
        let params: serde_json::Map<String, serde_json::Value> =
            self.params().map(|(name, value)| (name.to_owned(), value.into())).collect();
        // Errors end up in logs, where secrets must not.
        let secretive = self.endpoint.has_secret_body;
        // What we cannot read, such as half a surrogate pair or a key twice, the caller may not be able to read either.
        let repeated = !secretive && self.body.len() <= REPEATED_BODY_MAX && json::check(&self.body).is_ok();
        let payload = if repeated { serde_json::from_slice(&self.body).ok() } else { None };
        error.answer(self.endpoint.name, params, payload)
    }

    /// A header of the request; one that is not text is a `?`, which matches nothing.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap_or("?"))
    }

    /// A header of the request that is text.
    fn text_of(&self, name: HeaderName) -> Option<&str> {
        self.head.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The parts of the request that authentication reads.
    pub fn request_parts(&self) -> RequestParts<'_> {
        let authority = || self.head.uri.authority().map(http::uri::Authority::as_str);
        RequestParts {
            method: self.head.method.as_str(),
            target: self.target(),
            host: self.text_of(HOST).or_else(authority).unwrap_or_default(),
            forwarded_port: self.text_of(FORWARDED_PORT),
            forwarded_proto: self.text_of(FORWARDED_PROTO),
            // A header that is not text is no header that is used.
            authorization: self.head.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap_or("?")),
            content_type: self.text_of(CONTENT_TYPE),
            body: &self.body,
            body_is_elsewhere: false,
        }
    }

    /// The same before its body is there, or after it was compared.
    fn request_without_body(&self) -> RequestParts<'_> {
        RequestParts { body_is_elsewhere: true, ..self.request_parts() }
    }

    /// Path and query as they were sent, which is what was signed.
    fn target(&self) -> &str {
        self.head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str)
    }

    /// Who sent the request.
    pub fn principal(&self) -> Result<&Principal, ApiError> {
        self.principal_after_wait
            .get()
            .or(self.principal.as_ref())
            .ok_or_else(|| ApiError::internal("a request was not authenticated"))
    }

    /// Checks that the caller has the scopes of the endpoint, with these values in the places of the placeholders
    /// that the path has no parameters for.
    pub fn authorize(&self, values: &Values<'_>) -> Result<(), ApiError> {
        self.authorize_with(&self.scopes()?, values)
    }

    /// The same where the path has them all.
    pub fn authorize_by_path(&self) -> Result<(), ApiError> {
        self.authorize(&Values::of_path())
    }

    /// When a signed request arrived, by the server's clock; of others it is not noted.
    #[must_use]
    pub fn arrived(&self) -> Option<DateTime<Utc>> {
        if self.arrived.server_ms == NO_TIME.server_ms {
            return None;
        }
        DateTime::from_timestamp_millis(self.arrived.server_ms)
    }

    /// Checks that the caller has the scopes of another endpoint, for a path that may be either's.
    pub fn authorize_with(&self, scopes: &Template, values: &Values<'_>) -> Result<(), ApiError> {
        self.check_scopes(self.principal()?, scopes, values)
    }

    /// Whether the caller has scopes beside those of the endpoint. A caller without credentials has those of the role `anonymous`.
    pub fn is_allowed(&self, scopes: &Template, values: &Values<'_>) -> Result<bool, ApiError> {
        Ok(scopes.is_held(&self.principal()?.scopes, values, &self.path_values())?)
    }

    /// The scopes of the endpoint.
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

    /// The parameters of the path as values of scopes.
    fn path_values(&self) -> Values<'_> {
        let mut path = Values::of_path();
        for (name, value) in self.params() {
            path = path.text(name, value);
        }
        // The id of a queue, which is also that of a worker pool, may be in two segments.
        let has = |half| self.params().any(|(name, _)| name == half);
        if has("provisionerId") && has("workerType") {
            let queue = self.task_queue_text();
            path = path.text("workerPoolId", queue.clone()).text("taskQueueId", queue);
        }
        path
    }

    /// The parameters of the path in its order, by name.
    pub fn params(&self) -> impl Iterator<Item = (&str, &str)> {
        self.params.iter().flatten()
    }

    /// A parameter of the path as it is.
    pub fn text_param(&self, name: &str) -> &str {
        self.params().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    /// The values of a header.
    pub fn header_values(&self, name: &str) -> Vec<&HeaderValue> {
        self.head.headers.get_all(name).iter().collect()
    }

    /// A parameter of the path.
    fn param<T: FromStr<Err = InvalidId>>(&self, name: &str) -> Result<T, ApiError> {
        self.text_param(name)
            .parse()
            .map_err(|error| ApiError::arguments(format!("the path parameter `{name}`: {error}")))
    }

    /// The parameter `taskId`.
    pub fn task_id(&self) -> Result<TaskId, ApiError> {
        self.param("taskId")
    }

    /// The parameter `taskGroupId`.
    pub fn task_group_id(&self) -> Result<TaskGroupId, ApiError> {
        self.param("taskGroupId")
    }

    /// The parameter `runId`.
    pub fn run_id(&self) -> Result<RunId, ApiError> {
        self.param("runId")
    }

    /// The parameter `sessionId`.
    pub fn session_id(&self) -> Result<SessionId, ApiError> {
        self.param("sessionId")
    }

    /// The parameter `name`, of an artifact.
    pub fn artifact_name(&self) -> Result<ArtifactName, ApiError> {
        self.param("name")
    }

    /// The parameter `name`, of an object.
    pub fn object_name(&self) -> Result<ObjectName, ApiError> {
        self.param("name")
    }

    /// The queue that the path names, in one segment or in two, whether a queue can be called so or not.
    pub fn task_queue_text(&self) -> String {
        let mut params = self.params();
        match (params.next(), params.next()) {
            (Some(("provisionerId", provisioner)), Some((_, worker_type))) => format!("{provisioner}/{worker_type}"),
            _ => self.text_param("taskQueueId").to_owned(),
        }
    }

    /// The queue that the path names.
    pub fn task_queue_id(&self) -> Result<TaskQueueId, ApiError> {
        let has_halves = self.params().any(|(name, _)| name == "workerType");
        let named = if has_halves { "parameters `provisionerId` and `workerType`" } else { "parameter `taskQueueId`" };
        let invalid = |error: InvalidId| ApiError::arguments(format!("the path {named}: {error}"));
        self.task_queue_text().parse().map_err(invalid)
    }

    /// The queue that the path names, of an operation with no other argument. Checks the scopes, and refuses any query string.
    pub fn only_task_queue(&self) -> Result<TaskQueueId, ApiError> {
        self.authorize_by_path()?;
        let queue = self.task_queue_id()?;
        self.no_query()?;
        Ok(queue)
    }

    /// The queue of a path that ends like another one: in `/task-queues/acme/counts`, which is no count because `acme`
    /// is no queue, it is the one whose worker type is called `counts`.
    pub fn queue_ending_in(&self, word: &str) -> Option<String> {
        let mut params = self.params();
        let (Some((name, provisioner)), None) = (params.next(), params.next()) else { return None };
        (name == "taskQueueId" && !provisioner.contains('/')).then(|| format!("{provisioner}/{word}"))
    }

    /// The parameter `provisionerId`.
    pub fn provisioner_id(&self) -> Result<ProvisionerId, ApiError> {
        self.param("provisionerId")
    }

    /// The parameter `workerType`, of a queue that is to be made.
    pub fn worker_type(&self) -> Result<WorkerType, ApiError> {
        self.param("workerType")
    }

    /// The queue whose halves the path has as two parameters. None if no queue can be called so: there is nothing of it.
    pub fn queue_of_halves(&self) -> Result<Option<TaskQueueId>, ApiError> {
        self.provisioner_id()?;
        self.param::<WorkerTypeInPath>("workerType")?;
        Ok(self.task_queue_text().parse().ok())
    }

    /// The parameter `workerGroup`.
    pub fn worker_group(&self) -> Result<WorkerGroup, ApiError> {
        self.param("workerGroup")
    }

    /// The parameter `workerId`.
    pub fn worker_id(&self) -> Result<WorkerId, ApiError> {
        self.param("workerId")
    }

    /// The parameters of the query string, of which only these are accepted. A bewit is not among them.
    pub fn query(&self, names: &[&str]) -> Result<Vec<(String, String)>, ApiError> {
        let unsigned = split_url(self.target());
        let target = unsigned.as_ref().map_or_else(|| self.target(), |url| url.resource.as_ref());
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let query = Query::parse(query).map_err(|error| ApiError::arguments(error.to_string()))?;
        if let Some(name) = query.names().find(|name| !names.contains(name)) {
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(ApiError::arguments(format!(
                "the query parameter `{name}` is not known here; those that are: {known}"
            )));
        }
        Ok(query.into_pairs())
    }

    /// How much of a list the query string requests, and the token of the position to continue from.
    pub fn page_and_token(&self) -> Result<(u16, Option<String>), ApiError> {
        let (mut limit, mut token) = (PAGE_MAX, None);
        for (name, value) in self.query(&["limit", "continuationToken"])? {
            if name == "limit" {
                let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                // More than fits a page is as much as fits.
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

    /// The page of a list of tasks that the query string requests.
    pub fn page(&self) -> Result<Cursor, ApiError> {
        let (limit, token) = self.page_and_token()?;
        let after = token.map(|token| token.parse().map_err(|_| ApiError::unknown_token())).transpose()?;
        Ok(Cursor { after, limit })
    }

    /// Refuses any query string.
    pub fn no_query(&self) -> Result<(), ApiError> {
        self.query(&[]).map(drop)
    }

    /// The body as this type.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ApiError> {
        if !is_json(&self.head.headers) {
            return Err(ApiError::new(
                ErrorCode::MalformedPayload,
                "the body must be JSON and be sent with Content-Type: application/json",
            ));
        }
        json::check(&self.body).map_err(|error| {
            ApiError::new(ErrorCode::MalformedPayload, format!("the body is not acceptable JSON: {error}"))
        })?;
        let refused = |code, message| Err(ApiError::new(code, message));
        match self.body.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => {}
            // What serde derives for a structure would also take an array of its fields.
            Some(b'[') => {
                return refused(ErrorCode::InputValidationError, "the body must be a JSON object, and is an array");
            }
            _ => return refused(ErrorCode::MalformedPayload, "the body must be a JSON object"),
        }
        // What passed the check is JSON: whatever the parser calls its error, it is that the body does not fit.
        serde_json::from_slice(&self.body)
            .map_err(|error| ApiError::new(ErrorCode::InputValidationError, invalid::<T>(&self.body, &error)))
    }

    /// The body as this type; its default without a body.
    pub fn json_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, ApiError> {
        if self.body.is_empty() { Ok(T::default()) } else { self.json() }
    }
}

/// Names the field that is wrong: serde's message and the path to it.
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
