//! status: many callers' requests in one read.

use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use uuid::Uuid;

use super::OpError;
use crate::batch::{Operation, Verdict};
use crate::notifiers::Effects;
use tenure_domain::task::Task;
use tenure_store::tasks;

pub struct ReadStatus;

impl Operation for ReadStatus {
    type Member = TaskId;
    type Answer = Task;
    const NAME: &'static str = "status";
    const WAITING_MAX: usize = 8_000;
    const READ_ONLY: bool = true;
    type Decoded = ();

    /// Readers of one task share a batch: thousands of callers may wait for its end.
    fn task(_: &TaskId) -> Option<Uuid> {
        None
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&TaskId],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let mut ids: Vec<Uuid> = members.iter().map(|id| id.uuid()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut loaded = tasks::load(conn, &ids).await?;
        // Avoid copies in the common case of distinct tasks.
        let is_shared = ids.len() < members.len();
        let mut find = |id: Uuid| {
            if is_shared {
                loaded.get(&id).map(|loaded| loaded.task.clone())
            } else {
                loaded.remove(&id).map(|loaded| loaded.task)
            }
        };
        let verdict = |id: &&TaskId| match find(id.uuid()) {
            Some(task) => Verdict::Done(task),
            None => Verdict::Refused(OpError::NotFound(format!("task {id} does not exist"))),
        };
        Ok(members.iter().map(verdict).collect())
    }
}

#[cfg(test)]
mod tests {
    use tenure_domain::lifecycle::Report;
    use tenure_store::testing::TestDatabase;

    use super::*;
    use crate::testing::{QUEUE, Queue, new_task};

    #[tokio::test]
    async fn readers_of_one_task_share_a_batch() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let one = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        queue.report(one, run, Report::Completed).await.unwrap();
        let other = queue.create_one(QUEUE).await;
        let missing = new_task(QUEUE, &serde_json::json!({})).id;
        assert_eq!(ReadStatus::task(&one), None, "readers of one task share a batch");
        let mut conn = database.connect_hot().await;
        let (whole, open) = (Some((one, 1)), Some((other, 0)));
        for (members, expected) in [
            (vec![&one, &other, &one, &missing, &one], vec![whole, open, whole, None, whole]),
            (vec![&other, &missing, &one], vec![open, None, whole]),
        ] {
            let verdicts = ReadStatus.run(&mut conn, &members, &mut Effects::default()).await.unwrap();
            let found = verdicts.iter().map(|verdict| match verdict {
                Verdict::Done(task) => Some((task.id, task.ended.len())),
                Verdict::Refused(_) | Verdict::Locked | Verdict::Again => None,
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
        drop(conn);
        queue.stop().await;
        database.finish().await;
    }
}
