//! reportCompleted, reportFailed, reportException and releases: ends a run, answers a repeat,
//! records a late result, or refuses with a reason.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{ReasonCreated, ReasonResolved};
use uuid::Uuid;

use super::{OpError, refused};
use crate::batch::tick::Kind;
use crate::batch::{FollowUp, Operation, SMALL, Verdict};
use crate::end_counters::{self, LateOutcome};
use crate::notifiers::{DependentHints, Effects, Notifiers};
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::ending::{Ending, FREE_RUNS_MAX};
use tenure_domain::policy::hold::Start;
use tenure_domain::policy::late::{self, LateReport};
use tenure_domain::policy::life::{Event, Refusal, State, apply};
use tenure_domain::policy::report::{RunFailure, TaskResult, repeats_failure, repeats_result};
use tenure_domain::task::{EndedRun, Last, Task, Tenancy};
use tenure_domain::work::Holder;
use tenure_store::hot::statement::{Rows, Run, Statement};
use tenure_store::notifications::notify_leaving;
use tenure_store::queues::{self, Queues};
use tenure_store::results::Texts;
use tenure_store::transitions::end::{self, Member, Resolved};
use tenure_store::transitions::late as late_results;
use tenure_store::transitions::schedule::{self, Scheduled};
use tenure_store::worker_removals::Gone;
use tenure_store::{claims, results, tasks};

pub struct ReportRun {
    pub queues: Queues,
    pub pool: PgPool,
    pub dependents: DependentHints,
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
            let known = late_results::find(conn, &late_runs(&missing, &loaded)).await?;
            let returned = load_returned(conn, &missing, &known).await?;
            for (verdict, member) in verdicts.iter_mut().zip(members).filter(|(verdict, _)| verdict.is_none()) {
                *verdict = Some(diagnose(member, loaded.remove(&member.task.uuid()), &known, &returned));
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    /// Schedules the dependents of tasks that this part ends.
    fn follow_up(&self, members: &[&RunReport]) -> Option<FollowUp> {
        #[cfg(feature = "test-util")]
        if schedule::is_left_to_pass() {
            return None;
        }
        let hints = self.dependents.find(members.iter().map(|member| member.task.uuid()));
        let (ended, claimable): (Vec<Uuid>, Vec<i32>) = hints.into_iter().unzip();
        (!ended.is_empty()).then(|| FollowUp { statement: schedule::schedule_dependents(&ended), claimable })
    }

    fn decode_follow_up(&self, rows: &Rows, effects: &mut Effects) -> Result<(), sqlx::Error> {
        effects.tasks_scheduled(&rows.decode::<Scheduled>()?);
        Ok(())
    }

    /// Each late result has a statement of its own, after that of the batch.
    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&RunReport],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let rows = conn.run_one(&end::statement(&ends(members), &holders(members))).await?;
        let resolved = self.decode(members, &rows, effects)?;
        let mut verdicts = self.judge(conn, members, resolved).await?;
        for (verdict, member) in verdicts.iter_mut().zip(members) {
            if matches!(verdict, Verdict::Again) {
                *verdict = record_late(conn, member, effects).await?;
            }
        }
        Ok(verdicts)
    }

    async fn wait(&self, conn: &mut PgConnection, member: &RunReport) -> Result<(), sqlx::Error> {
        let id = member.task.uuid();
        tasks::lock(conn, id).await?;
        if member.ending == Ending::Reported(Report::Completed) {
            // It may be late, and the open run is just being claimed.
            late_results::lock_pending(conn, id).await?;
        }
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

type Runs<T> = HashMap<(Uuid, RunId), T>;

/// Results and failures of the reported runs, and of runs that were made for their late results.
async fn load_returned(
    conn: &mut PgConnection,
    missing: &[&RunReport],
    known: &Runs<late_results::Known>,
) -> Result<Runs<Texts>, sqlx::Error> {
    let with_texts = missing.iter().filter(|member| member.result.is_some() || member.failure.is_some());
    let runs: Vec<(Uuid, RunId)> = with_texts
        .map(|member| {
            let id = member.task.uuid();
            let recorded = known.get(&(id, member.run)).and_then(|known| known.recorded);
            (id, recorded.unwrap_or(member.run))
        })
        .collect();
    if runs.is_empty() { Ok(HashMap::new()) } else { results::load(conn, &runs).await }
}

/// Returns the runs whose reports may be late results.
fn late_runs(missing: &[&RunReport], loaded: &HashMap<Uuid, tasks::Loaded>) -> Vec<(Uuid, RunId)> {
    let is_late = |member: &&&RunReport| {
        let ended = loaded.get(&member.task.uuid()).and_then(|loaded| find_ended(&loaded.task, member.run));
        ended.is_some_and(|ended| late::is_late(member.ending, ended.ended_by))
    };
    missing.iter().filter(is_late).map(|member| (member.task.uuid(), member.run)).collect()
}

fn find_ended(task: &Task, run: RunId) -> Option<&EndedRun> {
    task.ended.iter().find(|ended| ended.run.run == run)
}

/// Resolves the task of a late report that counts.
async fn record_late(
    conn: &mut PgConnection,
    member: &RunReport,
    effects: &mut Effects,
) -> Result<Verdict<Task>, sqlx::Error> {
    let id = member.task.uuid();
    let Some(ended) = late_results::record(conn, id, member.run, member.result.as_ref()).await? else {
        // A row is locked, or the open run has just been claimed or ended.
        return Ok(Verdict::Locked);
    };
    effects.tasks_ended(ended, ReasonResolved::Completed);
    end_counters::count_late(LateOutcome::Recorded);
    Ok(match tasks::load(conn, &[id]).await?.remove(&id) {
        Some(loaded) => Verdict::Done(loaded.task),
        None => Verdict::Refused(OpError::NotFound(format!("task {} does not exist", member.task))),
    })
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

fn diagnose(
    member: &RunReport,
    loaded: Option<tasks::Loaded>,
    known: &Runs<late_results::Known>,
    returned: &Runs<Texts>,
) -> Verdict<Task> {
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
    if let Some(ended) = find_ended(&loaded.task, run) {
        let known = known.get(&(task.uuid(), run));
        return match known {
            Some(known) if late::is_late(member.ending, ended.ended_by) => {
                diagnose_late(member, loaded.task, *known, returned)
            }
            Some(_) | None => diagnose_repeat(member, loaded.task, returned.get(&(task.uuid(), run))),
        };
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

/// The run has ended: the report repeats the one that ended it, or is refused.
fn diagnose_repeat(member: &RunReport, loaded: Task, returned: Option<&Texts>) -> Verdict<Task> {
    let (task, run) = (member.task, member.run);
    // A run caused by the ending may have begun. Otherwise this run must be the task's last: a rerun
    // revokes completed and failed.
    let retried = match member.ending {
        Ending::Reported(Report::Failed) => loaded.reason_of(run.next()) == Some(ReasonCreated::TaskRetry),
        ending => ending.retry().is_some(),
    };
    let last = matches!(loaded.life().state, State::Resolved(last, _) if last == run);
    let repeats = find_ended(&loaded, run).is_some_and(|ended| member.ending.repeats(ended));
    if !(repeats && (retried || last)) {
        return Verdict::Refused(refused(Refusal::AlreadyResolved, task, run));
    }
    same_texts(member, loaded, returned)
}

/// The run was taken from its worker, which reports it as completed.
fn diagnose_late(
    member: &RunReport,
    loaded: Task,
    known: late_results::Known,
    returned: &Runs<Texts>,
) -> Verdict<Task> {
    let (task, run) = (member.task, member.run);
    if known.recorded.is_some_and(|recorded| find_ended(&loaded, recorded).is_none()) {
        // It was recorded after the task was read.
        return Verdict::Locked;
    }
    let report = LateReport {
        ending: member.ending,
        ended_by: find_ended(&loaded, run).and_then(|ended| ended.ended_by),
        policy: known.policy,
        recorded: known.recorded,
        was_rerun: late::was_rerun(&loaded, run),
        state: loaded.life().state,
    };
    match late::judge(report) {
        // `run` records it, by a statement of its own.
        late::Verdict::Counts => Verdict::Again,
        late::Verdict::Repeats(recorded) => same_texts(member, loaded, returned.get(&(task.uuid(), recorded))),
        #[cfg(feature = "test-util")]
        late::Verdict::Refused if tenure_store::breakage::strikes(tenure_store::breakage::Breakage::LateTwice) => {
            Verdict::Done(loaded)
        }
        late::Verdict::Refused => {
            end_counters::count_late(LateOutcome::Rejected);
            Verdict::Refused(refused(Refusal::AlreadyResolved, task, run))
        }
    }
}

/// A repeat has the same result and failure, or none.
fn same_texts(member: &RunReport, loaded: Task, returned: Option<&Texts>) -> Verdict<Task> {
    let another = |what: &str| {
        let message = format!("run {} of task {} is already resolved with another {what}", member.run, member.task);
        Verdict::Refused(OpError::Conflict(message))
    };
    if !repeats_result(returned.and_then(|texts| texts.result.as_deref()), member.result.as_ref()) {
        return another("result");
    }
    if !repeats_failure(returned.and_then(|texts| texts.failure.as_deref()), member.failure.as_ref()) {
        return another("failure");
    }
    Verdict::Done(loaded)
}
