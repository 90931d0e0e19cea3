//! Changes and removes policies of queues; pauses and resumes queues.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::RETAINED_QUEUE;
use super::policy::Policy;
use super::record::{Answer, Event};
use super::world::{Actor, World};
use crate::clock::wire_date;
use crate::http::{TENURE_API, queue_segment};

const IDLE_MAX: u64 = 200;
/// Longest pause, in operations of other actors, so that some of these use the paused queue on a
/// slow machine too.
const PAUSE_MAX: u64 = 40;
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Percentages of actions that change or remove a policy; the others are pauses.
const CHANGE_PERCENT: u64 = 35;
const REMOVE_PERCENT: u64 = 10;
/// Percentage of pauses with an end, the end in seconds from now, and the percentage of pauses with
/// an end that resume by themselves.
const UNTIL_PERCENT: u64 = 40;
const UNTIL: std::ops::Range<u64> = 20..50;
const LEFT_PERCENT: u64 = 50;
/// Queues from this index on have policies; [`RETAINED_QUEUE`] keeps its first one. Queue 0
/// never has a policy, like a queue of an older client.
const FIRST_WITH_POLICY: usize = 1;

pub(super) async fn operate(mut actor: Actor) {
    while !actor.world.is_over() {
        tokio::time::sleep(Duration::from_millis(actor.random.below(IDLE_MAX))).await;
        let queues = actor.world.queues.len();
        let roll = actor.random.below(100);
        if roll < CHANGE_PERCENT + REMOVE_PERCENT {
            let changed = (RETAINED_QUEUE - FIRST_WITH_POLICY) as u64;
            let queue = FIRST_WITH_POLICY + actor.random.below(changed) as usize;
            let policy = (roll < CHANGE_PERCENT).then(|| Policy::invent(&mut actor.random));
            change_policy(&mut actor, queue, policy).await;
        } else {
            let queue = actor.random.below(queues as u64) as usize;
            pause_for_a_while(&mut actor, queue).await;
        }
    }
}

async fn change_policy(actor: &mut Actor, queue: usize, policy: Option<Policy>) {
    let path = path(&actor.world, queue, "policy");
    let body = policy.as_ref().map(|policy| policy.json().to_string());
    let method = if body.is_some() { "PUT" } else { "DELETE" };
    let start = actor.world.stamp();
    let answer = actor.call(method, &path, body.as_deref()).await.without_content();
    let refused = matches!(answer, Answer::Refused(_));
    assert!(method == "DELETE" || !refused, "a policy was answered with {answer:?}: {body:?}");
    actor.world.write(start, Event::Policy { queue, policy: policy.unwrap_or_default(), answer });
}

async fn pause_for_a_while(actor: &mut Actor, queue: usize) {
    let (from, span) = (UNTIL.start, UNTIL.end - UNTIL.start);
    let seconds = from + actor.random.below(span);
    let now = actor.world.server_millis();
    let until = actor.random.percent(UNTIL_PERCENT).then(|| now + seconds.cast_signed() * 1000);
    let body = until.map_or(json!({"reason": "a storm"}), |until| json!({"until": wire_date(until)})).to_string();
    let path = path(&actor.world, queue, "pause");
    let start = actor.world.stamp();
    let answer = actor.call("POST", &path, Some(&body)).await.without_content();
    actor.world.write(start, Event::Pause { queue, until, answer });
    if until.is_some() && actor.random.percent(LEFT_PERCENT) {
        return;
    }
    let left = actor.world.operations_left().saturating_sub(1 + actor.random.below(PAUSE_MAX));
    while actor.world.operations_left() > left && !actor.world.is_over() {
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    while !resume(actor, queue).await && !actor.world.is_over() {
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

pub(super) async fn resume(actor: &mut Actor, queue: usize) -> bool {
    let path = path(&actor.world, queue, "resume");
    let start = actor.world.stamp();
    let answer = actor.call("POST", &path, None).await.without_content();
    let done = answer.done().is_some();
    actor.world.write(start, Event::Resume { queue, answer });
    done
}

fn path(world: &Arc<World>, queue: usize, what: &str) -> String {
    format!("{TENURE_API}/queues/{}/{what}", queue_segment(&world.queues[queue]))
}
