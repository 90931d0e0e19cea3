//! A route table that knows what it holds: the OpenAPI document is made from the same lines that serve requests, so that
//! neither can have what the other lacks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter};

use super::answers::ForKnown;
use super::app::App;
use super::budget::Share;
use super::call::{Call, Check, Sender};
use super::error::ApiError;
use super::heavy::LARGE_MIN;

/// How long an answer may take, apart from a claimWork's waiting for work. Longer than a statement may take and than a
/// batch waits for a database that went silent: what is still unanswered then hangs on something dead.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long moving the manual clock may take.
const ADVANCE_MAX: Duration = Duration::from_secs(3600);

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The method in lower case, as OpenAPI has it.
    pub method: &'static str,
    /// The whole path.
    pub path: String,
    /// What the API calls the operation.
    pub name: &'static str,
    /// Whether the server finds out who calls.
    pub sender: Sender,
}

/// Routes, in the order in which they were added.
#[derive(Default)]
pub struct Routes {
    router: Router<App>,
    list: Vec<Route>,
}

impl Routes {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path with its methods.
    #[must_use]
    pub fn route(mut self, path: &str, methods: Methods) -> Self {
        let named = methods.named.into_iter();
        // A parameter that takes slashes is one like any other in the document.
        let shown = path.replace("{*", "{");
        self.list.extend(named.map(|(method, name, sender)| Route { method, path: shown.clone(), name, sender }));
        Self { router: self.router.route(path, methods.router), list: self.list }
    }

    /// Adds another table below a path.
    #[must_use]
    pub fn nest(mut self, path: &str, inner: Self) -> Self {
        let below = |route: Route| Route { path: format!("{path}{}", route.path), ..route };
        self.list.extend(inner.list.into_iter().map(below));
        Self { router: self.router.nest(path, inner.router), list: self.list }
    }

    /// Adds the lines of another table.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.list.extend(other.list);
        Self { router: self.router.merge(other.router), list: self.list }
    }

    /// What the document needs to know.
    #[must_use]
    pub fn list(&self) -> &[Route] {
        &self.list
    }

    /// What serves requests.
    pub fn into_router(self) -> Router<App> {
        self.router
    }
}

/// The methods of a path.
pub struct Methods {
    router: MethodRouter<App>,
    named: Vec<(&'static str, &'static str, Sender)>,
}

impl Methods {
    /// These and those.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.named.extend(other.named);
        Self { router: self.router.merge(other.router), named: self.named }
    }
}

/// An operation: its name, and how to serve it.
pub struct Operation {
    name: &'static str,
    sender: Sender,
    first: Option<Check>,
    is_large: bool,
    handler: AnyHandler,
}

impl Operation {
    /// Makes its answers apart from the event loop, because they can be large.
    #[must_use]
    pub fn large(self) -> Self {
        Self { is_large: true, ..self }
    }

    /// Checks this before the body is read: scopes that need no more than the path. The handler checks all that is needed.
    #[must_use]
    pub fn first(self, check: Check) -> Self {
        Self { first: Some(check), ..self }
    }
}

/// Serves the operation for GET, and for HEAD.
pub fn get(operation: Operation) -> Methods {
    with(MethodFilter::GET, "get", operation)
}

/// Serves the operation for POST.
pub fn post(operation: Operation) -> Methods {
    with(MethodFilter::POST, "post", operation)
}

/// Serves the operation for PUT.
pub fn put(operation: Operation) -> Methods {
    with(MethodFilter::PUT, "put", operation)
}

/// Serves the operation for DELETE.
pub fn delete(operation: Operation) -> Methods {
    with(MethodFilter::DELETE, "delete", operation)
}

fn with(filter: MethodFilter, method: &'static str, operation: Operation) -> Methods {
    let named = vec![(method, operation.name, operation.sender)];
    let operation = Arc::new(operation);
    let serve = move |State(app): State<App>, request: Request| serve(Arc::clone(&operation), app, request);
    Methods { router: axum::routing::on(filter, serve), named }
}

/// A handler that looks at the method itself; it serves these operations and refuses every other method in its own way.
pub fn signed<H, T>(named: &[(MethodFilter, &'static str, &'static str)], handler: H) -> Methods
where
    H: Handler<T, App>,
    T: 'static,
{
    // Although one handler serves them all, the router must know them: it says in `Allow` which there are.
    let serve = |router: MethodRouter<App>, filter| router.on(filter, handler.clone());
    let router = named.iter().map(|(filter, ..)| *filter).fold(MethodRouter::new(), serve);
    let named = named.iter().map(|&(_, method, name)| (method, name, Sender::Anybody)).collect();
    Methods { router: router.fallback(handler), named }
}

/// Turns an operation's handler, a function from the application and the call to an answer, into a method of a route.
/// `name` is what the API calls the operation.
pub fn on<H, F>(name: &'static str, handler: H) -> Operation
where
    H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    handle(name, Sender::Authenticated, handler)
}

/// The same for an operation that needs no scopes, or authenticates its callers by itself.
pub fn open<H, F>(name: &'static str, handler: H) -> Operation
where
    H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    handle(name, Sender::Anybody, handler)
}

/// An operation's answer on its way.
type Answering = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// An operation's handler, whichever it is. One type for all: the router's machinery is then compiled once, and not once
/// for each of a hundred operations.
type AnyHandler = Arc<dyn Fn(App, Arc<Call>) -> Answering + Send + Sync>;

fn handle<H, F>(name: &'static str, sender: Sender, handler: H) -> Operation
where
    H: Fn(App, Arc<Call>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    Operation {
        name,
        sender,
        first: None,
        is_large: false,
        handler: Arc::new(move |app, call| Box::pin(handler(app, call))),
    }
}

async fn serve(operation: Arc<Operation>, app: App, request: Request) -> Response {
    let Operation { name, sender, first, is_large, ref handler } = *operation;
    let call = match Call::read(&app, name, sender, first, request).await {
        Ok(call) => Arc::new(call),
        Err(refused) => return refused,
    };
    let patience = patience(name, &app);
    let size = if is_large { LARGE_MIN } else { call.body.len() };
    let answering = app.heavy.answer(size, handler(Arc::clone(&app), Arc::clone(&call)));
    let answering = tokio::time::timeout(patience, answering);
    let mut response = match answering.await.unwrap_or_else(|_| Err(ApiError::no_answer(name))) {
        Ok(response) => response,
        Err(error) => error.response(&call),
    };
    if call.share() == Share::Known {
        response.extensions_mut().insert(ForKnown);
    }
    response
}

/// How long a request may take. Moving the clock runs all that then falls due, however much that is.
fn patience(name: &'static str, app: &App) -> Duration {
    match name {
        "claimWork" => ANSWER_MAX + app.claim_work_wait,
        "advanceClock" => ADVANCE_MAX,
        _ => ANSWER_MAX,
    }
}
