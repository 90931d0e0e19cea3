//! A route table that serves requests and generates the OpenAPI document, so the two cannot
//! diverge.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::MethodRouter;
use tokio::time::Instant;

use super::access_log;
use super::answers;
use super::call::Call;
use super::connection::Connection;
use super::declaration::Declaration;
use super::endpoint::{Endpoint, Service};
use super::error::ApiError;
use super::heavy::LARGE_MIN;
use super::intake::Intake;
use super::timer::ConnectionTimer;

#[derive(Clone)]
pub struct Route {
    pub path: String,
    pub endpoint: Arc<Declaration>,
}

/// In insertion order.
pub struct Routes<S> {
    /// Keyed by full path: a nested router would copy a shortened path for each request and box it
    /// twice.
    methods: Vec<(String, MethodRouter<Arc<S>>)>,
    list: Vec<Route>,
}

impl<S> Default for Routes<S> {
    fn default() -> Self {
        Self { methods: Vec::new(), list: Vec::new() }
    }
}

impl<S: Send + Sync + 'static> Routes<S> {
    #[must_use]
    pub fn route(self, path: &str, endpoints: impl Into<Vec<Endpoint<S>>>) -> Self
    where
        S: AsRef<Intake>,
    {
        let endpoints: Vec<Endpoint<S>> = endpoints.into();
        let mut methods: MethodRouter<Arc<S>> = MethodRouter::new();
        let mut declarations = Vec::with_capacity(endpoints.len());
        for Endpoint { declaration, service } in endpoints {
            let (declaration, service) = (Arc::new(declaration), Arc::new(service));
            declarations.push(Arc::clone(&declaration));
            let filter = declaration.method.filter();
            methods = methods.on(filter, move |State(state): State<Arc<S>>, request: Request| {
                serve(declaration, service, state, request)
            });
        }
        self.add(path, declarations, methods)
    }

    /// For a handler that refuses other methods in its own format.
    #[must_use]
    pub fn signed<H, T>(self, path: &str, endpoints: impl Into<Vec<Declaration>>, handler: H) -> Self
    where
        H: Handler<T, Arc<S>>,
        T: 'static,
    {
        let endpoints: Vec<Arc<Declaration>> = endpoints.into().into_iter().map(Arc::new).collect();
        // One handler serves all methods, but the router lists them in `Allow`.
        let methods = endpoints.iter().fold(MethodRouter::new(), |methods: MethodRouter<Arc<S>>, endpoint| {
            methods.on(endpoint.method.filter(), Named { handler: handler.clone(), operation: endpoint.name })
        });
        self.add(path, endpoints, methods.fallback(handler))
    }

    fn add(mut self, path: &str, endpoints: Vec<Arc<Declaration>>, methods: MethodRouter<Arc<S>>) -> Self {
        let shown = path.replace("{*", "{");
        self.list.extend(endpoints.into_iter().map(|endpoint| Route { path: shown.clone(), endpoint }));
        self.methods.push((path.to_owned(), methods));
        self
    }

    #[must_use]
    pub fn nest(mut self, path: &str, inner: Self) -> Self {
        let whole = |inner: &str| format!("{path}{inner}");
        self.methods.extend(inner.methods.into_iter().map(|(path, methods)| (whole(&path), methods)));
        self.list.extend(inner.list.into_iter().map(|route| Route { path: whole(&route.path), ..route }));
        self
    }

    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.methods.extend(other.methods);
        self.list.extend(other.list);
        self
    }

    #[must_use]
    pub fn into_list(self) -> Vec<Route> {
        self.list
    }

    pub fn into_router(self, state: Arc<S>) -> Router {
        let routes = self.methods.into_iter();
        let router: Router<Arc<S>> = routes.fold(Router::new(), |router, (path, methods)| router.route(&path, methods));
        router.with_state(state)
    }
}

/// A handler that tells the metrics its operation.
#[derive(Clone)]
struct Named<H> {
    handler: H,
    operation: &'static str,
}

impl<H, T, S> Handler<T, S> for Named<H>
where
    H: Handler<T, S>,
{
    type Future = H::Future;

    fn call(self, request: Request, state: S) -> Self::Future {
        note_operation(&request, self.operation);
        self.handler.call(request, state)
    }
}

pub(super) fn note_operation(request: &Request, operation: &'static str) {
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.note_operation(operation);
    }
}

async fn serve<S: AsRef<Intake>>(
    endpoint: Arc<Declaration>,
    service: Arc<Service<S>>,
    state: Arc<S>,
    request: Request,
) -> Response {
    note_operation(&request, endpoint.name);
    // Not the method of `Arc` of the same name.
    let intake: &Intake = S::as_ref(&state);
    let call = match Call::read(intake, Arc::clone(&endpoint), service.early_check, request).await {
        Ok(call) => Arc::new(call),
        Err(mut refused) => {
            if access_log::is_on() {
                access_log::note(&mut refused, endpoint.name, None);
            }
            return refused;
        }
    };
    let share = call.share();
    let size = if endpoint.has_large_answer { LARGE_MIN } else { call.body.len() };
    let answering = async {
        let _slot = if endpoint.takes_read_slot(share) { Some(intake.read_slots.take(share).await?) } else { None };
        let operation = (service.handler)(Arc::clone(&state), Arc::clone(&call));
        intake.heavy.answer(share, size, operation).await
    };
    let until = Instant::now() + (service.answer_max)(&state);
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
        Err(error) => call.refuse(error),
    };
    answers::note_share(&mut response, share);
    if access_log::is_on() {
        access_log::note(&mut response, endpoint.name, call.client_id());
    }
    response
}
