//! The runs of a task, and what workers reported about their ends.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use serde_json::Value;
use tenure_api::bodies::{Run, Status};
use tenure_api::dates::Timestamp;
use tenure_api::ids::RunId;
use tenure_api::policy::Failure;
use tenure_api::states::{EndedBy, ReasonCreated};

use crate::http::page::layout::{self, Cells, section, table};
use crate::http::page::visit::Visit;
use tenure_domain::verdict::{Report, failure_line};
use tenure_store::why::Ends;

const ROWS_MAX: usize = 25;

/// Empty if the visitor may not see results.
#[derive(Default)]
pub(super) struct Returned {
    /// Of the last run.
    pub(super) failure: Option<Failure>,
    /// Of the last run.
    result: Value,
    /// Beginnings of failures, by run.
    pub(super) failures: BTreeMap<RunId, String>,
}

impl Returned {
    pub(super) fn of(visit: &Visit, status: &Status, ends: &Ends) -> Self {
        let Some(last) = status.runs.last() else { return Self::default() };
        if !visit.may(format!("tenure:get-result:{}", status.task_queue_id)) {
            return Self::default();
        }
        let result = ends.result.as_ref().filter(|(run, _)| *run == last.run_id.number().cast_signed());
        let mut returned = Self {
            result: result.and_then(|(_, result)| serde_json::from_str(result).ok()).unwrap_or_default(),
            ..Self::default()
        };
        for run in &status.runs {
            let number = run.run_id.number().cast_signed();
            let text = ends.failures.iter().find(|(run, _)| *run == number).map(|(_, text)| text);
            let Some(failure) = text.and_then(|text| serde_json::from_str::<Failure>(text).ok()) else { continue };
            returned.failures.insert(run.run_id, failure_line(&failure));
            if run.run_id == last.run_id {
                returned.failure = Some(failure);
            }
        }
        returned
    }

    pub(super) fn report(&self) -> Report {
        self.failure.as_ref().map_or_else(|| Report::of(&Value::Null, &self.result), Report::from)
    }
}

pub(super) fn ended_by(ends: &Ends, run: &Run) -> Option<EndedBy> {
    let number = run.run_id.number().cast_signed();
    ends.ended_by.iter().find(|(run, _)| *run == number).map(|(_, by)| *by)
}

pub(super) fn runs(visit: &Visit, status: &Status, ends: &Ends, returned: &Returned, now: DateTime<Utc>) -> Markup {
    if status.runs.is_empty() {
        let note = html! { p { "The task has no run yet: it has not been scheduled." } };
        return section("Runs", &html! {}, &layout::empty(&note));
    }
    let cells = |run: &Run| {
        let failure = returned.failures.get(&run.run_id).map(String::as_str);
        cells(visit, run, ended_by(ends, run), failure, now)
    };
    let rows: Vec<_> = status.runs.iter().rev().take(ROWS_MAX).map(cells).collect();
    let compare = visit.link_to("task", &[&status.task_id.to_string(), "compare"]);
    let note = html! {
        "newest first"
        @if status.runs.len() > ROWS_MAX { ", " (ROWS_MAX) " of " (status.runs.len()) }
        @if let [.., before, last] = status.runs.as_slice() {
            " · " a href=(compare) { "compare run " (last.run_id) " with run " (before.run_id) }
        }
    };
    section("Runs", &note, &table(&rows))
}

fn cells(visit: &Visit, run: &Run, ended_by: Option<EndedBy>, failure: Option<&str>, now: DateTime<Utc>) -> Cells {
    let time = |time: Option<Timestamp>| time.map_or_else(layout::none, |time| layout::time(time.time(), now));
    // An ended run has no lease.
    let taken_until = run.taken_until.filter(|_| run.resolved.is_none());
    vec![
        (">Run", html! { (run.run_id) }),
        ("State", layout::state(run.state.as_str())),
        ("Reason", reason(run, ended_by, failure)),
        ("Worker", worker(visit, run)),
        (">Scheduled", time(Some(run.scheduled))),
        (">Started", time(run.started)),
        (">Ended", time(run.resolved)),
        (">Taken until", time(taken_until)),
    ]
}

pub(super) fn reason(run: &Run, ended_by: Option<EndedBy>, failure: Option<&str>) -> Markup {
    html! {
        @if let Some(reason) = run.reason_resolved.filter(|reason| reason.as_str() != run.state.as_str()) { (reason) " " }
        @if let Some(by) = ended_by { span.dim { "ended by " (by) " " } }
        @if let Some(failure) = failure { (layout::said(&html! { (failure) })) " " }
        @if run.reason_created != ReasonCreated::Scheduled { span.dim { "made by " (run.reason_created) } }
    }
}

pub(super) fn worker(visit: &Visit, run: &Run) -> Markup {
    let worker = run.worker_group.as_deref().zip(run.worker_id.as_deref());
    worker.map_or_else(layout::none, |(group, id)| layout::worker(visit, group, id))
}
