//! Common headers and error format of the poll API.

use axum::response::{IntoResponse, Response};
use chrono::SecondsFormat;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, SERVER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use uuid::Uuid;

use super::error::PollError;
use super::urls::PATH;
use super::xml;
use tenure_engine::clock;

const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");
const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");
const VERSION: HeaderName = HeaderName::from_static("x-ms-version");
/// Longest id accepted from a client.
const CLIENT_REQUEST_ID_MAX: usize = 1024;

/// An unknown path is refused as any altered URL. The signature may have ended up in the path.
pub fn refuse_unknown_path(uri: &Uri, headers: &HeaderMap) -> Option<Response> {
    let signed = uri.path().starts_with(PATH) || uri.path_and_query()?.as_str().contains("sig=");
    signed.then(|| unreadable_path(headers))
}

pub(super) fn unreadable_path(headers: &HeaderMap) -> Response {
    let error = PollError::authentication("the signature does not match".to_owned());
    CommonHeaders::of(headers).answer(Err(error))
}

pub(super) struct CommonHeaders {
    request_id: Uuid,
    version: Option<HeaderValue>,
    client_request_id: Option<HeaderValue>,
}

impl CommonHeaders {
    pub(super) fn of(request: &HeaderMap) -> Self {
        Self {
            request_id: Uuid::new_v4(),
            version: request.get(&VERSION).cloned(),
            client_request_id: request.get(&CLIENT_REQUEST_ID).filter(|id| id.len() <= CLIENT_REQUEST_ID_MAX).cloned(),
        }
    }

    pub(super) fn answer(self, result: Result<Response, PollError>) -> Response {
        let mut response = result.unwrap_or_else(|error| render(&error, self.request_id));
        let headers = response.headers_mut();
        let request_id = self.request_id.to_string();
        headers.insert(REQUEST_ID, HeaderValue::from_str(&request_id).unwrap_or(HeaderValue::from_static("-")));
        headers.insert(VERSION, self.version.unwrap_or(HeaderValue::from_static(tenure_api::sas::VERSION)));
        headers.insert(SERVER, HeaderValue::from_static(concat!("Tenure/", env!("CARGO_PKG_VERSION"))));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Some(id) = self.client_request_id {
            headers.insert(CLIENT_REQUEST_ID, id);
        }
        response
    }
}

fn render(error: &PollError, request_id: Uuid) -> Response {
    let code = format!("{:?}", error.code);
    let time = clock::real_now().to_rfc3339_opts(SecondsFormat::Micros, true);
    let message = format!("{}\nRequestId:{request_id}\nTime:{time}", error.message);
    let status = error.code.status();
    let body = xml::error(&code, &message, &error.details).unwrap_or_default();
    let mut response = (status, [(CONTENT_TYPE, "application/xml")], body).into_response();
    let headers = response.headers_mut();
    headers.insert(ERROR_CODE, HeaderValue::from_str(&code).unwrap_or(HeaderValue::from_static("InternalError")));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, RETRY_SECONDS);
    }
    response
}
