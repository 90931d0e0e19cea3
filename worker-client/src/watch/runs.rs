//! Learns at once that a run has ended without its worker: its task was cancelled, has met its deadline, or was given to another
//! worker. One request waits for all runs that are being worked on; when others have come, it is sent anew.
//!
//! A task that is done within moments is never watched. Where the queue does not have this call, or the worker may not use it, a run
//! that has ended is noticed at its next renewal.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{ReasonResolved, RunState};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::chain;
use crate::{Client, EndedClaim, Error, WatchedRun, retry};

/// How long a task runs before it is watched: most are done by then, and cost no request.
const WATCHED_AFTER: Duration = Duration::from_millis(250);
/// The least time between two requests.
const ASK_AT_MOST_EVERY: Duration = Duration::from_millis(250);
/// How long the queue is asked to wait.
const WAIT: Duration = Duration::from_secs(30);
/// The longest pause after a failure: the next try may say what is to be stopped.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// After so many answers in a row that may be a proxy's, they are taken for those of another server than Tenure.
const UNCLEAR_MAX: u32 = 8;
/// When a queue is asked again that refuses the call: it may be another release by then.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// The runs of a worker that are watched, by one request for all of them. Cheap to clone.
///
/// ```no_run
/// # use tenure_client::watch::{InWords, Watch};
/// # use tenure_client::{Claim, Client};
/// # async fn work(claim: &Claim) {}
/// # async fn example(client: Client, claim: Claim) {
/// let watch = Watch::default();
/// let mut watching = watch.begin(claim.task_id(), claim.run_id());
/// tokio::select! {
///     () = work(&claim) => println!("done"),
///     ended = watching.ended() => println!("stopped: {}", InWords(&ended)),
///     // Once for all runs of a worker.
///     () = watch.ask(&client) => {}
/// }
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Watch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    runs: Mutex<Runs>,
    /// Notified when a run has come or gone.
    changed: Notify,
}

type Runs = BTreeMap<(TaskId, RunId), Entry>;

struct Entry {
    /// When the run is old enough to be watched.
    from: Instant,
    sender: oneshot::Sender<EndedClaim>,
}

/// A run that is watched for as long as this is kept.
#[must_use = "a run is watched for as long as this is kept"]
pub struct Watching {
    run: (TaskId, RunId),
    ended: oneshot::Receiver<EndedClaim>,
    watch: Watch,
}

/// How a run ended, in words.
///
/// ```
/// # use tenure_client::watch::InWords;
/// # fn example(ended: &tenure_client::EndedClaim) { println!("{}", InWords(ended)); }
/// ```
pub struct InWords<'a>(pub &'a EndedClaim);

impl Watching {
    /// Waits until the run has ended, and says how. May be dropped and called again until it has.
    ///
    /// ```no_run
    /// # use tenure_client::watch::Watching;
    /// # async fn example(watching: &mut Watching) {
    /// println!("{:?}", watching.ended().await.reason_resolved);
    /// # }
    /// ```
    pub async fn ended(&mut self) -> EndedClaim {
        match (&mut self.ended).await {
            Ok(ended) => ended,
            // Dropped by another entry of the same run, which there is not.
            Err(_dropped) => std::future::pending().await,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.lock().remove(&self.run);
        self.watch.0.changed.notify_one();
    }
}

impl Watch {
    /// Watches a run; the server is asked about one that is older than a quarter of a second.
    ///
    /// ```
    /// # use tenure_client::watch::{Watch, Watching};
    /// # fn example(watch: &Watch, claim: &tenure_client::Claim) -> Watching {
    /// watch.begin(claim.task_id(), claim.run_id())
    /// # }
    /// ```
    pub fn begin(&self, task_id: TaskId, run_id: RunId) -> Watching {
        let run = (task_id, run_id);
        let (sender, ended) = oneshot::channel();
        self.lock().insert(run, Entry { from: Instant::now() + WATCHED_AFTER, sender });
        self.0.changed.notify_one();
        Watching { run, ended, watch: self.clone() }
    }

    /// Asks the queue again and again: at most every 250 ms, and only while there are runs. Without an answer it asks again after the
    /// pauses of the client's policy, at most 5 s; if it is refused, after ten minutes, and so from the ninth answer in a row on that may
    /// be a proxy's. Never returns.
    ///
    /// ```no_run
    /// # use tenure_client::watch::Watch;
    /// # async fn example(watch: &Watch, client: &tenure_client::Client) { watch.ask(client).await; }
    /// ```
    pub async fn ask(&self, client: &Client) {
        let client = client.once();
        let (mut runs, mut failures, mut unclear) = (Vec::new(), 0, 0);
        loop {
            if runs.is_empty() {
                runs = self.other_than(&runs, Instant::now()).await;
            }
            let next = Instant::now() + ASK_AT_MOST_EVERY;
            let answer = tokio::select! {
                answer = client.watch_claims(&runs, WAIT) => answer,
                others = self.other_than(&runs, next) => {
                    runs = others;
                    continue;
                }
            };
            match answer {
                Ok(ended) => {
                    (failures, unclear) = (0, 0);
                    ended.into_iter().for_each(|ended| self.tell(ended));
                }
                Err(error) if is_refusal(&error) || is_unclear(&error) && unclear >= UNCLEAR_MAX => {
                    tracing::info!(
                        error = chain(&error),
                        "the queue cannot be asked whether runs have ended: that is noticed at their renewals"
                    );
                    sleep(ASK_AGAIN_AFTER).await;
                }
                Err(error) => {
                    failures += 1;
                    unclear = if is_unclear(&error) { unclear + 1 } else { 0 };
                    tracing::debug!(failures, error = chain(&error), "the runs of this worker could not be watched");
                    let pause = client.retry_policy().pause_of(failures, &error, retry::jitter());
                    sleep(pause.min(PAUSE_MAX)).await;
                }
            }
            sleep_until(next).await;
            runs = self.old_enough().0;
        }
    }

    /// The runs to be watched, from this time on at the earliest, when one has come that is none of these, or none is left.
    async fn other_than(&self, runs: &[WatchedRun], earliest: Instant) -> Vec<WatchedRun> {
        sleep_until(earliest).await;
        loop {
            let (now, next) = self.old_enough();
            if now.iter().any(|run| !runs.contains(run)) || now.is_empty() != runs.is_empty() {
                return now;
            }
            match next {
                Some(next) => sleep_until(next).await,
                None => self.0.changed.notified().await,
            }
        }
    }

    /// The runs that are old enough to be watched, and when the next one is.
    fn old_enough(&self) -> (Vec<WatchedRun>, Option<Instant>) {
        let now = Instant::now();
        let runs = self.lock();
        let (old, young): (Vec<_>, Vec<_>) = runs.iter().partition(|(_, entry)| entry.from <= now);
        let watched = old.into_iter().map(|(&(task_id, run_id), _)| WatchedRun { task_id, run_id });
        (watched.collect(), young.into_iter().map(|(_, entry)| entry.from).min())
    }

    /// A run has ended; one that the worker has just reported itself is not watched any more.
    fn tell(&self, ended: EndedClaim) {
        if let Some(watching) = self.lock().remove(&(ended.task_id, ended.run_id)) {
            // Its handler may have ended just now.
            let _gone = watching.sender.send(ended);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("runs", &self.lock().len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").field("run", &self.run).finish_non_exhaustive()
    }
}

/// Whether it may be another server than Tenure that says so, and not only a busy one.
fn is_unclear(error: &Error) -> bool {
    error.is_unclear() && !error.is_transient()
}

/// Whether a later try would be answered in the same way. A page of a proxy's says nothing about the server behind it.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 400..=407 | 409..=428, .. }) && !error.is_unclear()
}

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EndedClaim { state, reason_resolved, ended_by, .. } = self.0;
        match (state, reason_resolved) {
            (Some(RunState::Exception), Some(ReasonResolved::Canceled)) => f.write_str("the task was cancelled"),
            (Some(RunState::Exception), Some(ReasonResolved::DeadlineExceeded)) => {
                f.write_str("the deadline of the task has passed")
            }
            (Some(RunState::Pending), _) => f.write_str("the run waits for a worker again"),
            (Some(state), Some(reason)) => {
                write!(f, "the run has ended as {state}: {reason}")?;
                ended_by.map_or(Ok(()), |ended_by| write!(f, ", by {ended_by}"))
            }
            (Some(state), None) => write!(f, "the run has ended as {state}"),
            (None, _) => f.write_str("the queue has no such run any more"),
        }
    }
}
