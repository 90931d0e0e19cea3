//! `tenure queue statistics`.

use std::time::Duration;

use chrono::TimeDelta;
use clap::Args;
use serde_json::Value;
use tenure_api::ids::TaskQueueId;
use tenure_client::StatisticsRange;

use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::print::table;
use crate::cli::when::{When, parse_seconds};
use crate::config::parse_duration;

#[derive(Debug, Args)]
pub struct StatisticsArgs {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail` [default: all queues
    /// together]
    #[arg(allow_hyphen_values = true)]
    pub queue: Option<TaskQueueId>,
    /// How far back to begin, such as 24h, up to 90d [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Time per line: 1m, 10m or 1h [default: the shortest that is possible]
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub step: Option<i64>,
}

pub(super) async fn run(server: &Server, args: StatisticsArgs) -> Result<(), CommandError> {
    let StatisticsArgs { queue, since, step } = args;
    let ago = |since: Duration| TimeDelta::from_std(since).ok().filter(|since| *since <= TimeDelta::days(36_500));
    let since = since
        .map(|since| ago(since).ok_or_else(|| CommandError::Usage("--since is too long: write 90d or less".to_owned())))
        .transpose()?;
    let from = server.time(since.map(|since| When::In(-since))).await?;
    let range = StatisticsRange { from, to: None, step };
    let client = &server.client;
    let answer = match &queue {
        Some(queue) => client.get_queue_statistics(queue, range).await,
        None => client.get_statistics(range).await,
    };
    server.print(&answer.map_err(|error| server.error(&error))?, |answer| rows(entries(answer, "points")))
}

/// Leaves out times in which nothing was counted.
fn rows(points: &[Value]) -> String {
    const COUNTS: [&str; 8] =
        ["created", "started", "completed", "failed", "exception", "lost", "pendingMost", "claimedMost"];
    let is_counted = |point: &&Value| COUNTS.iter().any(|name| point[*name].as_i64() != Some(0));
    let counted: Vec<&Value> = points.iter().filter(is_counted).collect();
    if counted.is_empty() {
        return "Nothing happened in this time.".to_owned();
    }
    let head = [
        "FROM",
        "CREATED",
        "STARTED",
        "DONE",
        "FAILED",
        "EXCEPTION",
        "LOST",
        "PENDING",
        "CLAIMED",
        "WAIT P50",
        "WAIT P95",
        "RUN P50",
        "RUN P95",
    ];
    let row = |point: &&Value| {
        let count = |n: usize| field(point, &format!("/{}", COUNTS[n]));
        let seconds = |name: &str| point[name].as_f64().map_or_else(|| "-".to_owned(), |most| format!("{most}s"));
        [
            field(point, "/at"),
            count(0),
            count(1),
            count(2),
            count(3),
            count(4),
            count(5),
            count(6),
            count(7),
            seconds("waitP50"),
            seconds("waitP95"),
            seconds("runP50"),
            seconds("runP95"),
        ]
    };
    table(head, counted.iter().map(row))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn statistics_are_shown_for_people() {
        let idle = json!({"at": "A", "created": 0, "started": 0, "completed": 0, "failed": 0, "exception": 0, "lost": 0,
            "pendingMost": 0, "claimedMost": 0});
        assert_eq!(rows(std::slice::from_ref(&idle)), "Nothing happened in this time.");
        let mut busy = idle.clone();
        busy["at"] = "B".into();
        busy["created"] = 12.into();
        busy["waitP50"] = 0.5.into();
        busy["waitP95"] = 60.0.into();
        let text = rows(&[idle, busy]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1], ["B", "12", "0", "0", "0", "0", "0", "0", "0", "0.5s", "60s", "-", "-"]);
    }
}
