//! Sources of work other than the consumer's own calls: [`Source`].
//!
//! A source finds work; the consumer does the rest. It requests no more than its free capacity.
//! Results that arrive while the source is busy may go with its next call for work. Others are
//! reported separately, with the run's credentials, by the calls of the Queue API. A consumer with
//! [`ClaimWork`] therefore works with any server of that API:
//!
//! ```no_run
//! use tenure_client::consumer::source::ClaimWork;
//! use tenure_client::consumer::{Consumer, Job, Stop};
//! use tenure_client::{Client, WorkerName};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let (client, queue) = (Client::from_env()?, "acme/linux".parse()?);
//! let me = WorkerName { group: "eu".parse()?, id: "linux-1".parse()? };
//! let consumer = Consumer::builder(client.clone(), "acme/linux".parse()?)
//!     .name("eu", "linux-1")
//!     .source(ClaimWork::new(client, queue, me))
//!     .handler(|job: Job, _stop: Stop| async move { println!("{}", job.task_id()) })
//!     .build()?;
//! consumer.run_until(tokio::signal::ctrl_c()).await?;
//! # Ok(()) }
//! ```

use std::any::Any;
use std::pin::Pin;
use std::time::Duration;

use tenure_api::ids::{SessionId, TaskQueueId};
use tokio::time::Instant;

use super::settings::Settings;
use crate::claim::CLAIM_TIMEOUT;
use crate::{Claim, Client, Error, RetryPolicy, RunResult, Worked, WorkerName};

/// Between empty calls, in case the server does not wait for tasks.
const CLAIM_INTERVAL: Duration = Duration::from_millis(500);
/// Time for an answer beyond the wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// For a call unknown to the server: a proxy may have answered, or a newer server may follow.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(300);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Finds work for a consumer. Set by [`ConsumerBuilder::source`](super::ConsumerBuilder::source).
///
/// ```
/// use std::collections::VecDeque;
/// use tenure_client::consumer::source::{Found, Source};
/// use tenure_client::{Client, Error, RunId, TaskId, WorkerName};
///
/// /// Works on runs that another program has chosen.
/// struct Chosen { client: Client, me: WorkerName, runs: VecDeque<(TaskId, RunId)> }
///
/// impl Source for Chosen {
///     async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
///         let chosen: Vec<_> = self.runs.drain(..room.min(self.runs.len())).collect();
///         let claims = chosen.into_iter().map(|(task, run)| {
///             let (client, me) = (self.client.clone(), self.me.clone());
///             // A run that cannot be claimed is no work, but no failure either.
///             Found::to_claim(async move { Ok(client.claim_task(task, run, &me).await.ok().map(|claim| (claim, ()))) })
///         });
///         Ok(claims.collect())
///     }
/// }
/// ```
pub trait Source: Send + 'static {
    /// Searches once for up to `room` runs, and may wait for them. The future is dropped at a
    /// shutdown.
    ///
    /// # Errors
    /// The consumer searches again with a backoff, unless [`is_refused`](Self::is_refused).
    fn find(&mut self, room: usize) -> impl Future<Output = Result<Vec<Found>, Error>> + Send;

    /// Sets the session of further claims, if the consumer [has
    /// one](super::ConsumerBuilder::session). Called before each search.
    fn join(&mut self, session: Option<SessionId>) {
        let _ = session;
    }

    /// True if results may go with a call for work: [`exchange`](Self::exchange).
    fn takes_results(&self) -> bool {
        false
    }

    /// Reports results and searches once, without waiting. Unanswered results are reported
    /// separately.
    ///
    /// # Errors
    /// As in [`find`](Self::find); results may have been stored.
    fn exchange(&mut self, results: &[RunResult], room: usize) -> impl Future<Output = Result<Worked, Error>> + Send {
        let _ = (results, room);
        std::future::ready(Ok(Worked { results: Vec::new(), claims: Vec::new() }))
    }

    /// Pauses searches until this time, for example on a machine without free resources.
    fn not_before(&mut self) -> Option<Instant> {
        None
    }

    /// True if this worker may not work at all. The consumer then returns the error.
    fn is_refused(&self, error: &Error) -> bool {
        let _ = error;
        false
    }

    /// Time of the next search after an empty one.
    fn rest_until(&self, begun: Instant) -> Instant {
        begun + CLAIM_INTERVAL
    }

    /// No more searches follow. Claims in progress are still awaited.
    fn stop(&mut self) {}

    /// Ends background work, after all jobs.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A claimed or probably claimable run. It counts against the capacity from now on.
///
/// ```
/// use tenure_client::Claim;
/// use tenure_client::consumer::source::Found;
///
/// fn found(claims: Vec<Claim>) -> Vec<Found> {
///     claims.into_iter().map(Found::claimed).collect()
/// }
/// ```
pub struct Found(Boxed<'static, Claimed>);

/// The value is kept until the job ends. None if the run cannot be claimed.
pub(super) type Claimed = Result<Option<(Claim, Box<dyn Any + Send>)>, Error>;

impl Found {
    /// Returns a run that is claimed already.
    ///
    /// ```
    /// # use tenure_client::consumer::source::Found;
    /// # fn example(claim: tenure_client::Claim) -> Found {
    /// Found::claimed(claim)
    /// # }
    /// ```
    #[must_use]
    pub fn claimed(claim: Claim) -> Self {
        Self::to_claim(std::future::ready(Ok(Some((claim, ())))))
    }

    /// Claims a run concurrently with further searches. The value beside the claim is dropped when
    /// the job ends. An error ends the consumer: return one only if the worker may not claim at
    /// all.
    ///
    /// ```
    /// # use tenure_client::consumer::source::Found;
    /// # use tenure_client::{Client, RunId, TaskId, WorkerName};
    /// # fn example(client: Client, me: WorkerName, task_id: TaskId, run_id: RunId) -> Found {
    /// Found::to_claim(async move {
    ///     // None if another worker was first.
    ///     Ok(client.claim_task(task_id, run_id, &me).await.ok().map(|claim| (claim, ())))
    /// })
    /// # }
    /// ```
    pub fn to_claim<G: Send + 'static>(
        claim: impl Future<Output = Result<Option<(Claim, G)>, Error>> + Send + 'static,
    ) -> Self {
        Self(Box::pin(async move {
            let claimed = claim.await?;
            Ok(claimed.map(|(claim, kept)| (claim, Box::new(kept) as Box<dyn Any + Send>)))
        }))
    }

    pub(super) async fn claim(self) -> Claimed {
        self.0.await
    }
}

/// Calls for work of any server of the Queue API. Results go with them if the server is Tenure.
///
/// ```
/// # use tenure_client::consumer::ConsumerBuilder;
/// # use tenure_client::{Client, TaskQueueId, WorkerName};
/// use tenure_client::consumer::source::ClaimWork;
///
/// # fn example(
/// #     builder: ConsumerBuilder, client: Client, queue: TaskQueueId, me: WorkerName,
/// # ) -> ConsumerBuilder {
/// builder.source(ClaimWork::new(client, queue, me))
/// # }
/// ```
pub struct ClaimWork {
    client: Client,
    queue: TaskQueueId,
    name: WorkerName,
    session: Option<SessionId>,
    answers_within: Duration,
    answered: bool,
    /// Results are reported separately until this time, because the server did not know the call
    /// for both.
    unknown_until: Option<Instant>,
}

impl ClaimWork {
    /// `name` must be the consumer's.
    ///
    /// ```
    /// # use tenure_client::consumer::source::ClaimWork;
    /// # fn example(client: tenure_client::Client) -> Result<(), tenure_client::InvalidId> {
    /// let me = tenure_client::WorkerName { group: "eu".parse()?, id: "linux-1".parse()? };
    /// let source = ClaimWork::new(client, "acme/linux".parse()?, me);
    /// # drop(source);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn new(client: Client, queue: TaskQueueId, name: WorkerName) -> Self {
        let session = None;
        Self { client, queue, name, session, answers_within: CLAIM_TIMEOUT, answered: false, unknown_until: None }
    }
}

fn member(client: &Client, session: Option<SessionId>) -> Client {
    session.map_or_else(|| client.clone(), |session| client.with_session(session))
}

impl Source for ClaimWork {
    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        match member(&self.client, self.session)
            .claim_work_within(self.answers_within, &self.queue, &self.name, room, None)
            .await
        {
            Ok(claims) => {
                self.answered = true;
                Ok(claims.into_iter().map(Found::claimed).collect())
            }
            // The server may wait longer. A backoff would only delay later tasks.
            Err(Error::Network(error)) if error.is_timeout() && !error.is_connect() => {
                warning!("no answer to the call for work in time; trying again");
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    fn join(&mut self, session: Option<SessionId>) {
        self.session = session;
    }

    fn takes_results(&self) -> bool {
        self.unknown_until.is_none_or(|until| until <= Instant::now())
    }

    async fn exchange(&mut self, results: &[RunResult], room: usize) -> Result<Worked, Error> {
        // Sent once: unanswered results are reported separately, with retries.
        let client = member(&self.client, self.session).with_retry_policy(RetryPolicy::never());
        match client.work(&self.queue, &self.name, results, room, Duration::ZERO).await {
            Err(Error::Refused { status: 404 | 405, .. }) => {
                if self.unknown_until.is_none() {
                    tracing::info!("the queue does not accept results with a call for work: reporting each by itself");
                }
                self.unknown_until = Some(Instant::now() + ASK_AGAIN_AFTER);
                Ok(Worked { results: Vec::new(), claims: Vec::new() })
            }
            answer => answer,
        }
    }

    /// After a success a refusal counts as temporary.
    fn is_refused(&self, error: &Error) -> bool {
        !self.answered && matches!(error, Error::Refused { status: 401 | 403, .. })
    }
}

/// Calls for work of a consumer without a source.
pub(super) struct OwnCalls {
    client: Client,
    queue: TaskQueueId,
    name: WorkerName,
    session: Option<SessionId>,
    wait: Duration,
    answered: bool,
}

impl OwnCalls {
    pub(super) fn new(Settings { client, queue, name, wait, .. }: &Settings) -> Self {
        let client = client.with_retry_policy(RetryPolicy::never());
        Self { client, queue: queue.clone(), name: name.clone(), session: None, wait: *wait, answered: false }
    }
}

impl Source for OwnCalls {
    fn takes_results(&self) -> bool {
        true
    }

    async fn exchange(&mut self, results: &[RunResult], room: usize) -> Result<Worked, Error> {
        let client = member(&self.client, self.session);
        let worked = client.work(&self.queue, &self.name, results, room, Duration::ZERO).await?;
        self.answered = true;
        Ok(worked)
    }

    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        let client = member(&self.client, self.session);
        let call = client.work(&self.queue, &self.name, &[], room, self.wait);
        let Ok(answer) = tokio::time::timeout(self.wait + ANSWER_WITHIN, call).await else {
            warning!("no answer to the call for work in time; trying again");
            return Ok(Vec::new());
        };
        let worked = answer?;
        self.answered = true;
        Ok(worked.claims.into_iter().map(Found::claimed).collect())
    }

    fn join(&mut self, session: Option<SessionId>) {
        self.session = session;
    }

    fn is_refused(&self, error: &Error) -> bool {
        !self.answered && error.refuses_worker()
    }
}

pub(super) trait AnySource: Send {
    fn find(&mut self, room: usize) -> Boxed<'_, Result<Vec<Found>, Error>>;
    fn join(&mut self, session: Option<SessionId>);
    fn takes_results(&self) -> bool;
    fn exchange<'a>(&'a mut self, results: &'a [RunResult], room: usize) -> Boxed<'a, Result<Worked, Error>>;
    fn not_before(&mut self) -> Option<Instant>;
    fn is_refused(&self, error: &Error) -> bool;
    fn rest_until(&self, begun: Instant) -> Instant;
    fn stop(&mut self);
    fn close(&mut self) -> Boxed<'_, ()>;
}

impl<S: Source> AnySource for S {
    fn find(&mut self, room: usize) -> Boxed<'_, Result<Vec<Found>, Error>> {
        Box::pin(Source::find(self, room))
    }

    fn join(&mut self, session: Option<SessionId>) {
        Source::join(self, session);
    }

    fn takes_results(&self) -> bool {
        Source::takes_results(self)
    }

    fn exchange<'a>(&'a mut self, results: &'a [RunResult], room: usize) -> Boxed<'a, Result<Worked, Error>> {
        Box::pin(Source::exchange(self, results, room))
    }

    fn not_before(&mut self) -> Option<Instant> {
        Source::not_before(self)
    }

    fn is_refused(&self, error: &Error) -> bool {
        Source::is_refused(self, error)
    }

    fn rest_until(&self, begun: Instant) -> Instant {
        Source::rest_until(self, begun)
    }

    fn stop(&mut self) {
        Source::stop(self);
    }

    fn close(&mut self) -> Boxed<'_, ()> {
        Box::pin(Source::close(self))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn answer_as_proxy(listener: TcpListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            // The body has no nested objects.
            while !request.ends_with(b"}") && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
            let answer = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 7\r\n\r\n<html/>";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn unknown_call_is_tried_again_after_interval() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::builder().root_url(&format!("http://{}", listener.local_addr().unwrap())).build().unwrap();
        let serving = tokio::spawn(answer_as_proxy(listener));
        let name = WorkerName { group: "group".parse().unwrap(), id: "worker".parse().unwrap() };
        let mut source = ClaimWork::new(client, "p/q".parse().unwrap(), name);
        assert!(Source::takes_results(&source));
        let worked = Source::exchange(&mut source, &[], 1).await.unwrap();
        assert_eq!((worked.results.len(), worked.claims.len()), (0, 0));
        assert!(!Source::takes_results(&source));
        let until = source.unknown_until.unwrap();
        assert!(until <= Instant::now() + ASK_AGAIN_AFTER);
        source.unknown_until = until.checked_sub(ASK_AGAIN_AFTER);
        assert!(Source::takes_results(&source));
        serving.abort();
    }

    #[tokio::test]
    async fn call_for_work_that_times_out_finds_none() {
        // Accepts connections and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::builder().root_url(&format!("http://{}", listener.local_addr().unwrap()));
        let client = client.retry_policy(RetryPolicy::never()).build().unwrap();
        let name = WorkerName { group: "group".parse().unwrap(), id: "worker".parse().unwrap() };
        let mut source = ClaimWork::new(client, "p/q".parse().unwrap(), name);
        source.answers_within = Duration::from_millis(100);
        assert!(Source::find(&mut source, 1).await.unwrap().is_empty());
        // A refused connection is an error.
        drop(listener);
        assert!(Source::find(&mut source, 1).await.is_err());
    }
}
