//! createTask: stores new tasks, answers exact repeats like the first request, and refuses the rest
//! with a reason.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use super::OpError;
use super::drafts::{self, Draft};
use super::guarded::{self, Locking, Made, Wanted};
use super::unstored::{Unstored, diagnose};
use crate::batch::tick::Kind;
use crate::batch::{Batcher, Operation, Verdict};
use crate::notifiers::Effects;
use crate::statistics::Creation;
use crate::traces;
use tenure_domain::create::NewTask;
use tenure_domain::task::Task;
use tenure_domain::traces::SpanContext;
use tenure_store::events::Sequenced;
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::queues::{self, Queues, Remembered};
use tenure_store::transitions::create::{self, Created, Guarded, Member, Outcome};
use tenure_store::{groups, session};

/// Bytes of bodies per tick. Larger batches run outside ticks, so that other operations do not
/// wait.
const TICK_BYTES_MAX: usize = 256 << 10;
/// Dependencies per tick.
const TICK_EDGES_MAX: usize = 500;
/// Look-ups of a queue's key per request.
const LOOKUPS_MAX: u32 = 3;

pub struct CreateTask {
    /// Caches which queues have a policy.
    queues: Queues,
    /// Position after which counter changes are read.
    sequenced: Arc<dyn Fn() -> Sequenced + Send + Sync>,
}

impl CreateTask {
    #[must_use]
    pub fn new(queues: &Queues, sequenced: Arc<dyn Fn() -> Sequenced + Send + Sync>) -> Self {
        Self { queues: queues.clone(), sequenced }
    }

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
        for &member in &outcome.bounded {
            self.queues.note_bounded(members[member].queue, Some(false));
        }
    }

    /// True if the statement for dependents stores this member, as far as is known.
    fn is_ordinary_dependent(&self, member: &NewTaskInQueue) -> bool {
        create::is_ordinary_dependent(&member.task) && !self.queues.is_ruled(member.queue) && !self.is_guarded(member)
    }

    fn is_guarded(&self, member: &NewTaskInQueue) -> bool {
        member.task.unique().is_some() || self.queues.is_bounded(member.queue)
    }

    /// Runs members without names, whose queues have no known limit.
    async fn run_plain(
        &self,
        conn: &mut PgConnection,
        members: &[&NewTaskInQueue],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let mut drafts = Vec::new();
        let outcome = if members.iter().all(|member| member.task.dependencies.is_empty()) {
            create::create(conn, &self.without_dependencies(members), Guarded::No).await?
        } else {
            let (outcome, read) = create_waiting(conn, members).await?;
            drafts = read;
            outcome
        };
        note_created(members, &outcome.stored, effects);
        self.note(members, &outcome);
        judge(conn, members, outcome, &drafts).await
    }

    /// Stores members without names and dependencies whose queues are far from their limits. Returns
    /// the stored ones by position. The others take more statements.
    async fn run_far(
        &self,
        conn: &mut PgConnection,
        members: &[&NewTaskInQueue],
        effects: &mut Effects,
    ) -> Result<Vec<(usize, Task)>, sqlx::Error> {
        let is_far = |&position: &usize| {
            let NewTaskInQueue { task, queue, .. } = members[position];
            task.unique().is_none() && task.dependencies.is_empty() && self.queues.is_far(*queue)
        };
        let mut positions: Vec<usize> = (0..members.len()).filter(is_far).collect();
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        let queues: BTreeSet<i32> = positions.iter().map(|&position| members[position].queue).collect();
        let sequenced = (self.sequenced)();
        let mut transaction = conn.begin().await?;
        let far = guarded::share_far(&mut transaction, sequenced, &queues).await?;
        for queue in queues.difference(&far) {
            self.queues.note_bounded(*queue, Some(false));
        }
        positions.retain(|&position| far.contains(&members[position].queue));
        let members: Vec<&NewTaskInQueue> = positions.iter().map(|&position| members[position]).collect();
        // Each of these queues has a policy, its limit. The statement finds others.
        let drafts: Vec<Member<'_>> = members
            .iter()
            .map(|NewTaskInQueue { task, queue, .. }| Member { task, queue: *queue, waits: false, ruled: false })
            .collect();
        let stored = create::create_far(&mut transaction, &drafts).await?;
        if stored.is_empty() {
            // Unlocks: on the blocking path the caller's transaction goes on, and needs exclusive locks.
            transaction.rollback().await?;
            return Ok(Vec::new());
        }
        transaction.commit().await?;
        note_created(&members, &stored, effects);
        Ok(stored.into_iter().map(|row| (positions[row.member], row.task(&members[row.member].task))).collect())
    }

    /// Runs members with names or in queues with a limit, in a transaction of their own.
    async fn run_guarded(
        &self,
        conn: &mut PgConnection,
        members: &[&NewTaskInQueue],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let wanted: Vec<Wanted<'_>> =
            members.iter().map(|member| Wanted { task: &member.task, queue: member.queue }).collect();
        let sequenced = (self.sequenced)();
        let first = guarded::look(conn, sequenced, &wanted).await?;
        for (position, member) in members.iter().enumerate() {
            let far = first.is_bounded(position).then(|| first.is_far(member.queue));
            self.queues.note_bounded(member.queue, far);
        }
        let made = match first.refuse_all(&wanted) {
            Some(refused) => refused,
            None => {
                let mut transaction = conn.begin().await?;
                session::idle_briefly(&mut transaction).await?;
                let before = effects.created.len();
                let made =
                    guarded::create_after(&mut transaction, sequenced, &wanted, first, Locking::Tries, effects).await;
                if made.is_err() {
                    // Rolled back, and perhaps tried again.
                    effects.created.truncate(before);
                }
                let made = made?;
                transaction.commit().await?;
                for member in members.iter().filter(|member| member.link.is_some()) {
                    let task = member.task.id.uuid();
                    let created = effects.created[before..].iter_mut().filter(|creation| creation.task == task);
                    created.for_each(|creation| creation.link = member.link);
                }
                made
            }
        };
        let refusals: Vec<&OpError> = made.iter().filter_map(Made::refusal).collect();
        for error in &refusals {
            guarded::count_refusal(error);
        }
        guarded::note_refusals(conn, &refusals).await?;
        let mut verdicts: Vec<Verdict<Task>> = made.into_iter().map(verdict).collect();
        let unclear: Vec<usize> = (0..verdicts.len()).filter(|&n| matches!(verdicts[n], Verdict::Locked)).collect();
        for position in stale(conn, members, &unclear).await? {
            verdicts[position] = Verdict::Refused(OpError::StaleQueue);
        }
        Ok(verdicts)
    }
}

fn verdict(made: Made) -> Verdict<Task> {
    match made {
        Made::Created(task) | Made::Repeat(task) => Verdict::Done(task),
        Made::Refused(error) => Verdict::Refused(error),
        Made::Again => Verdict::Locked,
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
        let link = traces::link_of_new_task();
        match batcher.submit(NewTaskInQueue { task: Arc::clone(&task), queue, link }).await {
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
    /// For the trace of the task.
    pub link: Option<SpanContext>,
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
        let bytes: usize = members.iter().map(|member| member.task.bytes()).sum();
        if members.is_empty() || bytes > TICK_BYTES_MAX {
            return None;
        }
        if members.iter().all(|member| self.is_ordinary_dependent(member)) {
            let edges: usize = members.iter().map(|member| member.task.dependencies.len()).sum();
            return (edges <= TICK_EDGES_MAX)
                .then(|| create::statement_of_dependents(&self.without_dependencies(members)));
        }
        // Other dependencies take further statements in their own transaction; so do names and limits.
        let plain = members.iter().all(|member| member.task.dependencies.is_empty() && !self.is_guarded(member));
        plain.then(|| create::statement(&self.without_dependencies(members)))
    }

    fn is_apart(&self, member: &NewTaskInQueue) -> bool {
        let has_dependencies = !member.task.dependencies.is_empty();
        self.is_guarded(member) || (has_dependencies && !self.is_ordinary_dependent(member))
    }

    fn has_own_statement(&self, member: &NewTaskInQueue) -> bool {
        self.is_ordinary_dependent(member)
    }

    fn is_special(&self, member: &NewTaskInQueue) -> bool {
        self.without_dependencies(&[member]).iter().any(|member| !member.is_alone())
    }

    fn claimable(member: &NewTaskInQueue) -> Option<i32> {
        let starts_later = member.task.options.as_ref().is_some_and(|options| options.start.is_some());
        // A task with dependencies usually waits for them.
        let waits = !member.task.dependencies.is_empty();
        (!starts_later && !waits).then_some(member.queue)
    }

    fn decode(&self, members: &[&NewTaskInQueue], rows: &Rows, effects: &mut Effects) -> Result<Outcome, sqlx::Error> {
        let outcome = create::decode(rows)?;
        self.note(members, &outcome);
        note_created(members, &outcome.stored, effects);
        Ok(outcome)
    }

    async fn judge(
        &self,
        conn: &mut PgConnection,
        members: &[&NewTaskInQueue],
        outcome: Outcome,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        if members.iter().all(|member| !member.task.dependencies.is_empty()) {
            // The general statements store or diagnose dependents that their statement has omitted.
            let mut verdicts: Vec<Verdict<Task>> = members.iter().map(|_| Verdict::Again).collect();
            for row in outcome.stored {
                verdicts[row.member] = Verdict::Done(row.task(&members[row.member].task));
            }
            return Ok(verdicts);
        }
        judge(conn, members, outcome, &[]).await
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&NewTaskInQueue],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
        let (mut guarded, plain): (Vec<usize>, Vec<usize>) =
            (0..members.len()).partition(|&position| self.is_guarded(members[position]));
        let of = |positions: &[usize]| positions.iter().map(|&position| members[position]).collect::<Vec<_>>();
        let mut verdicts: Vec<(usize, Verdict<Task>)> = Vec::with_capacity(members.len());
        if !plain.is_empty() {
            let judged = self.run_plain(conn, &of(&plain), effects).await?;
            for (position, verdict) in plain.into_iter().zip(judged) {
                // The statement has found that its queue has a limit.
                if matches!(verdict, Verdict::Again) && self.is_guarded(members[position]) {
                    guarded.push(position);
                } else {
                    verdicts.push((position, verdict));
                }
            }
        }
        if !guarded.is_empty() {
            let stored = self.run_far(conn, &of(&guarded), effects).await?;
            let done: BTreeSet<usize> = stored.iter().map(|(place, _)| guarded[*place]).collect();
            verdicts.extend(stored.into_iter().map(|(place, task)| (guarded[place], Verdict::Done(task))));
            guarded.retain(|position| !done.contains(position));
        }
        if !guarded.is_empty() {
            let judged = self.run_guarded(conn, &of(&guarded), effects).await?;
            verdicts.extend(guarded.into_iter().zip(judged));
        }
        verdicts.sort_by_key(|(position, _)| *position);
        Ok(verdicts.into_iter().map(|(_, verdict)| verdict).collect())
    }

    async fn wait(&self, conn: &mut PgConnection, member: &NewTaskInQueue) -> Result<(), sqlx::Error> {
        if member.task.unique().is_some() {
            guarded::lock_name(conn, &member.task).await?;
        }
        // Waits for transactions that purge or extend the group. Other conflicts are committed
        // already, or the inserts wait for them.
        groups::lock(conn, member.task.group.uuid()).await
    }
}

fn note_created(members: &[&NewTaskInQueue], stored: &[Created], effects: &mut Effects) {
    for row in stored.iter().filter(|row| row.waits) {
        let NewTaskInQueue { task, queue, .. } = members[row.member];
        effects.task_waits(task, *queue);
    }
    effects.claimable.extend(claimable(members, stored));
    effects.admission.extend(held(members, stored));
    effects.created.extend(stored.iter().map(|row| {
        let NewTaskInQueue { task, queue, link } = members[row.member];
        Creation { queue: *queue, task: task.id.uuid(), at: row.now, link: *link }
    }));
}

/// Queues with new claimable runs.
fn claimable(members: &[&NewTaskInQueue], stored: &[Created]) -> impl Iterator<Item = i32> {
    stored.iter().filter(|row| !row.waits && !row.held).map(|row| members[row.member].queue)
}

/// Queues with new held runs.
fn held(members: &[&NewTaskInQueue], stored: &[Created]) -> impl Iterator<Item = i32> {
    stored.iter().filter(|row| row.held).map(|row| members[row.member].queue)
}

/// Returns one verdict per member. `drafts` has the dependencies of each member, or is empty.
async fn judge(
    conn: &mut PgConnection,
    members: &[&NewTaskInQueue],
    outcome: Outcome,
    drafts: &[Draft<'_>],
) -> Result<Vec<Verdict<Task>>, sqlx::Error> {
    let mut verdicts: Vec<Option<Verdict<Task>>> = members.iter().map(|_| None).collect();
    for row in outcome.stored {
        verdicts[row.member] = Some(Verdict::Done(row.task(&members[row.member].task)));
    }
    // The statement that stamps policies handles them together.
    for member in outcome.ruled.into_iter().chain(outcome.bounded) {
        verdicts[member] = Some(Verdict::Again);
    }
    let missing: Vec<usize> = (0..members.len()).filter(|&position| verdicts[position].is_none()).collect();
    let tasks: Vec<Unstored<'_>> = missing
        .iter()
        .map(|&position| Unstored {
            task: &members[position].task,
            queue: members[position].queue,
            awaited: drafts.get(position).map_or(&[][..], |draft| draft.awaited.as_slice()),
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

/// Stores members and their dependency edges in one transaction.
async fn create_waiting<'a>(
    conn: &mut PgConnection,
    members: &[&'a NewTaskInQueue],
) -> Result<(Outcome, Vec<Draft<'a>>), sqlx::Error> {
    let tasks = members.iter().map(|member| (&*member.task, member.queue)).collect();
    let mut transaction = conn.begin().await?;
    let drafts = drafts::read(&mut transaction, tasks).await?;
    let valid: Vec<usize> = (0..drafts.len()).filter(|&position| drafts[position].has_valid_dependencies()).collect();
    let outcome = drafts::store(&mut transaction, &drafts, &valid, Guarded::No).await?;
    transaction.commit().await?;
    Ok((outcome, drafts))
}
