//! What every handler works with.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{Authenticator, Now};
use crate::background::Context;
use crate::background::tail::Tail;
use crate::batch::Batcher;
use crate::batch::claim_line::ClaimLine;
use crate::batch::message_queue::MessageQueue;
use crate::blobs::Blobs;
use crate::clock;
use crate::http::budget::Budget;
use crate::http::docs::References;
use crate::http::files::Files;
use crate::http::heavy::Heavy;
use crate::http::page::Pages;
use crate::http::poll::PollUrls;
use crate::ops::create_task::CreateTask;
use crate::ops::messages::DeleteMessages;
use crate::ops::reclaim::Reclaim;
use crate::ops::report::ReportRun;
use crate::ops::status::ReadStatus;
use crate::secrets::WorkerDigests;
use crate::store::queues::Queues;

/// Shared by all requests; a clone is one reference count.
pub type App = Arc<Parts>;

/// The parts of the application.
pub struct Parts {
    /// Cold statements.
    pub pool: PgPool,
    /// Keys of queues.
    pub queues: Queues,
    /// Who callers are.
    pub authenticator: Authenticator,
    /// createTask.
    pub create: Batcher<CreateTask>,
    /// reclaimTask.
    pub reclaim: Batcher<Reclaim>,
    /// The three reports.
    pub report: Batcher<ReportRun>,
    /// status.
    pub status: Batcher<ReadStatus>,
    /// claimWork.
    pub line: ClaimLine,
    /// Getting messages.
    pub messages: MessageQueue,
    /// Deleting messages.
    pub delete_messages: Batcher<DeleteMessages>,
    /// The message plane's URLs.
    pub poll_urls: PollUrls,
    /// Artifacts' bytes.
    pub blobs: Blobs,
    /// The newest events, for streams.
    pub tail: Tail,
    /// Where streams run.
    pub tasks: TaskTracker,
    /// Ends streams when the server drains.
    pub draining: CancellationToken,
    /// What the operator's page needs.
    pub pages: Pages,
    /// References and schemas, made with the first of them that is asked for.
    pub references: OnceLock<References>,
    /// Documents that are the same for all.
    pub files: Files,
    /// The memory of bodies that are being read.
    pub bodies: Arc<Budget>,
    /// Where work on large bodies is done.
    pub heavy: Heavy,
    /// How the secrets of workers are stored.
    pub worker_digests: WorkerDigests,
    /// The passes, for the manual clock.
    pub passes: Context,
    /// Where clients find the server, without a slash at its end.
    pub root_url: String,
    /// Cancelled when the server drains: whoever waits is sent away.
    pub drain: CancellationToken,
    /// Whether the clock may be moved.
    pub manual_clock: bool,
    /// Term of a claim.
    pub claim_timeout: Duration,
    /// Long poll of claimWork.
    pub claim_work_wait: Duration,
    /// When the server began.
    pub started: Instant,
    /// What `/metrics` prints.
    pub metrics: PrometheusHandle,
}

impl Parts {
    /// The two clocks. The database is asked only where they can differ.
    pub async fn now(&self) -> Result<Now, sqlx::Error> {
        let real_ms = clock::real_now().timestamp_millis();
        if !self.manual_clock {
            // What the database dated is compared with its clock, also where this machine's is wrong.
            return Ok(Now { real_ms, server_ms: real_ms + self.passes.skew.millis() });
        }
        let mut conn = self.pool.acquire().await?;
        let server = crate::store::clock::get_now(&mut conn).await?;
        Ok(Now { real_ms, server_ms: server.timestamp_millis() })
    }
}
