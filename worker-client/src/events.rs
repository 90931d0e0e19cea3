//! Streams of events.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::{Method, Response};
use serde::de::Error as _;
use serde_json::Value;

use crate::client::{Call, Own, TENURE_API, parameter};
use crate::{Client, Error};

/// Maximum duration of a stream. Readers then open another one at their position.
const FOLLOWED_MAX: Duration = Duration::from_secs(3_600);
/// Read timeout. The server sends a line at least every 15 seconds.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// Bounds memory. The server sends no longer lines.
const LINE_MAX: usize = 16 << 20;
/// Name of the last event of a stream whose next event is no longer retained.
const GONE: &[u8] = b"gone";

/// A stream of events, in the order of the log.
///
/// ```no_run
/// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
/// let mut after = None;
/// loop {
///     let mut events = client.follow_events(after, &[]).await?;
///     while let Some(event) = events.read().await? {
///         println!("{} {}", event["position"], event["exchange"]);
///     }
///     after = events.position();
/// }
/// # }
/// ```
pub struct EventStream {
    response: Response,
    frames: Frames,
    position: Option<u64>,
}

/// Parser of Server-Sent Events with one line of data.
#[derive(Default)]
struct Frames {
    /// Incomplete line.
    line: Vec<u8>,
    /// Fields since the last empty line.
    id: Option<u64>,
    is_gone: bool,
    data: Option<Vec<u8>>,
    /// Unread frames: position, and event if it passes the filter.
    come: VecDeque<(Option<u64>, Option<Vec<u8>>)>,
}

impl Client {
    /// Opens a stream of the events after position `after`, or of new events without it.
    /// `exchanges` selects exchanges; if empty, all. The stream ends after an hour at the latest;
    /// open another at [`EventStream::position`].
    ///
    /// # Errors
    /// The next event is no longer retained (410).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut events = client.follow_events(None, &["task-completed".to_owned()]).await?;
    /// while let Some(event) = events.read().await? {
    ///     println!("{}", event["payload"]["status"]["taskId"]);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn follow_events(&self, after: Option<u64>, exchanges: &[String]) -> Result<EventStream, Error> {
        let mut query = after.map_or_else(|| "after=latest".to_owned(), |after| format!("after={after}"));
        if !exchanges.is_empty() {
            query.push_str(&format!("&exchange={}", parameter(&exchanges.join(","))));
        }
        self.open_events(query, after).await
    }

    pub(crate) async fn open_events(&self, query: String, after: Option<u64>) -> Result<EventStream, Error> {
        let call = Call {
            method: Method::GET,
            path: "/events/stream".to_owned(),
            body: None,
            timeout: FOLLOWED_MAX,
            own: Own { api: Some(TENURE_API), query: Some(query), ..Own::default() },
        };
        let Ok(opened) = tokio::time::timeout(SILENT_MAX, self.open(&call)).await else {
            return Err(Error::Stalled(SILENT_MAX));
        };
        let response = opened?;
        Ok(EventStream { response, frames: Frames::default(), position: after })
    }
}

impl EventStream {
    /// Waits for the next event. None after the end, or after 60 s without a byte.
    ///
    /// # Errors
    /// The connection was lost, or the response is not a stream of events.
    ///
    /// ```no_run
    /// # async fn example(events: &mut tenure_client::EventStream) -> Result<(), tenure_client::Error> {
    /// while let Some(event) = events.read().await? {
    ///     println!("{}", event["payload"]);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn read(&mut self) -> Result<Option<Value>, Error> {
        loop {
            while let Some((position, data)) = self.frames.come.pop_front() {
                self.position = position.or(self.position);
                if let Some(data) = data {
                    return serde_json::from_slice(&data).map(Some).map_err(Error::BadAnswer);
                }
            }
            let Ok(chunk) = tokio::time::timeout(SILENT_MAX, self.response.chunk()).await else { return Ok(None) };
            let Some(bytes) = chunk.map_err(|error| Error::Network(error.without_url()))? else { return Ok(None) };
            self.frames.pass(&bytes)?;
        }
    }

    /// Position up to which the log was searched, to continue from. None if not known yet.
    ///
    /// ```no_run
    /// # use tenure_client::{Client, EventStream};
    /// # async fn example(client: &Client, ended: &EventStream) -> Result<(), tenure_client::Error> {
    /// let events = client.follow_events(ended.position(), &[]).await?;
    /// # drop(events);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.position
    }
}

impl Frames {
    fn pass(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.take(&line);
            } else if self.line.len() < LINE_MAX {
                self.line.push(byte);
            } else {
                let too_long = format!("a line of the stream of events is longer than {LINE_MAX} bytes");
                return Err(Error::BadAnswer(serde_json::Error::custom(too_long)));
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &[u8]) {
        if line.is_empty() {
            let (id, data, is_gone) = (self.id.take(), self.data.take(), std::mem::take(&mut self.is_gone));
            // The data of `gone` is dropped: opening the next stream fails with the position to
            // continue from.
            self.come.push_back((id, data.filter(|_| !is_gone)));
        } else if let Some(id) = line.strip_prefix(b"id: ") {
            self.id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
        } else if let Some(data) = line.strip_prefix(b"data: ") {
            self.data = Some(data.to_vec());
        } else if let Some(name) = line.strip_prefix(b"event: ") {
            self.is_gone = name == GONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_frames_are_read() {
        let stream =
            b"retry: 1000\nid: 24\n\nid: 26\nevent: task-pending\ndata: {\"position\":26}\n\n: keep-alive\nid: 30\n\n\
            event: gone\ndata: {\"after\":998}\n\nid: 31\nda";
        let event = b"{\"position\":26}".to_vec();
        let expected = [(Some(24), None), (Some(26), Some(event)), (Some(30), None), (None, None)];
        for piece in [1, 3, 7, stream.len()] {
            let mut frames = Frames::default();
            stream.chunks(piece).try_for_each(|bytes| frames.pass(bytes)).unwrap();
            assert_eq!(frames.come, expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn endless_line_is_refused() {
        let mut frames = Frames::default();
        frames.pass(b"id: 24\n\ndata: ").unwrap();
        let refused = (0..=LINE_MAX >> 20).try_for_each(|_| frames.pass(&[b'x'; 1 << 20]));
        assert!(matches!(refused, Err(Error::BadAnswer(_))), "{refused:?}");
        assert!(frames.line.len() <= LINE_MAX && frames.come.len() == 1);
    }
}
