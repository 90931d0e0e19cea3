//! An endpoint declares one operation of the API in the file of its handler. The server routes
//! requests by the declaration, and the document is generated from it.

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

/// Future of an operation's response.
type Answering = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// A type-erased handler. One type per area: the router's generic code is compiled once, and not
/// for each of a hundred operations.
type Handler<S> = Box<dyn Fn(Arc<S>, Arc<Call>) -> Answering + Send + Sync>;

/// Serves an operation; `S` is the state of its area.
pub(super) struct Service<S> {
    /// Refuses requests before the body is read.
    pub(super) early_check: Option<Check>,
    /// Time limit for a response.
    pub(super) answer_max: fn(&S) -> Duration,
    pub(super) handler: Handler<S>,
}

/// An operation of an area with the state `S`.
pub struct Endpoint<S> {
    pub(super) declaration: Declaration,
    pub(super) service: Service<S>,
}

impl<S: 'static> Endpoint<S> {
    /// A GET operation, which serves HEAD too. `name` is the operation's name in the API.
    pub fn get<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Get, name, handler)
    }

    /// A POST operation.
    pub fn post<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Post, name, handler)
    }

    /// A PUT operation.
    pub fn put<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Put, name, handler)
    }

    /// A DELETE operation.
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

    /// Sets the required scopes. The caller is authenticated first. The handler calls
    /// [`Call::authorize`] with the values that are not in the path.
    #[must_use]
    pub fn scopes(self, scopes: Template) -> Self {
        self.declared(|declaration| Declaration { access: Access::Scopes(scopes), ..declaration })
    }

    /// Adds a check of the scopes that depend on the path alone, before the body is read. The
    /// handler still checks all scopes.
    #[must_use]
    pub fn early_check(self, check: Check) -> Self {
        Self { service: Service { early_check: Some(check), ..self.service }, ..self }
    }

    /// Declares that the operation uses no pooled connection. Otherwise a GET takes a read slot.
    #[must_use]
    pub fn no_pool(self) -> Self {
        self.declared(|declaration| Declaration { pool_use: PoolUse::None, ..declaration })
    }

    /// Declares that the operation only reads, although its method is not GET.
    #[must_use]
    pub fn reads(self) -> Self {
        self.declared(|declaration| Declaration { pool_use: PoolUse::Read, ..declaration })
    }

    /// Declares that the body contains secrets.
    #[must_use]
    pub fn secret_body(self) -> Self {
        self.declared(|declaration| Declaration { has_secret_body: true, ..declaration })
    }

    /// Builds responses off the event loop, because they can be large.
    #[must_use]
    pub fn large_answer(self) -> Self {
        self.declared(|declaration| Declaration { has_large_answer: true, ..declaration })
    }

    /// Allows a full-size body without credentials, because it is a long list.
    #[must_use]
    pub fn long_lists(self) -> Self {
        self.declared(|declaration| Declaration { anonymous_body_max: BODY_MAX, ..declaration })
    }

    /// Allows a larger body without credentials, because it contains the head of another service's
    /// request.
    #[must_use]
    pub fn others_head(self) -> Self {
        self.declared(|declaration| Declaration { anonymous_body_max: OTHERS_HEAD_MAX, ..declaration })
    }

    /// Sets the time limit for a response.
    #[must_use]
    pub fn answers_within(self, answer_max: fn(&S) -> Duration) -> Self {
        Self { service: Service { answer_max, ..self.service }, ..self }
    }

    /// Declares that the operation waits for an event, and sets the time limit including the
    /// response. The handler waits in [`Call::wait_for`], which checks the caller again.
    #[must_use]
    pub fn waits(self, answer_max: fn(&S) -> Duration) -> Self {
        self.answers_within(answer_max).declared(|declaration| Declaration { waits: true, ..declaration })
    }

    /// Sets the description for the document.
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
