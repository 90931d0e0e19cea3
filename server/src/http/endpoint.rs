//! An endpoint: all that is declared of one operation of the API, in the file of its handler. Requests are served by it,
//! and the document is made from its declaration.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;

use super::access::Access;
use super::body::{BODY_MAX, OTHERS_HEAD_MAX};
use super::call::{Call, Check};
use super::declaration::{ANSWER_MAX, Declaration, Method, PoolUse};
use super::docs::operation::Operation;
use super::docs::sample::Sample;
use super::error::ApiError;
use super::scopes::Template;

/// An operation's answer on its way.
type Answering = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// An operation's handler, whichever it is. One type for an area: the router's machinery is then compiled once, and not
/// once for each of a hundred operations.
type Handler<S> = Box<dyn Fn(Arc<S>, Arc<Call>) -> Answering + Send + Sync>;

/// Serves an operation with the state `S` of its area.
pub(super) struct Service<S> {
    /// What can be refused before the body is read.
    pub(super) early_check: Option<Check>,
    /// How long an answer of this server may take.
    pub(super) answer_max: fn(&S) -> Duration,
    /// Makes the answer.
    pub(super) handler: Handler<S>,
}

/// An operation of an area with the state `S`.
pub struct Endpoint<S> {
    pub(super) declaration: Declaration,
    pub(super) service: Service<S>,
}

impl<S: 'static> Endpoint<S> {
    /// An operation that is called with GET, or HEAD. `name` is what the API calls it; the handler is a function from
    /// the state and the call to an answer.
    pub fn get<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Get, name, handler)
    }

    /// An operation that is called with POST.
    pub fn post<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Post, name, handler)
    }

    /// An operation that is called with PUT.
    pub fn put<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Put, name, handler)
    }

    /// An operation that is called with DELETE.
    pub fn delete<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Delete, name, handler)
    }

    fn new<H, F>(method: Method, name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let handler: Handler<S> = Box::new(move |state, call| Box::pin(handler(state, call)));
        Self {
            declaration: Declaration::new(method, name, Access::Open),
            service: Service { early_check: None, answer_max: |_| ANSWER_MAX, handler },
        }
    }

    fn declared(self, declare: impl FnOnce(Declaration) -> Declaration) -> Self {
        Self { declaration: declare(self.declaration), ..self }
    }

    /// Its scopes. The caller is authenticated, and the handler calls [`Call::authorize`] with the values that the path
    /// does not have.
    #[must_use]
    pub fn scopes(self, scopes: Template) -> Self {
        self.declared(|declaration| Declaration { access: Access::Scopes(scopes), ..declaration })
    }

    /// Checks this before the body is read: scopes that need no more than the path. The handler checks all that is
    /// needed.
    #[must_use]
    pub fn early_check(self, check: Check) -> Self {
        Self { service: Service { early_check: Some(check), ..self.service }, ..self }
    }

    /// Needs no connection of the pool. Without this a GET takes a read slot.
    #[must_use]
    pub fn no_pool(self) -> Self {
        self.declared(|declaration| Declaration { pool_use: PoolUse::None, ..declaration })
    }

    /// Only reads, though its method is not GET.
    #[must_use]
    pub fn reads(self) -> Self {
        self.declared(|declaration| Declaration { pool_use: PoolUse::Read, ..declaration })
    }

    /// Its body has secrets.
    #[must_use]
    pub fn secret_body(self) -> Self {
        self.declared(|declaration| Declaration { has_secret_body: true, ..declaration })
    }

    /// Makes its answers apart from the event loop, because they can be large.
    #[must_use]
    pub fn large_answer(self) -> Self {
        self.declared(|declaration| Declaration { has_large_answer: true, ..declaration })
    }

    /// Its body is a long list, which may also come from callers without credentials.
    #[must_use]
    pub fn long_lists(self) -> Self {
        self.declared(|declaration| Declaration { anonymous_body_max: BODY_MAX, ..declaration })
    }

    /// Its body has in it the head of a request to another service, which asks without credentials.
    #[must_use]
    pub fn others_head(self) -> Self {
        self.declared(|declaration| Declaration { anonymous_body_max: OTHERS_HEAD_MAX, ..declaration })
    }

    /// How long its answer may take.
    #[must_use]
    pub fn answers_within(self, answer_max: fn(&S) -> Duration) -> Self {
        Self { service: Service { answer_max, ..self.service }, ..self }
    }

    /// Waits for something, for up to this long with its answer. The handler does so in [`Call::wait_for`], which
    /// checks the caller again.
    #[must_use]
    pub fn waits(self, answer_max: fn(&S) -> Duration) -> Self {
        self.answers_within(answer_max).declared(|declaration| Declaration { waits: true, ..declaration })
    }

    /// Its description in the document: its tag, a summary, and the rest.
    #[must_use]
    pub fn described(
        self,
        tag: &'static str,
        summary: &'static str,
        describe: impl Fn(Operation, &Sample) -> Operation + Send + Sync + 'static,
    ) -> Self {
        self.declared(|declaration| declaration.described(tag, summary, describe))
    }
}
