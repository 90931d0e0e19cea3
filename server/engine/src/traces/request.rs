//! Spans of requests, of the ticks that commit their changes, and of passes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use tenure_domain::traces::SpanContext;
use uuid::Uuid;

use super::otlp::Span;
use super::{is_on, new_span, samples, send};
use crate::clock::real_now;

/// Requests that the span of a tick links to.
const LINKS_MAX: usize = 128;
/// Methods by name in spans. Others may be long, and anyone may send them.
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
/// In place of other methods, as OpenTelemetry specifies.
const OTHER_METHOD: &str = "_OTHER";
/// From this status on, a request failed because of the server.
const SERVER_ERROR: u16 = 500;

tokio::task_local! {
    static CURRENT: Arc<RequestSpan>;
}

/// A request whose trace is recorded, or whose caller has a span.
#[derive(Debug)]
pub struct RequestSpan {
    context: SpanContext,
    caller: Option<SpanContext>,
    /// True if the id of its trace is a recorded one.
    is_sampled: bool,
    /// Set by [`honour_caller`], or from the beginning.
    is_recorded: AtomicBool,
    began: DateTime<Utc>,
    /// The last tick that committed for this request.
    tick: Mutex<Option<SpanContext>>,
}

/// Facts about an answered request.
#[derive(Debug, Clone, Copy)]
pub struct EndedRequest<'a> {
    pub operation: &'static str,
    pub method: &'a str,
    pub status: u16,
    pub took: Duration,
    /// Time that the caller asked to wait.
    pub waited: Duration,
}

impl RequestSpan {
    /// `caller` has the same trace id; `own` is random. Returns none if nothing would be recorded.
    ///
    /// Until [`honour_caller`], the span is recorded only if the server would also record a trace
    /// with the id `own`. So callers without credentials, who choose `trace`, cannot have all of
    /// their requests recorded and fill the queue of spans.
    #[must_use]
    pub fn begin(trace: Uuid, caller: Option<SpanContext>, own: Uuid) -> Option<Arc<Self>> {
        let is_sampled = samples(trace);
        if !is_on() || !(is_sampled || caller.is_some()) {
            return None;
        }
        let (context, began) = (new_span(trace), real_now());
        let is_recorded = AtomicBool::new(is_sampled && samples(own));
        Some(Arc::new(Self { context, caller, is_sampled, is_recorded, began, tick: Mutex::default() }))
    }

    /// Runs the request, so that operations within find its span.
    pub async fn scope<F: Future>(self: &Arc<Self>, request: F) -> F::Output {
        CURRENT.scope(Arc::clone(self), request).await
    }

    pub fn end(&self, request: EndedRequest<'_>) {
        if !self.is_recorded() {
            return;
        }
        let EndedRequest { operation, method, status, took, waited } = request;
        let mut span = Span::new(self.context, operation, self.began, self.began + time_delta(took))
            .of_request()
            .with("http.request.method", bounded(method))
            .with("http.response.status_code", i64::from(status))
            .linked(*self.tick());
        if !waited.is_zero() {
            span = span.with("tenure.waited_seconds", waited.as_secs_f64());
        }
        if let Some(caller) = self.caller {
            span = span.child_of(caller);
        }
        if status >= SERVER_ERROR {
            span = span.failed(format!("status {status}"));
        }
        send(span);
    }

    fn is_recorded(&self) -> bool {
        self.is_recorded.load(Ordering::Relaxed)
    }

    fn tick(&self) -> MutexGuard<'_, Option<SpanContext>> {
        self.tick.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bounded(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or(OTHER_METHOD)
}

/// Returns the span of the request that this code runs for, if it is recorded.
pub(crate) fn current() -> Option<Arc<RequestSpan>> {
    if !is_on() {
        return None;
    }
    CURRENT.try_with(|span| span.is_recorded().then(|| Arc::clone(span))).ok().flatten()
}

/// Records the request that this code runs for if its caller chose a recorded trace. Call it once
/// the caller has shown credentials.
pub fn honour_caller() {
    if is_on() {
        // Outside a request there is no span.
        let _ = CURRENT.try_with(|span| span.is_recorded.store(span.is_sampled, Ordering::Relaxed));
    }
}

/// Returns the span that a new task links to: the caller's span, or else the request's.
pub(crate) fn link_of_new_task() -> Option<SpanContext> {
    if !is_on() {
        return None;
    }
    CURRENT.try_with(|span| span.caller.or(span.is_recorded().then_some(span.context))).ok().flatten()
}

/// The span of a tick, recorded once all its operations have read their rows, if it committed for
/// a recorded request.
#[derive(Debug)]
pub(crate) struct TickSpan {
    context: SpanContext,
    began: DateTime<Utc>,
    ended: DateTime<Utc>,
    statements: usize,
    requests: Mutex<Vec<SpanContext>>,
}

/// None if traces are off.
pub(crate) type TickTrace = Option<Arc<TickSpan>>;

/// Begins the span of a tick that has just committed.
pub(crate) fn begin_tick(started: Instant, statements: usize) -> TickTrace {
    if !is_on() {
        return None;
    }
    let (began, ended) = times_since(started);
    let context = new_span(Uuid::new_v4());
    Some(Arc::new(TickSpan { context, began, ended, statements, requests: Mutex::default() }))
}

impl TickSpan {
    /// Links the tick and a request whose change it committed.
    pub(crate) fn link(&self, request: &RequestSpan) {
        *request.tick() = Some(self.context);
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.context);
    }
}

impl Drop for TickSpan {
    fn drop(&mut self) {
        let requests = std::mem::take(self.requests.get_mut().unwrap_or_else(PoisonError::into_inner));
        if requests.is_empty() {
            return;
        }
        let span = Span::new(self.context, "tick", self.began, self.ended)
            .with("tenure.statements", number(self.statements))
            .with("tenure.recorded_requests", number(requests.len()))
            .linked(requests.into_iter().take(LINKS_MAX));
        send(span);
    }
}

/// Records a pass that found something, if its new trace is.
pub(crate) fn record_pass(name: &str, started: Instant, found: usize, done: usize) {
    if !is_on() || found + done == 0 {
        return;
    }
    let trace = Uuid::new_v4();
    if samples(trace) {
        let (began, ended) = times_since(started);
        let span = Span::new(new_span(trace), format!("pass {name}"), began, ended)
            .with("tenure.found", number(found))
            .with("tenure.done", number(done));
        send(span);
    }
}

fn times_since(started: Instant) -> (DateTime<Utc>, DateTime<Utc>) {
    let ended = real_now();
    (ended - time_delta(started.elapsed()), ended)
}

fn time_delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or_default()
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_method_takes_no_room_in_a_span() {
        assert_eq!(["GET", "TRACE"].map(bounded), ["GET", "TRACE"]);
        assert_eq!(["", "get", &"X".repeat(100_000)].map(bounded), [OTHER_METHOD; 3]);
    }
}
