//! Pages of a queue's pending and claimed runs. A page begins after a run, so concurrent changes
//! make it neither skip nor repeat other runs.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use tenure_api::ids::TaskId;

use super::OpError;
use super::list_tasks::{PAGE_BYTES_MAX, PAGE_MAX};
use tenure_domain::create::shown_definition;
use tenure_store::queue_lists::{self, ClaimedRow, PendingRow};
use tenure_store::session;

/// Runs with the definitions of their tasks.
#[derive(Debug)]
pub struct RunPage<Run, Position> {
    pub runs: Vec<(Run, String)>,
    /// Position of the last run, unless this is the last page.
    pub next: Option<Position>,
}

/// Order of claimed runs: time of the claim and the task's key.
pub type ClaimedPosition = (DateTime<Utc>, i64);

/// Before every claim. A client's token may have an earlier date, even one outside PostgreSQL's
/// range.
const BEFORE_CLAIMS: ClaimedPosition = (DateTime::UNIX_EPOCH, 0);

/// Lists pending runs, longest pending first.
pub async fn list_pending(
    pool: &PgPool,
    queue: i32,
    after: Option<i64>,
    limit: u16,
) -> Result<RunPage<PendingRow, i64>, OpError> {
    let mut transaction = pool.begin().await?;
    session::plan_as_hot(&mut transaction).await?;
    let limit = limit.min(PAGE_MAX);
    let rows = queue_lists::list_pending(&mut transaction, queue, after.unwrap_or_default(), one_more(limit)).await?;
    let tasks: Vec<_> = rows.iter().take(limit.into()).map(|row| (row.seq, row.task)).collect();
    let definitions = list_definitions(&mut transaction, &tasks).await?;
    Ok(cut(rows, definitions, |row| row.ord))
}

/// Lists claimed runs by time of claim.
pub async fn list_claimed(
    pool: &PgPool,
    queue: i32,
    after: Option<ClaimedPosition>,
    limit: u16,
) -> Result<RunPage<ClaimedRow, ClaimedPosition>, OpError> {
    let mut transaction = pool.begin().await?;
    session::plan_as_hot(&mut transaction).await?;
    let limit = limit.min(PAGE_MAX);
    let after = after.unwrap_or(BEFORE_CLAIMS).max(BEFORE_CLAIMS);
    let rows = queue_lists::list_claimed(&mut transaction, queue, after, one_more(limit)).await?;
    let tasks: Vec<_> = rows.iter().take(limit.into()).map(|row| (row.seq, row.task)).collect();
    let definitions = list_definitions(&mut transaction, &tasks).await?;
    Ok(cut(rows, definitions, |row| (row.started, row.seq)))
}

/// Returns the shown definitions, as many as fit on a page.
async fn list_definitions(
    conn: &mut PgConnection,
    tasks: &[(i64, TaskId)],
) -> Result<Vec<Option<String>>, sqlx::Error> {
    let stored = queue_lists::list_definitions(conn, tasks, PAGE_BYTES_MAX).await?;
    let shown = |(stored, priority)| shown_definition(stored, priority);
    Ok(stored.into_iter().map(|one| one.map(shown)).collect())
}

/// An extra row reveals a next page.
fn one_more(limit: u16) -> i64 {
    i64::from(limit) + 1
}

/// Cuts the page to the definitions that fit. Runs of purged tasks are omitted, but their positions
/// are passed.
fn cut<Run, Position>(
    rows: Vec<Run>,
    definitions: Vec<Option<String>>,
    position: impl Fn(&Run) -> Position,
) -> RunPage<Run, Position> {
    let more = rows.len() > definitions.len();
    let next = definitions.len().checked_sub(1).and_then(|last| rows.get(last)).filter(|_| more).map(position);
    let runs = rows.into_iter().zip(definitions).filter_map(|(row, text)| text.map(|text| (row, text))).collect();
    RunPage { runs, next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_purged_tasks_is_empty_and_list_continues() {
        let purged = || vec![None, None];
        let page = cut(vec![1, 2, 3], purged(), |run| *run);
        assert_eq!((page.runs, page.next), (Vec::new(), Some(2)));
        let last = cut(vec![1, 2], purged(), |run| *run);
        assert_eq!((last.runs, last.next), (Vec::new(), None));
        let some = cut(vec![1, 2, 3], vec![Some("definition".to_owned()), None], |run| *run);
        assert_eq!((some.runs, some.next), (vec![(1, "definition".to_owned())], Some(2)));
    }
}
