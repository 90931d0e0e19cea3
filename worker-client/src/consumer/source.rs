//! Where the work of a consumer comes from, if not from its own calls: [`Source`].
//!
//! A source looks for work, and the consumer does all else: it asks for no more than there is room for, keeps the leases, has the handler
//! do the jobs, and reports them. What ends while the source is busy may go with its next call for work; all else is reported by itself, with
//! the credentials of the run, by the calls that every queue of this kind has. So a consumer with [`ClaimWork`] works at any
//! server that speaks the Taskcluster Queue API:
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

/// The least time between two calls for work that find none, in case the server does not wait for work to appear.
const CLAIM_INTERVAL: Duration = Duration::from_millis(500);
/// How much longer than it is to wait a call for work may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A server that does not know the call that takes results is asked again after this: it may have been a proxy whose server was away, or a
/// server that is replaced by a newer one.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(300);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Looks for the work of a consumer. Set by [`ConsumerBuilder::source`](super::ConsumerBuilder::source).
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
///             // One that is not to be had is no work, and no failure either.
///             Found::to_claim(async move { Ok(client.claim_task(task, run, &me).await.ok().map(|claim| (claim, ()))) })
///         });
///         Ok(claims.collect())
///     }
/// }
/// ```
pub trait Source: Send + 'static {
    /// Looks for work once, for so many runs at the most. It may wait for some to come; it is dropped at a shutdown.
    ///
    /// # Errors
    /// Nothing was found out. The consumer asks again after a pause that grows, unless the error [refuses](Self::is_refused) it.
    fn find(&mut self, room: usize) -> impl Future<Output = Result<Vec<Found>, Error>> + Send;

    /// Sets the session that claims belong to from now on, before each search: none if the consumer has none. A source that claims for a
    /// consumer [with a session](super::ConsumerBuilder::session) names it in its claims.
    fn join(&mut self, session: Option<SessionId>) {
        let _ = session;
    }

    /// Whether results may go with a call for work: [`exchange`](Self::exchange).
    fn takes_results(&self) -> bool {
        false
    }

    /// Reports what has ended, and looks for work once, without waiting. A result without an answer is reported by itself.
    ///
    /// # Errors
    /// As of [`find`](Self::find); results may have been stored.
    fn exchange(&mut self, results: &[RunResult], room: usize) -> impl Future<Output = Result<Worked, Error>> + Send {
        let _ = (results, room);
        std::future::ready(Ok(Worked { results: Vec::new(), claims: Vec::new() }))
    }

    /// Until when there is to be no call for work; none to go ahead. For a machine that has no room for more now.
    fn not_before(&mut self) -> Option<Instant> {
        None
    }

    /// Whether an error means that this worker may not work at all: then the consumer ends with it.
    fn is_refused(&self, error: &Error) -> bool {
        let _ = error;
        false
    }

    /// When to look again after a search that began at `begun` and has just found nothing.
    fn rest_until(&self, begun: Instant) -> Instant {
        begun + CLAIM_INTERVAL
    }

    /// There will be no more calls: the consumer shuts down, or was refused. What is being claimed is still waited for.
    fn stop(&mut self) {}

    /// Ends what still goes on in the background. All jobs have ended by then.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What was found: a run that is ours, or one that can probably be claimed. It takes up room from now on.
pub struct Found(Boxed<'static, Claimed>);

/// What is claimed, and what is kept while it is worked on; none if it is not to be had.
pub(super) type Claimed = Result<Option<(Claim, Box<dyn Any + Send>)>, Error>;

impl Found {
    /// A run that is ours.
    #[must_use]
    pub fn claimed(claim: Claim) -> Self {
        Self::to_claim(std::future::ready(Ok(Some((claim, ())))))
    }

    /// A run that is claimed like this, beside the next calls for work. What comes with the claim is dropped when the consumer is done with
    /// the job. An error ends the consumer: it is for a worker that may not claim at all.
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

/// Calls for work that give claims, of any server that speaks the Queue API. Results go with them if the server is Tenure.
pub struct ClaimWork {
    client: Client,
    queue: TaskQueueId,
    name: WorkerName,
    session: Option<SessionId>,
    /// How long a call for work may take.
    answers_within: Duration,
    /// Whether one was ever answered.
    answered: bool,
    /// Until when results do not go with calls for work, because the server did not know the call that takes them.
    unknown_until: Option<Instant>,
}

impl ClaimWork {
    /// Claims the tasks of this queue under this name, which has to be that of the consumer.
    #[must_use]
    pub fn new(client: Client, queue: TaskQueueId, name: WorkerName) -> Self {
        let session = None;
        Self { client, queue, name, session, answers_within: CLAIM_TIMEOUT, answered: false, unknown_until: None }
    }
}

/// The client for claims of this session.
fn member(client: &Client, session: Option<SessionId>) -> Client {
    session.map_or_else(|| client.clone(), |session| client.with_session(session))
}

impl Source for ClaimWork {
    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        match member(&self.client, self.session)
            .claim_work_within(self.answers_within, &self.queue, &self.name, room)
            .await
        {
            Ok(claims) => {
                self.answered = true;
                Ok(claims.into_iter().map(Found::claimed).collect())
            }
            // A server may be set to wait for work for longer. A pause that grows would only delay what comes then.
            Err(Error::Network(error)) if error.is_timeout() && !error.is_connect() => {
                tracing::warn!("no answer to the call for work in time; trying again");
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
        // Sent once: what gets no answer is reported by itself, for as long as it takes.
        let client = member(&self.client, self.session).with_retry_policy(RetryPolicy::never());
        match client.work(&self.queue, &self.name, results, room, Duration::ZERO).await {
            Err(Error::Refused { status: 404 | 405, .. }) => {
                if self.unknown_until.is_none() {
                    tracing::info!("the queue takes no results with a call for work: each is reported by itself");
                }
                self.unknown_until = Some(Instant::now() + ASK_AGAIN_AFTER);
                Ok(Worked { results: Vec::new(), claims: Vec::new() })
            }
            answer => answer,
        }
    }

    /// What has worked once is only in trouble.
    fn is_refused(&self, error: &Error) -> bool {
        !self.answered && matches!(error, Error::Refused { status: 401 | 403, .. })
    }
}

/// The calls for work of a consumer without a source.
pub(super) struct OwnCalls {
    client: Client,
    queue: TaskQueueId,
    name: WorkerName,
    session: Option<SessionId>,
    /// How long the server waits for work.
    wait: Duration,
    /// Whether one was ever answered.
    answered: bool,
}

impl OwnCalls {
    pub(super) fn new(Settings { client, queue, name, wait, .. }: &Settings) -> Self {
        let client = client.with_retry_policy(RetryPolicy::never());
        Self { client, queue: queue.clone(), name: name.clone(), session: None, wait: *wait, answered: false }
    }
}

impl Source for OwnCalls {
    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        let client = member(&self.client, self.session);
        let call = client.work(&self.queue, &self.name, &[], room, self.wait);
        let Ok(answer) = tokio::time::timeout(self.wait + ANSWER_WITHIN, call).await else {
            tracing::warn!("no answer to the call for work in time; trying again");
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

/// A source of whatever type.
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

    /// Answers each request as a proxy does whose server is away.
    async fn answer_as_proxy(listener: TcpListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            // Its body is one object, without others in it.
            while !request.ends_with(b"}") && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
            let answer = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 7\r\n\r\n<html/>";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_know_the_call_is_asked_again_after_a_while() {
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
        // The time is over.
        source.unknown_until = until.checked_sub(ASK_AGAIN_AFTER);
        assert!(Source::takes_results(&source));
        serving.abort();
    }

    #[tokio::test]
    async fn a_server_that_waits_for_work_for_longer_than_its_answer_may_take_has_none() {
        // It takes connections, and answers nothing.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::builder().root_url(&format!("http://{}", listener.local_addr().unwrap()));
        let client = client.retry_policy(RetryPolicy::never()).build().unwrap();
        let name = WorkerName { group: "group".parse().unwrap(), id: "worker".parse().unwrap() };
        let mut source = ClaimWork::new(client, "p/q".parse().unwrap(), name);
        source.answers_within = Duration::from_millis(100);
        assert!(Source::find(&mut source, 1).await.unwrap().is_empty());
        // One that is away is no such server.
        drop(listener);
        assert!(Source::find(&mut source, 1).await.is_err());
    }
}
