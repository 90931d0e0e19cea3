//! References and schemas in Taskcluster's formats, for client generators. All but the metrics are
//! generated like the OpenAPI document, so the two cannot diverge.
//!
//! Schemas are JSON Schema, draft 7, with absolute URLs below the root URL.

mod exchanges;
mod metrics;
mod schemas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tenure_api::errors::ErrorCode;

use self::schemas::{Schemas, with_head};
use super::operation::Operation;
use super::sample::Sample;
use super::{document, operations as all_operations};
use crate::http::access::Access;
use crate::http::routes::Route;

struct Service {
    name: &'static str,
    title: &'static str,
    about: &'static str,
}

const SERVICES: [Service; 6] = [
    Service { name: "queue", title: "Queue Service", about: "Tasks, claims, reports and counts." },
    Service { name: "auth", title: "Auth Service", about: "Clients, roles and scopes." },
    Service { name: "object", title: "Object Service", about: "Uploads and downloads." },
    Service { name: "worker-manager", title: "Worker Manager Service", about: "Workers that register." },
    Service { name: "purge-cache", title: "Purge Cache Service", about: "Caches that workers are to purge." },
    Service { name: "tenure", title: "Tenure", about: "Operations that Taskcluster's services do not have." },
];

/// JSON by path.
pub struct References {
    files: BTreeMap<String, String>,
}

impl References {
    #[must_use]
    pub fn new(root_url: &str, routes: &[Route]) -> Self {
        let values = all(root_url, routes);
        Self { files: values.into_iter().map(|(path, value)| (path, value.to_string())).collect() }
    }

    #[must_use]
    pub fn find(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }
}

fn all(root: &str, routes: &[Route]) -> BTreeMap<String, Value> {
    let sample = Sample::fixed();
    let components = document(routes, &sample)["components"]["schemas"].clone();
    let operations = all_operations(routes, &sample);
    let mut files = schemas::common(root);
    let mut references = Vec::new();
    for service in &SERVICES {
        let mut schemas = Schemas::new(root, service.name, &components);
        let mut add = |kind: &str, head: &str, reference: Map<String, Value>| {
            let path = format!("/references/{}/v1/{kind}.json", service.name);
            references.push(format!("{root}{path}"));
            files.insert(path.clone(), with_head(root, head, &path, reference));
        };
        add("api", "api-reference-v0", api(service, routes, &operations, &mut schemas));
        if service.name == "queue" {
            add("exchanges", "exchanges-reference-v0", exchanges::reference(&mut schemas));
            add("metrics", "metrics-reference-v0", metrics::reference());
        }
        files.extend(schemas.into_files());
    }
    let path = "/references/manifest.json";
    let manifest = Map::from_iter([("references".to_owned(), references.into())]);
    files.insert(path.to_owned(), with_head(root, "manifest-v3", path, manifest));
    files
}

fn api(service: &Service, routes: &[Route], operations: &[Operation], schemas: &mut Schemas<'_>) -> Map<String, Value> {
    let prefix = format!("/api/{}/v1", service.name);
    let mut entries: Vec<Value> = Vec::new();
    for route in routes {
        let Some(below) = route.path.strip_prefix(&prefix) else { continue };
        // Only the first of several paths is listed.
        if entries.iter().any(|entry| entry["name"] == route.endpoint.name) {
            continue;
        }
        if let Some(operation) = operations.iter().find(|operation| operation.name == route.endpoint.name) {
            entries.push(entry(route, below, operation, schemas));
        }
    }
    let reference = json!({
        "apiVersion": "v1",
        "serviceName": service.name,
        "title": service.title,
        "description": service.about,
        "entries": entries,
    });
    reference.as_object().cloned().unwrap_or_default()
}

fn entry(route: &Route, below: &str, operation: &Operation, schemas: &mut Schemas<'_>) -> Value {
    let args = below.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
    let query = operation.parameters.iter().filter(|parameter| parameter["in"] == "query");
    let mut entry = json!({
        "type": "function",
        "name": operation.name,
        "method": route.endpoint.method.name(),
        "route": below.replace('{', "<").replace('}', ">"),
        "args": args.collect::<Vec<_>>(),
        "query": query.map(|parameter| parameter["name"].clone()).collect::<Vec<_>>(),
        "stability": operation.stability,
        "category": operation.category,
        "title": operation.summary,
        "description": operation.about,
    });
    if let Access::Scopes(template) = operation.access {
        entry["scopes"] = template.to_json();
    }
    // Generated clients always send the input, so a body that may be ignored is not declared.
    let is_checked = operation.refusals.iter().any(|refusal| refusal.code == ErrorCode::MalformedPayload.as_str());
    let request = operation.request.as_ref().filter(|_| is_checked);
    if let Some(schema) = request.and_then(body_schema) {
        entry["input"] = schemas.add(schema, &format!("{}Request", operation.name)).into();
    }
    let success = operation.answers.iter().find(|(status, _)| (200..300).contains(status));
    if let Some((_, answer)) = success {
        if let Some(schema) = body_schema(answer) {
            entry["output"] = schemas.add(schema, &format!("{}Response", operation.name)).into();
        } else if answer["content"].is_object() {
            entry["output"] = "blob".into();
        }
    }
    entry
}

fn body_schema(described: &Value) -> Option<&Value> {
    described["content"]["application/json"].get("schema")
}
