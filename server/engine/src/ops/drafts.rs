//! Tasks to create with their edges: dependencies, and the tasks that hold their unique names.

use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use tenure_api::states::Requires;
use tenure_domain::create::{Awaited, NewTask, dependency_refusal};
use tenure_store::dependencies::{self, Edge, Required, Wanted};
use tenure_store::transitions::create::{self, Guarded, Member, Outcome};

/// A task to create, with the tasks that it waits for.
pub(super) struct Draft<'a> {
    pub(super) task: &'a NewTask,
    pub(super) queue: i32,
    required: Vec<Required>,
    /// Dependencies, and whether each exists.
    pub(super) awaited: Vec<(TaskId, Awaited)>,
    /// `tasks.seq` of the tasks that hold its name.
    pub(super) holders: Vec<i64>,
}

impl Draft<'_> {
    pub(super) fn has_valid_dependencies(&self) -> bool {
        dependency_refusal(self.task, &self.awaited).is_none()
    }

    /// True if it has unsatisfied dependencies.
    pub(super) fn waits_for_dependencies(&self) -> bool {
        self.required.iter().any(|required| !required.satisfied)
    }

    fn waits(&self) -> bool {
        !self.holders.is_empty() || self.waits_for_dependencies()
    }

    /// Edges of the task, which was stored with this key. A dependency that also holds the name has
    /// one edge.
    fn edges(&self, seq: i64) -> Vec<Edge> {
        let dependent = self.task.id.uuid();
        let own = self.required.iter().map(|required| {
            // A self-dependency had no key before.
            let required_seq = required.seq.unwrap_or(seq);
            Edge {
                required: required_seq,
                dependent,
                any_end: self.task.requires == Requires::AllResolved,
                satisfied: required.satisfied,
                fixed: self.holders.contains(&required_seq),
            }
        });
        let mut edges: Vec<Edge> = own.collect();
        for &holder in &self.holders {
            if edges.iter().all(|edge| edge.required != holder) {
                edges.push(Edge { required: holder, dependent, any_end: true, satisfied: false, fixed: true });
            }
        }
        edges
    }
}

/// Reads the dependencies of tasks, each with the key of its queue.
pub(super) async fn read<'a>(
    conn: &mut PgConnection,
    tasks: Vec<(&'a NewTask, i32)>,
) -> Result<Vec<Draft<'a>>, sqlx::Error> {
    let draft = |(task, queue)| Draft { task, queue, required: Vec::new(), awaited: Vec::new(), holders: Vec::new() };
    let mut drafts: Vec<Draft<'a>> = tasks.into_iter().map(draft).collect();
    if drafts.iter().all(|draft| draft.task.dependencies.is_empty()) {
        return Ok(drafts);
    }
    let wanted: Vec<Wanted<'_>> = drafts
        .iter()
        .map(|draft| Wanted {
            required: &draft.task.dependencies,
            any_end: draft.task.requires == Requires::AllResolved,
        })
        .collect();
    for row in dependencies::list_required(conn, &wanted).await? {
        let draft = &mut drafts[row.member];
        draft.awaited.extend(TaskId::from_uuid(row.id).map(|id| (id, awaited(draft.task, &row))));
        draft.required.push(row);
    }
    Ok(drafts)
}

fn awaited(task: &NewTask, row: &Required) -> Awaited {
    match row.expires {
        _ if row.id == task.id.uuid() => Awaited::Itself,
        Some(expires) => Awaited::Until(expires),
        None => Awaited::Missing,
    }
}

/// Stores the tasks at these positions and their edges. The outcome has positions in `drafts`.
///
/// An edge is satisfied at once if its required task has ended. If that task ends meanwhile, the
/// dependency pass notices when it reads the creation event.
pub(super) async fn store(
    transaction: &mut PgConnection,
    drafts: &[Draft<'_>],
    positions: &[usize],
    guarded: Guarded,
) -> Result<Outcome, sqlx::Error> {
    let members: Vec<Member<'_>> = positions
        .iter()
        .map(|&position| {
            let draft = &drafts[position];
            Member { task: draft.task, queue: draft.queue, waits: draft.waits(), ruled: false }
        })
        .collect();
    let mut outcome = create::create(transaction, &members, guarded).await?;
    let mut edges = Vec::new();
    for row in &mut outcome.stored {
        row.member = positions[row.member];
        edges.extend(drafts[row.member].edges(row.seq));
    }
    outcome.bounded.iter_mut().for_each(|member| *member = positions[*member]);
    dependencies::insert(transaction, &edges).await?;
    Ok(outcome)
}
