//! References and schemas in Taskcluster's formats.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value, json};
use tenure_api::errors::ErrorCode;

use crate::http::call::Call;
use crate::http::docs::operation::Operation;
use crate::http::docs::parameters::UNKNOWN_ARGUMENT;
use crate::http::docs::references::References;
use crate::http::docs::sample::Sample;
use crate::http::docs::state::{Docs, Endpoint};
use crate::http::error::ApiError;
use crate::http::files::{File, Life};

/// `GET /references/manifest.json`
pub fn manifest() -> Endpoint {
    Endpoint::get("manifest", answer_manifest).no_pool().described(
        "service",
        "The paths of the references",
        |operation, _| {
            let example = json!({"references": ["https://tenure.example.com/references/queue/v1/api.json"]});
            described(operation, "In Taskcluster's format.", &example)
        },
    )
}

/// `GET /references/:service/v1/:reference`
pub fn reference() -> Endpoint {
    let summary = "The operations, the exchanges or the metrics of a service";
    Endpoint::get("reference", answer_reference).no_pool().described("service", summary, |operation, _| {
        described(
            operation,
            "In Taskcluster's format, from which its client libraries are generated: `api.json`, and for the queue \
             `exchanges.json` and `metrics.json`, which lists the metrics shared with Taskcluster.",
            &json!({"serviceName": "queue", "apiVersion": "v1"}),
        )
    })
}

/// `GET /schemas/:service/v1/:schema`
pub fn schema() -> Endpoint {
    let summary = "The schema of a body or a message";
    Endpoint::get("schema", answer_schema).no_pool().described("service", summary, describe_schema)
}

/// `GET /schemas/common/:common`
pub fn common_schema() -> Endpoint {
    let summary = "The schema of references";
    Endpoint::get("commonSchema", answer_common_schema).no_pool().described("service", summary, describe_schema)
}

fn describe_schema(operation: Operation, _: &Sample) -> Operation {
    described(operation, "JSON Schema, draft 7.", &json!({"type": "object"}))
}

fn described(operation: Operation, about: &str, example: &Value) -> Operation {
    operation
        .about(about)
        .answers_with(200, "The document", "application/json", &json!({"type": "object"}), example)
        .refuses(ErrorCode::InvalidRequestArguments, UNKNOWN_ARGUMENT)
        .refuses(ErrorCode::ResourceNotFound, "the document does not exist")
}

async fn answer_manifest(app: Docs, call: Arc<Call>) -> Result<Response, ApiError> {
    find(&app, &call, "/references/manifest.json".to_owned()).await
}

async fn answer_reference(app: Docs, call: Arc<Call>) -> Result<Response, ApiError> {
    let path = format!("/references/{}/v1/{}", call.text_param("service"), call.text_param("reference"));
    find(&app, &call, path).await
}

async fn answer_schema(app: Docs, call: Arc<Call>) -> Result<Response, ApiError> {
    let path = format!("/schemas/{}/v1/{}", call.text_param("service"), call.text_param("schema"));
    find(&app, &call, path).await
}

async fn answer_common_schema(app: Docs, call: Arc<Call>) -> Result<Response, ApiError> {
    find(&app, &call, format!("/schemas/common/{}", call.text_param("common"))).await
}

async fn find(app: &Docs, call: &Call, path: String) -> Result<Response, ApiError> {
    call.no_query()?;
    let none = || {
        let message = format!("there is no {path:?}; /references/manifest.json lists all documents");
        ApiError::new(ErrorCode::ResourceNotFound, message)
    };
    // Refuses unknown paths at once, if the existing ones are known.
    if app.references.get().is_some_and(|references| references.find(&path).is_none()) {
        return Err(none());
    }
    let (server, name) = (Arc::clone(app), path.clone());
    let make = move || {
        let references = server.references.get_or_init(|| References::new(&server.root_url, &server.routes));
        Ok(references.find(&name).map(|text| File::new("application/json", text.to_owned())))
    };
    let file = app.files.get(path.clone(), Life::Forever, make).await?;
    Ok(file.ok_or_else(none)?.response())
}
