//! `tenure queue dead-letters` and `tenure queue redrive`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::dead_letters::{RedriveCopy, RedriveRequest};
use tenure_api::ids::TaskQueueId;
use tenure_api::states::ReasonResolved;
use tenure_client::DeadLetterFilter;

use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::print::table;
use crate::cli::task::id::TaskRef;
use crate::cli::when::{parse_date, parse_seconds};

/// Tasks per request.
const PAGE: usize = 1_000;

#[derive(Debug, Args)]
pub struct DeadLettersArgs {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(allow_hyphen_values = true)]
    queue: TaskQueueId,
    #[command(flatten)]
    filter: FilterArgs,
    /// The number of tasks to show, the oldest ones
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

#[derive(Debug, Args)]
struct FilterArgs {
    /// Only tasks that ended for this reason, such as failed or claim-expired
    #[arg(long, value_parser = parse_reason)]
    reason: Option<ReasonResolved>,
    /// Only tasks that failed before this time, such as 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_date)]
    before: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub struct RedriveArgs {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(allow_hyphen_values = true)]
    queue: TaskQueueId,
    /// Only these tasks [default: all, the oldest first]
    #[arg(value_name = "TASK", conflicts_with_all = ["reason", "before", "limit"])]
    tasks: Vec<TaskRef>,
    #[command(flatten)]
    filter: FilterArgs,
    /// The number of tasks to try, the oldest ones [default: all]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Copy tasks whose deadline has passed, with a deadline after this duration, such as 1d
    /// [default: they are refused]
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    copy: Option<i64>,
}

fn parse_reason(text: &str) -> Result<ReasonResolved, String> {
    serde_json::from_value(json!(text)).map_err(|_| {
        let words: Vec<&str> = ReasonResolved::ALL.iter().map(|reason| reason.as_str()).collect();
        format!("write one of {}", words.join(", "))
    })
}

pub async fn list(server: &Server, args: DeadLettersArgs) -> Result<(), CommandError> {
    let DeadLettersArgs { queue, filter: FilterArgs { reason, before }, limit } = args;
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let (mut all, mut token) = (Vec::new(), None::<String>);
    loop {
        let limit = u16::try_from((wanted - all.len()).min(PAGE)).ok();
        let filter = DeadLetterFilter { reason, before, limit };
        let page = server.client.list_dead_letters(&queue, filter, token.as_deref()).await;
        let page = page.map_err(|error| server.error(&error))?;
        all.extend_from_slice(entries(&page, "deadLetters"));
        all.truncate(wanted);
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() || all.len() == wanted {
            break;
        }
    }
    server.print(&json!({ "deadLetters": all }), |answer| rows(entries(answer, "deadLetters")))
}

fn rows(letters: &[Value]) -> String {
    let row = |letter: &Value| {
        [
            field(letter, "/resolved"),
            field(letter, "/reasonResolved"),
            field(letter, "/runId"),
            field(letter, "/deadline"),
            field(letter, "/taskId"),
            field(letter, "/name"),
        ]
    };
    table(["FAILED", "REASON", "RUN", "DEADLINE", "TASK", "NAME"], letters.iter().map(row))
}

/// Continues until all tasks were tried. Exit code 1 if one was refused.
pub async fn redrive(server: &Server, args: RedriveArgs) -> Result<ExitCode, CommandError> {
    let RedriveArgs { queue, tasks, filter: FilterArgs { reason, before }, limit, copy } = args;
    let copy = copy.map(|deadline_after| RedriveCopy { deadline_after });
    let mut sum = Sum::default();
    if tasks.is_empty() {
        let mut left = limit.map(usize::try_from).and_then(Result::ok);
        let mut request = RedriveRequest { reason, before, copy, ..RedriveRequest::default() };
        loop {
            request.limit = left.map(|left| left.min(PAGE) as i64);
            let answer = server.client.redrive_queue(&queue, &request).await;
            let tried = sum.add(&answer.map_err(|error| server.error(&error))?);
            left = left.map(|left| left.saturating_sub(tried));
            request.continuation_token = sum.token.take();
            if request.continuation_token.is_none() || left == Some(0) {
                break;
            }
        }
    }
    let tasks = TaskRef::find_all(server, &tasks).await?;
    for several in tasks.chunks(PAGE) {
        let request = RedriveRequest { task_ids: Some(several.to_vec()), copy, ..RedriveRequest::default() };
        let answer = server.client.redrive_queue(&queue, &request).await;
        sum.add(&answer.map_err(|error| server.error(&error))?);
    }
    let Sum { redriven, copied, refused_count, refused, .. } = sum;
    let answer = json!({"redriven": redriven, "copied": copied, "refusedCount": refused_count, "refused": refused});
    server.print(&answer, |answer| summary(&queue, answer))?;
    Ok(if refused_count > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// All answers together.
#[derive(Default)]
struct Sum {
    redriven: u64,
    copied: u64,
    refused_count: u64,
    refused: Vec<Value>,
    token: Option<String>,
}

impl Sum {
    /// Returns the number of tasks that the request tried.
    fn add(&mut self, answer: &Value) -> usize {
        let [redriven, copied, refused] =
            ["redriven", "copied", "refusedCount"].map(|name| answer[name].as_u64().unwrap_or_default());
        self.redriven += redriven;
        self.copied += copied;
        self.refused_count += refused;
        self.refused.extend_from_slice(entries(answer, "refused"));
        self.token = answer["continuationToken"].as_str().map(str::to_owned);
        usize::try_from(redriven + copied + refused).unwrap_or(usize::MAX)
    }
}

fn summary(queue: &TaskQueueId, answer: &Value) -> String {
    let [redriven, copied, refused] = ["/redriven", "/copied", "/refusedCount"].map(|at| field(answer, at));
    let head = format!("Queue {queue}: {redriven} tasks run again, {copied} copied, {refused} refused.\n");
    let refused = entries(answer, "refused");
    if refused.is_empty() {
        return head;
    }
    let row = |refused: &Value| [field(refused, "/taskId"), field(refused, "/code"), field(refused, "/message")];
    head + &table(["TASK", "CODE", "MESSAGE"], refused.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letters_are_shown_for_people() {
        let letter = json!({"taskId": "T", "runId": 2, "name": "n", "state": "failed", "reasonResolved": "failed",
            "resolved": "R", "deadline": "D"});
        assert_eq!(
            rows(&[letter]),
            "FAILED  REASON  RUN  DEADLINE  TASK  NAME\nR       failed  2    D         T     n\n"
        );
    }

    #[test]
    fn answers_of_redrive_are_added_up() {
        let refused = json!({"taskId": "T", "code": "RequestConflict", "message": "m"});
        let mut sum = Sum::default();
        let first =
            json!({"redriven": 2, "copied": 0, "refusedCount": 1, "refused": [refused], "continuationToken": "x"});
        assert_eq!(sum.add(&first), 3);
        assert_eq!(sum.token.take().as_deref(), Some("x"));
        assert_eq!(sum.add(&json!({"redriven": 1, "copied": 4, "refusedCount": 0, "refused": []})), 5);
        assert_eq!((sum.redriven, sum.copied, sum.refused_count, sum.token), (3, 4, 1, None));
        let answer = json!({"redriven": 3, "copied": 4, "refusedCount": 1, "refused": sum.refused});
        let text = summary(&"p/w".parse().unwrap(), &answer);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Queue p/w: 3 tasks run again, 4 copied, 1 refused.");
        assert_eq!(lines[2], "T     RequestConflict  m");
    }
}
