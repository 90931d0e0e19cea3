//! Submissions of plain tasks: one statement stores all tasks or none. If it stores none, the
//! general steps find out why.

use std::collections::{BTreeSet, HashMap};

use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use tenure_domain::submit::{Graph, GraphTask};
use tenure_domain::traces::SpanContext;
use tenure_store::hot::statement::{Rows, Run, Statement};
use tenure_store::transitions::create::{self, Created, Ids, Member};

use super::{Parts, Submitted, SubmittedTask};
use crate::notifiers::Effects;
use crate::statistics::Creation;
use crate::traces;

/// Queues of a plain submission. The keys of more are looked up together by the general steps.
const QUEUES_MAX: usize = 16;

/// A submission without dependencies and options, to known queues without known policies.
pub(super) struct Plain {
    /// Keys of the entries' queues.
    queues: Vec<i32>,
    /// For the traces of the tasks.
    link: Option<SpanContext>,
}

impl Plain {
    pub(super) async fn of(parts: Parts<'_>, graph: &Graph) -> Result<Option<Self>, sqlx::Error> {
        let is_plain = |entry: &GraphTask| entry.task.dependencies.is_empty() && entry.task.options.is_none();
        if !graph.entries.iter().all(is_plain) {
            return Ok(None);
        }
        let mut keys: HashMap<&TaskQueueId, i32> = HashMap::new();
        for GraphTask { task, .. } in &graph.entries {
            if keys.contains_key(&task.queue) {
                continue;
            }
            let key = parts.queues.find_key(parts.pool, &task.queue).await?;
            let Some(key) = key.filter(|&key| !parts.queues.is_ruled(key) && keys.len() < QUEUES_MAX) else {
                return Ok(None);
            };
            keys.insert(&task.queue, key);
        }
        let queues = graph.entries.iter().filter_map(|entry| keys.get(&entry.task.queue).copied());
        Ok(Some(Self { queues: queues.collect(), link: traces::link_of_new_task() }))
    }

    /// Stores all tasks or none.
    pub(super) async fn store(
        &self,
        conn: &mut PgConnection,
        graph: &Graph,
    ) -> Result<Option<Vec<Created>>, sqlx::Error> {
        let Some(statement) = self.statement(graph) else { return Ok(None) };
        decode(&conn.run_one(&statement).await?, graph)
    }

    pub(super) fn statement(&self, graph: &Graph) -> Option<Statement> {
        let entries = graph.entries.iter().zip(&self.queues);
        let members: Vec<Member<'_>> =
            entries.map(|(entry, &queue)| Member { task: &entry.task, queue, waits: false, ruled: false }).collect();
        let is_given = graph.entries.iter().any(|entry| entry.is_given);
        create::statement_of_all(&members, if is_given { Ids::Given } else { Ids::Drawn })
    }

    /// A queue in which the tasks become claimable.
    pub(super) fn queue(&self) -> Option<i32> {
        self.queues.first().copied()
    }

    pub(super) fn add_effects(&self, graph: &Graph, stored: &[Created], effects: &mut Effects) {
        let creation = |(n, row): (usize, &Created)| Creation {
            queue: self.queues[n],
            task: graph.entries[n].task.id.uuid(),
            at: row.now,
            link: self.link,
        };
        effects.created.extend(stored.iter().enumerate().map(creation));
        effects.claimable.extend(self.queues.iter().copied().collect::<BTreeSet<i32>>());
    }
}

/// Returns the stored tasks in the order of the entries, if all were stored.
pub(super) fn decode(rows: &Rows, graph: &Graph) -> Result<Option<Vec<Created>>, sqlx::Error> {
    let mut stored = create::decode(rows)?.stored;
    stored.sort_unstable_by_key(|row| row.member);
    Ok((stored.len() == graph.entries.len()).then_some(stored))
}

pub(super) fn submitted(graph: &Graph, stored: &[Created]) -> Submitted {
    let tasks = graph.entries.iter().zip(stored);
    let tasks = tasks.map(|(entry, row)| SubmittedTask { task: row.task(&entry.task), is_duplicate: false });
    Submitted { group: graph.group, tasks: tasks.collect() }
}
