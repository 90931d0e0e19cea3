//! createTask: stores new tasks, answers exact repeats like the first request, and refuses the rest
//! with a reason.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use super::OpError;
use crate::batch::tick::Kind;
use crate::batch::{Batcher, Operation, Verdict};
use crate::notifiers::Effects;
use tenure_api::ids::TaskId;
use tenure_api::states::Requires;
use tenure_domain::create::{Awaited, GroupOwner, NewTask, Unmade, dependency_refusal, why_unmade};
use tenure_domain::task::Task;
use tenure_store::dependencies::{self, Edge, Required, Wanted};
use tenure_store::groups;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::queues::{self, Queues, Remembered};
use tenure_store::tasks;
use tenure_store::transitions::create::{self, Created, Existing, Member, Names, Outcome};

/// Bytes of bodies per tick. Larger batches run outside ticks, so that other operations do not
/// wait.
const TICK_BYTES_MAX: usize = 256 << 10;
/// Look-ups of a queue's key per request.
const LOOKUPS_MAX: u32 = 3;

pub struct CreateTask {
    /// Caches which queues have a policy.
    pub queues: Queues,
}

impl CreateTask {
    fn without_dependencies<'a>(&self, members: &[&'a NewTaskInQueue]) -> Vec<Member<'a>> {
        let plain = |member: &&'a NewTaskInQueue| Member {
            task: &member.task,
            queue: member.queue,
            waits: false,
            ruled: self.queues.is_ruled(member.queue),
        };
        members.iter().map(plain).collect()
    }

    fn note(&self, members: &[&NewTaskInQueue], outcome: &Outcome) {
        let stored = outcome.stored.iter().map(|row| (row.member, row.ruled));
        for (member, ruled) in stored.chain(outcome.ruled.iter().map(|&member| (member, true))) {
            self.queues.note_ruled(members[member].queue, ruled);
        }
    }
}

pub async fn create_task(
    batcher: &Batcher<CreateTask>,
    queues: &Queues,
    pool: &PgPool,
    task: Arc<NewTask>,
) -> Result<Task, OpError> {
    for _ in 0..LOOKUPS_MAX {
        let queue = queues.get_or_create_key(pool, &task.queue).await?;
        match batcher.submit(NewTaskInQueue { task: Arc::clone(&task), queue }).await {
            Err(OpError::StaleQueue) => queues.drop_key(&task.queue),
            answer => return answer,
        }
    }
    Err(OpError::Unavailable)
}

#[derive(Debug)]
pub struct NewTaskInQueue {
    pub task: Arc<NewTask>,
    pub queue: i32,
}

impl Operation for CreateTask {
    type Member = NewTaskInQueue;
    type Answer = Task;
    const NAME: &'static str = "create";
    const WAITING_MAX: usize = 4_000;
    const KIND: Option<Kind> = Some(Kind::Create);
    type Decoded = Outcome;

    fn weight(member: &NewTaskInQueue) -> usize {
        member.task.bytes()
    }

    fn task(member: &NewTaskInQueue) -> Option<Uuid> {
        Some(member.task.id.uuid())
    }

    fn edges(member: &NewTaskInQueue) -> usize {
        member.task.dependencies.len()
    }

    fn statement(&self, members: &[&NewTaskInQueue]) -> Option<Statement> {
        // Dependencies take further statements in their own transaction.
        let waits = members.iter().any(|member| !member.task.dependencies.is_empty());
        let bytes: usize = members.iter().map(|member| member.task.bytes()).sum();
        (!waits && bytes <= TICK_BYTES_MAX).then(|| create::statement(&self.without_dependencies(members)))
    }

    fn is_special(&self, member: &NewTaskInQueue) -> bool {
        !member.task.dependencies.is_empty()
            || self.without_dependencies(&[member]).iter().any(|member| !member.is_alone())
    }

    fn claimable(member: &NewTaskInQueue) -> Option<i32> {
        let starts_later = member.task.options.as_ref().is_some_and(|options| options.start.is_some());
        (!starts_later).then_some(member.queue)
    }

    fn decode(&self, members: &[&NewTaskInQueue], rows: &Rows, effects: &mut Effects) -> Result<Outcome, sqlx::Error> {
        let outcome = create::decode(rows)?;
        self.note(members, &outcome);
        effects.claimable.extend(claimable(members, &outcome.stored));
        effects.admission.extend(held(members, &outcome.stored));
        Ok(outcome)
    }

    async fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&NewTaskInQueue],
        outcome: Outcome,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        judge(conn, members, outcome, &[]).await
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&NewTaskInQueue],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let mut awaited = Vec::new();
        let stored = if members.iter().all(|member| member.task.dependencies.is_empty()) {
            create::create(conn, &self.without_dependencies(members)).await?
        } else {
            let (stored, found) = create_waiting(conn, members).await?;
            effects.dependents = true;
            awaited = found;
            stored
        };
        effects.claimable.extend(claimable(members, &stored));
        effects.admission.extend(held(members, &stored));
        let outcome = Outcome { stored, ruled: Vec::new() };
        self.note(members, &outcome);
        judge(conn, members, outcome, &awaited).await
    }

    async fn wait(&self, conn: &mut PgConnection, member: &NewTaskInQueue) -> Result<(), sqlx::Error> {
        // Waits for transactions that purge or extend the group. Other conflicts are committed
        // already, or the inserts wait for them.
        groups::lock(conn, member.task.group.uuid()).await
    }
}

/// Queues with new claimable runs.
fn claimable(members: &[&NewTaskInQueue], stored: &[Created]) -> impl Iterator<Item = i32> {
    stored.iter().filter(|row| !row.waits && !row.held).map(|row| members[row.member].queue)
}

/// Queues with new held runs.
fn held(members: &[&NewTaskInQueue], stored: &[Created]) -> impl Iterator<Item = i32> {
    stored.iter().filter(|row| row.held).map(|row| members[row.member].queue)
}

/// Returns one verdict per member. `awaited` has the dependencies of each member, or is empty.
async fn judge(
    conn: &mut PgConnection,
    members: &[&NewTaskInQueue],
    outcome: Outcome,
    awaited: &[Waits],
) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
    let mut verdicts: Vec<Option<Verdict<Task>>> = members.iter().map(|_| None).collect();
    for row in outcome.stored {
        verdicts[row.member] = Some(Verdict::Done(row.task(&members[row.member].task)));
    }
    // The statement that stamps policies handles them together.
    for member in outcome.ruled {
        verdicts[member] = Some(Verdict::Again);
    }
    let missing: Vec<usize> = (0..members.len()).filter(|&position| verdicts[position].is_none()).collect();
    let tasks: Vec<Unstored<'_>> = missing
        .iter()
        .map(|&position| Unstored {
            task: &members[position].task,
            queue: members[position].queue,
            awaited: awaited.get(position).map_or(&[][..], Vec::as_slice),
        })
        .collect();
    let mut unclear = Vec::new();
    for (position, verdict) in missing.into_iter().zip(diagnose(conn, &tasks).await?) {
        if matches!(verdict, Verdict::Locked) {
            unclear.push(position);
        }
        verdicts[position] = Some(verdict);
    }
    for position in stale(conn, members, &unclear).await? {
        verdicts[position] = Some(Verdict::Refused(OpError::StaleQueue));
    }
    Ok(verdicts.into_iter().flatten().collect())
}

/// Returns the members whose queue no longer has their key.
async fn stale(
    conn: &mut PgConnection,
    members: &[&NewTaskInQueue],
    positions: &[usize],
) -> Result<Vec<usize>, sqlx::Error> {
    if positions.is_empty() {
        return Ok(Vec::new());
    }
    let queues: Vec<Remembered<'_>> = positions
        .iter()
        .map(|&position| Remembered { key: members[position].queue, name: &members[position].task.queue })
        .collect();
    let stale = queues::list_stale(conn, &queues).await?;
    Ok(stale.into_iter().map(|place| positions[place]).collect())
}

/// Dependencies of a member, and whether each exists.
type Waits = Vec<(TaskId, Awaited)>;

/// Stores members and their dependency edges in one transaction.
///
/// An edge is satisfied at once if its required task has ended. If that task ends meanwhile, the
/// dependency pass notices when it reads the creation event.
async fn create_waiting(
    conn: &mut PgConnection,
    members: &[&NewTaskInQueue],
) -> Result<(Vec<Created>, Vec<Waits>), sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let requested: Vec<Wanted<'_>> = members
        .iter()
        .map(|member| Wanted {
            required: &member.task.dependencies,
            any_end: member.task.requires == Requires::AllResolved,
        })
        .collect();
    let mut required: Vec<Vec<Required>> = members.iter().map(|_| Vec::new()).collect();
    for row in dependencies::list_required(&mut transaction, &requested).await? {
        required[row.member].push(row);
    }
    let awaited: Vec<Waits> =
        members.iter().zip(&required).map(|(member, required)| awaited(&member.task, required)).collect();
    let valid: Vec<usize> = (0..members.len())
        .filter(|&position| dependency_refusal(&members[position].task, &awaited[position]).is_none())
        .collect();
    let batch: Vec<Member<'_>> = valid
        .iter()
        .map(|&position| Member {
            task: &members[position].task,
            queue: members[position].queue,
            waits: required[position].iter().any(|required| !required.satisfied),
            ruled: false,
        })
        .collect();
    let mut stored = create::create(&mut transaction, &batch).await?;
    let mut edges = Vec::new();
    for row in &mut stored {
        row.member = valid[row.member];
        let task = &members[row.member].task;
        edges.extend(required[row.member].iter().map(|required| Edge {
            // A self-dependency had no key before.
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

/// A task skipped by the statement.
pub(super) struct Unstored<'a> {
    pub(super) task: &'a NewTask,
    pub(super) queue: i32,
    /// Dependencies, and whether each exists.
    pub(super) awaited: &'a [(TaskId, Awaited)],
}

/// Returns why each task was not stored, with one statement for all and one read for the repeats.
pub(super) async fn diagnose(
    conn: &mut PgConnection,
    unstored: &[Unstored<'_>],
) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
    let mut found: Vec<Option<Unmade>> = unstored.iter().map(|_| None).collect();
    let mut unread: Vec<usize> = (0..unstored.len()).collect();
    // Several rounds only if the stored definitions are large.
    while !unread.is_empty() {
        let names: Vec<Names> = unread
            .iter()
            .map(|&position| Names {
                task: unstored[position].task.id.uuid(),
                group: unstored[position].task.group.uuid(),
                queue: unstored[position].queue,
            })
            .collect();
        for existing in create::find_existing(conn, &names).await? {
            let position = unread[existing.member];
            found[position] = Some(unmade(&unstored[position], &existing));
        }
        unread.retain(|&position| found[position].is_none());
    }
    let repeats = unstored.iter().zip(&found).filter(|(_, why)| matches!(why, Some(Unmade::Repeat)));
    let repeats: Vec<Uuid> = repeats.map(|(unstored, _)| unstored.task.id.uuid()).collect();
    let mut loaded = if repeats.is_empty() { HashMap::new() } else { tasks::load(conn, &repeats).await? };
    let verdict = |(unstored, why): (&Unstored<'_>, Option<Unmade>)| match why {
        Some(Unmade::Repeat) => {
            loaded.remove(&unstored.task.id.uuid()).map_or(Verdict::Locked, |loaded| Verdict::Done(loaded.task))
        }
        Some(Unmade::Conflict(message)) => Verdict::Refused(OpError::Conflict(message)),
        Some(Unmade::Input(message)) => Verdict::Refused(OpError::Input(message)),
        // Another server just created the group: retry.
        Some(Unmade::Unclear) | None => Verdict::Locked,
    };
    Ok(unstored.iter().zip(found).map(verdict).collect())
}

fn unmade(unstored: &Unstored<'_>, existing: &Existing) -> Unmade {
    let stored = existing.stored.as_ref().map(|stored| (stored.definition.as_str(), stored.priority));
    let group = existing.group.as_ref().map(|group| GroupOwner { scheduler: &group.scheduler, sealed: group.sealed });
    why_unmade(unstored.task, stored, group, existing.queue_delay, unstored.awaited, existing.now)
}
