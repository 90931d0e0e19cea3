//! Responses to requests without a route.

use axum::response::Response;
use http::header::ACCEPT;
use http::{HeaderMap, Method, Uri};
use tenure_api::errors::ErrorCode;

use super::error::{ApiError, stray};
use super::page;
use super::page::state::Site;
use super::poll::common::refuse_unknown_path;

/// In characters.
const SHOWN_PATH_MAX: usize = 200;

/// Refuses an unsupported method. The router adds `Allow`.
pub async fn no_such_method(uri: Uri, method: Method, headers: HeaderMap) -> Response {
    if let Some(refused) = refuse_unknown_path(&uri, &headers) {
        return refused;
    }
    let path = shown(&uri);
    let message = format!("the path {path:?} has no method {method}; the header Allow lists its methods");
    stray(ApiError::new(ErrorCode::MethodNotAllowed, message))
}

/// Browsers that follow a link get a page.
pub async fn no_such_route(site: Site, uri: Uri, method: Method, headers: HeaderMap) -> Response {
    if let Some(refused) = refuse_unknown_path(&uri, &headers) {
        return refused;
    }
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if method == Method::GET && accepted.contains("text/html") {
        return page::no_such_page(&site, &headers).await;
    }
    let message = format!("there is no path {:?}; /openapi.json lists all paths", shown(&uri));
    stray(ApiError::new(ErrorCode::ResourceNotFound, message))
}

fn shown(uri: &Uri) -> String {
    uri.path().chars().take(SHOWN_PATH_MAX).collect()
}
