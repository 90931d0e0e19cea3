//! One file per operation. The rules of `domain` diagnose members skipped by a batch's statement.
//! Nothing here depends on HTTP.

pub mod actor;
pub mod bulk_jobs;
pub mod change_priority;
pub mod change_task;
pub mod checkpoint;
pub mod claim_task;
pub mod claim_work;
pub mod clients;
pub mod create_artifact;
pub mod create_task;
mod drafts;
pub mod enqueue_roles;
pub mod enqueued;
pub mod guarded;
pub mod list_runs;
pub mod list_tasks;
pub mod live_log;
pub mod messages;
pub mod objects;
pub mod partitions;
pub mod purge_cache;
pub mod queue_keys;
pub mod queue_policy;
pub mod reclaim;
pub mod redrive;
pub mod registrations;
pub mod report;
pub(crate) mod rerun;
pub mod roles;
pub mod schedules;
pub mod servers;
pub mod sessions;
pub mod statistics;
pub mod status;
pub mod submit;
pub mod subscriptions;
pub mod task_command;
pub mod task_group;
pub mod task_list;
mod unstored;
pub mod wait;
pub mod why;
pub mod work;
pub mod worker_removed;
pub mod workers;

pub use crate::failure::OpError;

use tenure_domain::lifecycle::RUNS_MAX;
use tenure_domain::policy::life::Refusal;

#[must_use]
pub fn refused(refusal: Refusal, task: impl std::fmt::Display, run: impl std::fmt::Display) -> OpError {
    let conflict = |text: &str| OpError::Conflict(format!("run {run} of task {task} {text}"));
    match refusal {
        Refusal::NoSuchRun => OpError::NotFound(format!("task {task} has no run {run}")),
        Refusal::NotTheLastRun => conflict("is not the task's last run"),
        Refusal::NotClaimed => conflict("is not claimed"),
        Refusal::AlreadyClaimed => conflict("is claimed by another worker"),
        Refusal::AlreadyResolved => conflict("is resolved"),
        Refusal::AlreadyScheduled => conflict("is already scheduled"),
        Refusal::RequeuesUsedUp => conflict("was requeued too often"),
        Refusal::FreeRunsUsedUp => conflict("must use up a retry"),
        Refusal::Held => conflict("is held"),
        Refusal::NotTaken => conflict("was not taken from its worker"),
        Refusal::RunsUsedUp => OpError::Conflict(format!("task {task} has had {RUNS_MAX} runs; create a new task")),
    }
}
