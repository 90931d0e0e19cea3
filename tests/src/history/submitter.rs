//! Creates tasks; sometimes the same one again, sometimes another one under the same id.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::record::{Answer, Event, PRIORITIES, TaskSpec};
use super::world::{Actor, Tried};
use crate::definition::Definition;
use crate::http::QUEUE_API;

/// Beyond this many unresolved tasks submitters wait for the workers.
const BACKLOG_MAX: i64 = 300;
const WAIT: Duration = Duration::from_millis(5);
/// Repeats and conflicts are about one of this many last tasks.
const RECENT: usize = 40;
const REPEAT_PERCENT: u64 = 8;
const CONFLICT_PERCENT: u64 = 5;
/// How many tasks in a hundred have little time.
const HURRIED_PERCENT: u64 = 4;
const HURRIED_MILLIS: i64 = 120 * 1000;
const UNHURRIED_MILLIS: i64 = 4 * 60 * 60 * 1000;
const RETRIES_MAX: u64 = 5;
const PADDING: usize = 64;

/// Works until the operations are used up.
pub(super) async fn submit(mut actor: Actor) {
    loop {
        if actor.world.backlog.load(Ordering::Relaxed) > BACKLOG_MAX && !actor.world.is_over() {
            tokio::time::sleep(WAIT).await;
            continue;
        }
        if !actor.world.take_operation() {
            return;
        }
        let recent = actor.world.pick_tried(&mut actor.random, RECENT);
        let roll = actor.random.below(100);
        match recent {
            Some(tried) if roll < REPEAT_PERCENT => create(&mut actor, tried).await,
            Some(tried) if roll < REPEAT_PERCENT + CONFLICT_PERCENT => create(&mut actor, contradict(&tried)).await,
            _ => {
                let tried = invent(&mut actor);
                actor.world.note_tried(tried.clone());
                create(&mut actor, tried).await;
            }
        }
    }
}

async fn create(actor: &mut Actor, tried: Tried) {
    let start = actor.world.stamp();
    let path = format!("{QUEUE_API}/task/{}", tried.spec.task);
    let answer = match actor.call("PUT", &path, Some(&tried.body)).await {
        Answer::Done(_) => Answer::Done(()),
        Answer::Refused(status) => Answer::Refused(status),
        Answer::Unknown => Answer::Unknown,
    };
    actor.world.write(start, Event::Create { task: tried.spec, answer });
}

fn invent(actor: &mut Actor) -> Tried {
    let world = Arc::clone(&actor.world);
    let random = &mut actor.random;
    let spec = TaskSpec {
        task: random.task_id(),
        queue: random.below(world.queues.len() as u64) as usize,
        priority: random.below(PRIORITIES.len() as u64) as usize,
        retries: random.below(RETRIES_MAX + 1) as u32,
        content: 0,
    };
    let created = world.server_millis();
    let definition = Definition {
        queue: &world.queues[spec.queue],
        priority: PRIORITIES[spec.priority],
        retries: spec.retries,
        created,
        deadline: created + if random.percent(HURRIED_PERCENT) { HURRIED_MILLIS } else { UNHURRIED_MILLIS },
        group: None,
        note: "first",
    };
    let body = definition.body(PADDING, random).into();
    world.backlog.fetch_add(1, Ordering::Relaxed);
    Tried { spec, body }
}

/// Another task under the same id; always the same other task, so that repeats of it are repeats.
fn contradict(tried: &Tried) -> Tried {
    let spec = TaskSpec { content: 1, ..tried.spec.clone() };
    Tried { spec, body: tried.body.replace(r#""note":"first""#, r#""note":"other""#).into() }
}
