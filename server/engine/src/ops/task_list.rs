//! Lists of tasks by conditions, and tasks by short ids.
//!
//! A page continues behind the last task that it looked at, so a task that leaves the filter
//! meanwhile makes no other one be skipped. A task that moves to a later place of its index, such as
//! a renewed claim, may be listed again on a later page. Failures are known for as long as
//! `failed_runs` keeps them, and only after its reader of the event log has read them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::{EndedBy, Priority, ReasonResolved, TaskState};
use uuid::Uuid;

use super::OpError;
use crate::batch::due_marks::DueMarkMemory;
use crate::batch::low_water_marks::LowWaterMarks;
use tenure_domain::task_filter::{
    Brief, ListState, Needles, Position, Source, TaskFilter, ids_of_short, matches_texts, matches_time,
};
use tenure_store::dead_letters::list_definitions;
use tenure_store::events::Sequenced;
use tenure_store::page::tasks::{self as store, Conditions, Details, Key};
use tenure_store::queues::Queues;

/// Maximum tasks of a page.
pub const PAGE_MAX: usize = 1_000;
/// Tasks that a page looks at.
pub const LOOKED_AT_MAX: usize = 5_000;
/// Tasks that are read at once. Their definitions have up to 16 KiB each.
const CHUNK_MAX: usize = 500;
/// Failures that a list of all queues reads at once of each queue with dead letters.
const CHUNK_OF_ALL_FAILURES: usize = 200;
/// A page ends after this time and can be continued.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Tasks with the same short id that are returned.
const SHORT_MAX: i64 = 10;
/// Twice the maximum of `created` from the time of creation, and time for open transactions.
const CREATED_APART: TimeDelta = TimeDelta::minutes(35);
/// After all times.
const END: DateTime<Utc> = DateTime::from_timestamp(253_402_300_799, 0).expect("a date that chrono has");

/// Parts of the engine for lists.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub queues: &'a Queues,
    pub low_water_marks: &'a LowWaterMarks,
    pub due_marks: &'a DueMarkMemory,
    pub sequenced: Sequenced,
}

#[derive(Debug, Clone, Default)]
pub struct TaskPage {
    /// May be empty although the list continues.
    pub tasks: Vec<ListedTask>,
    /// Position to continue from; none at the end.
    pub next: Option<String>,
    /// Time of the last task that was looked at, if the list continues and is ordered by time.
    pub looked_since: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone)]
pub struct ListedTask {
    pub task_id: TaskId,
    pub task_queue_id: TaskQueueId,
    pub project_id: String,
    pub scheduler_id: String,
    pub task_group_id: TaskGroupId,
    /// None if the definition is large, as `owner` and `created`.
    pub name: Option<String>,
    pub owner: Option<String>,
    pub state: TaskState,
    /// Why the last run ended.
    pub reason: Option<ReasonResolved>,
    pub ended_by: Option<EndedBy>,
    pub priority: Priority,
    /// Number of runs.
    pub runs: u16,
    /// Group and id of the worker of the last run.
    pub worker: Option<(String, String)>,
    pub created: Option<DateTime<Utc>>,
    /// Times of the last run.
    pub scheduled: Option<DateTime<Utc>>,
    pub started: Option<DateTime<Utc>>,
    pub resolved: Option<DateTime<Utc>>,
    pub deadline: DateTime<Utc>,
}

impl ListedTask {
    fn new(details: Details, brief: Option<Brief>) -> Self {
        let Details { task, queue, project, scheduler, group, state, priority, last_run, deadline, .. } = details;
        let Details { scheduled, started, resolved, reason, ended_by, worker, .. } = details;
        let created = brief.as_ref().map(|brief| brief.created);
        let (name, owner) = brief.map(|brief| (brief.name, brief.owner)).unzip();
        Self {
            task_id: task,
            task_queue_id: queue,
            project_id: project,
            scheduler_id: scheduler,
            task_group_id: group,
            name,
            owner,
            state,
            reason,
            ended_by,
            priority,
            runs: last_run.map_or(0, |run| run.number() + 1),
            worker,
            created,
            scheduled,
            started,
            resolved,
            deadline,
        }
    }
}

/// Lists tasks that meet a filter, after the position `cursor` of an earlier page.
///
/// # Errors
/// If the filter or the cursor is invalid, or the database is unavailable.
pub async fn list(
    parts: Parts<'_>,
    filter: &TaskFilter,
    cursor: Option<&str>,
    limit: usize,
) -> Result<TaskPage, OpError> {
    list_visible(parts, filter, cursor, limit, &|_: TaskId| true).await
}

/// Lists tasks as [`list`] does, for a caller who may not see all of them. Where a page ends does
/// not depend on the tasks that the caller may not see: it would tell which ones meet the filter.
///
/// # Errors
/// As [`list`].
pub async fn list_visible(
    parts: Parts<'_>,
    filter: &TaskFilter,
    cursor: Option<&str>,
    limit: usize,
    is_visible: &(dyn Fn(TaskId) -> bool + Sync),
) -> Result<TaskPage, OpError> {
    filter.validate().map_err(OpError::Input)?;
    let source = Source::of(filter);
    let from = cursor.map(|text| Position::parse(text, source).ok_or_else(unknown_position)).transpose()?;
    let queue = match &filter.task_queue_id {
        None => None,
        Some(name) => {
            let name: TaskQueueId = name.parse().map_err(|_| unreadable("taskQueueId"))?;
            // A queue that nothing has named yet has no tasks.
            let Some(key) = parts.queues.find_key(parts.pool, &name).await? else { return Ok(TaskPage::default()) };
            Some(key)
        }
    };
    let group = match &filter.task_group_id {
        None => None,
        Some(id) => Some(id.parse::<TaskGroupId>().map_err(|_| unreadable("taskGroupId"))?),
    };
    let mut conn = store::begin(parts.pool).await?;
    let held = filter.state == Some(ListState::Held);
    let is_admitting = match queue.filter(|_| held) {
        Some(queue) => store::is_admitting(&mut conn, parts.sequenced, queue).await?,
        None => true,
    };
    let conditions = Conditions {
        queue,
        state: filter.state.map(ListState::task_state),
        held,
        is_admitting,
        reason: filter.ended_for(),
        worker: filter.worker_name(),
        project: filter.project_id.as_deref(),
        needles: Needles::of(filter),
    };
    let walk = Walk { parts, filter, source, queue, group, conditions, is_visible, limit: limit.clamp(1, PAGE_MAX) };
    let page = walk.page(&mut conn, from).await?;
    conn.commit().await?;
    Ok(page)
}

fn unknown_position() -> OpError {
    OpError::Input("the position is not one of this list: begin without a position".to_owned())
}

/// The filter was checked before.
fn unreadable(field: &str) -> OpError {
    OpError::Input(format!("`{field}` is invalid"))
}

/// Returns the tasks with a short id among the newest ones, newest first.
///
/// # Errors
/// If the id is not a short one, or the database is unavailable.
pub async fn find_short(pool: &PgPool, short: &str) -> Result<Vec<ListedTask>, OpError> {
    let range = ids_of_short(short)
        .ok_or_else(|| OpError::Input("`shortId` must be the first 8 characters of the id of a task".to_owned()))?;
    let mut conn = store::begin(pool).await?;
    let seqs = store::list_of_short_id(&mut conn, range, SHORT_MAX).await?;
    let found = store::list_details(&mut conn, &seqs, &Conditions::default()).await?;
    conn.commit().await?;
    let listed = |details: Details| {
        let brief = details.definition.as_deref().and_then(Brief::read);
        ListedTask::new(details, brief)
    };
    Ok(found.into_iter().map(listed).collect())
}

struct Walk<'a> {
    parts: Parts<'a>,
    filter: &'a TaskFilter,
    source: Source,
    queue: Option<i32>,
    group: Option<TaskGroupId>,
    conditions: Conditions<'a>,
    is_visible: &'a (dyn Fn(TaskId) -> bool + Sync),
    limit: usize,
}

/// Tasks of a page so far.
#[derive(Default)]
struct Found {
    tasks: Vec<ListedTask>,
    /// Detects a renewed claim, which comes again.
    ids: HashSet<TaskId>,
}

impl Walk<'_> {
    async fn page(&self, conn: &mut PgConnection, from: Option<Position>) -> Result<TaskPage, sqlx::Error> {
        let (started, mut found, mut looked_at, mut last) = (Instant::now(), Found::default(), 0, None);
        let mut after = from;
        // A page without conditions is full after the first chunk.
        let mut wanted = (self.limit + 1).min(self.chunk_max());
        let next = loop {
            let keys = self.keys(conn, after, wanted).await?;
            let taken = self.take(conn, &keys, &mut found).await?;
            last = keys[..taken].last().copied().or(last);
            after = last.map(|key| key.position).or(after);
            looked_at += taken;
            let is_cut = taken < keys.len();
            let is_over = !is_cut && (keys.len() < wanted || self.is_before(conn, last).await?);
            if is_over {
                break None;
            }
            if is_cut || found.tasks.len() >= self.limit || looked_at >= LOOKED_AT_MAX || started.elapsed() > TIME_MAX {
                break last;
            }
            wanted = self.chunk_max();
        };
        let looked_since = match next {
            Some(key) => self.time(conn, key).await?,
            None => None,
        };
        Ok(TaskPage { tasks: found.tasks, next: next.map(|key| key.position.text()), looked_since })
    }

    fn chunk_max(&self) -> usize {
        if self.source == Source::Failed && self.queue.is_none() { CHUNK_OF_ALL_FAILURES } else { CHUNK_MAX }
    }

    async fn keys(&self, conn: &mut PgConnection, from: Option<Position>, max: usize) -> Result<Vec<Key>, sqlx::Error> {
        let limit = i64::try_from(max).unwrap_or(i64::MAX);
        match (self.source, self.queue, self.group) {
            (Source::Group, _, Some(group)) => {
                let after = match from {
                    Some(Position::Group(task)) => task.uuid(),
                    _ => Uuid::nil(),
                };
                store::list_of_group(conn, group, after, limit).await
            }
            (Source::Pending | Source::Held, Some(queue), _) => {
                let after = match from {
                    Some(Position::Queued(ord)) => ord,
                    _ => 0,
                };
                if self.source == Source::Held {
                    return store::list_held(conn, queue, after, limit).await;
                }
                store::list_pending(conn, queue, self.parts.low_water_marks.peek(queue), after, limit).await
            }
            (Source::Running, ..) => {
                let mark = (self.parts.due_marks.get().claims, i64::MIN);
                let after = match from {
                    Some(Position::Running(taken_until, seq)) => mark.max((taken_until, seq)),
                    _ => mark,
                };
                store::list_running(conn, after, limit).await
            }
            (Source::Failed, queue, _) => {
                let before = match from {
                    Some(Position::Failed(resolved, seq)) => (resolved, seq),
                    _ => (self.filter.until.unwrap_or(END), i64::MAX),
                };
                store::list_failed(conn, queue, before, limit).await
            }
            // The first two have a group or a queue: see `Source::of`.
            (Source::Group | Source::Pending | Source::Held | Source::Created, ..) => {
                let before = match from {
                    Some(Position::Created(seq)) => seq,
                    _ => i64::MAX,
                };
                store::list_created(conn, before, limit).await
            }
        }
    }

    /// Adds the tasks that match. Returns how many keys were looked at before the page was full.
    async fn take(&self, conn: &mut PgConnection, keys: &[Key], found: &mut Found) -> Result<usize, sqlx::Error> {
        let seqs: Vec<i64> = keys.iter().map(|key| key.seq).collect();
        for details in store::list_details(conn, &seqs, &self.conditions).await? {
            let brief = details.definition.as_deref().and_then(Brief::read);
            let time =
                if self.filter.is_of_failures() { details.resolved } else { brief.as_ref().map(|brief| brief.created) };
            // A failure of an earlier run.
            let is_past = keys[details.index].run.is_some_and(|run| details.last_run != Some(run));
            if is_past
                || !matches_time(self.filter, time)
                || !matches_texts(self.filter, brief.as_ref(), details.tags.as_deref())
                || found.ids.contains(&details.task)
                || !(self.is_visible)(details.task)
            {
                continue;
            }
            if found.tasks.len() == self.limit {
                return Ok(details.index);
            }
            found.ids.insert(details.task);
            found.tasks.push(ListedTask::new(details, brief));
        }
        Ok(keys.len())
    }

    /// True if all later tasks are before the filter's `since`.
    async fn is_before(&self, conn: &mut PgConnection, last: Option<Key>) -> Result<bool, sqlx::Error> {
        let (Some(since), Some(last)) = (self.filter.since, last) else { return Ok(false) };
        let margin = match self.source {
            Source::Failed => TimeDelta::zero(),
            Source::Created => CREATED_APART,
            Source::Group | Source::Pending | Source::Held | Source::Running => return Ok(false),
        };
        Ok(self.time(conn, last).await?.is_some_and(|time| time + margin < since))
    }

    /// The time that orders the list; none of tasks without a short definition.
    async fn time(&self, conn: &mut PgConnection, key: Key) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
        match key.position {
            Position::Failed(resolved, _) => Ok(Some(resolved)),
            Position::Created(seq) => {
                let definitions = list_definitions(conn, &[seq]).await?;
                Ok(definitions.get(&seq).and_then(|definition| Brief::read(definition)).map(|brief| brief.created))
            }
            Position::Group(_) | Position::Queued(_) | Position::Running(..) => Ok(None),
        }
    }
}
