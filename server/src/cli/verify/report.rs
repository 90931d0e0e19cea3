//! Prints the observations and their differences from the documentation.

use chrono::TimeDelta;
use serde_json::{Value, json};
use tenure_api::ids::{TaskId, TaskQueueId};

use super::judge::{Difference, LATE_MAX, LATE_PROMISED, lateness, seconds};
use super::observations::Observations;
use super::part::Part;
use crate::cli::print::table;

pub struct Judged<'a> {
    pub part: &'a Part,
    pub queue: &'a TaskQueueId,
    pub task: TaskId,
    pub observed: Observations,
    pub differences: Vec<Difference>,
}

impl Judged<'_> {
    pub fn is_as_published(&self) -> bool {
        self.differences.is_empty()
    }
}

pub fn answer(root_url: &str, cells: &[Judged<'_>]) -> Value {
    let entries: Vec<Value> = cells.iter().map(entry).collect();
    json!({"rootUrl": root_url, "asPublished": cells.iter().all(Judged::is_as_published), "cells": entries})
}

fn entry(judged: &Judged<'_>) -> Value {
    let Judged { part, queue, task, observed, differences } = judged;
    let log: Vec<Value> =
        observed.resolutions.iter().map(|end| json!({"runId": end.run, "exchange": end.exchange})).collect();
    json!({
        "cell": part.cell.name(),
        "by": part.by.as_str(),
        "published": part.cell.words(),
        "asPublished": judged.is_as_published(),
        "differences": differences.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "lateSeconds": lateness(part, observed).map(TimeDelta::as_seconds_f64),
        "taskQueueId": queue,
        "taskId": task,
        "firstReport": observed.first_report,
        "secondReport": observed.second_report,
        "endedBy": observed.ended_by,
        "log": log,
        "status": observed.status,
    })
}

pub fn text(cells: &[Judged<'_>]) -> String {
    let row = |judged: &Judged<'_>| {
        let Judged { part, queue, observed, .. } = judged;
        [
            part.cell.name(),
            part.by.as_str().to_owned(),
            if judged.is_as_published() { "yes" } else { "NO" }.to_owned(),
            lateness(part, observed).map_or_else(|| "-".to_owned(), seconds),
            observed.status.runs.len().to_string(),
            observed.status.state.to_string(),
            observed.first_report.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            queue.to_string(),
        ]
    };
    let head = ["CELL", "BY", "AS PUBLISHED", "LATE BY", "RUNS", "STATE", "FIRST REPORT", "QUEUE"];
    let mut text = table(head, cells.iter().map(row));
    for Judged { part, observed, differences, .. } in cells {
        for difference in differences {
            text.push_str(&format!("{}: {difference}\n", part.name()));
        }
        let late = lateness(part, observed).filter(|late| *late > LATE_PROMISED && *late <= LATE_MAX);
        if let Some(late) = late {
            text.push_str(&format!(
                "{}: {} late; promised is {}, and a difference is more than {}\n",
                part.name(),
                seconds(late),
                seconds(LATE_PROMISED),
                seconds(LATE_MAX)
            ));
        }
    }
    let differ = cells.iter().filter(|judged| !judged.is_as_published()).count();
    text.push_str(&match differ {
        0 => format!("All {} are as published.\n", cells.len()),
        differ => format!("{differ} of {} are not as published.\n", cells.len()),
    });
    text
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
