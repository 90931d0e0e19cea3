//! The life of a task as a bar: how long it waited for other tasks, and how long each run waited
//! and ran.

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use tenure_api::bodies::{Run, Status};
use tenure_api::dates::Timestamp;
use tenure_api::states::RunState;

use crate::http::page::bar::{Part, bar};
use crate::http::page::text;

/// The newest runs that are drawn.
const RUNS_MAX: usize = 20;
/// Shorter waits for other tasks are the time of one request.
const SCHEDULED_AT_ONCE: TimeDelta = TimeDelta::seconds(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before the first run.
    Unscheduled,
    Waited,
    /// By a limit or a delay. Only of a pending run: no earlier hold is stored.
    Held,
    Ran(RunState),
}

impl Stage {
    /// A class of style.css.
    fn class(self) -> &'static str {
        match self {
            Self::Unscheduled => "unscheduled",
            Self::Waited => "pending",
            Self::Held => "held",
            Self::Ran(state) => state.as_str(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Segment {
    stage: Stage,
    length: TimeDelta,
    words: String,
}

/// `created` is known to readers of the definition.
pub(super) fn life(status: &Status, created: Option<DateTime<Utc>>, is_held: bool, now: DateTime<Utc>) -> Markup {
    let segments = segments(&status.runs, created, is_held, now);
    let parts: Vec<Part> = segments
        .iter()
        .map(|Segment { stage, length, words }| {
            let amount = u64::try_from(length.num_milliseconds()).unwrap_or_default();
            Part { class: stage.class(), amount, words: words.clone() }
        })
        .collect();
    let sum = |is_so: fn(Stage) -> bool| {
        segments.iter().filter(|segment| is_so(segment.stage)).map(|segment| segment.length).sum::<TimeDelta>()
    };
    let sums = [
        ("unscheduled", "waited for other tasks", sum(|stage| matches!(stage, Stage::Unscheduled))),
        ("pending", "waited for a worker", sum(|stage| matches!(stage, Stage::Waited))),
        ("held", "held", sum(|stage| matches!(stage, Stage::Held))),
        ("running", "ran", sum(|stage| matches!(stage, Stage::Ran(_)))),
    ];
    html! {
        (bar(&parts))
        @if parts.iter().any(|part| part.amount > 0) {
            ul.legend {
                @for (class, words, span) in sums.iter().filter(|(_, _, span)| *span > TimeDelta::zero()) {
                    li { span class={ "key " (class) } {} (words) " " (text::span(*span)) }
                }
            }
        }
    }
}

fn segments(runs: &[Run], created: Option<DateTime<Utc>>, is_held: bool, now: DateTime<Utc>) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut add = |stage: Stage, from: DateTime<Utc>, to: DateTime<Utc>, words: String| {
        let length = (to - from).max(TimeDelta::zero());
        segments.push(Segment { stage, length, words: format!("{words} {}", text::span(length)) });
    };
    let scheduled = runs.first().map_or(now, |run| run.scheduled.time());
    if let Some(created) = created.filter(|created| scheduled - *created >= SCHEDULED_AT_ONCE) {
        add(Stage::Unscheduled, created, scheduled, "waited for other tasks".to_owned());
    }
    for run in &runs[runs.len().saturating_sub(RUNS_MAX)..] {
        let started = run.started.map(Timestamp::time);
        let resolved = run.resolved.map(Timestamp::time);
        let is_open = started.is_none() && resolved.is_none();
        let (stage, words) = if is_open && is_held { (Stage::Held, "held") } else { (Stage::Waited, "waited") };
        add(stage, run.scheduled.time(), started.or(resolved).unwrap_or(now), format!("run {} {words}", run.run_id));
        if let Some(started) = started {
            let words = format!("run {} ({}) ran", run.run_id, run.state);
            add(Stage::Ran(run.state), started, resolved.unwrap_or(now), words);
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(second)
    }

    fn run(id: u16, scheduled: i64, started: Option<i64>, resolved: Option<i64>, state: &str) -> Run {
        let date = |second: i64| at(second).to_rfc3339().replace("+00:00", ".000Z");
        let mut run = json!({"runId": id, "state": state, "reasonCreated": "scheduled", "scheduled": date(scheduled)});
        for (name, time) in [("started", started), ("resolved", resolved)] {
            if let Some(time) = time {
                run[name] = Value::from(date(time));
            }
        }
        serde_json::from_value(run).unwrap()
    }

    fn lengths(segments: &[Segment]) -> Vec<(Stage, i64)> {
        segments.iter().map(|segment| (segment.stage, segment.length.num_seconds())).collect()
    }

    #[test]
    fn each_run_has_waited_and_ran() {
        let runs = [run(0, 10, Some(12), Some(20), "exception"), run(1, 20, Some(25), None, "running")];
        let segments = segments(&runs, Some(at(4)), false, at(30));
        let expected = [
            (Stage::Unscheduled, 6),
            (Stage::Waited, 2),
            (Stage::Ran(RunState::Exception), 8),
            (Stage::Waited, 5),
            (Stage::Ran(RunState::Running), 5),
        ];
        assert_eq!(lengths(&segments), expected);
        assert_eq!(segments[2].words, "run 0 (exception) ran 8 s");
    }

    #[test]
    fn pending_run_is_held_or_waits() {
        let runs = [run(0, 10, None, None, "pending")];
        assert_eq!(lengths(&segments(&runs, None, true, at(15))), [(Stage::Held, 5)]);
        assert_eq!(lengths(&segments(&runs, Some(at(10)), false, at(15))), [(Stage::Waited, 5)]);
        // The database's time precedes the run's after a change of clocks.
        assert_eq!(lengths(&segments(&runs, None, false, at(5))), [(Stage::Waited, 0)]);
    }

    #[test]
    fn task_without_run_waits_for_other_tasks() {
        assert_eq!(lengths(&segments(&[], Some(at(1)), false, at(9))), [(Stage::Unscheduled, 8)]);
        assert!(segments(&[], None, false, at(9)).is_empty());
    }

    #[test]
    fn newest_runs_are_drawn() {
        let runs: Vec<Run> = (0..100).map(|id| run(id, 10, None, Some(11), "exception")).collect();
        let segments = segments(&runs, None, false, at(30));
        assert_eq!((segments.len(), segments[0].words.as_str()), (RUNS_MAX, "run 80 waited 1 s"));
    }
}
