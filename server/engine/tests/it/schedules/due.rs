//! What one server makes of times that are due.

use super::*;

#[tokio::test]
async fn due_time_makes_one_task_with_its_tags() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &hourly()).await;
    let next = stored(&queue).await.next.unwrap();
    later(&database, &queue, "1 second").await;
    let due_now = i64::from(next <= now(&database).await);
    assert_eq!(tasks(&database).await, due_now, "no time is early");
    later(&database, &queue, "1 hour").await;
    assert_eq!(tasks(&database).await, due_now + 1);
    let schedule = stored(&queue).await;
    let last = schedule.last.clone().unwrap();
    assert_eq!(last.outcome, ScheduleOutcome::Created);
    assert_eq!(schedule.next, Some(last.at + TimeDelta::hours(1)));
    assert!(schedule.next.unwrap() > now(&database).await);
    let tags: String = sqlx::query_scalar("SELECT tags FROM task_definitions WHERE id = $1")
        .bind(last.task.unwrap().uuid())
        .fetch_one(database.pool())
        .await
        .unwrap();
    let tags: Value = serde_json::from_str(&tags).unwrap();
    assert_eq!(tags["tenure-schedule"], NAME);
    assert_eq!(tags["tenure-schedule-time"].as_str().unwrap().parse::<DateTime<Utc>>().unwrap(), last.at);
    finish(database, queue).await;
}

#[tokio::test]
async fn missed_times_are_made_up_as_the_schedule_says() {
    for (catch_up, expected) in [("none", 0), ("last", 1), ("all", 5)] {
        let (database, queue) = start().await;
        put_schedule(&queue, NAME, &with("catchUp", json!(catch_up))).await;
        // Half past: the last time is late.
        let sql = "UPDATE clock SET clock_offset = clock_offset + (date_trunc('hour', d.now) + interval '5 hours 30 minutes' - d.now)
                   FROM db_now d";
        sqlx::query(sql).execute(database.pool()).await.unwrap();
        later(&database, &queue, "0 s").await;
        assert_eq!(tasks(&database).await, expected, "{catch_up}");
        assert!(stored(&queue).await.next.unwrap() > now(&database).await, "{catch_up}");
        finish(database, queue).await;
    }
}

#[tokio::test]
async fn paused_times_are_not_made_up() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &with("catchUp", json!("all"))).await;
    ops::set_paused(parts(&queue), &ANN, NAME, true).await.unwrap();
    later(&database, &queue, "5 hours").await;
    assert_eq!(tasks(&database).await, 0);
    let resumed = ops::set_paused(parts(&queue), &ANN, NAME, false).await.unwrap();
    assert!(resumed.next.unwrap() > now(&database).await);
    later(&database, &queue, "1 second").await;
    let before = tasks(&database).await;
    assert!(before <= 1, "the clock may just have passed an hour");
    later(&database, &queue, "1 hour").await;
    assert_eq!(tasks(&database).await, before + 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn paused_by_put_counts_from_the_put_that_resumes() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &with("paused", json!(true))).await;
    later(&database, &queue, "3 hours").await;
    put_schedule(&queue, NAME, &hourly()).await;
    assert!(stored(&queue).await.definition.paused, "a program that stores it again does not resume it");
    put_schedule(&queue, NAME, &with("paused", json!(false))).await;
    assert!(stored(&queue).await.next.unwrap() > now(&database).await);
    assert_eq!(tasks(&database).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn only_changed_pattern_counts_from_now() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &hourly()).await;
    let due = stored(&queue).await.next;
    advance(&database, "3 hours").await;
    put_schedule(&queue, NAME, &with("deadlineAfter", json!(3_600))).await;
    assert_eq!(stored(&queue).await.next, due, "another task is made at the same times");
    for changed in [with("cron", json!("30 * * * *")), with("timezone", json!("Europe/Berlin"))] {
        put_schedule(&queue, NAME, &changed).await;
        assert!(stored(&queue).await.next.unwrap() > now(&database).await, "{changed}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn owner_without_scopes_stops_the_schedule_until_they_are_back() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &hourly()).await;
    let reason = format!("the client {OWNER:?} lacks a scope");
    queue.authority.denied.lock().unwrap().insert(OWNER.to_owned(), reason);
    later(&database, &queue, "1 hour").await;
    assert_eq!((tasks(&database).await, outcome(&queue).await), (0, Some(ScheduleOutcome::Failed)));
    assert!(stored(&queue).await.error.unwrap().contains(OWNER));
    let notes = "SELECT count(*) FROM outbox_new WHERE details[1] LIKE '%schedule-failed%'";
    assert!(number(database.pool(), notes).await > 0);
    let refused = ops::trigger(parts(&queue), NAME, None).await;
    assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
    queue.authority.denied.lock().unwrap().clear();
    later(&database, &queue, "1 hour").await;
    assert_eq!((tasks(&database).await, outcome(&queue).await), (1, Some(ScheduleOutcome::Created)));
    assert_eq!(stored(&queue).await.error, None);
    finish(database, queue).await;
}

#[tokio::test]
async fn unique_name_keeps_tasks_from_overlapping() {
    let (database, queue) = start().await;
    let task = json!({"taskQueueId": QUEUE, "options": {"unique": "report"}});
    put_schedule(&queue, NAME, &with("task", task)).await;
    later(&database, &queue, "1 hour").await;
    let first = stored(&queue).await.last.unwrap();
    later(&database, &queue, "1 hour").await;
    let second = stored(&queue).await.last.unwrap();
    assert_eq!((second.outcome, second.task), (ScheduleOutcome::Skipped, first.task));
    assert_eq!((tasks(&database).await, stored(&queue).await.error), (1, None));
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    later(&database, &queue, "1 hour").await;
    assert_eq!((tasks(&database).await, outcome(&queue).await), (2, Some(ScheduleOutcome::Created)));
    finish(database, queue).await;
}

#[tokio::test]
async fn queued_duplicate_waits_for_the_task_before() {
    let (database, queue) = start().await;
    let task = json!({"taskQueueId": QUEUE, "options": {"unique": "report", "onDuplicate": "queue"}});
    put_schedule(&queue, NAME, &with("task", task)).await;
    later(&database, &queue, "1 hour").await;
    later(&database, &queue, "1 hour").await;
    assert_eq!(tasks(&database).await, 2);
    assert_eq!(claim_now(&queue, 5).await.len(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn full_backlog_postpones_the_task() {
    let (database, queue) = start().await;
    put(&queue, json!({"backlog": {"tasks": 1}})).await;
    queue.create_one(QUEUE).await;
    put_schedule(&queue, NAME, &hourly()).await;
    later(&database, &queue, "1 hour").await;
    assert_eq!((tasks(&database).await, outcome(&queue).await), (0, None));
    assert!(stored(&queue).await.error.is_some());
    put(&queue, json!({"backlog": {"tasks": 9}})).await;
    later(&database, &queue, "6 seconds").await;
    assert_eq!((tasks(&database).await, stored(&queue).await.error), (1, None));
    finish(database, queue).await;
}

#[tokio::test]
async fn postponed_time_is_retried_until_the_next() {
    let (database, queue) = start().await;
    put(&queue, json!({"backlog": {"tasks": 1}})).await;
    queue.create_one(QUEUE).await;
    put_schedule(&queue, NAME, &with("catchUp", json!("none"))).await;
    let mut due = None;
    for _ in 0..2 {
        to_next_hour(&database).await;
        later(&database, &queue, "0 s").await;
        let postponed = stored(&queue).await;
        assert!(postponed.next > due && postponed.error.is_some(), "each time replaces the one before");
        due = postponed.next;
        later(&database, &queue, "10 minutes").await;
        let retried = stored(&queue).await;
        assert_eq!((retried.next, retried.error.is_some(), retried.last), (due, true, None));
    }
    let mut changed = with("catchUp", json!("none"));
    changed["deadlineAfter"] = json!(3_600);
    put_schedule(&queue, NAME, &changed).await;
    put(&queue, json!({"backlog": {"tasks": 9}})).await;
    later(&database, &queue, "6 seconds").await;
    let made = stored(&queue).await;
    assert_eq!((made.last.map(|last| last.at), made.error), (due, None));
    assert_eq!(tasks(&database).await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn passed_time_clears_the_error_before() {
    let (database, queue) = start().await;
    put(&queue, json!({"backlog": {"tasks": 1}})).await;
    queue.create_one(QUEUE).await;
    put_schedule(&queue, NAME, &with("catchUp", json!("none"))).await;
    to_next_hour(&database).await;
    later(&database, &queue, "0 s").await;
    assert!(stored(&queue).await.error.is_some());
    // No server runs at the next time.
    later(&database, &queue, "90 minutes").await;
    let passed = stored(&queue).await;
    assert_eq!((passed.error, passed.last), (None, None));
    assert!(passed.next.unwrap() > now(&database).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn trigger_makes_a_task_and_keeps_the_times() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &with("paused", json!(true))).await;
    let before = stored(&queue).await;
    let task = ops::trigger(parts(&queue), NAME, None).await.unwrap();
    assert_eq!(queue.status(task).await.id, task);
    assert_eq!(stored(&queue).await, before);
    let missing = ops::trigger(parts(&queue), "other", None).await;
    assert!(matches!(missing, Err(OpError::NotFound(_))), "{missing:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn deleted_schedule_makes_no_task() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &hourly()).await;
    ops::delete(parts(&queue), &ANN, NAME).await.unwrap();
    later(&database, &queue, "2 hours").await;
    assert_eq!(tasks(&database).await, 0);
    assert!(matches!(ops::delete(parts(&queue), &ANN, NAME).await, Err(OpError::NotFound(_))));
    finish(database, queue).await;
}

#[tokio::test]
async fn page_of_large_tasks_ends_earlier() {
    let (database, queue) = start().await;
    let sql = "INSERT INTO schedules (name, cron, timezone, task, catch_up, paused, client_id, created, changed)
               SELECT 's' || lpad(n::text, 2, '0'), '0 3 * * *', 'UTC', repeat('x', 1000000), 1, true, 'ci', now(), now()
               FROM generate_series(1, 20) n";
    run_sql(database.pool(), sql).await;
    let first = ops::list(parts(&queue), None, 101).await.unwrap();
    let last = first.schedules.last().unwrap().name.as_str();
    assert_eq!((first.schedules.len(), last, first.is_cut), (17, "s17", true), "16 MiB and the row beyond");
    let second = ops::list(parts(&queue), Some(last), 101).await.unwrap();
    assert_eq!((second.schedules.len(), second.schedules[0].name.as_str(), second.is_cut), (3, "s18", false));
    finish(database, queue).await;
}

#[tokio::test]
async fn limit_of_schedules_is_named() {
    let (database, queue) = start().await;
    let sql = "INSERT INTO schedules (name, cron, timezone, task, catch_up, paused, client_id, created, changed)
               SELECT 's' || n, '0 3 * * *', 'UTC', '{}', 1, true, 'ci', now(), now() FROM generate_series(1, 10000) n";
    run_sql(database.pool(), sql).await;
    let text = hourly().to_string();
    let definition = Definition::from_request(&serde_json::from_str(&text).unwrap()).unwrap();
    let put = ops::Put { definition, paused: None };
    match ops::put(parts(&queue), &Actor::new(OWNER), NAME, put.clone()).await {
        Err(OpError::Conflict(why)) => assert!(why.contains("10000"), "{why}"),
        other => panic!("{other:?}"),
    }
    ops::put(parts(&queue), &Actor::new(OWNER), "s1", put).await.unwrap();
    finish(database, queue).await;
}
