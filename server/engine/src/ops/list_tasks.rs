//! Pages of tasks: by group, by dependency, or by id. A page begins after an id, so concurrent
//! changes make it neither skip nor repeat other tasks.

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{TaskGroupId, TaskId};
use uuid::Uuid;

use super::OpError;
use tenure_domain::create::shown_definition;
use tenure_domain::task::{Group, Task};
use tenure_store::{dependencies, groups, tasks};

/// Tasks per page.
pub const PAGE_MAX: u16 = 1_000;
/// Bytes of definitions per page. A larger definition is a page by itself.
pub(super) const PAGE_BYTES_MAX: i64 = 16 << 20;

#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    /// Last task of the previous page.
    pub after: Option<TaskId>,
    /// Maximum number of tasks, up to [`PAGE_MAX`].
    pub limit: u16,
}

impl Cursor {
    fn after(self) -> Uuid {
        self.after.map_or(Uuid::nil(), TaskId::uuid)
    }

    /// An extra row reveals a next page.
    fn and_one(self) -> i64 {
        i64::from(self.limit.min(PAGE_MAX)) + 1
    }
}

#[derive(Debug)]
pub struct Page {
    /// Tasks with their definitions.
    pub tasks: Vec<(Task, String)>,
    /// Start of the next page, if there is one.
    pub next: Option<TaskId>,
}

/// Returns a page of existing tasks with their definitions.
pub async fn list_named(pool: &PgPool, requested: &[TaskId], cursor: Cursor) -> Result<Page, OpError> {
    let mut conn = pool.acquire().await?;
    let ids = existing(&mut conn, requested, cursor).await?;
    page(&mut conn, ids, cursor).await
}

/// Returns a page of existing tasks and the next cursor.
pub async fn list_statuses(
    pool: &PgPool,
    requested: &[TaskId],
    cursor: Cursor,
) -> Result<(Vec<Task>, Option<TaskId>), OpError> {
    let mut conn = pool.acquire().await?;
    let mut ids = existing(&mut conn, requested, cursor).await?;
    let more = ids.len() as i64 == cursor.and_one();
    ids.truncate(usize::from(cursor.limit.min(PAGE_MAX)));
    let mut loaded = tasks::load(&mut conn, &ids).await?;
    let found = ids.iter().filter_map(|id| loaded.remove(id).map(|loaded| loaded.task)).collect();
    Ok((found, ids.last().filter(|_| more).and_then(|id| TaskId::from_uuid(*id))))
}

/// Returns existing ids, sorted and deduplicated, up to one more than fits the page. Each query
/// looks up as many ids as the longest page has: many may not exist.
async fn existing(conn: &mut PgConnection, requested: &[TaskId], cursor: Cursor) -> Result<Vec<Uuid>, OpError> {
    let after = cursor.after();
    let mut requested: Vec<Uuid> = requested.iter().map(|id| id.uuid()).filter(|id| *id > after).collect();
    requested.sort_unstable();
    requested.dedup();
    let full = usize::from(cursor.limit.min(PAGE_MAX)) + 1;
    let mut found = Vec::new();
    for slice in requested.chunks(usize::from(PAGE_MAX) + 1) {
        found.extend(tasks::list_existing(conn, slice).await?);
        if found.len() >= full {
            break;
        }
    }
    found.truncate(full);
    Ok(found)
}

pub async fn list_group(pool: &PgPool, id: TaskGroupId, cursor: Cursor) -> Result<(Group, Page), OpError> {
    let mut conn = pool.acquire().await?;
    let group = super::task_group::get(&mut conn, id).await?;
    let ids = groups::list_tasks(&mut conn, id.uuid(), cursor.after(), cursor.and_one()).await?;
    Ok((group, page(&mut conn, ids, cursor).await?))
}

/// Lists the dependents of a task, resolved or not.
pub async fn list_dependents(pool: &PgPool, id: TaskId, cursor: Cursor) -> Result<Page, OpError> {
    let mut conn = pool.acquire().await?;
    let loaded = tasks::load(&mut conn, &[id.uuid()]).await?.remove(&id.uuid());
    let loaded = loaded.ok_or_else(|| OpError::NotFound(format!("task {id} does not exist")))?;
    let ids = dependencies::list_dependents(&mut conn, loaded.task.seq, cursor.after(), cursor.and_one()).await?;
    page(&mut conn, ids, cursor).await
}

async fn page(conn: &mut PgConnection, mut ids: Vec<Uuid>, cursor: Cursor) -> Result<Page, OpError> {
    let mut more = ids.len() as i64 == cursor.and_one();
    ids.truncate(usize::from(cursor.limit.min(PAGE_MAX)));
    let definitions = tasks::list_definitions(conn, &ids, PAGE_BYTES_MAX).await?;
    if let Some((last, _)) = definitions.last() {
        more |= ids.last() != Some(last);
    }
    let requested: Vec<Uuid> = definitions.iter().map(|(id, _)| *id).collect();
    let mut loaded = tasks::load(conn, &requested).await?;
    let tasks: Vec<(Task, String)> = definitions
        .into_iter()
        .filter_map(|(id, definition)| {
            let task = loaded.remove(&id)?.task;
            let shown = shown_definition(definition, task.priority);
            Some((task, shown))
        })
        .collect();
    // All tasks of the page may be purged, with others after them.
    let next = requested.last().or(ids.last()).filter(|_| more).and_then(|id| TaskId::from_uuid(*id));
    Ok(Page { tasks, next })
}
