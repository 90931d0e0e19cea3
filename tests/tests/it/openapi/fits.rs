//! Compares answers with the OpenAPI document.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use jsonschema::Validator;
use serde_json::Value;

use super::Operation;
use crate::rig::RawReply;

fn strict(document: &Value) -> Value {
    let mut components = document["components"].clone();
    for schema in components["schemas"].as_object_mut().unwrap().values_mut() {
        if schema["type"] == "object" && schema["properties"].is_object() {
            schema["additionalProperties"] = false.into();
        }
    }
    components
}

#[track_caller]
pub fn fits(document: &Value, name: &str, operation: &Operation, reply: &RawReply) {
    let promised = &operation.described["responses"][reply.status.to_string()];
    assert!(promised.is_object(), "{name} answered {}, which is not described: {}", reply.status, reply.text());
    for header in promised["headers"].as_object().into_iter().flat_map(serde_json::Map::keys) {
        assert!(reply.header(&header.to_ascii_lowercase()).is_some(), "{name}: {} has no {header}", reply.status);
    }
    let Some(content) = promised["content"].as_object() else {
        assert!(reply.body.is_empty(), "{name}: {}", reply.text());
        return;
    };
    let media_type = reply.header("content-type").unwrap_or_default().split(';').next().unwrap();
    let Some(described) = content.get(media_type).or_else(|| content.get("*/*")) else {
        panic!("{name} answered {media_type}: {content:#?}")
    };
    if media_type == "application/json" {
        let body = reply.json();
        let errors = misfits(document, &described["schema"], &body);
        assert!(errors.is_empty(), "{name}: {errors:?}\n{body:#}");
    }
}

/// Differences of a body from a schema of the document. Each thread compiles a schema once: with
/// its references that takes longer than a request, and all documents of one program have the same
/// schemas.
fn misfits(document: &Value, schema: &Value, body: &Value) -> Vec<String> {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Rc<Validator>>> = RefCell::default();
    }
    let compile = || {
        let mut whole = schema.clone();
        whole["components"] = strict(document);
        Rc::new(jsonschema::draft202012::options().should_validate_formats(true).build(&whole).unwrap())
    };
    let key = schema.to_string();
    let compiled = COMPILED.with_borrow_mut(|known| Rc::clone(known.entry(key).or_insert_with(compile)));
    compiled.iter_errors(body).map(|error| error.to_string()).collect()
}
