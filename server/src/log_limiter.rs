//! Limits repeated log lines, so that callers cannot fill the disk with warnings.
//!
//! Each kind of warning or error is written at most once a second; the others are counted, and the
//! count is written afterwards. A kind is a call site with the values of its constant text fields,
//! such as the name of a pass. Access lines and lower levels are not limited.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Debug;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

pub const EVERY: Duration = Duration::from_secs(1);
/// Capacity; further kinds share one entry per call site.
const KINDS_MAX: usize = 1_000;
/// Targets without a limit.
const TARGET: &str = "log_limiter";
const ACCESS: &str = "access";

type Kind = (Identifier, u64);

/// Lines of one kind since the last written one.
struct Repeats {
    written: Instant,
    dropped: u64,
    message: String,
}

/// Clones share the counts.
#[derive(Clone, Default)]
pub struct LogLimiter {
    kinds: Arc<Mutex<HashMap<Kind, Repeats>>>,
}

impl LogLimiter {
    /// Writes the number of dropped lines, and forgets idle kinds.
    pub fn report(&self) {
        self.report_at(Instant::now());
    }

    fn report_at(&self, now: Instant) {
        let mut dropped = Vec::new();
        self.kinds().retain(|_, repeats| {
            if now.duration_since(repeats.written) < EVERY {
                return true;
            }
            let lives = repeats.dropped > 0;
            if lives {
                dropped.push((std::mem::take(&mut repeats.dropped), repeats.message.clone()));
            }
            lives
        });
        for (lines, message) in dropped {
            tracing::warn!(target: TARGET, lines, repeated = message, "log lines like this one were left out");
        }
    }

    fn admits(&self, kind: Kind, message: impl FnOnce() -> String, now: Instant) -> bool {
        let mut kinds = self.kinds();
        let kind = if kinds.len() < KINDS_MAX || kinds.contains_key(&kind) { kind } else { (kind.0, 0) };
        match kinds.get_mut(&kind) {
            Some(repeats) if now.duration_since(repeats.written) < EVERY => {
                repeats.dropped += 1;
                false
            }
            Some(repeats) => {
                repeats.written = now;
                true
            }
            None => {
                kinds.insert(kind, Repeats { written: now, dropped: 0, message: message() });
                true
            }
        }
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<Kind, Repeats>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber> Layer<S> for LogLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || [TARGET, ACCESS].contains(&metadata.target()) {
            return true;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.admits((metadata.callsite(), fields.texts.finish()), || fields.message, Instant::now())
    }
}

#[derive(Default)]
struct Fields {
    texts: DefaultHasher,
    message: String,
}

impl Visit for Fields {
    /// Object names and errors are recorded by `Display` and arrive as `Debug`, so texts are
    /// constants.
    fn record_str(&mut self, _: &Field, value: &str) {
        value.hash(&mut self.texts);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(log: impl FnOnce(&LogLimiter)) -> Vec<String> {
        let (lines, limiter) = (Lines::default(), LogLimiter::default());
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().without_time().with_ansi(false).with_target(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish().with(limiter.clone());
        tracing::subscriber::with_default(subscriber, || log(&limiter));
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn repeated_warning_is_written_once_and_counted() {
        let lines = logged(|limiter| {
            for n in 0..500 {
                tracing::warn!(tasks = n, "refused");
            }
            limiter.report_at(Instant::now() + EVERY);
        });
        assert_eq!(
            lines,
            ["WARN refused tasks=0", "WARN log lines like this one were left out lines=499 repeated=\"refused\""]
        );
    }

    #[test]
    fn other_passes_and_lower_levels_are_written() {
        let lines = logged(|limiter| {
            for pass in ["claims", "deadlines", "claims"] {
                tracing::error!(pass, "a pass failed");
                tracing::info!("went on");
            }
            for _ in 0..3 {
                tracing::warn!(target: ACCESS, "a request");
            }
            limiter.report_at(Instant::now());
        });
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!((count("a pass failed"), count("went on"), count("a request")), (2, 3, 3));
    }

    #[test]
    fn idle_kinds_are_forgotten_and_kinds_bounded() {
        logged(|limiter| {
            for n in 0..2 * KINDS_MAX {
                tracing::warn!(error = n.to_string().as_str(), "invented");
            }
            assert_eq!(limiter.kinds().len(), KINDS_MAX + 1);
            limiter.report_at(Instant::now() + EVERY);
            limiter.report_at(Instant::now() + 3 * EVERY);
            assert!(limiter.kinds().is_empty());
        });
    }
}
