//! Purges of resolved tasks.

use super::*;
use crate::history::{RETAIN_COMPLETED, RETAIN_FAILED, RETAINED_QUEUE};

/// A task is reported at the beginning of time, and does not exist after these seconds.
fn purged_after(verdict: Verdict, answer: Answer<()>, seconds: i64) -> Vec<Rule> {
    let mut story = Story::new();
    story.next(Event::Clock(0));
    let spec = TaskSpec { queue: RETAINED_QUEUE, ..story.spec(LOW) };
    story.create(&spec, Answer::Done(()));
    let run = (spec.task, 0);
    story.next(Event::ClaimWork { queue: RETAINED_QUEUE, worker: 0, answer: Answer::Done(vec![run]) });
    story.reported(run, verdict, answer);
    story.next(Event::Read { task: spec.task, answer: Answer::Done(()) });
    story.next(Event::Read { task: spec.task, answer: Answer::Refused(404) });
    story.next(Event::Clock(seconds * 1000));
    story.broken()
}

#[test]
fn task_purged_before_its_date_is_found() {
    let done = Answer::Done(());
    for (verdict, seconds) in [(Verdict::Completed, RETAIN_COMPLETED), (Verdict::Failed, RETAIN_FAILED)] {
        assert_eq!(purged_after(verdict, done.clone(), seconds - 1), [Rule::Retained], "{verdict:?}");
        assert_eq!(purged_after(verdict, done.clone(), seconds), [], "{verdict:?}");
    }
    assert_eq!(purged_after(Verdict::Completed, Answer::Unknown, RETAIN_COMPLETED), []);
    let refused = purged_after(Verdict::Completed, Answer::Refused(409), RETAIN_COMPLETED);
    assert_eq!(refused, [Rule::Retained], "it was resolved later, and not as completed");
}
