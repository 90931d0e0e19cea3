//! The heartbeat: tells monitors whether a write commits now.
//!
//! Anyone may call it without credentials, as often as they like. All callers share one session,
//! which writes on demand and at most every two seconds. The beats of
//! [`election`](crate::background::election) write the same row but may wait for locks, so they do
//! not count here. Only they insert a purged row: a cancelled heartbeat may still commit after the
//! server has left.

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

/// How long a success is cached.
const GOOD_FOR: Duration = Duration::from_secs(2);
/// How long a failure is cached: the time callers are told to wait.
const BAD_FOR: Duration = Duration::from_secs(1);
/// Maximum wait of a caller.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Timeout of a write, connecting included; then its session is dropped, because the network may
/// have lost it.
const WRITE_MAX: Duration = Duration::from_secs(8);
/// Maximum wait at shutdown for a write in progress.
const LAST_WRITE_MAX: Duration = Duration::from_secs(1);
const NO_ROW: &str = "this server's row was purged; its next beat inserts it";

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

#[derive(Debug, Clone)]
pub struct Heartbeat {
    asked: mpsc::Sender<()>,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Heartbeat {
    /// Starts the writing task. It ends with the last handle or `stop`.
    #[must_use]
    pub fn start(connector: &Connector, server: Uuid, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        // One pending request serves all callers.
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

    /// Returns once a write has committed. Fails if none does in time.
    pub async fn beat(&self) -> Result<(), OpError> {
        let mut outcome = self.outcome.clone();
        let last = *outcome.borrow_and_update();
        if let Some(last) = last.filter(|last| last.answers_now()) {
            return last.result();
        }
        // If the channel is full, a write that starts later is already pending.
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
            // The write that just ended also answers this request.
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
            // Logged once per outage.
            match &error {
                Some(error) if !failing => tracing::warn!(error, "the heartbeat fails: the database commits no writes"),
                None if failing => tracing::info!("the heartbeat works again"),
                Some(_) | None => {}
            }
            failing = error.is_some();
            self.outcome.send_replace(Some(Outcome { is_good: !failing, at: Instant::now() }));
        }
        self.session.close().await;
    }

    /// Returns false if the server has no row.
    async fn write(&mut self) -> Result<bool, Failure> {
        let server = self.server;
        let written = self.session.run(async |conn| servers::beat(conn, server).await).await;
        let written = match written {
            // The session may predate an outage. Writing twice is harmless.
            Err(Failure::Lost(_)) => self.session.run(async |conn| servers::beat(conn, server).await).await,
            written => written,
        };
        written.map(|any| any.is_some())
    }
}
