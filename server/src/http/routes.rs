//! A route table with the declarations of its endpoints: the OpenAPI document is made from the same lines that serve
//! requests, so that neither can have what the other lacks.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::MethodRouter;
use tokio::time::Instant;

use super::answers;
use super::app::App;
use super::call::Call;
use super::endpoint::Endpoint;
use super::error::ApiError;
use super::heavy::LARGE_MIN;
use super::timer::ConnectionTimer;

/// One line of the table.
#[derive(Clone)]
pub struct Route {
    /// The whole path.
    pub path: String,
    /// What is served there.
    pub endpoint: Arc<Endpoint>,
}

/// Routes, in the order in which they were added.
#[derive(Default)]
pub struct Routes {
    /// By their whole paths: a router inside another one would give each request a shortened path, and box it twice more.
    methods: Vec<(String, MethodRouter<App>)>,
    list: Vec<Route>,
}

impl Routes {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path with its endpoints, one for a method.
    #[must_use]
    pub fn route(self, path: &str, endpoints: impl Into<Vec<Endpoint>>) -> Self {
        let endpoints: Vec<Arc<Endpoint>> = endpoints.into().into_iter().map(Arc::new).collect();
        let add = |methods: MethodRouter<App>, endpoint: &Arc<Endpoint>| {
            let filter = endpoint.method.filter();
            let endpoint = Arc::clone(endpoint);
            methods
                .on(filter, move |State(app): State<App>, request: Request| serve(Arc::clone(&endpoint), app, request))
        };
        let methods = endpoints.iter().fold(MethodRouter::new(), add);
        self.add(path, endpoints, methods)
    }

    /// Adds a path with a handler that checks the method itself; it serves these endpoints and refuses every other method
    /// in its own way.
    #[must_use]
    pub fn signed<H, T>(self, path: &str, endpoints: impl Into<Vec<Endpoint>>, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        let endpoints: Vec<Arc<Endpoint>> = endpoints.into().into_iter().map(Arc::new).collect();
        // Although one handler serves them all, the router needs them: it lists them in `Allow`.
        let methods = endpoints.iter().fold(MethodRouter::new(), |methods: MethodRouter<App>, endpoint| {
            methods.on(endpoint.method.filter(), handler.clone())
        });
        self.add(path, endpoints, methods.fallback(handler))
    }

    fn add(mut self, path: &str, endpoints: Vec<Arc<Endpoint>>, methods: MethodRouter<App>) -> Self {
        // A parameter that takes slashes is one like any other in the document.
        let shown = path.replace("{*", "{");
        self.list.extend(endpoints.into_iter().map(|endpoint| Route { path: shown.clone(), endpoint }));
        self.methods.push((path.to_owned(), methods));
        self
    }

    /// Adds another table below a path.
    #[must_use]
    pub fn nest(mut self, path: &str, inner: Self) -> Self {
        let whole = |inner: &str| format!("{path}{inner}");
        self.methods.extend(inner.methods.into_iter().map(|(path, methods)| (whole(&path), methods)));
        self.list.extend(inner.list.into_iter().map(|route| Route { path: whole(&route.path), ..route }));
        self
    }

    /// Adds the lines of another table.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.methods.extend(other.methods);
        self.list.extend(other.list);
        self
    }

    /// What the document is made from.
    #[must_use]
    pub fn list(&self) -> &[Route] {
        &self.list
    }

    /// What serves requests.
    pub fn into_router(self) -> Router<App> {
        self.methods.into_iter().fold(Router::new(), |router, (path, methods)| router.route(&path, methods))
    }
}

async fn serve(endpoint: Arc<Endpoint>, app: App, request: Request) -> Response {
    let call = match Call::read(&app, Arc::clone(&endpoint), request).await {
        Ok(call) => Arc::new(call),
        Err(refused) => return refused,
    };
    let share = call.share();
    let size = if endpoint.has_large_answer { LARGE_MIN } else { call.body.len() };
    let answering = async {
        let _slot = if endpoint.takes_read_slot(share) { Some(app.read_slots.take(share).await?) } else { None };
        let operation = endpoint.handle(Arc::clone(&app), Arc::clone(&call));
        app.heavy.answer(share, size, operation).await
    };
    let until = Instant::now() + endpoint.answer_max(&app);
    let waiting = match &call.connection {
        Some(connection) => connection.timer().wait_until(until),
        None => ConnectionTimer::default().wait_until(until),
    };
    let answered = tokio::select! {
        biased;
        answered = answering => answered,
        () = waiting => Err(ApiError::no_answer(endpoint.name)),
    };
    let mut response = match answered {
        Ok(response) => {
            debug_assert!(
                call.has_waited() || !endpoint.waits,
                "{} answers after a wait without a check",
                endpoint.name
            );
            response
        }
        Err(error) => error.response(&call),
    };
    answers::note_share(&mut response, share);
    response
}
