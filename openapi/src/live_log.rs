//! The live log of a run: limits, names, and the answer to a chunk.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum size of a chunk, in bytes.
pub const LIVE_LOG_CHUNK_MAX: usize = 64 << 10;
/// Size of the kept end of a log, in bytes.
pub const LIVE_LOG_KEPT_MAX: u64 = 4 << 20;
/// The artifact by which a log is read: a reference to the live log, afterwards a link to the whole
/// log.
pub const LIVE_LOG: &str = "public/logs/live.log";
/// The artifact with the whole log.
pub const BACKING_LOG: &str = "public/logs/live_backing.log";
pub const LOG_CONTENT_TYPE: &str = "text/plain; charset=utf-8";
/// Prefix of each line of the worker in a log. The other lines are output of the task.
pub const WORKER_MARK: &str = "[tenure-worker] ";
/// Prefix of each line of the server in a log. Such a line stands for a missing part.
pub const SERVER_MARK: &str = "[tenure] ";

/// The answer to a chunk.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LiveLogAppended {
    /// The offset in the whole log at which the next chunk begins.
    pub next: u64,
    /// True if the chunk was stored. If not, live logs are disabled or full: retry after a minute.
    pub kept: bool,
}
