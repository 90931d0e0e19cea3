//! Finds out why the create statement skipped tasks: repeats, and reasons to refuse them.

use std::collections::HashMap;

use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use tenure_domain::create::{Awaited, GroupOwner, NewTask, Unmade, why_unmade};
use tenure_domain::task::Task;
use tenure_store::tasks;
use tenure_store::transitions::create::{self, Existing, Names};
use uuid::Uuid;

use super::OpError;
use crate::batch::Verdict;

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
