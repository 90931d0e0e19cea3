//! Sends the log of a run while it is written.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::LIVE_LOG_CHUNK_MAX;
use crate::artifacts::blocking;
use crate::error::chain;
use crate::{Client, Error, RetryPolicy};

/// Interval between pieces.
const EVERY: Duration = Duration::from_secs(1);
/// Pause if the server keeps no live logs, or a proxy may have answered. Also the longest pause
/// that a server can request.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Default limit for the last piece, which delays the report.
pub const LAST_PIECE_WITHIN: Duration = Duration::from_secs(1);

/// A log to send. Offsets count all bytes ever written, even those no longer kept.
///
/// ```
/// use tenure_client::live_log::{Chunk, Log};
///
/// struct Text(&'static [u8]);
///
/// impl Log for Text {
///     fn length(&self) -> u64 { self.0.len() as u64 }
///
///     fn read(&self, from: u64, most: usize) -> std::io::Result<Chunk> {
///         Ok(Chunk { offset: from, bytes: self.0.iter().skip(from as usize).take(most).copied().collect() })
///     }
/// }
/// # assert_eq!(Text(b"begun\n").read(2, 3)?.bytes, b"gun");
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Log: Send + Sync + 'static {
    /// Number of bytes written.
    fn length(&self) -> u64;

    /// Reads up to `most` bytes at `from`, or at the first later byte that is kept.
    ///
    /// # Errors
    /// The log cannot be read. Sending then stops.
    fn read(&self, from: u64, most: usize) -> io::Result<Chunk>;
}

/// A piece of a log.
///
/// ```
/// use tenure_client::live_log::Chunk;
///
/// let chunk = Chunk { offset: 6, bytes: b"half\n".to_vec() };
/// assert_eq!(chunk.offset + chunk.bytes.len() as u64, 11);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the first byte in the whole log.
    pub offset: u64,
    /// May be empty.
    pub bytes: Vec<u8>,
}

/// Sends the log of a run. Errors never affect the run.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tenure_client::{Claim, live_log};
/// # async fn work(claim: &Claim) {}
/// # async fn example(claim: &Claim, log: Arc<dyn live_log::Log>) {
/// let live = live_log::Sender::new(claim.client(), claim.task_id(), claim.run_id(), claim.task().expires, log);
/// tokio::select! {
///     () = work(claim) => {}
///     () = live.run() => {}
/// }
/// live.finish(live_log::LAST_PIECE_WITHIN).await;
/// # }
/// ```
pub struct Sender {
    client: Client,
    task_id: TaskId,
    run_id: RunId,
    expires: Timestamp,
    log: Arc<dyn Log>,
    progress: Mutex<Progress>,
    finished: CancellationToken,
}

struct Progress {
    position: u64,
    phase: Phase,
    /// The artifact was created or finally refused.
    is_artifact: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Beginning,
    /// The server keeps the log.
    Kept,
    /// The server currently keeps no live logs.
    NotKept,
    /// Sending has stopped.
    GivenUp,
}

impl Sender {
    /// Creates a sender. Its client needs the scope `queue:create-artifact:<taskId>/<runId>`, which
    /// the client of a claim has. The artifact of the live log expires at `expires` if not
    /// replaced.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use tenure_client::{Claim, live_log};
    /// # fn example(claim: &Claim, log: Arc<dyn live_log::Log>) {
    /// let (task_id, run_id, expires) = (claim.task_id(), claim.run_id(), claim.task().expires);
    /// let live = live_log::Sender::new(claim.client(), task_id, run_id, expires, log);
    /// # drop(live);
    /// # }
    /// ```
    #[must_use]
    pub fn new(client: &Client, task_id: TaskId, run_id: RunId, expires: Timestamp, log: Arc<dyn Log>) -> Self {
        let client = client.with_retry_policy(RetryPolicy::never());
        let progress = Mutex::new(Progress { position: 0, phase: Phase::Beginning, is_artifact: false });
        Self { client, task_id, run_id, expires, log, progress, finished: CancellationToken::new() }
    }

    /// Sends new bytes every second. Never returns; may be dropped. A run shorter than a second
    /// costs no request.
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(live: &tenure_client::live_log::Sender) {
    /// tokio::select! {
    ///     () = work() => {}
    ///     () = live.run() => {}
    /// }
    /// # }
    /// ```
    pub async fn run(&self) {
        tokio::select! {
            () = self.finished.cancelled() => {}
            () = self.send_on() => {}
        }
        std::future::pending::<()>().await;
    }

    /// Sends the rest within `within` if the server keeps this log, and stops.
    ///
    /// ```no_run
    /// # use tenure_client::live_log::{LAST_PIECE_WITHIN, Sender};
    /// # async fn example(live: &Sender) {
    /// live.finish(LAST_PIECE_WITHIN).await;
    /// # }
    /// ```
    pub async fn finish(&self, within: Duration) {
        let last = async {
            let mut progress = self.progress.lock().await;
            let end = self.log.length();
            // Several rounds if an earlier piece arrived but its answer was lost.
            while progress.phase == Phase::Kept && progress.position < end {
                let before = progress.position;
                self.send(&mut progress).await;
                if progress.position <= before {
                    break;
                }
            }
        };
        if timeout(within, last).await.is_err() {
            tracing::debug!("the end of the live log was not sent in time");
        }
        self.finished.cancel();
    }

    async fn send_on(&self) {
        let mut pause = EVERY;
        loop {
            sleep(pause).await;
            let mut progress = self.progress.lock().await;
            pause = self.send(&mut progress).await;
            if progress.phase == Phase::GivenUp {
                return;
            }
            if progress.phase == Phase::Kept && !progress.is_artifact {
                progress.is_artifact = self.create_artifact().await;
            }
        }
    }

    /// Returns the pause before the next piece.
    async fn send(&self, progress: &mut Progress) -> Duration {
        match self.append(progress.position).await {
            Ok(None) => EVERY,
            Ok(Some(next)) => {
                (progress.position, progress.phase) = (next, Phase::Kept);
                EVERY
            }
            Err(Unsent::NotKept) => {
                progress.phase = Phase::NotKept;
                ASK_AGAIN_AFTER
            }
            Err(Unsent::Failed(error)) if error.is_transient() => {
                tracing::debug!(error = chain(&error), "a piece of the live log was not sent; trying again");
                error.retry_after().unwrap_or_default().clamp(EVERY, ASK_AGAIN_AFTER)
            }
            Err(Unsent::Failed(error)) if error.is_unclear() => {
                tracing::debug!(error = chain(&error), "a piece of the live log got an unclear answer; trying again");
                ASK_AGAIN_AFTER
            }
            Err(Unsent::Failed(error)) => {
                tracing::debug!(error = chain(&error), "there is no live log of this run");
                progress.phase = Phase::GivenUp;
                EVERY
            }
        }
    }

    /// Returns the new position, or none without new bytes.
    async fn append(&self, position: u64) -> Result<Option<u64>, Unsent> {
        let (log, length) = (Arc::clone(&self.log), self.log.length());
        if length <= position {
            return Ok(None);
        }
        let read = blocking(move || next_chunk(&*log, position, length)).await;
        let Chunk { offset, bytes } =
            read.map_err(|error| Unsent::Failed(Error::of_file("the log cannot be read")(error)))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let appended = self.client.append_live_log(self.task_id, self.run_id, offset, &bytes).await;
        let appended = appended.map_err(Unsent::Failed)?;
        // The server cannot have more than was written.
        if appended.kept { Ok(Some(appended.next.min(self.log.length()))) } else { Err(Unsent::NotKept) }
    }

    /// Returns true if no retry is needed.
    async fn create_artifact(&self) -> bool {
        match self.client.refer_to_live_log(self.task_id, self.run_id, self.expires).await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(error = chain(&error), "the live log is not an artifact yet");
                !error.is_transient() && !error.is_unclear()
            }
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task_id, run_id, .. } = self;
        f.debug_struct("Sender").field("task_id", task_id).field("run_id", run_id).finish_non_exhaustive()
    }
}

enum Unsent {
    NotKept,
    Failed(Error),
}

/// Returns the next piece. After a gap it starts with a whole line if possible.
fn next_chunk(log: &dyn Log, position: u64, length: u64) -> io::Result<Chunk> {
    let most = u64::try_from(LIVE_LOG_CHUNK_MAX).unwrap_or(u64::MAX);
    let Chunk { mut offset, mut bytes } = log.read(position.max(length.saturating_sub(most)), LIVE_LOG_CHUNK_MAX)?;
    if offset > position
        && let Some(end_of_line) = bytes.iter().position(|&byte| byte == b'\n')
        && end_of_line + 1 < bytes.len()
    {
        bytes.drain(..=end_of_line);
        offset += u64::try_from(end_of_line).unwrap_or_default() + 1;
    }
    Ok(Chunk { offset, bytes })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    struct Text(Vec<u8>);

    impl Log for Text {
        fn length(&self) -> u64 {
            self.0.len().try_into().unwrap()
        }

        fn read(&self, from: u64, most: usize) -> io::Result<Chunk> {
            let bytes = self.0.iter().skip(from.try_into().unwrap()).take(most).copied().collect();
            Ok(Chunk { offset: from, bytes })
        }
    }

    fn next(text: &[u8], position: u64) -> Chunk {
        let log = Text(text.to_vec());
        next_chunk(&log, position, log.length()).unwrap()
    }

    #[tokio::test]
    async fn unclear_answer_does_not_stop_sender() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::builder().root_url(&format!("http://{}", listener.local_addr().unwrap())).build().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"a line\n") && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
            let answer = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 7\r\n\r\n<html/>";
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let (task_id, run_id) = ("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), "0".parse().unwrap());
        let log = Arc::new(Text(b"a line\n".to_vec()));
        let sender = Sender::new(&client, task_id, run_id, client.now(), log);
        let mut progress = sender.progress.lock().await;
        assert_eq!(sender.send(&mut progress).await, ASK_AGAIN_AFTER);
        assert_eq!((progress.position, progress.phase), (0, Phase::Beginning));
        serving.await.unwrap();
    }

    #[test]
    fn new_bytes_are_sent_unchanged() {
        assert_eq!(next(b"one\ntwo\n", 0), Chunk { offset: 0, bytes: b"one\ntwo\n".to_vec() });
        assert_eq!(next(b"one\ntwo\n", 2), Chunk { offset: 2, bytes: b"e\ntwo\n".to_vec() });
        let full = vec![b'x'; LIVE_LOG_CHUNK_MAX];
        assert_eq!(next(&full, 0), Chunk { offset: 0, bytes: full });
    }

    #[test]
    fn long_log_loses_middle_and_resumes_at_line() {
        let mut text = b"a line\n".repeat(20_000);
        let Chunk { offset, bytes } = next(&text, 7);
        assert!((LIVE_LOG_CHUNK_MAX - 7..=LIVE_LOG_CHUNK_MAX).contains(&bytes.len()), "{}", bytes.len());
        assert_eq!((offset % 7, offset + u64::try_from(bytes.len()).unwrap()), (0, 140_000));
        assert!(bytes.starts_with(b"a line\n"));
        // A line longer than the limit has no other start.
        text.fill(b'x');
        let Chunk { offset, bytes } = next(&text, 7);
        assert_eq!((offset, bytes.len()), (140_000 - 65_536, LIVE_LOG_CHUNK_MAX));
        *text.last_mut().unwrap() = b'\n';
        assert_eq!(next(&text, 7).offset, 140_000 - 65_536);
    }
}
