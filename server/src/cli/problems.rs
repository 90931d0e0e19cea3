//! `tenure problems`: what needs somebody.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::http::{CommandError, Server, ServerArgs, entries, field};
use super::print::{escaped, print};

/// As often as servers read the facts.
const EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct ProblemsArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print a line when a problem begins or ends, until interrupted
    #[arg(long)]
    pub watch: bool,
}

/// The exit code is 1 if a problem needs somebody now.
pub async fn run(server: &Server, args: &ProblemsArgs) -> Result<ExitCode, CommandError> {
    if args.watch {
        return watch(server).await;
    }
    let answer = server.client.list_problems().await.map_err(|error| server.error(&error))?;
    let problems = entries(&answer, "problems");
    let urgent = problems.iter().any(|problem| problem["severity"] == "now");
    server.print(&answer, |answer| shown(entries(answer, "problems")))?;
    Ok(if urgent { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn shown(problems: &[Value]) -> String {
    if problems.is_empty() {
        return "Nothing needs somebody.".to_owned();
    }
    let mut text = String::new();
    for problem in problems {
        text += &line(problem);
        if problem["action"].is_string() {
            text += &format!("{:20}  {}\n", "", field(problem, "/action"));
        }
    }
    text
}

fn line(problem: &Value) -> String {
    let [severity, kind, message] = ["/severity", "/kind", "/message"].map(|pointer| field(problem, pointer));
    format!("{severity:5}  {kind:13}  {message}\n")
}

/// Problems by kind and object: their sentences change with time.
type Known = BTreeMap<String, Value>;

async fn watch(server: &Server) -> Result<ExitCode, CommandError> {
    // A wrong address is reported at once; a server that has answered may be away for a while.
    let mut answer = server.client.list_problems().await.map_err(|error| server.error(&error))?;
    let patient = server.patient();
    let mut known = Known::new();
    loop {
        let now: Known = entries(&answer, "problems").iter().map(|problem| (name(problem), problem.clone())).collect();
        let text = changes(&known, &now, server.json);
        known = now;
        print(&text).map_err(|error| CommandError::Refused(format!("the result cannot be written: {error}")))?;
        tokio::time::sleep(EVERY).await;
        answer = patient.client.list_problems().await.map_err(|error| server.error(&error))?;
    }
}

fn name(problem: &Value) -> String {
    format!("{} {}", problem["kind"], problem["object"])
}

fn changes(before: &Known, now: &Known, json: bool) -> String {
    let one = |change: &str, problem: &Value| {
        if json {
            let mut problem = problem.clone();
            problem["change"] = change.into();
            return escaped(&problem.to_string()) + "\n";
        }
        format!("{change:5}  {}", line(problem))
    };
    let ended = before.iter().filter(|(name, _)| !now.contains_key(*name)).map(|(_, problem)| one("ended", problem));
    let begun = now.iter().filter(|(name, _)| !before.contains_key(*name)).map(|(_, problem)| one("began", problem));
    ended.chain(begun).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paused(queue: &str) -> Value {
        json!({"kind": "paused", "severity": "known", "object": {"queue": queue}, "since": "S",
            "message": format!("{queue} is paused\u{1b}[31m"), "action": "Resume it"})
    }

    #[test]
    fn problem_has_a_line_and_its_way_out() {
        assert_eq!(shown(&[]), "Nothing needs somebody.");
        let text = shown(&[paused("a/b")]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["known  paused         a/b is paused\u{fffd}[31m", "                      Resume it"]);
    }

    #[test]
    fn watch_prints_changes_only() {
        let known =
            |queues: &[&str]| queues.iter().map(|queue| paused(queue)).map(|p| (name(&p), p)).collect::<Known>();
        let (one, other) = (known(&["a/b"]), known(&["a/c"]));
        assert_eq!(changes(&one, &one, false), "");
        let text = changes(&one, &other, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("ended  known  paused         a/b"), "{text}");
        assert!(lines[1].starts_with("began  known  paused         a/c"), "{text}");
        let line: Value = serde_json::from_str(&changes(&Known::new(), &one, true)).unwrap();
        assert_eq!((&line["change"], &line["object"]["queue"]), (&json!("began"), &json!("a/b")));
    }
}
