//! streamEvents: new events as Server-Sent Events.
//!
//! A stream's task fills a channel of one frame, which the body empties at the reader's speed. A
//! stalled reader suspends only this task, which still notices a drain and a loss of access.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::header::{CONNECTION, CONTENT_TYPE};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{AFTER, EventQuery, SCOPES, ahead, an_event, gone, position, read_position, reading};
use crate::http::api::prelude::*;
use tenure_domain::event_filter::short_name;
use tenure_engine::events::Start;
use tenure_engine::events::render::RenderedEvent;
use tenure_engine::events::stream::{BadStart, Step, Stream};
use tenure_engine::events::tail::LISTENERS_MAX;

/// Idle time before a keep-alive comment.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// For readers without their own setting.
const RECONNECT_AFTER_MS: u32 = 1_000;

const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Time for the last frame to reach the reader, before the connection closes.
const FINAL_FRAME_MAX: Duration = Duration::from_secs(1);

const LAST_EVENT_ID: &str = "last-event-id";

/// Events after a position, oldest first, then new ones.
pub fn endpoint() -> Endpoint {
    Endpoint::get("streamEvents", stream_events).scopes(SCOPES).described(
        "tenure",
        "Listen to events as they happen",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let event = an_event(sample);
    let lines = format!("retry: 1000\nid: 1\n\nid: 2\nevent: task-pending\ndata: {event}\n\n");
    reading(operation, &format!("{AFTER} Without it, new events only"), &Value::Null)
        .about(
            "Server-Sent Events, for EventSource in browsers. An event's id is its position, its type the exchange's \
             short name, its data the same object as in listEvents. An event `gone` with `{\"after\": ...}` means \
             that the reader was too slow; `after` is the position to continue from. The stream ends when the server \
             stops, the caller loses access, or the database is replaced: reconnect with the last id.",
        )
        .header(
            LAST_EVENT_ID,
            "The last position received by a reader that reconnects; takes precedence over `after`",
            &position(),
        )
        .answers_with(200, "The stream", "text/event-stream", &stream_schema(), &lines.into())
}

/// A text, or as Server-Sent Events an object per event.
fn stream_schema() -> Value {
    let text = json!({"type": "string"});
    json!({"type": ["string", "object"], "properties": {"id": text, "event": text, "data": text}})
}

async fn stream_events(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let query = EventQuery::read(&call, &["after", "exchange", "routingKeyPattern", "route"])?;
    let start = match call.header(LAST_EVENT_ID).filter(|id| !id.is_empty()) {
        Some(id) => read_position(id).ok_or_else(|| {
            ApiError::arguments("the header `Last-Event-ID` must be the id of an event: 0 or a whole number")
        })?,
        None => query.start.unwrap_or(Start::Latest),
    };
    let listener = app.engine.tail.listen().ok_or_else(|| {
        ApiError::unavailable(format!(
            "{LISTENERS_MAX} streams are open on this server, which is the limit; try again later"
        ))
    })?;
    let stream = Stream::begin(app.engine.pool.clone(), &app.engine.sequencer, listener, start, query.filter)
        .await?
        .map_err(bad_start)?;
    let (frames, mut sent) = mpsc::channel::<Bytes>(1);
    let writer = EventWriter { app: Arc::clone(&app), stream, frames, silent_until: Instant::now() };
    app.tasks.spawn(run(writer, call));
    let body = poll_fn(move |cx| sent.poll_recv(cx).map(|frame| frame.map(Ok::<_, Infallible>)));
    // The connection closes with the stream. Proxies must not buffer it.
    let headers = [(CONTENT_TYPE.as_str(), "text/event-stream"), (CONNECTION.as_str(), "close")];
    Ok((headers, [("x-accel-buffering", "no")], Body::from_stream(body)).into_response())
}

fn bad_start(why: BadStart) -> ApiError {
    match why {
        BadStart::Gone(oldest) => gone(oldest),
        BadStart::Ahead(at) => ahead(at),
    }
}

/// Runs until the reader disconnects or loses access, its position is purged, or the server drains.
async fn run(mut writer: EventWriter, call: Arc<Call>) {
    let streams = metrics::gauge!("tenure_event_streams");
    streams.increment(1);
    let (app, frames) = (Arc::clone(&writer.app), writer.frames.clone());
    let disconnected = tokio::select! {
        biased;
        () = app.drain.cancelled() => false,
        () = frames.closed() => true,
        () = call.access_ended(&app.intake) => false,
        _ = writer.write_all() => false,
    };
    // Ends the body, and releases the engine, whose batchers end with its last user.
    drop((writer, app, frames));
    streams.decrement(1);
    if !disconnected && let Some(connection) = &call.connection {
        sleep(FINAL_FRAME_MAX).await;
        connection.cut();
    }
}

struct Disconnected;

struct EventWriter {
    app: Api,
    stream: Stream,
    frames: mpsc::Sender<Bytes>,
    silent_until: Instant,
}

impl EventWriter {
    async fn write_all(&mut self) -> Result<(), Disconnected> {
        self.write(format!("retry: {RECONNECT_AFTER_MS}\nid: {}\n\n", self.stream.after())).await?;
        loop {
            let mut frame = String::new();
            match self.stream.next(self.silent_until).await {
                // Empty if the keep-alive is due, or if the filter matched nothing.
                Ok(Step::Events(events)) => events.iter().for_each(|event| write_event(&mut frame, event)),
                Ok(Step::Gone(oldest)) => {
                    return self.write(format!("event: gone\ndata: {{\"after\":{oldest}}}\n\n")).await;
                }
                // The reader reconnects, and its position is checked.
                Ok(Step::Ended) => return Ok(()),
                Err(error) => {
                    tracing::debug!(error = %error, "an event stream could not read the event log; it will retry");
                    sleep(AFTER_FAILURE).await;
                }
            }
            if frame.is_empty() && Instant::now() >= self.silent_until {
                // The id advances the cursor of a reader whose filter matched nothing.
                frame = format!(": keep-alive\nid: {}\n\n", self.stream.after());
            }
            if !frame.is_empty() {
                self.write(frame).await?;
            }
        }
    }

    async fn write(&mut self, frame: String) -> Result<(), Disconnected> {
        self.frames.send(Bytes::from(frame)).await.map_err(|_| Disconnected)?;
        self.silent_until = Instant::now() + KEEP_ALIVE;
        Ok(())
    }
}

fn write_event(frame: &mut String, event: &RenderedEvent) {
    let name = short_name(event.exchange);
    // Writing to a string cannot fail.
    let _ = write!(frame, "id: {}\nevent: {name}\ndata: {}\n\n", event.position, event.json);
}
