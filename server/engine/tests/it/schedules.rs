//! Schedules: each time gets one task, whatever happens to servers.

mod due;
mod once;

use tenure_api::schedules::ScheduleRequest;
use tenure_api::states::ScheduleOutcome;
use tenure_domain::schedule::definition::{Definition, Schedule};
use tenure_engine::ops::actor::Actor;
use tenure_engine::ops::schedules as ops;

use crate::support::*;

const OWNER: &str = "ci";
const NAME: &str = "nightly";

fn parts(queue: &Queue) -> ops::Parts<'_> {
    queue.engine.schedule_parts(&queue.engine.pool, &*queue.authority)
}

async fn put_schedule(queue: &Queue, name: &str, body: &Value) {
    let text = body.to_string();
    let sent: ScheduleRequest<'_> = serde_json::from_str(&text).unwrap();
    let definition = Definition::from_request(&sent).unwrap();
    ops::put(parts(queue), &Actor::new(OWNER), name, ops::Put { definition, paused: sent.paused }).await.unwrap();
}

fn hourly() -> Value {
    json!({"cron": "0 * * * *", "task": {"taskQueueId": QUEUE}})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = hourly();
    body[field] = value;
    body
}

async fn stored(queue: &Queue) -> Schedule {
    ops::get(parts(queue), NAME).await.unwrap()
}

async fn outcome(queue: &Queue) -> Option<ScheduleOutcome> {
    stored(queue).await.last.map(|last| last.outcome)
}

/// Tasks of all schedules.
async fn tasks(database: &TestDatabase) -> i64 {
    number(database.pool(), "SELECT count(*) FROM task_definitions WHERE tags LIKE '%tenure-schedule-time%'").await
}

async fn to_next_hour(database: &TestDatabase) {
    let sql = "UPDATE clock SET clock_offset = clock_offset + (date_trunc('hour', d.now) + interval '1 hour' - d.now)
               FROM db_now d";
    run_sql(database.pool(), sql).await;
}

/// Moves the clock and makes what is due.
async fn later(database: &TestDatabase, queue: &Queue, interval: &'static str) {
    advance(database, interval).await;
    while queue.run_pass("schedules").await.unwrap().done > 0 {}
}
