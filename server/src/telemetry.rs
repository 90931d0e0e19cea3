//! Logs and metrics.
//!
//! Logs go to standard error: one line per event, as JSON unless it is a terminal. `TENURE_LOG`
//! filters them with the syntax of `tracing`; `TENURE_LOG=info,access=info` shows every request.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::SettingError;
use crate::log_limiter::LogLimiter;

/// The variable with the filter of logs.
pub(crate) const FILTER: &str = "TENURE_LOG";
/// Omits access lines, and lines of two crates on errors that are reported anyway. Those of `lapin`
/// repeat what a broker sends.
pub(crate) const DEFAULT_FILTER: &str = "info,access=warn,sqlx=warn,lapin=off,rustls_platform_verifier=off";
/// In seconds.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 5.0, 30.0];
const MEMBERS: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 150.0, 200.0];
const STATEMENTS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
/// Few, since there is a histogram for each operation. In seconds.
const REQUEST_SECONDS: [f64; 8] = [0.002, 0.008, 0.032, 0.128, 0.512, 2.0, 8.0, 32.0];

/// Names of the batchers.
const OPERATIONS: [&str; 10] = [
    "create",
    "submit",
    "claim",
    "reclaim",
    "report",
    "status",
    "get_messages",
    "delete_messages",
    "renew_session",
    "append_live_log",
];

/// Shared by all servers of a process.
pub fn log_limiter() -> &'static LogLimiter {
    static LIMITER: OnceLock<LogLimiter> = OnceLock::new();
    LIMITER.get_or_init(LogLimiter::default)
}

/// Starts logging; later calls have no effect.
pub fn start_logs() -> Result<(), SettingError> {
    let filter = read_filter(given_filter())?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Otherwise a failing standard error is reported on standard error, which panics.
    let logs = logs.log_internal_errors(false);
    let limiter = log_limiter().clone();
    let started = if std::io::stderr().is_terminal() {
        logs.finish().with(limiter).try_init()
    } else {
        logs.json().finish().with(limiter).try_init()
    };
    // A process with several servers, such as a test, starts logging once.
    drop(started);
    Ok(())
}

pub(crate) fn given_filter() -> Option<OsString> {
    std::env::var_os(FILTER).filter(|text| !text.is_empty())
}

/// An empty filter would hide everything but errors, so it selects the default.
fn read_filter(given: Option<OsString>) -> Result<EnvFilter, SettingError> {
    let given = given.filter(|text| !text.is_empty()).unwrap_or_else(|| DEFAULT_FILTER.into());
    let wrong = |reason: String| {
        let fix = format!("{reason}; write levels without spaces, as in info,access=info");
        SettingError::new(FILTER, given.to_string_lossy(), fix)
    };
    let text = given.to_str().ok_or_else(|| wrong("it is not UTF-8".to_owned()))?;
    EnvFilter::try_new(text).map_err(|error| wrong(error.to_string()))
}

/// All servers of a process share the metrics.
#[must_use]
pub fn start_metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(install).clone()
}

fn install() -> PrometheusHandle {
    let full = |name: &str| Matcher::Full(name.to_owned());
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_members".to_owned()), &MEMBERS))
        .and_then(|builder| builder.set_buckets_for_metric(full("tenure_tick_statements"), &STATEMENTS))
        .and_then(|builder| builder.set_buckets_for_metric(full("tenure_http_request_seconds"), &REQUEST_SECONDS))
        .expect("the lists of buckets are not empty");
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    // No other recorder is ever installed.
    drop(metrics::set_global_recorder(recorder));
    describe();
    handle
}

/// Metrics of queues are described where they are published.
fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_histogram!("tenure_batch_members", "Requests handled by one statement");
    describe_gauge!("tenure_batch_waiting", "Requests waiting for their batch; for claim, workers waiting for work");
    describe_histogram!("tenure_batch_wait_seconds", "How long a request waited for its batch");
    describe_histogram!("tenure_batch_seconds", "How long a batch took");
    describe_histogram!("tenure_tick_statements", "Statements in one shared transaction");
    describe_histogram!("tenure_tick_seconds", "How long a shared transaction took");
    describe_counter!("tenure_batch_shed_total", "Requests refused because too many were waiting");
    describe_counter!(
        "tenure_blocking_path_total",
        "Requests on the blocking path: they met a locked row or were too large for a batch"
    );
    describe_counter!(
        "tenure_blocking_path_timeouts_total",
        "Requests on the blocking path that did not get a lock in time"
    );
    describe_counter!("tenure_claims_undelivered_total", "Claims requeued because their answer was not delivered");
    describe_counter!("tenure_endings_total", "Claims that ended without a report of their worker");
    describe_counter!("tenure_late_results_total", "Reports as completed of runs that were taken from their workers");
    describe_counter!("tenure_pass_total", "Items that background passes found and processed");
    describe_histogram!("tenure_pass_seconds", "How long a background pass took");
    describe_counter!("tenure_schedule_fires_total", "Times of schedules, by result");
    describe_histogram!("tenure_schedule_late_seconds", "How long after its time a schedule created its task");
    describe_admission();
    describe_subscriptions();
    describe_partitions();
    describe_counter!("tenure_duplicates_total", "New tasks whose unique name an unresolved task had");
    describe_counter!("tenure_backlog_refused_total", "New tasks refused because of the backlog limit of their queue");
    describe_counter!(
        "tenure_messages_total",
        "Messages received, updated, returned because their run was not claimed in time, deleted before their run \
         was claimed, or received for the tenth time"
    );
    describe_counter!(
        "tenure_polls_total",
        "Polls answered from memory, because nothing had changed, or by the database"
    );
    describe_counter!(
        "tenure_event_reads_total",
        "Reads of the event log, for all streams together or for one stream that lags"
    );
    describe_gauge!("tenure_event_streams", "Open event streams");
    describe_counter!("tenure_artifact_requests_total", "Uploads and downloads of artifacts' bytes");
    describe_counter!("tenure_artifact_bytes_total", "Artifact bytes received and sent");
    describe_gauge!("tenure_oldest_transaction_seconds", "Age of the oldest transaction in the database");
    describe_gauge!("tenure_counts_age_seconds", "Time since the gauges of queues were last read from the database");
    describe_gauge!("tenure_clock_skew_seconds", "How far the database's clock is ahead of this machine's");
    describe_counter!("tenure_enqueued_refused_total", "Tasks that were enqueued from SQL and refused");
    describe_gauge!("tenure_problems", "Problems that need somebody, by kind; 0 if there is none");
    describe_counter!("tenure_trace_spans_total", "Spans of traces, by what became of them");
    describe_waiting();
    describe_database();
    describe_process();
    describe_counter!("tenure_pass_failures_total", "Failed background passes; each is retried");
    describe_counter!("tenure_http_requests_total", "Requests answered, by operation and class of status");
    describe_histogram!(
        "tenure_http_request_seconds",
        "How long requests took, without the time that the caller asked to wait"
    );
    describe_counter!("tenure_limits_reached_total", "How often a limit on what callers may use was reached");
    begin_at_zero();
}

fn describe_waiting() {
    use metrics::{describe_counter, describe_gauge};
    describe_gauge!("tenure_waiting_for_tasks", "Requests waiting for the end of a task");
    describe_gauge!("tenure_inbox_waiters", "Requests waiting for an item of the inbox of a session");
    describe_gauge!("tenure_live_log_bytes", "Bytes of live logs in the database");
    describe_gauge!("tenure_live_log_streams", "Live logs being read");
    describe_gauge!("tenure_sessions", "Live sessions of workers");
    describe_counter!("tenure_session_ends_total", "Ended sessions of workers");
}

fn describe_database() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_gauge!("tenure_database_up", "1 if the database commits writes now, else 0");
    describe_gauge!("tenure_database_bytes", "Size of the database");
    describe_gauge!("tenure_data_free_bytes", "Free space for the data of the embedded PostgreSQL");
    describe_counter!("tenure_database_breaks_total", "How often the database was replaced, restored or restarted");
    describe_gauge!("tenure_replication_standbys", "Standbys connected to the database");
    describe_gauge!("tenure_replication_synchronous", "1 if a failover keeps acknowledged changes, else 0");
    describe_gauge!("tenure_pool_connections", "Pooled connections to the database");
    describe_histogram!("tenure_pool_wait_seconds", "How long it took to get a connection of the pool of requests");
    describe_gauge!("tenure_log_reader_lag_events", "Events in the log that a reader has not processed");
    describe_gauge!("tenure_events_oldest_seconds", "Age of the oldest event in the log");
    describe_gauge!("tenure_backup_seconds", "Time since the last backup; infinite without one");
}

fn describe_process() {
    metrics_process::Collector::default().describe();
    metrics::describe_gauge!("tenure_build_info", "1, with the version of this server");
    metrics::gauge!(
        "tenure_build_info",
        "version" => env!("CARGO_PKG_VERSION"),
        "commit" => env!("TENURE_COMMIT")
    )
    .set(1.0);
}

fn describe_admission() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_histogram!("tenure_admission_seconds", "How long an admission decision of a queue took");
    describe_histogram!("tenure_admission_lock_seconds", "How long an admission decision waited to lock its queue");
    describe_counter!("tenure_admission_started_total", "Waiting runs that were claimed or assigned to a session");
    describe_counter!(
        "tenure_admission_blocked_total",
        "Admission decisions that started fewer runs than workers asked for"
    );
    describe_counter!("tenure_admission_rounds_total", "Admission transactions that only processed announcements");
    describe_gauge!(
        "tenure_admission_announcements",
        "Announced runs and free slots not processed by an admission decision yet, up to 1,000 per queue"
    );
}

fn describe_subscriptions() {
    use metrics::{describe_counter, describe_gauge};
    describe_counter!("tenure_deliveries_total", "Messages sent to the receivers of subscriptions, by result");
    describe_gauge!("tenure_subscription_lag_seconds", "Age of the oldest event that a subscription has not passed");
    describe_gauge!("tenure_subscription_lag_events", "Events of the log that a subscription has not passed");
    describe_gauge!("tenure_subscriptions_suspended", "Suspended subscriptions, whose receivers get no events");
}

fn describe_partitions() {
    use metrics::describe_gauge;
    describe_gauge!("tenure_partition_epoch", "Number of the active map of a partition group");
    describe_gauge!("tenure_partition_members", "Members of a partition group, with and without a share");
    describe_gauge!("tenure_partition_draining_seconds", "How long members have taken to acknowledge the next map");
}

/// Makes the first increment of a counter visible. Counters of passes are set by their driver.
fn begin_at_zero() {
    metrics::counter!("tenure_claims_undelivered_total").absolute(0);
    metrics::counter!("tenure_enqueued_refused_total").absolute(0);
    metrics::counter!("tenure_backlog_refused_total").absolute(0);
    tenure_engine::decision::metrics::begin_at_zero();
    tenure_engine::end_counters::begin_at_zero();
    tenure_engine::background::schedules::begin_at_zero();
    tenure_engine::background::problems::begin_at_zero();
    tenure_engine::background::subscriptions::begin_at_zero();
    tenure_engine::traces::begin_at_zero();
    metrics::gauge!("tenure_waiting_for_tasks").set(0.0);
    drop(metrics::histogram!("tenure_pool_wait_seconds"));
    for outcome in ["rejected", "coalesced", "queued"] {
        metrics::counter!("tenure_duplicates_total", "outcome" => outcome).absolute(0);
    }
    for what in ["got", "updated", "returned", "deleted_unclaimed", "alarming"] {
        metrics::counter!("tenure_messages_total", "what" => what).absolute(0);
    }
    for answered in ["from_memory", "by_database"] {
        metrics::counter!("tenure_polls_total", "answered" => answered).absolute(0);
    }
    for operation in ["put", "get"] {
        for outcome in ["done", "refused", "failed"] {
            metrics::counter!("tenure_artifact_requests_total", "operation" => operation, "outcome" => outcome)
                .absolute(0);
        }
    }
    for who in ["all", "one"] {
        metrics::counter!("tenure_event_reads_total", "who" => who).absolute(0);
    }
    for direction in ["in", "out"] {
        metrics::counter!("tenure_artifact_bytes_total", "direction" => direction).absolute(0);
    }
    for operation in OPERATIONS {
        metrics::counter!("tenure_batch_shed_total", "operation" => operation).absolute(0);
        metrics::gauge!("tenure_batch_waiting", "operation" => operation).set(0.0);
        metrics::counter!("tenure_blocking_path_total", "operation" => operation).absolute(0);
        metrics::counter!("tenure_blocking_path_timeouts_total", "operation" => operation).absolute(0);
    }
    for limit in ["bodies", "answers", "heads", "writes", "connections", "logins", "reads"] {
        metrics::counter!("tenure_limits_reached_total", "limit" => limit).absolute(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prometheus cannot see an increment in a counter's first sample.
    #[test]
    fn documented_operations_have_counters_from_start() {
        let document = include_str!("../../docs/metrics.md");
        let line = document.lines().find_map(|line| line.strip_prefix("Operations are ")).expect("the line");
        let documented: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        assert_eq!(documented, OPERATIONS);
        let text = start_metrics().render();
        for operation in documented {
            for counter in ["batch_shed", "blocking_path", "blocking_path_timeouts"] {
                let sample = format!("tenure_{counter}_total{{operation=\"{operation}\"}}");
                assert!(text.lines().any(|line| line.starts_with(&sample)), "{sample} is missing");
            }
        }
        assert!(text.contains("tenure_event_reads_total{who=\"one\"}"));
    }

    #[test]
    fn empty_filter_is_default_and_wrong_one_refused() {
        let read = |given: Option<&str>| read_filter(given.map(OsString::from)).map(|filter| filter.to_string());
        assert_eq!(read(Some("")), read(None));
        assert!(["access=warn", "lapin=off"].iter().all(|part| read(None).unwrap().contains(part)));
        assert_eq!(read(Some("debug")), Ok("debug".to_owned()));
        for wrong in ["info,access=loud", "a=b=c"] {
            let line = read(Some(wrong)).unwrap_err().to_string();
            assert!(line.starts_with(&format!("TENURE_LOG is '{wrong}': ")) && !line.contains('\n'), "{line}");
        }
    }
}
