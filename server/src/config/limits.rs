//! Limits of the memory, time and connections that callers may use.

use std::time::Duration;

use clap::Args;

use super::{SettingError, artifacts, duration, parse_duration, parse_size};

/// Callers without credentials share a quarter. With less, it does not hold a few of their
/// requests.
const MEMORY_MIN: u64 = 1 << 20;
/// More than any machine has.
const MEMORY_MAX: u64 = 1 << 40;
/// With less, readers on a slow network are cut off.
const WRITE_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// No connection should be held longer for a stalled reader.
const WRITE_TIMEOUT_MAX: Duration = Duration::from_secs(60 * 60);
const CONNECTIONS_MIN: usize = 16;
/// Ports and descriptors are exhausted before.
const CONNECTIONS_MAX: usize = 1_000_000;
/// About 5,600 rows each.
const STATISTICS_QUEUES_MAX: usize = 100_000;
/// Each queue has about 95 lines in every scrape.
const METRICS_QUEUES_MAX: usize = 10_000;

#[derive(Args, Clone, Debug)]
pub struct LimitArgs {
    /// Memory for the bodies of requests being received (1MiB to 1TiB); more gets 503. Callers
    /// without credentials share a quarter. If too small, large tasks are refused while others are
    /// being sent.
    #[arg(long, env = "TENURE_REQUEST_MEMORY", default_value = "128MiB", value_name = "BYTES", value_parser = parse_size)]
    pub request_memory: u64,

    /// Memory for large responses being sent (1MiB to 1TiB); more gets 503. Callers without
    /// credentials share a quarter. If too small, long lists are refused while others are being
    /// read.
    #[arg(long, env = "TENURE_ANSWER_MEMORY", default_value = "256MiB", value_name = "BYTES", value_parser = parse_size)]
    pub answer_memory: u64,

    /// How long a caller may read nothing of a response before its connection is cut (100ms to 1h).
    /// If too small, callers on bad networks lose their responses.
    #[arg(long, env = "TENURE_WRITE_TIMEOUT", default_value = "60s", value_name = "DURATION", value_parser = parse_duration)]
    pub write_timeout: Duration,

    /// Space in the database for the live logs of all runs (0 to 1TiB); 0 disables them. If too
    /// small, logs can be read only after their runs have ended.
    #[arg(long, env = "TENURE_LIVE_LOG_MAX", default_value = "1GiB", value_name = "BYTES", value_parser = parse_size)]
    pub live_log_max: u64,

    /// Queues with statistics and metrics of tasks of their own (1 to 100000); the numbers of all
    /// others are added up. If too small, busy queues have none.
    #[arg(long, env = "TENURE_STATISTICS_QUEUES", default_value = "1000", value_name = "COUNT")]
    pub statistics_queues: usize,

    /// Maximum of concurrent connections (16 to 1000000); more get 503. Default: 10000, or as many
    /// as the limit of open files allows. If too small, workers that wait for work take all of
    /// them.
    #[arg(long, env = "TENURE_CONNECTIONS_MAX", value_name = "COUNT")]
    pub connections_max: Option<usize>,

    /// Number of queues that metrics name (1 to 10000): those with the most runs. They stay for an
    /// hour. All others are summed up as `other`. If too small, a busy queue has no metrics of its
    /// own.
    #[arg(long, env = "TENURE_METRICS_QUEUES", default_value = "500", value_name = "COUNT")]
    pub metrics_queues: usize,
}

/// The checked limits; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub request_memory: usize,
    pub answer_memory: usize,
    /// How long a write may make no progress.
    pub write_timeout: Duration,
    pub live_log_max: u64,
    pub statistics_queues: usize,
    pub connections_max: Option<usize>,
    /// Queues that metrics name.
    pub metrics_queues: usize,
}

impl LimitArgs {
    pub(super) fn limits(&self) -> Result<Limits, SettingError> {
        let memory = |name: &'static str, bytes: u64| {
            let size = artifacts::display_size;
            let fix = || format!("choose between {} and {}", size(MEMORY_MIN), size(MEMORY_MAX));
            let allowed = Some(bytes).filter(|bytes| (MEMORY_MIN..=MEMORY_MAX).contains(bytes));
            let bytes_here = allowed.and_then(|bytes| usize::try_from(bytes).ok());
            bytes_here.ok_or_else(|| SettingError::new(name, size(bytes), fix()))
        };
        if !(WRITE_TIMEOUT_MIN..=WRITE_TIMEOUT_MAX).contains(&self.write_timeout) {
            let show = duration::display;
            let fix = format!("choose between {} and {}", show(WRITE_TIMEOUT_MIN), show(WRITE_TIMEOUT_MAX));
            return Err(SettingError::new("--write-timeout (TENURE_WRITE_TIMEOUT)", show(self.write_timeout), fix));
        }
        if let Some(wrong) = self.connections_max.filter(|max| !(CONNECTIONS_MIN..=CONNECTIONS_MAX).contains(max)) {
            let fix = format!("choose between {CONNECTIONS_MIN} and {CONNECTIONS_MAX}");
            return Err(SettingError::new("--connections-max (TENURE_CONNECTIONS_MAX)", wrong, fix));
        }
        Ok(Limits {
            request_memory: memory("--request-memory (TENURE_REQUEST_MEMORY)", self.request_memory)?,
            answer_memory: memory("--answer-memory (TENURE_ANSWER_MEMORY)", self.answer_memory)?,
            write_timeout: self.write_timeout,
            live_log_max: self.checked_live_log_max()?,
            statistics_queues: self.checked_statistics_queues()?,
            connections_max: self.connections_max,
            metrics_queues: self.checked_metrics_queues()?,
        })
    }

    fn checked_statistics_queues(&self) -> Result<usize, SettingError> {
        if !(1..=STATISTICS_QUEUES_MAX).contains(&self.statistics_queues) {
            let fix = format!("choose between 1 and {STATISTICS_QUEUES_MAX}");
            let name = "--statistics-queues (TENURE_STATISTICS_QUEUES)";
            return Err(SettingError::new(name, self.statistics_queues, fix));
        }
        Ok(self.statistics_queues)
    }

    fn checked_live_log_max(&self) -> Result<u64, SettingError> {
        if self.live_log_max > MEMORY_MAX {
            let size = artifacts::display_size;
            let fix = format!("choose between 0 and {}", size(MEMORY_MAX));
            return Err(SettingError::new("--live-log-max (TENURE_LIVE_LOG_MAX)", size(self.live_log_max), fix));
        }
        Ok(self.live_log_max)
    }

    fn checked_metrics_queues(&self) -> Result<usize, SettingError> {
        if !(1..=METRICS_QUEUES_MAX).contains(&self.metrics_queues) {
            let fix = format!("choose between 1 and {METRICS_QUEUES_MAX}");
            return Err(SettingError::new("--metrics-queues (TENURE_METRICS_QUEUES)", self.metrics_queues, fix));
        }
        Ok(self.metrics_queues)
    }
}
