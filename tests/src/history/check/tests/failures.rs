//! Retries of failed runs.

use super::*;
use crate::history::policy::Policy;

fn own(retry_failed: bool) -> Options {
    Options { retry_failed: Some(retry_failed), ..Options::default() }
}

fn policy(retry_failed: bool, answer: Answer<()>) -> Event {
    Event::Policy { queue: QUEUE, policy: Policy { retry_failed, ..Policy::default() }, answer }
}

fn fails(story: &mut Story, run: RunKey) {
    story.reported(run, Verdict::Failed, Answer::Done(()));
}

/// A task with these options whose first run was claimed and ended by `act`.
fn failed(options: Options, act: impl Fn(&mut Story, RunKey)) -> (Story, SlugId) {
    let mut story = Story::new();
    let spec = TaskSpec { options, ..story.spec(LOW) };
    story.create(&spec, Answer::Done(()));
    story.claimed(0, &[(spec.task, 0)]);
    act(&mut story, (spec.task, 0));
    (story, spec.task)
}

/// Rules broken if no run follows, with retries left.
fn ended(options: Options, act: impl Fn(&mut Story, RunKey)) -> Vec<Rule> {
    let (mut story, task) = failed(options, act);
    story.ends(task, LOW, &[(0, Verdict::Failed)]);
    story.broken()
}

/// Rules broken if another run follows, made for this reason.
fn retried_as(reason: &str, options: Options, act: impl Fn(&mut Story, RunKey)) -> Vec<Rule> {
    let (mut story, task) = failed(options, act);
    story.claimed(0, &[(task, 1)]);
    story.reported((task, 1), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(0, Verdict::Failed), (0, Verdict::Completed)]);
    let History { quiet, settled, drained, .. } = &mut story.history;
    for snapshot in [quiet, settled, drained] {
        snapshot.tasks.get_mut(&task).unwrap().runs[1].reason_created = reason.to_owned();
    }
    story.broken()
}

fn retried(options: Options, act: impl Fn(&mut Story, RunKey)) -> Vec<Rule> {
    retried_as("task-retry", options, act)
}

#[test]
fn failed_run_without_retry_is_found() {
    assert_eq!(ended(own(true), fails), [Rule::FailedRuns]);
    assert_eq!(ended(own(false), fails), []);
    assert_eq!(ended(Options::default(), fails), []);
    for answer in [Answer::Done(()), Answer::Unknown] {
        let for_good = |story: &mut Story, run| {
            fails(story, run);
            story.reported(run, Verdict::FailedForGood, answer.clone());
        };
        assert_eq!(ended(own(true), for_good), [], "{answer:?}");
    }
    let unknown = |story: &mut Story, run| story.reported(run, Verdict::Failed, Answer::Unknown);
    assert_eq!(ended(own(true), unknown), []);
}

#[test]
fn wrong_retry_of_failed_run_is_found() {
    assert_eq!(retried(own(true), fails), []);
    assert_eq!(retried(own(false), fails), [Rule::FailedRuns]);
    assert_eq!(retried(Options::default(), fails), [Rule::FailedRuns]);
    for (answer, broken) in [(Answer::Done(()), vec![Rule::FailedRuns]), (Answer::Refused(409), vec![])] {
        let for_good = |story: &mut Story, run| {
            fails(story, run);
            story.reported(run, Verdict::FailedForGood, answer.clone());
        };
        assert_eq!(retried(own(true), for_good), broken, "{answer:?}");
    }
    assert_eq!(retried_as("retry", own(true), fails), [Rule::Accounted]);
}

#[test]
fn policy_decides_about_failed_run_without_option() {
    let story = |is_retried: bool, options: Options, policies: &[Event]| {
        let act = |story: &mut Story, run| {
            for (place, event) in policies.iter().enumerate() {
                story.at(10 * place as u64, 10 * place as u64 + 1, event.clone());
            }
            fails(story, run);
        };
        if is_retried { retried(options, act) } else { ended(options, act) }
    };
    let (done, unknown) = (Answer::Done(()), Answer::Unknown);
    let none = Options::default;
    assert_eq!(story(true, none(), &[policy(true, done.clone())]), []);
    assert_eq!(story(false, none(), &[policy(true, done.clone())]), [Rule::FailedRuns]);
    assert_eq!(story(false, own(false), &[policy(true, done.clone())]), []);
    let changed = [policy(true, done.clone()), policy(false, done)];
    assert_eq!(story(true, none(), &changed), [Rule::FailedRuns]);
    assert_eq!(story(false, none(), &changed), []);
    let doubtful = [policy(true, unknown)];
    for is_retried in [true, false] {
        assert_eq!(story(is_retried, none(), &doubtful), [], "either may hold");
    }
}
