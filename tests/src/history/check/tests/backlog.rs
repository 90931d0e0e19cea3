//! Backlog limits.

use super::*;
use crate::history::{BACKLOG, BOUNDED_QUEUE};

impl Story {
    fn bounded(&mut self) -> TaskSpec {
        TaskSpec { queue: BOUNDED_QUEUE, ..self.spec(LOW) }
    }

    fn exceeds_backlog(&mut self) -> bool {
        self.broken().contains(&Rule::Backlog)
    }
}

/// Creates and then claims this number of tasks. True if that exceeds the backlog.
fn created_at_once(tasks: usize, change: impl Fn(&mut TaskSpec)) -> bool {
    let mut story = Story::new();
    let mut specs = Vec::new();
    for _ in 0..tasks {
        let mut spec = story.bounded();
        change(&mut spec);
        story.create(&spec, Answer::Done(()));
        specs.push(spec);
    }
    let runs = specs.iter().map(|spec| (spec.task, 0)).collect();
    story.next(Event::ClaimWork { queue: BOUNDED_QUEUE, worker: 0, answer: Answer::Done(runs) });
    story.exceeds_backlog()
}

#[test]
fn more_pending_tasks_than_limit_are_a_violation() {
    assert!(!created_at_once(BACKLOG, |_| {}));
    assert!(created_at_once(BACKLOG + 1, |_| {}));
    let elsewhere = |spec: &mut TaskSpec| spec.queue = QUEUE;
    assert!(!created_at_once(BACKLOG + 1, elsewhere), "the queue has no limit");
    let other = Story::new().spec(LOW).task;
    assert!(!created_at_once(BACKLOG + 1, |spec| spec.dependencies = vec![other]), "they may be unscheduled");
}

#[test]
fn task_that_was_handed_out_leaves_its_place() {
    let mut story = Story::new();
    for _ in 0..=BACKLOG {
        let spec = story.bounded();
        story.create(&spec, Answer::Done(()));
        let answer = Answer::Done(vec![(spec.task, 0)]);
        story.next(Event::ClaimWork { queue: BOUNDED_QUEUE, worker: 0, answer });
    }
    assert!(!story.exceeds_backlog());
}

#[test]
fn repeat_and_task_without_limit_are_not_refused() {
    let mut story = Story::new();
    let spec = story.bounded();
    story.create(&spec, Answer::Refused(429));
    assert!(!story.exceeds_backlog(), "others may fill the queue");
    story.create(&spec, Answer::Done(()));
    story.create(&spec, Answer::Refused(429));
    assert!(story.exceeds_backlog());
    let mut story = Story::new();
    let spec = story.spec(LOW);
    story.create(&spec, Answer::Refused(429));
    assert!(story.exceeds_backlog());
}
