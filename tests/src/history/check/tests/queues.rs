//! Delays, pauses, policies, releases and results.

use serde_json::json;
use tenure_api::dates::Timestamp;
use tenure_api::states::Delivery;

use super::*;
use crate::history::policy::{Policy, RetryDelay, Start};

const EPOCH: i64 = 1_700_000_000_000;

fn date(millis: i64) -> Option<Timestamp> {
    chrono::DateTime::from_timestamp_millis(millis).map(Timestamp::new)
}

impl Story {
    /// Records a clock reading, in seconds since the story began.
    fn clock(&mut self, seconds: i64) {
        self.next(Event::Clock(EPOCH + seconds * 1000));
    }

    fn policy(&mut self, policy: Policy) {
        self.next(Event::Policy { queue: QUEUE, policy, answer: Answer::Done(()) });
    }

    fn pause(&mut self, until: Option<i64>, answer: Answer<()>) {
        let until = until.map(|seconds| EPOCH + seconds * 1000);
        self.next(Event::Pause { queue: QUEUE, until, answer });
    }

    fn resume(&mut self, answer: Answer<()>) {
        self.next(Event::Resume { queue: QUEUE, answer });
    }

    fn released(&mut self, run: RunKey, start: Option<Start>, answer: Answer<()>) {
        self.next(Event::Release { run, start, answer });
    }

    fn returned(&mut self, run: RunKey, result: u64, answer: Answer<()>) {
        self.next(Event::Returned { run, result, answer: answer.clone() });
        self.reported(run, Verdict::Completed, answer);
    }

    /// Sets when a run became pending, was claimed and ended, in seconds.
    fn dates(&mut self, run: RunKey, [scheduled, started, resolved]: [i64; 3]) {
        let found = &mut self.history.drained.tasks.get_mut(&run.0).unwrap().runs[usize::from(run.1)];
        let at = |seconds: i64| date(EPOCH + seconds * 1000);
        (found.scheduled, found.started, found.resolved) = (at(scheduled), at(started), at(resolved));
    }
}

/// A task with these options whose only run is claimed at `read` by the client's clock readings,
/// and at `dated` by the server's dates.
fn delayed(options: Options, read: i64, dated: i64) -> Story {
    let mut story = Story::new();
    story.clock(0);
    let spec = TaskSpec { options, ..story.spec(LOW) };
    run_delayed(&mut story, &spec, read, dated);
    story
}

fn run_delayed(story: &mut Story, spec: &TaskSpec, read: i64, dated: i64) {
    story.create(spec, Answer::Done(()));
    let run = (spec.task, 0);
    story.claimed(0, &[run]);
    story.clock(read);
    story.reported(run, Verdict::Completed, Answer::Done(()));
    story.ends(spec.task, LOW, &[(0, Verdict::Completed)]);
    story.dates(run, [0, dated, dated]);
}

fn starting(start: Start) -> Options {
    Options { start: Some(start), ..Options::default() }
}

#[test]
fn start_within_delay_is_found_by_either_clock() {
    for start in [Start::After(60), Start::At(EPOCH + 60_000)] {
        assert_eq!(delayed(starting(start), 60, 60).broken(), [], "{start:?}");
        assert_eq!(delayed(starting(start), 59, 60).broken(), [Rule::NotBefore], "{start:?}");
        assert_eq!(delayed(starting(start), 60, 59).broken(), [Rule::NotBefore], "{start:?}");
    }
}

#[test]
fn message_within_delay_is_found() {
    let mut story = Story::new();
    story.clock(0);
    let spec = TaskSpec { options: starting(Start::After(60)), ..story.spec(LOW) };
    story.create(&spec, Answer::Done(()));
    story.next(Event::Poll { queue: QUEUE, runs: vec![(spec.task, 0)] });
    story.clock(59);
    story.clock(60);
    story.claimed(0, &[(spec.task, 0)]);
    story.clock(61);
    story.reported((spec.task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(spec.task, LOW, &[(0, Verdict::Completed)]);
    story.dates((spec.task, 0), [0, 60, 60]);
    assert_eq!(story.broken(), [Rule::NotBefore]);
    story.history.records.retain(|record| !matches!(record.event, Event::Poll { .. }));
    assert_eq!(story.broken(), []);
}

#[test]
fn missing_clock_readings_prove_nothing() {
    let mut story = delayed(starting(Start::After(60)), 59, 60);
    story.history.records.retain(|record| !matches!(record.event, Event::Clock(millis) if millis > EPOCH));
    assert_eq!(story.broken(), []);
}

#[test]
fn acknowledged_policy_delays_later_tasks() {
    let policy = |delay| Policy { delay, ..Policy::default() };
    let story = |before: &[Policy], options: Options, doubtful: Option<Policy>| {
        let mut story = Story::new();
        story.clock(0);
        for policy in before {
            story.policy(policy.clone());
        }
        if let Some(policy) = doubtful {
            story.next(Event::Policy { queue: QUEUE, policy, answer: Answer::Unknown });
        }
        let spec = TaskSpec { options, ..story.spec(LOW) };
        run_delayed(&mut story, &spec, 30, 30);
        story.broken()
    };
    assert_eq!(story(&[policy(31)], Options::default(), None), [Rule::NotBefore]);
    assert_eq!(story(&[policy(30)], Options::default(), None), []);
    assert_eq!(story(&[policy(31), policy(0)], Options::default(), None), []);
    assert_eq!(story(&[policy(0), policy(31)], Options::default(), None), [Rule::NotBefore]);
    assert_eq!(story(&[policy(31)], starting(Start::After(5)), None), [], "the task's own delay comes first");
    assert_eq!(story(&[policy(31)], Options::default(), Some(policy(5))), [], "either may hold");
    assert_eq!(story(&[policy(31)], Options::default(), Some(policy(40))), [Rule::NotBefore]);
}

#[test]
fn policy_change_during_create_proves_nothing() {
    let mut story = delayed(Options::default(), 30, 30);
    let created = story.history.records[1].start;
    let policy = Policy { delay: 31, ..Policy::default() };
    story.at(created - 1, created + 1, Event::Policy { queue: QUEUE, policy, answer: Answer::Done(()) });
    assert_eq!(story.broken(), []);
}

/// A task whose first run ends with `verdict` after `act`, and whose second run starts when the
/// clock shows 30 seconds.
fn tried_again(options: Options, verdict: Verdict, act: impl Fn(&mut Story, RunKey)) -> (Story, SlugId) {
    let mut story = Story::new();
    story.clock(0);
    let spec = TaskSpec { options, ..story.spec(LOW) };
    story.create(&spec, Answer::Done(()));
    let task = spec.task;
    story.claimed(0, &[(task, 0)]);
    act(&mut story, (task, 0));
    story.claimed(1, &[(task, 1)]);
    story.clock(30);
    story.reported((task, 1), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(0, verdict), (1, Verdict::Completed)]);
    story.dates((task, 0), [0, 0, 0]);
    story.dates((task, 1), [0, 30, 30]);
    (story, task)
}

fn tried_again_for_nothing(act: impl Fn(&mut Story, RunKey)) -> Story {
    let (mut story, task) = tried_again(Options::default(), Verdict::WorkerShutdown, act);
    story.keeps_retries(task);
    story
}

impl Story {
    fn keeps_retries(&mut self, task: SlugId) {
        self.history.drained.tasks.get_mut(&task).unwrap().retries_left = 3;
    }
}

#[test]
fn a_run_that_starts_before_the_delay_of_a_release_is_found() {
    for (start, broken) in [
        (None, vec![]),
        (Some(Start::After(30)), vec![]),
        (Some(Start::After(31)), vec![Rule::NotBefore]),
        (Some(Start::At(EPOCH + 31_000)), vec![Rule::NotBefore]),
    ] {
        let mut story = tried_again_for_nothing(|story, run| story.released(run, start, Answer::Done(())));
        assert_eq!(story.broken(), broken, "{start:?}");
    }
    let mut story = tried_again_for_nothing(|story, run| {
        story.released(run, Some(Start::After(5)), Answer::Unknown);
        story.released(run, Some(Start::After(31)), Answer::Done(()));
    });
    assert_eq!(story.broken(), []);
}

#[test]
fn a_retry_that_starts_too_early_is_found() {
    let delay = |first, most| RetryDelay { first, factor: 2, most };
    let report = |story: &mut Story, run| story.reported(run, Verdict::IntermittentTask, Answer::Done(()));
    let own = |delay| Options { retry_delay: Some(delay), ..Options::default() };
    let story = |delay| tried_again(own(delay), Verdict::IntermittentTask, report).0.broken();
    assert_eq!(story(delay(31, 40)), [Rule::NotBefore]);
    assert_eq!(story(delay(31, 30)), []);
    assert_eq!(story(delay(30, 40)), []);
    let (mut story, _) = tried_again(Options::default(), Verdict::IntermittentTask, report);
    let policy = Policy { retry_delay: Some(delay(31, 40)), ..Policy::default() };
    story.at(1, 2, Event::Policy { queue: QUEUE, policy, answer: Answer::Done(()) });
    assert_eq!(story.broken(), [Rule::NotBefore]);
}

#[test]
fn a_run_that_stays_pending_is_found() {
    let (mut story, task) = one_life();
    let status = story.history.settled.tasks.get_mut(&task).unwrap();
    status.state = "pending".to_owned();
    assert_eq!(story.broken(), [Rule::WorkedOff]);
}

/// Rules broken when a task is claimed after `act`, by claimWork, or by claimTask with its start at
/// ten seconds.
fn claimed_after(by_claim_work: bool, act: impl Fn(&mut Story)) -> Vec<Rule> {
    let mut story = Story::new();
    let task = story.created(LOW);
    story.clock(0);
    act(&mut story);
    if by_claim_work {
        story.claimed(0, &[(task, 0)]);
    } else {
        story.next(Event::ClaimTask { run: (task, 0), worker: 0, answer: Answer::Done(()) });
    }
    story.clock(10);
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(0, Verdict::Completed)]);
    story.dates((task, 0), [0, 10, 10]);
    story.broken()
}

#[test]
fn handout_of_paused_queue_is_found() {
    for by_claim_work in [true, false] {
        let claimed_after = |act: &dyn Fn(&mut Story)| claimed_after(by_claim_work, act);
        let paused = |story: &mut Story, until| {
            story.pause(until, Answer::Done(()));
            story.clock(1);
        };
        assert_eq!(claimed_after(&|story| paused(story, None)), [Rule::Paused]);
        assert_eq!(claimed_after(&|story| paused(story, Some(11))), [Rule::Paused]);
        assert_eq!(claimed_after(&|story| paused(story, Some(10))), [], "it was over");
        assert_eq!(claimed_after(&|story| story.pause(None, Answer::Unknown)), []);
        assert_eq!(claimed_after(&|story| story.pause(None, Answer::Refused(400))), []);
        for answer in [Answer::Done(()), Answer::Unknown] {
            let resumed = |story: &mut Story| {
                paused(story, None);
                story.resume(answer.clone());
            };
            assert_eq!(claimed_after(&resumed), [], "{answer:?}");
            let again = |story: &mut Story| {
                resumed(story);
                story.now += 60 * 1_000_000;
                paused(story, None);
            };
            assert_eq!(claimed_after(&again), [Rule::Paused], "{answer:?}");
        }
    }
}

#[test]
fn claim_before_acknowledged_pause_is_allowed() {
    let mut story = Story::new();
    let task = story.created(LOW);
    story.pause(None, Answer::Done(()));
    let claim = Event::ClaimWork { queue: QUEUE, worker: 0, answer: Answer::Done(vec![(task, 0)]) };
    let paused = story.now;
    story.at(paused + 4, paused + 100, claim);
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(0, Verdict::Completed)]);
    assert_eq!(story.broken(), []);
    story.history.records[2].start = paused + 6;
    assert_eq!(story.broken(), [Rule::Paused]);
}

#[test]
fn claim_task_may_repeat_during_pause() {
    let mut story = Story::new();
    story.clock(0);
    let task = story.created(LOW);
    story.next(Event::ClaimTask { run: (task, 0), worker: 0, answer: Answer::Unknown });
    story.pause(None, Answer::Done(()));
    story.clock(1);
    story.next(Event::ClaimTask { run: (task, 0), worker: 0, answer: Answer::Done(()) });
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(0, Verdict::Completed)]);
    story.dates((task, 0), [0, 0, 1]);
    assert_eq!(story.broken(), []);
}

#[test]
fn a_message_of_a_paused_queue_is_found() {
    let mut story = Story::new();
    let task = story.created(LOW);
    story.pause(None, Answer::Done(()));
    story.next(Event::Poll { queue: QUEUE, runs: vec![(task, 0)] });
    story.resume(Answer::Done(()));
    story.claimed(0, &[(task, 0)]);
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(0, Verdict::Completed)]);
    assert_eq!(story.broken(), [Rule::Paused]);
}

#[test]
fn at_most_once_retry_after_loss_is_found() {
    let once = Options { delivery: Some(Delivery::AtMostOnce), ..Options::default() };
    let shuts_down = |story: &mut Story, run| story.reported(run, Verdict::WorkerShutdown, Answer::Done(()));
    let (mut story, _) = tried_again(once.clone(), Verdict::WorkerShutdown, shuts_down);
    assert_eq!(story.broken(), [Rule::AtMostOnce]);
    let unclear = |story: &mut Story, run| story.reported(run, Verdict::WorkerShutdown, Answer::Unknown);
    let (mut story, _) = tried_again(once.clone(), Verdict::WorkerShutdown, unclear);
    assert_eq!(story.broken(), [], "the server may have requeued it");
    let (mut story, task) = tried_again(once.clone(), Verdict::WorkerShutdown, |_, _| {});
    story.history.drained.tasks.get_mut(&task).unwrap().runs[0].reason_resolved = Some("claim-expired".to_owned());
    assert_eq!(story.broken(), [Rule::AtMostOnce]);
    let says_so = |story: &mut Story, run| story.reported(run, Verdict::IntermittentTask, Answer::Done(()));
    let (mut story, _) = tried_again(once.clone(), Verdict::IntermittentTask, says_so);
    assert_eq!(story.broken(), [], "its worker says that it may be done again");
    let (mut story, task) = tried_again(once, Verdict::WorkerShutdown, |story, run| {
        story.released(run, None, Answer::Done(()));
    });
    story.keeps_retries(task);
    assert_eq!(story.broken(), []);
}

#[test]
fn certain_at_most_once_policy_is_enforced() {
    let policy = |delivery| Policy { delivery: Some(delivery), ..Policy::default() };
    let shuts_down = |story: &mut Story, run| story.reported(run, Verdict::WorkerShutdown, Answer::Done(()));
    let (mut story, _) = tried_again(Options::default(), Verdict::WorkerShutdown, shuts_down);
    let change = |delivery| Event::Policy { queue: QUEUE, policy: policy(delivery), answer: Answer::Done(()) };
    story.at(1, 2, change(Delivery::AtMostOnce));
    assert_eq!(story.broken(), [Rule::AtMostOnce]);
    let claimed = story.history.records[2].start;
    story.at(claimed, claimed + 1, change(Delivery::Retries));
    assert_eq!(story.broken(), []);
}

#[test]
fn a_release_that_costs_a_retry_is_found() {
    let release = |story: &mut Story, run| story.released(run, None, Answer::Done(()));
    let (mut story, task) = tried_again(Options::default(), Verdict::WorkerShutdown, release);
    assert_eq!(story.broken(), [Rule::Released]);
    story.keeps_retries(task);
    assert_eq!(story.broken(), []);
    let free = Options { delivery: Some(Delivery::AtLeastOnce), ..Options::default() };
    let (mut story, task) = tried_again(free, Verdict::WorkerShutdown, |_, _| {});
    assert_eq!(story.broken(), [Rule::Released]);
    story.keeps_retries(task);
    assert_eq!(story.broken(), []);
}

#[test]
fn a_release_that_no_run_follows_is_found() {
    let (mut story, task) = one_life();
    story.released((task, 0), None, Answer::Done(()));
    assert_eq!(story.broken(), [Rule::Released]);
}

#[test]
fn a_result_that_is_lost_or_another_is_found() {
    let life = |answer: Answer<()>, found: Option<u64>| {
        let mut story = Story::new();
        let task = story.created(LOW);
        story.claimed(0, &[(task, 0)]);
        story.returned((task, 0), 7, answer);
        story.ends(task, LOW, &[(0, Verdict::Completed)]);
        story.history.results = found.map(|found| ((task, 0), json!(found))).into_iter().collect();
        (story, task)
    };
    let broken = |answer, found| life(answer, found).0.broken();
    assert_eq!(broken(Answer::Done(()), Some(7)), []);
    assert_eq!(broken(Answer::Done(()), None), [Rule::Results]);
    assert_eq!(broken(Answer::Done(()), Some(8)), [Rule::Results]);
    assert_eq!(broken(Answer::Unknown, Some(7)), []);
    assert_eq!(broken(Answer::Unknown, Some(8)), [Rule::Results]);
    let (mut story, task) = life(Answer::Done(()), Some(7));
    story.returned((task, 0), 8, Answer::Refused(409));
    assert_eq!(story.broken(), []);
    story.returned((task, 0), 8, Answer::Done(()));
    assert_eq!(story.broken(), [Rule::Results]);
}

#[test]
fn a_wrong_count_of_delayed_runs_is_found() {
    let (mut story, _) = one_life();
    let waiting = story.created(LOW);
    let mut status = story.history.drained.tasks.values().next().unwrap().clone();
    status.state = "pending".to_owned();
    status.runs[0].state = "pending".to_owned();
    story.history.quiet.tasks.insert(waiting, status);
    story.ends_later(waiting);
    story.history.quiet.delayed.insert(waiting);
    story.history.quiet.counts = vec![Counts { delayed: 1, ..Counts::default() }];
    assert_eq!(story.broken(), []);
    story.history.quiet.counts = vec![Counts { pending_tasks: 1, ..Counts::default() }];
    assert_eq!(story.broken(), [Rule::Counts]);
}

#[test]
fn restamped_run_may_be_locked() {
    let with = |options: Options, policy: Policy| {
        let mut story = Story::new();
        let spec = TaskSpec { options, ..story.spec(HIGH) };
        story.create(&spec, Answer::Done(()));
        story.policy(policy);
        let (high, low) = (spec.task, story.created(LOW));
        story.hands_out_first(low, high);
        story.broken()
    };
    let once = || Policy { delivery: Some(Delivery::AtMostOnce), ..Policy::default() };
    assert_eq!(with(Options::default(), once()), []);
    let own = Options { delivery: Some(Delivery::AtMostOnce), ..Options::default() };
    assert_eq!(with(own, once()), [Rule::Priority], "it has its own delivery");
    let lease = Policy { claim_timeout: Some(60), ..Policy::default() };
    assert_eq!(with(Options::default(), lease), [Rule::Priority], "that is not stamped on runs");
}
