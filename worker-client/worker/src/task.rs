//! One claimed task from the claim to the report.
//!
//! Three things go on at the same time: the work is done, the claim is renewed, and the queue is asked whether the run has ended.
//! If the claim is lost the work is stopped and nothing is reported, because the run is no longer ours to judge.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::health::{Health, no_space};
use super::job::Job;
use super::outputs::upload_log;
use super::process::Guards;
use super::results::Results;
use super::status::{Entered, UnderWay};
use super::verdict::{Ending, Outcome};
use super::work_directory::WorkDirectory;
use tenure_api::states::RunState;
use tenure_client::artifacts::blocking;
use tenure_client::consumer::JobState;
use tenure_client::error::chain;
use tenure_client::keep::{Terms, Unkept};
use tenure_client::watch::{InWords, Watch};
use tenure_client::{
    Claim, EndedClaim, ExceptionReason, Lost, NotReported, Reported, RunOutcome, RunResult, live_log, retry,
};

/// How long a worker that shuts down waits for what is still under way: answers to claims, reports, deletions.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);

/// What a task needs of its worker.
pub(super) struct Context {
    pub settings: Arc<Settings>,
    /// Where its result may go, if it is not reported by itself.
    pub results: Results,
    pub guards: Guards,
    pub health: Health,
    pub watch: Watch,
    pub under_way: UnderWay,
    pub shutdown: CancellationToken,
}

/// Why a run is not ours any more.
enum Gone {
    /// The renewal of its claim was refused.
    Lost(Lost),
    /// No renewal was answered: it is ours until its lease ends, and its commands are gone by then.
    Unanswered,
    /// The queue says that it has ended.
    Ended(EndedClaim),
}

/// Does the work of a claimed task and reports how it went.
pub(super) async fn run(mut claim: Claim, context: &Context) {
    tracing::info!("task claimed");
    let begun = Instant::now();
    let entered = context.under_way.enter(&claim);
    let (verdict, directory) = match open(&claim, context) {
        Ok(job) => (work(&mut claim, &job, &entered, context).await, Some(job.directory)),
        Err(error) => {
            tracing::error!(%error, "the task's directory could not be made");
            let out_of_space = no_space(&error);
            let outcome =
                if out_of_space { Outcome::NoSpace } else { Outcome::Exception(ExceptionReason::InternalError) };
            (Ok(outcome.into()), None)
        }
    };
    match verdict {
        Ok(ending) => {
            context.health.ended(ending.outcome, begun.elapsed());
            entered.is(JobState::Reporting);
            report(claim, ending, context).await;
        }
        Err(gone) => tracing::warn!(because = %gone, "claim lost; nothing is reported"),
    }
    if let Some(directory) = directory {
        let keep = context.settings.keep;
        if let Err(error) = blocking(move || directory.close(keep)).await {
            tracing::warn!(%error, "a task's directory could not be put in order");
        }
    }
}

fn open(claim: &Claim, context: &Context) -> std::io::Result<Job> {
    let (task_id, run_id) = (claim.task_id(), claim.run_id());
    let directory = WorkDirectory::create(&context.settings, task_id, run_id)?;
    let sender = || {
        let log = Arc::new(directory.log().clone());
        live_log::Sender::new(claim.client(), task_id, run_id, claim.task().expires, log)
    };
    Ok(Job {
        live_log: context.settings.live_log.then(sender),
        task_id,
        run_id,
        task: claim.task().clone(),
        client: claim.client().with_retry_policy(context.settings.transfers.clone()),
        directory,
        settings: Arc::clone(&context.settings),
        guards: context.guards.clone(),
        stop: context.shutdown.child_token(),
    })
}

/// Does the work while the claim holds.
async fn work(claim: &mut Claim, job: &Job, entered: &Entered, context: &Context) -> Result<Ending, Gone> {
    // Commands that are asked to stop then have ended, or were killed, when another worker may begin.
    let terms = Terms { grace: context.settings.stop_grace, ..Terms::default() };
    let mut watching = context.watch.begin(claim.task_id(), claim.run_id());
    let work = job.perform();
    tokio::pin!(work);
    let gone = tokio::select! {
        ending = &mut work => return Ok(match ending {
            Some(ending) => ending,
            None => stopped(job).await,
        }),
        unkept = claim.keep(terms) => match unkept {
            Unkept::Lost(lost) => Gone::Lost(lost),
            Unkept::Unanswered => Gone::Unanswered,
        },
        ended = watching.ended() => Gone::Ended(ended),
        () = job.send_log() => unreachable!("it has no end"),
    };
    job.directory.note(&format!("the claim is lost ({gone}); stopping"));
    entered.is(JobState::Lost);
    job.stop.cancel();
    work.await;
    if let Gone::Ended(EndedClaim { state: Some(RunState::Exception), .. }) = gone {
        keep_log(claim, job, &context.shutdown).await;
    }
    Err(gone)
}

/// The worker shuts down, and so the run is given back.
async fn stopped(job: &Job) -> Ending {
    job.directory.note("the worker shuts down");
    job.send_end_of_log().await;
    Outcome::Stopped.into()
}

/// A run that has ended as an exception still takes artifacts for a while: what its commands printed until they were stopped is
/// uploaded, if that can be done while its credentials are good.
async fn keep_log(claim: &Claim, job: &Job, shutdown: &CancellationToken) {
    let why = tokio::select! {
        uploaded = upload_log(job) => match uploaded {
            Ok(()) => return,
            Err(problem) => problem.why,
        },
        () = tokio::time::sleep_until(claim.lease().ends()) => "the lease is over".to_owned(),
        () = last_call(shutdown) => "the worker shuts down".to_owned(),
    };
    tracing::warn!(why, "the log of a task that was ended was not uploaded");
}

/// Reports until it gets through, the lease is over, or a shutdown has waited long enough.
async fn report(claim: Claim, ending: Ending, Context { results, shutdown, .. }: &Context) {
    let outcome = ending.outcome;
    let ends = claim.lease().ends();
    tokio::select! {
        () = send_report(claim, ending, results) => {}
        () = tokio::time::sleep_until(ends) => {
            tracing::warn!(?outcome, "the claim ended before its outcome could be reported");
        }
        () = last_call(shutdown) => tracing::warn!(?outcome, "the outcome could not be reported before the shutdown"),
    }
}

/// Returns when a shutdown has waited long enough.
pub(super) async fn last_call(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}

/// Leaves the result to the worker's next call for work if there is one now, and otherwise reports it by itself.
async fn send_report(mut claim: Claim, Ending { outcome, result: returned }: Ending, results: &Results) {
    if let Some(result) = result_of(&claim, outcome, &returned)
        && let Some(answer) = results.send(result).await
    {
        match claim.settle(answer) {
            Ok(Reported::Accepted(_)) => return tracing::info!(?outcome, "task reported"),
            Ok(Reported::Lost(lost)) => return log_lost(&lost),
            Err(NotReported { claim: back, .. }) => claim = *back,
        }
    }
    let mut failures = 0;
    loop {
        let sent = match outcome {
            Outcome::Completed => claim.complete_with(&returned).await,
            Outcome::Failed => claim.fail_with(&returned).await,
            Outcome::Exception(reason) => claim.exception(reason).await,
            // The only reason after which the task is tried again.
            Outcome::NoSpace | Outcome::Stopped => claim.exception(ExceptionReason::WorkerShutdown).await,
        };
        match sent {
            Ok(Reported::Accepted(_)) => return tracing::info!(?outcome, "task reported"),
            Ok(Reported::Lost(lost)) => return log_lost(&lost),
            Err(NotReported { error, .. }) if !error.is_transient() => {
                return tracing::error!(?outcome, error = chain(&error), "the report was refused");
            }
            Err(NotReported { claim: back, error }) => {
                failures += 1;
                tracing::warn!(failures, error = chain(&error), "the report did not get through; trying again");
                claim = *back;
                tokio::time::sleep(claim.client().retry_policy().backoff(failures, retry::jitter())).await;
            }
        }
    }
}

/// What goes with a call for work; a worker that gives a task back does not ask for more.
fn result_of(claim: &Claim, outcome: Outcome, returned: &Value) -> Option<RunResult> {
    let with = |outcome| {
        let result = Some(to_raw_value(returned).expect("a JSON value is JSON"));
        Some(RunResult { result, ..claim.result(outcome, None) })
    };
    match outcome {
        Outcome::Completed => with(RunOutcome::Completed),
        Outcome::Failed => with(RunOutcome::Failed),
        Outcome::Exception(ExceptionReason::WorkerShutdown) | Outcome::NoSpace | Outcome::Stopped => None,
        Outcome::Exception(reason) => Some(claim.result(RunOutcome::Exception, Some(reason))),
    }
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(lost) => write!(f, "{}", lost.because),
            Self::Unanswered => f.write_str("no renewal was answered in time"),
            Self::Ended(ended) => write!(f, "{}", InWords(ended)),
        }
    }
}

fn log_lost(lost: &Lost) {
    tracing::warn!(because = %lost.because, "claim lost; nothing is reported");
}
