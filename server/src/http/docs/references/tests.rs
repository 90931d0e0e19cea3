//! Tests of references and schemas that need no server.

use std::collections::BTreeSet;

use jsonschema::{Retrieve, Uri, Validator};

use super::*;
use crate::http::routes;
use tenure_domain::event_filter::{EXCHANGES, short_name};
use tenure_domain::events::Exchange;

const ROOT: &str = "https://tenure.example.com";

fn files() -> BTreeMap<String, Value> {
    all(ROOT, &routes())
}

/// Retrieves only served documents.
struct Served(BTreeMap<String, Value>);

impl Retrieve for Served {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        let path = uri.as_str().trim_end_matches('#').strip_prefix(ROOT).ok_or("not of this server")?;
        self.0.get(path).cloned().ok_or_else(|| format!("{path} is not served").into())
    }
}

fn validator(files: &BTreeMap<String, Value>, schema: &Value) -> Validator {
    let mut schema = schema.clone();
    // The library knows the draft, but not the server's name for it.
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    let options = jsonschema::draft7::options().should_validate_formats(true).with_retriever(Served(files.clone()));
    options.build(&schema).unwrap_or_else(|error| panic!("{}: {error}", schema["$id"]))
}

#[track_caller]
fn assert_fits(validator: &Validator, value: &Value, what: &str) {
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{error} at {}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{what}: {errors:#?}");
}

#[test]
fn documents_match_their_url_and_schema() {
    let files = files();
    assert!(files.len() > 40, "{}", files.len());
    for (path, value) in &files {
        assert_eq!(value["$id"], format!("{ROOT}{path}#"));
        let schema = value["$schema"].as_str().unwrap();
        let Some(schema) = schema.strip_prefix(ROOT) else {
            assert_eq!(
                (schema, path.as_str()),
                ("http://json-schema.org/draft-07/schema#", "/schemas/common/metaschema.json")
            );
            continue;
        };
        let schema = &files[schema.trim_end_matches('#')];
        assert_fits(&validator(&files, schema), value, path);
        if schema["$id"].as_str().unwrap().contains("metaschema") {
            let mut plain = value.clone();
            plain["$schema"] = "http://json-schema.org/draft-07/schema#".into();
            assert!(jsonschema::draft7::meta::is_valid(&plain), "{path}");
            // Resolves every reference to another schema.
            validator(&files, value);
        }
    }
}

#[test]
fn manifest_and_references_list_all_files() {
    let files = files();
    let named: BTreeSet<&str> = files["/references/manifest.json"]["references"]
        .as_array()
        .unwrap()
        .iter()
        .map(|url| url.as_str().unwrap().strip_prefix(ROOT).unwrap())
        .collect();
    let there: BTreeSet<&str> = files
        .keys()
        .map(String::as_str)
        .filter(|path| path.starts_with("/references/") && !path.contains("manifest"))
        .collect();
    assert_eq!(named, there);
    for reference in there {
        if reference.ends_with("/metrics.json") {
            assert!(files[reference]["metrics"].as_array().unwrap().len() > 3);
            continue;
        }
        let service = reference.split('/').nth(2).unwrap();
        let entries = files[reference]["entries"].as_array().unwrap();
        assert!(entries.len() > 3, "{reference}");
        for entry in entries {
            for name in ["input", "output", "schema"].iter().filter_map(|part| entry[part].as_str()) {
                let path = format!("/schemas/{service}/{}", name.trim_end_matches('#'));
                assert!(name == "blob" || files.contains_key(&path), "{reference}: {name}");
            }
        }
    }
}

#[test]
fn references_list_each_operation_once() {
    let files = files();
    for service in &SERVICES {
        let prefix = format!("/api/{}/v1/", service.name);
        let table = routes();
        let routed: BTreeSet<&str> =
            table.iter().filter(|route| route.path.starts_with(&prefix)).map(|route| route.endpoint.name).collect();
        let entries =
            files[&format!("/references/{}/v1/api.json", service.name)]["entries"].as_array().unwrap().clone();
        let named: Vec<&str> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
        assert_eq!(named.len(), routed.len(), "{named:?}");
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), routed);
        for entry in &entries {
            let args: Vec<String> =
                entry["args"].as_array().unwrap().iter().map(|name| format!("<{}>", name.as_str().unwrap())).collect();
            let route = entry["route"].as_str().unwrap();
            assert!(args.iter().all(|arg| route.contains(arg)) && route.matches('<').count() == args.len(), "{route}");
        }
    }
}

#[test]
fn examples_match_reference_schemas() {
    let files = files();
    let operations = all_operations(&routes(), &Sample::fixed());
    let mut seen = 0;
    for service in &SERVICES {
        for entry in files[&format!("/references/{}/v1/api.json", service.name)]["entries"].as_array().unwrap() {
            let operation = operations.iter().find(|operation| entry["name"] == operation.name).unwrap();
            let of = |part: &Value| part["content"]["application/json"]["example"].clone();
            let answer = operation.answers.iter().find(|(status, _)| *status == 200).map(|(_, answer)| of(answer));
            for (name, example) in [("input", operation.request.as_ref().map(of)), ("output", answer)] {
                let (Some(file), Some(example)) = (entry[name].as_str().filter(|file| *file != "blob"), example) else {
                    continue;
                };
                let path = format!("/schemas/{}/{}", service.name, file.trim_end_matches('#'));
                assert_fits(&validator(&files, &files[&path]), &example, &format!("{}: {name}", operation.name));
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn optional_body_is_input_only_if_checked() {
    let files = files();
    let operations = all_operations(&routes(), &Sample::fixed());
    for (service, name, is_input) in [
        ("tenure", "pauseQueue", true),
        ("tenure", "releaseTask", true),
        ("tenure", "renewSession", true),
        ("queue", "reportCompleted", false),
        ("queue", "reportFailed", false),
    ] {
        let operation = operations.iter().find(|operation| operation.name == name).unwrap();
        assert!(operation.request.as_ref().unwrap()["required"].is_null(), "{name}");
        let entries = files[&format!("/references/{service}/v1/api.json")]["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
        assert_eq!(entry["input"].is_string(), is_input, "{name}");
    }
}

#[test]
fn reference_schema_rejects_invalid_body() {
    let files = files();
    let schema = validator(&files, &files["/schemas/queue/v1/create-task-request.json"]);
    let task = Sample::fixed().new_task();
    assert!(schema.is_valid(&task));
    for (field, wrong) in
        [("priority", json!("urgent")), ("retries", json!(50)), ("unknown", json!(1)), ("metadata", json!({}))]
    {
        let mut task = task.clone();
        task[field] = wrong;
        assert!(!schema.is_valid(&task), "{field}");
    }
}

#[test]
fn reference_lists_every_exchange() {
    let files = files();
    let reference = &files["/references/queue/v1/exchanges.json"];
    let entries = reference["entries"].as_array().unwrap();
    for (exchange, entry) in Exchange::ALL.iter().zip(entries) {
        let name = format!("{}{}", reference["exchangePrefix"].as_str().unwrap(), entry["exchange"].as_str().unwrap());
        assert_eq!(name, exchange.name());
        let schema = &files[&format!("/schemas/queue/{}", entry["schema"].as_str().unwrap().trim_end_matches('#'))];
        let described: BTreeSet<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let fields = exchange.fields();
        assert_eq!(described, fields.always.iter().chain(fields.sometimes).copied().collect(), "{name}");
    }
    let exchanges: BTreeSet<&str> = Exchange::ALL.iter().map(|exchange| short_name(exchange.name())).collect();
    let missing: Vec<&&str> = EXCHANGES.iter().filter(|name| !exchanges.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Taskcluster's scopes also depend on the targets of links.
#[test]
fn artifact_reads_need_a_scope_for_each_name() {
    let reference = &files()["/references/queue/v1/api.json"];
    for name in ["artifact", "getArtifact", "getLatestArtifact", "latestArtifact"] {
        let entry = reference["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap();
        assert_eq!(
            entry["scopes"],
            json!({"for": "name", "in": "names", "each": "queue:get-artifact:<name>"}),
            "{name}"
        );
    }
}

/// From the response schemas of Taskcluster's Worker Manager.
#[test]
fn worker_responses_have_taskclusters_required_fields() {
    let files = files();
    let worker = [
        "workerPoolId",
        "workerGroup",
        "workerId",
        "providerId",
        "created",
        "expires",
        "state",
        "capacity",
        "lastChecked",
        "lastModified",
    ];
    let entries = files["/references/worker-manager/v1/api.json"]["entries"].as_array().unwrap();
    for (name, needed) in [
        ("worker", &worker[..]),
        ("createWorker", &worker),
        ("updateWorker", &worker),
        ("registerWorker", &["expires", "credentials", "workerConfig", "secret"]),
        ("reregisterWorker", &["expires", "credentials", "secret"]),
        ("shouldWorkerTerminate", &["terminate", "reason"]),
    ] {
        let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
        let path = format!("/schemas/worker-manager/{}", entry["output"].as_str().unwrap().trim_end_matches('#'));
        let required = files[&path]["required"].as_array().unwrap();
        let missing: Vec<_> = needed.iter().filter(|field| !required.iter().any(|name| name == **field)).collect();
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
    }
}

/// Taskcluster's required words of routing keys, except common ones, and required fields of
/// messages.
#[test]
fn exchanges_have_taskclusters_required_fields() {
    let (run, worker) = (&["runId"][..], &["runId", "workerGroup", "workerId"][..]);
    let files = files();
    let entries = files["/references/queue/v1/exchanges.json"]["entries"].as_array().unwrap();
    for (name, in_key, in_message) in [
        ("taskDefined", &[][..], &[][..]),
        ("taskPending", run, run),
        ("taskRunning", worker, &["runId", "workerGroup", "workerId", "takenUntil"]),
        ("artifactCreated", worker, &["runId", "workerGroup", "workerId", "artifact"]),
        ("taskCompleted", worker, worker),
        ("taskFailed", &[], worker),
        ("taskException", &[], &[]),
        ("taskPriorityChanged", &[], &["oldPriority", "newPriority"]),
        ("taskGroupResolved", &[], &["expires"]),
        ("taskGroupSealed", &[], &["expires"]),
        ("taskGroupPriorityChanged", &[], &["newPriority", "tasksAffected"]),
    ] {
        let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
        let words = entry["routingKey"].as_array().unwrap().iter().filter(|word| word["required"] == true);
        let words: BTreeSet<&str> = words.map(|word| word["name"].as_str().unwrap()).collect();
        let (of_all, about): (&[&str], &[&str]) = if name.starts_with("taskGroup") {
            (&["routingKeyKind", "taskGroupId", "schedulerId"], &["version", "taskGroupId", "schedulerId"])
        } else {
            let of_task = &["routingKeyKind", "taskId", "provisionerId", "workerType", "schedulerId", "taskGroupId"];
            (of_task, &["version", "status"])
        };
        assert_eq!(words, of_all.iter().chain(in_key).copied().collect(), "the routing key of {name}");
        let path = format!("/schemas/queue/{}", entry["schema"].as_str().unwrap().trim_end_matches('#'));
        let required = files[&path]["required"].as_array().unwrap();
        let mut needed = about.iter().chain(in_message);
        assert!(needed.all(|field| required.iter().any(|name| name == field)), "the message of {name}: {required:?}");
    }
    assert_eq!(entries.len(), 11);
}
