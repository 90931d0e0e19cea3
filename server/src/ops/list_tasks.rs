//! Pages of tasks: of a group, and of those that wait for a task. A page begins after an id, so that what is inserted
//! or forgotten meanwhile makes it neither skip nor repeat any other task.

use sqlx::{PgConnection, PgPool};
use tenure_api::ids::{TaskGroupId, TaskId};
use uuid::Uuid;

use super::OpError;
use crate::domain::task::{Group, Task};
use crate::store::{dependencies, groups, tasks};

/// Tasks of one page.
pub const PAGE_MAX: u16 = 1_000;
/// Bytes of the definitions in one page; a larger one stands alone.
const PAGE_BYTES_MAX: i64 = 16 << 20;

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
        .filter_map(|(id, definition)| known.remove(&id).map(|known| (known.task, definition)))
        .collect();
    let next = wanted.last().filter(|_| more).and_then(|id| TaskId::from_uuid(*id));
    Ok(Page { tasks, next })
}
