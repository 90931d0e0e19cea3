//! What the table is made of: one entry an operation, one row a case.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode;

/// Of the bytes of an upload, `hello`.
pub const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// What there is before a case. Every name in it is new, so that cases do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing of what the request names.
    Nothing,
    /// A pending task.
    Pending,
    /// A task that waits for `<required>`, which is pending.
    Unscheduled,
    /// A pending task that `<dependent>` waits for.
    Required,
    /// A task whose run 0 is claimed by `group` and `worker`.
    Claimed,
    /// A task that `group` and `worker` have completed.
    Completed,
    /// A task that was cancelled while it was pending.
    Cancelled,
    /// A task that was claimed, and whose deadline has passed.
    Overdue,
    /// A pending task in a group that is sealed.
    Sealed,
    /// A client without scopes.
    Client,
    /// A role without scopes.
    Role,
    /// A queue with limits.
    Limited,
    /// A claimed run with artifacts: the references `<name>` and `public/log`, the links `link`, `public/link` and `circle`,
    /// `error`, `expired`, and `object`, of which nothing is uploaded yet.
    Artifacts,
    /// A claimed run with an artifact whose object is uploaded.
    Uploaded,
    /// The same, finished.
    Finished,
    /// A claimed run with an artifact whose bytes are stored.
    Stored,
    /// An object whose upload is not finished; its bytes are there.
    Upload,
    /// An object of five bytes.
    Object,
    /// An object whose time is over.
    OldObject,
    /// A live session of `group` and `worker`, and a pending task of its queue.
    Session,
    /// The same, with a session that its worker has ended.
    SessionEnded,
    /// A worker that was created and has not registered.
    WorkerCreated,
    /// A worker that has registered.
    Registered,
    /// A worker that was created and removed.
    Removed,
}

/// Who sends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A client that may do everything.
    Root,
    /// A client with the public scopes only.
    WithoutScopes,
    /// That client, with another token than its own.
    Impostor,
    /// A caller without credentials.
    Anonymous,
    /// The client of testAuthenticate, by a Hawk signature.
    Tester,
}

/// The body of the request.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// That of the entry.
    Usual,
    /// This one.
    Json(Value),
    /// These bytes as this media type.
    Bytes(&'static str, &'static [u8]),
    /// One byte over the limit.
    TooLarge,
}

/// What must come of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// An answer that the document describes, with these values at these places.
    Success(Vec<(&'static str, Value)>),
    /// A refusal.
    Refusal(ErrorCode),
}

/// A case.
#[derive(Clone, Debug)]
pub struct Row {
    /// In words.
    pub case: String,
    pub state: State,
    pub who: Who,
    /// Another method than the operation's.
    pub method: Option<&'static str>,
    /// Another path than the operation's first.
    pub path: Option<String>,
    /// A parameter of the path, with another value than the state's.
    pub parameter: Option<(String, &'static str)>,
    /// The query string.
    pub query: String,
    pub body: Body,
    /// The status of a success that is not as usual.
    pub status: Option<u16>,
    pub outcome: Outcome,
}

/// A case that the operation refuses.
pub fn refused(code: ErrorCode, case: impl Into<String>) -> Row {
    Row { outcome: Outcome::Refusal(code), ..succeeds(case) }
}

/// A case in which the operation succeeds.
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

    /// With this instead of the value that the state has for a parameter of the path.
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

    /// This is its status, and no failure.
    pub fn answers(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }

    /// The answer has this value at this place.
    pub fn gives(mut self, pointer: &'static str, value: impl Into<Value>) -> Self {
        if let Outcome::Success(values) = &mut self.outcome {
            values.push((pointer, value.into()));
        }
        self
    }
}

/// An operation with its own cases; those that every operation of its kind has are derived from the document.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: &'static str,
    /// In which state and by whom it is sent where a case sets nothing else.
    pub usual: Row,
    pub body: Option<Value>,
    pub rows: Vec<Row>,
    /// Refusals that take more than one request: status, code, and the test that has it.
    pub elsewhere: Vec<(u16, &'static str, &'static str)>,
}

/// An operation, and the state in which it succeeds.
pub fn operation(name: &'static str, state: State) -> Entry {
    Entry { name, usual: succeeds("as described").on(state), body: None, rows: Vec::new(), elsewhere: Vec::new() }
}

impl Entry {
    /// The body that it takes.
    pub fn takes(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    /// Who sends it where a case sets nothing else.
    pub fn by(self, who: Who) -> Self {
        Self { usual: self.usual.by(who), ..self }
    }

    /// The answer has this value at this place.
    pub fn gives(self, pointer: &'static str, value: impl Into<Value>) -> Self {
        Self { usual: self.usual.gives(pointer, value), ..self }
    }

    /// Another case.
    pub fn row(mut self, row: Row) -> Self {
        self.rows.push(row);
        self
    }

    /// A refusal that another test brings about.
    pub fn elsewhere(mut self, code: ErrorCode, test: &'static str) -> Self {
        self.elsewhere.push((code.status(), code.as_str(), test));
        self
    }

    /// The same of stored bytes, which have codes of their own.
    pub fn bytes_elsewhere(mut self, status: u16, code: &'static str, test: &'static str) -> Self {
        self.elsewhere.push((status, code, test));
        self
    }

    /// The query string where a case sets nothing else.
    pub fn query(self, query: &str) -> Self {
        Self { usual: self.usual.query(query), ..self }
    }

    /// The bytes that it takes.
    pub fn takes_bytes(self, media_type: &'static str, bytes: &'static [u8]) -> Self {
        Self { usual: self.usual.bytes(media_type, bytes), ..self }
    }
}

/// The body of createTask, to be filled in.
pub fn a_task() -> Value {
    json!({
        "taskQueueId": "<taskQueueId>",
        "created": "<created>",
        "deadline": "<deadline>",
        "payload": {"command": ["true"]},
        "metadata": {"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com/"},
    })
}

/// The same with other fields.
pub fn a_task_with(fields: Value) -> Value {
    with(a_task(), fields)
}

/// The body of createUpload, to be filled in.
pub fn an_upload() -> Value {
    json!({
        "projectId": "<projectId>",
        "uploadId": "<uploadId>",
        "expires": "<expires>",
        "proposedUploadMethods": {"dataInline": {"contentType": "text/plain", "objectData": "aGVsbG8="}},
    })
}

/// The same with other fields.
pub fn an_upload_with(fields: Value) -> Value {
    with(an_upload(), fields)
}

/// The body of finishUpload, to be filled in.
pub fn an_end() -> Value {
    json!({"projectId": "<projectId>", "uploadId": "<uploadId>", "hashes": {"sha256": SHA256}})
}

/// The body with other fields.
pub fn with(mut body: Value, fields: Value) -> Value {
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) {
        body.extend(fields);
    }
    body
}
