//! A task for people: its verdict, properties, runs and artifacts.

use serde_json::{Value, json};
use tenure_api::bodies::Status;
use tenure_api::ids::TaskId;
use tenure_domain::verdict::{Report, one_line, verdict};

use super::artifacts;
use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::print::{plain, table};

/// Shown characters of a checkpoint, which may have 64 KiB.
const CHECKPOINT_CHARS: usize = 400;

/// Columns before the values of a task's properties.
const INDENT: usize = 15;

/// Result and failure in `answer` belong to the last run, and may be absent.
pub fn verdict_of(server: &Server, answer: &Value) -> Option<String> {
    let status: Status = serde_json::from_value(answer["status"].clone()).ok()?;
    Some(verdict(&status, &report_of(answer), server.client.now().time()))
}

fn report_of(answer: &Value) -> Report {
    Report::of(&answer["failure"], &answer["result"])
}

/// Reads a task, its artifacts, and the result and failure of its last run, as far as the caller
/// may.
pub async fn read(server: &Server, task: TaskId) -> Result<Value, CommandError> {
    let refused = |error: tenure_client::Error| server.error(&error);
    let client = &server.client;
    let mut answer = client.get_task(task).await.map_err(refused)?;
    if entries(&answer["status"], "runs").is_empty() {
        return Ok(answer);
    }
    // Without the scope, or without a result, the rest is shown.
    let missing = |error: &tenure_client::Error| matches!(error.status(), Some(403 | 404));
    match client.get_result(task, None).await {
        Ok(found) => {
            for name in ["result", "failure"] {
                if let Some(value) = found.get(name) {
                    answer[name] = value.clone();
                }
            }
        }
        Err(error) if missing(&error) => {}
        Err(error) => return Err(refused(error)),
    }
    match client.get_checkpoint::<Value>(task).await {
        Ok(Some(found)) => answer["checkpoint"] = json!(found),
        Ok(None) => {}
        Err(error) if missing(&error) => {}
        Err(error) => return Err(refused(error)),
    }
    match client.list_artifacts(task, None).await {
        Ok(found) => answer["artifacts"] = found.iter().map(artifacts::as_json).collect(),
        Err(error) if missing(&error) => {}
        Err(error) => return Err(refused(error)),
    }
    Ok(answer)
}

fn checkpoint(answer: &Value) -> Option<String> {
    let text = plain(&answer.pointer("/checkpoint/checkpoint")?.to_string());
    let mut shown: String = text.chars().take(CHECKPOINT_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    let (run, updated) = (field(answer, "/checkpoint/runId"), field(answer, "/checkpoint/updated"));
    Some(format!("{shown}  (run {run}, {updated})"))
}

/// The whole message of the last failure, if the verdict shows only a part.
fn failure(answer: &Value) -> Option<String> {
    let message = answer.pointer("/failure/message")?.as_str()?;
    let lines: Vec<String> = message.lines().map(plain).collect();
    (one_line(message) != message).then(|| lines.join(&format!("\n{:INDENT$}", "")))
}

/// Formats the result of [`read`].
pub fn details(server: &Server, answer: &Value) -> String {
    let verdict = verdict_of(server, answer).unwrap_or_else(|| field(answer, "/status/state"));
    let dependencies: Vec<&str> = entries(&answer["task"], "dependencies").iter().filter_map(Value::as_str).collect();
    let exit_code = report_of(answer).exit_code;
    let rows = [
        ("task", field(answer, "/status/taskId")),
        ("name", field(answer, "/task/metadata/name")),
        ("state", field(answer, "/status/state")),
        ("exit code", exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string())),
        ("queue", field(answer, "/status/taskQueueId")),
        ("group", field(answer, "/status/taskGroupId")),
        ("priority", field(answer, "/status/priority")),
        ("retries left", field(answer, "/status/retriesLeft")),
        ("created", field(answer, "/task/created")),
        ("deadline", field(answer, "/status/deadline")),
        ("expires", field(answer, "/status/expires")),
        ("owner", field(answer, "/task/metadata/owner")),
        ("after", if dependencies.is_empty() { "-".to_owned() } else { dependencies.join(" ") }),
        ("payload", field(answer, "/task/payload")),
    ];
    let failure = failure(answer).map(|text| ("failure", text));
    let checkpoint = checkpoint(answer).map(|text| ("checkpoint", text));
    let text: String =
        rows.iter().chain(&failure).chain(&checkpoint).map(|(name, value)| format!("{name:13}  {value}\n")).collect();
    let run = |run: &Value| {
        [
            field(run, "/runId"),
            field(run, "/state"),
            field(run, "/reasonResolved"),
            field(run, "/started"),
            field(run, "/resolved"),
            format!("{}/{}", field(run, "/workerGroup"), field(run, "/workerId")),
        ]
    };
    let runs = table(
        ["RUN", "STATE", "REASON", "STARTED", "RESOLVED", "WORKER"],
        entries(&answer["status"], "runs").iter().map(run),
    );
    let listed = entries(answer, "artifacts");
    if listed.is_empty() {
        return format!("{verdict}\n\n{text}\n{runs}");
    }
    let artifacts = artifacts::rows(listed);
    format!("{verdict}\n\n{text}\n{runs}\n{artifacts}")
}
