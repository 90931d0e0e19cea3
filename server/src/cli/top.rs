//! `tenure top`: the queues with the most work.

use std::cmp::Reverse;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use chrono::TimeDelta;
use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tenure_api::ids::TaskQueueId;
use tenure_client::{Method, StatisticsRange};
use tenure_domain::verdict::span;

use super::http::{CommandError, Server, ServerArgs, entries, field};
use super::print::{escaped, print, table};
use super::when::When;

const QUEUES: &str = "/api/tenure/v1/queues?activity=true";
/// As often as servers read the ages.
const EVERY: Duration = Duration::from_secs(5);
/// Rates cover the last five whole minutes.
const RATES_OF: When = When::In(TimeDelta::minutes(-6));
const STEP: i64 = 60;
const READS_MAX: usize = 10;
/// Clears a terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print the queues again every five seconds, until interrupted
    #[arg(short, long)]
    pub watch: bool,
    /// The number of queues to show, 1 to 100
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub limit: u8,
}

pub async fn run(server: &Server, args: &TopArgs) -> Result<ExitCode, CommandError> {
    let limit = usize::from(args.limit);
    // A wrong address is reported at once; a server that has answered may be away for a while.
    let mut answer = look(server, limit).await?;
    if !args.watch {
        server.print(&answer, text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let patient = server.patient();
    let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
    loop {
        let shown = if server.json { escaped(&answer.to_string()) } else { text(&answer) };
        print(&format!("{clear}{}\n", shown.trim_end()))
            .map_err(|error| CommandError::Refused(format!("the result cannot be written: {error}")))?;
        tokio::time::sleep(EVERY).await;
        answer = look(&patient, limit).await?;
    }
}

/// Returns the queues with the most pending and claimed runs, with their rates.
async fn look(server: &Server, limit: usize) -> Result<Value, CommandError> {
    let answer = server.client.request(Method::GET, QUEUES, None).await.map_err(|error| server.error(&error))?;
    let mut queues = entries(&answer, "queues").to_vec();
    let all = queues.len();
    queues.sort_by_key(|queue| Reverse(number(queue, "pendingTasks") + number(queue, "claimedTasks")));
    queues.truncate(limit);
    let range = StatisticsRange { from: server.time(Some(RATES_OF)).await?, to: None, step: Some(STEP) };
    let rates: Vec<Value> =
        stream::iter(&queues).map(|queue| rates(server, queue, range)).buffered(READS_MAX).try_collect().await?;
    for (queue, rates) in queues.iter_mut().zip(rates) {
        queue["perMinute"] = rates;
    }
    Ok(json!({ "queues": queues, "all": all }))
}

fn number(queue: &Value, name: &str) -> i64 {
    queue[name].as_i64().unwrap_or_default()
}

/// Null without the scope that shows the numbers of the queue.
async fn rates(server: &Server, queue: &Value, range: StatisticsRange) -> Result<Value, CommandError> {
    let Ok(queue) = field(queue, "/taskQueueId").parse::<TaskQueueId>() else { return Ok(Value::Null) };
    match server.client.get_queue_statistics(&queue, range).await {
        Ok(answer) => Ok(per_minute(entries(&answer, "points"))),
        Err(error) if error.status() == Some(403) => Ok(Value::Null),
        Err(error) => Err(server.error(&error)),
    }
}

/// The last point is of a minute that goes on.
fn per_minute(points: &[Value]) -> Value {
    let whole = points.split_last().map_or(&[][..], |(_, whole)| whole);
    if whole.is_empty() {
        return Value::Null;
    }
    let rate = |name: &str| {
        let sum: i64 = whole.iter().map(|point| number(point, name)).sum();
        (sum as f64 / whole.len() as f64 * 10.0).round() / 10.0
    };
    json!({
        "created": rate("created"),
        "completed": rate("completed"),
        "failed": rate("failed"),
        "exception": rate("exception"),
    })
}

fn text(answer: &Value) -> String {
    let queues = entries(answer, "queues");
    let row = |queue: &Value| {
        let workers = |state: &str| field(queue, &format!("/activity/workers/{state}"));
        let out: i64 =
            ["silent", "quarantined", "frozen"].map(|state| number(&queue["activity"]["workers"], state)).iter().sum();
        let paused = if queue["paused"].is_null() { "" } else { " (paused)" };
        [
            field(queue, "/pendingTasks"),
            field(queue, "/waitingTasks"),
            age(queue, "oldestRunnable"),
            age(queue, "oldestHeld"),
            field(queue, "/claimedTasks"),
            workers("working"),
            workers("idle"),
            out.to_string(),
            field(queue, "/perMinute/created"),
            field(queue, "/perMinute/completed"),
            field(queue, "/perMinute/failed"),
            field(queue, "/taskQueueId") + paused,
        ]
    };
    let head = [
        "PENDING",
        "WAITING",
        "OLDEST",
        "HELD FOR",
        "CLAIMED",
        "WORKING",
        "IDLE",
        "OUT",
        "CREATED/MIN",
        "DONE/MIN",
        "FAILED/MIN",
        "QUEUE",
    ];
    let text = table(head, queues.iter().map(row));
    match number(answer, "all") - i64::try_from(queues.len()).unwrap_or_default() {
        more if more > 0 => format!("{text}and {more} more\n"),
        _ => text,
    }
}

fn age(queue: &Value, name: &str) -> String {
    let seconds = queue["activity"][name].as_i64().and_then(TimeDelta::try_seconds);
    seconds.map_or_else(|| "-".to_owned(), span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_whole_minutes() {
        let point = |created: i64| json!({"created": created, "completed": 1, "failed": 0, "exception": 0});
        assert_eq!(per_minute(&[point(1), point(2), point(4), point(100)])["created"], json!(2.3));
        assert_eq!(per_minute(&[point(9), point(1)])["completed"], json!(1.0));
        assert_eq!((per_minute(&[point(9)]), per_minute(&[])), (Value::Null, Value::Null));
    }

    #[test]
    fn queues_are_shown_for_people() {
        let workers = json!({"working": 2, "idle": 1, "silent": 1, "quarantined": 2, "frozen": 0});
        let busy = json!({"taskQueueId": "p/w", "pendingTasks": 5, "waitingTasks": 4, "claimedTasks": 2, "paused": "S",
            "activity": {"oldestHeld": 90, "workers": workers}, "perMinute": {"created": 2.5, "completed": 2.0, "failed": 0.0}});
        let text = text(&json!({"queues": [busy], "all": 3}));
        let lines: Vec<&str> = text.lines().collect();
        let cells: Vec<&str> = lines[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["5", "4", "-", "1 m 30 s", "2", "2", "1", "3", "2.5", "2.0", "0.0", "p/w (paused)"]);
        assert_eq!(lines[2], "and 2 more");
    }
}
