//! A consumer: claims the tasks of a queue, keeps their leases, and has a handler do them.
//!
//! ```no_run
//! use tenure_client::Client;
//! use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
//!
//! #[derive(serde::Deserialize)]
//! struct Email { to: String }
//!
//! async fn send(email: &Email) -> std::io::Result<()> { println!("to {}", email.to); Ok(()) }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let consumer = Consumer::builder(Client::from_env()?, "acme/mail".parse()?)
//!     .name("eu", "mail-1").capacity(8)
//!     .handler(|job: Job<Email>, stop: Stop| async move {
//!         tokio::select! {
//!             sent = send(job.payload()) => Outcome::of(sent),            // Ok: completed, Err: failed
//!             () = stop.requested() => Outcome::Release { after: None },  // another worker begins anew
//!         }
//!     })
//!     .build()?;
//! consumer.run_until(tokio::signal::ctrl_c()).await?;
//! # Ok(()) }
//! ```
//!
//! What it takes care of:
//!
//! - **One run, one worker.** A claim is renewed at ¾ of its lease, by the server's dates and the monotonic clock. If that fails, or
//!   the [session](ConsumerBuilder::session) cannot be reached, the handler is asked to [stop](Stop) a
//!   [grace](ConsumerBuilder::grace) before the server may give the run to another worker. A run that is refused stops at once, and
//!   nothing more is sent for it. A handler that goes on all the same is counted ([`Status::claims_overrun`]); its report is fenced.
//! - **A dead worker** costs two minutes: its [session](ConsumerBuilder::session) ends, and its tasks go to others.
//! - **A run that ends from outside** (its task was cancelled, its deadline has passed, another worker has it) stops its handler within a
//!   second. [Without a session](ConsumerBuilder::without_session) that is noticed at the next renewal.
//! - **One process has a name.** A consumer that starts takes over the session of its name. The one that had it ends with
//!   [`Error::SessionEnded`], and never takes it back.
//! - **Every outcome is reported** until it is answered or the lease is over. Those of short jobs share requests.
//! - **A log** ([`Job::log`]) can be followed while the handler works, and is an artifact before the job is reported.
//! - **A checkpoint** ([`Job::checkpoint`]) shows how far a job has come, and is where the next run goes on ([`Job::last_checkpoint`]).
//! - **A state machine** around the handler, if that is wanted: [`statemachine`].
//! - **A shutdown** asks all handlers to stop and waits for them, however long they take; then the session is closed.
//! - **Commands** from operators arrive by the session's inbox: freeze, unfreeze, balance, stop a task, shut down.
//! - **Balance**, if it has a [`balancer`]: long tasks move from workers that have many to those that have few.
//!
//! What is left to the handler: to stop when it is asked to. Nothing is ever aborted, because only the handler knows how.
//!
//! It needs a Tenure server: others have neither results nor sessions. With a [`source`] of its own it works at others too.

mod afterwards;
mod alone;
mod balance;
pub mod balancer;
mod builder;
mod by_name;
mod by_source;
mod claims;
mod ended;
mod given;
mod handler;
mod keep;
mod log;
mod offers;
mod outcome;
mod places;
mod progress;
mod report;
mod session;
mod shared;
pub mod source;
pub mod statemachine;
mod status;
mod watch;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tenure_api::ids::{TaskId, TaskQueueId};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use builder::{BuildError, ConsumerBuilder, SESSION_TTL};
pub use ended::EndedRun;
pub use handler::{Handler, HowLost, Job, Stop, StopReason};
pub use log::JobLog;
pub use outcome::{OnPanic, Outcome};
pub use status::{JobState, JobStatus, Status};

use crate::{Client, Error};
use by_source::BySource;
use report::Waitings;
use shared::Shared;
use source::AnySource;

/// Claims the tasks of a queue and has them done. See the [module](self).
#[must_use = "a consumer does nothing until it runs"]
pub struct Consumer {
    shared: Arc<Shared>,
    waiting: Waitings,
    source: Option<Box<dyn AnySource>>,
    ended: CancellationToken,
    /// Says so when it is dropped, also without having run.
    ends: DropGuard,
}

/// Another way to a consumer that runs. Cheap to clone.
#[derive(Clone)]
pub struct ConsumerHandle {
    shared: Arc<Shared>,
    ended: CancellationToken,
}

impl Consumer {
    /// Begins a consumer of this queue's tasks. The client needs the scopes of claimWork: `queue:claim-work:<queue>` and
    /// `queue:worker-id:<group>/<id>`. In a queue that assigns its runs it also needs `queue:claim-task:<queue>`, and a
    /// [session](ConsumerBuilder::session), which it has by default.
    ///
    /// ```
    /// # use tenure_client::Client;
    /// # use tenure_client::consumer::Consumer;
    /// # fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Consumer::builder(client, "acme/mail".parse()?);
    /// # drop(builder);
    /// # Ok(()) }
    /// ```
    pub fn builder(client: Client, queue: TaskQueueId) -> ConsumerBuilder {
        ConsumerBuilder::new(client, queue)
    }

    fn new(shared: Arc<Shared>, waiting: Waitings, source: Option<Box<dyn AnySource>>) -> Self {
        let ended = CancellationToken::new();
        let ends = ended.clone().drop_guard();
        Self { shared, waiting, source, ended, ends }
    }

    /// Another way to this consumer, for as long as it runs.
    ///
    /// ```
    /// # use tenure_client::consumer::Consumer;
    /// # fn example(consumer: &Consumer) {
    /// let handle = consumer.handle();
    /// # drop(handle);
    /// # }
    /// ```
    #[must_use]
    pub fn handle(&self) -> ConsumerHandle {
        ConsumerHandle { shared: Arc::clone(&self.shared), ended: self.ended.clone() }
    }

    /// Works until it is asked to shut down, by its [handle](ConsumerHandle::shutdown) or by a command, and all jobs have ended. If the
    /// returned future is dropped instead, handlers are aborted and their runs end with their leases.
    ///
    /// # Errors
    /// The server refused this worker before it had ever worked, or the [debug port](ConsumerBuilder::debug_port) is taken. Or another
    /// process has its name and took its session over ([`Error::SessionEnded`]). Other troubles are logged and waited out.
    ///
    /// ```no_run
    /// # async fn example(consumer: tenure_client::consumer::Consumer) -> Result<(), tenure_client::Error> {
    /// consumer.run().await
    /// # }
    /// ```
    pub async fn run(self) -> Result<(), Error> {
        let Self { shared, waiting, source, ends, .. } = self;
        let debug = status::listen(&shared).await?;
        shared.started.get_or_init(|| shared.settings.client.now());
        let (source, waiting) = match source {
            Some(source) => (Some(BySource { source, reports: waiting }), None),
            None => (None, Some(waiting)),
        };
        let claims = async {
            let worked = claims::run(&shared, source).await;
            shared.closing.cancel();
            worked
        };
        let sessions = async {
            let worked = session::run(&shared).await;
            if worked.is_err() {
                shared.shutdown.cancel();
            }
            worked
        };
        let both = async { tokio::join!(claims, sessions) };
        let (claimed, attended) = tokio::select! {
            worked = both => worked,
            () = report::run(&shared.settings, waiting) => unreachable!("`shared` has a sender of reports"),
            () = balance::run(&shared) => unreachable!("it has no end"),
            () = places::run(&shared) => unreachable!("it has no end"),
            () = status::serve(&shared, debug) => unreachable!("it has no end"),
        };
        drop(ends);
        attended.and(claimed)
    }

    /// Works until then, and as long as it takes to shut down.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// ```no_run
    /// # async fn example(consumer: tenure_client::consumer::Consumer) -> Result<(), tenure_client::Error> {
    /// consumer.run_until(tokio::signal::ctrl_c()).await
    /// # }
    /// ```
    pub async fn run_until(self, until: impl Future) -> Result<(), Error> {
        let shutdown = self.shared.shutdown.clone();
        let run = self.run();
        tokio::pin!(run);
        tokio::select! {
            worked = &mut run => return worked,
            _ = until => shutdown.cancel(),
        }
        run.await
    }
}

impl ConsumerHandle {
    /// What the consumer is doing.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerHandle;
    /// # fn example(handle: &ConsumerHandle) { println!("{} jobs", handle.status().tasks.len()); }
    /// ```
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Where [`GET /debug`](ConsumerBuilder::debug_port) is answered, once the consumer runs.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerHandle;
    /// # fn example(handle: &ConsumerHandle) -> Option<std::net::SocketAddr> { handle.debug_address() }
    /// ```
    #[must_use]
    pub fn debug_address(&self) -> Option<SocketAddr> {
        self.shared.debug_address.get().copied()
    }

    /// Takes no more tasks until [`unfreeze`](Self::unfreeze); jobs go on. It lasts as long as this consumer.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerHandle;
    /// # fn example(handle: &ConsumerHandle) { handle.freeze(); }
    /// ```
    pub fn freeze(&self) {
        self.shared.freeze(true);
    }

    /// Takes tasks again.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerHandle;
    /// # fn example(handle: &ConsumerHandle) { handle.unfreeze(); }
    /// ```
    pub fn unfreeze(&self) {
        self.shared.freeze(false);
    }

    /// Balances now, frozen or not; without a [balancer](ConsumerBuilder::balancer) that is nothing. Returns at once.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerHandle;
    /// # fn example(handle: &ConsumerHandle) { handle.balance(); }
    /// ```
    pub fn balance(&self) {
        self.shared.balance.notify_one();
    }

    /// Asks the job of a task to stop, for [`StopReason::Command`]; false if there is none. May be called any number of times.
    ///
    /// ```
    /// # use tenure_client::consumer::{ConsumerHandle, Job};
    /// # fn example(handle: &ConsumerHandle, job: &Job) { handle.stop_task(job.task_id()); }
    /// ```
    pub fn stop_task(&self, task_id: TaskId) -> bool {
        self.shared.stop_task(task_id)
    }

    /// Asks the consumer to shut down: it claims no more, asks all jobs to stop, and waits for them. Returns when it has ended; it goes on
    /// also if this is not waited for to the end. May be called any number of times.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerHandle;
    /// # async fn example(handle: &ConsumerHandle) { handle.shutdown().await; }
    /// ```
    pub async fn shutdown(&self) {
        self.shared.shutdown.cancel();
        self.ended.cancelled().await;
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("status", &self.shared.status()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ConsumerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerHandle").field("status", &self.shared.status()).finish_non_exhaustive()
    }
}
