//! The OpenAPI document, generated from the route table and the operations' descriptions.
//!
//! Paths, methods, bodies, statuses and scopes come from code. Sentences and examples are written
//! beside each handler; tests check them against the schemas and a real server.

pub(super) mod documentation;
pub(super) mod operation;
pub(super) mod parameters;
pub(super) mod reference_files;
pub(super) mod references;
pub mod sample;
mod scopes;
pub mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use self::operation::{Form, Operation, Refusal, Schemas};
use self::sample::Sample;
use super::access::Access;
use super::blobs::error::BlobErrorBody;
use super::error::ErrorBody;
use super::poll::description::{error_schema, message_schema};
use super::routes::Route;

const TAGS: [(&str, &str); 8] = [
    ("queue", "The Taskcluster Queue API: tasks, claims, reports, counts"),
    ("object", "The Taskcluster Object API: uploads and downloads"),
    ("auth", "The Taskcluster Auth API: clients, roles, scopes"),
    ("worker-manager", "The Taskcluster Worker Manager API: workers that register"),
    ("purge-cache", "The Taskcluster Purge-Cache API: caches that workers are to purge"),
    ("tenure", "Operations that Taskcluster does not have"),
    ("messages", "The poll API: signed URLs in the protocol of Azure's queues"),
    ("service", "Health, measurements, documentation"),
];

/// Preferred source of the examples of errors.
const EXAMPLE: &str = "createTask";

/// Each endpoint once, ordered by tag.
fn operations(routes: &[Route], sample: &Sample) -> Vec<Operation> {
    let mut described = BTreeSet::new();
    let first = routes.iter().filter(|route| described.insert(route.endpoint.name));
    let mut operations: Vec<Operation> = first.map(|route| route.endpoint.describe(sample)).collect();
    operations.sort_by_key(|operation| TAGS.iter().position(|(tag, _)| *tag == operation.tag));
    operations
}

/// One line per operation and schema, for small diffs.
#[must_use]
pub fn in_lines(document: &Value) -> String {
    fn text(value: &Value, depth: usize) -> String {
        match value {
            Value::Object(fields) if depth < 3 => {
                let indent = "  ".repeat(depth);
                let line =
                    |(name, value): (&String, &Value)| format!("{indent}  {}: {}", json!(name), text(value, depth + 1));
                let lines: Vec<String> = fields.iter().map(line).collect();
                format!("{{\n{}\n{indent}}}", lines.join(",\n"))
            }
            _ => value.to_string(),
        }
    }
    text(document, 0)
}

#[must_use]
pub fn document(routes: &[Route], sample: &Sample) -> Value {
    describe(routes, operations(routes, sample), sample)
}

fn describe(routes: &[Route], operations: Vec<Operation>, sample: &Sample) -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut schemas: Schemas = vec![("Error".to_owned(), ErrorBody::schema())];
    ErrorBody::schemas(&mut schemas);
    schemas.push((BlobErrorBody::name().into_owned(), BlobErrorBody::schema()));
    BlobErrorBody::schemas(&mut schemas);
    let examples = error_examples(&operations);
    let targets = link_targets(routes, &operations);
    for mut operation in operations {
        // A name may occur only once, so further paths are listed in the text.
        let mut at = routes.iter().filter(|route| route.endpoint.name == operation.name);
        let Some(route) = at.next() else { continue };
        schemas.append(&mut operation.schemas);
        let aliases: Vec<&str> = at.map(|route| route.path.as_str()).collect();
        paths.entry(&route.path).or_default().insert(
            route.endpoint.method.name().to_owned(),
            describe_one(route, &aliases, &operation, &targets, sample),
        );
    }
    let mut schemas: Map<String, Value> = schemas
        .into_iter()
        .map(|(name, schema)| (name, serde_json::to_value(schema).expect("a schema is JSON")))
        .collect();
    schemas.values_mut().for_each(absent_not_null);
    schemas.insert("QueueMessage".to_owned(), message_schema());
    schemas.insert("QueueError".to_owned(), error_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": {"name": "MPL-2.0", "identifier": "MPL-2.0"},
        },
        // Relative, to work behind any proxy.
        "servers": [{"url": ".", "description": "The server that serves this document"}],
        "tags": TAGS.map(|(name, about)| json!({"name": name, "description": about})),
        "paths": paths,
        "components": {"schemas": schemas, "examples": examples, "securitySchemes": security_schemes()},
    })
}

const ABOUT: &str = "A task queue over HTTP. Operations have the names of the Taskcluster Queue API. *Scopes* define \
    who may call an operation; a granted scope that ends in `*` matches every scope with the same prefix. Angle \
    brackets in a scope, as in `queue:status:<taskId>`, stand for the value of that parameter or field. Optional \
    fields are omitted, never null. Dates are RFC 3339. Operations that list scopes but need no credentials are \
    granted to the role `anonymous` at first; the operator can change it.";

fn security_schemes() -> Value {
    json!({
        "basic": {
            "type": "http",
            "scheme": "basic",
            "description": "The clientId as user, the access token as password. For permanent clients only.",
        },
        "hawk": {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "A Hawk signature, `Hawk id=\"...\", ts=\"...\", nonce=\"...\", mac=\"...\"`, computed \
                for each request with HMAC-SHA256 over method, path, host and port. Taskcluster's clients do this; \
                temporary and task credentials send their certificate in `ext`. A GET can be signed in its URL \
                instead, with `bewit`.",
        },
        "artifactUrl": {
            "type": "apiKey",
            "in": "query",
            "name": "signature",
            "description": "The signature of an artifact's URL. It covers name, method, expiry and, for uploads, the \
                Content-Type; send the URL's other parameters unchanged.",
        },
        "signedUrl": {
            "type": "apiKey",
            "in": "query",
            "name": "sig",
            "description": "The signature of a URL from pollTaskUrls. It covers the URL's other parameters; send \
                them unchanged.",
        },
    })
}

/// With the names of their path parameters.
fn link_targets(routes: &[Route], operations: &[Operation]) -> Vec<(&'static str, Vec<String>)> {
    let of_one = |operation: &Operation| {
        let route = routes.iter().find(|route| route.endpoint.name == operation.name)?;
        Some((operation.name, parameters::names(&route.path))).filter(|(_, names)| !names.is_empty())
    };
    operations.iter().filter_map(of_one).collect()
}

/// Links to the operations whose path parameters are all in `operation.names`.
fn links(operation: &Operation, targets: &[(&'static str, Vec<String>)]) -> Map<String, Value> {
    let value = |name: &String| operation.names.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
    let link = |(target, names): &(&'static str, Vec<String>)| {
        let values: Option<Map<String, Value>> =
            names.iter().map(|name| Some((name.clone(), value(name)?.into()))).collect();
        Some(((*target).to_owned(), json!({"operationId": target, "parameters": values?})))
    };
    targets.iter().filter(|(target, _)| *target != operation.name).filter_map(link).collect()
}

fn describe_one(
    route: &Route,
    aliases: &[&str],
    operation: &Operation,
    targets: &[(&'static str, Vec<String>)],
    sample: &Sample,
) -> Value {
    let mut about: Vec<String> = Vec::new();
    if !operation.about.is_empty() {
        about.push(operation.about.clone());
    }
    if let Access::Scopes(template) = operation.access {
        about.push(format!("**Scopes:** {}.", scopes::in_words(&template.to_json())));
    }
    if !aliases.is_empty() {
        let paths: Vec<String> = aliases.iter().map(|path| format!("`{path}`")).collect();
        about.push(format!("Also at {}.", paths.join(", ")));
    }
    let in_path = parameters::of_path(route, sample);
    let mut described = json!({
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": about.join("\n\n"),
        "parameters": in_path.into_iter().chain(operation.parameters.clone()).collect::<Vec<_>>(),
        "responses": responses(operation),
        "security": security(operation.access),
    });
    if !operation.names.is_empty() {
        let success = operation.answers.first().map_or(200, |(status, _)| *status).to_string();
        described["responses"][success]["links"] = links(operation, targets).into();
    }
    if let Some(request) = &operation.request {
        described["requestBody"] = request.clone();
    }
    if let Access::Scopes(template) = operation.access {
        described["x-taskcluster-scopes"] = template.to_json();
    }
    if !aliases.is_empty() {
        described["x-aliases"] = json!(aliases);
    }
    described
}

fn security(access: Access) -> Value {
    match access {
        Access::Open => json!([]),
        Access::Scopes(template) if scopes::anonymous_has(&template.to_json()) => {
            json!([{}, {"basic": []}, {"hawk": []}])
        }
        Access::Scopes(_) => json!([{"basic": []}, {"hawk": []}]),
        Access::SignedUrl => json!([{"signedUrl": []}]),
        Access::ArtifactUrl => json!([{"artifactUrl": []}]),
        Access::PlainArtifactUrl => json!([{}, {"artifactUrl": []}]),
    }
}

fn responses(operation: &Operation) -> Map<String, Value> {
    let mut responses: Map<String, Value> =
        operation.answers.iter().map(|(status, answer)| (status.to_string(), answer.clone())).collect();
    let mut refusals: BTreeMap<u16, Vec<&Refusal>> = BTreeMap::new();
    for refusal in &operation.refusals {
        refusals.entry(refusal.status).or_default().push(refusal);
    }
    for (status, refusals) in refusals {
        let reasons: Vec<String> =
            refusals.iter().map(|refusal| format!("* `{}`: {}", refusal.code, refusal.when)).collect();
        let mut response = json!({
            "description": reasons.join("\n"),
            "content": match operation.access {
                Access::SignedUrl => error_xml(&refusals),
                Access::ArtifactUrl | Access::PlainArtifactUrl => error_json("StoredBytesError", &refusals),
                Access::Open | Access::Scopes(_) => error_json("Error", &refusals),
            },
        });
        if let Some((name, about)) = error_header(status) {
            response["headers"] = json!({name: {"description": about, "schema": {"type": "string"}}});
        }
        responses.insert(status.to_string(), response);
    }
    responses
}

fn error_header(status: u16) -> Option<(&'static str, &'static str)> {
    match status {
        401 => Some(("WWW-Authenticate", "`hawk`")),
        429 | 503 => Some(("Retry-After", "Seconds to wait")),
        _ => None,
    }
}

fn error_json(schema: &str, refusals: &[&Refusal]) -> Value {
    let codes: BTreeSet<&str> = refusals.iter().map(|refusal| refusal.code.as_str()).collect();
    json!({"application/json": {
        "schema": {
            "allOf": [{"$ref": format!("#/components/schemas/{schema}")}],
            "properties": {"code": {"enum": codes}},
        },
        "examples": examples(refusals),
    }})
}

fn error_xml(refusals: &[&Refusal]) -> Value {
    json!({"application/xml": {
        "schema": {"$ref": "#/components/schemas/QueueError"},
        "examples": examples(refusals),
    }})
}

/// Errors with one code differ only in the message.
fn examples(refusals: &[&Refusal]) -> Map<String, Value> {
    let refer = |refusal: &&Refusal| {
        let name = example_name(refusal);
        (refusal.code.clone(), json!({"$ref": format!("#/components/examples/{name}")}))
    };
    refusals.iter().map(refer).collect()
}

fn example_name(refusal: &Refusal) -> String {
    match refusal.form {
        Form::Api => refusal.code.clone(),
        Form::Queue => format!("{}-xml", refusal.code),
        Form::Artifact => format!("{}-artifact", refusal.code),
    }
}

fn error_examples(operations: &[Operation]) -> Map<String, Value> {
    let one = |refusal: &Refusal| {
        let (code, when) = (&refusal.code, &refusal.when);
        let value = match refusal.form {
            Form::Queue => {
                let start = "<?xml version=\"1.0\" encoding=\"utf-8\"?>";
                json!(format!("{start}<Error><Code>{code}</Code><Message>{when}</Message></Error>"))
            }
            Form::Artifact => json!({"code": code, "message": when}),
            Form::Api => {
                let time = "2026-01-31T12:00:00.000Z";
                let info = json!({"method": EXAMPLE, "params": {}, "payload": null, "time": time});
                json!({"code": code, "message": when, "requestInfo": info})
            }
        };
        (example_name(refusal), json!({"value": value}))
    };
    let example = operations.iter().filter(|operation| operation.name == EXAMPLE);
    operations.iter().rev().chain(example).flat_map(|operation| operation.refusals.iter().map(one)).collect()
}

/// Optional fields are absent in this API, but nullable for utoipa.
fn absent_not_null(schema: &mut Value) {
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(absent_not_null),
        Value::Object(fields) => {
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|one| one != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("oneOf") {
                choices.retain(|one| one["type"] != "null");
                if let [only] = choices.as_slice() {
                    let only = only.as_object().cloned().unwrap_or_default();
                    fields.remove("oneOf");
                    fields.extend(only);
                }
            }
            fields.values_mut().for_each(absent_not_null);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
