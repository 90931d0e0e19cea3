//! The random history test, and the proof that its checker finds violations.

use std::path::{Path, PathBuf};

use tenure_api::states::SessionEnd;
use tenure_tests::history::check::{History, Rule};
use tenure_tests::history::record::{Answer, Event};
use tenure_tests::history::{Plan, RETAINED_QUEUE, Violation, check, run, seed};

/// Operations in the fast list. The long one sets `TENURE_HISTORY_OPS`, and
/// `TENURE_HISTORY_FAILOVERS` for a database that fails over and loses the end of its log.
const OPERATIONS: u64 = 3_000;
/// Enough for every kind of operation to happen many times.
const OPERATIONS_WHEN_BROKEN: u64 = 1_500;
/// The same for a breakage at every third opportunity.
const OPERATIONS_WHEN_OFTEN_BROKEN: u64 = 1_000;
/// Breakages that only a subscriber notices.
const OF_SUBSCRIBERS: [&str; 2] = ["skip-event", "repeat-differs"];
/// Number of histories, at least one of which must catch a breakage.
const HISTORIES_WHEN_BROKEN: usize = 4;
const QUOTED: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_a_stormy_history_can_be_true() {
    let operations = std::env::var("TENURE_HISTORY_OPS").map_or(OPERATIONS, |text| text.parse().unwrap());
    let failovers = std::env::var_os("TENURE_HISTORY_FAILOVERS").is_some();
    let plan = Plan { seed: seed(), operations, breakage: None, subscriber: false, failovers };
    let history = run(&plan).await;
    let violations = check(&history);
    if !violations.is_empty() {
        panic!("{}", explain(&plan, &history, &violations));
    }
    // An empty history would prove nothing.
    let completed = history.drained.tasks.values().filter(|status| status.state == "completed").count() as u64;
    assert!(completed > operations / 20, "only {completed} tasks were completed in {operations} operations");
    let purged = history.records.iter().filter(|record| match &record.event {
        Event::Create { task, answer: Answer::Done(()) } => {
            task.queue == RETAINED_QUEUE && !history.drained.tasks.contains_key(&task.task)
        }
        _ => false,
    });
    assert!(purged.count() > 0, "no task was purged");
    let has = |wanted: fn(&Event) -> bool| history.records.iter().any(|record| wanted(&record.event));
    assert!(has(|event| matches!(event, Event::Create { answer: Answer::Refused(429), .. })), "no queue was full");
    assert!(has(|event| matches!(event, Event::Enqueue { answer: Answer::Done(()), .. })), "nothing came from SQL");
    assert!(has(|event| matches!(event, Event::Redrive { answer: Answer::Done(()), .. })), "no dead letter ran again");
    assert!(history.fires.iter().any(|fires| !fires.times.is_empty()), "no schedule was due");
    let ends: Vec<SessionEnd> = history.quiet.sessions.values().filter_map(|shown| Some(shown.ended?.1)).collect();
    for by in [SessionEnd::Closed, SessionEnd::Takeover, SessionEnd::Expired] {
        assert!(ends.contains(&by), "no session ended as {by}, of {}", ends.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_completion_reaches_the_subscriber_of_a_stormy_history() {
    let operations = OPERATIONS_WHEN_BROKEN;
    let plan = Plan { seed: seed(), operations, breakage: None, subscriber: true, failovers: false };
    let history = run(&plan).await;
    let violations = check(&history);
    if !violations.is_empty() {
        panic!("{}", explain(&plan, &history, &violations));
    }
    assert!(history.delivered.is_some_and(|delivered| !delivered.tasks.is_empty()));
}

/// Tests that the checker catches a breakage: name, operations of a history, breakage and rule.
macro_rules! breakages {
    ($($test:ident, $operations:expr, $breakage:expr, $rule:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            assert_caught($operations, $breakage, $rule).await;
        }
    )*};
}

breakages! {
    the_checker_catches_a_run_claimed_twice, OPERATIONS_WHEN_BROKEN, "claim-twice", Rule::HandedOutOnce;
    the_checker_catches_a_lost_create, OPERATIONS_WHEN_BROKEN, "lose-create", Rule::Accounted;
    the_checker_catches_a_wrong_count, OPERATIONS_WHEN_BROKEN, "count-off-by-one", Rule::Counts;
    the_checker_catches_a_task_scheduled_too_early, OPERATIONS_WHEN_BROKEN, "schedule-early", Rule::Dependencies;
    the_checker_catches_a_task_that_is_never_woken, OPERATIONS_WHEN_BROKEN, "lose-dependent", Rule::Dependencies;
    the_checker_catches_an_event_that_changes, OPERATIONS_WHEN_BROKEN, "event-drift", Rule::EventsSteady;
    the_checker_catches_a_delay_that_never_ends, OPERATIONS_WHEN_OFTEN_BROKEN, "lose-hold", Rule::WorkedOff;
    the_checker_catches_a_delay_that_ends_too_early, OPERATIONS_WHEN_OFTEN_BROKEN, "end-hold-early", Rule::NotBefore;
    the_checker_catches_a_lost_result, OPERATIONS_WHEN_BROKEN, "lose-result", Rule::Results;
    the_checker_catches_a_pause_that_is_not_stored, OPERATIONS_WHEN_OFTEN_BROKEN, "leak-pause", Rule::Paused;
    the_checker_catches_a_wrong_count_of_delayed_runs, OPERATIONS_WHEN_OFTEN_BROKEN, "delayed-off-by-one", Rule::Counts;
    the_checker_catches_a_session_that_ends_and_keeps_its_runs, OPERATIONS_WHEN_BROKEN, "leak-session", Rule::SessionLeak;
    the_checker_catches_a_failed_run_without_retry, OPERATIONS_WHEN_BROKEN, "failed-not-retried", Rule::FailedRuns;
    the_checker_catches_a_lost_redrive, OPERATIONS_WHEN_BROKEN, "lose-redrive", Rule::Redriven;
    the_checker_catches_a_second_late_result, OPERATIONS_WHEN_BROKEN, "late-twice", Rule::ResolvedOnce;
    the_checker_catches_a_lost_task_command, OPERATIONS_WHEN_BROKEN, "lose-task-command", Rule::SessionInbox;
    the_checker_catches_a_name_held_twice, OPERATIONS_WHEN_BROKEN, "name-twice", Rule::Names;
    the_checker_catches_a_backlog_over_its_limit, OPERATIONS_WHEN_BROKEN, "backlog-over", Rule::Backlog;
    the_checker_catches_a_look_before_the_lock, OPERATIONS_WHEN_BROKEN, "look-before-lock", Rule::Backlog;
    the_checker_catches_a_skipped_event, OPERATIONS_WHEN_BROKEN, OF_SUBSCRIBERS[0], Rule::Delivered;
    the_checker_catches_an_altered_repeat, OPERATIONS_WHEN_BROKEN, OF_SUBSCRIBERS[1], Rule::RepeatsAlike;
    the_checker_catches_an_early_purge, OPERATIONS_WHEN_BROKEN, "purge-early", Rule::Retained;
}

/// Some breakages only show when two operations meet, such as a change of priority and a second
/// read of the same event. That rarely fails to happen in a history; a miss in several histories is
/// a fault of the checker.
async fn assert_caught(operations: u64, breakage: &'static str, rule: Rule) {
    let mut missed = Vec::new();
    for _ in 0..HISTORIES_WHEN_BROKEN {
        let subscriber = OF_SUBSCRIBERS.contains(&breakage);
        let plan = Plan { seed: seed(), operations, breakage: Some(breakage), subscriber, failovers: false };
        let history = run(&plan).await;
        let violations = check(&history);
        if violations.iter().any(|violation| violation.rule == rule) {
            return;
        }
        missed.push(explain(&plan, &history, &violations));
    }
    panic!("{breakage} was not caught as {rule:?}: {}", missed.join("\n"));
}

fn explain(plan: &Plan, history: &History, violations: &[Violation]) -> String {
    let quoted: Vec<String> = violations.iter().take(QUOTED).map(ToString::to_string).collect();
    let file = write_down(plan, history);
    format!(
        "{} violations, TENURE_HISTORY_SEED={} TENURE_HISTORY_OPS={}, history in {}:\n{}",
        violations.len(),
        plan.seed,
        plan.operations,
        file.display(),
        quoted.join("\n")
    )
}

fn write_down(plan: &Plan, history: &History) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{}.txt", plan.seed));
    let mut records = history.records.clone();
    records.sort_by_key(|record| record.start);
    let mut lines: Vec<String> = records.iter().map(|record| format!("{record:?}")).collect();
    lines.extend(history.internal_errors.iter().chain(&history.changed_events).cloned());
    for (when, snapshot) in [("quiet", &history.quiet), ("drained", &history.drained)] {
        lines.push(format!("{when}: {:?}, delayed: {:?}", snapshot.counts, snapshot.delayed));
        lines.extend(snapshot.sessions.iter().map(|(session, shown)| format!("{when}: {session} {shown:?}")));
        lines.extend(snapshot.tasks.iter().map(|(task, status)| format!("{when}: {task} {status:?}")));
    }
    std::fs::write(&file, lines.join("\n")).expect("the build folder can be written");
    file
}
