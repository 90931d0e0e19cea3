//! Tests of the document that need no server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;
use crate::http::declaration::Declaration;
use crate::http::routes;
use tenure_domain::policy::document::COMPLETE_TIME_MAX;
use tenure_domain::policy::options::TASK_DELAY_MAX;
use tenure_domain::{create, roles, submit};

fn fixed() -> Value {
    document(&routes(), &Sample::fixed())
}

/// Path, method and description.
fn described(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, methods): (&String, &Value)| {
        let methods = methods.as_object().unwrap().clone();
        methods.into_iter().map(|(method, one)| (path.clone(), method, one)).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

#[test]
fn operation_names_are_unique() {
    let table = routes();
    let mut by_name: BTreeMap<&str, &Declaration> = BTreeMap::new();
    for route in &table {
        let endpoint = &*route.endpoint;
        let first = by_name.entry(endpoint.name).or_insert(endpoint);
        assert_eq!((first.method, first.access), (endpoint.method, endpoint.access), "{}", endpoint.name);
    }
    assert_eq!(operations(&table, &Sample::fixed()).len(), by_name.len());
}

/// From the body or the database. tests/tests/it/openapi.rs proves that handlers supply them: a
/// missing value is a 500.
const GIVEN: [&str; 13] = [
    "cacheName",
    "priority",
    "projectId",
    "route",
    "runId",
    "schedulerId",
    "scope",
    "taskGroupId",
    "taskId",
    "taskQueueId",
    "workerGroup",
    "workerId",
    "workerPoolId",
];

#[test]
fn scope_placeholders_have_values() {
    for route in &routes() {
        let Access::Scopes(template) = route.endpoint.access else { continue };
        let of_path = parameters::names(&route.path);
        let printed = template.to_json().to_string();
        for part in printed.split('<').skip(1) {
            let (name, _) = part.split_once('>').expect("a placeholder ends");
            let found = GIVEN.contains(&name) || of_path.iter().any(|parameter| parameter == name);
            assert!(found, "{} at {}: nothing fills in <{name}>", route.endpoint.name, route.path);
        }
    }
}

#[test]
fn every_route_is_in_the_document() {
    let document = fixed();
    for route in &routes() {
        let (name, method_name) = (route.endpoint.name, route.endpoint.method.name());
        let own = &document["paths"][&route.path][method_name]["operationId"];
        let alias = described(&document).iter().any(|(_, method, one)| {
            one["operationId"] == name
                && *method == method_name
                && one["x-aliases"].as_array().is_some_and(|paths| paths.iter().any(|path| *path == *route.path))
        });
        assert!(own == name || alias, "{name} at {}", route.path);
    }
}

#[test]
fn body_limits_are_described() {
    let document = fixed();
    for (name, when) in [
        ("createTask", "the body is over 10 MB, or over 64 KiB without credentials"),
        ("statuses", "the body is over 10 MB"),
        ("registerWorker", "the body is over 64 KiB"),
        ("authenticateHawk", "the body is over 256 KiB"),
    ] {
        let operation = described(&document).into_iter().find(|(_, _, one)| one["operationId"] == name).unwrap().2;
        assert_eq!(operation["responses"]["413"]["description"], format!("* `InputTooLarge`: {when}"), "{name}");
    }
}

#[test]
fn committed_document_matches_code() {
    let committed = include_str!("../../../../openapi/openapi.json");
    let generated = in_lines(&fixed()) + "\n";
    assert!(committed == generated, "openapi/openapi.json is out of date: run scripts/openapi");
}

#[test]
fn every_operation_is_described() {
    let document = fixed();
    for (path, _, one) in described(&document) {
        let name = one["operationId"].as_str().unwrap();
        assert!(one["summary"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        for parameter in one["parameters"].as_array().unwrap() {
            assert_ne!(parameter["description"], "", "{path}: describe {} in docs/parameters.rs", parameter["name"]);
        }
        let statuses: Vec<&String> = one["responses"].as_object().unwrap().keys().collect();
        assert!(statuses.iter().any(|status| status.starts_with(['2', '3'])), "{name}: {statuses:?}");
        assert!(statuses.iter().any(|status| *status == "503"), "{name}: {statuses:?}");
        if !one["x-taskcluster-scopes"].is_null() {
            assert!(["401", "403"].iter().all(|code| statuses.iter().any(|status| status == code)), "{name}");
        }
    }
}

#[test]
fn refusals_for_now_declare_when_to_retry() {
    let document = fixed();
    let mut found = BTreeSet::new();
    for (path, _, one) in described(&document) {
        for (status, response) in one["responses"].as_object().unwrap() {
            if ["429", "503"].contains(&status.as_str()) {
                assert!(response["headers"]["Retry-After"].is_object(), "{path} {status}");
                found.insert(status.clone());
            }
        }
    }
    assert_eq!(found, BTreeSet::from(["429", "503"].map(str::to_owned)));
}

#[test]
fn every_reference_resolves() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|field| references(field, found));
            }
            Value::Array(parts) => parts.iter().for_each(|part| references(part, found)),
            _ => {}
        }
    }
    let document = fixed();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 10, "{found:?}");
    for reference in found {
        let target = document.pointer(reference.trim_start_matches('#'));
        assert!(target.is_some(), "{reference} leads nowhere");
    }
}

fn resolve<'a>(document: &'a Value, reference: &Value) -> &'a Value {
    document.pointer(reference["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap()
}

/// Code generators need the type in each part of an `allOf`.
fn is_object(document: &Value, schema: &Value) -> bool {
    if schema.get("$ref").is_some() {
        return is_object(document, resolve(document, schema));
    }
    match schema.get("allOf") {
        Some(parts) => parts.as_array().unwrap().iter().all(|part| is_object(document, part)),
        None => schema["type"] == "object",
    }
}

#[test]
fn every_part_of_an_all_of_is_an_object() {
    fn check(document: &Value, value: &Value, path: &str) -> usize {
        match value {
            Value::Object(fields) => {
                let parts = fields.get("allOf").and_then(Value::as_array);
                for part in parts.into_iter().flatten() {
                    assert!(is_object(document, part), "{path}: code generators drop a schema with this part: {part}");
                }
                let inner = fields.iter().map(|(name, field)| check(document, field, &format!("{path}/{name}")));
                parts.map_or(0, Vec::len) + inner.sum::<usize>()
            }
            Value::Array(parts) => parts.iter().map(|part| check(document, part, path)).sum(),
            _ => 0,
        }
    }
    let document = fixed();
    assert!(check(&document, &document, "#") > 100);
}

fn schema_in(document: &Value, schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::draft202012::options().should_validate_formats(true).build(&schema).unwrap()
}

#[test]
fn every_example_fits_its_schema() {
    let document = fixed();
    let mut seen = 0;
    for (_, _, one) in described(&document) {
        let name = one["operationId"].as_str().unwrap();
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        for parameter in one["parameters"].as_array().unwrap().iter().filter(|one| !one["example"].is_null()) {
            pairs.push((parameter["schema"].clone(), parameter["example"].clone()));
        }
        let responses = one["responses"].as_object().unwrap().values();
        for body in responses.chain(one.get("requestBody")) {
            for (media_type, content) in body["content"].as_object().into_iter().flatten() {
                if media_type == "application/xml" {
                    continue;
                }
                let examples = content["examples"].as_object().into_iter().flatten();
                let examples =
                    examples.map(|(_, example)| &resolve(&document, example)["value"]).chain(content.get("example"));
                pairs.extend(examples.map(|example| (content["schema"].clone(), example.clone())));
            }
        }
        for (schema, example) in pairs {
            let errors: Vec<String> =
                schema_in(&document, &schema).iter_errors(&example).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{name}: {example:#} does not fit: {errors:?}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} examples");
}

#[test]
fn schema_rejects_invalid_body() {
    let document = fixed();
    let schema = schema_in(&document, &json!({"$ref": "#/components/schemas/CreateTaskRequest"}));
    let task = Sample::fixed().new_task();
    assert!(schema.is_valid(&task));
    for (field, wrong) in [
        ("taskQueueId", json!("acme")),
        ("priority", json!("urgent")),
        ("created", json!("yesterday")),
        ("retries", json!(50)),
        ("expires", Value::Null),
        ("unknown", json!(1)),
        ("payload", json!("text")),
        ("tags", json!({"a": 1})),
    ] {
        let mut task = task.clone();
        task[field] = wrong;
        assert!(!schema.is_valid(&task), "{field}");
    }
}

#[test]
fn schema_limits_match_rules() {
    let document = fixed();
    let task = &document["components"]["schemas"]["CreateTaskRequest"]["properties"];
    let metadata = &document["components"]["schemas"]["Metadata"]["properties"];
    let several = &document["components"]["schemas"]["SubmitRequest"]["properties"];
    let submitted = &document["components"]["schemas"]["SubmittedTask"]["properties"];
    let schemas = &document["components"]["schemas"];
    let about_it = &document["components"]["schemas"]["SubmittedMetadata"]["properties"];
    let options = &schemas["TaskOptions"]["properties"];
    for (stated, limit) in [
        (&task["dependencies"]["maxItems"], create::DEPENDENCIES_MAX),
        (&task["routes"]["maxItems"], create::ROUTES_MAX),
        (&task["retries"]["maximum"], create::RETRIES_MAX.into()),
        (&task["retries"]["default"], create::RETRIES_DEFAULT.into()),
        (&metadata["name"]["maxLength"], create::METADATA_SHORT_MAX),
        (&metadata["owner"]["maxLength"], create::METADATA_SHORT_MAX),
        (&metadata["description"]["maxLength"], create::METADATA_DESCRIPTION_MAX),
        (&metadata["source"]["maxLength"], create::METADATA_SOURCE_MAX),
        (&schemas["Route"]["maxLength"], create::ROUTE_CHARS_MAX),
        (&schemas["TagValue"]["maxLength"], create::TAG_CHARS_MAX),
        (&schemas["Description"]["maxLength"], roles::DESCRIPTION_CHARS_MAX),
        (&schemas["GivenScope"]["maxLength"], roles::SCOPE_CHARS_MAX),
        (&schemas["ClientRequest"]["properties"]["scopes"]["maxItems"], roles::SCOPES_MAX),
        (&schemas["RoleRequest"]["properties"]["scopes"]["maxItems"], roles::SCOPES_MAX),
        (&several["tasks"]["maxItems"], submit::TASKS_MAX),
        (&submitted["name"]["maxLength"], submit::NAME_CHARS_MAX),
        (&submitted["dependencies"]["maxItems"], create::DEPENDENCIES_MAX),
        (&submitted["routes"]["maxItems"], create::ROUTES_MAX),
        (&submitted["retries"]["maximum"], create::RETRIES_MAX.into()),
        (&submitted["retries"]["default"], create::RETRIES_DEFAULT.into()),
        (&about_it["name"]["maxLength"], create::METADATA_SHORT_MAX),
        (&about_it["owner"]["maxLength"], create::METADATA_SHORT_MAX),
        (&about_it["description"]["maxLength"], create::METADATA_DESCRIPTION_MAX),
        (&about_it["source"]["maxLength"], create::METADATA_SOURCE_MAX),
        (&options["delay"]["maximum"], TASK_DELAY_MAX as usize),
        (&options["completeTime"]["maximum"], COMPLETE_TIME_MAX as usize),
    ] {
        assert_eq!(stated.as_u64(), Some(limit as u64));
    }
}
