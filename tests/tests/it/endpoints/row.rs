//! Parts of the table: one entry for each operation, one row for each case.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode;

/// Of the uploaded bytes `hello`.
pub const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// State before a case. Every name in it is new, so that cases do not interact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing that the request names exists.
    Nothing,
    Pending,
    /// A task that depends on the pending task `<required>`.
    Unscheduled,
    /// A pending task that `<dependent>` depends on.
    Required,
    /// A task whose run 0 is claimed by `group` and `worker`.
    Claimed,
    Completed,
    Cancelled,
    Overdue,
    Sealed,
    Client,
    Role,
    Limited,
    /// A claimed run with artifacts: the references `<name>` and `public/log`, the links `link`,
    /// `public/link` and `circle`, `error`, `expired`, and `object` without uploaded bytes.
    Artifacts,
    Uploaded,
    Finished,
    Stored,
    /// An object whose upload is not finished; its bytes are stored.
    Upload,
    Object,
    OldObject,
    /// A live session of `group` and `worker`, and a pending task of its queue.
    Session,
    /// As `Session`, but its worker has ended the session.
    SessionEnded,
    WorkerCreated,
    Registered,
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Root,
    /// A client with the public scopes only.
    WithoutScopes,
    /// The same client as `WithoutScopes`, with a wrong token.
    Impostor,
    Anonymous,
    /// The client of testAuthenticate, by a Hawk signature.
    Tester,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Usual,
    Json(Value),
    Bytes(&'static str, &'static [u8]),
    TooLarge,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// An answer as described by the document, with these values at these JSON pointers.
    Success(Vec<(&'static str, Value)>),
    Refusal(ErrorCode),
}

#[derive(Clone, Debug)]
pub struct Row {
    pub case: String,
    pub state: State,
    pub who: Who,
    /// Replaces the operation's method.
    pub method: Option<&'static str>,
    /// Replaces the operation's first path.
    pub path: Option<String>,
    pub parameter: Option<(String, &'static str)>,
    pub query: String,
    pub body: Body,
    /// Replaces the usual status of a success.
    pub status: Option<u16>,
    pub outcome: Outcome,
}

pub fn refused(code: ErrorCode, case: impl Into<String>) -> Row {
    Row { outcome: Outcome::Refusal(code), ..succeeds(case) }
}

pub fn succeeds(case: impl Into<String>) -> Row {
    Row {
        case: case.into(),
        state: State::Nothing,
        who: Who::Root,
        method: None,
        path: None,
        parameter: None,
        query: String::new(),
        body: Body::Usual,
        status: None,
        outcome: Outcome::Success(Vec::new()),
    }
}

impl Row {
    pub fn on(self, state: State) -> Self {
        Self { state, ..self }
    }

    pub fn by(self, who: Who) -> Self {
        Self { who, ..self }
    }

    pub fn with(self, parameter: &str, value: &'static str) -> Self {
        Self { parameter: Some((parameter.to_owned(), value)), ..self }
    }

    pub fn query(self, query: &str) -> Self {
        Self { query: query.to_owned(), ..self }
    }

    pub fn body(self, body: Value) -> Self {
        Self { body: Body::Json(body), ..self }
    }

    pub fn bytes(self, media_type: &'static str, bytes: &'static [u8]) -> Self {
        Self { body: Body::Bytes(media_type, bytes), ..self }
    }

    pub fn answers(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }

    /// Expects this value at this JSON pointer of the answer.
    pub fn gives(mut self, pointer: &'static str, value: impl Into<Value>) -> Self {
        if let Outcome::Success(values) = &mut self.outcome {
            values.push((pointer, value.into()));
        }
        self
    }
}

/// An operation with its own cases; common cases are derived from the document.
#[derive(Clone, Debug)]
pub struct OperationRows {
    pub name: &'static str,
    pub usual: Row,
    pub body: Option<Value>,
    pub rows: Vec<Row>,
    /// Refusals that need several requests: status, code, and name of the test.
    pub elsewhere: Vec<(u16, &'static str, &'static str)>,
}

/// An operation, and the state in which it succeeds.
pub fn operation(name: &'static str, state: State) -> OperationRows {
    OperationRows {
        name,
        usual: succeeds("as described").on(state),
        body: None,
        rows: Vec::new(),
        elsewhere: Vec::new(),
    }
}

impl OperationRows {
    pub fn takes(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    pub fn by(self, who: Who) -> Self {
        Self { usual: self.usual.by(who), ..self }
    }

    pub fn gives(self, pointer: &'static str, value: impl Into<Value>) -> Self {
        Self { usual: self.usual.gives(pointer, value), ..self }
    }

    pub fn row(mut self, row: Row) -> Self {
        self.rows.push(row);
        self
    }

    pub fn elsewhere(mut self, code: ErrorCode, test: &'static str) -> Self {
        self.elsewhere.push((code.status(), code.as_str(), test));
        self
    }

    /// Adds a refusal for stored bytes, which have other codes, that another test has.
    pub fn bytes_elsewhere(mut self, status: u16, code: &'static str, test: &'static str) -> Self {
        self.elsewhere.push((status, code, test));
        self
    }

    pub fn query(self, query: &str) -> Self {
        Self { usual: self.usual.query(query), ..self }
    }

    pub fn takes_bytes(self, media_type: &'static str, bytes: &'static [u8]) -> Self {
        Self { usual: self.usual.bytes(media_type, bytes), ..self }
    }
}

pub fn a_task() -> Value {
    json!({
        "taskQueueId": "<taskQueueId>",
        "created": "<created>",
        "deadline": "<deadline>",
        "payload": {"command": ["true"]},
        "metadata": {"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com/"},
    })
}

pub fn a_task_with(fields: Value) -> Value {
    with(a_task(), fields)
}

pub fn an_upload() -> Value {
    json!({
        "projectId": "<projectId>",
        "uploadId": "<uploadId>",
        "expires": "<expires>",
        "proposedUploadMethods": {"dataInline": {"contentType": "text/plain", "objectData": "aGVsbG8="}},
    })
}

pub fn an_upload_with(fields: Value) -> Value {
    with(an_upload(), fields)
}

pub fn an_end() -> Value {
    json!({"projectId": "<projectId>", "uploadId": "<uploadId>", "hashes": {"sha256": SHA256}})
}

/// Claims by a share of a group that does not exist.
pub fn of_share(body: Value) -> Value {
    with(body, json!({"partition": {"name": "none", "epoch": 1, "index": 0}}))
}

pub fn with(mut body: Value, fields: Value) -> Value {
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) {
        body.extend(fields);
    }
    body
}
