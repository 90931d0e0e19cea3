//! createTask: store what is new; answer exact repeats as if they were the first; say why the rest is refused.

use std::sync::Arc;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::OpError;
use crate::batch::{Operation, Verdict};
use crate::domain::create::{Awaited, NewTask, date_refusal, dependency_refusal, same_definition, shown_definition};
use crate::domain::task::{Last, OpenRun, Task};
use crate::store::dependencies::{self, Edge, Required, Wanted};
use crate::store::groups;
use crate::store::hot::create::{self, Created, Member};
use crate::store::tasks::{self, Loaded};
use crate::wakeup::Bells;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{ReasonCreated, Requires};

/// The operation.
pub struct CreateTask {
    /// Rung for what has dependencies.
    pub bells: Bells,
}

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

    fn edges(member: &Request) -> usize {
        member.task.dependencies.len()
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Request],
        claimable: &mut Vec<i32>,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let mut awaited = Vec::new();
        let stored = if members.iter().all(|member| member.task.dependencies.is_empty()) {
            let batch: Vec<Member<'_>> =
                members.iter().map(|member| Member { task: &member.task, queue: member.queue, waits: false }).collect();
            create::create(conn, &batch).await?
        } else {
            let (stored, found) = create_waiting(conn, members).await?;
            self.bells.ring_dependencies();
            awaited = found;
            stored
        };
        claimable.extend(stored.iter().filter(|row| !row.waits).map(|row| members[row.member].queue));
        let mut verdicts: Vec<Option<Verdict<Task>>> = members.iter().map(|_| None).collect();
        for row in stored {
            verdicts[row.member] = Some(Verdict::Done(new_task(&members[row.member].task, &row)));
        }
        for (place, (verdict, member)) in verdicts.iter_mut().zip(members).enumerate() {
            if verdict.is_none() {
                let awaited = awaited.get(place).map_or(&[][..], Vec::as_slice);
                *verdict = Some(diagnose(conn, &member.task, awaited).await?);
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    async fn wait(&self, conn: &mut PgConnection, member: &Request) -> Result<(), sqlx::Error> {
        // Whoever forgets the group, or adds to it, is waited for. What else this one met was committed a moment ago,
        // or its inserts wait by themselves.
        groups::lock(conn, member.task.group.uuid()).await
    }
}

/// A task that was just stored.
pub(super) fn new_task(task: &NewTask, stored: &Created) -> Task {
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
        last: if stored.waits {
            Last::Unscheduled
        } else {
            Last::Pending(OpenRun { run: RunId::FIRST, reason: ReasonCreated::Scheduled, scheduled: stored.now })
        },
        ended: Vec::new(),
    }
}

/// What a member waits for, and whether it exists.
type Waits = Vec<(TaskId, Awaited)>;

/// Stores members of which some have dependencies, and their edges, in one transaction.
///
/// An edge is satisfied from the start if its required task has ended by now. If it ends while this transaction is
/// under way, the dependency pass finds that out when it reads the event of the creation.
async fn create_waiting(
    conn: &mut PgConnection,
    members: &[&Request],
) -> Result<(Vec<Created>, Vec<Waits>), sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let wanted: Vec<Wanted<'_>> = members
        .iter()
        .map(|member| Wanted {
            required: &member.task.dependencies,
            any_end: member.task.requires == Requires::AllResolved,
        })
        .collect();
    let mut required: Vec<Vec<Required>> = members.iter().map(|_| Vec::new()).collect();
    for row in dependencies::list_required(&mut transaction, &wanted).await? {
        required[row.member].push(row);
    }
    let awaited: Vec<Waits> =
        members.iter().zip(&required).map(|(member, required)| awaited(&member.task, required)).collect();
    let welcome: Vec<usize> = (0..members.len())
        .filter(|&place| dependency_refusal(&members[place].task, &awaited[place]).is_none())
        .collect();
    let batch: Vec<Member<'_>> = welcome
        .iter()
        .map(|&place| Member {
            task: &members[place].task,
            queue: members[place].queue,
            waits: required[place].iter().any(|required| !required.satisfied),
        })
        .collect();
    let mut stored = create::create(&mut transaction, &batch).await?;
    let mut edges = Vec::new();
    for row in &mut stored {
        row.member = welcome[row.member];
        let task = &members[row.member].task;
        edges.extend(required[row.member].iter().map(|required| Edge {
            // A task that waits for itself had no key before.
            required: required.seq.unwrap_or(row.seq),
            dependent: task.id.uuid(),
            any_end: task.requires == Requires::AllResolved,
            satisfied: required.satisfied,
        }));
    }
    dependencies::insert(&mut transaction, &edges).await?;
    transaction.commit().await?;
    Ok((stored, awaited))
}

fn awaited(task: &NewTask, required: &[Required]) -> Waits {
    let found = |row: &Required| match row.expires {
        _ if row.id == task.id.uuid() => Awaited::Itself,
        Some(expires) => Awaited::Until(expires),
        None => Awaited::Missing,
    };
    required.iter().filter_map(|row| Some((TaskId::from_uuid(row.id)?, found(row)))).collect()
}

/// Why a task was not stored.
pub(super) async fn diagnose(
    conn: &mut PgConnection,
    task: &NewTask,
    awaited: &[(TaskId, Awaited)],
) -> Result<Verdict<Task>, sqlx::Error> {
    let id = task.id.uuid();
    if let Some((stored, priority)) = tasks::find_definition_and_priority(conn, id).await? {
        // Whoever read the task sends what was shown to him.
        let repeated = same_definition(&stored, &task.definition)
            || same_definition(&shown_definition(stored, priority), &task.definition);
        if !repeated {
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
        Some((_, None)) | None => Ok(match dependency_refusal(task, awaited) {
            Some(refusal) => Verdict::Refused(OpError::Input(refusal)),
            // The group was made by another server at the same moment: once more.
            None => Verdict::Locked,
        }),
    }
}
