use std::time::Duration;

use super::*;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn creation(queue: i32, time: &str) -> Creation {
    Creation { queue, task: Uuid::nil(), at: at(time), link: None }
}

fn rows(taken: &Taken<'_>) -> Vec<(i32, String, i64)> {
    let row = |row: &Row| (row.queue, row.minute.format("%H:%M").to_string(), row.numbers.created);
    taken.rows.iter().map(row).collect()
}

fn rendered(statistics: &Statistics) -> String {
    let shown = ShownQueues::new(3);
    shown.admit(["a/b", "a/busy", "a/idle"], Instant::now());
    rendered_with(statistics, &shown)
}

fn rendered_with(statistics: &Statistics, shown: &ShownQueues) -> String {
    let mut text = String::new();
    statistics.show(shown);
    statistics.render(&mut text, shown);
    text
}

#[test]
fn events_are_added_up_by_queue_and_minute() {
    let statistics = Statistics::new(2);
    statistics.created(&[creation(2, "2026-01-01T12:00:59Z"), creation(1, "2026-01-01T12:00:00Z")]);
    // The clock was set back.
    statistics.created(&[creation(2, "2026-01-01T11:58:00Z"), creation(3, "2026-01-01T12:00:01Z")]);
    let taken = statistics.take();
    let expected =
        [(ALL, "11:58", 1), (ALL, "12:00", 3), (OTHER, "12:00", 1), (1, "12:00", 1), (2, "11:58", 1), (2, "12:00", 1)];
    assert_eq!(rows(&taken), expected.map(|(queue, minute, created)| (queue, minute.to_owned(), created)));
    taken.written();
    assert!(statistics.take().rows.is_empty());
}

#[test]
fn numbers_of_failed_write_are_kept() {
    let statistics = Statistics::default();
    let one = [creation(1, "2026-01-01T12:00:00Z")];
    statistics.created(&one);
    let taken = statistics.take();
    statistics.created(&one);
    drop(taken);
    let taken = statistics.take();
    assert_eq!(rows(&taken), [(ALL, "12:00".to_owned(), 2), (1, "12:00".to_owned(), 2)]);
    taken.written();
}

#[test]
fn depth_is_noted_when_it_grows_within_a_minute() {
    let statistics = Statistics::default();
    let note = |time: &str, pending: i64, claimed: i64| {
        statistics.note_depths([
            Depth { queue: 1, name: "a/b", pending, claimed, at: at(time) },
            Depth { queue: 2, name: "a/c", pending: 1, claimed: 0, at: at(time) },
        ]);
        let taken = statistics.take();
        let most = |row: &Row| (row.queue, row.numbers.pending_most, row.numbers.claimed_most);
        let noted: Vec<_> = taken.rows.iter().map(most).collect();
        taken.written();
        noted
    };
    assert_eq!(note("2026-01-01T12:00:00Z", 5, 1), [(ALL, 6, 1), (1, 5, 1), (2, 1, 0)]);
    assert!(note("2026-01-01T12:00:20Z", 4, 1).is_empty());
    assert_eq!(note("2026-01-01T12:00:40Z", 3, 2), [(ALL, 6, 2), (1, 5, 2)]);
    assert_eq!(note("2026-01-01T12:01:00Z", 0, 0), [(ALL, 1, 0), (2, 1, 0)]);
}

#[test]
fn series_of_queue_begin_at_zero() {
    let statistics = Statistics::default();
    assert_eq!(rendered(&statistics), "");
    let time = at("2026-01-01T12:00:00Z");
    statistics.note_depths([Depth { queue: 1, name: "a/b", pending: 0, claimed: 0, at: time }]);
    let text = rendered(&statistics);
    for series in [
        "tenure_tasks_created_total{task_queue=\"a/b\"} 0\n",
        "tenure_tasks_resolved_total{task_queue=\"a/b\",state=\"exception\",reason=\"deadline-exceeded\"} 0\n",
        "tenure_runs_lost_total{task_queue=\"a/b\",ended_by=\"lease\"} 0\n",
        "tenure_run_wait_seconds_bucket{task_queue=\"a/b\",le=\"0.1\"} 0\n",
        "tenure_run_seconds_count{task_queue=\"a/b\",state=\"failed\"} 0\n",
    ] {
        assert!(text.contains(series), "{series}{text}");
    }
    assert!(!text.contains("undelivered"), "such a run was not lost");
    let lost = End {
        queue: 1,
        reason: ReasonResolved::ClaimExpired,
        by: Some(EndedBy::Lease),
        resolves: false,
        started: Some(time - Duration::from_secs(70)),
        at: time,
    };
    let done = End { reason: ReasonResolved::Completed, by: None, resolves: true, ..lost };
    let cancelled = End { reason: ReasonResolved::Canceled, by: None, resolves: true, started: None, ..lost };
    statistics.ended(&[lost, done, done, cancelled]);
    statistics.started([Start { queue: 1, scheduled: time - Duration::from_millis(200), at: time }]);
    let text = rendered(&statistics);
    for series in [
        "tenure_tasks_resolved_total{task_queue=\"a/b\",state=\"completed\",reason=\"completed\"} 2\n",
        "tenure_tasks_resolved_total{task_queue=\"a/b\",state=\"exception\",reason=\"canceled\"} 1\n",
        "tenure_tasks_resolved_total{task_queue=\"a/b\",state=\"exception\",reason=\"claim-expired\"} 0\n",
        "tenure_runs_lost_total{task_queue=\"a/b\",ended_by=\"lease\"} 1\n",
        "queue_completed_tasks{taskQueueId=\"a/b\",provisionerId=\"a\",workerType=\"b\"} 2\n",
        "queue_failed_tasks{taskQueueId=\"a/b\",provisionerId=\"a\",workerType=\"b\"} 0\n",
        "queue_exception_tasks{taskQueueId=\"a/b\",provisionerId=\"a\",workerType=\"b\",reasonResolved=\"canceled\"} 1\n",
        "tenure_run_wait_seconds_bucket{task_queue=\"a/b\",le=\"0.1\"} 0\n",
        "tenure_run_wait_seconds_bucket{task_queue=\"a/b\",le=\"0.5\"} 1\n",
        "tenure_run_wait_seconds_bucket{task_queue=\"a/b\",le=\"+Inf\"} 1\n",
        "tenure_run_wait_seconds_sum{task_queue=\"a/b\"} 0.2\n",
        "tenure_run_seconds_bucket{task_queue=\"a/b\",state=\"completed\",le=\"60\"} 0\n",
        "tenure_run_seconds_bucket{task_queue=\"a/b\",state=\"completed\",le=\"300\"} 2\n",
        "tenure_run_seconds_count{task_queue=\"a/b\",state=\"exception\"} 1\n",
    ] {
        assert!(text.contains(series), "{series}{text}");
    }
}

#[test]
fn queue_whose_runs_have_ended_is_named() {
    let (statistics, shown) = (Statistics::default(), ShownQueues::new(1));
    statistics.created(&[creation(1, "2026-01-01T12:00:00Z")]);
    // Its name is not known yet.
    assert_eq!(rendered_with(&statistics, &shown), "");
    statistics.set_name(1, "a/b".parse().ok());
    let text = rendered_with(&statistics, &shown);
    assert!(text.contains("created_total{task_queue=\"a/b\"} 1\n"), "{text}");
}

#[test]
fn queues_beyond_limit_are_added_up() {
    let statistics = Statistics::new(1);
    let time = "2026-01-01T12:00:00Z";
    statistics.note_depths([Depth { queue: 1, name: "a/idle", pending: 0, claimed: 0, at: at(time) }]);
    assert!(rendered(&statistics).contains("\"a/idle\""));
    statistics.created(&[creation(2, time), creation(3, time), creation(4, time)]);
    assert_eq!(statistics.list_unnamed(10), [2]);
    statistics.set_name(2, "a/busy".parse().ok());
    let text = rendered(&statistics);
    assert!(text.contains("created_total{task_queue=\"a/busy\"} 1\n"), "{text}");
    assert!(text.contains("created_total{task_queue=\"other\"} 2\n") && !text.contains("a/idle"), "{text}");
    let none = ShownQueues::new(0);
    assert!(!rendered_with(&statistics, &none).contains("a/busy"));
    statistics.created(&[creation(2, time)]);
    let hidden = rendered_with(&statistics, &none);
    assert!(hidden.contains("created_total{task_queue=\"other\"} 3\n"), "{hidden}");
    let labels = "taskQueueId=\"other\",provisionerId=\"other\",workerType=\"other\"";
    assert!(hidden.contains(&format!("queue_completed_tasks{{{labels}}} 0\n")), "{hidden}");
    let again = rendered(&statistics);
    assert!(again.contains("created_total{task_queue=\"a/busy\"} 1\n"), "{again}");
    assert!(again.contains("created_total{task_queue=\"other\"} 3\n"), "must not fall: {again}");
    // The hour begins after the numbers are stored.
    assert_eq!(statistics.drop_idle(Instant::now() + SHOWN_AFTER), 0);
    statistics.take().written();
    assert_eq!(statistics.drop_idle(Instant::now() + SHOWN_AFTER), 1);
    statistics.created(&[creation(3, time)]);
    statistics.set_name(3, None);
    assert!(statistics.list_unnamed(10).is_empty());
}
