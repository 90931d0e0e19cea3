//! Warnings on stderr, for programs without a `tracing` subscriber: without it, a failing job or an
//! unreachable server would be silent.

use std::fmt::{self, Display};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_api::ids::{RunId, TaskId};

/// Lines of one window; further ones are only counted.
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);
const HINT: &str = "tenure: only warnings are printed; set a `tracing` subscriber for the whole log";

tokio::task_local! {
    /// Job of the current task, for lines about it.
    pub(crate) static JOB: (TaskId, RunId);
}

/// Emits a warning of `tracing`, or a line on stderr if no subscriber is set. Fields have the form
/// `name = value`; a value is both `tracing::Value` and `Display`.
macro_rules! warning {
    ($($event:tt)+) => { notice!(warn, $($event)+) };
}

/// Like `warning!`, at another level of `tracing`.
macro_rules! notice {
    ($level:ident, $($($name:ident).+ = $value:expr,)* $message:literal) => {{
        tracing::$level!($($($name).+ = $value,)* $message);
        if $crate::notice::is_unheard() {
            $crate::notice::say(
                format_args!($message),
                &[$((stringify!($($name).+), &$value as &dyn std::fmt::Display)),*],
            );
        }
    }};
}

/// True if the program has set no subscriber, so that events of `tracing` are dropped.
pub(crate) fn is_unheard() -> bool {
    !tracing::dispatcher::has_been_set()
}

/// Prints a line about the current job, if there is one.
pub(crate) fn say(message: fmt::Arguments<'_>, fields: &[(&str, &dyn Display)]) {
    static LINES: Mutex<Lines> = Mutex::new(Lines::NONE);
    let job = JOB.try_with(|(task, run)| format!("task {task} run {run}: ")).unwrap_or_default();
    let line = format!("{job}{}", text_of(message, fields));
    let text = LINES.lock().unwrap_or_else(PoisonError::into_inner).add(&line, Instant::now());
    if let Some(text) = text {
        // Nobody may read it.
        let _written = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

fn text_of(message: fmt::Arguments<'_>, fields: &[(&str, &dyn Display)]) -> String {
    let mut text = message.to_string();
    for (name, value) in fields {
        text.push_str(&format!(" {name}={value}"));
    }
    text.replace('\n', " ")
}

/// Lines printed so far.
struct Lines {
    /// Start of the current window.
    since: Option<Instant>,
    printed: u32,
    left_out: u32,
}

impl Lines {
    const NONE: Self = Self { since: None, printed: 0, left_out: 0 };

    /// Returns the text to print, if any.
    fn add(&mut self, line: &str, now: Instant) -> Option<String> {
        let mut text = String::new();
        if self.since.is_none() {
            text.push_str(&format!("{HINT}\n"));
        }
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            if self.left_out > 0 {
                text.push_str(&format!("tenure: {} more warnings were left out\n", self.left_out));
            }
            *self = Self { since: Some(now), ..Self::NONE };
        }
        if self.printed >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.printed += 1;
        text.push_str(&format!("tenure: {line}\n"));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_message_and_fields() {
        let error: &dyn Display = &"it is full\nor broken";
        assert_eq!(
            text_of(format_args!("no log of {}", 3), &[("error", error), ("failures", &2 as &dyn Display)]),
            "no log of 3 error=it is full or broken failures=2"
        );
    }

    #[test]
    fn lines_of_a_window_are_limited() {
        let (mut lines, now) = (Lines::NONE, Instant::now());
        assert_eq!(lines.add("first", now), Some(format!("{HINT}\ntenure: first\n")));
        for _ in 1..LINES_MAX {
            assert_eq!(lines.add("again", now), Some("tenure: again\n".to_owned()));
        }
        assert_eq!([lines.add("again", now), lines.add("again", now + WINDOW / 2)], [None, None]);
        let later = "tenure: 2 more warnings were left out\ntenure: later\n";
        assert_eq!(lines.add("later", now + WINDOW), Some(later.to_owned()));
        assert_eq!(lines.add("last", now + WINDOW), Some("tenure: last\n".to_owned()));
    }
}
