//! reportCompleted, reportFailed, reportException and releases: ends a run, answers a repeat, or
//! refuses with a reason.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::ReasonCreated;
use uuid::Uuid;

use super::{OpError, refused};
use crate::batch::tick::Kind;
use crate::batch::{Operation, SMALL, Verdict};
use crate::end_counters;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::ending::{Ending, FREE_RUNS_MAX};
use tenure_domain::policy::hold::Start;
use tenure_domain::policy::life::{Event, Refusal, State, apply};
use tenure_domain::policy::report::{RunFailure, TaskResult, repeats_failure, repeats_result};
use tenure_domain::task::{Last, Task, Tenancy};
use tenure_domain::work::Holder;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::notifications::notify_leaving;
use tenure_store::queues::{self, Queues};
use tenure_store::results::Texts;
use tenure_store::transitions::end::{self, Member, Resolved};
use tenure_store::worker_removals::Gone;
use tenure_store::{claims, results, tasks};

pub struct ReportRun {
    pub queues: Queues,
    pub pool: PgPool,
}

#[derive(Debug, Clone)]
pub struct RunReport {
    pub task: TaskId,
    pub run: RunId,
    pub ending: Ending,
    /// Only for completed and failed runs.
    pub result: Option<TaskResult>,
    /// Only for failed runs and exceptions.
    pub failure: Option<RunFailure>,
    /// Requested start of the next run; only with a release or intermittent-task.
    pub start: Option<Start>,
    /// The worker that must hold the run; `None` if any worker may.
    pub holder: Option<Arc<Holder>>,
}

impl RunReport {
    /// A report without result and failure, for any holder.
    pub fn plain(task: TaskId, run: RunId, report: Report) -> Self {
        Self { task, run, ending: Ending::Reported(report), result: None, failure: None, start: None, holder: None }
    }
}

impl Operation for ReportRun {
    type Member = RunReport;
    type Answer = Task;
    const NAME: &'static str = "report";
    const WAITING_MAX: usize = 16_000;
    const KIND: Option<Kind> = Some(Kind::End);
    type Decoded = Vec<Resolved>;

    fn weight(member: &RunReport) -> usize {
        SMALL
            + member.result.as_ref().map_or(0, |result| result.text().len())
            + member.failure.as_ref().map_or(0, |failure| failure.text().len())
    }

    fn task(member: &RunReport) -> Option<Uuid> {
        Some(member.task.uuid())
    }

    fn statement(&self, members: &[&RunReport]) -> Option<Statement> {
        Some(end::statement(&ends(members), &holders(members)))
    }

    fn decode(&self, _: &[&RunReport], rows: &Rows, effects: &mut Effects) -> Result<Vec<Resolved>, sqlx::Error> {
        let resolved: Vec<Resolved> = rows.decode()?;
        for row in &resolved {
            effects.run_ended(row);
        }
        Ok(resolved)
    }

    async fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&RunReport],
        resolved: Vec<Resolved>,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let retried: Vec<i64> = resolved.iter().filter(|row| row.run > 0).map(|row| row.seq).collect();
        let mut history = tasks::load_history(conn, &retried).await?;
        let mut verdicts: Vec<Option<Verdict<Task>>> = members.iter().map(|_| None).collect();
        for row in resolved {
            let (member, ended) = (row.member(), history.remove(&row.seq).unwrap_or_default());
            let queue = self.queues.get_name(&self.pool, row.queue).await?;
            end_counters::count(members[member].ending, 1);
            verdicts[member] = Some(Verdict::Done(row.task(queue, ended)?));
        }
        let missing: Vec<&RunReport> =
            members.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_none()).map(|(member, _)| *member).collect();
        if !missing.is_empty() {
            let ids: Vec<Uuid> = missing.iter().map(|member| member.task.uuid()).collect();
            let mut loaded = tasks::load(conn, &ids).await?;
            let returned = load_returned(conn, &missing).await?;
            for (verdict, member) in verdicts.iter_mut().zip(members).filter(|(verdict, _)| verdict.is_none()) {
                let id = member.task.uuid();
                *verdict = Some(diagnose(member, loaded.remove(&id), returned.get(&(id, member.run))));
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    async fn wait(&self, conn: &mut PgConnection, member: &RunReport) -> Result<(), sqlx::Error> {
        let id = member.task.uuid();
        tasks::lock(conn, id).await?;
        claims::lock(conn, id).await?;
        // The next run keeps its position. The statement skips runs of queues locked by others.
        if member.ending == Ending::Released { queues::lock_of_tasks(conn, &[id]).await } else { Ok(()) }
    }
}

fn ends<'a>(members: &[&'a RunReport]) -> Vec<Member<'a>> {
    let end = |member: &&'a RunReport| Member {
        result: member.result.as_ref(),
        failure: member.failure.as_ref(),
        start: member.start,
        ..Member::new(member.task.uuid(), member.run.number().cast_signed(), member.ending)
    };
    members.iter().map(end).collect()
}

async fn load_returned(
    conn: &mut PgConnection,
    missing: &[&RunReport],
) -> Result<HashMap<(Uuid, RunId), Texts>, sqlx::Error> {
    let with_texts = missing.iter().filter(|member| member.result.is_some() || member.failure.is_some());
    let runs: Vec<(Uuid, RunId)> = with_texts.map(|member| (member.task.uuid(), member.run)).collect();
    if runs.is_empty() { Ok(HashMap::new()) } else { results::load(conn, &runs).await }
}

fn holders<'a>(members: &[&'a RunReport]) -> Vec<Option<&'a Holder>> {
    members.iter().map(|member| member.holder.as_deref()).collect()
}

/// Ends the waiting claimWork requests of a worker about to report worker-shutdown, on all servers.
/// Otherwise it would get its own task again and lose another retry.
pub async fn stop_waiting(
    pool: &PgPool,
    queues: &Queues,
    notifiers: &Notifiers,
    loaded: &Task,
    run: RunId,
) -> Result<(), OpError> {
    let Last::Running(open, tenancy) = &loaded.last else { return Ok(()) };
    let Some(queue) = queues.find_key(pool, &loaded.queue).await? else { return Ok(()) };
    if open.run != run {
        return Ok(());
    }
    let Tenancy { worker_group, worker_id, .. } = tenancy.clone();
    send_away(pool, notifiers, Gone { queue, worker_group, worker_id }).await
}

/// Ends the waiting claimWork requests of this worker without claims, on all servers.
pub(super) async fn send_away(pool: &PgPool, notifiers: &Notifiers, worker: Gone) -> Result<(), OpError> {
    // Other servers learn of this before any run made claimable by the report.
    notify_leaving(pool, &worker).await?;
    notifiers.send_away(worker).await;
    Ok(())
}

fn diagnose(member: &RunReport, loaded: Option<tasks::Loaded>, returned: Option<&Texts>) -> Verdict<Task> {
    let (task, run) = (member.task, member.run);
    let Some(loaded) = loaded else {
        return Verdict::Refused(OpError::NotFound(format!("task {task} does not exist")));
    };
    if let Some(Holder { queue, group, id }) =
        member.holder.as_deref().filter(|holder| !holder.may_report(&loaded.task, run))
    {
        let message = format!("run {run} of task {task} is not held by worker {group}/{id} of queue {queue}");
        return Verdict::Refused(OpError::Forbidden(message));
    }
    if let Some(ended) = loaded.task.ended.iter().find(|ended| ended.run.run == run) {
        // A repeat of the report that ended the run. A run caused by the ending may have begun.
        // Otherwise this run must be the task's last: a rerun revokes completed and failed.
        let retried = match member.ending {
            Ending::Reported(Report::Failed) => loaded.task.reason_of(run.next()) == Some(ReasonCreated::TaskRetry),
            ending => ending.retry().is_some(),
        };
        let last = matches!(loaded.task.life().state, State::Resolved(last, _) if last == run);
        if !(member.ending.repeats(ended) && (retried || last)) {
            return Verdict::Refused(refused(Refusal::AlreadyResolved, task, run));
        }
        let another = |what: &str| {
            let message = format!("run {run} of task {task} is already resolved with another {what}");
            Verdict::Refused(OpError::Conflict(message))
        };
        if !repeats_result(returned.and_then(|texts| texts.result.as_deref()), member.result.as_ref()) {
            return another("result");
        }
        let failure = returned.and_then(|texts| texts.failure.as_deref());
        if !repeats_failure(failure, member.failure.as_ref()) {
            return another("failure");
        }
        return Verdict::Done(loaded.task);
    }
    // Any report of the run would be refused the same way.
    let report = Event::End(run, Ending::Reported(Report::Completed), None);
    if let Err(refusal) = apply(loaded.task.life(), report) {
        return Verdict::Refused(refused(refusal, task, run));
    }
    if member.ending == Ending::Released && loaded.free_runs >= FREE_RUNS_MAX {
        return Verdict::Refused(OpError::Conflict(format!(
            "{FREE_RUNS_MAX} runs of task {task} have ended without using up a retry, which is the limit: run {run} \
             was not released and is still held; report it"
        )));
    }
    Verdict::Locked
}
