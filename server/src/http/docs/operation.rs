//! The description of an operation, built beside its handler. Parts common to all operations of a
//! kind are added here.

use serde_json::{Map, Value, json};
use tenure_api::errors::ErrorCode;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::scopes;
use crate::http::access::Access;
use crate::http::blobs::error as blobs;
use crate::http::body::BODY_MAX;
use crate::http::poll::error::Code;
use crate::http::scopes::Template;

/// As utoipa returns them.
pub type Schemas = Vec<(String, RefOr<Schema>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Form {
    Api,
    Queue,
    Artifact,
}

#[derive(Clone, Debug)]
pub(in crate::http) struct Refusal {
    pub(in crate::http) code: String,
    pub(in crate::http) status: u16,
    pub(in crate::http) when: String,
    pub(in crate::http) form: Form,
}

#[derive(Clone)]
pub struct Operation {
    /// Operation name in the API and in routes.
    pub name: &'static str,
    pub(in crate::http) tag: &'static str,
    /// `stable`, `experimental` or `deprecated`, as in Taskcluster.
    pub(in crate::http) stability: &'static str,
    pub(in crate::http) category: &'static str,
    pub(in crate::http) summary: &'static str,
    pub(in crate::http) about: String,
    pub(in crate::http) access: Access,
    /// Of the query, and headers.
    pub(in crate::http) parameters: Vec<Value>,
    pub(in crate::http) request: Option<Value>,
    pub(in crate::http) answers: Vec<(u16, Value)>,
    pub(in crate::http) refusals: Vec<Refusal>,
    pub(in crate::http) schemas: Schemas,
    /// See [`Operation::names`].
    pub(in crate::http) names: Vec<(&'static str, &'static str)>,
}

fn heading(tag: &str) -> &'static str {
    match tag {
        "queue" => "Tasks",
        "auth" => "Clients, roles and scopes",
        "worker-manager" => "Workers",
        "purge-cache" => "Caches",
        "messages" => "Messages",
        "service" => "Monitoring",
        _ => "Tenure",
    }
}

/// An open operation reads the body before it authenticates.
fn when_too_large(access: Access, anonymous_body_max: usize) -> String {
    let anonymous_kib = anonymous_body_max >> 10;
    if anonymous_body_max == BODY_MAX {
        "the body is over 10 MB".to_owned()
    } else if access == Access::Open {
        format!("the body is over {anonymous_kib} KiB")
    } else {
        format!("the body is over 10 MB, or over {anonymous_kib} KiB without credentials")
    }
}

impl Operation {
    /// Adds the refusals common to this access. `anonymous_body_max` is in bytes, for callers
    /// without credentials.
    pub(in crate::http) fn new(
        name: &'static str,
        tag: &'static str,
        summary: &'static str,
        access: Access,
        anonymous_body_max: usize,
    ) -> Self {
        let bare = Self {
            name,
            tag,
            stability: "stable",
            category: heading(tag),
            summary,
            about: String::new(),
            access,
            parameters: Vec::new(),
            request: None,
            answers: Vec::new(),
            refusals: Vec::new(),
            schemas: Vec::new(),
            names: Vec::new(),
        };
        match access {
            Access::Open => bare.of_an_api(anonymous_body_max),
            Access::Scopes(scopes) => bare.of_an_api(anonymous_body_max).with_scopes(&scopes),
            Access::SignedUrl => bare.of_the_message_plane(),
            Access::ArtifactUrl | Access::PlainArtifactUrl => bare.of_stored_bytes(),
        }
    }

    fn of_an_api(self, anonymous_body_max: usize) -> Self {
        let too_large = when_too_large(self.access, anonymous_body_max);
        self.refuses(ErrorCode::InputTooLarge, &too_large)
            .refuses(
                ErrorCode::InternalServerError,
                "server error; the server's log has the cause under the incidentId of the message",
            )
            .refuses(
                ErrorCode::ServiceUnavailable,
                "the server is overloaded, or the database is unavailable; send the same request again",
            )
    }

    fn with_scopes(self, scopes: &Template) -> Self {
        let needed = scopes::in_words(&scopes.to_json());
        self.refuses(ErrorCode::AuthenticationFailed, "the credentials are wrong or have expired")
            .refuses(ErrorCode::InvalidRequestArguments, "a path or query parameter is invalid")
            .refuses(ErrorCode::InsufficientScopes, &format!("the caller lacks scopes; needed: {needed}"))
    }

    fn of_the_message_plane(self) -> Self {
        [
            (Code::AuthenticationFailed, "the URL is not signed by this server, was changed, or is not valid now"),
            (Code::AuthorizationPermissionMismatch, "the signature does not allow the operation"),
            (Code::AuthorizationProtocolMismatch, "the URL is valid for https only"),
            (Code::QueueNotFound, "the queue does not exist"),
            (Code::InternalError, "server error"),
            (Code::ServerBusy, "the server is overloaded, or the database is unavailable; send the same request again"),
        ]
        .into_iter()
        .fold(self, |operation, (code, when)| operation.refuses_xml(code, when))
    }

    fn of_stored_bytes(self) -> Self {
        self.refuses_artifact(
            blobs::Code::AccessDenied,
            "the URL is not signed by this server, was changed, has expired, or is for another method or Content-Type",
        )
        .refuses_artifact(blobs::Code::InternalError, "server error, or the stored bytes are damaged")
        .refuses_artifact(
            blobs::Code::Unavailable,
            "the server is overloaded, or the database or the artifact store is unavailable",
        )
    }

    #[must_use]
    pub fn experimental(self) -> Self {
        Self { stability: "experimental", ..self }
    }

    #[must_use]
    pub fn deprecated(self) -> Self {
        Self { stability: "deprecated", ..self }
    }

    /// Sets the heading in a reference.
    #[must_use]
    pub fn category(self, category: &'static str) -> Self {
        Self { category, ..self }
    }

    /// Sets details after the summary, as Markdown.
    #[must_use]
    pub fn about(mut self, text: &str) -> Self {
        text.clone_into(&mut self.about);
        self
    }

    /// A null example means that the parameter is omitted by default.
    #[must_use]
    pub fn query(mut self, name: &str, about: &str, schema: &Value, example: &Value) -> Self {
        let mut parameter = json!({"in": "query", "name": name, "description": about, "schema": schema});
        if !example.is_null() {
            parameter["example"] = example.clone();
        }
        self.parameters.push(parameter);
        self
    }

    /// Makes the latest query parameter required.
    #[must_use]
    pub fn required(mut self) -> Self {
        if let Some(last) = self.parameters.last_mut() {
            last["required"] = true.into();
        }
        self
    }

    /// Declares values that are path parameters of other operations: name and runtime expression,
    /// as in OpenAPI's links.
    #[must_use]
    pub fn names(mut self, values: &[(&'static str, &'static str)]) -> Self {
        self.names = values.to_vec();
        self
    }

    #[must_use]
    pub fn header(mut self, name: &str, about: &str, schema: &Value) -> Self {
        self.parameters.push(json!({"in": "header", "name": name, "description": about, "schema": schema}));
        self
    }

    /// The example must be valid.
    #[must_use]
    pub fn takes<T: ToSchema>(mut self, example: &Value) -> Self {
        let content = json!({"application/json": {"schema": self.refer::<T>(), "example": example}});
        self.request = Some(json!({"required": true, "content": content}));
        self.checks_body()
    }

    #[must_use]
    pub fn checks_body(self) -> Self {
        self.refuses(ErrorCode::MalformedPayload, "the body is not JSON, or its Content-Type is not `application/json`")
            .refuses(ErrorCode::InputValidationError, "the body does not match its schema; the message names the field")
    }

    #[must_use]
    pub fn takes_either<T: ToSchema, U: ToSchema>(self, example: &Value) -> Self {
        let mut taking = self.takes::<T>(example);
        let forms = json!({"oneOf": [taking.refer::<T>(), taking.refer::<U>()]});
        if let Some(request) = &mut taking.request {
            request["content"]["application/json"]["schema"] = forms;
        }
        taking
    }

    #[must_use]
    pub fn may_take_json<T: ToSchema>(mut self, example: &Value) -> Self {
        let schema = self.refer::<T>();
        self.may_take("application/json", &schema, example)
    }

    #[must_use]
    pub fn may_take(mut self, media_type: &str, schema: &Value, example: &Value) -> Self {
        self.request = Some(json!({"content": {media_type: {"schema": schema, "example": example}}}));
        self
    }

    #[must_use]
    pub fn with_schema<T: ToSchema>(mut self) -> Self {
        self.refer::<T>();
        self
    }

    #[must_use]
    pub fn answers<T: ToSchema>(mut self, about: &str, example: &Value) -> Self {
        let schema = self.refer::<T>();
        self.answers_with(200, about, "application/json", &schema, example)
    }

    #[must_use]
    pub fn answers_json<T: ToSchema>(mut self, status: u16, about: &str, example: &Value) -> Self {
        let schema = self.refer::<T>();
        self.answers_with(status, about, "application/json", &schema, example)
    }

    /// Adds a 303, whose body repeats the target.
    #[must_use]
    pub fn moves<T: ToSchema>(self, about: &str, example: &Value, headers: &[(&str, &str)]) -> Self {
        let mut moving = self.answers_json::<T>(303, about, example);
        let described = headers.iter().chain(&[("Location", "The same URL")]);
        let described: Map<String, Value> = described
            .map(|(name, about)| ((*name).to_owned(), json!({"description": about, "schema": {"type": "string"}})))
            .collect();
        if let Some((_, answer)) = moving.answers.last_mut() {
            answer["headers"] = described.into();
        }
        moving
    }

    #[must_use]
    pub fn answers_with(mut self, status: u16, about: &str, media_type: &str, schema: &Value, example: &Value) -> Self {
        let content = json!({media_type: {"schema": schema, "example": example}});
        self.answers.push((status, json!({"description": about, "content": content})));
        self
    }

    #[must_use]
    pub fn answers_empty(mut self, status: u16, about: &str, headers: &[(&str, &str)]) -> Self {
        let header = |about: &str| json!({"description": about, "schema": {"type": "string"}});
        let headers: Map<String, Value> =
            headers.iter().map(|(name, about)| ((*name).to_owned(), header(about))).collect();
        let mut answer = json!({"description": about});
        if !headers.is_empty() {
            answer["headers"] = headers.into();
        }
        self.answers.push((status, answer));
        self
    }

    #[must_use]
    pub fn refuses(mut self, code: ErrorCode, when: &str) -> Self {
        let (status, code, when) = (code.status(), code.as_str().to_owned(), when.to_owned());
        self.refusals.push(Refusal { code, status, when, form: Form::Api });
        self
    }

    #[must_use]
    pub(in crate::http) fn refuses_xml(mut self, code: Code, when: &str) -> Self {
        let (status, code, when) = (code.status().as_u16(), format!("{code:?}"), when.to_owned());
        self.refusals.push(Refusal { code, status, when, form: Form::Queue });
        self
    }

    #[must_use]
    pub(in crate::http) fn refuses_artifact(mut self, code: blobs::Code, when: &str) -> Self {
        let (status, code, when) = (code.status().as_u16(), format!("{code:?}"), when.to_owned());
        self.refusals.push(Refusal { code, status, when, form: Form::Artifact });
        self
    }

    #[must_use]
    pub fn takes_bytes(mut self) -> Self {
        self.request = Some(json!({"required": false, "content": {"*/*": {}}}));
        self
    }

    #[must_use]
    pub fn answers_bytes(mut self, status: u16, about: &str, headers: &[(&str, &str)]) -> Self {
        self = self.answers_empty(status, about, headers);
        if let Some((_, answer)) = self.answers.last_mut() {
            answer["content"] = json!({"*/*": {}});
        }
        self
    }

    fn refer<T: ToSchema>(&mut self) -> Value {
        T::schemas(&mut self.schemas);
        self.schemas.push((T::name().into_owned(), T::schema()));
        json!({"$ref": format!("#/components/schemas/{}", T::name())})
    }
}
