//! createTask: store what is new; answer exact repeats as if they were the first; say why the rest is refused.

use std::sync::Arc;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::OpError;
use crate::batch::{Operation, Verdict};
use crate::domain::create::{NewTask, date_refusal, same_definition};
use crate::domain::task::{Last, OpenRun, Task};
use crate::store::hot::create::{self, Created, Member};
use crate::store::tasks::{self, Loaded};
use tenure_api::ids::RunId;
use tenure_api::states::ReasonCreated;

/// The operation.
pub struct CreateTask;

/// A task to create, and the key of its queue.
#[derive(Debug)]
pub struct Request {
    /// The task.
    pub task: Arc<NewTask>,
    /// `task_queues.id`.
    pub queue: i32,
}

impl Operation for CreateTask {
    type Member = Request;
    type Answer = Task;
    const NAME: &'static str = "create";
    const WAITING_MAX: usize = 4_000;

    fn weight(member: &Request) -> usize {
        member.task.bytes()
    }

    fn task(member: &Request) -> Option<Uuid> {
        Some(member.task.id.uuid())
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Request],
        claimable: &mut Vec<i32>,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let batch: Vec<Member<'_>> =
            members.iter().map(|member| Member { task: &member.task, queue: member.queue }).collect();
        let stored = create::create(conn, &batch).await?;
        claimable.extend(stored.iter().map(|row| members[row.member].queue));
        let mut verdicts: Vec<Option<Verdict<Task>>> = members.iter().map(|_| None).collect();
        for row in stored {
            verdicts[row.member] = Some(Verdict::Done(new_task(&members[row.member].task, &row)));
        }
        for (verdict, member) in verdicts.iter_mut().zip(members) {
            if verdict.is_none() {
                *verdict = Some(diagnose(conn, &member.task).await?);
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    async fn wait(&self, conn: &mut PgConnection, member: &Request) -> Result<(), sqlx::Error> {
        // There is nothing to lock yet: what this one met was committed a moment ago, or its inserts wait by themselves.
        let _ = member;
        conn.ping().await
    }
}

fn new_task(task: &NewTask, stored: &Created) -> Task {
    Task {
        id: task.id,
        seq: stored.seq,
        queue: task.queue.clone(),
        scheduler: task.scheduler.to_string(),
        project: task.project.to_string(),
        group: task.group,
        priority: task.priority,
        deadline: task.deadline,
        expires: task.expires,
        retries_left: task.retries,
        last: Last::Pending(OpenRun { run: RunId::FIRST, reason: ReasonCreated::Scheduled, scheduled: stored.now }),
        ended: Vec::new(),
    }
}

/// Why a task was not stored.
async fn diagnose(conn: &mut PgConnection, task: &NewTask) -> Result<Verdict<Task>, sqlx::Error> {
    let id = task.id.uuid();
    if let Some(definition) = tasks::find_definition(conn, id).await? {
        if !same_definition(&definition, &task.definition) {
            return Ok(Verdict::Refused(OpError::Conflict(format!(
                "task {} exists already with another definition; choose another taskId",
                task.id
            ))));
        }
        let known: Option<Loaded> = tasks::load(conn, &[id]).await?.remove(&id);
        return Ok(known.map_or(Verdict::Locked, |known| Verdict::Done(known.task)));
    }
    if let Some(refusal) = date_refusal(task, crate::store::clock::get_now(conn).await?) {
        return Ok(Verdict::Refused(OpError::Input(refusal)));
    }
    let group = task.group;
    match tasks::find_group(conn, group.uuid()).await? {
        Some((scheduler, _)) if scheduler != task.scheduler.as_str() => Ok(Verdict::Refused(OpError::Conflict(
            format!("task group {group} belongs to schedulerId {scheduler}; all of its tasks must have that one"),
        ))),
        Some((_, Some(_))) => {
            Ok(Verdict::Refused(OpError::Conflict(format!("task group {group} is sealed; no task can be added"))))
        }
        // The group was made by another server at the same moment: once more.
        Some((_, None)) | None => Ok(Verdict::Locked),
    }
}
