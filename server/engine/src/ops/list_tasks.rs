//! Pages of tasks: of a group, of those that wait for a task, and of those that the caller names. A page begins after an id, so that what is inserted
//! or forgotten meanwhile makes it neither skip nor repeat any other task.

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{TaskGroupId, TaskId};
use uuid::Uuid;

use super::OpError;
use tenure_domain::create::shown_definition;
use tenure_domain::task::{Group, Task};
use tenure_store::{dependencies, groups, tasks};

/// Tasks of one page.
pub const PAGE_MAX: u16 = 1_000;
/// Bytes of the definitions in one page; a larger one stands alone.
pub(super) const PAGE_BYTES_MAX: i64 = 16 << 20;

/// Where a page begins, and how long it may be.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    /// The last task of the page before.
    pub after: Option<TaskId>,
    /// At most so many tasks, up to [`PAGE_MAX`].
    pub limit: u16,
}

impl Cursor {
    fn after(self) -> Uuid {
        self.after.map_or(Uuid::nil(), TaskId::uuid)
    }

    /// One more than fits tells whether there is another page.
    fn and_one(self) -> i64 {
        i64::from(self.limit.min(PAGE_MAX)) + 1
    }
}

/// A page.
#[derive(Debug)]
pub struct Page {
    /// Its tasks, each with its definition.
    pub tasks: Vec<(Task, String)>,
    /// After which task the next page begins; none after the last page.
    pub next: Option<TaskId>,
}

/// A page of those of these tasks that exist, each with its definition.
pub async fn list_named(pool: &PgPool, wanted: &[TaskId], cursor: Cursor) -> Result<Page, OpError> {
    let mut conn = pool.acquire().await?;
    let ids = existing(&mut conn, wanted, cursor).await?;
    page(&mut conn, ids, cursor).await
}

/// A page of those of these tasks that exist, and after which the next page begins.
pub async fn list_statuses(
    pool: &PgPool,
    wanted: &[TaskId],
    cursor: Cursor,
) -> Result<(Vec<Task>, Option<TaskId>), OpError> {
    let mut conn = pool.acquire().await?;
    let mut ids = existing(&mut conn, wanted, cursor).await?;
    let more = ids.len() as i64 == cursor.and_one();
    ids.truncate(usize::from(cursor.limit.min(PAGE_MAX)));
    let mut known = tasks::load(&mut conn, &ids).await?;
    let found = ids.iter().filter_map(|id| known.remove(id).map(|known| known.task)).collect();
    Ok((found, ids.last().filter(|_| more).and_then(|id| TaskId::from_uuid(*id))))
}

/// The first of these tasks that exist, one more than fits the page, in the order of their ids, each once. As few ids are
/// looked up as that takes.
async fn existing(conn: &mut PgConnection, wanted: &[TaskId], cursor: Cursor) -> Result<Vec<Uuid>, OpError> {
    let after = cursor.after();
    let mut wanted: Vec<Uuid> = wanted.iter().map(|id| id.uuid()).filter(|id| *id > after).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let full = usize::from(cursor.limit.min(PAGE_MAX)) + 1;
    let mut found = Vec::new();
    for slice in wanted.chunks(full) {
        found.extend(tasks::list_existing(conn, slice).await?);
        if found.len() >= full {
            break;
        }
    }
    found.truncate(full);
    Ok(found)
}

/// A page of a group's tasks.
pub async fn list_group(pool: &PgPool, id: TaskGroupId, cursor: Cursor) -> Result<(Group, Page), OpError> {
    let mut conn = pool.acquire().await?;
    let group = super::task_group::get(&mut conn, id).await?;
    let ids = groups::list_tasks(&mut conn, id.uuid(), cursor.after(), cursor.and_one()).await?;
    Ok((group, page(&mut conn, ids, cursor).await?))
}

/// A page of the tasks that wait, or waited, for a task.
pub async fn list_dependents(pool: &PgPool, id: TaskId, cursor: Cursor) -> Result<Page, OpError> {
    let mut conn = pool.acquire().await?;
    let known = tasks::load(&mut conn, &[id.uuid()]).await?.remove(&id.uuid());
    let known = known.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))?;
    let ids = dependencies::list_dependents(&mut conn, known.task.seq, cursor.after(), cursor.and_one()).await?;
    page(&mut conn, ids, cursor).await
}

async fn page(conn: &mut PgConnection, mut ids: Vec<Uuid>, cursor: Cursor) -> Result<Page, OpError> {
    let mut more = ids.len() as i64 == cursor.and_one();
    ids.truncate(usize::from(cursor.limit.min(PAGE_MAX)));
    let definitions = tasks::list_definitions(conn, &ids, PAGE_BYTES_MAX).await?;
    if let Some((last, _)) = definitions.last() {
        more |= ids.last() != Some(last);
    }
    let wanted: Vec<Uuid> = definitions.iter().map(|(id, _)| *id).collect();
    let mut known = tasks::load(conn, &wanted).await?;
    let tasks: Vec<(Task, String)> = definitions
        .into_iter()
        .filter_map(|(id, definition)| {
            let task = known.remove(&id)?.task;
            let shown = shown_definition(definition, task.priority);
            Some((task, shown))
        })
        .collect();
    let next = wanted.last().filter(|_| more).and_then(|id| TaskId::from_uuid(*id));
    Ok(Page { tasks, next })
}
