//! The log of a run while it is written: its limits, its names, and the answer to a chunk.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most bytes of a chunk.
pub const LIVE_LOG_CHUNK_MAX: usize = 64 << 10;
/// How much is kept of a log: its end.
pub const LIVE_LOG_KEPT_MAX: u64 = 4 << 20;
/// The artifact under whose name a log is read: while it is written a reference to it, afterwards a link to the whole log.
pub const LIVE_LOG: &str = "public/logs/live.log";
/// The artifact with the whole log.
pub const BACKING_LOG: &str = "public/logs/live_backing.log";
/// The media type of logs.
pub const LOG_CONTENT_TYPE: &str = "text/plain; charset=utf-8";
/// Starts each line of the worker in a log. The other lines are output of the task.
pub const WORKER_MARK: &str = "[tenure-worker] ";
/// Starts each line of the server in a log. Such a line stands for a missing part.
pub const SERVER_MARK: &str = "[tenure] ";

/// What became of a chunk.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LiveLogAppended {
    /// The offset in the whole log at which the next chunk begins.
    pub next: u64,
    /// Whether the chunk was stored. If not, live logs are switched off or full: ask again after a minute.
    pub kept: bool,
}
