//! Schemas of bodies and messages: documents that refer to each other by URL.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

const COMPONENT: &str = "#/components/schemas/";

/// Schemas of the references themselves.
const COMMON: [(&str, &str); 5] = [
    ("metaschema", include_str!("../common/metaschema.json")),
    ("manifest-v3", include_str!("../common/manifest-v3.json")),
    ("api-reference-v0", include_str!("../common/api-reference-v0.json")),
    ("exchanges-reference-v0", include_str!("../common/exchanges-reference-v0.json")),
    ("metrics-reference-v0", include_str!("../common/metrics-reference-v0.json")),
];
const DRAFT: &str = "http://json-schema.org/draft-07/schema#";

pub(super) fn common(root: &str) -> BTreeMap<String, Value> {
    let one = |(name, text): (&str, &str)| {
        let path = format!("/schemas/common/{name}.json");
        let schema: Map<String, Value> = serde_json::from_str(text).expect("a test reads them all");
        let mut schema = with_head(root, "metaschema", &path, schema);
        if name == "metaschema" {
            schema["$schema"] = DRAFT.into();
        }
        (path, schema)
    };
    COMMON.into_iter().map(one).collect()
}

pub(super) fn with_head(root: &str, schema: &str, path: &str, mut rest: Map<String, Value>) -> Value {
    rest.insert("$schema".to_owned(), format!("{root}/schemas/common/{schema}.json#").into());
    rest.insert("$id".to_owned(), format!("{root}{path}#").into());
    Value::Object(rest)
}

/// Schemas used by one service's operations, directly or not.
pub(super) struct Schemas<'a> {
    root: &'a str,
    service: &'static str,
    /// From the OpenAPI document.
    components: &'a Value,
    files: BTreeMap<String, Value>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(root: &'a str, service: &'static str, components: &'a Value) -> Self {
        Self { root, service, components, files: BTreeMap::new() }
    }

    /// Returns the name for references. `unnamed` is the fallback name.
    pub(super) fn add(&mut self, schema: &Value, unnamed: &str) -> String {
        let component = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix(COMPONENT));
        let name = component.unwrap_or(unnamed);
        let schema = component.map_or_else(|| schema.clone(), |name| self.component(name));
        self.put(name, schema)
    }

    pub(super) fn component(&self, name: &str) -> Value {
        self.components.get(name).cloned().unwrap_or_default()
    }

    /// Returns the name for references.
    pub(super) fn put(&mut self, name: &str, mut schema: Value) -> String {
        let file = format!("v1/{}.json", in_small_letters(name));
        if self.files.contains_key(&file) {
            return format!("{file}#");
        }
        // Before its own references, which may refer back.
        self.files.insert(file.clone(), Value::Null);
        self.point_at_files(&mut schema);
        let mut fields = schema.as_object().cloned().unwrap_or_default();
        fields.entry("title").or_insert_with(|| name.into());
        let whole = with_head(self.root, "metaschema", &format!("/schemas/{}/{file}", self.service), fields);
        self.files.insert(file.clone(), whole);
        format!("{file}#")
    }

    fn point_at_files(&mut self, schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                let component = fields.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(COMPONENT));
                if let Some(name) = component.map(str::to_owned) {
                    let component = self.component(&name);
                    let file = self.put(&name, component);
                    fields.insert("$ref".to_owned(), format!("{}/schemas/{}/{file}", self.root, self.service).into());
                }
                fields.values_mut().for_each(|field| self.point_at_files(field));
            }
            Value::Array(parts) => parts.iter_mut().for_each(|part| self.point_at_files(part)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    pub(super) fn into_files(self) -> impl Iterator<Item = (String, Value)> {
        let service = self.service;
        self.files.into_iter().map(move |(file, schema)| (format!("/schemas/{service}/{file}"), schema))
    }
}

/// Converts `CreateTaskRequest` and `createTaskRequest` to `create-task-request`.
fn in_small_letters(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
