//! An endpoint: all that is declared of one operation of the API, in the file of its handler. Requests are served by it,
//! and the document is made from it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use axum::routing::MethodFilter;

use super::app::App;
use super::body::{ANONYMOUS_BODY_MAX, BODY_MAX, OTHERS_HEAD_MAX};
use super::budget::Share;
use super::call::{Call, Check};
use super::docs::Sample;
use super::docs::operation::Operation;
use super::error::ApiError;
use super::scopes::Template;

/// How long an answer may take unless its endpoint sets another time. Longer than a statement may take and than a batch
/// waits for a database that went silent: what is still unanswered then waits for something dead.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, and HEAD.
    Get,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
}

impl Method {
    /// In lower case, as OpenAPI has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }

    /// As the router knows it.
    #[must_use]
    pub fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// Who may call an operation, and how that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every caller: there is nothing to be authorized, or the handler authenticates by itself. Needs no database.
    Open,
    /// Callers with these scopes. They are authenticated before the handler is called.
    Scopes(Template),
    /// Callers with a signed URL of the poll API.
    SignedUrl,
    /// Callers with a signed URL of an artifact's bytes.
    ArtifactUrl,
    /// The same, or a plain URL of what every caller may read.
    PlainArtifactUrl,
}

/// How an operation uses the connection pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolUse {
    /// Not at all: its statements share a batch, or it is answered from memory or by a session of its own.
    None,
    /// It reads. Takes a read slot.
    Read,
    /// It writes. Takes a read slot only for callers without credentials, who are mostly refused after a read.
    Write,
}

/// An operation's answer on its way.
type Answering = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// An operation's handler, whichever it is. One type for all: the router's machinery is then compiled once, and not once
/// for each of a hundred operations.
type Handler = Box<dyn Fn(App, Arc<Call>) -> Answering + Send + Sync>;

/// Adds to the description of an operation what only this one has.
type Describe = Box<dyn Fn(Operation, &Sample) -> Operation + Send + Sync>;

/// The declaration of an operation.
pub struct Endpoint {
    /// What the API calls the operation.
    pub name: &'static str,
    /// The method that it is called with.
    pub method: Method,
    /// Who may call it.
    pub access: Access,
    /// How it uses the connection pool.
    pub(super) pool_use: PoolUse,
    /// What can be refused before the body is read.
    pub(super) early_check: Option<Check>,
    /// Whether its body has secrets, which an error must not repeat: errors end up in logs.
    pub(super) has_secret_body: bool,
    /// Whether its answers can be large.
    pub(super) has_large_answer: bool,
    /// How large the body of a caller without credentials may be, in bytes.
    pub(super) anonymous_body_max: usize,
    answer_max: fn(&App) -> Duration,
    pub(super) waits: bool,
    tag: &'static str,
    summary: &'static str,
    describe: Describe,
    handler: Option<Handler>,
}

impl Endpoint {
    /// An operation that is called with GET, or HEAD. `name` is what the API calls it; the handler is a function from
    /// the application and the call to an answer.
    pub fn get<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Get, name, Access::Open).served_by(handler)
    }

    /// An operation that is called with POST.
    pub fn post<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Post, name, Access::Open).served_by(handler)
    }

    /// An operation that is called with PUT.
    pub fn put<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Put, name, Access::Open).served_by(handler)
    }

    /// An operation that is called with DELETE.
    pub fn delete<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Delete, name, Access::Open).served_by(handler)
    }

    /// An operation of a path whose handler checks the method itself ([`super::routes::Routes::signed`]).
    #[must_use]
    pub fn signed(method: Method, name: &'static str, access: Access) -> Self {
        Self::new(method, name, access)
    }

    fn new(method: Method, name: &'static str, access: Access) -> Self {
        Self {
            name,
            method,
            access,
            pool_use: if method == Method::Get { PoolUse::Read } else { PoolUse::Write },
            early_check: None,
            has_secret_body: false,
            has_large_answer: false,
            anonymous_body_max: ANONYMOUS_BODY_MAX,
            answer_max: |_| ANSWER_MAX,
            waits: false,
            tag: "",
            summary: "",
            describe: Box::new(|operation, _| operation),
            handler: None,
        }
    }

    fn served_by<H, F>(self, handler: H) -> Self
    where
        H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self { handler: Some(Box::new(move |app, call| Box::pin(handler(app, call)))), ..self }
    }

    /// Its scopes. The caller is authenticated, and the handler calls [`Call::authorize`] with the values that the path
    /// does not have.
    #[must_use]
    pub fn scopes(self, scopes: Template) -> Self {
        Self { access: Access::Scopes(scopes), ..self }
    }

    /// Checks this before the body is read: scopes that need no more than the path. The handler checks all that is
    /// needed.
    #[must_use]
    pub fn early_check(self, check: Check) -> Self {
        Self { early_check: Some(check), ..self }
    }

    /// Needs no connection of the pool. Without this a GET takes a read slot.
    #[must_use]
    pub fn no_pool(self) -> Self {
        Self { pool_use: PoolUse::None, ..self }
    }

    /// Only reads, though its method is not GET.
    #[must_use]
    pub fn reads(self) -> Self {
        Self { pool_use: PoolUse::Read, ..self }
    }

    /// True if a request of this share needs a read slot.
    #[must_use]
    pub(super) fn takes_read_slot(&self, share: Share) -> bool {
        match self.pool_use {
            PoolUse::None => false,
            PoolUse::Read => true,
            PoolUse::Write => share == Share::Anonymous,
        }
    }

    /// Its body has secrets.
    #[must_use]
    pub fn secret_body(self) -> Self {
        Self { has_secret_body: true, ..self }
    }

    /// Makes its answers apart from the event loop, because they can be large.
    #[must_use]
    pub fn large_answer(self) -> Self {
        Self { has_large_answer: true, ..self }
    }

    /// Its body is a long list, which may also come from callers without credentials.
    #[must_use]
    pub fn long_lists(self) -> Self {
        Self { anonymous_body_max: BODY_MAX, ..self }
    }

    /// Its body has in it the head of a request to another service, which asks without credentials.
    #[must_use]
    pub fn others_head(self) -> Self {
        Self { anonymous_body_max: OTHERS_HEAD_MAX, ..self }
    }

    /// How long its answer may take.
    #[must_use]
    pub fn answers_within(self, answer_max: fn(&App) -> Duration) -> Self {
        Self { answer_max, ..self }
    }

    /// Waits for something, for up to this long with its answer. The handler does so in [`Call::wait_for`], which
    /// checks the caller again.
    #[must_use]
    pub fn waits(self, answer_max: fn(&App) -> Duration) -> Self {
        Self { answer_max, waits: true, ..self }
    }

    /// Its description in the document: its tag, a summary, and the rest.
    #[must_use]
    pub fn described(
        self,
        tag: &'static str,
        summary: &'static str,
        describe: impl Fn(Operation, &Sample) -> Operation + Send + Sync + 'static,
    ) -> Self {
        Self { tag, summary, describe: Box::new(describe), ..self }
    }

    /// Whether its callers are authenticated before the handler is called.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        matches!(self.access, Access::Scopes(_))
    }

    /// Its description, with examples made of the sample.
    #[must_use]
    pub fn describe(&self, sample: &Sample) -> Operation {
        let bare = Operation::new(self.name, self.tag, self.summary, self.access, self.anonymous_body_max);
        (self.describe)(bare, sample)
    }

    /// How long an answer of this server may take.
    pub(super) fn answer_max(&self, app: &App) -> Duration {
        (self.answer_max)(app)
    }

    /// Calls the handler.
    pub(super) async fn handle(&self, app: App, call: Arc<Call>) -> Result<Response, ApiError> {
        match &self.handler {
            Some(handler) => handler(app, call).await,
            None => Err(ApiError::internal("an endpoint has no handler")),
        }
    }
}
