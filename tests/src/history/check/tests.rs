//! Each rule on hand-made histories: a history that obeys it, and one for each way to break it.

mod backlog;
mod dependencies;
mod enqueued;
mod failures;
mod fires;
mod late;
mod names;
mod queues;
mod redriven;
mod retained;
mod sessions;

use super::*;
use crate::history::policy::Options;
use crate::history::record::{Answer, Change, Event, PRIORITIES, RunKey, Stamp, TaskSpec, Verdict};
use crate::history::snapshot::{Counts, Run, Status};
use crate::history::worker_id;
use crate::random::Random;
use tenure_api::ids::SlugId;

const QUEUE: usize = 0;
const LOW: usize = 1;
const HIGH: usize = 5;

/// Builds a history; every call takes ten units of time, one after the other, unless a span is
/// given.
struct Story {
    history: History,
    now: Stamp,
    random: Random,
}

impl Story {
    fn new() -> Self {
        let history = History { queues: vec!["p/w".to_owned()], ..History::default() };
        // Far from zero, so that spans before the first call are possible.
        Self { history, now: 100 * 1_000_000, random: Random::from_seed(1) }
    }

    fn at(&mut self, start: Stamp, end: Stamp, event: Event) {
        self.history.records.push(Record { start, end, event });
    }

    fn next(&mut self, event: Event) {
        self.now += 10;
        self.at(self.now, self.now + 5, event);
    }

    fn spec(&mut self, priority: usize) -> TaskSpec {
        TaskSpec {
            task: self.random.task_id(),
            queue: QUEUE,
            priority,
            retries: 3,
            content: 0,
            dependencies: Vec::new(),
            any_end: false,
            options: Options::default(),
        }
    }

    fn create(&mut self, spec: &TaskSpec, answer: Answer<()>) {
        self.next(Event::Create { task: spec.clone(), answer });
    }

    fn created(&mut self, priority: usize) -> SlugId {
        let spec = self.spec(priority);
        self.create(&spec, Answer::Done(()));
        spec.task
    }

    fn claimed(&mut self, worker: usize, runs: &[RunKey]) {
        self.next(Event::ClaimWork { queue: QUEUE, worker, answer: Answer::Done(runs.to_vec()) });
    }

    fn reported(&mut self, run: RunKey, verdict: Verdict, answer: Answer<()>) {
        self.next(Event::Report { run, verdict, answer });
    }

    fn hands_out_first(&mut self, low: SlugId, high: SlugId) {
        self.claimed(0, &[(low, 0)]);
        self.claimed(1, &[(high, 0)]);
        for task in [low, high] {
            self.reported((task, 0), Verdict::Completed, Answer::Done(()));
        }
        self.ends(low, LOW, &[(0, Verdict::Completed)]);
        self.ends(high, HIGH, &[(1, Verdict::Completed)]);
    }

    fn ends(&mut self, task: SlugId, priority: usize, runs: &[(usize, Verdict)]) {
        let runs: Vec<Run> =
            runs.iter().enumerate().map(|(place, (worker, verdict))| run(place, *worker, *verdict)).collect();
        let state = runs.last().unwrap().state.clone();
        let status = Status {
            task_queue_id: "p/w".to_owned(),
            priority: PRIORITIES[priority].to_owned(),
            retries_left: 3_u32.saturating_sub(runs.len() as u32 - 1),
            state,
            runs,
        };
        self.history.quiet.tasks.insert(task, status.clone());
        self.history.settled.tasks.insert(task, status.clone());
        self.history.drained.tasks.insert(task, status);
    }

    fn broken(&mut self) -> Vec<Rule> {
        for snapshot in [&mut self.history.quiet, &mut self.history.drained] {
            snapshot.counts.resize(1, Counts::default());
        }
        let mut rules: Vec<Rule> = check(&self.history).into_iter().map(|violation| violation.rule).collect();
        rules.dedup();
        rules
    }
}

fn run(place: usize, worker: usize, verdict: Verdict) -> Run {
    let (state, reason) = verdict.wire();
    Run {
        run_id: place as u16,
        state: state.to_owned(),
        reason_created: if place == 0 { "scheduled" } else { "retry" }.to_owned(),
        reason_resolved: Some(reason.to_owned()),
        worker_id: Some(worker_id(worker)),
        ..Run::default()
    }
}

/// A story in which one task was created, claimed by worker 0 and completed.
fn one_life() -> (Story, SlugId) {
    let mut story = Story::new();
    let task = story.created(LOW);
    story.claimed(0, &[(task, 0)]);
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(0, Verdict::Completed)]);
    (story, task)
}

#[test]
fn a_true_history_has_no_violation() {
    let (mut story, task) = one_life();
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.reported((task, 0), Verdict::Failed, Answer::Refused(409));
    let retried = story.created(HIGH);
    story.claimed(1, &[(retried, 0)]);
    story.reported((retried, 0), Verdict::IntermittentTask, Answer::Done(()));
    story.claimed(0, &[(retried, 1)]);
    story.reported((retried, 1), Verdict::Completed, Answer::Unknown);
    story.ends(retried, HIGH, &[(1, Verdict::IntermittentTask), (0, Verdict::Completed)]);
    assert_eq!(story.broken(), []);
}

#[test]
fn an_acknowledged_task_that_is_gone_is_found() {
    let (mut story, _) = one_life();
    story.created(LOW);
    assert_eq!(story.broken(), [Rule::Accounted]);
}

#[test]
fn task_that_disappears_after_storm_is_found() {
    let (mut story, task) = one_life();
    story.history.drained.tasks.remove(&task);
    assert_eq!(story.broken(), [Rule::Accounted]);
}

#[test]
fn unconfirmed_task_may_exist_or_not() {
    let (mut story, _) = one_life();
    let spec = story.spec(LOW);
    story.create(&spec, Answer::Unknown);
    assert_eq!(story.broken(), []);
    story.claimed(0, &[(spec.task, 0)]);
    story.reported((spec.task, 0), Verdict::Failed, Answer::Done(()));
    story.ends(spec.task, LOW, &[(0, Verdict::Failed)]);
    assert_eq!(story.broken(), []);
}

#[test]
fn a_task_that_is_never_worked_off_is_found() {
    let (mut story, task) = one_life();
    let status = story.history.drained.tasks.get_mut(&task).unwrap();
    status.state = "pending".to_owned();
    let next = Run { run_id: 1, state: "pending".to_owned(), reason_created: "retry".to_owned(), ..Run::default() };
    status.runs[0] = run(0, 0, Verdict::WorkerShutdown);
    status.runs.push(next);
    assert!(story.broken().contains(&Rule::Accounted));
}

#[test]
fn a_task_that_is_not_what_was_created_is_found() {
    let (mut story, task) = one_life();
    story.history.drained.tasks.get_mut(&task).unwrap().priority = PRIORITIES[HIGH].to_owned();
    assert_eq!(story.broken(), [Rule::Accounted]);
    let (mut story, task) = one_life();
    story.history.quiet.tasks.get_mut(&task).unwrap().task_queue_id = "p/other".to_owned();
    assert_eq!(story.broken(), [Rule::Accounted]);
}

#[test]
fn runs_that_contradict_each_other_are_found() {
    let (mut story, task) = one_life();
    story.ends(task, LOW, &[(0, Verdict::Completed), (0, Verdict::Completed)]);
    assert!(story.broken().contains(&Rule::Accounted));
    let (mut story, task) = one_life();
    story.history.drained.tasks.get_mut(&task).unwrap().runs[0].run_id = 1;
    assert!(story.broken().contains(&Rule::Accounted));
}

#[test]
fn more_runs_than_retries_are_found() {
    let (mut story, task) = one_life();
    let mut runs = vec![(0, Verdict::WorkerShutdown); 9];
    runs.push((0, Verdict::Completed));
    story.ends(task, LOW, &runs);
    story.history.drained.tasks.get_mut(&task).unwrap().retries_left = 3;
    assert!(story.broken().contains(&Rule::Accounted));
}

#[test]
fn an_exact_repeat_that_is_refused_is_found() {
    let mut story = Story::new();
    let spec = story.spec(LOW);
    let other = TaskSpec { content: 1, ..spec.clone() };
    story.create(&spec, Answer::Done(()));
    story.create(&other, Answer::Refused(409));
    story.create(&spec, Answer::Done(()));
    story.claimed(0, &[(spec.task, 0)]);
    story.reported((spec.task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(spec.task, LOW, &[(0, Verdict::Completed)]);
    assert_eq!(story.broken(), []);
    story.create(&spec, Answer::Refused(409));
    assert_eq!(story.broken(), [Rule::Conflict]);
}

#[test]
fn repeat_is_refusable_if_other_content_may_have_won() {
    let mut story = Story::new();
    let spec = story.spec(LOW);
    let other = TaskSpec { content: 1, ..spec.clone() };
    story.create(&other, Answer::Unknown);
    story.create(&spec, Answer::Refused(409));
    assert_eq!(story.broken(), []);
}

#[test]
fn two_contents_under_one_id_are_found() {
    let (mut story, task) = one_life();
    let other = TaskSpec { task, content: 1, ..story.spec(LOW) };
    story.create(&other, Answer::Done(()));
    assert_eq!(story.broken(), [Rule::Conflict]);
}

#[test]
fn a_refused_create_that_took_effect_is_found() {
    let mut story = Story::new();
    let spec = story.spec(LOW);
    story.create(&spec, Answer::Refused(400));
    assert_eq!(story.broken(), []);
    story.claimed(0, &[(spec.task, 0)]);
    story.reported((spec.task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(spec.task, LOW, &[(0, Verdict::Completed)]);
    assert_eq!(story.broken(), [Rule::Conflict]);
}

#[test]
fn a_run_that_is_resolved_twice_is_found() {
    let (mut story, task) = one_life();
    story.reported((task, 0), Verdict::Failed, Answer::Done(()));
    assert_eq!(story.broken(), [Rule::ResolvedOnce]);
}

#[test]
fn run_unlike_its_accepted_report_is_found() {
    let (mut story, task) = one_life();
    story.ends(task, LOW, &[(0, Verdict::WorkerShutdown)]);
    assert_eq!(story.broken(), [Rule::ResolvedOnce]);
}

#[test]
fn a_resolution_without_a_report_is_found() {
    let (mut story, task) = one_life();
    story.history.records.pop();
    assert_eq!(story.broken(), [Rule::ResolvedOnce]);
    story.reported((task, 0), Verdict::Completed, Answer::Refused(409));
    assert_eq!(story.broken(), [Rule::ResolvedOnce]);
    story.reported((task, 0), Verdict::Completed, Answer::Unknown);
    assert_eq!(story.broken(), []);
}

#[test]
fn a_run_that_is_claimed_twice_is_found() {
    for worker in [0, 1] {
        let (mut story, task) = one_life();
        story.claimed(worker, &[(task, 0)]);
        assert!(story.broken().contains(&Rule::HandedOutOnce), "worker {worker}");
    }
}

#[test]
fn claim_task_repeats_are_for_the_same_worker_only() {
    let (mut story, task) = one_life();
    story.next(Event::ClaimTask { run: (task, 0), worker: 0, answer: Answer::Done(()) });
    story.next(Event::ClaimTask { run: (task, 0), worker: 1, answer: Answer::Refused(409) });
    assert_eq!(story.broken(), []);
    story.next(Event::ClaimTask { run: (task, 0), worker: 1, answer: Answer::Done(()) });
    assert_eq!(story.broken(), [Rule::HandedOutOnce]);
}

#[test]
fn a_run_that_ends_under_another_worker_is_found() {
    let (mut story, task) = one_life();
    story.ends(task, LOW, &[(7, Verdict::Completed)]);
    assert_eq!(story.broken(), [Rule::HandedOutOnce]);
}

/// A story that hands out a task of low priority while one of high priority waits, and then the
/// latter.
fn overtaken() -> (Story, SlugId, SlugId) {
    let mut story = Story::new();
    let (high, low) = (story.created(HIGH), story.created(LOW));
    story.hands_out_first(low, high);
    (story, low, high)
}

#[test]
fn overtaken_task_is_found() {
    let (mut story, _, _) = overtaken();
    assert_eq!(story.broken(), [Rule::Priority]);
}

#[test]
fn overlapping_claims_may_have_either_order() {
    let (mut story, _, high) = overtaken();
    let claim_of_low = story.history.records[2].start;
    let record = story.history.records.iter_mut().find(
        |record| matches!(&record.event, Event::ClaimWork { answer: Answer::Done(runs), .. } if runs[0].0 == high),
    );
    record.unwrap().start = claim_of_low;
    assert_eq!(story.broken(), []);
}

#[test]
fn claim_may_skip_locked_rows() {
    for event in [Event::RowsLocked, Event::SessionsKilled, Event::DatabaseFault] {
        let (mut story, _, _) = overtaken();
        let claim_of_low = story.history.records[2].start;
        story.at(claim_of_low - 200_000, claim_of_low - 100_000, event.clone());
        assert_eq!(story.broken(), [], "{event:?}");
        let (mut story, _, _) = overtaken();
        story.at(claim_of_low - 5_000_000, claim_of_low - 4_000_000, event);
        assert_eq!(story.broken(), [Rule::Priority]);
    }
}

#[test]
fn a_caller_that_hung_up_excuses_nothing() {
    let (mut story, _, _) = overtaken();
    let claim_of_low = story.history.records[2].start;
    story.at(claim_of_low, claim_of_low, Event::ClaimWork { queue: QUEUE, worker: 9, answer: Answer::Unknown });
    assert_eq!(story.broken(), [Rule::Priority]);
}

#[test]
fn claim_of_ended_session_may_lock_unclaimed_runs() {
    let with = |queue, spans: fn(Stamp) -> (Stamp, Stamp)| {
        let (mut story, _, _) = overtaken();
        let (start, end) = spans(story.history.records[2].start);
        story.at(start, end, Event::ClaimWork { queue, worker: 9, answer: Answer::Refused(410) });
        story.broken()
    };
    assert_eq!(with(QUEUE, |low| (low - 5_000_000, low + 1)), []);
    assert_eq!(with(QUEUE, |low| (low - 5_000_000, low - 1)), [Rule::Priority], "it is over");
    assert_eq!(with(QUEUE, |low| (low - 5_000_000, low + 1_000_000)), [Rule::Priority], "it was not made yet");
    assert_eq!(with(QUEUE + 1, |low| (low, low + 1)), [Rule::Priority], "it was for another queue");
}

#[test]
fn cut_off_claim_task_may_lock_its_run() {
    let asked = |which: fn(SlugId, SlugId) -> SlugId| {
        let (mut story, low, high) = overtaken();
        let claim_of_low = story.history.records[2].start;
        let run = (which(low, high), 0);
        story.at(claim_of_low - 1, claim_of_low - 1, Event::ClaimTask { run, worker: 9, answer: Answer::Unknown });
        story.broken()
    };
    assert_eq!(asked(|_, high| high), []);
    assert_eq!(asked(|low, _| low), [Rule::Priority], "another run excuses nothing");
}

#[test]
fn claim_task_does_not_prove_a_wait() {
    let (mut story, _, high) = overtaken();
    story.history.records[3].event = Event::ClaimTask { run: (high, 0), worker: 1, answer: Answer::Done(()) };
    assert_eq!(story.broken(), []);
}

#[test]
fn a_retry_waits_from_the_report_that_made_it() {
    let mut story = Story::new();
    let (high, low) = (story.created(HIGH), story.created(LOW));
    story.claimed(0, &[(high, 0)]);
    story.reported((high, 0), Verdict::WorkerShutdown, Answer::Done(()));
    story.claimed(0, &[(low, 0)]);
    story.claimed(1, &[(high, 1)]);
    story.reported((low, 0), Verdict::Completed, Answer::Done(()));
    story.reported((high, 1), Verdict::Completed, Answer::Done(()));
    story.ends(low, LOW, &[(0, Verdict::Completed)]);
    story.ends(high, HIGH, &[(0, Verdict::WorkerShutdown), (1, Verdict::Completed)]);
    assert_eq!(story.broken(), [Rule::Priority]);
    // Without an accepted report the start of the second run is unknown.
    story.history.records[3].event =
        Event::Report { run: (high, 0), verdict: Verdict::WorkerShutdown, answer: Answer::Unknown };
    assert_eq!(story.broken(), []);
}

#[test]
fn later_created_task_is_not_overtaken() {
    let mut story = Story::new();
    let low = story.created(LOW);
    story.claimed(0, &[(low, 0)]);
    let high = story.created(HIGH);
    story.claimed(1, &[(high, 0)]);
    for task in [low, high] {
        story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    }
    story.ends(low, LOW, &[(0, Verdict::Completed)]);
    story.ends(high, HIGH, &[(1, Verdict::Completed)]);
    assert_eq!(story.broken(), []);
}

#[test]
fn an_internal_error_is_a_violation_by_itself() {
    let (mut story, _) = one_life();
    story.history.internal_errors.push("createTask was answered with 500".to_owned());
    assert_eq!(story.broken(), [Rule::NoInternalError]);
}

#[test]
fn counts_that_differ_from_a_recount_are_found() {
    let (mut story, _) = one_life();
    story.history.drained.counts = vec![Counts { pending_tasks: 1, ..Counts::default() }];
    assert_eq!(story.broken(), [Rule::Counts]);
    story.history.drained.counts = vec![Counts::default()];
    assert_eq!(story.broken(), []);
    let waiting = story.created(LOW);
    let mut status = story.history.drained.tasks.values().next().unwrap().clone();
    status.state = "running".to_owned();
    status.runs[0].state = "running".to_owned();
    story.history.quiet.tasks.insert(waiting, status);
    story.ends_later(waiting);
    story.history.quiet.counts = vec![Counts { claimed_tasks: 1, ..Counts::default() }];
    assert_eq!(story.broken(), []);
    story.history.quiet.counts = vec![Counts::default()];
    assert_eq!(story.broken(), [Rule::Counts]);
}

impl Story {
    /// Works the task off in the drain.
    fn ends_later(&mut self, task: SlugId) {
        self.claimed(0, &[(task, 0)]);
        self.reported((task, 0), Verdict::Completed, Answer::Done(()));
        let quiet = self.history.quiet.tasks[&task].clone();
        self.ends(task, LOW, &[(0, Verdict::Completed)]);
        self.history.quiet.tasks.insert(task, quiet);
    }
}
