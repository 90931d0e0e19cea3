//! Reads tasks of the queue whose resolved tasks are purged soon.

use std::time::Duration;

use super::RETAINED_QUEUE;
use super::record::Event;
use super::world::Actor;
use crate::http::QUEUE_API;

/// Reads concern one of this many last tasks of all queues.
const RECENT: usize = 200;
/// Longest pause between two reads, in milliseconds.
const PAUSE_MAX: u64 = 10;

pub(super) async fn read(mut actor: Actor) {
    while !actor.world.is_over() {
        tokio::time::sleep(Duration::from_millis(actor.random.below(PAUSE_MAX))).await;
        let tried = actor.world.pick_tried(&mut actor.random, RECENT);
        let Some(tried) = tried.filter(|tried| tried.spec.queue == RETAINED_QUEUE) else { continue };
        let task = tried.spec.task;
        let start = actor.world.stamp();
        let answer = actor.call("GET", &format!("{QUEUE_API}/task/{task}/status"), None).await;
        actor.world.write(start, Event::Read { task, answer: answer.without_content() });
    }
}
