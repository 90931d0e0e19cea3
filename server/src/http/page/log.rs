//! `/task/<taskId>/log`: the log of a run, which grows while the run continues.
//!
//! Without a script: the browser shows the body as it arrives. Logs come from untrusted tasks, so
//! every character is escaped.

mod tail;

use std::convert::Infallible;
use std::future::ready;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use maud::{PreEscaped, html};
use tenure_api::bodies::Run;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::live_log::{BACKING_LOG, LIVE_LOG};
use tokio::sync::mpsc;

use super::answer::{read_visit, refuse, secured, see_other};
use super::error::PageError;
use super::layout::{self, Page};
use super::state::Site;
use super::text::plain;
use super::visit::{Visit, lookup_failed};
use crate::http::api::artifacts::reading::scopes_to_read;
use tenure_domain::artifact::{Details, GET_URL_LIFE};
use tenure_domain::live_log::From;
use tenure_domain::terminal::Terminal;
use tenure_engine::blobs::BlobName;
use tenure_engine::live_logs::{LiveStream, Reading};
use tenure_engine::ops::create_artifact::RunRef;
use tenure_engine::wait_limit::{Caller, WaitPermit};
use tenure_store::{artifacts, clock};

pub(super) use self::tail::{log_section, tail};

/// Position of the log in the page. Escaped text cannot contain it.
const PLACE: &str = "<!--log-->";

/// In UTF-8.
const CHARACTER_BYTES_MAX: usize = 4;

/// Keeps an incomplete character and escape sequence between pieces.
#[derive(Default)]
struct Text {
    rest: Vec<u8>,
    terminal: Terminal,
}

impl Text {
    /// Marks invalid bytes; drops escape sequences and control characters.
    fn take(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let end = whole_characters(&self.rest);
        let rest = self.rest.split_off(end);
        plain(&mut self.terminal, &std::mem::replace(&mut self.rest, rest))
    }
}

/// Length without an incomplete last character.
fn whole_characters(bytes: &[u8]) -> usize {
    for (back, byte) in (1..).zip(bytes.iter().rev().take(CHARACTER_BYTES_MAX)) {
        let length = match byte {
            0x80..0xc0 => continue,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0..0xf8 => 4,
            _ => 1,
        };
        return if length > back { bytes.len() - back } else { bytes.len() };
    }
    bytes.len()
}

enum Opened {
    /// At this URL.
    Whole(String),
    Pieces(RunRef, LiveStream),
}

/// `GET /task/:taskId/log`
pub(super) async fn log(State(app): State<Site>, request: Request) -> Response {
    let headers = request.headers().clone();
    let visit = match read_visit(&app, request).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    match open(&app, &visit).await {
        Ok(Opened::Whole(url)) => see_other(&url),
        Ok(Opened::Pieces(of, LiveStream { pieces, permit })) => {
            page(&visit, of, while_allowed(app, headers, visit.session.is_some(), pieces), permit)
        }
        Err(error) => refuse(&visit, &error),
    }
}

async fn open(app: &Site, visit: &Visit) -> Result<Opened, PageError> {
    let task: TaskId =
        visit.param("taskId").parse().map_err(|_| PageError::NotFound("This is not the id of a task.".to_owned()))?;
    visit.authorize(scopes_to_read(LIVE_LOG))?;
    let _slot = app.intake.read_slots.take(visit.share()).await?;
    let status = app.engine.status.submit(task).await?.status();
    let run = find_run(&status.runs, visit.query("run"))
        .ok_or_else(|| PageError::NotFound("This run does not exist yet.".to_owned()))?;
    let of = RunRef { task, run: run.run_id };
    if run.resolved.is_some()
        && let Some(url) = find_whole(app, visit, of).await?
    {
        return Ok(Opened::Whole(url));
    }
    let caller = if visit.session.is_some() { Caller::Authenticated } else { Caller::Anonymous };
    let reading = Reading { from: From::Offset(0), follow: true, caller };
    Ok(Opened::Pieces(of, app.engine.live_logs.open(of, reading).await?))
}

/// Defaults to the last run. An invalid number means no run.
fn find_run<'a>(runs: &'a [Run], wanted: Option<&str>) -> Option<&'a Run> {
    match wanted {
        Some(wanted) => wanted.parse().ok().and_then(|wanted: RunId| runs.iter().find(|run| run.run_id == wanted)),
        None => runs.last(),
    }
}

/// Forwards pieces until the log ends or the visitor loses access.
fn while_allowed(
    app: Site,
    headers: HeaderMap,
    logged_in: bool,
    mut pieces: mpsc::Receiver<Bytes>,
) -> mpsc::Receiver<Bytes> {
    let (passed, allowed) = mpsc::channel(1);
    app.tasks.clone().spawn(async move {
        let pass_on = async {
            while let Some(piece) = pieces.recv().await {
                if passed.send(piece).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = pass_on => {}
            () = passed.closed() => {}
            () = app.drain.cancelled() => {}
            () = Visit::access_ended(&app, &headers, logged_in, scopes_to_read(LIVE_LOG)) => {}
        }
    });
    allowed
}

/// Returns the URL of the complete stored log, if it exists and the visitor may read it.
async fn find_whole(app: &Site, visit: &Visit, of: RunRef) -> Result<Option<String>, PageError> {
    if !visit.may(scopes_to_read(BACKING_LOG)) {
        return Ok(None);
    }
    let mut conn = app.engine.pool.acquire().await?;
    let now = clock::get_now(&mut conn).await?;
    let Some((seq, run)) = artifacts::find_run(&mut conn, of.task, Some(of.run)).await? else { return Ok(None) };
    let stored = artifacts::find(&mut conn, seq, run, BACKING_LOG).await?;
    let blob = BlobName::artifact(of.task, of.run, BACKING_LOG);
    // An upload without bytes is unfinished, perhaps for ever.
    let is_uploaded = !app.engine.blobs.find(&mut *conn, std::slice::from_ref(&blob)).await?.is_empty();
    drop(conn);
    let is_whole = |artifact: &tenure_domain::artifact::Artifact| {
        matches!(artifact.details, Details::S3) && artifact.expires > now
    };
    let Some(stored) = stored.filter(|stored| is_uploaded && is_whole(&stored.artifact)) else { return Ok(None) };
    let anonymous = app.intake.authenticator.anonymous().await.map_err(|error| lookup_failed(&error))?;
    if anonymous.authorize(&scopes_to_read(BACKING_LOG)).is_ok() {
        return Ok(Some(app.engine.blobs.plain_url(&blob)));
    }
    let end = (now + GET_URL_LIFE).min(stored.artifact.expires);
    Ok(Some(app.engine.blobs.get_url(&blob, end.timestamp_millis())))
}

/// Holds `permit` until the reader has everything.
fn page(visit: &Visit, of: RunRef, pieces: mpsc::Receiver<Bytes>, permit: WaitPermit) -> Response {
    let task = of.task.to_string();
    let body = html! {
        h1 { span.kind { "Log of run " (of.run) " of the task" } a href=(visit.link_to("task", &[&task])) { code { (task) } } }
        div.log tabindex="0" { pre { (PreEscaped(PLACE)) } }
        p.dim { "This is the end of the log. If the run goes on, the server was stopped: load the page again." }
    };
    let page = layout::frame(visit, &Page::new(format!("Log of {task}"), None, body)).into_string();
    let (head, end) = page.split_once(PLACE).unwrap_or((&page, ""));
    let log = stream::unfold((pieces, Text::default(), permit), |(mut pieces, mut text, permit)| async move {
        let bytes = pieces.recv().await?;
        let shown = text.take(&bytes);
        Some((html! { (shown) }.into_string(), (pieces, text, permit)))
    });
    let whole = stream::once(ready(head.to_owned())).chain(log).chain(stream::once(ready(end.to_owned())));
    // An empty chunk would end the response.
    let frames = whole.filter(|text| ready(!text.is_empty())).map(|text| Ok::<_, Infallible>(Bytes::from(text)));
    let mut response = (StatusCode::OK, Body::from_stream(frames)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // Proxies must not buffer it.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    secured(response)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn log_is_of_the_requested_run_only() {
        let scheduled = "2027-01-31T12:00:00Z";
        let runs = [0, 1]
            .map(|id| json!({"runId": id, "state": "pending", "reasonCreated": "scheduled", "scheduled": scheduled}));
        let runs: Vec<Run> = serde_json::from_value(json!(runs)).unwrap();
        let found = |wanted| find_run(&runs, wanted).map(|run| run.run_id.number());
        assert_eq!([None, Some("0"), Some("1")].map(found), [Some(1), Some(0), Some(1)]);
        assert_eq!(["2", "1001", "70000", "-1", "x", ""].map(|wanted| found(Some(wanted))), [None; 6]);
    }

    #[test]
    fn text_does_not_depend_on_log_pieces() {
        let log = "a\u{1b}[1mé€𝄞\r\nz\0\tß".as_bytes();
        for piece in 1..=log.len() {
            let mut text = Text::default();
            let shown: String = log.chunks(piece).map(|bytes| text.take(bytes)).collect();
            assert_eq!(shown, "aé€𝄞\nz\tß", "in pieces of {piece}");
        }
        // Invalid bytes do not delay later ones.
        let mut text = Text::default();
        assert_eq!(text.take(b"a\xffb\xe2\x82"), "a\u{fffd}b");
        assert_eq!(text.take(b"\xac."), "€.");
    }
}
