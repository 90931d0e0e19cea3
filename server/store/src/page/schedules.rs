//! Schedules, for the pages of their queues.

use sqlx::PgConnection;
use tenure_domain::schedule::definition::Schedule;

use super::{NAMED_DEFINITION_MAX, begin_part, end_part};
use crate::schedules;

/// Schedules read, by name.
pub const SCHEDULES_READ: i64 = 1_000;

/// Lists the first [`SCHEDULES_READ`] schedules by name, without long tasks. None on timeout.
pub async fn list_schedules(conn: &mut PgConnection) -> Result<Option<Vec<Schedule>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let found = schedules::list_brief(&mut *part, SCHEDULES_READ, NAMED_DEFINITION_MAX).await;
    end_part(part, found).await
}
