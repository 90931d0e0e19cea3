//! Claims: a run of a task held for a lease.
//!
//! A claim ends in exactly one report, which consumes it. Losing a claim is an ordinary outcome,
//! [`Lost`]: drop all work done under it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::partitions::PartitionClaim;
use tenure_api::work::{RunOutcome, RunResult};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::{Answer, Call, Own, TIMEOUT, parameter};
use crate::failure::acceptable;
use crate::wire::{ClaimAnswer, ClaimTaskBody, ClaimWorkAnswer, ClaimWorkBody, ReclaimAnswer, StatusAnswer};
use crate::{Client, Error, ExceptionReason, Failure, Lease, Task, TaskStatus};

/// Longer than the server's wait, 20 s by default.
pub(crate) const CLAIM_TIMEOUT: Duration = Duration::from_secs(40);
const CLAIMS_MAX: usize = 32;
/// Share of the remaining lease; leaves time for another attempt.
const TIMEOUT_SHARE: u32 = 3;
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(500);
const NO_BODY: Option<&()> = None;

#[derive(Serialize)]
struct ReportedResult<'a, T> {
    result: &'a T,
}

#[derive(Serialize, Default)]
struct ReportBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<ExceptionReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<bool>,
}

/// Name under which a worker claims.
///
/// ```
/// # use tenure_client::WorkerName;
/// let me = WorkerName { group: "eu".parse()?, id: "mail-1".parse()? };
/// # drop(me);
/// # Ok::<(), tenure_client::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerName {
    /// Group, often a data centre or region.
    pub group: WorkerGroup,
    pub id: WorkerId,
}

/// A run held until its lease ends.
///
/// ```no_run
/// # use tenure_client::{Client, WorkerName};
/// # async fn work(_payload: &str) -> bool { true }
/// # async fn example(client: &Client, me: &WorkerName) -> Result<(), Box<dyn std::error::Error>> {
/// for claim in client.claim_work(&"proj/linux".parse()?, me, 1).await? {
///     let succeeded = work(claim.task().payload.get()).await;
///     let reported = if succeeded { claim.complete().await? } else { claim.fail().await? };
///     println!("{reported:?}");
/// }
/// # Ok(()) }
/// ```
#[must_use = "a claim that is dropped blocks its task until the lease ends"]
pub struct Claim {
    /// Signs with the task's credentials.
    client: Client,
    task_id: TaskId,
    run_id: RunId,
    task: Arc<Task>,
    lease: watch::Sender<Lease>,
    rerun: Option<RunId>,
    attempt: u32,
    traceparent: Option<String>,
}

/// A claim no longer held. Another worker may run the task already.
///
/// ```
/// # fn example(lost: tenure_client::Lost) {
/// println!("drop the work of run {} of task {}: {}", lost.run_id, lost.task_id, lost.because);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub because: LostBecause,
}

/// How the loss of a claim was detected.
///
/// ```
/// use tenure_client::LostBecause;
///
/// let because = LostBecause::Refused { status: 409, message: "the claim has expired".to_owned() };
/// assert_eq!(because.to_string(), "the queue answered 409: the claim has expired");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostBecause {
    /// The server refused a call.
    Refused {
        /// 403, 404, 409 or 410.
        status: u16,
        message: String,
    },
}

impl fmt::Display for LostBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status, message } => write!(f, "the queue answered {status}: {message}"),
        }
    }
}

/// Outcome of [`Claim::reclaim`].
///
/// ```no_run
/// use tenure_client::Renewal;
///
/// # async fn example(claim: &mut tenure_client::Claim) -> Result<(), tenure_client::Error> {
/// match claim.reclaim().await? {
///     Renewal::Renewed => println!("continue"),
///     Renewal::Lost(lost) => println!("stop working: {}", lost.because),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "work on a lost claim must stop"]
pub enum Renewal {
    Renewed,
    Lost(Lost),
}

/// Outcome of a report.
///
/// ```no_run
/// use tenure_client::Reported;
///
/// # async fn example(claim: tenure_client::Claim) -> Result<(), tenure_client::NotReported> {
/// match claim.complete().await? {
///     Reported::Accepted(status) => println!("the task is {}", status.state),
///     Reported::Lost(lost) => println!("drop the work: {}", lost.because),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub enum Reported {
    Accepted(TaskStatus),
    /// The report changed nothing.
    Lost(Lost),
}

/// A failed report, with the claim for another attempt.
///
/// ```no_run
/// use tenure_client::NotReported;
///
/// # async fn example(claim: tenure_client::Claim) -> Result<(), NotReported> {
/// if let Err(NotReported { claim, error }) = claim.complete().await {
///     println!("trying again: {error}");
///     claim.complete().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the outcome of run {} of task {} could not be reported", claim.run_id, claim.task_id)]
pub struct NotReported {
    pub claim: Box<Claim>,
    #[source]
    pub error: Error,
}

impl Client {
    /// Waits for work and claims up to `most` tasks (at most 32). May return none.
    ///
    /// ```no_run
    /// # use tenure_client::{Client, WorkerName};
    /// # async fn example(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let me = WorkerName { group: "home".parse()?, id: "worker-1".parse()? };
    /// for claim in client.claim_work(&"proj/linux".parse()?, &me, 4).await? {
    ///     claim.complete().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn claim_work(&self, queue: &TaskQueueId, me: &WorkerName, most: usize) -> Result<Vec<Claim>, Error> {
        self.claim_work_within(CLAIM_TIMEOUT, queue, me, most, None).await
    }

    pub(crate) async fn claim_work_within(
        &self,
        timeout: Duration,
        queue: &TaskQueueId,
        me: &WorkerName,
        most: usize,
        partition: Option<&PartitionClaim>,
    ) -> Result<Vec<Claim>, Error> {
        let tasks = most.clamp(1, CLAIMS_MAX);
        let (worker_group, worker_id) = (me.group.as_str(), me.id.as_str());
        let body = ClaimWorkBody { worker_group, worker_id, tasks, session_id: self.session(), partition };
        let call = Call {
            method: Method::POST,
            path: format!("/claim-work/{}", parameter(queue)),
            body: Some(serde_json::to_vec(&body).expect("texts and a number")),
            timeout,
            own: Own::default(),
        };
        let Answer { value, date, received, .. } = self.call::<ClaimWorkAnswer>(&call).await?;
        Ok(value.tasks.into_iter().map(|answer| self.claimed_at(answer, date, received)).collect())
    }

    pub(crate) fn claimed_at(&self, answer: ClaimAnswer, date: Option<Timestamp>, received: Instant) -> Claim {
        let lease = Lease::of_claim(answer.taken_until, answer.claimed().or(date), received);
        self.claimed(answer, lease)
    }

    /// Claims a run known from a message or its task's status. A repeat returns the same claim,
    /// with the lease counted from the first grant.
    ///
    /// # Errors
    /// The run is not claimable (409) or does not exist (404).
    ///
    /// ```no_run
    /// # use tenure_client::{Client, WorkerName};
    /// # async fn example(client: &Client, me: &WorkerName) -> Result<(), Box<dyn std::error::Error>> {
    /// let claim = client.claim_task("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, "0".parse()?, me).await?;
    /// println!("working on {}", claim.task_id());
    /// claim.complete().await?;
    /// # Ok(()) }
    /// ```
    pub async fn claim_task(&self, task_id: TaskId, run_id: RunId, me: &WorkerName) -> Result<Claim, Error> {
        let (worker_group, worker_id) = (me.group.as_str(), me.id.as_str());
        let body = ClaimTaskBody { worker_group, worker_id, session_id: self.session() };
        let call = Call {
            method: Method::POST,
            path: format!("/task/{}/runs/{}/claim", parameter(&task_id), parameter(&run_id)),
            body: Some(serde_json::to_vec(&body).expect("two texts")),
            timeout: TIMEOUT,
            own: Own::default(),
        };
        // An earlier attempt may have been granted and its answer lost; the lease then runs since
        // that attempt.
        let first_sent = Instant::now();
        let Answer { value, date, received, .. } = self.call::<ClaimAnswer>(&call).await?;
        let lease = Lease::of_repeated_claim(value.taken_until, value.claimed(), date, (first_sent, received));
        Ok(self.claimed(value, lease))
    }

    fn claimed(&self, answer: ClaimAnswer, lease: Lease) -> Claim {
        Claim {
            rerun: answer.last_rerun(),
            attempt: answer.attempt(),
            client: self.with_credentials(answer.credentials),
            task_id: answer.status.task_id,
            run_id: answer.run_id,
            task: Arc::new(answer.task),
            lease: watch::Sender::new(lease),
            traceparent: answer.traceparent,
        }
    }
}

impl ClaimAnswer {
    fn claimed(&self) -> Option<Timestamp> {
        self.status.runs.iter().find(|run| run.run_id == self.run_id).and_then(|run| run.started)
    }
}

impl Claim {
    /// Returns the id of the task.
    ///
    /// ```no_run
    /// # fn example(claim: &tenure_client::Claim) {
    /// println!("working on {}", claim.task_id());
    /// # }
    /// ```
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.task_id
    }

    /// Returns the run, from 0.
    ///
    /// ```no_run
    /// # fn example(claim: &tenure_client::Claim) {
    /// println!("run {} of {}", claim.run_id(), claim.task_id());
    /// # }
    /// ```
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.run_id
    }

    /// Returns the number of this attempt at the task, from 1. Released runs do not count, and a
    /// rerun starts at 1 again.
    ///
    /// ```no_run
    /// # fn example(claim: &tenure_client::Claim) {
    /// println!("attempt {} at {}", claim.attempt(), claim.task_id());
    /// # }
    /// ```
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the task's definition.
    ///
    /// ```no_run
    /// # fn example(claim: &tenure_client::Claim) {
    /// println!("{} until {}", claim.task().metadata.name, claim.task().deadline);
    /// # }
    /// ```
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Returns the header `traceparent` for requests that the work on the task sends, so that their
    /// spans belong to the run's. None if the server sends no traces.
    ///
    /// ```no_run
    /// # fn example(claim: &tenure_client::Claim, command: &mut std::process::Command) {
    /// command.envs(claim.traceparent().map(|value| ("TRACEPARENT", value)));
    /// # }
    /// ```
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Returns the lease after the last renewal.
    ///
    /// ```no_run
    /// # fn example(claim: &tenure_client::Claim) {
    /// let left = claim.lease().ends().saturating_duration_since(tokio::time::Instant::now());
    /// println!("{} s are left", left.as_secs());
    /// # }
    /// ```
    #[must_use]
    pub fn lease(&self) -> Lease {
        *self.lease.borrow()
    }

    pub(crate) fn shared_task(&self) -> Arc<Task> {
        Arc::clone(&self.task)
    }

    pub(crate) fn watch_lease(&self) -> watch::Receiver<Lease> {
        self.lease.subscribe()
    }

    /// The run created by the task's last rerun.
    pub(crate) fn rerun(&self) -> Option<RunId> {
        self.rerun
    }

    /// Renews the lease and the task's credentials.
    ///
    /// # Errors
    /// No usable answer came. The claim is held until its lease ends, so retry.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Renewal};
    /// # async fn example(claim: &mut Claim) -> Result<(), tenure_client::Error> {
    /// if let Renewal::Lost(lost) = claim.reclaim().await? {
    ///     println!("stop working: {}", lost.because);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn reclaim(&mut self) -> Result<Renewal, Error> {
        let client = self.client.clone();
        self.reclaim_by(&client).await
    }

    /// Sends a single request.
    pub(crate) async fn reclaim_once(&mut self) -> Result<Renewal, Error> {
        let client = self.client.once();
        self.reclaim_by(&client).await
    }

    async fn reclaim_by(&mut self, client: &Client) -> Result<Renewal, Error> {
        match self.post::<ReclaimAnswer>(client, "reclaim", NO_BODY).await {
            Ok(answer) => {
                self.lease.send_modify(|lease| *lease = lease.renewed(answer.value.taken_until, answer.sent));
                self.client.renew_credentials(answer.value.credentials);
                Ok(Renewal::Renewed)
            }
            Err(error) => self.lost_by(error).map(Renewal::Lost),
        }
    }

    /// Reports that the task succeeded.
    ///
    /// # Errors
    /// No usable answer came; the error contains the claim.
    ///
    /// A second report does not compile:
    ///
    /// ```compile_fail,E0382
    /// # async fn example(claim: tenure_client::Claim) -> Result<(), tenure_client::NotReported> {
    /// claim.complete().await?;
    /// claim.fail().await?;
    /// # Ok(()) }
    /// ```
    pub async fn complete(self) -> Result<Reported, NotReported> {
        self.report("completed", NO_BODY).await
    }

    /// Reports success with a result: JSON of up to 64 KiB, stored by Tenure only. A repeat must
    /// send the same result.
    ///
    /// # Errors
    /// No usable answer came; the error contains the claim.
    ///
    /// ```no_run
    /// # async fn example(claim: tenure_client::Claim) -> Result<(), tenure_client::NotReported> {
    /// claim.complete_with(&serde_json::json!({"rows": 12})).await?;
    /// # Ok(()) }
    /// ```
    pub async fn complete_with(self, result: &impl Serialize) -> Result<Reported, NotReported> {
        self.report("completed", Some(&ReportedResult { result })).await
    }

    /// Reports that the task ran and failed.
    ///
    /// # Errors
    /// No usable answer came; the error contains the claim.
    ///
    /// ```no_run
    /// # async fn example(claim: tenure_client::Claim) -> Result<(), tenure_client::NotReported> {
    /// claim.fail().await?;
    /// # Ok(()) }
    /// ```
    pub async fn fail(self) -> Result<Reported, NotReported> {
        self.report("failed", NO_BODY).await
    }

    /// Reports a failure with a result as in [`complete_with`](Self::complete_with).
    ///
    /// # Errors
    /// No usable answer came; the error contains the claim.
    ///
    /// ```no_run
    /// # async fn example(claim: tenure_client::Claim) -> Result<(), tenure_client::NotReported> {
    /// claim.fail_with(&["row 3 is damaged"]).await?;
    /// # Ok(()) }
    /// ```
    pub async fn fail_with(self, result: &impl Serialize) -> Result<Reported, NotReported> {
        self.report("failed", Some(&ReportedResult { result })).await
    }

    /// Reports that the task ran and failed, and why. The reason is stored by Tenure only; texts
    /// that are too long are cut.
    ///
    /// # Errors
    /// No usable answer came; the error contains the claim.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Failure};
    /// # async fn example(claim: Claim) -> Result<(), tenure_client::NotReported> {
    /// let failure = Failure { message: "no such mailbox".to_owned(), kind: None, exit_code: None };
    /// claim.fail_because(&failure).await?;
    /// # Ok(()) }
    /// ```
    pub async fn fail_because(self, failure: &Failure) -> Result<Reported, NotReported> {
        let failure = acceptable(failure);
        self.report("failed", Some(&ReportBody { failure: Some(&failure), ..ReportBody::default() })).await
    }

    /// Reports that the run ended without a verdict on the task.
    ///
    /// # Errors
    /// No usable answer came; the error contains the claim.
    ///
    /// ```no_run
    /// # async fn example(claim: tenure_client::Claim) -> Result<(), tenure_client::NotReported> {
    /// claim.exception(tenure_client::ExceptionReason::ResourceUnavailable).await?;
    /// # Ok(()) }
    /// ```
    pub async fn exception(self, reason: ExceptionReason) -> Result<Reported, NotReported> {
        self.report("exception", Some(&ReportBody { reason: Some(reason), ..ReportBody::default() })).await
    }

    /// Reports as [`exception`](Self::exception) does, and says why. Servers other than Tenure
    /// refuse this.
    ///
    /// # Errors
    /// No usable answer came; the error contains the claim.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, ExceptionReason, Failure};
    /// # async fn example(claim: Claim) -> Result<(), tenure_client::NotReported> {
    /// let failure = Failure { message: "the disk is full".to_owned(), kind: None, exit_code: None };
    /// claim.exception_because(ExceptionReason::ResourceUnavailable, &failure).await?;
    /// # Ok(()) }
    /// ```
    pub async fn exception_because(self, reason: ExceptionReason, failure: &Failure) -> Result<Reported, NotReported> {
        let failure = acceptable(failure);
        let body = ReportBody { reason: Some(reason), failure: Some(&failure), ..ReportBody::default() };
        self.report("exception", Some(&body)).await
    }

    /// Returns a client with the task's credentials. Renewals update it and its clones.
    ///
    /// ```no_run
    /// # fn example(claim: &tenure_client::Claim) {
    /// println!("credentials at {}", claim.client().root_url());
    /// # }
    /// ```
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Builds the result for [`Client::work`]. Only the outcome exception has a reason.
    ///
    /// ```no_run
    /// # use tenure_client::Claim;
    /// # fn example(claim: &Claim) {
    /// use tenure_client::{ExceptionReason, RunOutcome};
    ///
    /// let result = claim.result(RunOutcome::Exception, Some(ExceptionReason::ResourceUnavailable));
    /// # drop(result);
    /// # }
    /// ```
    #[must_use]
    pub fn result(&self, outcome: RunOutcome, reason: Option<ExceptionReason>) -> RunResult {
        RunResult { reason, ..RunResult::new(self.task_id, self.run_id, outcome) }
    }

    /// Interprets the server's answer to this claim's result.
    ///
    /// # Errors
    /// The answer is not usable. The error contains the claim, which can be reported by a separate
    /// call.
    ///
    /// ```no_run
    /// # use tenure_client::{Claim, Error, NotReported, Reported, TaskStatus};
    /// # fn example(claim: Claim, answer: Result<TaskStatus, Error>) -> Result<(), NotReported> {
    /// if let Reported::Lost(lost) = claim.settle(answer)? {
    ///     println!("drop the work: {}", lost.because);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn settle(self, answer: Result<TaskStatus, Error>) -> Result<Reported, NotReported> {
        match answer {
            Ok(status) => Ok(Reported::Accepted(status)),
            Err(error) => match self.lost_by(error) {
                Ok(lost) => Ok(Reported::Lost(lost)),
                Err(error) => Err(NotReported { claim: Box::new(self), error }),
            },
        }
    }

    async fn report(self, outcome: &str, body: Option<&impl Serialize>) -> Result<Reported, NotReported> {
        let answer = self.post::<StatusAnswer>(&self.client, outcome, body).await;
        self.settle(answer.map(|answer| answer.value.status))
    }

    /// Sends a result once, by the call of the Queue API.
    pub(crate) async fn send_result(&self, result: &RunResult) -> Result<TaskStatus, Error> {
        let RunResult { result: returned, reason, failure, retry, outcome, .. } = result;
        let action = match outcome {
            RunOutcome::Completed => "completed",
            RunOutcome::Failed => "failed",
            RunOutcome::Exception | RunOutcome::Released => "exception",
        };
        let has_body = returned.is_some() || reason.is_some() || failure.is_some() || retry.is_some();
        let body =
            ReportBody { result: returned.as_deref(), reason: *reason, failure: failure.as_ref(), retry: *retry };
        let body = has_body.then_some(body);
        Ok(self.post::<StatusAnswer>(&self.client.once(), action, body.as_ref()).await?.value.status)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        client: &Client,
        action: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Answer<T>, Error> {
        let left = self.lease().ends().saturating_duration_since(Instant::now());
        let call = Call {
            method: Method::POST,
            path: format!("/task/{}/runs/{}/{action}", parameter(&self.task_id), parameter(&self.run_id)),
            body: body.map(serde_json::to_vec).transpose().map_err(Error::NotJson)?,
            timeout: (left / TIMEOUT_SHARE).clamp(SHORTEST_TIMEOUT, TIMEOUT),
            own: Own::default(),
        };
        client.call(&call).await
    }

    /// A refusal with an error code means a loss.
    fn lost_by(&self, error: Error) -> Result<Lost, Error> {
        match error {
            Error::Refused { status: status @ (403 | 404 | 409 | 410), code, message, .. } if !code.is_empty() => {
                Ok(Lost {
                    task_id: self.task_id,
                    run_id: self.run_id,
                    because: LostBecause::Refused { status, message },
                })
            }
            error => Err(error),
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task_id, run_id, lease, .. } = self;
        f.debug_struct("Claim")
            .field("task_id", task_id)
            .field("run_id", run_id)
            .field("lease", &*lease.borrow())
            .finish_non_exhaustive()
    }
}
