//! Tables of sessions: claims, inboxes and ends.

use tenure_api::sessions::{InboxEvent, InboxItem};
use tenure_api::states::{RunState, WorkerCommand};
use tenure_domain::session::{COMMANDS_MAX, INBOX_SHOWN_MAX, STRAYS_LOOKED_FOR, Start, Stated};
use tenure_store::testing::check_invariants_on;
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::{claim, claim_one};
use tenure_store::worker_sessions::{self as store, Liveness, Renewal, Sent};

use crate::support::*;

impl Ground {
    async fn begin(&mut self, worker: &str) -> i64 {
        let queue = self.queue.key(QUEUE).await;
        let start = start(worker);
        let begun =
            store::begin(&mut self.conn, queue, &start, "ann").await.unwrap().expect("the worker has no other session");
        assert_eq!((begun.until - begun.identity.started).num_seconds(), 60);
        begun.identity.epoch
    }

    /// Claims `each` runs for each session in one statement.
    async fn claim_for(&mut self, sessions: &[Option<i64>], each: usize) -> Vec<claim::Claimed> {
        let queue = self.queue.key(QUEUE).await;
        let slots = (1..).take(sessions.len()).flat_map(|slot| std::iter::repeat_n(slot, each)).collect();
        let want = claim::Want { queue, name: QUEUE, epoch: -1, marks: [0; 7], slots };
        let workers: Vec<_> = sessions.iter().map(|&session| claim::Worker { group: "g", id: "w", session }).collect();
        let mut rows = claim::claim(&mut self.conn, &[want], &workers, LEASE, Uuid::new_v4()).await.unwrap();
        rows.sort_by_key(|row| row.ord);
        rows
    }

    async fn held(&mut self, session: i64) -> Uuid {
        self.queue.create_one(QUEUE).await;
        let rows = self.claim_for(&[Some(session)], 1).await;
        assert!(rows[0].made);
        rows[0].id
    }
}

fn start(worker: &str) -> Start {
    Start {
        queue: QUEUE.parse().unwrap(),
        worker_group: "g".parse().unwrap(),
        worker_id: worker.parse().unwrap(),
        ttl: 60,
        weight: 1,
        capacity: 5,
        takeover: false,
        policy_version: None,
    }
}

async fn expire(conn: &mut PgConnection, task: Uuid) {
    sqlx::query("UPDATE claims SET taken_until = now() WHERE id = $1").bind(task).execute(&mut *conn).await.unwrap();
    let resolved = end::end(conn, &[Member::new(task, 0, Ending::LeaseExpired)]).await.unwrap();
    assert!(resolved.len() == 1 && resolved[0].session.is_some());
}

async fn session_of(conn: &mut PgConnection, task: Uuid) -> Option<i64> {
    sqlx::query_scalar("SELECT session FROM claims WHERE id = $1").bind(task).fetch_one(conn).await.unwrap()
}

async fn renew(conn: &mut PgConnection, epoch: i64, after: i64) -> Option<store::Renewed> {
    let renewal = Renewal { epoch, stated: Stated::default(), after };
    store::renew(conn, &[renewal]).await.unwrap().pop()
}

async fn read(conn: &mut PgConnection, epoch: i64, after: i64) -> Vec<InboxItem> {
    let items = store::read_inboxes(conn, &[(epoch, after)]).await.unwrap();
    items.into_iter().map(|(of, item)| (of == epoch).then_some(item).unwrap()).collect()
}

fn task_of(item: &InboxItem) -> Uuid {
    let InboxEvent::RunEnded { task_id, run_id, state, reason_resolved, ended_by, .. } = item.what else {
        panic!("{item:?}")
    };
    assert_eq!((run_id.number(), state, ended_by), (0, RunState::Exception, Some(EndedBy::Lease)));
    assert_eq!(reason_resolved, ReasonResolved::ClaimExpired);
    task_id.uuid()
}

#[tokio::test]
async fn claims_belong_to_session_and_next_run_to_none() {
    let mut ground = Ground::new().await;
    let session = ground.begin("w").await;
    create_some(&ground.queue, QUEUE, 4).await;
    let rows = ground.claim_for(&[Some(session), None], 2).await;
    assert!(rows.iter().all(|row| row.made && !row.session_ended));
    let mut found = Vec::new();
    for row in &rows {
        found.push(session_of(&mut ground.conn, row.id).await);
    }
    assert_eq!(found, [Some(session), Some(session), None, None]);
    assert_eq!(store::find(&mut ground.conn, session).await.unwrap().unwrap().running, 2);
    expire(&mut ground.conn, rows[0].id).await;
    let again = ground.claim_for(&[None], 1).await;
    assert_eq!((again[0].id, again[0].run), (rows[0].id, 1));
    assert_eq!(session_of(&mut ground.conn, rows[0].id).await, None);
    let named = ground.queue.create_one(QUEUE).await.uuid();
    let claimed = claim_one::claim_one(&mut ground.conn, named, 0, "g", "w", LEASE, Some(session)).await.unwrap();
    assert!(claimed.is_some());
    assert_eq!(session_of(&mut ground.conn, named).await, Some(session));
    ground.finish().await;
}

#[tokio::test]
async fn worker_of_ended_session_gets_no_run() {
    let mut ground = Ground::new().await;
    let (live, gone) = (ground.begin("w").await, ground.begin("gone").await);
    store::end(&mut ground.conn, gone, SessionEnd::Closed, false).await.unwrap().unwrap();
    create_some(&ground.queue, QUEUE, 4).await;
    let rows = ground.claim_for(&[Some(live), Some(gone), None, Some(gone + 1_000)], 1).await;
    let found: Vec<_> = rows.iter().map(|row| (row.made, row.session_ended)).collect();
    assert_eq!(found, [(true, false), (false, true), (false, false), (false, true)]);
    let rows = ground.claim_for(&[Some(gone)], 1).await;
    assert_eq!((rows[0].made, rows[0].session_ended), (false, true), "alone too");
    let rows = ground.claim_for(&[Some(live), None], 2).await;
    assert_eq!(rows.iter().filter(|row| row.made).count(), 3, "the run is still pending");
    ground.finish().await;
}

/// The earlier item commits last, after the acknowledgement of the other.
#[tokio::test]
async fn late_committed_item_is_read() {
    let mut ground = Ground::new().await;
    let session = ground.begin("w").await;
    let (late, soon) = (ground.held(session).await, ground.held(session).await);
    let mut other = ground.database.connect().await;
    let mut slow = other.begin().await.unwrap();
    expire(&mut slow, late).await;
    expire(&mut ground.conn, soon).await;
    let first = read(&mut ground.conn, session, 0).await;
    assert_eq!(first.iter().map(task_of).collect::<Vec<_>>(), [soon]);
    assert_eq!(read(&mut ground.conn, session, 0).await, first);
    slow.commit().await.unwrap();
    let after = first[0].id;
    renew(&mut ground.conn, session, after).await.unwrap();
    let second = read(&mut ground.conn, session, after).await;
    assert_eq!(second.iter().map(task_of).collect::<Vec<_>>(), [late]);
    assert!(second[0].id > after);
    renew(&mut ground.conn, session, second[0].id).await.unwrap();
    assert_eq!(read(&mut ground.conn, session, 0).await, []);
    ground.finish().await;
}

#[tokio::test]
async fn uncommitted_command_is_not_overtaken() {
    let mut ground = Ground::new().await;
    let session = ground.begin("w").await;
    let task = ground.held(session).await;
    let mut other = ground.database.connect().await;
    let mut sending = other.begin().await.unwrap();
    let sent =
        store::command(&mut sending, session, WorkerCommand::StopTask, Some("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap()));
    let Sent::Item(command) = sent.await.unwrap() else { panic!("it is live") };
    expire(&mut ground.conn, task).await;
    let mut reader = ground.database.connect().await;
    let reading = tokio::spawn(async move { (read(&mut reader, session, 0).await, reader) });
    until_a_session_waits(ground.database.pool()).await;
    sending.commit().await.unwrap();
    let (items, _reader) = reading.await.unwrap();
    assert_eq!(items.iter().map(|item| item.id == command).collect::<Vec<_>>(), [true, false], "{items:?}");
    assert!(items[0].id < items[1].id);
    let InboxEvent::Command { command: what, task_id } = &items[0].what else { panic!("{items:?}") };
    assert_eq!(
        (*what, task_id.map(|id: TaskId| id.to_string()).as_deref()),
        (WorkerCommand::StopTask, Some("9HrBC1jMQ3KlZw4CssPUeQ"))
    );
    ground.finish().await;
}

#[tokio::test]
async fn commands_are_limited_and_refused_for_ended_session() {
    let mut ground = Ground::new().await;
    let (session, other) = (ground.begin("w").await, ground.begin("other").await);
    let send = WorkerCommand::Freeze;
    let mut last = 0;
    for _ in 0..COMMANDS_MAX {
        let Sent::Item(id) = store::command(&mut ground.conn, session, send, None).await.unwrap() else { panic!() };
        assert!(id > last);
        last = id;
    }
    assert_eq!(store::command(&mut ground.conn, session, send, None).await.unwrap(), Sent::TooMany);
    assert!(matches!(store::command(&mut ground.conn, other, send, None).await.unwrap(), Sent::Item(_)));
    assert_eq!(read(&mut ground.conn, session, last - 1).await.len(), 1);
    renew(&mut ground.conn, session, last - 1).await.unwrap();
    assert!(matches!(store::command(&mut ground.conn, session, send, None).await.unwrap(), Sent::Item(_)));
    store::end(&mut ground.conn, session, SessionEnd::Closed, false).await.unwrap().unwrap();
    assert_eq!(store::command(&mut ground.conn, session, send, None).await.unwrap(), Sent::Ended);
    assert_eq!(store::command(&mut ground.conn, session + 1_000, send, None).await.unwrap(), Sent::Ended);
    ground.finish().await;
}

#[tokio::test]
async fn renewal_changes_only_stated_fields_of_live_session() {
    let mut ground = Ground::new().await;
    let (session, gone) = (ground.begin("w").await, ground.begin("gone").await);
    run_sql(&mut ground.conn, "UPDATE worker_sessions SET extended = true, until = now() + interval '1 h'").await;
    store::end(&mut ground.conn, gone, SessionEnd::Takeover, false).await.unwrap().unwrap();
    let before = store::find(&mut ground.conn, session).await.unwrap().unwrap();
    let stated = Stated { weight: Some(7), capacity: None, frozen: Some(true) };
    let renewals = [session, gone, gone + 1_000].map(|epoch| Renewal { epoch, stated, after: 0 });
    let mut renewed = store::renew(&mut ground.conn, &renewals).await.unwrap();
    renewed.sort_by_key(|row| row.epoch);
    assert_eq!(
        renewed.iter().map(|row| (row.epoch, row.ended)).collect::<Vec<_>>(),
        [(session, None), (gone, Some(SessionEnd::Takeover))]
    );
    assert_eq!(renewed[0].until, before.until, "the expiry never moves back");
    let after = store::find(&mut ground.conn, session).await.unwrap().unwrap();
    assert_eq!((after.weight, after.capacity, after.frozen), (7, 5, true));
    let extended: i64 = sqlx::query_scalar("SELECT count(*) FROM worker_sessions WHERE extended AND ended IS NULL")
        .fetch_one(&mut ground.conn)
        .await
        .unwrap();
    assert_eq!(extended, 0);
    let (at, by, returned) = store::find(&mut ground.conn, gone).await.unwrap().unwrap().ended.unwrap();
    assert_eq!((at <= renewed[0].now, by, returned), (true, SessionEnd::Takeover, 0));
    assert_eq!(store::list_ended(&mut ground.conn, &[session, gone, gone + 1_000]).await.unwrap().len(), 2);
    let live = store::list_live(&mut ground.conn, &[session, gone, gone + 1_000]).await.unwrap();
    assert_eq!(live, [store::StillLive { epoch: session, until: renewed[0].until, policy_version: 0 }]);
    sqlx::raw_sql("UPDATE task_queues SET policy_version = 7").execute(&mut ground.conn).await.unwrap();
    assert_eq!(store::list_live(&mut ground.conn, &[session]).await.unwrap()[0].policy_version, 7);
    ground.finish().await;
}

async fn overdue(conn: &mut PgConnection) -> Vec<i64> {
    let now = store::glance(conn).await.unwrap().now;
    let found = store::list_expiring(conn, now, 10).await.unwrap();
    found.into_iter().map(|session| session.epoch).collect()
}

/// A renewal is refused while its session is being ended, or prevents the expiry.
#[tokio::test]
async fn end_and_renewal_are_serialized() {
    let mut ground = Ground::new().await;
    let session = ground.begin("w").await;
    let mut other = ground.database.connect().await;
    let mut ending = other.begin().await.unwrap();
    store::end(&mut ending, session, SessionEnd::Closed, false).await.unwrap().unwrap();
    assert!(renew(&mut ground.conn, session, 0).await.is_none());
    assert_eq!(store::lock_against_end(&mut ground.conn, session).await.unwrap(), Liveness::Locked);
    ending.rollback().await.unwrap();
    assert_eq!(store::lock_against_end(&mut ground.conn, session).await.unwrap(), Liveness::Live);
    sqlx::query("UPDATE worker_sessions SET until = now() - interval '1 s'").execute(&mut ground.conn).await.unwrap();
    assert_eq!(overdue(&mut ground.conn).await, [session]);
    assert!(
        renew(&mut ground.conn, session, 0).await.unwrap().ended.is_none(),
        "the session is live until it is ended"
    );
    assert!(store::end(&mut ground.conn, session, SessionEnd::Expired, true).await.unwrap().is_none());
    sqlx::query("UPDATE worker_sessions SET until = now() - interval '1 s'").execute(&mut ground.conn).await.unwrap();
    // No server has scanned for a while: whether the worker lives is unknown.
    let silent = "INSERT INTO session_clock (at) VALUES (clock_timestamp() - interval '6 s')";
    sqlx::query(silent).execute(&mut ground.conn).await.unwrap();
    assert!(store::end(&mut ground.conn, session, SessionEnd::Expired, true).await.unwrap().is_none());
    assert_eq!(store::tick_clock(&mut ground.conn).await.unwrap(), 1);
    assert_eq!(overdue(&mut ground.conn).await, [] as [i64; 0]);
    sqlx::query("UPDATE worker_sessions SET until = now() - interval '1 s'").execute(&mut ground.conn).await.unwrap();
    let identity = store::end(&mut ground.conn, session, SessionEnd::Expired, true).await.unwrap().unwrap();
    assert!(identity.epoch == session && identity.is_of(&QUEUE.parse().unwrap(), "g", "w"));
    assert_eq!(store::lock_against_end(&mut ground.conn, session).await.unwrap(), Liveness::Ended);
    assert!(store::end(&mut ground.conn, session, SessionEnd::Closed, false).await.unwrap().is_none());
    ground.finish().await;
}

#[tokio::test]
async fn held_runs_are_locked_with_cost_of_loss() {
    let mut ground = Ground::new().await;
    let session = ground.begin("w").await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(ground.held(session).await);
    }
    sqlx::query("UPDATE claims SET traits = 2 WHERE id = $1").bind(tasks[1]).execute(&mut ground.conn).await.unwrap();
    sqlx::query("UPDATE tasks SET free_runs = 9 WHERE id = $1").bind(tasks[2]).execute(&mut ground.conn).await.unwrap();
    let mut transaction = ground.conn.begin().await.unwrap();
    store::end(&mut transaction, session, SessionEnd::Expired, false).await.unwrap().unwrap();
    assert_eq!(store::lock_tasks(&mut transaction, session, 2).await.unwrap().len(), 2);
    let locked = store::lock_tasks(&mut transaction, session, 10).await.unwrap();
    let held = store::lock_held(&mut transaction, session, &locked).await.unwrap();
    let costs: Vec<_> = held.iter().map(|held| (held.id, held.run, held.delivery, held.free_runs)).collect();
    let retries = Delivery::Retries;
    assert_eq!(costs, [(tasks[0], 0, retries, 0), (tasks[1], 0, Delivery::AtMostOnce, 0), (tasks[2], 0, retries, 9)]);
    let members: Vec<_> = held.iter().map(|held| Member::new(held.id, held.run, Ending::SessionEnded)).collect();
    assert_eq!(end::end(&mut transaction, &members).await.unwrap().len(), 3);
    assert_eq!(store::close(&mut transaction, session, 3).await.unwrap(), 0);
    assert_eq!(store::close(&mut transaction, session, 2).await.unwrap(), 0);
    transaction.commit().await.unwrap();
    let (.., returned) = store::find(&mut ground.conn, session).await.unwrap().unwrap().ended.unwrap();
    assert_eq!(returned, 5);
    let items: i64 =
        sqlx::query_scalar("SELECT count(*) FROM session_inbox").fetch_one(&mut ground.conn).await.unwrap();
    assert_eq!(items, 0);
    ground.finish().await;
}

#[tokio::test]
async fn ended_session_is_shown_for_a_day_then_purged_with_inbox() {
    let mut ground = Ground::new().await;
    let (session, live) = (ground.begin("w").await, ground.begin("live").await);
    for epoch in [session, live] {
        assert!(matches!(
            store::command(&mut ground.conn, epoch, WorkerCommand::Freeze, None).await.unwrap(),
            Sent::Item(_)
        ));
    }
    let identity = store::end(&mut ground.conn, session, SessionEnd::Closed, false).await.unwrap().unwrap();
    let set = async |conn: &mut PgConnection, ended: &str| {
        let ended: DateTime<Utc> =
            sqlx::query_scalar("SELECT now() - $1::text::interval").bind(ended).fetch_one(&mut *conn).await.unwrap();
        sqlx::query("UPDATE worker_sessions SET ended = $1 WHERE ended IS NOT NULL")
            .bind(ended)
            .execute(conn)
            .await
            .unwrap();
    };
    set(&mut ground.conn, "23 h 59 min").await;
    assert_eq!(store::purge(&mut ground.conn, 10).await.unwrap(), 0);
    assert!(store::identify(&mut ground.conn, identity.id).await.unwrap().is_some());
    set(&mut ground.conn, "24 h").await;
    assert!(store::find(&mut ground.conn, session).await.unwrap().is_none());
    assert!(store::identify(&mut ground.conn, identity.id).await.unwrap().is_none());
    assert_eq!(store::purge(&mut ground.conn, 10).await.unwrap(), 1);
    assert_eq!(store::count_live(&mut ground.conn).await.unwrap(), 1);
    let left: Vec<i64> =
        sqlx::query_scalar("SELECT epoch FROM session_inbox").fetch_all(&mut ground.conn).await.unwrap();
    assert_eq!(left, [live]);
    ground.finish().await;
}

/// Also run by the next test, with the breakage.
#[tokio::test]
async fn no_run_is_held_long_after_the_end_of_its_session() {
    let mut ground = Ground::new().await;
    let session = ground.begin("w").await;
    for _ in 0..3 {
        ground.held(session).await;
    }
    let mut transaction = ground.conn.begin().await.unwrap();
    store::end(&mut transaction, session, SessionEnd::Closed, false).await.unwrap().unwrap();
    let locked = store::lock_tasks(&mut transaction, session, 10).await.unwrap();
    let held = store::lock_held(&mut transaction, session, &locked).await.unwrap();
    let members: Vec<_> = held.iter().map(|held| Member::new(held.id, held.run, Ending::Released)).collect();
    end::end(&mut transaction, &members).await.unwrap();
    transaction.commit().await.unwrap();
    let strays = store::list_strays(&mut ground.conn, STRAYS_LOOKED_FOR).await.unwrap();
    let mut transaction = ground.conn.begin().await.unwrap();
    sqlx::query("UPDATE clock SET clock_offset = interval '6 min'").execute(&mut *transaction).await.unwrap();
    let violations = check_invariants_on(&mut transaction).await;
    transaction.rollback().await.unwrap();
    ground.finish().await;
    assert_eq!((violations, strays), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn invariant_detects_ended_session_with_runs() {
    let test = "session_store::no_run_is_held_long_after_the_end_of_its_session";
    let mut broken = tokio::process::Command::new(std::env::current_exe().unwrap());
    let output = broken.args(["--exact", test]).env("TENURE_BREAK", "leak-session").output().await.unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(said.contains("Sessions: no run is held by a session that ended") && said.contains("1 failed"), "{said}");
}

#[tokio::test]
async fn purged_or_accepted_runs_and_done_commands_hide_no_item() {
    let mut ground = Ground::new().await;
    let session = ground.begin("w").await;
    sqlx::query(
        "INSERT INTO session_inbox (epoch, id, kind, at, seq, run)
         SELECT $1, nextval('session_inbox_id'), kind, now(), n, 0 FROM generate_series(1, $2) n, unnest(ARRAY[1, 4, 5]) kind",
    )
    .bind(session)
    .bind(INBOX_SHOWN_MAX)
    .execute(&mut ground.conn)
    .await
    .unwrap();
    let sent = store::command(&mut ground.conn, session, WorkerCommand::Freeze, None).await.unwrap();
    let items = read(&mut ground.conn, session, 0).await;
    assert_eq!(items.iter().map(|item| Sent::Item(item.id)).collect::<Vec<_>>(), [sent]);
    renew(&mut ground.conn, session, i64::MAX).await.unwrap();
    ground.finish().await;
}
