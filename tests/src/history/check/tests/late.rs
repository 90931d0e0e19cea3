//! Late results.

use super::*;
use crate::history::policy::Policy;

/// Run 0 was taken from worker 0, whose late report resolved the task while worker 1 had run 1.
fn late(late_result: bool, first: &Answer<()>, second: &Answer<()>) -> (Story, SlugId) {
    let mut story = Story::new();
    let policy = Policy { late_result, ..Policy::default() };
    story.next(Event::Policy { queue: QUEUE, policy, answer: Answer::Done(()) });
    let task = story.created(LOW);
    story.claimed(0, &[(task, 0)]);
    story.claimed(1, &[(task, 1)]);
    story.reported((task, 0), Verdict::Completed, first.clone());
    story.reported((task, 1), Verdict::Completed, second.clone());
    story.ends(task, LOW, &[(0, Verdict::InternalError), (1, Verdict::InternalError), (0, Verdict::Completed)]);
    change(&mut story, task, |status| {
        status.retries_left = 2;
        status.runs[0].reason_resolved = Some("claim-expired".to_owned());
        status.runs[1].reason_resolved = Some("superseded".to_owned());
        status.runs[2].reason_created = "exception".to_owned();
    });
    (story, task)
}

fn change(story: &mut Story, task: SlugId, change: impl Fn(&mut Status)) {
    let History { quiet, settled, drained, .. } = &mut story.history;
    for snapshot in [quiet, settled, drained] {
        change(snapshot.tasks.get_mut(&task).unwrap());
    }
}

const DONE: Answer<()> = Answer::Done(());
const CONFLICT: Answer<()> = Answer::Refused(409);

#[test]
fn late_result_needs_policy_and_report() {
    for (late_result, first, broken) in [
        (true, DONE, vec![]),
        (true, Answer::Unknown, vec![]),
        (false, DONE, vec![Rule::ResolvedOnce]),
        (true, CONFLICT, vec![Rule::ResolvedOnce]),
    ] {
        let (mut story, _) = late(late_result, &first, &CONFLICT);
        assert_eq!(story.broken(), broken, "{late_result} {first:?}");
    }
}

#[test]
fn second_late_result_is_found() {
    let (mut story, _) = late(true, &DONE, &DONE);
    assert_eq!(story.broken(), [Rule::ResolvedOnce]);
}

#[test]
fn late_result_without_superseded_run_is_found() {
    let (mut story, task) = late(true, &DONE, &CONFLICT);
    change(&mut story, task, |status| status.runs[1].reason_resolved = Some("claim-expired".to_owned()));
    assert_eq!(story.broken(), [Rule::Accounted]);
}

#[test]
fn result_of_late_report_is_read_of_its_own_run() {
    let returned = |story: &mut Story, task: SlugId| {
        story.next(Event::Returned { run: (task, 0), result: 7, answer: Answer::Done(()) });
    };
    let (mut story, task) = late(true, &DONE, &CONFLICT);
    returned(&mut story, task);
    assert_eq!(story.broken(), [Rule::Results]);
    let (mut story, task) = late(true, &DONE, &CONFLICT);
    returned(&mut story, task);
    story.history.results.insert((task, 2), 7.into());
    assert_eq!(story.broken(), []);
}
