//! Histories of tasks with dependencies, and of cancelled tasks.

use super::*;

/// A task that depends on the story's task and was claimed after it, with a change requested first.
fn after_one_life(asked: Option<Change>, before: bool) -> Story {
    let mut story = Story::new();
    let required = story.created(LOW);
    let spec = TaskSpec { dependencies: vec![required], ..story.spec(LOW) };
    story.create(&spec, Answer::Done(()));
    if let Some(change) = asked {
        story.next(Event::Change { task: spec.task, change, answer: Answer::Done(()) });
    }
    if before {
        story.claimed(1, &[(spec.task, 0)]);
    }
    story.claimed(0, &[(required, 0)]);
    story.reported((required, 0), Verdict::Completed, Answer::Done(()));
    story.ends(required, LOW, &[(0, Verdict::Completed)]);
    if !before {
        story.claimed(1, &[(spec.task, 0)]);
    }
    story.reported((spec.task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(spec.task, LOW, &[(1, Verdict::Completed)]);
    story
}

#[test]
fn unscheduled_run_before_dependencies_is_found() {
    assert_eq!(after_one_life(None, false).broken(), []);
    assert_eq!(after_one_life(None, true).broken(), [Rule::Dependencies]);
    assert_eq!(after_one_life(Some(Change::Schedule), true).broken(), []);
    assert_eq!(after_one_life(Some(Change::Priority(LOW)), true).broken(), [Rule::Dependencies]);
}

#[test]
fn task_that_keeps_waiting_is_found() {
    let (mut story, required) = one_life();
    let spec = TaskSpec { dependencies: vec![required], ..story.spec(LOW) };
    story.create(&spec, Answer::Done(()));
    story.ends(spec.task, LOW, &[(0, Verdict::WorkerShutdown)]);
    assert_eq!(story.broken(), []);
    let waits = story.history.settled.tasks.get_mut(&spec.task).unwrap();
    (waits.state, waits.runs) = ("unscheduled".to_owned(), Vec::new());
    assert_eq!(story.broken(), [Rule::Dependencies]);
}

#[test]
fn completion_before_rerun_satisfies_only_earlier_waits() {
    for waits_before in [true, false] {
        let mut story = Story::new();
        let required = story.created(LOW);
        let spec = TaskSpec { dependencies: vec![required], ..story.spec(LOW) };
        if waits_before {
            story.create(&spec, Answer::Done(()));
        }
        story.claimed(0, &[(required, 0)]);
        story.reported((required, 0), Verdict::Completed, Answer::Done(()));
        story.next(Event::Change { task: required, change: Change::Rerun, answer: Answer::Done(()) });
        if !waits_before {
            story.create(&spec, Answer::Done(()));
            story.reported((required, 0), Verdict::Completed, Answer::Done(()));
        }
        story.claimed(0, &[(required, 1)]);
        story.reported((required, 1), Verdict::Failed, Answer::Done(()));
        story.ends(required, LOW, &[(0, Verdict::Completed), (0, Verdict::Failed)]);
        story.ends(spec.task, LOW, &[(0, Verdict::WorkerShutdown)]);
        let waits = story.history.settled.tasks.get_mut(&spec.task).unwrap();
        (waits.state, waits.runs) = ("unscheduled".to_owned(), Vec::new());
        assert_eq!(story.broken().contains(&Rule::Dependencies), waits_before);
    }
}

#[test]
fn claim_after_cancel_without_rerun_is_found() {
    for rerun in [false, true] {
        let mut story = Story::new();
        let task = story.created(LOW);
        story.next(Event::Change { task, change: Change::Cancel, answer: Answer::Done(()) });
        if rerun {
            story.next(Event::Change { task, change: Change::Rerun, answer: Answer::Unknown });
        }
        story.claimed(0, &[(task, 0)]);
        story.reported((task, 0), Verdict::Completed, Answer::Done(()));
        story.ends(task, LOW, &[(0, Verdict::Completed)]);
        assert_eq!(story.broken().contains(&Rule::Cancelled), !rerun);
    }
}
