//! An endpoint declares an operation in the file of its handler. Routing and the document both use
//! the declaration.

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

type Answering = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// One type per area: the router's generic code is compiled once, and not for each of a hundred
/// operations.
type Handler<S> = Box<dyn Fn(Arc<S>, Arc<Call>) -> Answering + Send + Sync>;

/// `S` is the state of an area.
pub(super) struct Service<S> {
    /// Refuses requests before the body is read.
    pub(super) early_check: Option<Check>,
    pub(super) answer_max: fn(&S) -> Duration,
    pub(super) handler: Handler<S>,
}

pub struct Endpoint<S> {
    pub(super) declaration: Declaration,
    pub(super) service: Service<S>,
}

impl<S: 'static> Endpoint<S> {
    /// GET and HEAD. `name` is the operation's name in the API.
    pub fn get<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Get, name, handler)
    }

    pub fn post<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Post, name, handler)
    }

    pub fn put<H, F>(name: &'static str, handler: H) -> Self
    where
        H: Fn(Arc<S>, Arc<Call>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self::new(Method::Put, name, handler)
    }

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

    /// Requires scopes of an authenticated caller. The handler calls [`Call::authorize`] with the
    /// values that are not in the path.
    #[must_use]
    pub fn scopes(self, scopes: Template) -> Self {
        self.declared(|declaration| Declaration { access: Access::Scopes(scopes), ..declaration })
    }

    /// Checks scopes that need only the path, before the body is read. The handler still checks
    /// all.
    #[must_use]
    pub fn early_check(self, check: Check) -> Self {
        Self { service: Service { early_check: Some(check), ..self.service }, ..self }
    }

    /// Uses no pooled connection. By default a GET takes a read slot.
    #[must_use]
    pub fn no_pool(self) -> Self {
        self.declared(|declaration| Declaration { pool_use: PoolUse::None, ..declaration })
    }

    /// Only reads, although its method is not GET.
    #[must_use]
    pub fn reads(self) -> Self {
        self.declared(|declaration| Declaration { pool_use: PoolUse::Read, ..declaration })
    }

    #[must_use]
    pub fn secret_body(self) -> Self {
        self.declared(|declaration| Declaration { has_secret_body: true, ..declaration })
    }

    /// Builds responses off the event loop.
    #[must_use]
    pub fn large_answer(self) -> Self {
        self.declared(|declaration| Declaration { has_large_answer: true, ..declaration })
    }

    /// Allows a full-size body without credentials.
    #[must_use]
    pub fn long_lists(self) -> Self {
        self.declared(|declaration| Declaration { anonymous_body_max: BODY_MAX, ..declaration })
    }

    /// Allows a larger body without credentials, because it quotes the head of another service's
    /// request.
    #[must_use]
    pub fn others_head(self) -> Self {
        self.declared(|declaration| Declaration { anonymous_body_max: OTHERS_HEAD_MAX, ..declaration })
    }

    #[must_use]
    pub fn answers_within(self, answer_max: fn(&S) -> Duration) -> Self {
        Self { service: Service { answer_max, ..self.service }, ..self }
    }

    /// Declares a wait, and a time limit that includes it. The handler waits in [`Call::wait_for`],
    /// which checks the caller again.
    #[must_use]
    pub fn waits(self, answer_max: fn(&S) -> Duration) -> Self {
        self.answers_within(answer_max).declared(|declaration| Declaration { waits: true, ..declaration })
    }

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
