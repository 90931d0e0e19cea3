//! Sends the cases of an operation and checks the answers.

use std::ops::RangeInclusive;

use serde_json::Value;
use tenure_api::errors::ErrorCode;

use super::Tested;
use super::derived::{HALF_A_PAIR, is_open};
use super::row::{Body, Outcome, Row};
use super::state::{Bench, Facts, fill, fill_text, target};
use crate::openapi::{Operation, fits};
use crate::rig::{Raw, RawReply, new_task};

const BODY_MAX: usize = 10 << 20;

/// Operations whose usual case records nothing: the client is enabled already, the session is ended
/// by the client that started it, and the run is released by its worker.
const UNRECORDED: [&str; 3] = ["enableClient", "endSession", "releaseTask"];

/// Sends every case; returns descriptions of failures. Refusals change nothing, so consecutive
/// refusals in one state share it. The first success after them shares it too, and so shows that
/// nothing was changed.
pub async fn all(bench: &Bench, document: &Value, tested: &Tested) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut shared: Option<(Row, Facts)> = None;
    let is_recorded = is_recorded(document, tested.entry.name);
    for row in &tested.rows {
        let facts = match shared.take() {
            Some((before, facts)) if before.state == row.state => facts,
            _ => bench.make(row.state).await,
        };
        let trace_id = new_task().to_string();
        let reply = send(bench, tested, row, &facts, &trace_id).await;
        let recorded = bench.count_recorded(&trace_id, tested.entry.name).await;
        let expected = expected_records(is_recorded, tested, row);
        let checked = check(document, tested, row, &facts, &reply).and_then(|()| {
            if expected.contains(&recorded) { Ok(()) } else { Err(format!("it was recorded {recorded} times")) }
        });
        if let Err(why) = checked {
            let sent = format!("{} ({:?}, {:?})", row.case, row.state, row.outcome);
            wrong.push(format!("{}: {sent}: {why}", tested.entry.name));
        }
        if matches!(row.outcome, Outcome::Refusal(_)) {
            shared = Some((row.clone(), facts));
        }
    }
    wrong
}

async fn send(bench: &Bench, tested: &Tested, row: &Row, facts: &Facts, trace_id: &str) -> RawReply {
    let mut named = facts.clone();
    if let Some((name, value)) = &row.parameter {
        let name =
            named.keys().copied().find(|fact| fact == name).unwrap_or_else(|| panic!("no fact is called {name}"));
        named.insert(name, fill_text(value, facts));
    }
    let mut path = target(row.path.as_deref().unwrap_or(&tested.operation.path), &named);
    if !row.query.is_empty() {
        path = format!("{path}?{}", fill_text(&row.query, facts));
    }
    let request = Raw::new(row.method.unwrap_or(&tested.operation.method), &path);
    let request = request.header("x-taskcluster-trace-id", trace_id);
    let usual = tested.entry.body.as_ref();
    let json = |body: &Value| fill(body, facts).to_string().into_bytes();
    let request = match &row.body {
        Body::Usual => request.json(usual.map(json).as_deref()),
        Body::Json(body) => request.json(Some(&json(body))),
        Body::Bytes(media_type, bytes) => request.json(Some(bytes)).header("Content-Type", media_type),
        Body::TooLarge => request.json(Some(&vec![b' '; BODY_MAX + 1])),
    };
    bench.rig.send(&bench.sign(row.who, request)).await
}

/// The usual case of a change is recorded once; others may repeat it; refused calls record nothing.
fn expected_records(is_recorded: bool, tested: &Tested, row: &Row) -> RangeInclusive<i64> {
    if !is_recorded || matches!(row.outcome, Outcome::Refusal(_)) {
        0..=0
    } else if row.case == "as described" && !UNRECORDED.contains(&tested.entry.name) {
        1..=1
    } else {
        0..=1
    }
}

/// True if listAudit has changes by this operation.
fn is_recorded(document: &Value, name: &str) -> bool {
    let list = Operation::find(document, "listAudit");
    let parameters = list.described["parameters"].as_array().expect("listAudit has parameters");
    let action = parameters.iter().find(|parameter| parameter["name"] == "action").expect("one is the operation");
    action["schema"]["enum"].as_array().is_some_and(|names| names.iter().any(|known| known == name))
}

fn check(document: &Value, tested: &Tested, row: &Row, facts: &Facts, reply: &RawReply) -> Result<(), String> {
    let name = tested.entry.name;
    let success = match row.status {
        Some(status) => reply.status == status,
        None => reply.status < 400 && tested.operation.described["responses"][reply.status.to_string()].is_object(),
    };
    for header in ["x-for-trace-id", "x-for-request-id", "cache-control", "x-content-type-options"] {
        if reply.header(header).is_none() {
            return Err(format!("the answer has no {header}"));
        }
    }
    match &row.outcome {
        Outcome::Refusal(code) => {
            refused(&tested.operation, *code, reply).and_then(|()| names_fault(row, *code, reply))
        }
        Outcome::Success(_) if !success => Err(format!("{} {}", reply.status, reply.text())),
        Outcome::Success(_) if row.method == Some("HEAD") => {
            if reply.body.is_empty() {
                Ok(())
            } else {
                Err("HEAD was answered with a body".to_owned())
            }
        }
        Outcome::Success(values) => {
            fits(document, name, &tested.operation, reply);
            let body = reply.json();
            let differs = |(pointer, value): &&(&str, Value)| {
                body.pointer(pointer).unwrap_or(&Value::Null) != &fill(value, facts)
            };
            let wrong: Vec<_> =
                values.iter().filter(differs).map(|(pointer, value)| format!("{pointer} is not {value}")).collect();
            if wrong.is_empty() { Ok(()) } else { Err(format!("{} in {body}", wrong.join(", "))) }
        }
    }
}

fn refused(operation: &Operation, code: ErrorCode, reply: &RawReply) -> Result<(), String> {
    let body = reply.json();
    if (reply.status, body["code"].as_str()) != (code.status(), Some(code.as_str())) {
        return Err(format!("{} {}", reply.status, reply.text()));
    }
    if !operation.refuses(code.as_str()) {
        return Err("the document does not know this error".to_owned());
    }
    if body["requestInfo"]["method"] != operation.name() {
        return Err(format!("the error is about {}", body["requestInfo"]["method"]));
    }
    let asks = reply.header("www-authenticate");
    if (code == ErrorCode::AuthenticationFailed) != (asks == Some("hawk")) {
        return Err(format!("www-authenticate is {asks:?}"));
    }
    if code == ErrorCode::InsufficientScopes
        && !is_open(operation)
        && operation.described["x-taskcluster-scopes"].is_object()
    {
        let message = body["message"].as_str().unwrap_or_default();
        if !message.contains("missing") || message.contains("nothing else") {
            return Err(format!("the message does not say what is missing: {message}"));
        }
    }
    Ok(())
}

/// Checks that the message names the parameter or field at fault, for rows with only one.
fn names_fault(row: &Row, code: ErrorCode, reply: &RawReply) -> Result<(), String> {
    let names: Vec<&str> = match (code, &row.body) {
        (ErrorCode::InputError | ErrorCode::InvalidRequestArguments, _) if !row.query.is_empty() => {
            row.query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name)).collect()
        }
        (ErrorCode::InvalidRequestArguments, _) => row.parameter.iter().map(|(name, _)| name.as_str()).collect(),
        (ErrorCode::MalformedPayload, Body::Bytes(_, body)) if *body == HALF_A_PAIR => vec!["unheard"],
        _ => Vec::new(),
    };
    let body = reply.json();
    let message = body["message"].as_str().unwrap_or_default().split("\n\n---\n").next().unwrap_or_default();
    if names.is_empty() || names.iter().any(|name| message.contains(&format!("`{name}`"))) {
        return Ok(());
    }
    Err(format!("the message names none of {names:?}: {message}"))
}
