//! The work of one run: inputs, commands, artifacts, log. At a stop commands get their grace;
//! transfers end at once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_api::ids::{RunId, TaskId};
use tokio_util::sync::CancellationToken;

use super::execute::{Execution, execute};
use super::payload::Payload;
use super::process::Guards;
use super::verdict::{Ending, Outcome, Problem, Verdict};
use super::work_directory::WorkDirectory;
use super::{Settings, inputs, outputs};
use tenure_client::{Client, ExceptionReason, Task, live_log};

pub(super) struct Job {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub task: Task,
    /// Signs with the task's credentials.
    pub client: Client,
    pub directory: Arc<WorkDirectory>,
    pub live_log: Option<live_log::Sender>,
    pub settings: Arc<Settings>,
    pub guards: Guards,
    pub stop: CancellationToken,
    /// Grace of the commands, if the lease leaves less than usual.
    pub stop_grace: OnceLock<Duration>,
}

impl Job {
    /// Returns none if it was stopped before its end.
    pub(super) async fn perform(&self) -> Option<Ending> {
        let verdict = self.carry_out().await?;
        self.directory.note(&last_line(&verdict));
        // Before the upload, which links the live log's name to the whole log.
        self.unless_stopped(self.send_end_of_log()).await?;
        let logged = self.unless_stopped(outputs::upload_log(self)).await?;
        // The log could not be uploaded, so this is not in it.
        if let Err(problem) = &logged {
            tracing::error!(problem.why, "the task's log was not uploaded");
        }
        let verdict = verdict.and(logged.map_err(Problem::after_success));
        if let Err(problem) = &verdict {
            log_problem(problem);
        }
        Some(verdict.into())
    }

    /// Never returns.
    pub(super) async fn send_log(&self) {
        match &self.live_log {
            Some(live_log) => live_log.run().await,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn send_end_of_log(&self) {
        if let Some(live_log) = &self.live_log {
            live_log.finish(self.settings.last_piece_within).await;
        }
    }

    async fn carry_out(&self) -> Option<Verdict> {
        let payload = match Payload::of(&self.task) {
            Ok(payload) => payload,
            Err(error) => {
                let why = format!("malformed payload: {error}");
                return Some(Err(Problem::exception(ExceptionReason::MalformedPayload, why)));
            }
        };
        if let Err(problem) = self.unless_stopped(inputs::fetch(self, &payload.inputs)).await? {
            return Some(Err(problem));
        }
        if let Err(error) = self.directory.hand_over() {
            let why = format!("the inputs cannot be made readable for the task's user: {error}");
            return Some(Err(Problem::exception(ExceptionReason::InternalError, why)));
        }
        let executed = match execute(self, &payload).await {
            Execution::Succeeded => Ok(()),
            Execution::Failed(problem) => Err(problem),
            Execution::WorkerFault(why) => Err(Problem::exception(ExceptionReason::InternalError, why)),
            Execution::NoSpace(why) => Err(Problem::no_space(why)),
            Execution::Stopped => return None,
        };
        let uploaded = self.unless_stopped(outputs::upload(self, &payload.outputs)).await?;
        Some(executed.and(uploaded.map_err(Problem::after_success)))
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            done = work => Some(done),
        }
    }
}

fn last_line(verdict: &Verdict) -> String {
    match verdict {
        Ok(()) => "completed".to_owned(),
        Err(Problem { outcome: Outcome::Exception(ExceptionReason::InternalError), why, .. }) => {
            format!("the worker is at fault: {why}")
        }
        Err(Problem { outcome: Outcome::NoSpace, why, .. }) => format!("the worker has no room for this task: {why}"),
        Err(Problem { outcome: Outcome::Exception(_), why, .. }) => why.clone(),
        Err(Problem { outcome: Outcome::Retry, why, .. }) => {
            format!("failed: {why}; another run follows while retries are left")
        }
        Err(Problem { why, .. }) => format!("failed: {why}"),
    }
}

fn log_problem(Problem { outcome, why, .. }: &Problem) {
    match outcome {
        Outcome::Exception(ExceptionReason::InternalError) => tracing::error!(why, "the worker is at fault"),
        Outcome::NoSpace | Outcome::Exception(ExceptionReason::ResourceUnavailable) => {
            tracing::warn!(why, "the task could not be done");
        }
        _ => tracing::info!(why, ?outcome, "task ended"),
    }
}
