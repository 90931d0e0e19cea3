//! Cases derived from an operation's description in the document: credentials, parameters, bodies,
//! paths.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{
    AuthenticationFailed, InputError, InputTooLarge, InputValidationError, InsufficientScopes, InvalidRequestArguments,
    MalformedPayload,
};

use super::row::{Body, OperationRows, Row, Who, refused, succeeds};
use crate::openapi::Operation;

const JSON: &str = "application/json";
pub const HALF_A_PAIR: &[u8] = br#"{"unheard":"\ud800"}"#;

/// Returns all cases of an operation, first the cases that change nothing.
pub fn rows(operation: &Operation, entry: &OperationRows) -> Vec<Row> {
    let derived = [callers(operation, entry), arguments(operation), bodies(operation), queries(operation)].concat();
    let unchanging = derived.into_iter().map(|row| Row { state: entry.usual.state, ..row });
    unchanging.chain(places(operation, entry)).chain(entry.rows.clone()).collect()
}

pub fn is_open(operation: &Operation) -> bool {
    operation.described["security"].as_array().is_some_and(|ways| ways.contains(&json!({})) || ways.is_empty())
}

fn callers(operation: &Operation, entry: &OperationRows) -> Vec<Row> {
    if operation.described["x-taskcluster-scopes"].is_null() {
        return Vec::new();
    }
    let wrong = refused(AuthenticationFailed, "wrong credentials").by(Who::Impostor);
    if is_open(operation) && !is_open_when_empty(&operation.described["x-taskcluster-scopes"]) {
        let usual = Row { case: "without credentials".to_owned(), ..entry.usual.clone() };
        return vec![wrong, usual.by(Who::Anonymous)];
    }
    let mut rows = vec![
        wrong,
        refused(InsufficientScopes, "a client without the scopes").by(Who::WithoutScopes),
        refused(InsufficientScopes, "no credentials at all").by(Who::Anonymous),
    ];
    // A caller without the scopes learns no other mistake.
    if needs_only_the_path(operation) {
        let case = "a client without the scopes, with an unknown query parameter";
        rows.push(refused(InsufficientScopes, case).by(Who::WithoutScopes).query("unheard=1"));
    }
    rows
}

/// True if its scopes have no placeholders except the parameters of its path.
fn needs_only_the_path(operation: &Operation) -> bool {
    fn is_of(path: &[String], expression: &Value) -> bool {
        match expression {
            Value::String(scope) => scope.split('<').skip(1).all(|rest| {
                let name = rest.split('>').next().unwrap_or_default();
                let has = |wanted: &str| path.iter().any(|parameter| parameter == wanted);
                has(name) || (name == "taskQueueId" && has("workerType"))
            }),
            // The first name is in the path.
            Value::Object(parts) if parts.get("in") == Some(&json!("names")) => is_of(path, &parts["each"]),
            Value::Object(parts) => {
                let parts = parts.get("AllOf").or(parts.get("AnyOf")).and_then(Value::as_array);
                parts.is_some_and(|parts| parts.iter().all(|part| is_of(path, part)))
            }
            _ => false,
        }
    }
    is_of(&operation.parameters("path"), &operation.described["x-taskcluster-scopes"])
}

/// True if only an empty request needs no scopes: the document describes this for lists whose
/// entries each need some.
fn is_open_when_empty(expression: &Value) -> bool {
    expression["AllOf"].as_array().is_some_and(|parts| parts.iter().all(|part| part["in"].is_string()))
}

fn arguments(operation: &Operation) -> Vec<Row> {
    if !operation.refuses("InvalidRequestArguments") {
        return Vec::new();
    }
    let mut rows = vec![refused(InvalidRequestArguments, "an unknown query parameter").query("unheard=1")];
    for parameter in operation.parameters("path") {
        let invalid = match parameter.as_str() {
            "taskId" | "taskGroupId" | "sessionId" => "short",
            "runId" => "-1",
            "taskQueueId" | "workerPoolId" => "no.slash",
            "provisionerId" | "workerType" | "workerGroup" | "workerId" | "clientId" => "a b",
            "roleId" | "name" => "\u{e9}",
            other => panic!("{other} is new here: say what it cannot be"),
        };
        rows.push(refused(InvalidRequestArguments, format!("a bad `{parameter}`")).with(&parameter, invalid));
    }
    rows
}

fn bodies(operation: &Operation) -> Vec<Row> {
    let mut rows = Vec::new();
    if operation.refuses("InputTooLarge") {
        rows.push(Row { body: Body::TooLarge, ..refused(InputTooLarge, "a body over 10 MB") });
    }
    // reportCompleted and reportFailed had no body before, so that an invalid body is ignored.
    if operation.refuses("MalformedPayload") && !operation.body().is_null() {
        rows.extend([
            refused(MalformedPayload, "half of a body").bytes(JSON, b"{"),
            refused(MalformedPayload, "half of a surrogate pair").bytes(JSON, HALF_A_PAIR),
            refused(MalformedPayload, "a body that is neither object nor array").bytes(JSON, b" \"text\""),
            refused(MalformedPayload, "a body of another media type").bytes("text/plain", b"{}"),
            refused(InputValidationError, "an unknown field").body(json!({"unheard": 1})),
        ]);
    }
    rows
}

fn queries(operation: &Operation) -> Vec<Row> {
    let parameters = operation.parameters("query");
    let has = |name: &str| parameters.iter().any(|parameter| parameter == name);
    let mut rows = Vec::new();
    if has("limit") {
        rows.extend(
            ["limit=0", "limit=-1", "limit=x", "limit=", "limit=1&limit=2", "limit=%FF"]
                .map(|query| refused(InvalidRequestArguments, format!("`{query}`")).query(query)),
        );
    }
    if has("continuationToken") && operation.refuses("InputError") {
        rows.push(refused(InputError, "a token that is none").query("continuationToken=*"));
    }
    rows
}

/// The success at each path of the operation, for a GET also by HEAD.
fn places(operation: &Operation, entry: &OperationRows) -> Vec<Row> {
    let mut rows = vec![Row { case: "as described".to_owned(), ..entry.usual.clone() }];
    if operation.method == "GET" {
        let head = Row { method: Some("HEAD"), who: entry.usual.who, ..succeeds("by HEAD") };
        rows.push(head.on(entry.usual.state).query(&entry.usual.query));
    }
    let aliases = operation.described["x-aliases"].as_array().cloned().unwrap_or_default();
    rows.extend(aliases.iter().filter_map(Value::as_str).map(|path| Row {
        case: format!("at `{path}`"),
        path: Some(path.to_owned()),
        ..entry.usual.clone()
    }));
    rows
}
