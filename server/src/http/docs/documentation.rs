//! The OpenAPI document and its embedded user interface.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::response::{IntoResponse, Response};
use chrono::DateTime;
use http::header::{CONTENT_SECURITY_POLICY, LOCATION};
use http::{HeaderValue, StatusCode};
use serde_json::json;
use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskId;
use utoipa_swagger_ui::{Config, SwaggerFile, serve};
use uuid::Uuid;

use crate::http::call::Call;
use crate::http::docs::document;
use crate::http::docs::parameters::UNKNOWN_ARGUMENT;
use crate::http::docs::sample::Sample;
use crate::http::docs::state::{Docs, Endpoint};
use crate::http::error::ApiError;
use crate::http::files::{File, Life};
use crate::http::page::menu::MENU;

/// Pages run and show only embedded files, and call only this server. They set styles in
/// attributes.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

const INDEX: &str = "index.html";
/// Name, type and text of additional files.
const OWN_FILES: [(&str, &str, &str); 2] = [
    ("tenure.css", "text/css", include_str!("ui/tenure.css")),
    ("tenure.js", "text/javascript", include_str!("ui/tenure.js")),
];

/// The dates stay valid for longer, but rendering is expensive.
const DOCUMENT_LIFE_MS: i64 = 60_000;

/// A relative URL works below any root URL. The browser stores no access tokens.
static SETTINGS: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::new(["../openapi.json"]);
    Arc::new(
        config
            .use_base_layout()
            .try_it_out_enabled(true)
            .display_request_duration(true)
            .filter(true)
            .validator_url("none"),
    )
});

/// The examples work on the day of the request.
pub fn openapi() -> Endpoint {
    Endpoint::get("openapi", answer_document).no_pool().described("service", "This document", |operation, _| {
        operation
            .about("The examples have today's dates, so that they can be sent.")
            .refuses(ErrorCode::InvalidRequestArguments, UNKNOWN_ARGUMENT)
            .answers_with(
                200,
                "The document",
                "application/json",
                &json!({"type": "object"}),
                &json!({"openapi": "3.1.0"}),
            )
    })
}

/// The interface's files are relative to `/docs/`.
pub fn docs() -> Endpoint {
    let summary = "Redirect to the user interface of this document";
    Endpoint::get("docs", redirect).no_pool().described("service", summary, |operation, _| {
        operation.answers_empty(308, "Moved to `docs/`", &[("Location", "`docs/`, relative to this path")])
    })
}

/// `GET /docs/:file`
pub fn docs_file() -> Endpoint {
    Endpoint::get("docsFile", answer_file).no_pool().described(
        "service",
        "The user interface of this document",
        |operation, _| {
            operation
                .answers_with(
                    200,
                    "A file of the interface",
                    "text/html",
                    &json!({"type": "string"}),
                    &json!("<!doctype html>..."),
                )
                .refuses(ErrorCode::ResourceNotFound, "the file does not exist")
        },
    )
}

async fn answer_document(app: Docs, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let now_ms = app.intake.now().await?.server_ms;
    let docs = Arc::clone(&app);
    let make = move || {
        let now = DateTime::from_timestamp_millis(now_ms).unwrap_or_default();
        let task = TaskId::from_random(Uuid::new_v4().into_bytes());
        let text =
            serde_json::to_string(&document(&docs.routes, &Sample { now, task })).map_err(|error| error.to_string())?;
        Ok(Some(File::new("application/json", text)))
    };
    let life = Life::Milliseconds { life: DOCUMENT_LIFE_MS, now: now_ms };
    match app.files.get("/openapi.json".to_owned(), life, make).await? {
        Some(file) => Ok(file.response()),
        None => Err(ApiError::internal("the document could not be rendered")),
    }
}

async fn redirect(_: Docs, _: Arc<Call>) -> Result<Response, ApiError> {
    Ok((StatusCode::PERMANENT_REDIRECT, [(LOCATION, "docs/")]).into_response())
}

async fn answer_file(app: Docs, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = call.params().next().map_or("", |(_, name)| name);
    let found = find_file(name)?;
    let make = move || Ok(Some(File::new(&found.content_type, found.bytes.into_owned())));
    match app.files.get(format!("/docs/{name}"), Life::Forever, make).await? {
        Some(file) => Ok(([(CONTENT_SECURITY_POLICY, POLICY)], file.response()).into_response()),
        None => Err(ApiError::internal("a file of the documentation could not be rendered")),
    }
}

/// A file of the interface.
struct Found {
    content_type: String,
    bytes: Cow<'static, [u8]>,
}

/// Cheap: unknown names are refused before any rendering or waiting.
fn find_file(name: &str) -> Result<Found, ApiError> {
    if let Some((_, content_type, text)) = OWN_FILES.iter().find(|(own, ..)| *own == name) {
        return Ok(Found { content_type: (*content_type).to_owned(), bytes: Cow::Borrowed(text.as_bytes()) });
    }
    let found = serve(name, Arc::clone(&SETTINGS)).map_err(|error| ApiError::internal(&error.to_string()))?;
    let Some(SwaggerFile { content_type, bytes, .. }) = found else {
        let message = format!("the documentation has no file {name:?}");
        return Err(ApiError::new(ErrorCode::ResourceNotFound, message));
    };
    let bytes = if ["", INDEX].contains(&name) { with_menu(&bytes).into_bytes().into() } else { bytes };
    Ok(Found { content_type, bytes })
}

/// Adds the menu of the pages, and a style sheet and a script after the interface's own.
fn with_menu(index: &[u8]) -> String {
    // The folder of this page is `/docs/`, below any root URL.
    let entry = |(path, name): (&str, &str)| match path {
        "/docs/" => format!("<a href=\"./\" aria-current=\"page\">{name}</a>"),
        _ => format!("<a href=\"..{path}\">{name}</a>"),
    };
    let entries: Vec<String> = MENU.into_iter().map(entry).collect();
    let menu = format!(
        "<body>\n<header class=\"tenure\"><a class=\"brand\" href=\"../\">Tenure</a><nav aria-label=\"Pages\">{}</nav></header>",
        entries.concat()
    );
    let head = "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"stylesheet\" \
                href=\"tenure.css\">\n<script src=\"tenure.js\" defer></script>\n</head>";
    String::from_utf8_lossy(index)
        .replacen("<title>Swagger UI</title>", "<title>API · Tenure</title>", 1)
        .replacen("</head>", head, 1)
        .replacen("<body>", &menu, 1)
        .replacen("<div id=\"swagger-ui\"></div>", "<main id=\"swagger-ui\"></main>", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_the_interface_has_menu_styles_and_script() {
        for name in ["", INDEX] {
            let text = String::from_utf8(find_file(name).unwrap().bytes.into_owned()).unwrap();
            for part in [
                "<title>API · Tenure</title>",
                "href=\"tenure.css\"",
                "src=\"tenure.js\"",
                "<a href=\"../workers\">Workers</a>",
                "<a href=\"./\" aria-current=\"page\">API</a>",
                "<main id=\"swagger-ui\">",
            ] {
                assert!(text.contains(part), "{name:?} lacks {part}: {text}");
            }
            // After the interface's own.
            assert!(text.find("swagger-ui.css") < text.find("tenure.css"));
        }
    }

    #[test]
    fn unknown_file_name_is_refused() {
        for name in ["", "index.html", "swagger-ui.css", "swagger-initializer.js", "tenure.css", "tenure.js"] {
            assert!(find_file(name).is_ok(), "{name:?}");
        }
        for name in ["nothing.js", "index.htm", "../index.html", "a/b", &"x".repeat(5_000)] {
            assert!(find_file(name).is_err(), "{name:?}");
        }
    }
}
