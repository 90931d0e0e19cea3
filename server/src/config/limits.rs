//! How much callers may take of a server's memory, time and connections.

use std::time::Duration;

use clap::Args;

use super::{SettingError, artifacts, duration, parse_duration, parse_size};

/// Less, and a quarter of it, which is what callers without credentials share, does not hold a few of their requests.
const MEMORY_MIN: u64 = 1 << 20;
/// More than any machine has is a mistake.
const MEMORY_MAX: u64 = 1 << 40;
/// Less, and readers on a slow network are cut off.
const WRITE_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Longer than any connection should be held open for a reader that does not read.
const WRITE_TIMEOUT_MAX: Duration = Duration::from_secs(60 * 60);
/// Fewer would not be enough for any use.
const CONNECTIONS_MIN: usize = 16;
/// Ports and descriptors end before.
const CONNECTIONS_MAX: usize = 1_000_000;

/// The limits, as they were written.
#[derive(Args, Clone, Debug)]
pub struct LimitArgs {
    /// Memory for the bodies of all requests that are being read (1MiB to 1TiB); what does not fit gets 503. Callers
    /// without credentials share a quarter of it. Too small, and large tasks are refused while others are being sent.
    #[arg(long, env = "TENURE_REQUEST_MEMORY", default_value = "128MiB", value_name = "BYTES", value_parser = parse_size)]
    pub request_memory: u64,

    /// Memory for large answers that are being sent (1MiB to 1TiB); what does not fit gets 503. Callers without
    /// credentials share a quarter of it. Too small, and long lists are refused while others are being read.
    #[arg(long, env = "TENURE_ANSWER_MEMORY", default_value = "256MiB", value_name = "BYTES", value_parser = parse_size)]
    pub answer_memory: u64,

    /// How long a caller may read nothing of an answer before its connection is cut (100ms to 1h). Too small, and callers
    /// on bad networks lose their answers.
    #[arg(long, env = "TENURE_WRITE_TIMEOUT", default_value = "60s", value_name = "DURATION", value_parser = parse_duration)]
    pub write_timeout: Duration,

    /// Room for the live logs of all runs in the database (0 to 1TiB); 0 switches them off. Too small, and logs can be read only
    /// when their runs have ended.
    #[arg(long, env = "TENURE_LIVE_LOG_MAX", default_value = "1GiB", value_name = "BYTES", value_parser = parse_size)]
    pub live_log_max: u64,

    /// The most connections at a time (16 to 1000000); others get 503. Unless it is given: 10000, or as many as the limit
    /// of open files allows. Too small, and workers that wait for work take all of them.
    #[arg(long, env = "TENURE_CONNECTIONS_MAX", value_name = "COUNT")]
    pub connections_max: Option<usize>,
}

/// The checked limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For bodies that are being read, in bytes.
    pub request_memory: usize,
    /// For answers that are being sent, in bytes.
    pub answer_memory: usize,
    /// How long a write may make no progress.
    pub write_timeout: Duration,
    /// For live logs, in bytes.
    pub live_log_max: u64,
    /// The most connections at a time, if that was given.
    pub connections_max: Option<usize>,
}

impl LimitArgs {
    /// Checks them.
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
            connections_max: self.connections_max,
        })
    }
    fn checked_live_log_max(&self) -> Result<u64, SettingError> {
        if self.live_log_max > MEMORY_MAX {
            let size = artifacts::display_size;
            let fix = format!("choose between 0 and {}", size(MEMORY_MAX));
            return Err(SettingError::new("--live-log-max (TENURE_LIVE_LOG_MAX)", size(self.live_log_max), fix));
        }
        Ok(self.live_log_max)
    }
}
