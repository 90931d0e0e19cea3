//! Dead letters that are run again.

use super::*;

/// Rules broken if a failed task was redriven with these answers and has so many reruns.
fn redriven<const N: usize>(answers: [Answer<()>; N], reruns: u16) -> Vec<Rule> {
    let mut story = Story::new();
    let task = story.created(LOW);
    story.claimed(0, &[(task, 0)]);
    story.reported((task, 0), Verdict::Failed, Answer::Done(()));
    for answer in answers {
        story.next(Event::Redrive { task, answer });
    }
    let mut runs = vec![(0, Verdict::Failed)];
    for run in 1..=reruns {
        story.claimed(0, &[(task, run)]);
        story.reported((task, run), Verdict::Completed, Answer::Done(()));
        runs.push((0, Verdict::Completed));
    }
    story.ends(task, LOW, &runs);
    let History { quiet, settled, drained, .. } = &mut story.history;
    for snapshot in [quiet, settled, drained] {
        for run in &mut snapshot.tasks.get_mut(&task).unwrap().runs[1..] {
            run.reason_created = "rerun".to_owned();
        }
    }
    story.broken()
}

#[test]
fn lost_and_doubled_redrives_are_found() {
    let (done, unknown, refused) = (Answer::Done(()), Answer::Unknown, Answer::Refused(409));
    assert_eq!(redriven([done.clone()], 1), []);
    assert_eq!(redriven([done.clone(), refused.clone()], 1), []);
    assert_eq!(redriven([done.clone()], 0), [Rule::Redriven]);
    assert_eq!(redriven([done.clone(), refused.clone()], 2), [Rule::Redriven]);
    assert_eq!(redriven([done, unknown.clone()], 2), []);
    for reruns in 0..2 {
        assert_eq!(redriven([unknown.clone()], reruns), []);
    }
    assert_eq!(redriven([refused.clone()], 0), []);
    assert_eq!(redriven([refused], 1), [Rule::Redriven]);
}
