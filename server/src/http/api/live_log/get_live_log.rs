//! getLiveLog.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream::unfold;
use http::HeaderValue;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use tenure_api::live_log::LOG_CONTENT_TYPE;
use tokio::sync::mpsc;

use tenure_domain::live_log::{From, OFFSET_MAX};
use tenure_engine::live_logs::{LiveStream, Reading};
use tenure_engine::ops::create_artifact::RunRef;

use crate::http::api::prelude::*;

/// `GET /api/tenure/v1/tasks/:taskId/runs/:runId/live-log`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getLiveLog", get_live_log).scopes(SCOPES).described(
        "tenure",
        "Read the log of a running task",
        describe,
    )
}

/// As for the artifact that refers to the log.
const SCOPES: Template = Scope("queue:get-artifact:public/logs/live.log");
/// Logs come from untrusted tasks: however a browser interprets one, it gets no origin.
const POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; sandbox");

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Returns the stored log; with `follow=1` it continues until the run has ended, the server stops, or the \
             caller loses access. The artifact `public/logs/live.log` leads here during the run, and to the whole \
             log afterwards. In place of bytes that are missing, because the log is long, its worker left them out \
             or the database crashed, there is a line `[tenure] <bytes> bytes of the log are missing here` between \
             two line feeds. A reader whose stream was cut goes on at the `offset` that it has reached, for which it \
             counts the bytes that such a line speaks of instead of those of the line. A reader that is so slow that \
             the log is deleted meanwhile gets a line at the end that says that something may be missing.",
        )
        .query(
            "offset",
            "The offset of the first byte in the whole log; a negative number counts back from the current end",
            &json!({"type": "integer", "minimum": -OFFSET_MAX.cast_signed(), "maximum": OFFSET_MAX}),
            &json!(0),
        )
        .query("follow", "1 to wait for further output", &json!({"type": "integer", "enum": [0, 1]}), &json!(0))
        .answers_with(200, "The log", "text/plain", &json!({"type": "string"}), &Value::from("cc -c main.c\n"))
        .refuses(
            ResourceNotFound,
            "the task does not exist, or the run has no live log: its worker writes none, or the whole log is \
             already an artifact",
        )
}

async fn get_live_log(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let of = RunRef { task: call.task_id()?, run: call.run_id()? };
    let reading = reading(&call)?;
    let from_browser = call.header("origin").is_some();
    let LiveStream { pieces, permit } = app.engine.live_logs.open(of, reading).await?;
    let (frames, sent) = mpsc::channel(1);
    app.tasks.clone().spawn(async move {
        tokio::select! {
            () = app.drain.cancelled() => {}
            () = call.access_ended(&app.intake) => {}
            () = forward(pieces, frames) => {}
        }
    });
    let body = unfold((sent, permit), |(mut sent, permit)| async move {
        sent.recv().await.map(|frame| (Ok::<_, Infallible>(frame), (sent, permit)))
    });
    // Proxies must not buffer it.
    let headers = [
        (CONTENT_TYPE.as_str(), HeaderValue::from_static(LOG_CONTENT_TYPE)),
        (CACHE_CONTROL.as_str(), HeaderValue::from_static("no-store")),
        (CONTENT_SECURITY_POLICY.as_str(), POLICY),
        ("x-accel-buffering", HeaderValue::from_static("no")),
    ];
    let mut response = (headers, Body::from_stream(body)).into_response();
    if from_browser {
        // Only interpretation is restricted: scripts of other sites may read the log.
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    Ok(response)
}

/// Forwards at the reader's speed, until the log ends or the reader disconnects.
async fn forward(mut pieces: mpsc::Receiver<Bytes>, frames: mpsc::Sender<Bytes>) {
    loop {
        let piece = tokio::select! {
            piece = pieces.recv() => piece,
            () = frames.closed() => return,
        };
        let Some(piece) = piece else { return };
        if frames.send(piece).await.is_err() {
            return;
        }
    }
}

fn reading(call: &Call) -> Result<Reading, ApiError> {
    let (mut from, mut follow) = (From::Offset(0), false);
    for (name, value) in call.query(&["offset", "follow"])? {
        match (name.as_str(), value.as_str()) {
            ("offset", value) => from = From::parse(value).map_err(ApiError::arguments)?,
            (_, "0") => follow = false,
            (_, "1") => follow = true,
            _ => return Err(ApiError::arguments("the query parameter `follow` must be 0 or 1")),
        }
    }
    Ok(Reading { from, follow, caller: call.caller() })
}
