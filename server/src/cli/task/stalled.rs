//! Says why no task starts, if none has run for some seconds.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_api::ids::TaskId;
use tenure_api::states::TaskState;
use tenure_api::why::WhyAnswer;
use tenure_client::RetryPolicy;
use tenure_domain::policy::why::words;

use crate::cli::http::{Server, entries, field};
use crate::cli::print::{complain, plain};

/// Time without a running task.
const AFTER: Duration = Duration::from_secs(5);
/// Interval of later questions: the reasons may change.
const AGAIN: Duration = Duration::from_secs(60);

pub(super) struct Stalled {
    /// Time at which a task was last seen running or ending.
    progress: Cell<Instant>,
    asked: Cell<Option<Instant>>,
    /// Codes of the reasons printed last.
    codes: RefCell<Vec<String>>,
}

impl Stalled {
    pub(super) fn new() -> Self {
        Self { progress: Cell::new(Instant::now()), asked: Cell::new(None), codes: RefCell::default() }
    }

    pub(super) fn note_progress(&self) {
        self.progress.set(Instant::now());
    }

    /// Prints why a task does not start, as [`explain`](Self::explain) returns it.
    pub(super) async fn complain(&self, server: &Server, task: TaskId) {
        if let Some(why) = self.explain(server, task).await {
            complain(&format!("task {task} does not start: {why}"));
        }
    }

    /// Returns why a task does not start, once for the same reasons. Without an answer, the next
    /// call asks again: the explanation must not fail the command.
    pub(super) async fn explain(&self, server: &Server, task: TaskId) -> Option<String> {
        let now = Instant::now();
        let is_asked = self.asked.get().is_some_and(|asked| now - asked < AGAIN);
        if is_asked || now - self.progress.get() < AFTER {
            return None;
        }
        // Set before the answer, so that only one of many waiting tasks is asked about.
        let before = self.asked.replace(Some(now));
        let client = server.client.with_retry_policy(RetryPolicy::never());
        let Ok(answer) = client.why(task).await else {
            self.asked.set(before);
            return None;
        };
        let text = sentences(&answer)?;
        let codes = entries(&answer, "reasons").iter().map(|reason| field(reason, "/code")).collect();
        let printed = self.codes.replace(codes);
        (printed != *self.codes.borrow()).then_some(text)
    }
}

/// None if the task has started, or nothing keeps it from starting.
fn sentences(answer: &Value) -> Option<String> {
    let why: WhyAnswer = serde_json::from_value(answer.clone()).ok()?;
    let waits = matches!(why.state, TaskState::Pending | TaskState::Unscheduled) && !why.reasons.is_empty();
    // Contains foreign text, such as the reason of a pause.
    waits.then(|| plain(&words(&why).join(" ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_task_that_is_held_back_is_explained() {
        let mut answer = json!({"taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "state": "pending", "ready": true, "reasons": []});
        assert_eq!(sentences(&answer), None);
        answer["reasons"] = json!([{"code": "no-worker", "quarantined": 0},
            {"code": "paused", "since": "2027-01-31T12:00:00Z", "by": "root", "reason": "x\u{1b}[2J"}]);
        let text = sentences(&answer).unwrap();
        assert!(text.contains(" Its queue was paused by root at ") && !text.contains('\u{1b}'), "{text}");
        answer["state"] = json!("running");
        assert_eq!(sentences(&answer), None);
        assert_eq!(sentences(&json!({"code": "NotFound"})), None);
    }
}
