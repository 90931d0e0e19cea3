//! Reads the log of a run while it is written.

use std::time::Duration;

use reqwest::{Method, Response};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::live_log::SERVER_MARK;

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

/// Readers then open another stream at their offset.
const FOLLOWED_MAX: Duration = Duration::from_secs(3_600);
/// Text around the number in the server's line for missing bytes.
const MISSING: (&[u8], &[u8]) = (SERVER_MARK.as_bytes(), b" bytes of the log are missing here");
/// The server's line is shorter.
const LINE_MAX: usize = 80;
/// Above this, the task printed the line.
const MISSING_MAX: u64 = 1 << 50;

/// The log of a run as it grows.
///
/// ```no_run
/// # use tenure_client::{Client, RunId, TaskId};
/// # async fn example(client: &Client, task_id: TaskId, run_id: RunId) -> Result<(), tenure_client::Error> {
/// let mut log = client.read_live_log(task_id, run_id, 0, false).await?;
/// let mut text = Vec::new();
/// while let Some(bytes) = log.read().await? {
///     text.extend(bytes);
/// }
/// println!("{} bytes, up to offset {}", text.len(), log.next_offset());
/// # Ok(()) }
/// ```
pub struct LogStream {
    response: Response,
    position: LogPosition,
}

#[derive(Debug, Default, Clone)]
struct LogPosition {
    /// Offset in the whole log after the bytes read.
    next: u64,
    /// Incomplete line.
    line: Vec<u8>,
}

impl Client {
    /// Reads the log of a run from an offset: the current content, or with `follow` everything
    /// until the run ends.
    ///
    /// # Errors
    /// The worker writes no log, or it has become an artifact (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut log = client.read_live_log("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, "0".parse()?, 0, true).await?;
    /// while let Some(bytes) = log.read().await? {
    ///     print!("{}", String::from_utf8_lossy(&bytes));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn read_live_log(&self, task: TaskId, run: RunId, offset: u64, follow: bool) -> Result<LogStream, Error> {
        let query = format!("offset={offset}&follow={}", u8::from(follow));
        let call = Call {
            method: Method::GET,
            path: format!("/tasks/{}/runs/{}/live-log", parameter(&task), parameter(&run)),
            body: None,
            timeout: if follow { FOLLOWED_MAX } else { TIMEOUT },
            own: Own { api: Some(TENURE_API), query: Some(query), ..Own::default() },
        };
        let response = self.open(&call).await?;
        Ok(LogStream { response, position: LogPosition { next: offset, line: Vec::new() } })
    }
}

impl LogStream {
    /// Waits for the next bytes. None at the end of the stream.
    ///
    /// # Errors
    /// The connection broke off. Continue at [`LogStream::next_offset`].
    ///
    /// ```no_run
    /// # async fn example(log: &mut tenure_client::LogStream) -> Result<(), tenure_client::Error> {
    /// while let Some(bytes) = log.read().await? {
    ///     print!("{}", String::from_utf8_lossy(&bytes));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn read(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let chunk = self.response.chunk().await.map_err(|error| Error::Network(error.without_url()))?;
            let read = match &chunk {
                Some(bytes) => self.position.pass(bytes),
                None => self.position.end(),
            };
            if !read.is_empty() {
                return Ok(Some(read));
            }
            if chunk.is_none() {
                return Ok(None);
            }
        }
    }

    /// Returns the offset of the next byte in the whole log.
    ///
    /// ```no_run
    /// # use tenure_client::{Client, Error, LogStream, RunId, TaskId};
    /// # async fn example(client: &Client, ended: LogStream, task: TaskId, run: RunId) -> Result<(), Error> {
    /// let log = client.read_live_log(task, run, ended.next_offset(), true).await?;
    /// # drop(log);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn next_offset(&self) -> u64 {
        self.position.next
    }
}

impl LogPosition {
    /// Returns the bytes to deliver. A line about missing bytes advances the offset by their
    /// number.
    ///
    /// A possible beginning of such a line is held back until it is complete or ruled out. A stream
    /// cut there leaves it unread; otherwise the next stream would skip as many bytes of the log.
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut read = if self.keeps_back() { self.line.clone() } else { Vec::new() };
        read.extend_from_slice(bytes);
        let (mut missing_bytes, mut of_lines) = (0_u64, 0_u64);
        for &byte in bytes {
            if byte != b'\n' {
                if self.line.len() <= LINE_MAX {
                    self.line.push(byte);
                }
                continue;
            }
            if let Some(missing) = missing(&self.line) {
                // The server writes a line feed before and after the line.
                missing_bytes = missing_bytes.saturating_add(missing);
                of_lines += self.line.len() as u64 + 2;
            }
            self.line.clear();
        }
        if self.keeps_back() {
            read.truncate(read.len().saturating_sub(self.line.len()));
        }
        let passed = missing_bytes.saturating_add(read.len() as u64);
        self.next = self.next.saturating_add(passed).saturating_sub(of_lines);
        read
    }

    /// Returns the bytes held back: the end of the log.
    fn end(&mut self) -> Vec<u8> {
        let read = if self.keeps_back() { std::mem::take(&mut self.line) } else { Vec::new() };
        self.next = self.next.saturating_add(read.len() as u64);
        read
    }

    fn keeps_back(&self) -> bool {
        self.line.len() <= LINE_MAX && may_become_missing(&self.line)
    }
}

/// True for a non-empty beginning of a line about missing bytes.
fn may_become_missing(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(MISSING.0) else { return !line.is_empty() && MISSING.0.starts_with(line) };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    MISSING.1.starts_with(&rest[digits..])
}

fn missing(line: &[u8]) -> Option<u64> {
    let number = line.strip_prefix(MISSING.0)?.strip_suffix(MISSING.1)?;
    std::str::from_utf8(number).ok()?.parse::<u64>().ok().filter(|missing| *missing <= MISSING_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_counts_missing_bytes_in_split_stream() {
        let stream = b"one\n\n[tenure] 1000 bytes of the log are missing here\ntwo\n[tenure] x\n".as_slice();
        let expected = 4 + 1_000 + 4 + 11;
        for piece in [1, 3, 7, stream.len()] {
            let mut position = LogPosition::default();
            let read: Vec<u8> = stream.chunks(piece).flat_map(|bytes| position.pass(bytes)).collect();
            assert_eq!((position.next, read.as_slice()), (expected, stream), "in pieces of {piece}");
        }
        let printed = b"\n[tenure] 18446744073709551615 bytes of the log are missing here\n";
        let mut position = LogPosition { next: 5, line: Vec::new() };
        position.pass(printed);
        assert_eq!(position.next, 5 + printed.len() as u64, "the task has printed it");
        let mut position = LogPosition { next: 5, line: Vec::new() };
        position.pass(&[b'x'; 1_000]);
        assert_eq!((position.next, position.line.len()), (1_005, LINE_MAX + 1));
    }

    #[test]
    fn cut_in_missing_line_resumes_before_next_bytes() {
        let (before, behind) = (b"one\n".as_slice(), b"two\n".as_slice());
        let stream = [before, b"\n[tenure] 10 bytes of the log are missing here\n", behind].concat();
        for cut in before.len()..=stream.len() - behind.len() {
            let mut position = LogPosition::default();
            position.pass(&stream[..cut]);
            assert!((4..=14).contains(&position.next), "cut behind {cut} bytes: {}", position.next);
        }
    }

    #[test]
    fn log_may_end_like_missing_line_begins() {
        let mut position = LogPosition::default();
        assert_eq!(position.pass(b"one\n[tenure] 10 by"), b"one\n");
        assert_eq!((position.next, position.end()), (4, b"[tenure] 10 by".to_vec()));
        assert_eq!((position.next, position.end()), (18, Vec::new()));
    }
}
