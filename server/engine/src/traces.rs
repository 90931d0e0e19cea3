//! Traces of tasks, requests, ticks and passes, sent to a collector as OTLP.
//!
//! Nothing is stored for them: [`tenure_domain::traces`] has the ids. Spans of a task are made when
//! it is created and when a run ends, from the rows of these statements. All servers of a process
//! share one queue of spans, as they share the metrics. Without a collector every function here
//! returns at once and allocates nothing.

mod export;
mod otlp;
mod request;
mod task;

use std::sync::OnceLock;

use metrics::Counter;
use tenure_domain::traces::{Sampler, SpanContext, TaskSpan};
use tokio::sync::mpsc;
use uuid::Uuid;

pub use export::Exporter;
pub use request::{EndedRequest, RequestSpan, honour_caller};
pub(crate) use request::{TickSpan, TickTrace, begin_tick, current, link_of_new_task, record_pass};
pub use task::TracedRun;
pub(crate) use task::{record_created, record_ended};

use otlp::Span;

/// Spans that wait for the exporter; more are dropped.
const WAITING_MAX: usize = 4_096;

static TRACES: OnceLock<Traces> = OnceLock::new();

struct Traces {
    sampler: Sampler,
    spans: mpsc::Sender<Span>,
    dropped: Counter,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    /// The URL that spans are posted to.
    pub url: String,
    /// The recorded part of all traces, from 0 to 1.
    pub ratio: f64,
}

/// Starts to record traces. Returns none if another server of this process has; its spans and those
/// of this server then go to the same collector.
#[must_use]
pub fn start(settings: &TraceSettings, server: &str) -> Option<Exporter> {
    let (spans, inbox) = mpsc::channel(WAITING_MAX);
    let traces = Traces { sampler: Sampler::new(settings.ratio), spans, dropped: counter("dropped") };
    TRACES.set(traces).ok()?;
    Some(Exporter::start(settings.url.clone(), server, inbox))
}

/// Makes the first increment of the counters visible.
pub fn begin_at_zero() {
    for outcome in ["sent", "dropped", "failed"] {
        counter(outcome).absolute(0);
    }
}

fn counter(outcome: &'static str) -> Counter {
    metrics::counter!("tenure_trace_spans_total", "outcome" => outcome)
}

#[must_use]
pub fn is_on() -> bool {
    TRACES.get().is_some()
}

/// True if spans of the trace are recorded.
fn samples(trace: Uuid) -> bool {
    TRACES.get().is_some_and(|traces| traces.sampler.samples(trace))
}

/// Returns the `traceparent` for the process that works on a run; none without a collector.
#[must_use]
pub fn traceparent_of_run(task: Uuid, run: u16) -> Option<String> {
    let traces = TRACES.get()?;
    Some(TaskSpan::Run(run).of(task).to_traceparent(traces.sampler.samples(task)))
}

fn send(span: Span) {
    if let Some(traces) = TRACES.get()
        && traces.spans.try_send(span).is_err()
    {
        traces.dropped.increment(1);
    }
}

/// Returns a span of a trace that has no ids of its own.
fn new_span(trace: Uuid) -> SpanContext {
    // The fixed bits of a UUID keep it from being 0.
    SpanContext { trace, span: Uuid::new_v4().as_u64_pair().1 }
}
