//! reportCompleted, reportFailed, reportException: end a run, or answer a repeat, or refuse with a reason.

use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{RunId, TaskId};
use uuid::Uuid;

use super::worker_removed::WAIT_LIST_TIMEOUT;
use super::{OpError, refused};
use crate::batch::tick::Kind;
use crate::batch::{Operation, Verdict};
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::lifecycle::{End, Event, Refusal, Report, apply};
use tenure_domain::task::{Last, Task, Tenancy};
use tenure_domain::work::Holder;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::notifications::notify_leaving;
use tenure_store::queues::Queues;
use tenure_store::transitions::end::{self, Member, Resolved};
use tenure_store::worker_removals::Gone;
use tenure_store::{claims, tasks};

/// The operation.
pub struct ReportRun {
    /// For names of queues.
    pub queues: Queues,
    /// For names of queues.
    pub pool: PgPool,
}

/// A report.
#[derive(Debug, Clone)]
pub struct RunReport {
    /// The task.
    pub task: TaskId,
    /// The run.
    pub run: RunId,
    /// The outcome.
    pub report: Report,
    /// The worker that must hold the run; none if the caller may report it whichever worker does.
    pub holder: Option<Arc<Holder>>,
}

/// Bytes that a member without a body counts for.
const SMALL: usize = 64;

impl Operation for ReportRun {
    type Member = RunReport;
    type Answer = Task;
    const NAME: &'static str = "report";
    const WAITING_MAX: usize = 16_000;
    const KIND: Option<Kind> = Some(Kind::End);
    type Found = Vec<Resolved>;

    fn weight(_: &RunReport) -> usize {
        SMALL
    }

    fn task(member: &RunReport) -> Option<Uuid> {
        Some(member.task.uuid())
    }

    fn statement(&self, members: &[&RunReport]) -> Option<Statement> {
        Some(end::statement(&ends(members), &holders(members)))
    }

    fn decode(&self, _: &[&RunReport], rows: &Rows, effects: &mut Effects) -> Result<Vec<Resolved>, sqlx::Error> {
        let resolved = end::decode(rows)?;
        note(&resolved, effects);
        Ok(resolved)
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&RunReport],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let resolved = end::end_held(conn, &ends(members), &holders(members)).await?;
        note(&resolved, effects);
        self.judge(conn, members, resolved).await
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
            verdicts[member] = Some(Verdict::Done(row.task(queue, ended)?));
        }
        let missing: Vec<Uuid> = members
            .iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| verdict.is_none())
            .map(|(m, _)| m.task.uuid())
            .collect();
        if !missing.is_empty() {
            let mut loaded = tasks::load(conn, &missing).await?;
            for (verdict, member) in verdicts.iter_mut().zip(members).filter(|(verdict, _)| verdict.is_none()) {
                *verdict = Some(diagnose(member, loaded.remove(&member.task.uuid())));
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    async fn wait(&self, conn: &mut PgConnection, member: &RunReport) -> Result<(), sqlx::Error> {
        tasks::lock(conn, member.task.uuid()).await?;
        claims::lock(conn, member.task.uuid()).await
    }
}

fn ends(members: &[&RunReport]) -> Vec<Member> {
    let end = |member: &&RunReport| Member {
        id: member.task.uuid(),
        run: member.run.number().cast_signed(),
        end: End::Report(member.report),
    };
    members.iter().map(end).collect()
}

fn holders<'a>(members: &[&'a RunReport]) -> Vec<Option<&'a Holder>> {
    members.iter().map(|member| member.holder.as_deref()).collect()
}

fn note(resolved: &[Resolved], effects: &mut Effects) {
    for row in resolved {
        effects.run_ended(row.id, row.queue, row.next_reason.is_some());
    }
}

/// A worker is about to report worker-shutdown for this run: its waiting claimWork requests, at this server and at the
/// others, are answered empty. Otherwise it would get its own task again at once, and lose another retry.
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

/// The waiting claimWork requests of this worker, here and at the other servers, are answered empty.
pub(super) async fn send_away(pool: &PgPool, notifiers: &Notifiers, worker: Gone) -> Result<(), OpError> {
    // The other servers are notified of it before they can be notified of the run that the report makes claimable.
    notify_leaving(pool, &worker).await?;
    drop(tokio::time::timeout(WAIT_LIST_TIMEOUT, notifiers.send_away(worker)).await);
    Ok(())
}

fn diagnose(member: &RunReport, loaded: Option<tasks::Loaded>) -> Verdict<Task> {
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
    let outcome = member.report.outcome();
    if let Some(ended) = loaded.task.ended.iter().find(|ended| ended.run.run == run) {
        // A repeat of the report that ended the run. A report that caused a retry is a repeat also when the next run has
        // begun; completed and failed end the task, so that there the run must be the last one.
        let retried = member.report.retry().is_some();
        let last =
            matches!(loaded.task.life().state, tenure_domain::lifecycle::State::Resolved(last, _) if last == run);
        if ended.outcome() == outcome && (retried || last) {
            return Verdict::Done(loaded.task);
        }
        return Verdict::Refused(refused(Refusal::AlreadyResolved, task, run));
    }
    match apply(loaded.task.life(), Event::Report(run, member.report)) {
        Err(refusal) => Verdict::Refused(refused(refusal, task, run)),
        Ok(_) => Verdict::Locked,
    }
}
