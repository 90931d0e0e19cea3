//! A schedule that is due every minute of the manual clock, also while servers are disturbed. Nobody
//! claims its tasks.

use serde_json::{Value, json};
use tenure_api::ids::SlugId;

use super::storm::until_answered;
use super::world::Actor;
use crate::http::{QUEUE_API, TENURE_API};

const QUEUE: &str = "storm/scheduled";
const NAME: &str = "storm";
pub const PERIOD_MILLIS: i64 = 60_000;

/// The times of a schedule that have a task. Times are in milliseconds since 1970.
#[derive(Debug, Clone, Default)]
pub struct Fires {
    /// Times after this one have a task.
    pub from: i64,
    /// Times from this one on may have none.
    pub until: i64,
    /// Scheduled time of each task.
    pub times: Vec<i64>,
}

/// Stores the schedule. Returns the group of its tasks.
pub(super) async fn start(actor: &mut Actor) -> SlugId {
    let group = actor.random.task_id();
    let body = json!({"cron": "* * * * *", "catchUp": "all", "task": {"taskQueueId": QUEUE, "taskGroupId": group}});
    until_answered(actor, "PUT", &path(), Some(&body.to_string())).await.expect("a schedule is stored");
    group
}

/// Deletes the schedule. Returns its times with tasks.
pub(super) async fn finish(actor: &mut Actor, group: SlugId) -> Fires {
    let schedule = until_answered(actor, "GET", &path(), None).await.expect("the schedule exists");
    until_answered(actor, "DELETE", &path(), None).await;
    let times = read_times(actor, group).await;
    Fires { from: millis(&schedule["created"]), until: millis(&schedule["next"][0]), times }
}

fn path() -> String {
    format!("{TENURE_API}/schedules/{NAME}")
}

async fn read_times(actor: &mut Actor, group: SlugId) -> Vec<i64> {
    let (mut times, mut query) = (Vec::new(), String::new());
    loop {
        let path = format!("{QUEUE_API}/task-group/{group}/list{query}");
        // The first task makes the group.
        let Some(page) = until_answered(actor, "GET", &path, None).await else { return times };
        let members = page["tasks"].as_array().expect("a group has a list of tasks");
        times.extend(members.iter().map(|member| millis(&member["task"]["tags"]["tenure-schedule-time"])));
        let Some(token) = page["continuationToken"].as_str() else { return times };
        query = format!("?continuationToken={token}");
    }
}

fn millis(date: &Value) -> i64 {
    let date = date.as_str().and_then(|date| chrono::DateTime::parse_from_rfc3339(date).ok());
    date.expect("schedules have dates").timestamp_millis()
}
