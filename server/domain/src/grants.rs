//! Scopes of clients that submit tasks to queues, or work on tasks of queues.

use std::fmt;
use std::str::FromStr;

use tenure_api::ids::TaskQueueId;

/// Placeholder of the queues in a scope below.
const QUEUES: &str = "<queues>";
/// The scope of status, *why* and wait has only the task's id, so it cannot be limited to queues.
/// The scope for the highest priority includes the others.
const SUBMIT: [&str; 7] = [
    "queue:create-task:highest:<queues>",
    "queue:create-task:project:none",
    "queue:scheduler-id:-",
    "queue:status:*",
    "tenure:get-result:<queues>",
    "tenure:cancel-task:<queues>",
    "tenure:rerun-task:<queues>",
];
/// Without the scopes for claimed runs, which the credentials of each claim have.
const WORK: [&str; 4] =
    ["queue:claim-work:<queues>", "queue:claim-task:<queues>", "queue:poll-task-urls:<queues>", "queue:worker-id:*"];

/// A queue, or with a star at the end all queues with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePattern(String);

impl FromStr for QueuePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(prefix) = text.strip_suffix('*') else {
            let queue = text.parse::<TaskQueueId>();
            return queue.map(|queue| Self(queue.to_string())).map_err(|error| error.to_string());
        };
        // Valid if a queue can have this prefix.
        if prefix.is_empty() || TaskQueueId::read_full(&format!("{prefix}a")).is_ok() {
            return Ok(Self(text.to_owned()));
        }
        Err("write a queue such as acme/linux, or a prefix and a star, such as acme/* or acme/web-*".to_owned())
    }
}

impl fmt::Display for QueuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl QueuePattern {
    /// Scopes to create tasks, to read their status and result, and to wait for, cancel and rerun
    /// them.
    #[must_use]
    pub fn submit_scopes(&self) -> Vec<String> {
        self.fill(&SUBMIT)
    }

    /// Scopes to claim runs in any way and to have sessions. The credentials of each claim have the
    /// scopes to renew, report and release its run, and to write its artifacts and log.
    #[must_use]
    pub fn work_scopes(&self) -> Vec<String> {
        self.fill(&WORK)
    }

    fn fill(&self, scopes: &[&str]) -> Vec<String> {
        scopes.iter().map(|scope| scope.replace(QUEUES, &self.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scopes::valid_scope;

    #[test]
    fn pattern_is_a_queue_or_a_prefix_with_star() {
        for (text, expected) in [
            ("acme/linux", "acme/linux"),
            ("mail", "default/mail"),
            ("acme/*", "acme/*"),
            ("acme/web-*", "acme/web-*"),
            ("*", "*"),
        ] {
            let pattern: QueuePattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), expected);
            for scope in [pattern.submit_scopes(), pattern.work_scopes()].concat() {
                assert!(valid_scope(&scope) && !scope.contains('<'), "{scope}");
            }
        }
        for text in ["", "acme*", "acme/**", "acme/*x", "acme/A*", "acme/1*", "a b/*", "a/b/*", "web/send_email"] {
            let refused = text.parse::<QueuePattern>().unwrap_err();
            assert!(refused.contains("such as") || refused.contains("Try "), "{text}: {refused}");
        }
    }
}
