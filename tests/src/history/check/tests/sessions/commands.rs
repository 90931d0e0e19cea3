//! Histories with commands for tasks.

use super::*;
use crate::history::policy::Start;

/// A session that commands its run and reads its inbox. Then the run is completed.
fn commanded(answer: Answer<i64>, items: &[(i64, Item)]) -> (Story, SessionId, RunKey) {
    let mut story = Story::new();
    let mine = story.begins(1, false);
    let run = (story.created(LOW), 0);
    story.claims(mine, &[run]);
    story.act(Act::TaskCommand { session: mine, run, answer });
    let items: Vec<(i64, Item)> = items
        .iter()
        .map(|(id, item)| (*id, if *item == Item::Command { Item::TaskCommand(run) } else { item.clone() }))
        .collect();
    story.reads(mine, 0, &items);
    story.reported(run, Verdict::Completed, Answer::Done(()));
    story.ends(run.0, LOW, &[(MEMBER, Verdict::Completed)]);
    let expires = story.time() + 10 * TTL;
    story.shows(mine, 0, Some((expires, SessionEnd::Expired)));
    (story, mine, run)
}

#[test]
fn task_command_stays_until_carried_out() {
    let (mut story, mine, run) = commanded(Answer::Done(7), &[(4, Item::Command)]);
    story.reads(mine, 0, &[(4, Item::TaskCommand(run))]);
    // Carried out, or replaced.
    story.reads(mine, 0, &[]);
    story.reads(mine, 0, &[(6, Item::TaskCommand(run))]);
    assert_eq!(story.broken(), []);
}

#[test]
fn missing_task_command_is_found() {
    let (mut story, ..) = commanded(Answer::Done(7), &[]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
    let (mut story, ..) = commanded(Answer::Unknown, &[]);
    assert_eq!(story.broken(), []);
}

#[test]
fn task_command_for_ended_run_may_be_missing() {
    let (mut story, _, run) = commanded(Answer::Done(7), &[]);
    story.at(1, story.now, Event::Report { run, verdict: Verdict::Completed, answer: Answer::Unknown });
    assert_eq!(story.broken(), []);
    let (mut story, _, run) = commanded(Answer::Done(7), &[]);
    story.next(Event::Change { task: run.0, change: Change::Rerun, answer: Answer::Unknown });
    assert_eq!(story.broken(), [], "a rerun takes the command away");
}

#[test]
fn task_command_for_a_run_of_another_session_is_found() {
    let (mut story, mine, run) = commanded(Answer::Done(7), &[(4, Item::Command)]);
    story.reads(mine, 0, &[(4, Item::TaskCommand(run)), (5, Item::TaskCommand((run.0, 1)))]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
}

/// A command makes a run claimable that was released with a delay.
#[test]
fn task_command_ends_the_delay_of_a_release() {
    for (commands, expected) in [(true, vec![]), (false, vec![Rule::NotBefore])] {
        let mut story = Story::new();
        let mine = story.begins(1, false);
        let run = (story.created(LOW), 0);
        story.claims(mine, &[run]);
        if commands {
            story.act(Act::TaskCommand { session: mine, run, answer: Answer::Unknown });
        }
        story.next(Event::Release { run, start: Some(Start::After(3_600)), answer: Answer::Done(()) });
        story.claims(mine, &[(run.0, 1)]);
        story.reported((run.0, 1), Verdict::Completed, Answer::Done(()));
        story.ends(run.0, LOW, &[(MEMBER, Verdict::WorkerShutdown), (MEMBER, Verdict::Completed)]);
        for snapshot in [&mut story.history.quiet, &mut story.history.drained] {
            let status = snapshot.tasks.get_mut(&run.0).unwrap();
            status.retries_left = 3;
            let at = chrono::DateTime::from_timestamp_millis(1_000).map(Timestamp::new);
            (status.runs[0].resolved, status.runs[1].started) = (at, at);
        }
        assert_eq!(story.broken(), expected, "{commands}");
    }
}
