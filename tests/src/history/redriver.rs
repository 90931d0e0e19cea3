//! Runs dead letters again, several at once, while others do so and while the tasks are rerun.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::ids::SlugId;

use super::record::{Answer, Event};
use super::world::Actor;
use crate::http::{TENURE_API, queue_segment};

const IDLE_MAX: u64 = 200;
const LISTED_MAX: usize = 100;
/// Most tasks of a request.
const TASKS_MAX: u64 = 5;
/// Status that stands for a task in the list of refused ones.
const REFUSED: u16 = 409;

pub(super) async fn redrive(mut actor: Actor) {
    while !actor.world.is_over() {
        tokio::time::sleep(Duration::from_millis(actor.random.below(IDLE_MAX))).await;
        let queue = actor.random.below(actor.world.queues.len() as u64) as usize;
        let path = format!("{TENURE_API}/queues/{}", queue_segment(&actor.world.queues[queue]));
        let listed = actor.call("GET", &format!("{path}/dead-letters?limit={LISTED_MAX}"), None).await;
        let tasks = choose(&mut actor, listed.done().map(read_tasks).unwrap_or_default());
        if tasks.is_empty() {
            continue;
        }
        let body = json!({"taskIds": tasks}).to_string();
        let start = actor.world.stamp();
        let answer = actor.call("POST", &format!("{path}/redrive"), Some(&body)).await;
        for task in tasks {
            actor.world.write(start, Event::Redrive { task, answer: answer_of(task, &answer) });
        }
    }
}

/// Chooses a few tasks anywhere in the list: the oldest ones may be past their deadlines.
fn choose(actor: &mut Actor, mut listed: Vec<SlugId>) -> Vec<SlugId> {
    let mut chosen = Vec::new();
    for _ in 0..=actor.random.below(TASKS_MAX) {
        if !listed.is_empty() {
            let index = actor.random.below(listed.len() as u64) as usize;
            chosen.push(listed.swap_remove(index));
        }
    }
    chosen
}

fn read_tasks(page: &Value) -> Vec<SlugId> {
    let letters = page["deadLetters"].as_array().expect("dead letters are a list");
    letters.iter().filter_map(|letter| letter["taskId"].as_str()?.parse().ok()).collect()
}

fn answer_of(task: SlugId, answer: &Answer<Value>) -> Answer<()> {
    match answer {
        Answer::Done(body) => {
            let refused = body["refused"].as_array().expect("refused tasks are a list");
            let is_refused = refused.iter().any(|refused| refused["taskId"] == json!(task));
            if is_refused { Answer::Refused(REFUSED) } else { Answer::Done(()) }
        }
        Answer::Refused(status) => Answer::Refused(*status),
        Answer::Unknown => Answer::Unknown,
    }
}
