//! A running consumer and its handle.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tenure_api::ids::TaskId;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::inner::{Inner, Started};
use super::source::AnySource;
use super::status::{self, Status};
use super::{balance, claims, outbox, session};
use crate::Error;
use crate::debug::Debug;

/// Claims tasks of a queue and runs them. See the [module](super).
///
/// ```no_run
/// use tenure_client::consumer::{Consumer, Job, Stop};
///
/// # async fn example(client: tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let consumer = Consumer::builder(client, "acme/mail".parse()?)
///     .name("eu", "mail-1")
///     .handler(|job: Job, _stop: Stop| async move { println!("{}", job.payload()) })
///     .build()?;
/// consumer.run_until(tokio::signal::ctrl_c()).await?;
/// # Ok(()) }
/// ```
#[must_use = "a consumer does nothing until it runs"]
pub struct Consumer {
    pub(super) inner: Arc<Inner>,
    source: Option<Box<dyn AnySource>>,
    ended: CancellationToken,
    /// Cancels `ended` when dropped.
    ends: DropGuard,
}

/// Handle of a running consumer. Cheap to clone.
///
/// ```no_run
/// # use tenure_client::consumer::ConsumerHandle;
/// # async fn example(handle: ConsumerHandle) {
/// handle.freeze();
/// println!("{} jobs are left", handle.status().tasks.len());
/// handle.shutdown().await;
/// # }
/// ```
#[derive(Clone)]
pub struct ConsumerHandle {
    inner: Arc<Inner>,
    ended: CancellationToken,
}

impl Consumer {
    pub(super) fn new(inner: Inner, source: Option<Box<dyn AnySource>>) -> Self {
        let ended = CancellationToken::new();
        let ends = ended.clone().drop_guard();
        Self { inner: Arc::new(inner), source, ended, ends }
    }

    /// Returns a handle, for example for another task.
    ///
    /// ```no_run
    /// # async fn example(consumer: tenure_client::consumer::Consumer) -> Result<(), tenure_client::Error> {
    /// let handle = consumer.handle();
    /// tokio::spawn(async move {
    ///     drop(tokio::signal::ctrl_c().await);
    ///     handle.shutdown().await;
    /// });
    /// consumer.run().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn handle(&self) -> ConsumerHandle {
        ConsumerHandle { inner: Arc::clone(&self.inner), ended: self.ended.clone() }
    }

    /// Works until a shutdown by the [handle](ConsumerHandle::shutdown) or a command, and until all
    /// jobs have ended. If the future is dropped instead, handlers are aborted and their runs end
    /// with their leases.
    ///
    /// # Errors
    /// The server refused this worker before it had ever worked, the [debug
    /// port](super::ConsumerBuilder::debug_port) is taken, or another process took over the session
    /// of this name ([`Error::SessionEnded`]). Other failures are retried.
    ///
    /// ```no_run
    /// # async fn example(consumer: tenure_client::consumer::Consumer) -> Result<(), tenure_client::Error> {
    /// consumer.run().await?; // until a shutdown by a handle or a command
    /// # Ok(()) }
    /// ```
    pub async fn run(self) -> Result<(), Error> {
        let Self { inner, source, ends, .. } = self;
        let debug = status::listen(&inner).await?;
        let debug_address = debug.as_ref().map(Debug::address);
        inner.started.get_or_init(|| Started { at: inner.settings.client.now(), debug_address });
        let claims = async {
            let worked = claims::run(&inner, source).await;
            inner.orders.closing.cancel();
            worked
        };
        let sessions = async {
            let worked = session::run(&inner).await;
            if worked.is_err() {
                inner.orders.shutdown.cancel();
            }
            worked
        };
        let both = async { tokio::join!(claims, sessions) };
        let (claimed, attended) = tokio::select! {
            worked = both => worked,
            () = outbox::run(&inner.outbox, &inner.settings) => unreachable!("it has no end"),
            () = balance::run(&inner) => unreachable!("it has no end"),
            () = inner.jobs.follow_places() => unreachable!("it has no end"),
            () = status::serve(&inner, debug) => unreachable!("it has no end"),
        };
        drop(ends);
        attended.and(claimed)
    }

    /// Works until `until` completes, then shuts down.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    ///
    /// ```no_run
    /// # async fn example(consumer: tenure_client::consumer::Consumer) -> Result<(), tenure_client::Error> {
    /// consumer.run_until(tokio::signal::ctrl_c()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run_until(self, until: impl Future) -> Result<(), Error> {
        let shutdown = self.inner.orders.shutdown.clone();
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
    /// Returns the present status.
    ///
    /// ```no_run
    /// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
    /// for job in handle.status().tasks {
    ///     println!("{} since {}", job.task_id, job.started);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn status(&self) -> Status {
        self.inner.status()
    }

    /// Address of [`GET /debug`](super::ConsumerBuilder::debug_port), once the consumer runs.
    ///
    /// ```no_run
    /// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
    /// if let Some(address) = handle.debug_address() {
    ///     println!("http://{address}/debug");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn debug_address(&self) -> Option<SocketAddr> {
        self.inner.started.get()?.debug_address
    }

    /// Stops taking tasks until [`unfreeze`](Self::unfreeze); jobs continue.
    ///
    /// ```no_run
    /// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
    /// handle.freeze();
    /// assert!(handle.status().frozen);
    /// # }
    /// ```
    pub fn freeze(&self) {
        self.inner.orders.freeze(true);
    }

    /// Takes tasks again.
    ///
    /// ```no_run
    /// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
    /// handle.unfreeze();
    /// # }
    /// ```
    pub fn unfreeze(&self) {
        self.inner.orders.freeze(false);
    }

    /// Balances now, even if frozen. Returns at once.
    ///
    /// ```no_run
    /// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
    /// handle.balance();
    /// # }
    /// ```
    pub fn balance(&self) {
        self.inner.orders.balance.notify_one();
    }

    /// Asks the job of a task to stop, with [`StopReason::Command`](super::StopReason::Command).
    /// Returns false if there is none.
    ///
    /// ```no_run
    /// # fn example(handle: &tenure_client::consumer::ConsumerHandle) {
    /// for job in handle.status().tasks {
    ///     handle.stop_task(job.task_id);
    /// }
    /// # }
    /// ```
    pub fn stop_task(&self, task_id: TaskId) -> bool {
        self.inner.jobs.stop_task(task_id)
    }

    /// Stops claiming, asks all jobs to stop, and waits for their end. Dropping the future does not
    /// cancel the shutdown.
    ///
    /// ```no_run
    /// # async fn example(handle: tenure_client::consumer::ConsumerHandle) {
    /// handle.shutdown().await;
    /// println!("all jobs have ended");
    /// # }
    /// ```
    pub async fn shutdown(&self) {
        self.inner.orders.shutdown.cancel();
        self.ended.cancelled().await;
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("status", &self.inner.status()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ConsumerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerHandle").field("status", &self.inner.status()).finish_non_exhaustive()
    }
}
