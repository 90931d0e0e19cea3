//! The log of a job: sent while it is written, and uploaded after the handler has ended.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::artifacts::{blocking, gzip};
use crate::error::chain;
use crate::live_log::{self, Chunk, LAST_PIECE_WITHIN, LOG_CONTENT_TYPE};
use crate::{Client, Error, Upload};

/// Bytes kept of the start and of the end of a longer log.
const BEGINNING_BYTES: usize = 2 << 20;
const END_BYTES: usize = 2 << 20;
/// The upload delays the report; the claim is renewed meanwhile.
const UPLOADED_WITHIN: Duration = Duration::from_secs(30);

/// The log of a job, readable within seconds as the run's artifact `public/logs/live.log`. It is
/// uploaded whole after the handler has ended, before the report. A log of more than 4 MiB loses
/// its middle. A job that writes nothing has no log. Failures of a log never change the outcome of
/// its job. Cheap to clone.
///
/// ```
/// # use tenure_client::consumer::{Job, Stop};
/// async fn count(job: Job<u32>, _stop: Stop) {
///     for number in 0..*job.payload() {
///         job.log().line(format_args!("{number} is done"));
///     }
/// }
/// ```
#[derive(Clone, Default)]
pub struct JobLog(Arc<JobLogInner>);

#[derive(Default)]
struct JobLogInner {
    written: Mutex<Written>,
    begun: Notify,
}

#[derive(Default)]
struct Written {
    beginning: Vec<u8>,
    /// Bytes after `beginning`, as far as they are kept.
    end: VecDeque<u8>,
    left_out: u64,
}

impl JobLog {
    /// Appends bytes, normally UTF-8.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// job.log().write(b"50 %\r");
    /// # }
    /// ```
    pub fn write(&self, bytes: impl AsRef<[u8]>) {
        self.lock().write(bytes.as_ref());
        self.0.begun.notify_one();
    }

    /// Appends a line and a line feed.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// job.log().line(format_args!("{} is done", job.task_id()));
    /// # }
    /// ```
    pub fn line(&self, text: impl fmt::Display) {
        // In one write: other parts of a handler may write concurrently.
        self.write(format!("{text}\n"));
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        // Writes before a panic elsewhere stay valid.
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.lock().length() == 0
    }

    /// Returns the kept bytes as text.
    pub(super) fn text(&self) -> String {
        let Written { beginning, end, .. } = &*self.lock();
        let bytes: Vec<u8> = beginning.iter().chain(end).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Compresses the log, with a line for a missing middle.
    async fn pack(&self, expires: Timestamp) -> Result<Upload, Error> {
        let log = self.clone();
        let packed = blocking(move || {
            let mut written = log.lock();
            let line = written.line();
            let length = bytes(written.beginning.len() + line.len() + written.end.len());
            written.end.make_contiguous();
            let packed = gzip::compress(&std::env::temp_dir(), |to| {
                to.write_all(&written.beginning)?;
                to.write_all(line.as_bytes())?;
                to.write_all(written.end.as_slices().0)
            })?;
            Ok((packed, length))
        });
        let (packed, length) = packed.await.map_err(Error::of_file("the log cannot be compressed"))?;
        Ok(Upload::from_file(packed, LOG_CONTENT_TYPE, expires)?.compressed(length))
    }
}

impl Written {
    fn length(&self) -> u64 {
        bytes(self.beginning.len()) + self.left_out + bytes(self.end.len())
    }

    fn write(&mut self, text: &[u8]) {
        let room = BEGINNING_BYTES - self.beginning.len();
        let (first, rest) = text.split_at(text.len().min(room));
        self.beginning.extend_from_slice(first);
        // Copies only the end of a piece longer than the limit.
        let over = rest.len().saturating_sub(END_BYTES);
        self.end.extend(&rest[over..]);
        let dropped = self.end.len().saturating_sub(END_BYTES);
        self.end.drain(..dropped);
        self.left_out += bytes(over + dropped);
    }

    /// Replaces the missing middle.
    fn line(&self) -> String {
        match self.left_out {
            0 => String::new(),
            left_out => format!("\n[{left_out} bytes are left out here: the log has {}]\n", self.length()),
        }
    }

    fn read(&self, from: u64, most: usize) -> Chunk {
        let kept = bytes(self.beginning.len());
        let from = if from < kept { from } else { from.max(kept + self.left_out) };
        let at = usize::try_from(from).unwrap_or(usize::MAX).min(self.beginning.len());
        let mut piece: Vec<u8> = self.beginning[at..].iter().take(most).copied().collect();
        // The missing middle lies between the beginning and the end.
        if from >= kept || self.left_out == 0 {
            let skipped = usize::try_from(from.saturating_sub(kept + self.left_out)).unwrap_or(usize::MAX);
            let room = most - piece.len();
            piece.extend(self.end.iter().skip(skipped).take(room));
        }
        Chunk { offset: from, bytes: piece }
    }
}

fn bytes(length: usize) -> u64 {
    u64::try_from(length).expect("no piece of memory has more than 2^64 bytes")
}

impl live_log::Log for JobLog {
    fn length(&self) -> u64 {
        self.lock().length()
    }

    fn read(&self, from: u64, most: usize) -> io::Result<Chunk> {
        Ok(self.lock().read(from, most))
    }
}

impl fmt::Debug for JobLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobLog").field("bytes", &self.lock().length()).finish_non_exhaustive()
    }
}

pub(super) struct Outgoing {
    log: JobLog,
    /// Made with the first write: most jobs write no log.
    live: OnceLock<live_log::Sender>,
    client: Client,
    task_id: TaskId,
    run_id: RunId,
    expires: Timestamp,
}

impl Outgoing {
    pub(super) fn new(log: JobLog, client: Client, task_id: TaskId, run_id: RunId, expires: Timestamp) -> Self {
        Self { log, live: OnceLock::new(), client, task_id, run_id, expires }
    }

    fn live(&self) -> &live_log::Sender {
        let Self { log, live, client, task_id, run_id, expires } = self;
        live.get_or_init(|| live_log::Sender::new(client, *task_id, *run_id, *expires, Arc::new(log.clone())))
    }

    /// Never returns.
    pub(super) async fn send(&self) {
        self.log.0.begun.notified().await;
        self.live().run().await;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.log.is_empty()
    }

    pub(super) async fn upload(&self) {
        self.live().finish(LAST_PIECE_WITHIN).await;
        let upload = async {
            let packed = self.log.pack(self.expires).await?;
            live_log::publish(&self.client, self.task_id, self.run_id, &packed, self.expires).await
        };
        match timeout(UPLOADED_WITHIN, upload).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warning!(error = chain(&error), "the log of a job was not uploaded"),
            Err(_elapsed) => warning!("the log of a job was not uploaded in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize) -> Vec<u8> {
        (b'a'..=b'z').cycle().take(length).collect()
    }

    #[test]
    fn short_log_is_kept_whole() {
        let whole = text(BEGINNING_BYTES + END_BYTES);
        for piece in [1 << 10, 1_000_003, whole.len()] {
            let mut written = Written::default();
            whole.chunks(piece).for_each(|piece| written.write(piece));
            assert_eq!((written.length(), written.left_out), (bytes(whole.len()), 0));
            let Chunk { offset, bytes } = written.read(0, usize::MAX);
            assert!(offset == 0 && bytes == whole, "{piece}");
        }
    }

    #[test]
    fn long_log_keeps_both_ends_in_bounded_memory() {
        let whole = text(3 * (BEGINNING_BYTES + END_BYTES) + 5);
        for piece in [1_000_003, whole.len()] {
            let mut written = Written::default();
            for piece in whole.chunks(piece) {
                written.write(piece);
                assert!(written.beginning.len() <= BEGINNING_BYTES && written.end.len() <= END_BYTES);
            }
            assert_eq!(written.length(), bytes(whole.len()));
            let end_at = whole.len() - END_BYTES;
            assert_eq!(written.left_out, bytes(end_at - BEGINNING_BYTES));
            assert!(written.line().contains(&format!("{} bytes are left out here", written.left_out)));
            for (from, most, at) in [
                (0, 100, 0..100),
                (BEGINNING_BYTES - 10, 100, BEGINNING_BYTES - 10..BEGINNING_BYTES),
                (BEGINNING_BYTES, 100, end_at..end_at + 100),
                (end_at + 7, 100, end_at + 7..end_at + 107),
                (whole.len() - 3, 100, whole.len() - 3..whole.len()),
            ] {
                let expected = Chunk { offset: bytes(at.start), bytes: whole[at].to_vec() };
                assert_eq!(written.read(bytes(from), most), expected, "{from}");
            }
        }
    }
}
