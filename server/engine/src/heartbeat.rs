//! The heartbeat: whether a write is committed now, asked by whatever watches this server.
//!
//! Without credentials anyone may ask, as often as they like: all share one session, which writes only when it is asked, and
//! at most every two seconds. The beats of [`election`](crate::background::election) write the same row, and do not answer for this: they
//! may wait for locks. They alone insert it again if it was purged: a heartbeat may be given up when the server stops, and committed
//! after the server has left.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::batch::Session;
use crate::essential;
use crate::failure::{Failure, OpError};
use tenure_store::connector::Connector;
use tenure_store::servers;
use uuid::Uuid;

/// How long a write that was committed answers for.
const GOOD_FOR: Duration = Duration::from_secs(2);
/// How long one that failed answers for: as long as its callers are asked to wait.
const BAD_FOR: Duration = Duration::from_secs(1);
/// How long a caller waits.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// How long a write is waited for, connecting included, before its session is given up: the network may have lost it.
const WRITE_MAX: Duration = Duration::from_secs(8);
/// How long one that is under way when the server stops is waited for.
const LAST_WRITE_MAX: Duration = Duration::from_secs(1);
/// Why nothing was written.
const NO_ROW: &str = "this server's row was purged; its next beat inserts it";

/// How the last write ended, and when.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    is_good: bool,
    at: Instant,
}

impl Outcome {
    fn answers_now(self) -> bool {
        self.at.elapsed() < if self.is_good { GOOD_FOR } else { BAD_FOR }
    }

    fn result(self) -> Result<(), OpError> {
        if self.is_good { Ok(()) } else { Err(OpError::Unavailable) }
    }
}

/// The asking side of the task that writes.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    asked: mpsc::Sender<()>,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Heartbeat {
    /// Starts the task that writes. It ends when every asking side is dropped, or when it is stopped.
    #[must_use]
    pub fn start(connector: &Connector, server: Uuid, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        // One request is as good as many.
        let (asked, inbox) = mpsc::channel(1);
        let (publish, outcome) = watch::channel(None);
        let session = Session::new(connector.clone());
        let writer = Writer { session, server, outcome: publish };
        let until = stop.clone();
        essential::spawn(tasks, async move {
            let cut = async {
                until.cancelled().await;
                tokio::time::sleep(LAST_WRITE_MAX).await;
            };
            tokio::select! {
                () = writer.run(inbox, &until) => {}
                () = cut => {}
            }
        });
        Self { asked, outcome }
    }

    /// Whether a write is committed now.
    ///
    /// # Errors
    /// If it is not, or not in time.
    pub async fn beat(&self) -> Result<(), OpError> {
        let mut outcome = self.outcome.clone();
        let last = *outcome.borrow_and_update();
        if let Some(last) = last.filter(|last| last.answers_now()) {
            return last.result();
        }
        // Full: a write that begins after this was asked for already.
        let _ = self.asked.try_send(());
        match tokio::time::timeout(ANSWER_MAX, outcome.changed()).await {
            Ok(Ok(())) => outcome.borrow().map_or(Err(OpError::Unavailable), Outcome::result),
            Ok(Err(_)) | Err(_) => Err(OpError::Unavailable),
        }
    }
}

struct Writer {
    session: Session,
    server: Uuid,
    outcome: watch::Sender<Option<Outcome>>,
}

impl Writer {
    async fn run(mut self, mut inbox: mpsc::Receiver<()>, stop: &CancellationToken) {
        let mut failing = false;
        while let Some(Some(())) = stop.run_until_cancelled(inbox.recv()).await {
            // Asked while the last write was under way, whose outcome answers it.
            if self.outcome.borrow().is_some_and(Outcome::answers_now) {
                continue;
            }
            let written = tokio::time::timeout(WRITE_MAX, self.write()).await;
            let error = match written {
                Ok(Ok(true)) => None,
                Ok(Ok(false)) => Some(NO_ROW.to_owned()),
                Ok(Err(failure)) => Some(failure.error().to_string()),
                Err(_) => Some(format!("no answer within {} s", WRITE_MAX.as_secs())),
            };
            // Logged once, not at every write while the database is unavailable.
            match &error {
                Some(error) if !failing => tracing::warn!(error, "the heartbeat fails: no write is committed"),
                None if failing => tracing::info!("the heartbeat works again"),
                Some(_) | None => {}
            }
            failing = error.is_some();
            self.outcome.send_replace(Some(Outcome { is_good: !failing, at: Instant::now() }));
        }
        self.session.close().await;
    }

    /// Whether anything was written: the server may have no row.
    async fn write(&mut self) -> Result<bool, Failure> {
        let server = self.server;
        let written = self.session.run(async |conn| servers::beat(conn, server).await).await;
        let written = match written {
            // A session of before an outage: to write twice is as good as once.
            Err(Failure::Lost(_)) => self.session.run(async |conn| servers::beat(conn, server).await).await,
            written => written,
        };
        written.map(|any| any.is_some())
    }
}
