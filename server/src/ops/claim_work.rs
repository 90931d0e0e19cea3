//! claimWork: from what the statement found to what the worker gets.

use chrono::{DateTime, Utc};
use tenure_api::ids::{RunId, TaskQueueId};

use crate::domain::create::shown_definition;
use crate::domain::task::{EndedRun, Last, OpenRun, Task, Tenancy};
use crate::store::decode::{Row, Undecodable};
use crate::store::transitions::claim::Claimed;

/// A claim, as its worker hears of it.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The task, running.
    pub task: Task,
    /// The run that is claimed.
    pub run: RunId,
    /// Who holds it.
    pub tenancy: Tenancy,
    /// When the credentials begin to be valid.
    pub now: DateTime<Utc>,
    /// JSON text of the task's scopes.
    pub scopes: String,
    /// JSON text of the definition; none when a claim is renewed.
    pub definition: Option<String>,
}

/// Puts together a claim that the statement made.
pub fn granted(
    row: Claimed,
    queue: TaskQueueId,
    ended: Vec<EndedRun>,
    worker_group: &str,
    worker_id: &str,
) -> Result<Granted, Undecodable> {
    let columns = Row { table: "pending", task: row.id };
    let open = OpenRun {
        run: columns.run(row.run)?,
        reason: columns.reason_created(row.reason_created)?,
        scheduled: row.scheduled,
    };
    let definition = row.definition.ok_or_else(|| columns.unfit("definition", 0))?;
    let tenancy = Tenancy {
        worker_group: worker_group.to_owned(),
        worker_id: worker_id.to_owned(),
        started: row.started,
        taken_until: row.taken_until,
    };
    Ok(Granted {
        run: open.run,
        now: row.started,
        scopes: row.scopes,
        definition: Some(shown_definition(definition, columns.priority(row.priority)?)),
        task: Task {
            id: columns.slug("id", row.id)?,
            seq: row.seq,
            queue,
            scheduler: row.scheduler,
            project: row.project,
            group: columns.slug("task_group", row.task_group)?,
            priority: columns.priority(row.priority)?,
            deadline: row.deadline,
            expires: row.expires,
            retries_left: columns.retries(row.retries_left)?,
            last: Last::Running(open, tenancy.clone()),
            ended,
        },
        tenancy,
    })
}
