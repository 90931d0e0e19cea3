//! Files of a payload: the inputs of its commands, and the artifacts they produce.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;

use super::{Malformed, malformed, text};
use crate::log::LOG_FILE;
use tenure_client::Task;
use tenure_client::live_log::{BACKING_LOG, LIVE_LOG};

/// Limit of inputs, and of artifacts.
const FILES_MAX: usize = 1000;
const NAME_MAX: usize = 1024;
const CONTENT_TYPE_MAX: usize = 255;
const SHA256_DIGITS: usize = 64;

/// An artifact of another task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    pub task_id: TaskId,
    pub artifact: String,
    /// Below the task's directory.
    pub path: PathBuf,
    pub sha256: Option<String>,
}

/// A file or directory that becomes artifacts after the commands have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    /// For a directory, prefix of its files' names.
    pub name: String,
    /// Below the task's directory; empty for the directory itself.
    pub path: PathBuf,
    pub kind: Kind,
    /// By default from the file's name.
    pub content_type: Option<String>,
    pub gzip: bool,
    /// Default: the expiry of the task.
    pub expires: Option<Timestamp>,
    pub optional: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
}

pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && is_printable(name)
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
}

pub(super) fn inputs(payload: &Map<String, Value>) -> Result<Vec<Input>, Malformed> {
    let inputs = entries(payload, "inputs", &["taskId", "artifact", "path", "sha256"], input)?;
    let mut paths: Vec<&Path> = inputs.iter().map(|input| input.path.as_path()).collect();
    paths.sort();
    // Paths sort by components, so a path is directly followed by those below it.
    match paths.windows(2).find(|pair| pair[1].starts_with(pair[0])) {
        Some(pair) => {
            Err(malformed("payload.inputs", format!("put {} and {} in the same place", show(pair[0]), show(pair[1]))))
        }
        None => Ok(inputs),
    }
}

fn input(fields: &Map<String, Value>, at: &str) -> Result<Input, Malformed> {
    let (field, task_id) = required(fields, at, "taskId")?;
    let task_id = task_id.parse().map_err(|_| malformed(field, "is not the id of a task"))?;
    let (_, artifact) = name(fields, at, "artifact")?;
    let (field, path) = required(fields, at, "path")?;
    let path = relative(&field, &path)?;
    if path.as_os_str().is_empty() || path.starts_with(LOG_FILE) {
        return Err(malformed(field, format!("must name a file, and not {LOG_FILE}, the log, or below it")));
    }
    let sha256 = optional(fields, at, "sha256")?;
    if let Some((field, digits)) = &sha256
        && !(digits.len() == SHA256_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    {
        return Err(malformed(field.as_str(), format!("must have {SHA256_DIGITS} hexadecimal digits")));
    }
    Ok(Input { task_id, artifact, path, sha256: sha256.map(|(_, digits)| digits.to_ascii_lowercase()) })
}

pub(super) fn outputs(payload: &Map<String, Value>) -> Result<Vec<Output>, Malformed> {
    let fields = ["name", "path", "type", "contentType", "contentEncoding", "expires", "optional"];
    let outputs = entries(payload, "artifacts", &fields, output)?;
    let mut names = HashSet::from([BACKING_LOG, LIVE_LOG]);
    match outputs.iter().find(|output| !names.insert(&output.name)) {
        Some(Output { name, .. }) if matches!(name.as_str(), BACKING_LOG | LIVE_LOG) => {
            Err(malformed("payload.artifacts", format!("have the name {name}, which the log gets")))
        }
        Some(Output { name, .. }) => Err(malformed("payload.artifacts", format!("have the name {name} twice"))),
        None => Ok(outputs),
    }
}

fn output(fields: &Map<String, Value>, at: &str) -> Result<Output, Malformed> {
    let (field, kind) = required(fields, at, "type")?;
    let kind = match kind.as_str() {
        "file" => Kind::File,
        "directory" => Kind::Directory,
        _ => return Err(malformed(field, "must be file or directory")),
    };
    let (field, path) = required(fields, at, "path")?;
    let path = relative(&field, &path)?;
    if kind == Kind::File && path.as_os_str().is_empty() {
        return Err(malformed(field, "must name a file"));
    }
    let (field, name) = match fields.get("name") {
        Some(_) => name(fields, at, "name")?,
        // A path such as "." yields no name.
        None => (format!("{at}.name"), show(&path)),
    };
    let name = if kind == Kind::Directory { name.trim_end_matches('/').to_owned() } else { name };
    if !is_name(&name) {
        return Err(malformed(field, format!("is required here, with 1 to {NAME_MAX} printable ASCII characters")));
    }
    Ok(Output {
        name,
        path,
        kind,
        content_type: content_type(fields, at)?,
        gzip: gzip(fields, at)?,
        expires: expires(fields, at)?,
        optional: flag(fields, at, "optional")?,
    })
}

/// Checks the files against the definition of the task.
pub(super) fn fit(inputs: &[Input], outputs: &[Output], task: &Task) -> Result<(), Malformed> {
    for (at, input) in inputs.iter().enumerate() {
        // Otherwise the artifact might not exist yet when this task runs.
        if !task.dependencies.contains(&input.task_id) {
            let problem = format!("is {}, which must be among the task's dependencies", input.task_id);
            return Err(malformed(format!("payload.inputs[{at}].taskId"), problem));
        }
    }
    for (at, output) in outputs.iter().enumerate() {
        if output.expires.is_some_and(|expires| expires > task.expires) {
            let problem = format!("must not be after the task's expires, {}", task.expires);
            return Err(malformed(format!("payload.artifacts[{at}].expires"), problem));
        }
    }
    Ok(())
}

fn content_type(fields: &Map<String, Value>, at: &str) -> Result<Option<String>, Malformed> {
    let Some((field, value)) = optional(fields, at, "contentType")? else { return Ok(None) };
    if (1..=CONTENT_TYPE_MAX).contains(&value.len()) && is_printable(&value) && value.trim() == value {
        return Ok(Some(value));
    }
    Err(malformed(
        field,
        format!("must have 1 to {CONTENT_TYPE_MAX} printable ASCII characters, and no space at an end"),
    ))
}

fn gzip(fields: &Map<String, Value>, at: &str) -> Result<bool, Malformed> {
    match optional(fields, at, "contentEncoding")? {
        None => Ok(false),
        Some((_, value)) if value == "identity" => Ok(false),
        Some((_, value)) if value == "gzip" => Ok(true),
        Some((field, _)) => Err(malformed(field, "must be identity or gzip")),
    }
}

fn expires(fields: &Map<String, Value>, at: &str) -> Result<Option<Timestamp>, Malformed> {
    let Some((field, _)) = optional(fields, at, "expires")? else { return Ok(None) };
    let date = serde_json::from_value(fields["expires"].clone());
    date.map(Some).map_err(|error| malformed(field, format!("must be a date: {error}")))
}

fn flag(fields: &Map<String, Value>, at: &str, name: &str) -> Result<bool, Malformed> {
    match fields.get(name) {
        None => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| malformed(format!("{at}.{name}"), "must be true or false")),
    }
}

/// Empty if the list is absent.
fn entries<T>(
    payload: &Map<String, Value>,
    name: &str,
    allowed: &[&str],
    read: impl Fn(&Map<String, Value>, &str) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let field = format!("payload.{name}");
    let Some(value) = payload.get(name) else { return Ok(Vec::new()) };
    let Value::Array(list) = value else { return Err(malformed(field, "must be a list of objects")) };
    if list.len() > FILES_MAX {
        return Err(malformed(field, format!("must have at most {FILES_MAX} entries")));
    }
    let entry = |(at, value): (usize, &Value)| {
        let at = format!("{field}[{at}]");
        let Value::Object(fields) = value else { return Err(malformed(at, "must be an object")) };
        if let Some(unknown) = fields.keys().find(|key| !allowed.contains(&key.as_str())) {
            return Err(malformed(
                format!("{at}.{unknown}"),
                format!("is not known: there are {}", allowed.join(", ")),
            ));
        }
        read(fields, &at)
    };
    list.iter().enumerate().map(entry).collect()
}

fn name(fields: &Map<String, Value>, at: &str, key: &str) -> Result<(String, String), Malformed> {
    let (field, name) = required(fields, at, key)?;
    if is_name(&name) {
        return Ok((field, name));
    }
    Err(malformed(field, format!("must have 1 to {NAME_MAX} printable ASCII characters")))
}

fn required(fields: &Map<String, Value>, at: &str, name: &str) -> Result<(String, String), Malformed> {
    optional(fields, at, name)?.ok_or_else(|| malformed(format!("{at}.{name}"), "is required"))
}

/// Returns the field's path too.
fn optional(fields: &Map<String, Value>, at: &str, name: &str) -> Result<Option<(String, String)>, Malformed> {
    let field = format!("{at}.{name}");
    fields.get(name).map(|value| Ok((field.clone(), text(value, &field)?))).transpose()
}

/// A path below the task's directory, without `..`.
fn relative(field: &str, path: &str) -> Result<PathBuf, Malformed> {
    let mut relative = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => relative.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(malformed(field, "must be a path below the task's directory, without .."));
            }
        }
    }
    if path.is_empty() { Err(malformed(field, "must not be empty")) } else { Ok(relative) }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "9HrBC1jMQ3KlZw4CssPUeQ";
    const OTHER: &str = "AAAAAAAAQACAAAAAAAAAAA";

    fn read_inputs(list: &Value) -> Result<Vec<Input>, String> {
        inputs(json!({ "inputs": list }).as_object().unwrap()).map_err(|error| error.to_string())
    }

    fn read_outputs(list: &Value) -> Result<Vec<Output>, String> {
        outputs(json!({ "artifacts": list }).as_object().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn inputs_are_read() {
        let digits = "AB".repeat(32);
        let read = read_inputs(&json!([
            {"taskId": ID, "artifact": "public/a", "path": "./in//a"},
            {"taskId": ID, "artifact": "b", "path": "in/b", "sha256": digits},
        ]));
        let input = |artifact: &str, path: &str, sha256| Input {
            task_id: ID.parse().unwrap(),
            artifact: artifact.into(),
            path: path.into(),
            sha256,
        };
        assert_eq!(read.unwrap(), [input("public/a", "in/a", None), input("b", "in/b", Some("ab".repeat(32)))]);
    }

    #[test]
    fn bad_input_is_named_in_error() {
        let fine = json!({"taskId": ID, "artifact": "a", "path": "p"});
        let with = |key: &str, value: Value| {
            let mut input = fine.clone();
            input[key] = value;
            json!([input])
        };
        for (list, problem) in [
            (json!({}), "payload.inputs must be a list"),
            (json!(["a"]), "payload.inputs[0] must be an object"),
            (json!([{"taskId": ID, "path": "p"}]), "payload.inputs[0].artifact is required"),
            (with("taskId", json!("x")), "payload.inputs[0].taskId is not"),
            (with("taskId", json!(1)), "payload.inputs[0].taskId must be a string"),
            (with("artifact", json!("")), "payload.inputs[0].artifact must"),
            (with("artifact", json!("ä")), "payload.inputs[0].artifact must"),
            (with("artifact", json!("a".repeat(1025))), "payload.inputs[0].artifact must"),
            (with("path", json!("")), "payload.inputs[0].path must"),
            (with("path", json!(".")), "payload.inputs[0].path must"),
            (with("path", json!("../p")), "payload.inputs[0].path must"),
            (with("path", json!("a/../../p")), "payload.inputs[0].path must"),
            (with("path", json!("/p")), "payload.inputs[0].path must"),
            (with("path", json!("p\u{0}")), "payload.inputs[0].path must not contain NUL"),
            (with("path", json!("live.log")), "payload.inputs[0].path must"),
            (with("path", json!("live.log/p")), "payload.inputs[0].path must"),
            (with("sha256", json!("ab")), "payload.inputs[0].sha256 must"),
            (with("sha256", json!("x".repeat(64))), "payload.inputs[0].sha256 must"),
            (with("unpack", json!(true)), "payload.inputs[0].unpack is not known"),
            (json!([fine, fine]), "payload.inputs put p and p in the same place"),
            (json!([fine, {"taskId": ID, "artifact": "a", "path": "p/q"}]), "payload.inputs put p and p/q"),
            (json!(vec![fine.clone(); 1001]), "payload.inputs must have at most"),
        ] {
            let error = read_inputs(&list).unwrap_err();
            assert!(error.starts_with(problem), "{list}: {error}");
        }
    }

    #[test]
    fn artifacts_are_read() {
        let read = read_outputs(&json!([
            {"name": "public/out", "path": "./out/", "type": "directory"},
            {"path": "result.txt", "type": "file", "contentType": "text/x", "contentEncoding": "gzip",
             "expires": "2001-01-01T00:00:00Z", "optional": true},
        ]));
        let directory = Output {
            name: "public/out".into(),
            path: "out".into(),
            kind: Kind::Directory,
            content_type: None,
            gzip: false,
            expires: None,
            optional: false,
        };
        let file = Output {
            name: "result.txt".into(),
            path: "result.txt".into(),
            kind: Kind::File,
            content_type: Some("text/x".into()),
            gzip: true,
            expires: Some(Timestamp::new("2001-01-01T00:00:00Z".parse().unwrap())),
            optional: true,
        };
        assert_eq!(read.unwrap(), [directory, file]);
        let whole = read_outputs(&json!([{"name": "public/", "path": ".", "type": "directory"}])).unwrap();
        assert_eq!((whole[0].name.as_str(), whole[0].path.as_os_str().len()), ("public", 0));
    }

    #[test]
    fn bad_artifact_is_named_in_error() {
        let fine = json!({"name": "n", "path": "p", "type": "file"});
        let with = |key: &str, value: Value| {
            let mut artifact = fine.clone();
            artifact[key] = value;
            json!([artifact])
        };
        for (list, problem) in [
            (json!(1), "payload.artifacts must be a list"),
            (json!([{"name": "n", "path": "p"}]), "payload.artifacts[0].type is required"),
            (with("type", json!("volume")), "payload.artifacts[0].type must"),
            (with("path", json!("/etc/passwd")), "payload.artifacts[0].path must"),
            (with("path", json!(".")), "payload.artifacts[0].path must"),
            (with("name", json!("")), "payload.artifacts[0].name must"),
            (json!([{"path": ".", "type": "directory"}]), "payload.artifacts[0].name is required here"),
            (json!([{"path": "ä", "type": "file"}]), "payload.artifacts[0].name is required here"),
            (json!([{"name": "/", "path": ".", "type": "directory"}]), "payload.artifacts[0].name is required here"),
            (with("contentType", json!("")), "payload.artifacts[0].contentType must"),
            (with("contentType", json!("a".repeat(256))), "payload.artifacts[0].contentType must"),
            (with("contentType", json!("a\nb")), "payload.artifacts[0].contentType must"),
            (with("contentType", json!(" text/plain")), "payload.artifacts[0].contentType must"),
            (with("contentEncoding", json!("br")), "payload.artifacts[0].contentEncoding must"),
            (with("expires", json!("soon")), "payload.artifacts[0].expires must"),
            (with("optional", json!(1)), "payload.artifacts[0].optional must"),
            (with("volume", json!("x")), "payload.artifacts[0].volume is not known"),
            (with("name", json!("public/logs/live.log")), "payload.artifacts have the name public/logs/live.log"),
            (json!([fine, fine]), "payload.artifacts have the name n twice"),
        ] {
            let error = read_outputs(&list).unwrap_err();
            assert!(error.starts_with(problem), "{list}: {error}");
        }
    }

    #[test]
    fn files_must_match_their_task() {
        let task: Task = serde_json::from_value(json!({
            "taskQueueId": "p/w", "taskGroupId": ID, "dependencies": [OTHER], "payload": {},
            "deadline": "2001-01-01T00:00:00Z", "expires": "2001-01-02T00:00:00Z",
            "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"},
        }))
        .unwrap();
        let fits = |input: &str, expires: &str| {
            let inputs = read_inputs(&json!([{"taskId": input, "artifact": "a", "path": "p"}])).unwrap();
            let outputs =
                read_outputs(&json!([{"name": "n", "path": "p", "type": "file", "expires": expires}])).unwrap();
            fit(&inputs, &outputs, &task).map_err(|error| error.to_string())
        };
        assert_eq!(fits(OTHER, "2000-12-31T23:59:59Z"), Ok(()), "before the deadline");
        assert_eq!(fits(OTHER, "2001-01-02T00:00:00Z"), Ok(()));
        let error = fits(ID, "2001-01-02T00:00:00Z").unwrap_err();
        assert!(error.starts_with("payload.inputs[0].taskId is 9HrBC1jMQ3KlZw4CssPUeQ, which must"), "{error}");
        let error = fits(OTHER, "2001-01-02T00:00:01Z").unwrap_err();
        assert!(error.starts_with("payload.artifacts[0].expires must not be after"), "{error}");
    }
}
