//! Processes live logs of ended runs: deletes those uploaded whole by the worker, and turns the
//! others into artifacts.

use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use tenure_api::live_log::{BACKING_LOG, LOG_CONTENT_TYPE};

use super::{PASS_MAX, PassReport, SLICE};
use crate::blobs::{BlobError, BlobName, Sealed};
use crate::engine::Engine;
use crate::ops::create_artifact::RunRef;
use crate::ops::live_log::make_artifacts;
use tenure_domain::artifact::Details;
use tenure_domain::live_log::{CHECK_EVERY, Cursor, Fate, fate, last_line};
use tenure_store::artifacts;
use tenure_store::failure::{Class, classify};
use tenure_store::live_logs::{self, DueLog, DueTask, Position};

const CHUNKS: i64 = 64;

/// A failed log does not stop the others; the first such error is returned at the end.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let began = Instant::now();
    engine.live_logs.count().await?;
    let mut conn = engine.background_pool.acquire().await?;
    let due = live_logs::list_due(&mut conn, engine.due_marks.get().live_logs, BACKING_LOG, SLICE).await?;
    drop(conn);
    let mut report = PassReport { found: due.len(), ..PassReport::default() };
    let mut failed = None;
    for (n, log) in (1..).zip(&due) {
        match look_at(engine, log).await {
            Ok(()) => report.done += 1,
            Err(error) if classify(&error) == Class::Unavailable => return Err(error),
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
        if began.elapsed() > PASS_MAX && n < due.len() {
            // The rest would wait for a whole interval, and use up the space for live logs.
            report.next_in = Some(Duration::ZERO);
            break;
        }
    }
    failed.map_or(Ok(report), Err)
}

async fn look_at(engine: &Engine, log: &DueLog) -> Result<(), sqlx::Error> {
    let fate = match &log.task {
        None => Fate::Purge,
        Some(task) => fate(task.ended, is_uploaded(engine, log, task).await?, log.now),
    };
    settle(engine, log, fate).await
}

/// True if the whole log is stored. A row without bytes means that the upload never came.
async fn is_uploaded(engine: &Engine, log: &DueLog, task: &DueTask) -> Result<bool, sqlx::Error> {
    if !task.uploaded {
        return Ok(false);
    }
    let mut conn = engine.background_pool.acquire().await?;
    let found = artifacts::find(&mut conn, log.seq, task.run, BACKING_LOG).await?;
    let name = BlobName::artifact(task.id, task.run, BACKING_LOG);
    Ok(match found.map(|stored| (stored.present, stored.artifact.details)) {
        Some((_, Details::S3)) => !engine.blobs.find(&mut *conn, &[name]).await?.is_empty(),
        Some((present, _)) => present,
        None => false,
    })
}

async fn settle(engine: &Engine, log: &DueLog, fate: Fate) -> Result<(), sqlx::Error> {
    let mut fate = fate;
    if fate == Fate::Fold {
        fate = match (log.task, log.task.and_then(|task| task.ended)) {
            (Some(task), Some(ended)) => fold(engine, log, task, ended).await?,
            _ => Fate::Purge,
        };
    }
    let mut conn = engine.background_pool.acquire().await?;
    match fate {
        Fate::Stay(until) => live_logs::put_off(&mut conn, log.seq, log.run, until).await,
        Fate::Fold | Fate::Purge => live_logs::purge(&mut conn, log.seq, log.run).await,
    }
}

/// Creates the artifacts of a log and returns the fate of its chunks. The bytes are stored first:
/// the pass returns while chunks exist.
async fn fold(engine: &Engine, log: &DueLog, task: DueTask, ended: DateTime<Utc>) -> Result<Fate, sqlx::Error> {
    let again = Fate::Stay(log.now + CHECK_EVERY);
    let of = RunRef { task: task.id, run: task.run };
    let name = BlobName::artifact(of.task, of.run, BACKING_LOG);
    let text = assemble(engine, log, ended).await?;
    match engine.blobs.put_by_server(&engine.background_pool, &name, LOG_CONTENT_TYPE, text).await {
        // The worker has uploaded the log after all, or another server has stored it.
        Ok(_) | Err(BlobError::Sealed(Sealed::Uploaded)) => {}
        Err(error) => {
            tracing::warn!(
                error = %error, task.id = %of.task, run.id = of.run.number(),
                "a live log could not be stored; it will be retried"
            );
            return Ok(again);
        }
    }
    match make_artifacts(&engine.background_pool, &engine.notifiers, of).await {
        Ok(true) => Ok(Fate::Purge),
        Ok(false) => {
            // Nothing else would remove these bytes: the task is gone, or the log's name is an
            // artifact without bytes.
            drop(engine.blobs.delete(&engine.background_pool, &[name]).await);
            Ok(Fate::Purge)
        }
        Err(error) => {
            tracing::warn!(
                error = %error, task.id = %of.task, run.id = of.run.number(),
                "a live log could not be made an artifact; it will be retried"
            );
            Ok(again)
        }
    }
}

async fn assemble(engine: &Engine, log: &DueLog, ended: DateTime<Utc>) -> Result<Bytes, sqlx::Error> {
    let (mut text, mut cursor) = (Vec::new(), Cursor { next: 0 });
    let mut conn = engine.background_pool.acquire().await?;
    loop {
        let next = i64::try_from(cursor.next).unwrap_or(i64::MAX);
        let position = Position { seq: log.seq, run: log.run, next };
        let pieces = live_logs::read(&mut conn, &[position], CHUNKS).await?;
        if pieces.is_empty() {
            break;
        }
        for piece in &pieces {
            let (line, bytes) = cursor.take(piece.start.unsigned_abs(), &piece.bytes);
            text.extend(line.unwrap_or_default().into_bytes());
            text.extend_from_slice(bytes);
        }
    }
    text.extend(last_line(ended).into_bytes());
    Ok(text.into())
}
