//! Delayed runs: readiness, position, counts and lists.

use tenure_domain::events::Payload;
use tenure_domain::events::note::Note;
use tenure_engine::background::{holds, pauses};
use tenure_engine::ops::list_runs;
use tenure_store::counters::{self, Counts};
use tenure_store::events::{self, Page};
use tenure_store::messages;

use crate::support::*;

impl Ground {
    async fn delayed(&mut self, priority: Priority, seconds: f64) -> TaskId {
        let task = new_task(QUEUE, &json!({"priority": priority.to_string()}));
        self.queue.create(&task).await.unwrap();
        hold(&mut self.conn, task.id, seconds).await;
        task.id
    }

    /// Runs the pass until it is idle. Returns the number of ended delays.
    async fn pass(&self) -> usize {
        let mut done = 0;
        loop {
            let report = holds::pass(&self.queue.engine).await.unwrap();
            done += report.done;
            if report.found == 0 {
                return done;
            }
        }
    }

    async fn counts(&mut self) -> Counts {
        let name: TaskQueueId = QUEUE.parse().unwrap();
        counters::get_counts(&mut self.conn, Sequenced::default(), &[name]).await.unwrap()[0]
    }

    /// Runs named by each `task-ready` note of the log.
    async fn notes(&mut self) -> Vec<Vec<TaskId>> {
        events::sequence(&mut self.conn, Sequenced::default()).await.unwrap();
        let Page::Events(events, _) = events::read(&mut self.conn, 0, 10_000).await.unwrap() else {
            panic!("it is gone")
        };
        let notes = events.into_iter().filter_map(|event| match event.payload {
            Payload::Note(Note::TaskReady(note)) => Some(note.runs.iter().map(|run| run.task_id).collect()),
            _ => None,
        });
        notes.collect()
    }
}

#[tokio::test]
async fn delayed_run_is_pending_but_not_claimable() {
    let mut ground = Ground::new().await;
    let delayed = ground.delayed(Priority::Lowest, 600.0).await;
    let urgent = ground.delayed(Priority::Highest, 600.0).await;
    // The clock runs on meanwhile.
    for seconds in [0.0, 540.0] {
        ground.advance(seconds).await;
        assert_eq!(ground.pass().await, 0);
        assert_eq!(ground.counts().await, Counts { pending: 0, claimed: 0, delayed: 2 });
        assert!(ground.claim(5).await.is_empty());
        assert!(ground.queue.get_messages(QUEUE, 5).await.is_empty());
        let key = ground.queue.key(QUEUE).await;
        let pool = ground.database.pool();
        assert_eq!(messages::count(&mut ground.conn, key, Priority::Lowest.code()).await.unwrap(), 0);
        assert!(messages::peek(pool, key, Priority::Lowest.code(), 5).await.unwrap().is_empty());
        let refused = ground.queue.claim_task(delayed, RunId::FIRST, "worker").await.unwrap_err();
        let OpError::Conflict(why) = refused else { panic!("{refused}") };
        assert!(
            why.contains("cannot be claimed yet. It is delayed until") && why.contains("by its own options"),
            "{why}"
        );
        assert!(matches!(ground.queue.status(delayed).await.last, Last::Pending(_)));
        let listed = list_runs::list_pending(&ground.queue.engine.pool, key, None, 5).await.unwrap();
        assert_eq!(listed.runs.len(), 2, "they are pending");
    }
    assert!(ground.notes().await.is_empty());
    ground.advance(60.0).await;
    assert_eq!(ground.pass().await, 2);
    assert_eq!(ground.counts().await, Counts { pending: 2, claimed: 0, delayed: 0 });
    assert_eq!(ground.notes().await, [vec![delayed, urgent]]);
    assert_eq!(ground.queue.get_messages(QUEUE, 5).await.len(), 1, "its message is visible");
    assert_eq!(ground.claim(5).await, [urgent], "and the other one is a poller's");
    ground.queue.claim_task(delayed, RunId::FIRST, "worker").await.unwrap();
    ground.finish().await;
}

#[tokio::test]
async fn ended_delay_puts_run_last_and_above_marks() {
    let mut ground = Ground::new().await;
    let late = ground.delayed(Priority::Lowest, 20.0).await;
    let early = ground.delayed(Priority::Lowest, 10.0).await;
    let same = ground.delayed(Priority::Lowest, 10.0).await;
    let ready = ground.queue.create_one(QUEUE).await;
    let gone = ground.queue.create_one(QUEUE).await;
    let key = ground.queue.key(QUEUE).await;
    let epoch = number(ground.database.pool(), "SELECT cursor_epoch FROM task_queues").await;
    change(&ground.queue, gone, Change::Cancel).await.unwrap();
    let before = number(ground.database.pool(), "SELECT max(ord) FROM pending").await;
    assert_eq!(ground.claim(1).await, [ready]);
    for _ in 0..3 {
        ground.queue.run_pass("low_water_marks").await.unwrap();
    }
    let marks = ground.queue.engine.low_water_marks.get(key);
    assert!(marks.marks[6] >= before, "the marks go past the places of runs that are delayed: {}", marks.marks[6]);
    ground.advance(30.0).await;
    let waits = ground.queue.create_one(QUEUE).await;
    assert_eq!(ground.pass().await, 3);
    assert_eq!(ground.claim(5).await, [waits, early, same, late]);
    let now = number(ground.database.pool(), "SELECT cursor_epoch FROM task_queues").await;
    assert_eq!(now, epoch, "no mark had to be dropped");
    ground.finish().await;
}

#[tokio::test]
async fn delayed_run_changes_priority_in_place() {
    let mut ground = Ground::new().await;
    let task = ground.delayed(Priority::Lowest, 60.0).await;
    let read = "SELECT (hold, held_until, reserved_until, hidden_until, receipt, ord)::text FROM pending";
    let before: String = sqlx::query_scalar(read).fetch_one(&mut ground.conn).await.unwrap();
    let epoch = number(ground.database.pool(), "SELECT cursor_epoch FROM task_queues").await;
    prioritise(&ground.queue, task, Priority::High).await.unwrap();
    let after: String = sqlx::query_scalar(read).fetch_one(&mut ground.conn).await.unwrap();
    assert_eq!(before, after);
    assert_eq!(number(ground.database.pool(), "SELECT cursor_epoch FROM task_queues").await, epoch);
    assert_eq!(ground.counts().await, Counts { pending: 0, claimed: 0, delayed: 1 });
    assert!(ground.claim(1).await.is_empty());
    let other = ground.queue.create_one(QUEUE).await;
    ground.advance(60.0).await;
    assert_eq!(ground.pass().await, 1);
    assert_eq!(ground.claim(2).await, [task, other], "served by its new priority");
    ground.finish().await;
}

#[tokio::test]
async fn delay_ends_in_paused_queue() {
    let mut ground = Ground::new().await;
    let task = ground.delayed(Priority::Lowest, 60.0).await;
    pause(&ground.queue, QUEUE).await;
    let refused = ground.queue.claim_task(task, RunId::FIRST, "worker").await.unwrap_err();
    assert!(refused.to_string().contains("It is delayed until"), "what ends first or last: {refused}");
    ground.advance(60.0).await;
    assert_eq!(ground.pass().await, 1);
    assert!(ground.claim(1).await.is_empty());
    let refused = ground.queue.claim_task(task, RunId::FIRST, "worker").await.unwrap_err();
    assert!(refused.to_string().contains("is paused"), "{refused}");
    resume(&ground.queue, QUEUE).await;
    assert_eq!(ground.claim(1).await, [task]);
    ground.finish().await;
}

#[tokio::test]
async fn delays_end_once_in_slices_with_one_note_each() {
    let mut ground = Ground::new().await;
    let mut all = Vec::new();
    for _ in 0..450 {
        let task = new_task(QUEUE, &json!({}));
        all.push(task.id);
        create_on(&mut ground.conn, &ground.queue, &[task]).await;
    }
    for &task in &all {
        hold(&mut ground.conn, task, 60.0).await;
    }
    let other = Queue::start(ground.database.options());
    ground.advance(60.0).await;
    let run = async |queue: &Queue| {
        let mut done = 0;
        while number(ground.database.pool(), "SELECT count(*) FROM pending WHERE hold IS NOT NULL").await > 0 {
            let report = holds::pass(&queue.engine).await.unwrap();
            assert!(report.done <= 200);
            done += report.done;
        }
        done
    };
    let (here, there) = tokio::join!(run(&ground.queue), run(&other));
    assert_eq!(here + there, all.len());
    let notes = ground.notes().await;
    assert!(notes.iter().all(|runs| (1..=200).contains(&runs.len())));
    let mut named: Vec<TaskId> = notes.into_iter().flatten().collect();
    named.sort_by_key(|id| id.uuid());
    all.sort_by_key(|id| id.uuid());
    assert_eq!(named, all);
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn queue_with_only_delayed_tasks_is_listed() {
    let mut ground = Ground::new().await;
    let task = new_task(QUEUE, &json!({}));
    ground.queue.create(&task).await.unwrap();
    // As if the task had been created with a delay.
    let sql = "UPDATE pending SET hold = 1, held_until = now() + interval '1 min', reserved_until = '3000-01-01',
                   hidden_until = '3000-01-01';
               UPDATE outbox_new SET pending = '{0}', delayed = '{1}' WHERE pending = '{1}'";
    sqlx::raw_sql(sql).execute(&mut ground.conn).await.unwrap();
    for _ in 0..2 {
        let listed = counters::list_counts(&mut ground.conn, Sequenced::default()).await.unwrap();
        assert_eq!(listed, [(QUEUE.to_owned(), Counts { pending: 0, claimed: 0, delayed: 1 })]);
        events::sequence(&mut ground.conn, Sequenced::default()).await.unwrap();
    }
    assert_eq!(number(ground.database.pool(), "SELECT delayed FROM counters").await, 1);
    change(&ground.queue, task.id, Change::Cancel).await.unwrap();
    ground.finish().await;
}

#[tokio::test]
async fn unresumable_queue_delays_no_other() {
    const PAUSED: &str = "SELECT count(*) FROM task_queues WHERE paused IS NOT NULL";
    let mut ground = Ground::new().await;
    for name in ["proj/refused", "proj/other"] {
        pause(&ground.queue, name).await;
    }
    // The failing queue comes first.
    let refuse = "UPDATE task_queues
            SET paused_until = now() - CASE name WHEN 'proj/refused' THEN interval '2 s' ELSE interval '1 s' END
            WHERE paused IS NOT NULL;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
        CREATE TRIGGER refuse BEFORE UPDATE ON task_queues FOR EACH ROW WHEN (OLD.name = 'proj/refused')
            EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refuse).execute(&mut ground.conn).await.unwrap();
    pauses::pass(&ground.queue.engine).await.unwrap_err();
    assert_eq!(number(ground.database.pool(), PAUSED).await, 1, "the other queue is resumed");
    sqlx::raw_sql("DROP FUNCTION refuse() CASCADE").execute(&mut ground.conn).await.unwrap();
    assert_eq!(pauses::pass(&ground.queue.engine).await.unwrap().done, 1);
    ground.finish().await;
}
