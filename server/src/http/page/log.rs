//! `/task/<taskId>/log`: the log of a run with numbered lines, which grows while the run continues.
//! `?q=` shows the lines that contain a text.
//!
//! Without a script: the browser shows the body as it arrives. Logs come from untrusted tasks, so
//! every character is escaped. The server's memory does not depend on their length.

mod lines;
mod search;
mod stored;
mod tail;

use std::convert::Infallible;
use std::future::ready;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use maud::{Markup, PreEscaped, html};
use tenure_api::bodies::Run;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::live_log::LIVE_LOG;
use tokio::sync::mpsc;

use self::lines::{Lines, range};
use self::search::Search;
use super::answer::{answer, read_visit, refuse, secured, see_other};
use super::error::PageError;
use super::layout::{self, Page};
use super::state::Site;
use super::text;
use super::visit::Visit;
use crate::http::api::artifacts::reading::scopes_to_read;
use tenure_domain::live_log::From;
use tenure_engine::live_logs::{LiveStream, Reading};
use tenure_engine::ops::create_artifact::RunRef;
use tenure_engine::wait_limit::{Caller, WaitPermit};
use tenure_store::{live_logs, tasks};

pub(super) use self::tail::{Tail, log_section, tail};

/// Position of the log in the page. Escaped text cannot contain it.
const PLACE: &str = "<!--log-->";

/// Texts of the page about the log.
struct About {
    of: RunRef,
    /// The task's, for readers of its definition.
    name: Option<String>,
    bytes: Option<i64>,
    is_stored: bool,
}

enum Opened {
    /// At this URL.
    Elsewhere(String),
    /// To download.
    Bytes(RunRef, LiveStream),
    Page(About, LiveStream),
}

/// `GET /task/:taskId/log`
pub(super) async fn log(State(app): State<Site>, request: Request) -> Response {
    let headers = request.headers().clone();
    let visit = match read_visit(&app, request).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let logged_in = visit.session.is_some();
    match open(&app, &visit).await {
        Ok(Opened::Elsewhere(url)) => see_other(&url),
        Ok(Opened::Bytes(of, LiveStream { pieces, permit })) => {
            download(of, while_allowed(app, headers, logged_in, pieces), permit)
        }
        Ok(Opened::Page(about, LiveStream { pieces, permit })) => {
            let pieces = while_allowed(app, headers, logged_in, pieces);
            match wanted(&visit) {
                Some(wanted) => found(&visit, &about, wanted, pieces).await,
                None => page(&visit, &about, pieces, permit),
            }
        }
        Err(error) => refuse(&visit, &error),
    }
}

/// Returns the text that lines must contain.
fn wanted(visit: &Visit) -> Option<&str> {
    visit.query("q").filter(|wanted| !wanted.is_empty())
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
    if let Some(address) = address_of_lines(visit, of) {
        return Ok(Opened::Elsewhere(address));
    }
    let caller = if visit.session.is_some() { Caller::Authenticated } else { Caller::Anonymous };
    let is_download = visit.query("download").is_some();
    let stored = if run.resolved.is_some() { stored::find(app, visit, of).await? } else { None };
    if let Some(stored) = stored {
        if is_download {
            return Ok(Opened::Elsewhere(stored.url));
        }
        let permit = app.engine.live_logs.admit(caller)?;
        return Ok(match stored::read(app, &stored.generation).await {
            Ok(Some(pieces)) => {
                let bytes = Some(stored.generation.blob.size);
                let about = About { of, name: find_name(app, visit, task).await?, bytes, is_stored: true };
                Opened::Page(about, LiveStream { pieces, permit })
            }
            Ok(None) => Opened::Elsewhere(stored.url),
            Err(error) => {
                tracing::debug!(%error, task.id = %task, "a stored log could not be opened");
                Opened::Elsewhere(stored.url)
            }
        });
    }
    let follow = !is_download && wanted(visit).is_none();
    let stream = app.engine.live_logs.open(of, Reading { from: From::Offset(0), follow, caller }).await?;
    if is_download {
        return Ok(Opened::Bytes(of, stream));
    }
    let state = live_logs::find(&mut *app.engine.pool.acquire().await?, task, of.run).await?;
    let bytes = state.and_then(|state| state.next);
    Ok(Opened::Page(About { of, name: find_name(app, visit, task).await?, bytes, is_stored: false }, stream))
}

/// Returns the address for the lines of the form, which a fragment scrolls to.
fn address_of_lines(visit: &Visit, of: RunRef) -> Option<String> {
    let (first, last) = (visit.query("from")?, visit.query("to").unwrap_or_default());
    let last = if last.trim().is_empty() { first } else { last };
    let address = format!("{}?run={}", visit.link_to("task", &[&of.task.to_string(), "log"]), of.run);
    Some(match range(&format!("{first}-{last}")) {
        Some(lines) => format!("{address}&lines={}-{}#L{}", lines.start(), lines.end(), lines.start()),
        None => address,
    })
}

async fn find_name(app: &Site, visit: &Visit, task: TaskId) -> Result<Option<String>, PageError> {
    if !visit.may(format!("queue:get-task:{task}")) {
        return Ok(None);
    }
    let definition = tasks::find_definition(&mut *app.engine.pool.acquire().await?, task.uuid()).await?;
    let name = definition.as_deref().and_then(text::metadata).map(|metadata| metadata.name);
    Ok(name.filter(|name| !name.trim().is_empty()))
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

/// Title, size, and the forms to find lines.
fn head(visit: &Visit, about: &About) -> Markup {
    let About { of, name, bytes, is_stored } = about;
    let task = of.task.to_string();
    let log = visit.link_to("task", &[&task, "log"]);
    let run = of.run;
    html! {
        h1 { span.kind { "Log of run " (run) " of the task" }
            a href=(visit.link_to("task", &[&task])) { @match name { Some(name) => (name), None => { code { (task) } } } } }
        div.finder {
            form method="get" action=(log) {
                input type="hidden" name="run" value=(run);
                label for="find" { "Lines with" }
                input id="find" name="q" value=(wanted(visit).unwrap_or_default()) autocomplete="off";
                button type="submit" { "Find" }
            }
            form method="get" action=(log) {
                input type="hidden" name="run" value=(run);
                label for="from" { "Lines from" }
                input.short id="from" name="from" inputmode="numeric" autocomplete="off";
                label for="to" { "to" }
                input.short id="to" name="to" inputmode="numeric" autocomplete="off";
                button type="submit" { "Link to them" }
            }
            p.dim {
                @if let Some(bytes) = bytes { (text::size(*bytes)) @if !is_stored { " so far" } " · " }
                a href={ (log) "?run=" (run) "&download=1" } { "download" }
            }
        }
    }
}

fn title(about: &About) -> String {
    format!("Log of {}", about.name.clone().unwrap_or_else(|| about.of.task.to_string()))
}

/// The lines that contain a text, with their numbers.
async fn found(visit: &Visit, about: &About, wanted: &str, pieces: mpsc::Receiver<Bytes>) -> Response {
    let mut search = Search::new(wanted);
    let is_whole = search.run(pieces).await;
    let log = format!("{}?run={}", visit.link_to("task", &[&about.of.task.to_string(), "log"]), about.of.run);
    let body = html! { (head(visit, about)) (search.shown(&log, is_whole)) };
    answer(StatusCode::OK, &layout::frame(visit, &Page::new(title(about), None, body)))
}

/// Holds `permit` until the reader has everything.
fn page(visit: &Visit, about: &About, pieces: mpsc::Receiver<Bytes>, permit: WaitPermit) -> Response {
    let body = html! {
        (head(visit, about))
        div.log tabindex="0" { pre { (PreEscaped(PLACE)) } }
        p.dim {
            "This is the end of the log."
            @if !about.is_stored { " If the run goes on, the server was stopped: load the page again." }
        }
    };
    let page = layout::frame(visit, &Page::new(title(about), None, body)).into_string();
    let (start, end) = page.split_once(PLACE).unwrap_or((&page, ""));
    let lines = Lines::new(visit.query("lines").and_then(range));
    let log = stream::unfold(Some((pieces, lines, permit)), |state| async move {
        let (mut pieces, mut lines, permit) = state?;
        match pieces.recv().await {
            Some(bytes) => {
                let html = lines.take(&bytes);
                Some((html, (!lines.is_full()).then_some((pieces, lines, permit))))
            }
            None => Some((lines.end(), None)),
        }
    });
    let whole = stream::once(ready(start.to_owned())).chain(log).chain(stream::once(ready(end.to_owned())));
    // An empty chunk would end the response.
    let frames = whole.filter(|text| ready(!text.is_empty())).map(|text| Ok::<_, Infallible>(Bytes::from(text)));
    streamed(Body::from_stream(frames), "text/html; charset=utf-8")
}

/// The log as it was written. Holds `permit` until the reader has everything.
fn download(of: RunRef, pieces: mpsc::Receiver<Bytes>, permit: WaitPermit) -> Response {
    let bytes = stream::unfold((pieces, permit), |(mut pieces, permit)| async move {
        let bytes = pieces.recv().await?;
        Some((Ok::<_, Infallible>(bytes), (pieces, permit)))
    });
    let mut response = streamed(Body::from_stream(bytes), "text/plain; charset=utf-8");
    if let Ok(name) = HeaderValue::from_str(&format!("attachment; filename=\"{}-{}.log\"", of.task, of.run)) {
        response.headers_mut().insert(CONTENT_DISPOSITION, name);
    }
    response
}

fn streamed(body: Body, content_type: &'static str) -> Response {
    let mut response = (StatusCode::OK, body).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
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
}
