//! Renews many sessions in one statement.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::batch::{Operation, Verdict};
use crate::notifiers::Effects;
use crate::ops::OpError;
use tenure_store::worker_sessions::{self, Renewal, Renewed};

pub struct RenewSession;

/// Gathering time of plain renewals, which are early by much more: thousands of sessions need few
/// commits.
const GATHER: Duration = Duration::from_millis(250);
/// Gathering time for a worker that does not wait for items.
const GATHER_LEAST: Duration = Duration::from_millis(50);
/// Gathering time after acknowledged items: others may be there.
const GATHER_ACKNOWLEDGED: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub struct Renewing {
    renewal: Renewal,
    gather: Duration,
}

impl Renewing {
    pub fn in_no_hurry(renewal: Renewal) -> Self {
        Self { renewal, gather: GATHER }
    }

    /// For a worker that waits this long for items.
    pub fn within(renewal: Renewal, wait: Duration) -> Self {
        Self { renewal, gather: wait.clamp(GATHER_LEAST, GATHER) }
    }

    /// For a worker that has processed items.
    pub fn acknowledging(renewal: Renewal) -> Self {
        Self { renewal, gather: GATHER_ACKNOWLEDGED }
    }
}

impl Operation for RenewSession {
    type Member = Renewing;
    type Answer = Renewed;
    const NAME: &'static str = "renew_session";
    const WAITING_MAX: usize = 16_000;
    type Decoded = Vec<Renewed>;

    fn gather(member: &Renewing) -> Duration {
        member.gather
    }

    /// One renewal per session and batch: the statement changes each row once.
    fn task(member: &Renewing) -> Option<Uuid> {
        Some(Uuid::from_u128(u128::from(member.renewal.epoch.cast_unsigned())))
    }

    async fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&Renewing],
        renewed: Vec<Renewed>,
    ) -> Result<Vec<Verdict<Renewed>>, sqlx::Error> {
        let mut renewed: HashMap<i64, Renewed> = renewed.into_iter().map(|row| (row.epoch, row)).collect();
        let left: Vec<i64> =
            members.iter().map(|member| member.renewal.epoch).filter(|epoch| !renewed.contains_key(epoch)).collect();
        let ended = if left.is_empty() { Vec::new() } else { worker_sessions::list_ended(conn, &left).await? };
        let ended: HashMap<i64, _> = ended.into_iter().collect();
        let verdict =
            |member: &&Renewing| match (renewed.remove(&member.renewal.epoch), ended.get(&member.renewal.epoch)) {
                (Some(Renewed { ended: Some(by), .. }), _) | (None, Some(&by)) => {
                    Verdict::Refused(OpError::SessionEnded(by))
                }
                (Some(renewed), _) => Verdict::Done(renewed),
                // The session is just being ended.
                (None, None) => Verdict::Locked,
            };
        Ok(members.iter().map(verdict).collect())
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Renewing],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<Renewed>>, sqlx::Error> {
        let renewals: Vec<Renewal> = members.iter().map(|member| member.renewal).collect();
        let renewed = worker_sessions::renew(conn, &renewals).await?;
        self.judge(conn, members, renewed).await
    }

    async fn wait(&self, conn: &mut PgConnection, member: &Renewing) -> Result<(), sqlx::Error> {
        worker_sessions::lock(conn, member.renewal.epoch).await
    }
}
