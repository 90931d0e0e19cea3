//! Unique names.

use super::*;
use crate::history::policy::Unique;

impl Story {
    fn named(&mut self) -> TaskSpec {
        let mut spec = self.spec(LOW);
        spec.options.unique = Some(Unique { name: 1, coalesces: false });
        spec
    }

    /// Completes tasks in this order, after all were created.
    fn completes(&mut self, tasks: &[SlugId]) {
        for &task in tasks {
            self.claimed(0, &[(task, 0)]);
            self.reported((task, 0), Verdict::Completed, Answer::Done(()));
            self.ends(task, LOW, &[(0, Verdict::Completed)]);
        }
    }
}

#[test]
fn name_may_be_used_again_after_the_end() {
    let mut story = Story::new();
    for _ in 0..2 {
        let spec = story.named();
        story.create(&spec, Answer::Done(()));
        story.completes(&[spec.task]);
    }
    assert_eq!(story.broken(), []);
}

#[test]
fn two_unresolved_tasks_of_a_name_are_a_violation() {
    let mut story = Story::new();
    let (first, second) = (story.named(), story.named());
    story.create(&first, Answer::Done(()));
    story.create(&second, Answer::Done(()));
    story.completes(&[first.task, second.task]);
    assert_eq!(story.broken(), [Rule::Names]);
}

#[test]
fn refusal_of_a_taken_name_is_correct() {
    let mut story = Story::new();
    let (first, second) = (story.named(), story.named());
    story.create(&first, Answer::Done(()));
    story.create(&second, Answer::Refused(409));
    story.completes(&[first.task]);
    assert_eq!(story.broken(), []);
}

#[test]
fn refusal_of_a_free_name_is_a_violation() {
    let mut story = Story::new();
    let first = story.named();
    story.create(&first, Answer::Refused(409));
    assert_eq!(story.broken(), [Rule::Conflict]);
}
