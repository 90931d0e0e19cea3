//! What needs somebody: facts about queues, servers, subscriptions and the database → problems in
//! words.
//!
//! A problem holds while its facts do; nothing is remembered here. Each sentence names the object,
//! the duration and the number, and each action is a way out.

mod facts;
mod failures;
mod installation;
mod queues;
mod reduced;
mod subscriptions;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use tenure_api::problems::{Problem, ProblemKind, ProblemObject};

pub use self::facts::{
    Barred, Blocked, Count, DatabaseFacts, Ends, Example, Facts, FailingPass, QueueEnds, QueueFacts, SilentServer,
    SubscriptionFacts,
};
pub use self::failures::{fails, is_failure, is_tried};
pub use self::reduced::reduce;

/// Problems of a kind that are listed, the oldest first.
pub const LISTED_MAX: usize = 100;

/// Returns all problems, sorted by severity (`now` first), kind and age.
#[must_use]
pub fn find(facts: &Facts) -> Vec<Problem> {
    let mut problems = installation::find(facts);
    problems.extend(facts.queues.iter().flat_map(|queue| queues::find(queue, facts.now)));
    problems.extend(facts.ends.iter().flat_map(failures::find));
    problems.extend(failures::find_blocked(&facts.blocked, facts.now));
    problems.extend(facts.subscriptions.iter().filter_map(|one| subscriptions::find(one, facts.now)));
    problems.sort_by(|a, b| {
        let order = |problem: &Problem| (problem.severity, problem.kind, problem.since);
        order(a).cmp(&order(b)).then_with(|| a.message.cmp(&b.message))
    });
    let mut listed = 0;
    let mut kind = None;
    problems.retain(|problem| {
        listed = if kind == Some(problem.kind) { listed + 1 } else { 1 };
        kind = Some(problem.kind);
        listed <= LISTED_MAX
    });
    problems
}

/// Moves the first problem of each kind before all others. Both parts keep their order.
#[must_use]
pub fn each_kind_first(problems: Vec<Problem>) -> Vec<Problem> {
    let mut kinds = BTreeSet::new();
    let (mut sorted, others): (Vec<Problem>, Vec<Problem>) =
        problems.into_iter().partition(|problem| kinds.insert(problem.kind));
    sorted.extend(others);
    sorted
}

fn problem(
    kind: ProblemKind,
    object: ProblemObject,
    since: DateTime<Utc>,
    message: String,
    action: impl Into<String>,
) -> Problem {
    let (severity, since, action) = (kind.severity(), since.into(), Some(action.into()));
    Problem { kind, severity, object, since, message, action }
}

/// For example `1 task` or `84 tasks`.
fn number(number: i64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
#[path = "problems_tests.rs"]
mod tests;
