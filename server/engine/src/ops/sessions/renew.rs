//! Renewals of sessions: many in one statement.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::batch::{Operation, Verdict};
use crate::notifiers::Effects;
use crate::ops::OpError;
use tenure_store::hot::statement::Rows;
use tenure_store::worker_sessions::{self, Renewal, Renewed};

/// The operation.
pub struct RenewSession;

/// Bytes that a member without a body counts for.
const SMALL: usize = 64;

impl Operation for RenewSession {
    type Member = Renewal;
    type Answer = Renewed;
    const NAME: &'static str = "renew_session";
    const WAITING_MAX: usize = 16_000;
    /// A renewal is early by much more, and thousands of sessions are renewed with few commits.
    const GATHER: Duration = Duration::from_millis(50);
    type Found = Vec<Renewed>;

    fn weight(_: &Renewal) -> usize {
        SMALL
    }

    /// No batch has two renewals of a session: the statement changes each row once.
    fn task(member: &Renewal) -> Option<Uuid> {
        Some(Uuid::from_u128(u128::from(member.epoch.cast_unsigned())))
    }

    fn decode(&self, _: &[&Renewal], _: &Rows, _: &mut Effects) -> Result<Vec<Renewed>, sqlx::Error> {
        // It is no part of ticks.
        Ok(Vec::new())
    }

    async fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&Renewal],
        renewed: Vec<Renewed>,
    ) -> Result<Vec<Verdict<Renewed>>, sqlx::Error> {
        let mut renewed: HashMap<i64, Renewed> = renewed.into_iter().map(|row| (row.epoch, row)).collect();
        let left: Vec<i64> =
            members.iter().map(|member| member.epoch).filter(|epoch| !renewed.contains_key(epoch)).collect();
        let ended = if left.is_empty() { Vec::new() } else { worker_sessions::list_ended(conn, &left).await? };
        let ended: HashMap<i64, _> = ended.into_iter().collect();
        let verdict = |member: &&Renewal| match (renewed.remove(&member.epoch), ended.get(&member.epoch)) {
            (Some(Renewed { ended: Some(by), .. }), _) | (None, Some(&by)) => {
                Verdict::Refused(OpError::SessionEnded(by))
            }
            (Some(renewed), _) => Verdict::Done(renewed),
            // It is being ended.
            (None, None) => Verdict::Locked,
        };
        Ok(members.iter().map(verdict).collect())
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Renewal],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<Renewed>>, sqlx::Error> {
        let renewals: Vec<Renewal> = members.iter().map(|&&renewal| renewal).collect();
        let renewed = worker_sessions::renew(conn, &renewals).await?;
        self.judge(conn, members, renewed).await
    }

    async fn wait(&self, conn: &mut PgConnection, member: &Renewal) -> Result<(), sqlx::Error> {
        worker_sessions::lock(conn, member.epoch).await
    }
}
