//! status: many callers' requests in one read.

use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use uuid::Uuid;

use super::OpError;
use crate::batch::{Operation, Verdict};
use crate::notifiers::Effects;
use tenure_domain::task::Task;
use tenure_store::hot::statement::Rows;
use tenure_store::tasks;

/// The operation.
pub struct ReadStatus;

/// Bytes that a member without a body counts for.
const SMALL: usize = 64;

impl Operation for ReadStatus {
    type Member = TaskId;
    type Answer = Task;
    const NAME: &'static str = "status";
    const WAITING_MAX: usize = 8_000;
    const READ_ONLY: bool = true;
    type Found = ();

    fn weight(_: &TaskId) -> usize {
        SMALL
    }

    fn task(member: &TaskId) -> Option<Uuid> {
        Some(member.uuid())
    }

    fn decode(&self, _: &[&TaskId], _: &Rows, _: &mut Effects) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&TaskId],
        (): (),
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        self.run(conn, members, &mut Effects::default()).await
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&TaskId],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let ids: Vec<Uuid> = members.iter().map(|id| id.uuid()).collect();
        let mut loaded = tasks::load(conn, &ids).await?;
        Ok(members
            .iter()
            .map(|id| match loaded.remove(&id.uuid()) {
                Some(loaded) => Verdict::Done(loaded.task),
                None => Verdict::Refused(OpError::NotFound(format!("task {id} does not exist"))),
            })
            .collect())
    }

    async fn wait(&self, _: &mut PgConnection, _: &TaskId) -> Result<(), sqlx::Error> {
        Ok(())
    }
}
