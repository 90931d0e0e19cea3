//! Runs each task in its own directory. The work is stopped at a shutdown, and when the run is
//! lost, which is then not reported.

use std::sync::{Arc, OnceLock};

use tenure_api::states::RunState;
use tenure_client::artifacts::blocking;
use tenure_client::consumer::{self, EndedRun, Handler, HowLost, Stop, StopReason};
use tenure_client::{ExceptionReason, live_log};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::{Health, no_space};
use super::job::Job;
use super::metrics::Outcomes;
use super::outputs::upload_log;
use super::process::Guards;
use super::verdict::{Ending, Outcome, Problem};
use super::work_directory::WorkDirectory;
use super::{Settings, last_call};

pub(super) struct Tasks {
    settings: Arc<Settings>,
    guards: Guards,
    health: Health,
    outcomes: Outcomes,
    shutdown: CancellationToken,
}

impl Tasks {
    pub(super) fn new(
        settings: &Arc<Settings>,
        health: &Health,
        outcomes: &Outcomes,
        shutdown: &CancellationToken,
    ) -> Self {
        Self {
            settings: Arc::clone(settings),
            guards: Guards::default(),
            health: health.clone(),
            outcomes: outcomes.clone(),
            shutdown: shutdown.clone(),
        }
    }

    fn open(&self, job: &consumer::Job) -> std::io::Result<Job> {
        let (task_id, run_id) = (job.task_id(), job.run_id());
        let directory = WorkDirectory::create(&self.settings, task_id, run_id)?.traced(job.traceparent());
        let directory = Arc::new(directory);
        let sender = || {
            let log = Arc::new(directory.log().clone());
            live_log::Sender::new(job.client(), task_id, run_id, job.task().expires, log)
        };
        Ok(Job {
            live_log: self.settings.live_log.then(sender),
            task_id,
            run_id,
            task: job.task().clone(),
            // This queue grants claims, so only a proxy would not know a call.
            client: job.client().with_retry_policy(self.settings.transfers.clone().unclear_too()),
            directory,
            settings: Arc::clone(&self.settings),
            guards: self.guards.clone(),
            stop: CancellationToken::new(),
            stop_grace: OnceLock::new(),
        })
    }
}

impl Handler<serde_json::Value> for Tasks {
    async fn run(&self, job: consumer::Job, stop: Stop) -> consumer::Outcome {
        let begun = Instant::now();
        let ending = match self.open(&job) {
            Ok(work) => {
                let (directory, keep) = (Arc::clone(&work.directory), self.settings.keep);
                job.afterwards(async move {
                    if let Err(error) = blocking(move || directory.close(keep)).await {
                        tracing::warn!(%error, "a task's directory could not be cleaned up");
                    }
                });
                perform(&work, &job, &stop, &self.shutdown).await
            }
            Err(error) => {
                tracing::error!(%error, "the task's directory could not be made");
                let why = format!("the task's directory could not be made: {error}");
                let problem = if no_space(&error) {
                    Problem::no_space(why)
                } else {
                    Problem::exception(ExceptionReason::InternalError, why)
                };
                Some(problem.into())
            }
        };
        self.outcomes.count(ending.as_ref().map(|ending| ending.outcome));
        let Some(Ending { outcome, failure }) = ending else { return consumer::Outcome::Unreported };
        self.health.ended(outcome, begun.elapsed());
        let outcome = match outcome {
            Outcome::Completed => consumer::Outcome::Completed(None),
            Outcome::Failed => consumer::Outcome::Failed(None),
            Outcome::Retry => consumer::Outcome::Retry { after: None },
            Outcome::Exception(reason) => consumer::Outcome::Exception(reason),
            // Another worker may run the task.
            Outcome::NoSpace | Outcome::Stopped => consumer::Outcome::Exception(ExceptionReason::WorkerShutdown),
        };
        match failure {
            Some(failure) => outcome.because_of(failure),
            None => outcome,
        }
    }
}

/// Returns none if the run is lost.
async fn perform(job: &Job, of: &consumer::Job, stop: &Stop, shutdown: &CancellationToken) -> Option<Ending> {
    let working = job.perform();
    tokio::pin!(working);
    let asked = async {
        stop.requested().await;
        if stop.how_lost().is_none() {
            job.stop.cancel();
        }
        std::future::pending::<()>().await;
    };
    let how = tokio::select! {
        ending = &mut working => return Some(match ending {
            Some(ending) => ending,
            None => stopped(job, stop).await,
        }),
        how = lost(stop) => how,
        () = asked => unreachable!("it has no end"),
        () = job.send_log() => unreachable!("it has no end"),
    };
    job.directory.note(&format!("the claim is lost ({how}); stopping"));
    if matches!(how, HowLost::Unanswered | HowLost::SessionUnanswered) {
        // All processes must have ended before another worker may start, after the usual grace or
        // at the end of a short lease.
        let left = of.lease().ends().saturating_duration_since(Instant::now()).min(job.settings.stop_grace);
        job.stop_grace.get_or_init(|| left - left / 4);
    }
    job.stop.cancel();
    working.await;
    match how {
        HowLost::Ended(EndedRun { state: RunState::Exception, .. }) | HowLost::SessionEnded => {
            keep_log(job, of, shutdown).await;
        }
        // The session may have survived. Then the run is held until its lease ends, and a report
        // lets another worker start sooner.
        HowLost::SessionUnanswered => return Some(Problem::stopped(how.to_string()).into()),
        _ => {}
    }
    None
}

async fn lost(stop: &Stop) -> &HowLost {
    stop.lost().await;
    stop.how_lost().unwrap_or(&HowLost::Unanswered)
}

/// Gives the run back.
async fn stopped(job: &Job, stop: &Stop) -> Ending {
    let why = match stop.reason() {
        Some(StopReason::Command) => "the task was stopped by a command",
        _ => "the worker shuts down",
    };
    job.directory.note(why);
    job.send_end_of_log().await;
    Problem::stopped(why).into()
}

/// Uploads the output up to the stop. A run that has ended as an exception accepts artifacts while
/// its credentials are valid.
async fn keep_log(job: &Job, of: &consumer::Job, shutdown: &CancellationToken) {
    let why = tokio::select! {
        uploaded = upload_log(job) => match uploaded {
            Ok(()) => return,
            Err(problem) => problem.why,
        },
        () = tokio::time::sleep_until(of.lease().ends()) => "the lease is over".to_owned(),
        () = last_call(shutdown) => "the worker shuts down".to_owned(),
    };
    tracing::warn!(why, "the log of a task that was ended was not uploaded");
}
