//! A task's log: what its commands and the worker write while it runs, and how it becomes an artifact.
//!
//! The commands write into the file directly, so that a worker that dies takes no line with it. It is read through the
//! handle that it was made with, whatever the task has done to its name.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use tenure_api::dates::Timestamp;

use crate::artifacts::{blocking, gzip};
use crate::{Error, Upload};

/// The log's name within the task's directory.
pub(super) const LOG_FILE: &str = "live.log";
/// The artifact with the whole log.
pub(super) const BACKING_LOG: &str = "public/logs/live_backing.log";
/// The name under which people look for the log.
pub(super) const LIVE_LOG: &str = "public/logs/live.log";
pub(super) const LOG_CONTENT_TYPE: &str = "text/plain; charset=utf-8";
/// Of a log that is too long so much of the end is kept: there it says how the task ended.
const END_BYTES: u64 = 64 * 1024;
/// Set the worker's lines apart from the commands' own.
const LOG_PREFIX: &str = "[tenure-worker]";

/// The log of one run.
pub(super) struct Log {
    file: Arc<File>,
}

impl Log {
    /// Begins the log of the task with this directory.
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create_new(true).read(true).append(true).open(dir.join(LOG_FILE))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Adds a line of the worker's.
    pub(super) fn note(&self, line: &str) {
        // In one piece, because commands write at the same time.
        let line = format!("{LOG_PREFIX} {line}\n");
        if let Err(error) = (&*self.file).write_all(line.as_bytes()) {
            tracing::warn!(%error, "the task's log could not be written");
        }
    }

    /// For a command to write to.
    pub(super) fn output(&self) -> io::Result<Stdio> {
        Ok(self.file.try_clone()?.into())
    }

    /// The log as it is now, compressed into an unnamed file in `folder`. The middle of one longer than `most` bytes
    /// is left out, and a line in its place says so.
    pub(super) async fn pack(&self, folder: &Path, most: u64, expires: Timestamp) -> Result<Upload, Error> {
        let (file, folder) = (Arc::clone(&self.file), folder.to_owned());
        let packed = blocking(move || {
            let length = file.metadata()?.len();
            let end = END_BYTES.min(most / 2).min(length);
            let cut = if length > most { most - end..length - end } else { length..length };
            let left_out = cut.end - cut.start;
            let line = format!(
                "\n{LOG_PREFIX} {left_out} bytes are left out here: the log has {length}, and {most} is the most that is kept\n"
            );
            let line = if left_out > 0 { line } else { String::new() };
            let packed = gzip::compress(&folder, |to| {
                gzip::copy(&file, 0..cut.start, to)?;
                to.write_all(line.as_bytes())?;
                gzip::copy(&file, cut.end..length, to)
            })?;
            Ok((packed, length - left_out + u64::try_from(line.len()).unwrap_or_default()))
        })
        .await;
        let (packed, content_length) = packed.map_err(Error::of_file("the task's log cannot be compressed"))?;
        Ok(Upload::from_file(packed, LOG_CONTENT_TYPE, expires)?.compressed(content_length))
    }
}
