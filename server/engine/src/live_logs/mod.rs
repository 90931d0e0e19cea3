//! Logs of runs while they are written: chunks arrive through a batcher, and one task reads for all
//! streams of this server.

mod reader;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sqlx::PgPool;
use tenure_api::live_log::LiveLogAppended;
use tokio::sync::mpsc;

use crate::batch::Batcher;
use crate::engine::Lifetime;
use crate::ops::OpError;
use crate::ops::create_artifact::RunRef;
use crate::ops::live_log::AppendLog;
use crate::parked::{Parking, Signal, Timing};
use crate::wait_limit::{Caller, WaitLimit, WaitPermit};
use reader::{PIECES_WAITING, Reader, RunKey, Stream};
use tenure_domain::live_log::{Cursor, From};
use tenure_store::live_logs::{self, Appended, Chunk, Position};

/// Interval of the recount, which reads a row per log, including dead rows. Between recounts, this
/// server's own writes are counted.
const COUNTED_EVERY: Duration = Duration::from_secs(30);
pub const STREAMS_MAX: usize = 200;

/// The live logs of this server. Clones share them.
#[derive(Clone)]
pub struct LiveLogs(Arc<LiveLogsInner>);

struct LiveLogsInner {
    append: Batcher<AppendLog>,
    pool: PgPool,
    /// Maximum bytes of all logs together.
    max: i64,
    /// Bytes at the last recount, plus this server's writes since.
    total: AtomicI64,
    counted: Mutex<Option<Instant>>,
    /// Runs whose logs this server has written.
    stored: Arc<Signal<RunKey>>,
    streams: Parking<Reader>,
    wait_limit: WaitLimit,
}

#[derive(Debug, Clone, Copy)]
pub struct Reading {
    pub from: From,
    /// True to wait for later chunks.
    pub follow: bool,
    pub caller: Caller,
}

#[derive(Debug)]
pub struct LiveStream {
    /// Chunks for the reader, until the channel closes.
    pub pieces: mpsc::Receiver<Bytes>,
    /// Hold it until the reader has received everything: a stalled reader counts as an open stream.
    pub permit: WaitPermit,
}

impl LiveLogs {
    /// Starts the reading task. It ends with the last handle; stopping it ends all streams.
    pub(crate) fn start(append: Batcher<AppendLog>, pool: &PgPool, max: u64, lifetime: &Lifetime) -> Self {
        let stored = Arc::new(Signal::default());
        let Lifetime { tasks, drain, .. } = lifetime;
        let reader = Reader::new(pool.clone());
        let streams = Parking::start(reader, Arc::clone(&stored), Timing::default(), tasks, drain.clone());
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let wait_limit = WaitLimit::new(STREAMS_MAX);
        Self(Arc::new(LiveLogsInner {
            append,
            pool: pool.clone(),
            max,
            total: AtomicI64::new(0),
            counted: Mutex::default(),
            stored,
            streams,
            wait_limit,
        }))
    }

    pub async fn append(&self, of: RunRef, offset: u64, bytes: Vec<u8>) -> Result<LiveLogAppended, OpError> {
        let LiveLogsInner { append, max, total, stored, .. } = &*self.0;
        let full = total.load(Ordering::Relaxed) >= *max;
        let (task, run) = (of.task.uuid(), of.run.number().cast_signed());
        // An empty chunk stores nothing, but still checks that the run is claimed.
        let bytes = if full { Vec::new() } else { bytes };
        let chunk = Chunk { task, run, offset: i64::try_from(offset).unwrap_or(i64::MAX), bytes };
        let Appended { next, kept } = append.submit((of, chunk)).await?;
        if full {
            return Ok(LiveLogAppended { next: offset, kept: false });
        }
        total.fetch_add(kept, Ordering::Relaxed);
        stored.notify_if_waiting([(task, run)]);
        Ok(LiveLogAppended { next: next.unsigned_abs(), kept: true })
    }

    /// Opens a stream of the log of a run. Fails without such a log unless it may still be written.
    pub async fn open(&self, of: RunRef, reading: Reading) -> Result<LiveStream, OpError> {
        let LiveLogsInner { pool, streams, .. } = &*self.0;
        let found = live_logs::find(&mut *pool.acquire().await?, of.task, of.run).await?;
        let found = found.ok_or_else(|| OpError::NotFound(format!("task {} does not exist", of.task)))?;
        if found.next.is_none() && !(found.held && reading.follow) {
            return Err(OpError::NotFound(format!("run {} of task {} has no live log", of.run, of.task)));
        }
        let permit = self.admit(reading.caller)?;
        let next = reading.from.offset(found.next.unwrap_or_default().unsigned_abs());
        let (frames, pieces) = mpsc::channel(PIECES_WAITING);
        let run = of.run.number().cast_signed();
        let position = Position { seq: found.seq, run, next: i64::try_from(next).unwrap_or(i64::MAX) };
        let (cursor, follow) = (Cursor { next }, reading.follow);
        let stream =
            Stream { position, cursor, has_log: found.next.is_some(), follow, frames, due: true, ended: false };
        streams.park((of.task.uuid(), run), None, stream);
        Ok(LiveStream { pieces, permit })
    }

    /// Counts a stream of a log, live or stored.
    ///
    /// # Errors
    /// If too many are open.
    pub fn admit(&self, caller: Caller) -> Result<WaitPermit, OpError> {
        self.0.wait_limit.acquire(caller).ok_or(OpError::Overloaded("getLiveLog"))
    }

    /// Returns the used part of the space, from 0 to about 1.
    pub(crate) fn used(&self) -> f64 {
        let LiveLogsInner { max, total, .. } = &*self.0;
        if *max > 0 { total.load(Ordering::Relaxed) as f64 / *max as f64 } else { 0.0 }
    }

    pub(crate) async fn count(&self) -> Result<(), sqlx::Error> {
        let is_recent = |counted: Option<Instant>| counted.is_some_and(|counted| counted.elapsed() < COUNTED_EVERY);
        if is_recent(*self.0.counted.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let bytes = live_logs::total(&mut *self.0.pool.acquire().await?).await?;
        self.0.total.store(bytes, Ordering::Relaxed);
        *self.0.counted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        metrics::gauge!("tenure_live_log_bytes").set(bytes as f64);
        Ok(())
    }
}
