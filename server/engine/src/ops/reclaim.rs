//! reclaimTask: renews a claim, or refuses with a reason.

use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{RunId, TaskId};
use uuid::Uuid;

use super::{OpError, refused};
use crate::batch::tick::Kind;
use crate::batch::{Operation, Verdict};
use crate::notifiers::Effects;
use crate::workers::Workers;
use tenure_domain::policy::life::{Event, apply};
use tenure_domain::task::{EndedRun, Granted};
use tenure_domain::worker::Sight;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::queues::Queues;
use tenure_store::transitions::renew::{self, Member, Renewed};
use tenure_store::{claims, tasks};

pub struct Reclaim {
    pub queues: Queues,
    pub pool: PgPool,
    pub lease: Duration,
    pub workers: Workers,
}

#[derive(Debug, Clone, Copy)]
pub struct ClaimRenewal {
    pub task: TaskId,
    pub run: RunId,
}

impl Operation for Reclaim {
    type Member = ClaimRenewal;
    type Answer = Granted;
    const NAME: &'static str = "reclaim";
    const WAITING_MAX: usize = 16_000;
    const KIND: Option<Kind> = Some(Kind::Renew);
    type Decoded = Vec<Renewed>;

    fn task(member: &ClaimRenewal) -> Option<Uuid> {
        Some(member.task.uuid())
    }

    fn statement(&self, members: &[&ClaimRenewal]) -> Option<Statement> {
        Some(renew::statement(&renewals(members), self.lease))
    }

    fn decode(&self, _: &[&ClaimRenewal], rows: &Rows, _: &mut Effects) -> Result<Vec<Renewed>, sqlx::Error> {
        rows.decode()
    }

    async fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&ClaimRenewal],
        renewed: Vec<Renewed>,
    ) -> Result<Vec<Verdict<Granted>>, sqlx::Error> {
        let retried: Vec<i64> = renewed.iter().filter(|row| row.run > 0).map(|row| row.seq).collect();
        let mut history = tasks::load_history(conn, &retried).await?;
        let mut verdicts: Vec<Option<Verdict<Granted>>> = members.iter().map(|_| None).collect();
        for row in renewed {
            let (member, ended) = (row.member(), history.remove(&row.seq).unwrap_or_default());
            verdicts[member] = Some(Verdict::Done(self.granted(row, ended).await?));
        }
        let missing: Vec<Uuid> = members
            .iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| verdict.is_none())
            .map(|(m, _)| m.task.uuid())
            .collect();
        if !missing.is_empty() {
            let loaded = tasks::load(conn, &missing).await?;
            for (verdict, member) in verdicts.iter_mut().zip(members).filter(|(verdict, _)| verdict.is_none()) {
                *verdict = Some(diagnose(member, loaded.get(&member.task.uuid())));
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    async fn wait(&self, conn: &mut PgConnection, member: &ClaimRenewal) -> Result<(), sqlx::Error> {
        claims::lock(conn, member.task.uuid()).await
    }
}

fn renewals(members: &[&ClaimRenewal]) -> Vec<Member> {
    members.iter().map(|member| Member { id: member.task.uuid(), run: member.run.number().cast_signed() }).collect()
}

impl Reclaim {
    async fn granted(&self, row: Renewed, ended: Vec<EndedRun>) -> Result<Granted, sqlx::Error> {
        self.workers.saw(row.worker(), Sight::Reclaim);
        let queue = self.queues.get_name(&self.pool, row.queue).await?;
        Ok(row.describe(queue, ended)?)
    }
}

fn diagnose(member: &ClaimRenewal, loaded: Option<&tasks::Loaded>) -> Verdict<Granted> {
    let (task, run) = (member.task, member.run);
    let Some(loaded) = loaded else {
        return Verdict::Refused(OpError::NotFound(format!("task {task} does not exist")));
    };
    if let Err(refusal) = apply(loaded.task.life(), Event::Reclaim(run)) {
        return Verdict::Refused(refused(refusal, task, run));
    }
    if loaded.task.deadline <= loaded.now {
        return Verdict::Refused(OpError::Conflict(format!("the deadline of task {task} has passed")));
    }
    Verdict::Locked
}
