//! Creates and changes tasks. Some creates are repeated; some reuse an id with other content.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::RETAINED_QUEUE;
use super::policy::Options;
use super::record::{Answer, Change, Event, PRIORITIES, TaskSpec};
use super::world::{Actor, Tried};
use crate::definition::Definition;
use crate::http::{QUEUE_API, TENURE_API};
use tenure_api::ids::SlugId;

pub(super) const BACKLOG_MAX: i64 = 300;
const WAIT: Duration = Duration::from_millis(5);
/// Number of latest tasks from which repeats, conflicts, changes and dependencies are picked.
const RECENT: usize = 40;
const REPEAT_PERCENT: u64 = 8;
const CONFLICT_PERCENT: u64 = 5;
const SUBMIT_PERCENT: u64 = 15;
const CHANGE_PERCENT: u64 = 12;
/// Percentage of tasks with dependencies, and their largest number.
const WAITING_PERCENT: u64 = 15;
const DEPENDENCIES_MAX: u64 = 3;
/// Percentage of dependent tasks for which any resolution suffices.
const ANY_END_PERCENT: u64 = 60;
const HURRIED_PERCENT: u64 = 4;
const HURRIED_MILLIS: i64 = 120 * 1000;
pub(super) const UNHURRIED_MILLIS: i64 = 4 * 60 * 60 * 1000;
const RETRIES_MAX: u64 = 5;
const PADDING: usize = 64;
/// Status of createTask while another task has the unique name.
const DUPLICATE: u16 = 409;

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
        // After the task's purge, a repeat would create a new task.
        let repeats = recent.as_ref().is_some_and(|tried| tried.spec.queue != RETAINED_QUEUE);
        let roll = actor.random.below(100);
        match recent {
            Some(tried) if repeats && roll < REPEAT_PERCENT => create(&mut actor, tried).await,
            Some(tried) if repeats && roll < REPEAT_PERCENT + CONFLICT_PERCENT => {
                create(&mut actor, contradict(&tried)).await;
            }
            Some(tried) if roll < REPEAT_PERCENT + CONFLICT_PERCENT + CHANGE_PERCENT => {
                change(&mut actor, &tried).await;
            }
            _ => {
                let tried = invent(&mut actor);
                actor.world.note_tried(tried.clone());
                create(&mut actor, tried).await;
            }
        }
    }
}

async fn create(actor: &mut Actor, tried: Tried) {
    let submits = actor.random.percent(SUBMIT_PERCENT);
    let start = actor.world.stamp();
    let answer = if submits {
        let body = with_field(&tried.body, "taskId", &format!(r#""{}""#, tried.spec.task));
        let body = match tried.spec.options.json() {
            Some(options) => with_field(&body, "options", &options.to_string()),
            None => body,
        };
        actor.call("POST", &format!("{TENURE_API}/tasks"), Some(&body)).await
    } else {
        let body = match tried.spec.options.json() {
            Some(options) => with_field(&tried.body, "extra", &format!(r#"{{"tenure":{options}}}"#)).into(),
            None => Arc::clone(&tried.body),
        };
        actor.call("PUT", &format!("{QUEUE_API}/task/{}", tried.spec.task), Some(&body)).await
    };
    // The answer is about another task: this one was not created.
    let is_duplicate = answer.done().is_some_and(|body| body["tasks"][0]["deduplicated"] == true);
    let answer = if is_duplicate { Answer::Refused(DUPLICATE) } else { answer.without_content() };
    actor.world.write(start, Event::Create { task: tried.spec, answer });
}

fn with_field(body: &str, name: &str, value: &str) -> String {
    format!(r#"{{"{name}":{value},{}"#, &body[1..])
}

async fn change(actor: &mut Actor, tried: &Tried) {
    let task = tried.spec.task;
    let change = match actor.random.below(4) {
        0 => Change::Schedule,
        1 => Change::Rerun,
        2 => Change::Cancel,
        _ => Change::Priority(actor.random.below(PRIORITIES.len() as u64) as usize),
    };
    let (word, body) = match change {
        Change::Schedule => ("schedule", None),
        Change::Rerun => ("rerun", None),
        Change::Cancel => ("cancel", None),
        Change::Priority(priority) => ("priority", Some(format!(r#"{{"newPriority":"{}"}}"#, PRIORITIES[priority]))),
    };
    let start = actor.world.stamp();
    let answer = actor.call("POST", &format!("{QUEUE_API}/task/{task}/{word}"), body.as_deref()).await;
    actor.world.write(start, Event::Change { task, change, answer: answer.without_content() });
}

fn pick_dependencies(actor: &mut Actor) -> Vec<SlugId> {
    let mut picked = Vec::new();
    if actor.random.percent(WAITING_PERCENT) {
        for _ in 0..=actor.random.below(DEPENDENCIES_MAX) {
            let tried = actor.world.pick_tried(&mut actor.random, RECENT);
            picked.extend(tried.map(|tried| tried.spec.task).filter(|task| !picked.contains(task)));
        }
    }
    picked
}

fn invent(actor: &mut Actor) -> Tried {
    let world = Arc::clone(&actor.world);
    let dependencies = pick_dependencies(actor);
    let random = &mut actor.random;
    let created = world.server_millis();
    let queue = random.below(world.queues.len() as u64) as usize;
    let hurried = queue != RETAINED_QUEUE && random.percent(HURRIED_PERCENT);
    let spec = TaskSpec {
        task: random.task_id(),
        queue,
        priority: random.below(PRIORITIES.len() as u64) as usize,
        retries: random.below(RETRIES_MAX + 1) as u32,
        content: 0,
        any_end: random.percent(ANY_END_PERCENT),
        dependencies,
        // A task with a start after its deadline could be refused.
        options: if hurried { Options::default() } else { Options::invent(random, created) },
    };
    let definition = Definition {
        queue: &world.queues[spec.queue],
        priority: PRIORITIES[spec.priority],
        retries: spec.retries,
        created,
        deadline: created + if hurried { HURRIED_MILLIS } else { UNHURRIED_MILLIS },
        group: None,
        note: "first",
        dependencies: &spec.dependencies,
        any_end: spec.any_end,
    };
    let body = definition.body(PADDING, random).into();
    // Submitters must not wait for a task whose dependencies may never be satisfied.
    if spec.dependencies.is_empty() || spec.any_end {
        world.backlog.fetch_add(1, Ordering::Relaxed);
    }
    Tried { spec, body }
}

/// Returns a create with the same id and other content. That content is always the same, so that
/// its repeats are exact.
fn contradict(tried: &Tried) -> Tried {
    let spec = TaskSpec { content: 1, ..tried.spec.clone() };
    Tried { spec, body: tried.body.replace(r#""note":"first""#, r#""note":"other""#).into() }
}
