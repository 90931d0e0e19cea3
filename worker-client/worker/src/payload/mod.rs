//! The payload of this worker, checked field by field so that a refusal names the wrong field.
//!
//! ```json
//! {
//!   "command": [["tar", "xf", "in.tar"], ["make"]], "env": {"LANG": "C"}, "maxRunTime": 600,
//!   "retryOn": [75],
//!   "inputs": [{"taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "artifact": "public/in.tar", "path": "in.tar"}],
//!   "artifacts": [{"name": "public/out", "path": "out", "type": "directory"}]
//! }
//! ```

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

pub(super) use files::{Input, Kind, Output, is_name};
use serde_json::{Map, Value};

use tenure_client::Task;

const DEFAULT_MAX_RUN_TIME_SECONDS: u64 = 3600;
/// Five days, the limit of a Taskcluster deadline.
const MAX_RUN_TIME_CAP_SECONDS: u64 = 5 * 24 * 3600;
const FIELDS: [&str; 6] = ["command", "env", "maxRunTime", "retryOn", "inputs", "artifacts"];
/// Of commands that failed.
const EXIT_CODES: RangeInclusive<u64> = 1..=255;
const RETRY_ON_MAX: usize = 255;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// Run in order until one fails.
    pub commands: Vec<Vec<String>>,
    pub env: BTreeMap<String, String>,
    /// For all commands together.
    pub max_run_time: Duration,
    /// Exit codes after which the task is retried.
    pub retry_on: BTreeSet<i32>,
    pub inputs: Vec<Input>,
    /// Uploaded even after a failure.
    pub outputs: Vec<Output>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub(super) struct Malformed {
    field: String,
    problem: String,
}

fn malformed(field: impl Into<String>, problem: impl Into<String>) -> Malformed {
    Malformed { field: field.into(), problem: problem.into() }
}

impl Payload {
    pub(super) fn of(task: &Task) -> Result<Self, Malformed> {
        let payload = serde_json::from_str(task.payload.get())
            .map_err(|error| malformed("payload", format!("cannot be read: {error}")))?;
        let payload = Self::parse(&payload)?;
        files::fit(&payload.inputs, &payload.outputs, task)?;
        Ok(payload)
    }

    fn parse(payload: &Value) -> Result<Self, Malformed> {
        let Value::Object(fields) = payload else { return Err(malformed("payload", "must be an object")) };
        if let Some(unknown) = fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
            let problem = format!("is not known: this worker takes {}", FIELDS.join(", "));
            return Err(malformed(format!("payload.{unknown}"), problem));
        }
        Ok(Self {
            commands: commands(fields)?,
            env: env(fields)?,
            max_run_time: max_run_time(fields)?,
            retry_on: retry_on(fields)?,
            inputs: files::inputs(fields)?,
            outputs: files::outputs(fields)?,
        })
    }
}

fn commands(fields: &Map<String, Value>) -> Result<Vec<Vec<String>>, Malformed> {
    let value = fields.get("command").ok_or_else(|| malformed("payload.command", "is required"))?;
    let list = filled_list(value, "payload.command", "commands")?;
    list.iter().enumerate().map(|(at, value)| command(value, &format!("payload.command[{at}]"))).collect()
}

fn command(value: &Value, field: &str) -> Result<Vec<String>, Malformed> {
    let words = filled_list(value, field, "strings, first the program")?;
    let argv: Vec<String> =
        words.iter().enumerate().map(|(at, word)| text(word, &format!("{field}[{at}]"))).collect::<Result<_, _>>()?;
    if argv[0].is_empty() {
        return Err(malformed(format!("{field}[0]"), "must name a program"));
    }
    Ok(argv)
}

fn env(fields: &Map<String, Value>) -> Result<BTreeMap<String, String>, Malformed> {
    let Some(value) = fields.get("env") else { return Ok(BTreeMap::new()) };
    let Value::Object(variables) = value else { return Err(malformed("payload.env", "must be an object")) };
    let variable = |(name, value): (&String, &Value)| {
        let field = format!("payload.env.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(malformed(field, "is not a name that an environment variable can have"));
        }
        Ok((name.clone(), text(value, &field)?))
    };
    variables.iter().map(variable).collect()
}

fn max_run_time(fields: &Map<String, Value>) -> Result<Duration, Malformed> {
    let seconds = match fields.get("maxRunTime") {
        None => Some(DEFAULT_MAX_RUN_TIME_SECONDS),
        Some(value) => value.as_u64().filter(|seconds| (1..=MAX_RUN_TIME_CAP_SECONDS).contains(seconds)),
    };
    let problem = || format!("must be a whole number of seconds from 1 to {MAX_RUN_TIME_CAP_SECONDS}");
    seconds.map(Duration::from_secs).ok_or_else(|| malformed("payload.maxRunTime", problem()))
}

fn retry_on(fields: &Map<String, Value>) -> Result<BTreeSet<i32>, Malformed> {
    let Some(value) = fields.get("retryOn") else { return Ok(BTreeSet::new()) };
    let list = filled_list(value, "payload.retryOn", "exit codes")?;
    if list.len() > RETRY_ON_MAX {
        return Err(malformed("payload.retryOn", format!("must have at most {RETRY_ON_MAX} exit codes")));
    }
    list.iter().enumerate().map(|(at, value)| exit_code(value, format!("payload.retryOn[{at}]"))).collect()
}

fn exit_code(value: &Value, field: String) -> Result<i32, Malformed> {
    match value.as_u64() {
        Some(0) => Err(malformed(field, "must not be 0, the exit code of success")),
        Some(code) if EXIT_CODES.contains(&code) => Ok(i32::try_from(code).expect("it is at most 255")),
        _ => {
            let (least, most) = EXIT_CODES.into_inner();
            Err(malformed(field, format!("must be a whole number from {least} to {most}")))
        }
    }
}

fn filled_list<'a>(value: &'a Value, field: &str, of: &str) -> Result<&'a [Value], Malformed> {
    match value {
        Value::Array(list) if !list.is_empty() => Ok(list),
        _ => Err(malformed(field, format!("must be a list, not empty, of {of}"))),
    }
}

fn text(value: &Value, field: &str) -> Result<String, Malformed> {
    match value {
        // The system would cut the text at the NUL.
        Value::String(text) if !text.contains('\0') => Ok(text.clone()),
        Value::String(_) => Err(malformed(field, "must not contain NUL")),
        _ => Err(malformed(field, "must be a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_payload_is_read() {
        let payload =
            json!({"command": [["a", ""], ["b"]], "env": {"K": "v"}, "maxRunTime": 7, "retryOn": [255, 1, 1]});
        let expected = Payload {
            commands: vec![vec!["a".into(), String::new()], vec!["b".into()]],
            env: BTreeMap::from([("K".into(), "v".into())]),
            max_run_time: Duration::from_secs(7),
            retry_on: BTreeSet::from([1, 255]),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        assert_eq!(Payload::parse(&payload), Ok(expected));
        let short = Payload::parse(&json!({"command": [["a"]]})).unwrap();
        assert_eq!((short.env.len(), short.max_run_time), (0, Duration::from_secs(3600)));
        assert!(short.retry_on.is_empty());
    }

    /// The payloads of all task definitions below a value, each with its path.
    fn payloads(value: &Value, path: &str) -> Vec<(String, Value)> {
        let inner: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(name, field)| (format!("{path}/{name}"), field)).collect(),
            Value::Array(parts) => parts.iter().map(|part| (path.to_owned(), part)).collect(),
            _ => Vec::new(),
        };
        let own = value.get("payload").filter(|_| value.get("taskQueueId").is_some_and(Value::is_string));
        let own = own.map(|payload| (path.to_owned(), payload.clone()));
        own.into_iter().chain(inner.iter().flat_map(|(path, field)| payloads(field, path))).collect()
    }

    #[test]
    fn all_api_examples_are_accepted() {
        let document: Value = serde_json::from_str(include_str!("../../../../openapi/openapi.json")).unwrap();
        let found = payloads(&document, "#");
        assert!(found.len() > 10, "{} examples", found.len());
        for (path, payload) in found {
            assert!(Payload::parse(&payload).is_ok(), "{path}: {payload}: {}", Payload::parse(&payload).unwrap_err());
        }
    }

    #[test]
    fn wrong_field_is_named_in_error() {
        for (payload, field) in [
            (json!([]), "payload must"),
            (json!({}), "payload.command is required"),
            (json!({"command": "ls"}), "payload.command must"),
            (json!({"command": []}), "payload.command must"),
            (json!({"command": ["ls"]}), "payload.command[0] must"),
            (json!({"command": [["ls"], []]}), "payload.command[1] must"),
            (json!({"command": [["ls", 1]]}), "payload.command[0][1] must"),
            (json!({"command": [[""]]}), "payload.command[0][0] must"),
            (json!({"command": [["a\u{0}"]]}), "payload.command[0][0] must"),
            (json!({"command": [["ls"]], "env": []}), "payload.env must"),
            (json!({"command": [["ls"]], "env": {"A": 1}}), "payload.env.A must"),
            (json!({"command": [["ls"]], "env": {"A=B": "1"}}), "payload.env.A=B is not"),
            (json!({"command": [["ls"]], "maxRunTime": 0}), "payload.maxRunTime must"),
            (json!({"command": [["ls"]], "maxRunTime": 1.5}), "payload.maxRunTime must"),
            (json!({"command": [["ls"]], "maxRunTime": "60"}), "payload.maxRunTime must"),
            (json!({"command": [["ls"]], "maxRunTime": 432_001}), "payload.maxRunTime must"),
            (json!({"command": [["ls"]], "retryOn": 75}), "payload.retryOn must be a list"),
            (json!({"command": [["ls"]], "retryOn": null}), "payload.retryOn must be a list"),
            (json!({"command": [["ls"]], "retryOn": []}), "payload.retryOn must be a list"),
            (json!({"command": [["ls"]], "retryOn": [75, 0]}), "payload.retryOn[1] must not be 0"),
            (json!({"command": [["ls"]], "retryOn": [256]}), "payload.retryOn[0] must be a whole number from 1 to 255"),
            (json!({"command": [["ls"]], "retryOn": [-1]}), "payload.retryOn[0] must be"),
            (json!({"command": [["ls"]], "retryOn": [7.5]}), "payload.retryOn[0] must be"),
            (json!({"command": [["ls"]], "retryOn": ["75"]}), "payload.retryOn[0] must be"),
            (json!({"command": [["ls"]], "retryOn": vec![1; 256]}), "payload.retryOn must have at most 255"),
            (json!({"command": [["ls"]], "image": "x"}), "payload.image is not known"),
            (json!({"command": [["ls"]], "inputs": {}}), "payload.inputs must"),
            (json!({"command": [["ls"]], "artifacts": {}}), "payload.artifacts must"),
        ] {
            let error = Payload::parse(&payload).unwrap_err().to_string();
            assert!(error.starts_with(field), "{payload}: {error}");
        }
    }
}
