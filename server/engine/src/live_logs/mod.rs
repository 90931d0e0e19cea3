//! Logs of runs while they are written: chunks come in through a batcher, and one task reads for all streams of this server.

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
use crate::rooms::{Caller, Room, Rooms};
use reader::{PIECES_WAITING, Reader, RunKey, Stream};
use tenure_domain::live_log::{Cursor, From};
use tenure_store::live_logs::{self, Appended, Chunk, Position};

/// How often what all logs take is added up: that reads a row for each of them, also those of rows that are gone and that an old snapshot
/// keeps. What this server stores and deletes meanwhile is counted at once.
const COUNTED_EVERY: Duration = Duration::from_secs(30);
/// Streams that may be open at one server.
pub const STREAMS_MAX: usize = 200;

/// The live logs of this server. A clone shares them.
#[derive(Clone)]
pub struct LiveLogs(Arc<Shared>);

struct Shared {
    append: Batcher<AppendLog>,
    pool: PgPool,
    /// How many bytes all of them may take.
    max: i64,
    /// How many they take: as the pass found last, and what this server has stored and deleted since.
    total: AtomicI64,
    counted: Mutex<Option<Instant>>,
    /// Runs of whose logs this server has stored something.
    stored: Arc<Signal<RunKey>>,
    streams: Parking<Reader>,
    rooms: Rooms,
}

/// What a reader wants.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Where to begin.
    pub from: From,
    /// Whether to wait for what is written later.
    pub follow: bool,
    /// Who reads.
    pub caller: Caller,
}

/// A stream that was opened.
#[derive(Debug)]
pub struct LiveStream {
    /// What its reader gets, until there are no more.
    pub pieces: mpsc::Receiver<Bytes>,
    /// To be held until the reader has had them: one that takes nothing counts as long as something waits for it.
    pub room: Room,
}

impl LiveLogs {
    /// Starts the task that reads. It ends when the last handle is dropped; when it is stopped, all streams end.
    pub(crate) fn start(append: Batcher<AppendLog>, pool: &PgPool, max: u64, lifetime: &Lifetime) -> Self {
        let stored = Arc::new(Signal::default());
        let Lifetime { tasks, drain, .. } = lifetime;
        let reader = Reader::new(pool.clone());
        let streams = Parking::start(reader, Arc::clone(&stored), Timing::default(), tasks, drain.clone());
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let rooms = Rooms::new(STREAMS_MAX);
        Self(Arc::new(Shared {
            append,
            pool: pool.clone(),
            max,
            total: AtomicI64::new(0),
            counted: Mutex::default(),
            stored,
            streams,
            rooms,
        }))
    }

    /// Adds a chunk to the log of a run that a worker holds.
    ///
    /// # Errors
    /// There is no such task, the run is not claimed, too many chunks wait, or the database does not answer.
    pub async fn append(&self, of: RunRef, offset: u64, bytes: Vec<u8>) -> Result<LiveLogAppended, OpError> {
        let Shared { append, max, total, stored, .. } = &*self.0;
        let full = total.load(Ordering::Relaxed) >= *max;
        let (task, run) = (of.task.uuid(), of.run.number().cast_signed());
        // Of an empty chunk nothing is stored, and whether the run is claimed is looked up all the same.
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

    /// A stream of the log of a run.
    ///
    /// # Errors
    /// There is no such task, or no such log and nothing to wait for; or too many streams are open.
    pub async fn open(&self, of: RunRef, reading: Reading) -> Result<LiveStream, OpError> {
        let Shared { pool, streams, rooms, .. } = &*self.0;
        let found = live_logs::find(&mut *pool.acquire().await?, of.task, of.run).await?;
        let found = found.ok_or_else(|| OpError::NotFound(format!("task {} does not exist", of.task)))?;
        if found.next.is_none() && !(found.held && reading.follow) {
            return Err(OpError::NotFound(format!("run {} of task {} has no live log", of.run, of.task)));
        }
        let room = rooms.enter(reading.caller).ok_or(OpError::Overloaded("getLiveLog"))?;
        let next = reading.from.offset(found.next.unwrap_or_default().unsigned_abs());
        let (frames, pieces) = mpsc::channel(PIECES_WAITING);
        let run = of.run.number().cast_signed();
        let position = Position { seq: found.seq, run, next: i64::try_from(next).unwrap_or(i64::MAX) };
        let (cursor, follow) = (Cursor { next }, reading.follow);
        let stream =
            Stream { position, cursor, has_log: found.next.is_some(), follow, frames, due: true, ended: false };
        streams.park((of.task.uuid(), run), None, stream);
        Ok(LiveStream { pieces, room })
    }

    /// Adds up what all logs take, from time to time.
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
