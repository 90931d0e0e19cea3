//! Signed URLs for artifacts that refer to a live log of this server.

use chrono::{DateTime, Utc};
use http::Uri;
use tenure_api::hawk::bewit::{SignUrl, bewit};

use tenure_domain::artifact::GET_URL_LIFE;

use crate::http::api::prelude::*;

fn path(task: TaskId, run: RunId) -> String {
    format!("/api/tenure/v1/tasks/{task}/runs/{run}/live-log")
}

/// Signs a reference to the run's live log on this server; returns other URLs unchanged.
pub fn reference(
    app: &Api,
    (task, run): (TaskId, RunId),
    url: &str,
    scope: String,
    now: DateTime<Utc>,
) -> Result<String, ApiError> {
    let Some(rest) = url.strip_prefix(app.root_url.as_str()) else { return Ok(url.to_owned()) };
    let (resource, query) = rest.split_once('?').unwrap_or((rest, ""));
    if resource != path(task, run) {
        return Ok(url.to_owned());
    }
    // A worker may have appended text that no request can contain.
    let Ok(parsed) = url.parse::<Uri>() else { return Ok(url.to_owned()) };
    let no_host = || ApiError::internal("the URL of a live log cannot be signed: it has no host");
    let host = parsed.host().ok_or_else(no_host)?;
    let secure = parsed.scheme_str() == Some("https");
    let port = parsed.port_u16().unwrap_or(if secure { HTTPS_PORT } else { HTTP_PORT });
    let end = now + GET_URL_LIFE;
    let client_id = format!("live-log/{task}/{run}/until/{}", end.timestamp());
    let credentials = app.intake.authenticator.task_credentials().issue_one(client_id, scope, now, end);
    let target = parsed.path_and_query().map_or(resource, |target| target.as_str());
    let value = bewit(&credentials, &SignUrl { resource: target, host, port, expires: end.timestamp() });
    let separator = if query.is_empty() && !url.contains('?') { '?' } else { '&' };
    Ok(format!("{url}{separator}bewit={value}"))
}

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
