//! Groups of tasks: getTaskGroup, sealTaskGroup, cancelTaskGroup, and the list of their tasks.

pub mod cancel_task_group;
pub mod get_task_group;
pub mod list_task_group;
pub mod seal_task_group;

use tenure_api::ids::TaskGroupId;

use tenure_domain::task::Group;

use crate::http::api::prelude::*;

const NO_GROUP: &str = "the group does not exist";

/// A group as the wire shows it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskGroup)]
struct GroupBody {
    /// The group.
    task_group_id: TaskGroupId,
    /// Who owns it.
    scheduler_id: String,
    /// When it is forgotten.
    expires: Timestamp,
    /// Since when no task can be added; absent if it is not sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<Timestamp>,
}

impl From<Group> for GroupBody {
    fn from(group: Group) -> Self {
        Self {
            task_group_id: group.id,
            scheduler_id: group.scheduler,
            expires: group.expires.into(),
            sealed: group.sealed.map(Timestamp::new),
        }
    }
}

/// The group of the examples.
fn a_group(sample: &Sample) -> Value {
    json!({"taskGroupId": sample.task, "schedulerId": "-", "expires": sample.after(365 * 24 * 60 + 60)})
}
