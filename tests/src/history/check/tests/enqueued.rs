//! Tasks enqueued from SQL.

use super::*;

/// A task is enqueued with this answer, and exists at the end or not.
fn enqueued(answer: Answer<()>, exists: bool) -> bool {
    let (mut story, task) = one_life();
    let other = story.random.task_id();
    story.next(Event::Enqueue { task: if exists { task } else { other }, answer });
    story.broken().contains(&Rule::Enqueued)
}

#[test]
fn only_committed_tasks_exist() {
    for (answer, exists, is_wrong) in [
        (Answer::Done(()), true, false),
        (Answer::Done(()), false, true),
        (Answer::Refused(0), false, false),
        (Answer::Refused(0), true, true),
        (Answer::Unknown, true, false),
        (Answer::Unknown, false, false),
    ] {
        assert_eq!(enqueued(answer.clone(), exists), is_wrong, "{answer:?}, exists: {exists}");
    }
}
