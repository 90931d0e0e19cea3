//! The tasks of a group that a page reads.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use tenure_api::states::TaskState;
use uuid::Uuid;

use super::sections::{self, Section};
use crate::http::page::text;
use tenure_domain::group_progress::{Progress, blocked};
use tenure_store::page::{self, GroupTaskRow, Member, Needs};

const MEMBERS_MAX: usize = 20_000;
/// Larger groups are drawn by prefixes of names.
pub(super) const GRAPH_TASKS: usize = 200;
/// Tasks whose names are read for a graph of prefixes.
pub(super) const NAMED_TASKS: usize = 1_000;
/// Unscheduled tasks whose dependencies are read, to find tasks that can never run.
const BLOCKED_READ: usize = 1_000;
const NEEDS_MAX: i64 = 2_000;
/// The end of larger groups is not searched.
const ENDS_READ: usize = 1_000;

pub(super) struct Members {
    /// In the order of creation.
    pub(super) all: Vec<Member>,
    /// The last task read, if there are more.
    pub(super) next: Option<TaskId>,
    /// True if other tasks precede by id.
    pub(super) is_later: bool,
    pub(super) progress: Progress,
    /// Tasks that can never run, and the failed task of each.
    pub(super) blocked: BTreeMap<i64, i64>,
    pub(super) sections: Vec<(Section, Vec<Member>)>,
    /// Tasks shown of each section.
    pub(super) shown: Vec<(Section, Vec<i64>)>,
    pub(super) rows: HashMap<i64, GroupTaskRow>,
    first: Option<i64>,
    /// Of all runs, if every task has ended.
    ended: Option<DateTime<Utc>>,
}

impl Members {
    /// Reads the tasks after `from`, by id. None if they could not be read in time.
    pub(super) async fn read(conn: &mut PgConnection, group: Uuid, from: Uuid) -> Result<Option<Self>, sqlx::Error> {
        let Some(mut all) = page::list_members(conn, group, from, MEMBERS_MAX as i64 + 1).await? else {
            return Ok(None);
        };
        let next = (all.len() > MEMBERS_MAX).then(|| all[MEMBERS_MAX - 1].id).and_then(TaskId::from_uuid);
        all.truncate(MEMBERS_MAX);
        all.sort_unstable_by_key(|member| member.seq);
        let blocked = find_blocked(conn, &all).await?;
        let progress = Progress::of(all.iter().map(|member| member.state));
        let sections = sections::sort(&all, |seq| blocked.contains_key(&seq));
        let is_later = !from.is_nil();
        // A group is often named after its first task.
        let named_after = all.iter().find(|member| member.id == group);
        let first = named_after.or_else(|| all.first()).filter(|_| !is_later).map(|member| member.seq);
        let ended = if next.is_none() && !is_later && progress.open() == 0 && all.len() <= ENDS_READ {
            page::find_last_end(conn, &all.iter().map(|member| member.seq).collect::<Vec<_>>()).await?
        } else {
            None
        };
        let (shown, rows) = (Vec::new(), HashMap::new());
        Ok(Some(Self { all, next, is_later, progress, blocked, sections, shown, rows, first, ended }))
    }

    /// Reads the tasks to show, the failed tasks that block them, and the first task.
    pub(super) async fn read_rows(
        &mut self,
        conn: &mut PgConnection,
        shown: &[(Section, Vec<i64>)],
    ) -> Result<(), sqlx::Error> {
        let mut seqs: BTreeSet<i64> = shown.iter().flat_map(|(_, seqs)| seqs).copied().collect();
        let faults: Vec<i64> = seqs.iter().filter_map(|seq| self.blocked.get(seq)).copied().collect();
        seqs.extend(faults.into_iter().chain(self.first));
        let rows = page::list_group_tasks(conn, &seqs.into_iter().collect::<Vec<_>>()).await?;
        self.rows = rows.into_iter().map(|row| (row.seq, row)).collect();
        self.shown = shown.to_vec();
        Ok(())
    }

    pub(super) fn find(&self, task: TaskId) -> Option<i64> {
        self.all.iter().find(|member| member.id == task.uuid()).map(|member| member.seq)
    }

    pub(super) fn tasks_of(&self, section: Section) -> &[Member] {
        self.sections.iter().find(|(one, _)| *one == section).map_or(&[], |(_, tasks)| tasks.as_slice())
    }

    pub(super) fn contains(&self, seq: i64) -> bool {
        self.all.binary_search_by_key(&seq, |member| member.seq).is_ok()
    }

    pub(super) fn first(&self) -> Option<&GroupTaskRow> {
        self.rows.get(&self.first?)
    }

    pub(super) fn first_name(&self) -> Option<String> {
        name(self.first()?.definition.as_deref()?)
    }

    /// Since the creation of the first task, until the last end or now.
    pub(super) fn duration(&self, now: DateTime<Utc>) -> Option<(&'static str, TimeDelta)> {
        let created = text::created(self.first()?.definition.as_deref()?)?;
        let (words, end) = match self.ended {
            Some(ended) => ("Took", ended),
            None if self.progress.open() > 0 => ("Open for", now),
            None => return None,
        };
        Some((words, (end - created).max(TimeDelta::zero())))
    }
}

async fn find_blocked(conn: &mut PgConnection, members: &[Member]) -> Result<BTreeMap<i64, i64>, sqlx::Error> {
    let unscheduled = members.iter().filter(|member| member.state == TaskState::Unscheduled).take(BLOCKED_READ);
    let seqs: HashMap<Uuid, i64> = unscheduled.map(|member| (member.id, member.seq)).collect();
    if seqs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<Uuid> = seqs.keys().copied().collect();
    let rows = page::list_needs(conn, &ids, Needs::Unsatisfied, NEEDS_MAX).await?.unwrap_or_default();
    // The end of a required task may be any.
    let needs = rows.iter().filter(|row| !row.any_end);
    let needs: Vec<(i64, i64)> = needs.filter_map(|row| Some((*seqs.get(&row.dependent)?, row.required))).collect();
    let states: HashMap<i64, TaskState> = members.iter().map(|member| (member.seq, member.state)).collect();
    let elsewhere: BTreeSet<i64> =
        needs.iter().map(|(_, required)| *required).filter(|required| !states.contains_key(required)).collect();
    let failed: HashSet<i64> = if elsewhere.is_empty() {
        HashSet::new()
    } else {
        page::list_group_failures(conn, &elsewhere.into_iter().collect::<Vec<_>>()).await?.into_iter().collect()
    };
    let has_failed = |task: i64| match states.get(&task) {
        Some(state) => matches!(state, TaskState::Failed | TaskState::Exception),
        None => failed.contains(&task),
    };
    Ok(blocked(&needs, has_failed))
}

/// Nodes and edges of a graph.
pub(super) struct Drawing {
    /// Number of tasks, from the first one.
    pub(super) tasks: usize,
    /// Required and dependent task.
    pub(super) edges: Vec<(usize, usize)>,
    pub(super) definitions: Vec<(i64, String)>,
}

impl Drawing {
    /// None without dependencies within the group, and if they could not be read in time.
    pub(super) async fn read(conn: &mut PgConnection, members: &Members) -> Result<Option<Self>, sqlx::Error> {
        let most = if members.all.len() <= GRAPH_TASKS { GRAPH_TASKS } else { NAMED_TASKS };
        let tasks = &members.all[..members.all.len().min(most)];
        let ids: Vec<Uuid> = tasks.iter().map(|member| member.id).collect();
        let Some(needs) = page::list_needs(conn, &ids, Needs::All, NEEDS_MAX).await? else { return Ok(None) };
        let by_id: HashMap<Uuid, usize> = tasks.iter().enumerate().map(|(index, member)| (member.id, index)).collect();
        let by_seq: HashMap<i64, usize> = tasks.iter().enumerate().map(|(index, member)| (member.seq, index)).collect();
        let edge = |row: &page::NeedRow| Some((*by_seq.get(&row.required)?, *by_id.get(&row.dependent)?));
        let edges: Vec<(usize, usize)> = needs.iter().filter_map(edge).filter(|(from, to)| from != to).collect();
        if edges.is_empty() {
            return Ok(None);
        }
        let seqs: Vec<i64> = tasks.iter().map(|member| member.seq).collect();
        let definitions = page::list_definitions(conn, &seqs).await?.unwrap_or_default();
        Ok(Some(Self { tasks: tasks.len(), edges, definitions }))
    }
}

/// Names of tasks by number.
pub(super) fn names(definitions: &[(i64, String)]) -> HashMap<i64, String> {
    definitions.iter().filter_map(|(seq, definition)| Some((*seq, name(definition)?))).collect()
}

fn name(definition: &str) -> Option<String> {
    let name = text::metadata(definition)?.name;
    (!name.trim().is_empty()).then_some(name)
}
