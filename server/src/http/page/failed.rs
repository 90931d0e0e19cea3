//! Failed runs by reason and by worker, on the overview and on the page of a queue.

use std::collections::BTreeMap;

use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use tenure_api::states::{ReasonResolved, RunState};

use super::charts::share;
use super::layout::{self, Cells, section, table};
use super::text;
use super::visit::{SEGMENT, Visit};
use tenure_domain::scopes::Expression;
use tenure_domain::statistics::state_of;
use tenure_domain::trend::Span;
use tenure_store::page::{FAILED_READ, FailedRow, FailedRuns};

const ROWS_MAX: usize = 6;
/// Workers or queues named beside a reason.
const NAMED_MAX: usize = 2;

/// Scopes to see how the tasks of others ended.
pub(super) fn scope() -> Expression {
    "queue:status:*".into()
}

/// Numbers of runs by a common value, the greatest first.
type Ranked<T> = Vec<(T, i64)>;

fn rank<T: Ord>(of: impl Iterator<Item = (T, i64)>) -> Ranked<T> {
    let mut sums: BTreeMap<T, i64> = BTreeMap::new();
    for (what, number) in of {
        *sums.entry(what).or_insert(0) += number;
    }
    let mut ranked: Vec<(T, i64)> = sums.into_iter().collect();
    // Stable: equal ones stay in their order.
    ranked.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    ranked
}

/// Removes exit codes that the visitor may not read.
pub(super) fn hide_results(visit: &Visit, failed: &mut FailedRuns) {
    for row in &mut failed.rows {
        if row.exit_code.is_some() && !visit.may(format!("tenure:get-result:{}", row.queue_name)) {
            row.exit_code = None;
        }
    }
}

/// Failed runs by reason, then by the workers of each, or by the queues of runs without a worker.
/// `queue` is None on the overview.
pub(super) fn by_reason(visit: &Visit, failed: &FailedRuns, span: Span, queue: Option<&str>) -> Markup {
    let rows = &failed.rows;
    let reasons = rank(rows.iter().map(|row| ((row.reason, row.exit_code), row.number)));
    let most = reasons.first().map_or(0, |(_, number)| *number);
    let cells = |(common, number): &((ReasonResolved, Option<i32>), i64)| -> Cells {
        let alike: Vec<&FailedRow> = rows.iter().filter(|row| (row.reason, row.exit_code) == *common).collect();
        let workers = rank(alike.iter().filter_map(|row| Some((row.worker.as_ref()?, row.number))));
        let mostly = if workers.is_empty() {
            let queues = rank(alike.iter().map(|row| (row.queue_name.as_str(), row.number)));
            named(&queues, "queues", |name| layout::queue(visit, name))
        } else {
            named(&workers, "workers", |(group, id)| layout::worker(visit, group, id))
        };
        vec![
            ("Reason", html! { a href=(tasks(visit, common.0, queue)) { (words(*common)) } }),
            (">Runs", layout::number(*number)),
            ("Share", share(*number, most)),
            ("Mostly", mostly),
        ]
    };
    let body: Vec<Cells> = reasons.iter().take(ROWS_MAX).map(cells).collect();
    panel(visit, "Failures by reason", failed, span, queue, &body)
}

/// Failed runs by worker, then by the reasons of each. Empty if no worker had a failed run.
pub(super) fn by_worker(visit: &Visit, failed: &FailedRuns, span: Span, queue: &str) -> Markup {
    let rows = &failed.rows;
    let workers = rank(rows.iter().filter_map(|row| Some((row.worker.as_ref()?, row.number))));
    if workers.is_empty() {
        return html! {};
    }
    let most = workers.first().map_or(0, |(_, number)| *number);
    let cells = |(worker, number): &(&(String, String), i64)| -> Cells {
        let alike = rows.iter().filter(|row| row.worker.as_ref() == Some(*worker));
        let reasons = rank(alike.map(|row| ((row.reason, row.exit_code), row.number)));
        vec![
            ("Worker", layout::worker(visit, &worker.0, &worker.1)),
            (">Runs", layout::number(*number)),
            ("Share", share(*number, most)),
            ("Mostly", named(&reasons, "reasons", |reason| html! { (words(*reason)) })),
        ]
    };
    let body: Vec<Cells> = workers.iter().take(ROWS_MAX).map(cells).collect();
    panel(visit, "Failures by worker", failed, span, Some(queue), &body)
}

/// In place of both for visitors without the scope.
pub(super) fn denied(visit: &Visit) -> Markup {
    section("Failures by reason", &html! {}, &html! { div.note { (layout::denied(visit, &scope())) } })
}

fn panel(visit: &Visit, title: &str, failed: &FailedRuns, span: Span, queue: Option<&str>, body: &[Cells]) -> Markup {
    if body.is_empty() {
        let nothing = html! { p { (nothing(span, failed.is_cut)) } };
        return section(title, &html! {}, &layout::empty(&nothing));
    }
    let note = html! {
        "the last " (span.word())
        @if failed.is_cut { ", the newest " (text::count(FAILED_READ)) " runs" }
        " · " a href=(tasks(visit, ReasonResolved::Failed, queue)) { "failed tasks" }
    };
    section(title, &note, &table(body))
}

/// Cancelled runs, which are not shown, may be all that were read.
fn nothing(span: Span, is_cut: bool) -> String {
    let span = span.word();
    if is_cut {
        let read = text::count(FAILED_READ);
        format!("None of the newest {read} runs of the last {span} that failed or were cancelled is shown here.")
    } else {
        format!("No run failed in the last {span}.")
    }
}

fn words((reason, exit_code): (ReasonResolved, Option<i32>)) -> String {
    match (reason, exit_code) {
        (ReasonResolved::Failed, Some(code)) => format!("exit code {code}"),
        (reason, _) => reason.to_string(),
    }
}

/// The first ones with their numbers, or how many there are if none stands out.
fn named<T>(ranked: &[(T, i64)], plural: &str, name: impl Fn(&T) -> Markup) -> Markup {
    let all: i64 = ranked.iter().map(|(_, number)| number).sum();
    let first = ranked.first().map_or(0, |(_, number)| *number);
    if ranked.len() > NAMED_MAX && first * 2 <= all {
        return html! { (ranked.len()) " " (plural) };
    }
    html! { @for (n, (what, number)) in ranked.iter().take(NAMED_MAX).enumerate() {
        @if n > 0 { ", " }
        (name(what)) @if ranked.len() > 1 { " ×" (text::count(*number)) }
    } }
}

/// Address of the tasks that ended for this reason.
fn tasks(visit: &Visit, reason: ReasonResolved, queue: Option<&str>) -> String {
    let mut path = visit.link("/tasks?state=");
    path += if state_of(reason) == RunState::Exception { "exception&reason=" } else { "failed" };
    if state_of(reason) == RunState::Exception {
        path += reason.as_str();
    }
    if let Some(queue) = queue {
        path += "&queue=";
        path.extend(utf8_percent_encode(queue, SEGMENT));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greatest_number_comes_first() {
        let ranked = rank([("b", 1), ("a", 2), ("c", 2), ("b", 5)].into_iter());
        assert_eq!(ranked, [("b", 6), ("a", 2), ("c", 2)]);
    }

    #[test]
    fn names_are_given_if_few_or_if_one_stands_out() {
        let text = |ranked: &[(&str, i64)]| named(ranked, "workers", |name| html! { (name) }).into_string();
        assert_eq!(text(&[("a", 7)]), "a");
        assert_eq!(text(&[("a", 7), ("b", 7)]), "a ×7, b ×7");
        assert_eq!(text(&[("a", 7), ("b", 4), ("c", 2)]), "a ×7, b ×4");
        assert_eq!(text(&[("a", 7), ("b", 7), ("c", 2)]), "3 workers");
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn cancelled_runs_do_not_deny_older_failures() {
        assert_eq!(nothing(Span::Hour, false), "No run failed in the last hour.");
        assert!(nothing(Span::Day, true).starts_with("None of the newest 2\u{202f}000 runs of the last day"));
    }

    #[test]
    fn failed_command_is_named_by_its_exit_code() {
        assert_eq!(words((ReasonResolved::Failed, Some(137))), "exit code 137");
        assert_eq!(words((ReasonResolved::Failed, None)), "failed");
        assert_eq!(words((ReasonResolved::ClaimExpired, Some(1))), "claim-expired");
    }
}
