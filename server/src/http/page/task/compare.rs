//! `/task/<taskId>/compare`: a run beside the run before it.

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use tenure_api::bodies::{Run, Status};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};

use super::runs::{Returned, ended_by, reason, worker};
use crate::http::page::error::PageError;
use crate::http::page::layout::{self, Page, section};
use crate::http::page::log;
use crate::http::page::state::Site;
use crate::http::page::text;
use crate::http::page::visit::Visit;
use tenure_engine::ops::create_artifact::RunRef;
use tenure_store::clock;
use tenure_store::why::{self, Ends};

/// `GET /task/:taskId/compare`
pub(in crate::http::page) async fn compare(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let id: TaskId =
        visit.param("taskId").parse().map_err(|_| PageError::NotFound("This is not the id of a task.".to_owned()))?;
    visit.authorize(format!("queue:status:{id}"))?;
    let status = app.engine.status.submit(id).await?.status();
    let found = pair(&status.runs, visit.query("run"));
    let pair = found.ok_or_else(|| PageError::NotFound("This run, or one before it, does not exist.".to_owned()))?;
    let mut conn = app.engine.pool.acquire().await?;
    let now = clock::get_now(&mut conn).await?;
    let ends = why::find_ends(&mut conn, id).await?;
    drop(conn);
    let mut logs = [String::new(), String::new()];
    for (run, lines) in pair.iter().zip(&mut logs) {
        let tail = log::tail(&app, &visit, RunRef { task: id, run: run.run_id }).await?;
        *lines = tail.and_then(log::Tail::into_lines).unwrap_or_default();
    }
    let returned = Returned::of(&visit, &status, &ends);
    let marked = [differing(&logs[0], &logs[1]), differing(&logs[1], &logs[0])];
    let task = id.to_string();
    let body = html! {
        h1 { span.kind { "Runs " (pair[0].run_id) " and " (pair[1].run_id) " of the task" }
            a href=(visit.link_to("task", &[&task])) { code { (id) } } }
        div.pair {
            @for (run, lines) in pair.iter().zip(&marked) { (column(&visit, &status, run, &ends, &returned, lines, now)) }
        }
        p.dim { "Lines that the other log does not end with are marked. Digits do not count." }
    };
    Ok(Page::new(format!("Runs {} and {} of {task}", pair[0].run_id, pair[1].run_id), None, body))
}

/// Returns the run before a run, and the run: by default the last one.
fn pair<'a>(runs: &'a [Run], wanted: Option<&str>) -> Option<[&'a Run; 2]> {
    let last = match wanted {
        Some(wanted) => wanted.parse::<RunId>().ok()?,
        None => runs.last()?.run_id,
    };
    runs.windows(2).find(|pair| pair[1].run_id == last).map(|pair| [&pair[0], &pair[1]])
}

fn column(
    visit: &Visit,
    status: &Status,
    run: &Run,
    ends: &Ends,
    returned: &Returned,
    lines: &[(String, bool)],
    now: DateTime<Utc>,
) -> Markup {
    let (scheduled, started) = (run.scheduled.time(), run.started.map(Timestamp::time));
    let resolved = run.resolved.map(Timestamp::time);
    let failure = returned.failures.get(&run.run_id).map(String::as_str);
    let log = visit.link_to("task", &[&status.task_id.to_string(), "log"]);
    let body = html! {
        dl.facts {
            div { dt { "State" } dd { (layout::state(run.state.as_str())) } }
            div { dt { "Reason" } dd { (reason(run, ended_by(ends, run), failure)) } }
            div { dt { "Worker" } dd { (worker(visit, run)) } }
            div { dt { "Waited" } dd { (text::span(started.or(resolved).unwrap_or(now) - scheduled)) } }
            @if let Some(started) = started { div { dt { "Ran" } dd { (text::span(resolved.unwrap_or(now) - started)) } } }
            @if let Some(resolved) = resolved { div { dt { "Ended" } dd { (layout::time(resolved, now)) } } }
        }
        @if lines.is_empty() { div.note { p { "No end of a log is shown here." } } }
        @else {
            div.log tabindex="0" { pre { @for (line, is_marked) in lines { span.differs[*is_marked] { (line) "\n" } } } }
        }
    };
    let note = html! { a href={ (log) "?run=" (run.run_id) } { "its log" } };
    section(&format!("Run {}", run.run_id), &note, &body)
}

/// Returns the lines of a text, each true if the other text does not have it.
fn differing(text: &str, other: &str) -> Vec<(String, bool)> {
    let others: HashSet<String> = other.lines().map(without_digits).collect();
    text.lines().map(|line| (line.to_owned(), !others.contains(&without_digits(line)))).collect()
}

/// Times and addresses differ in each run: `at 12:05` and `at 9:17` are equal.
fn without_digits(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    for character in line.chars() {
        let digit = character.is_ascii_digit();
        if !(digit && kept.ends_with('0')) {
            kept.push(if digit { '0' } else { character });
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(runs: &[Run], wanted: Option<&str>) -> Option<[u16; 2]> {
        pair(runs, wanted).map(|pair| pair.map(|run| run.run_id.number()))
    }

    #[test]
    fn digits_do_not_make_lines_differ() {
        let marked = differing("at 12:05 built\nfailed\n", "at 9:17 built\nat 10:00 ok");
        assert_eq!(marked, [("at 12:05 built".to_owned(), false), ("failed".to_owned(), true)]);
        assert!(differing("", "x").is_empty());
    }

    #[test]
    fn run_is_paired_with_the_run_before() {
        let scheduled = "2027-01-31T12:00:00Z";
        let runs = [0, 1, 2]
            .map(|id| json!({"runId": id, "state": "pending", "reasonCreated": "scheduled", "scheduled": scheduled}));
        let runs: Vec<Run> = serde_json::from_value(json!(runs)).unwrap();
        assert_eq!(found(&runs, None), Some([1, 2]));
        assert_eq!(found(&runs, Some("1")), Some([0, 1]));
        assert_eq!(["0", "3", "x", "<script>"].map(|wanted| found(&runs, Some(wanted))), [None; 4]);
        assert_eq!(found(&runs[..1], None), None);
        assert_eq!(found(&[], None), None);
    }
}
