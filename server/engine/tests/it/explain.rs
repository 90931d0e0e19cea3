//! Plans of hot statements, made while tables are empty and still right when full.

mod charts;
mod checkpoints;
mod held;
mod measure;
mod sessions;
mod shares;

use tenure_api::states::TaskState;
use tenure_domain::policy::counts::Counted;
use tenure_domain::work::Holder;
use tenure_engine::background::dependencies::DependencySink;
use tenure_engine::background::groups::GroupSink;
use tenure_engine::events::log_reader;
use tenure_store::due_marks::DueMarks;
use tenure_store::hot::messages;
use tenure_store::hot::statement::Run;
use tenure_store::low_water_marks::{self, Marks};
use tenure_store::page::{self, Ends, Filter};
use tenure_store::transitions::end::Member;
use tenure_store::transitions::{claim, claim_one, create, end, purge, renew, reprioritise, schedule};
use tenure_store::{
    self, claims, counters, deadlines, dependencies, dependency_work, events, groups, problems, queue_lists, session,
    tasks,
};

use crate::passes::without_autovacuum;
use measure::measure;

use crate::support::*;

const BIG: [&str; 13] = [
    "tasks",
    "pending",
    "claims",
    "runs",
    "task_definitions",
    "due",
    "task_groups",
    "outbox",
    "outbox_new",
    "outbox_order",
    "dependencies",
    "worker_sessions",
    "session_inbox",
];
const HOT: [&str; 18] = [
    "create_task_of_one",
    "create_task_alone",
    "create_task_in_group",
    "create_task",
    "create_dependent_task",
    "list_required",
    "claim_work_of_one",
    "claim_work",
    "reclaim_task",
    "resolve_run_of_one",
    "resolve_run_for_good",
    "resolve_run",
    "schedule_dependents",
    "load_tasks",
    "load_runs",
    "list_returnable",
    "get_messages",
    "delete_messages",
];
/// Short lists: one row per length of a lease.
const FEW: [&str; 1] = [".lease"];
/// The marks of an unknown queue.
const NO_MARKS: Marks = Marks { epoch: -1, marks: [0; 7] };
/// Tasks: a fifth pending, a fifth claimed.
const FULL: i32 = 50_000;

/// Tasks in many groups and a few queues.
pub const FILL: &str = "
    INSERT INTO task_queues (name) SELECT 'fill/q' || n FROM generate_series(1, 5) n ON CONFLICT DO NOTHING;
    CREATE TEMP TABLE made AS
        SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, n, q.id AS queue, (n % 7)::smallint AS priority,
               CASE WHEN n % 5 = 0 THEN 'pending' WHEN n % 5 = 1 THEN 'claimed' ELSE 'ended' END AS place,
               overlay(overlay(md5((n / 10)::text) PLACING '4' FROM 13) PLACING '8' FROM 17)::uuid AS task_group, now() + interval '1 h' + n * interval '1 ms' AS deadline
        FROM generate_series(1, $FULL) n JOIN task_queues q ON q.name = 'fill/q' || (n / 7 % 5 + 1);
    INSERT INTO task_groups (id, scheduler, expires)
        SELECT DISTINCT task_group, '-', now() + interval '1 year' FROM made;
    INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run)
        SELECT id, seq, queue, task_group, CASE place WHEN 'ended' THEN 3 ELSE 1 END, priority, 5, 0 FROM made;
    INSERT INTO task_definitions
        SELECT seq, id, '-', 'none', task_group, deadline, deadline, '[]', '[]', '{}', '{}' FROM made;
    INSERT INTO due (deadline, seqs) SELECT min(deadline), array_agg(seq) FROM made GROUP BY n / 5, place;
    INSERT INTO dependencies
        SELECT a.seq, b.id, n % 2 = 0, a.place = 'ended' FROM made a JOIN made b USING (n);
    INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left)
        SELECT seq, id, 0, queue, priority, deadline, now(), 0, 5 FROM made WHERE place = 'pending' ORDER BY n;
    INSERT INTO claims
        SELECT seq, id, 0, queue, n, deadline, now(), 0, 5, now(), now() + interval '20 min' + n * interval '1 ms',
               'g', 'w', gen_random_uuid() FROM made WHERE place = 'claimed';
    INSERT INTO runs
        SELECT seq, 0, 3, 0, 0, now(), now(), now(), now(), 'g', 'w' FROM made WHERE place = 'ended';
    INSERT INTO counters
        SELECT queue, count(*) FILTER (WHERE place = 'pending'), count(*) FILTER (WHERE place = 'claimed')
        FROM made GROUP BY queue;
    INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left)
        SELECT now(), count(*) * CASE WHEN kind = 1 THEN 2 ELSE 1 END, array_agg(kind::smallint), array_agg(seq),
               array_agg(0::smallint), array_agg(5::smallint)
        FROM made JOIN (VALUES (1, 'any'), (2, 'claimed'), (2, 'ended'), (3, 'ended')) k(kind, of)
            ON k.of IN ('any', made.place)
        GROUP BY kind, n / 100 ORDER BY kind, n / 100;";

async fn fill(conn: &mut PgConnection) {
    // Autovacuum could gather statistics of half-full tables.
    without_autovacuum(conn).await;
    let sql = FILL.replace("$FULL", &FULL.to_string());
    run_sql(conn, &sql).await;
}

async fn ids(conn: &mut PgConnection, place: &'static str, count: i64) -> Vec<Uuid> {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT id FROM {place} LIMIT {count}"))).fetch_all(conn).await.unwrap()
}

async fn run_hot(conn: &mut PgConnection, queue: &Queue, new: &NewTask, open: &[Uuid]) {
    let key = queue.key("fill/q1").await;
    let mut transaction = conn.begin().await.unwrap();
    create_on(&mut transaction, queue, std::slice::from_ref(new)).await;
    let two = [0, 1].map(|_| new_task(new.queue.as_str(), &json!({})));
    create_on(&mut transaction, queue, &two).await;
    let in_group = new_task(new.queue.as_str(), &json!({"taskGroupId": new.id}));
    create_on(&mut transaction, queue, &[in_group]).await;
    let group = new_task(new.queue.as_str(), &json!({})).id;
    let together = [0, 1].map(|_| new_task(new.queue.as_str(), &json!({"taskGroupId": group})));
    assert_eq!(create_all_on(&mut transaction, queue, &together).await, together.len());
    let mut waits = new_task(new.queue.as_str(), &json!({"taskGroupId": new.id}));
    waits.dependencies = open.to_vec();
    let dependent = create::Member { task: &waits, queue: key, waits: false, ruled: false };
    transaction.run_one(&create::statement_of_dependents(&[dependent])).await.unwrap();
    let wanted = dependencies::Wanted { required: open, any_end: true };
    dependencies::list_required(&mut transaction, &[wanted]).await.unwrap();
    let want = claim::Want { queue: key, name: "fill/q1", epoch: -1, marks: [0; 7], slots: vec![1; 5] };
    let worker = claim::Worker { group: "g", id: "w", session: None };
    let other = claim::Want { queue: queue.key("fill/q2").await, name: "fill/q2", ..want.clone() };
    claim::claim(&mut transaction, &[want.clone(), other], &[worker], LEASE, Uuid::new_v4()).await.unwrap();
    claim::claim(&mut transaction, &[want], &[worker], LEASE, Uuid::new_v4()).await.unwrap();
    let members: Vec<_> = open.iter().map(|&id| renew::Member { id, run: 0 }).collect();
    renew::renew(&mut transaction, &members, LEASE).await.unwrap();
    claims::list_returnable(&mut transaction, open).await.unwrap();
    let completed = Ending::Reported(Report::Completed);
    let unknown = Member::new(Uuid::new_v4(), 0, completed);
    end::end(&mut transaction, &[unknown]).await.unwrap();
    let ends: Vec<_> = open.iter().map(|&id| Member::new(id, 0, completed)).chain([unknown]).collect();
    let holder = Holder { queue: "fill/q1".parse().unwrap(), group: "g".into(), id: "w".into() };
    end::end_held(&mut transaction, &ends, &vec![Some(&holder); ends.len()]).await.unwrap();
    let expired: Vec<_> = open.iter().map(|&id| Member::new(id, 0, Ending::LeaseExpired)).collect();
    end::end(&mut transaction, &expired).await.unwrap();
    transaction.run_one(&schedule::schedule_dependents(open)).await.unwrap();
    let want = messages::Want { queue: key, priority: 6, epoch: -1, mark: 0, slots: vec![1; 5] };
    let get = messages::get_statement(&[want], &[LEASE], &[7; 5], LEASE);
    let found = messages::decode_get(&transaction.run_one(&get).await.unwrap()).unwrap();
    let deletions: Vec<_> = found.got.iter().map(|got| deletion(key, got)).collect();
    transaction.run_one(&messages::delete_statement(&deletions, LEASE)).await.unwrap();
    tasks::load(&mut transaction, &[new.id.uuid()]).await.unwrap();
    tasks::load_history(&mut transaction, &[1]).await.unwrap();
    transaction.rollback().await.unwrap();
}

fn deletion(queue: i32, got: &messages::Got) -> messages::Deletion {
    messages::Deletion { queue, priority: 6, message: got.message, receipt: got.receipt }
}

async fn plan(conn: &mut PgConnection, statement: &str) -> Vec<String> {
    let (name, parameters): (String, i32) = sqlx::query_as(
        "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement LIKE $1 || E'\\n%'",
    )
    .bind(format!("-- {statement}"))
    .fetch_one(&mut *conn)
    .await
    .unwrap_or_else(|error| panic!("{statement} is not prepared: {error}"));
    let nulls = vec!["NULL"; usize::try_from(parameters).unwrap()].join(", ");
    let sql = format!("EXPLAIN (COSTS OFF) EXECUTE \"{name}\"({nulls})");
    let rows = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_all(conn).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0)).collect()
}

async fn plans(conn: &mut PgConnection) -> BTreeMap<&'static str, Vec<String>> {
    let mut plans = BTreeMap::new();
    for statement in HOT {
        plans.insert(statement, plan(conn, statement).await);
    }
    plans
}

/// True for a join by equality without index or hash: quadratic in the batch.
fn compares_all_pairs(lines: &[String]) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let Some(condition) = lines[0].trim_start().strip_prefix("Join Filter: ") else { return false };
    let is_column = |text: &str| text.contains('.') && text.chars().all(|c| c.is_alphanumeric() || "._".contains(c));
    let is_few = |column: &str| FEW.iter().any(|few| column.ends_with(few));
    let words: Vec<&str> = condition.split([' ', '(', ')']).collect();
    let joins = |words: &[&str]| words[1] == "=" && is_column(words[0]) && is_column(words[2]) && !is_few(words[0]);
    let inputs = lines[1..].iter().take_while(|line| indent(line) >= indent(&lines[0]));
    let inner = inputs.filter(|line| indent(line) == indent(&lines[0])).nth(1);
    words.windows(3).any(joins)
        && inner
            .is_some_and(|line| ["CTE Scan", "Function Scan", "Subquery Scan"].iter().any(|list| line.contains(list)))
}

fn faults(plan: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for (place, line) in plan.iter().enumerate() {
        let next = plan.get(place + 1).map_or("", String::as_str);
        let node = line.trim_start().trim_start_matches("->").trim_start();
        if ["Hash ", "Merge ", "Bitmap", "Parallel"].iter().any(|bad| node.starts_with(bad)) {
            faults.push(node.to_owned());
        }
        if compares_all_pairs(&plan[place..]) {
            faults.push(node.to_owned());
        }
        let Some((scan, rest)) = node.split_once(" on ") else { continue };
        let table = rest.split(' ').next().unwrap_or_default();
        let through_index = scan.starts_with("Index") && next.trim_start().starts_with("Index Cond:");
        if scan.contains("Scan") && BIG.contains(&table) && !through_index {
            faults.push(format!("{node} / {}", next.trim()));
        }
    }
    faults
}

fn assert_good(plans: &BTreeMap<&'static str, Vec<String>>, when: &str) {
    let faulty = plans.iter().filter(|(_, plan)| !faults(plan).is_empty());
    let faulty: BTreeMap<_, _> = faulty.map(|(statement, plan)| (statement, faults(plan))).collect();
    assert!(faulty.is_empty(), "{when}: {faulty:#?}");
    for statement in ["create_task_alone", "create_task_in_group", "resolve_run_for_good"] {
        let stored = plans[statement].iter().any(|line| line.contains("Function Scan on i"));
        assert!(!stored, "{statement} stores each column of its members before it reads them");
    }
    for statement in ["claim_work", "get_messages"] {
        let plan = &plans[statement];
        let locking = plan.iter().skip_while(|line| !line.contains("LockRows"));
        let mut reading = locking.skip_while(|line| !line.contains(" on pending") && !line.contains("Sort"));
        let (scan, condition) = (reading.next().expect("it reads pending"), reading.next().expect("by an index"));
        assert!(
            scan.contains("Index Scan using pending_ready on pending")
                && ["queue =", "priority =", "hidden_until IS NOT NULL) =", "ord >"]
                    .iter()
                    .all(|part| condition.contains(part)),
            "{statement} does not read pending in the order of its index:\n{}",
            plan.join("\n")
        );
    }
}

/// Autovacuum may analyze idle tables full of dead rows.
#[tokio::test]
async fn hot_plans_are_right_after_analyze_of_empty_tables() {
    let (database, queue) = start().await;
    let mut filler = database.connect().await;
    fill(&mut filler).await;
    run_sql(&mut filler, "DELETE FROM claims; DELETE FROM pending; DELETE FROM outbox_new; ANALYZE").await;
    let mut hot = database.connect_hot().await;
    run_hot(&mut hot, &queue, &new_task(QUEUE, &json!({})), &[Uuid::new_v4()]).await;
    assert_good(&plans(&mut hot).await, "on tables analyzed while they were empty");
    drop(hot);
    queue.stop().await;
    run_sql(&mut filler, "TRUNCATE tasks, task_definitions, task_groups, due, dependencies, runs, counters").await;
    database.finish().await;
}

#[tokio::test]
async fn hot_plans_made_on_empty_tables_stay_right() {
    let (database, queue) = start().await;
    let mut hot = database.connect_hot().await;
    let new = new_task(QUEUE, &json!({}));
    run_hot(&mut hot, &queue, &new, &[Uuid::new_v4()]).await;
    let empty = plans(&mut hot).await;
    assert_good(&empty, "on empty tables");
    let mut filler = database.connect().await;
    fill(&mut filler).await;
    let open = ids(&mut filler, "claims", 200).await;
    run_hot(&mut hot, &queue, &new, &open).await;
    assert_eq!(plans(&mut hot).await, empty, "full tables");
    sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    run_hot(&mut hot, &queue, &new, &open).await;
    assert_good(&plans(&mut hot).await, "with statistics");
    let mut late = database.connect_hot().await;
    run_hot(&mut late, &queue, &new, &open).await;
    assert_good(&plans(&mut late).await, "in a session that starts with full tables");
    finish(database, queue).await;
}

async fn run_cold(conn: &mut PgConnection, statement: &str, open: &[Uuid], waiting: &[Uuid]) {
    match statement {
        "list_due_claims" => drop(claims::list_due(conn, START, 200).await.unwrap()),
        "list_slow_claims" => assert_eq!(claims::list_slow(conn, START, 200).await.unwrap().len(), 200),
        "end_overdue" => {
            let slice = deadlines::end_overdue(conn, START, 200).await.unwrap();
            assert!(slice.found <= 200);
        }
        "resolve_run of one" | "resolve_run of many" => {
            let count = if statement.ends_with("one") { 1 } else { open.len() };
            let expired: Vec<_> = open[..count].iter().map(|&id| Member::new(id, 0, Ending::LeaseExpired)).collect();
            end::end(conn, &expired).await.unwrap();
        }
        "claim_task" => drop(claim_one::claim_one(conn, waiting[0], 0, "g", "w", LEASE, None).await.unwrap()),
        "load_tasks" => drop(tasks::load(conn, open).await.unwrap()),
        "get_counts" => {
            let name: TaskQueueId = "fill/q1".parse().unwrap();
            assert!(counters::get_counts(conn, Sequenced::default(), &[name]).await.unwrap()[0].pending > 0);
        }
        "skip_dependency_log" => assert!(!dependency_work::skip_log(conn).await.unwrap()),
        "read_dependency_log" => drop(log_reader::read_sequenced(conn, &mut DependencySink).await.unwrap()),
        "settle_dependencies" => {
            sqlx::query("INSERT INTO dependency_work (seq, kind) SELECT seq, 3 FROM tasks WHERE id = ANY($1)")
                .bind(open)
                .execute(&mut *conn)
                .await
                .unwrap();
            assert_eq!(dependency_work::settle(conn, 0).await.unwrap().settled, open.len());
        }
        "publish_groups" => {
            // Checks only for scans.
            run_sql(&mut *conn, "UPDATE log_readers SET position = (SELECT max(first) - 300 FROM outbox_order)").await;
            let witnesses = &mut groups::Witnesses::default();
            log_reader::read_sequenced(conn, &mut GroupSink { sequenced: Sequenced::default(), witnesses })
                .await
                .unwrap();
        }
        "list_group" => {
            let group = sqlx::query_scalar("SELECT task_group FROM tasks WHERE id = $1").bind(open[100]);
            let group: Uuid = group.fetch_one(&mut *conn).await.unwrap();
            assert_eq!(groups::list_tasks(conn, group, Uuid::nil(), 100).await.unwrap().len(), 10);
            assert!(!groups::lock_open(conn, group, Uuid::nil(), 100).await.unwrap().is_empty());
            assert_eq!(groups::count_tasks(conn, group).await.unwrap(), 10);
        }
        "change_priority" => {
            assert!(!reprioritise::reprioritise(conn, waiting, 3).await.unwrap().is_empty());
        }
        "purge_tasks" => {
            sqlx::query("UPDATE log_readers SET position = 100000000").execute(&mut *conn).await.unwrap();
            assert_eq!(purge::purge_tasks(conn, Sequenced::default(), START, None).await.unwrap().purged, 120);
            purge::purge_groups(conn, START, None).await.unwrap();
        }
        "sequence_events" => drop(events::sequence(conn, Sequenced::default()).await.unwrap()),
        "read_events" => drop(events::read(conn, 10_000, 100).await.unwrap()),
        "advance_marks" => {
            low_water_marks::advance_marks(conn, &HashMap::from([(1, NO_MARKS)]), 1000).await.unwrap();
        }
        "show_due_messages" => {
            let due = tenure_store::messages::show_due(conn, &DueMarks::default(), 200).await.unwrap();
            assert!(due.found >= 200);
        }
        list if list.starts_with("list_of_") => run_list(conn, list, open).await,
        "count_hidden_messages" => {
            assert!(!tenure_store::messages::count_hidden(conn, START).await.unwrap().is_empty());
        }
        of_page => run_page(conn, of_page, open[0]).await,
    }
}

async fn run_list(conn: &mut PgConnection, statement: &str, open: &[Uuid]) {
    match statement {
        "list_of_pending" => {
            session::plan_as_hot(conn).await.unwrap();
            let rows = queue_lists::list_pending(conn, 1, 0, 101).await.unwrap();
            assert_eq!(rows.len(), 101);
            assert_eq!(queue_lists::list_pending(conn, 1, rows[100].ord, 101).await.unwrap().len(), 101);
        }
        "list_of_claimed" => {
            session::plan_as_hot(conn).await.unwrap();
            let rows = queue_lists::list_claimed(conn, 1, (chrono::DateTime::UNIX_EPOCH, 0), 101).await.unwrap();
            assert_eq!(rows.len(), 101);
            let listed: Vec<_> = rows.iter().map(|row| (row.seq, row.task)).collect();
            assert_eq!(queue_lists::list_definitions(conn, &listed, 1 << 20).await.unwrap().len(), 101);
        }
        "list_of_named" => {
            assert_eq!(tasks::list_existing(conn, open).await.unwrap().len(), open.len());
            assert_eq!(tasks::list_definitions(conn, open, 1 << 20).await.unwrap().len(), open.len());
        }
        other => unreachable!("{other}"),
    }
}

/// A page about one queue or worker must not read more than the overview.
async fn run_page(conn: &mut PgConnection, statement: &str, held: Uuid) {
    page::set_plans(conn).await.unwrap();
    let key: i32 =
        sqlx::query_scalar("SELECT id FROM task_queues WHERE name = 'fill/q1'").fetch_one(&mut *conn).await.unwrap();
    let only = [key];
    let all = Filter::default();
    let one = Filter { queues: Some(&only), worker: Some(("g", "w")) };
    match statement {
        "page_queues" => {
            let rows = page::list_queues(conn, Sequenced::default(), None).await.unwrap();
            assert!(rows.len() == 5 && rows[0].pending > 0);
            assert_eq!(page::list_queues(conn, Sequenced::default(), Some(key)).await.unwrap().len(), 1);
        }
        "page_oldest" => {
            let asked = page::Asked { marks: NO_MARKS, counted: Counted { pending: 1, ..Counted::default() } };
            let oldest = page::list_oldest(conn, &HashMap::from([(key, asked)])).await.unwrap();
            assert!(oldest.unwrap().contains_key(&key));
        }
        "page_problems" => {
            let (recent, before) = (Duration::from_secs(900), Duration::from_secs(3_600));
            assert!(!problems::list_pending(conn, Sequenced::default()).await.unwrap().is_empty());
            problems::list_paused(conn).await.unwrap();
            problems::list_refiling(conn).await.unwrap();
            problems::list_barred(conn, Duration::from_secs(60), START).await.unwrap();
            problems::list_failing(conn, recent).await.unwrap();
            problems::count_ended(conn, &only, recent, before).await.unwrap();
            problems::list_failures(conn, &only, recent).await.unwrap();
            problems::list_blocked(conn).await.unwrap();
        }
        "page_hidden" => assert!(!page::list_hidden(conn, START).await.unwrap().unwrap().is_empty()),
        "page_claims" => {
            assert_eq!(page::list_claims(conn, START, all, 25).await.unwrap().unwrap().len(), 25);
        }
        "page_claims of one" => {
            assert_eq!(page::list_claims(conn, START, one, 25).await.unwrap().unwrap().len(), 25);
        }
        "page_holders" => assert!(!page::list_holders(conn, START, None).await.unwrap().unwrap().is_empty()),
        "page_ended" => {
            assert_eq!(page::list_ended(conn, Sequenced::default(), Ends::All, all, 500).await.unwrap().len(), 500);
        }
        "page_ended of one" => {
            assert!(!page::list_ended(conn, Sequenced::default(), Ends::All, one, 25).await.unwrap().is_empty());
        }
        "page_failures" => drop(page::list_ended(conn, Sequenced::default(), Ends::Failures, all, 25).await.unwrap()),
        "page_waiting" => {
            assert_eq!(page::list_waiting(conn, key, NO_MARKS, 25).await.unwrap().unwrap().len(), 25);
        }
        "page_members" | "page_group_tasks" | "page_needs" | "page_definitions" => {
            run_group(conn, statement, held).await;
        }
        list if list.starts_with("page_tasks") => run_task_list(conn, list, key, held).await,
        "page_edges" => {
            let task = TaskId::from_uuid(held).unwrap();
            // Each inserted task depends on itself.
            assert_eq!(page::list_edges(conn, task, 101).await.unwrap().len(), 2);
        }
        "page_workers" => drop(page::list_known(conn, key).await.unwrap()),
        "page_worker" => drop(page::list_of_name(conn, "g", "w").await.unwrap()),
        "page_named_workers" => {
            let name = page::Named { queue: "fill/q1", worker_group: "g", worker_id: "w" };
            drop(page::list_named(conn, &[name]).await.unwrap());
        }
        "page_failures_of_workers" => run_failures(conn, key).await,
        "page_worker_sessions" => drop(page::list_sessions_of(conn, &only, "g", "w").await.unwrap()),
        other => unreachable!("{other}"),
    }
}

async fn run_task_list(conn: &mut PgConnection, statement: &str, key: i32, held: Uuid) {
    match statement {
        "page_tasks" => {
            let keys = page::tasks::list_created(conn, i64::MAX, 101).await.unwrap();
            let seqs: Vec<i64> = keys.iter().map(|key| key.seq).collect();
            let found = page::tasks::list_details(conn, &seqs, &page::tasks::Conditions::default()).await.unwrap();
            assert_eq!(found.len(), 101);
            assert_eq!(page::tasks::list_running(conn, (START, i64::MIN), 101).await.unwrap().len(), 101);
            assert!(page::tasks::is_admitting(conn, Sequenced::default(), key).await.unwrap());
            page::tasks::list_held(conn, key, 0, 101).await.unwrap();
        }
        "page_tasks pending" => {
            assert_eq!(page::tasks::list_pending(conn, key, NO_MARKS, 0, 101).await.unwrap().len(), 101);
        }
        "page_tasks of group" => {
            let group = sqlx::query_scalar("SELECT task_group FROM tasks WHERE id = $1").bind(held);
            let group = TaskId::from_uuid(group.fetch_one(&mut *conn).await.unwrap()).unwrap();
            let members = page::tasks::list_of_group(conn, group, Uuid::nil(), 200).await.unwrap();
            assert!((9..=10).contains(&members.len()));
        }
        other => unreachable!("{other}"),
    }
}

async fn run_group(conn: &mut PgConnection, statement: &str, held: Uuid) {
    let group: Uuid = sqlx::query_scalar("SELECT task_group FROM tasks WHERE id = $1")
        .bind(held)
        .fetch_one(&mut *conn)
        .await
        .unwrap();
    let members = page::list_members(conn, group, Uuid::nil(), 20_001).await.unwrap().unwrap();
    // The first group has nine tasks, others ten.
    assert!((9..=10).contains(&members.len()));
    assert!(members.iter().any(|member| member.id == held && member.state == TaskState::Running));
    let seqs: Vec<i64> = members.iter().map(|member| member.seq).collect();
    let ids: Vec<Uuid> = members.iter().map(|member| member.id).collect();
    match statement {
        "page_members" => {
            assert_eq!(page::list_members(conn, group, ids[5], 2).await.unwrap().unwrap(), members[6..8]);
        }
        "page_group_tasks" => {
            assert_eq!(page::list_group_tasks(conn, &seqs).await.unwrap().len(), members.len());
            page::list_group_failures(conn, &seqs).await.unwrap();
            page::find_last_end(conn, &seqs).await.unwrap().unwrap();
        }
        "page_needs" => {
            // Each task depends on itself.
            let all = page::list_needs(conn, &ids, page::Needs::All, 2_000).await.unwrap().unwrap();
            assert_eq!(all.len(), members.len());
            let open = page::list_needs(conn, &ids, page::Needs::Unsatisfied, 2_000).await.unwrap().unwrap();
            assert!(open.len() < all.len() && open.iter().all(|need| !need.satisfied));
        }
        "page_definitions" => {
            let definitions = page::list_definitions(conn, &seqs).await.unwrap().unwrap();
            assert_eq!(definitions.len(), members.len());
        }
        other => unreachable!("{other}"),
    }
}

async fn run_failures(conn: &mut PgConnection, queue: i32) {
    let (tables, hour) = (["failed_runs", "queue_minutes"], Duration::from_secs(3_600));
    let before = reads(conn, &tables).await;
    let ended = page::count_ended(conn, &["fill/q1", "fill/q2"], hour).await.unwrap();
    assert_eq!(ended["fill/q1"], page::EndedTasks { tried: 120, failed: 60 });
    let failed = page::count_failed(conn, &[queue], hour).await.unwrap();
    assert_eq!(failed.iter().map(|row| row.number).sum::<i64>(), page::FAILURES_READ);
    for (table, (scans, rows)) in reads(conn, &tables).await {
        let (scans_before, rows_before) = before.get(&table).copied().unwrap_or_default();
        assert!(scans == scans_before && rows - rows_before <= 2_000, "{table}: {scans} scans, {rows} rows");
    }
}

/// Statements that run in sessions of the pool.
const COLD: [&str; 47] = [
    "list_of_pending",
    "list_of_claimed",
    "list_of_named",
    "skip_dependency_log",
    "read_dependency_log",
    "settle_dependencies",
    "publish_groups",
    "list_group",
    "change_priority",
    "purge_tasks",
    "list_due_claims",
    "list_slow_claims",
    "end_overdue",
    "resolve_run of one",
    "resolve_run of many",
    "claim_task",
    "load_tasks",
    "get_counts",
    "sequence_events",
    "read_events",
    "advance_marks",
    "show_due_messages",
    "count_hidden_messages",
    "page_queues",
    "page_oldest",
    "page_hidden",
    "page_claims",
    "page_claims of one",
    "page_holders",
    "page_ended",
    "page_ended of one",
    "page_failures",
    "page_waiting",
    "page_members",
    "page_tasks",
    "page_tasks pending",
    "page_tasks of group",
    "page_group_tasks",
    "page_needs",
    "page_definitions",
    "page_edges",
    "page_workers",
    "page_worker",
    "page_named_workers",
    "page_problems",
    "page_failures_of_workers",
    "page_worker_sessions",
];

/// An hour in which each queue failed, and many failures before it.
const FAILURES: &str = "
    INSERT INTO queue_minutes (queue, step, minute, created, started, lost, reasons, ends, waits, runs, pending_most, claimed_most)
        SELECT q.id, 1, now() - n * interval '30 s', 3, 3, 0, '{0,1,3}', '{1,1,1}', '{}', '{}', 1, 1
        FROM task_queues q, generate_series(1, 60) n WHERE q.name LIKE 'fill/%';
    INSERT INTO failed_runs (queue, resolved, seq, run, state, reason, worker_group, worker_id, final, blocks)
        SELECT q.id, now() - n * interval '100 ms', n, 0, 4, 1, 'g', 'w' || n % 20, true, false
        FROM task_queues q, generate_series(1, 20000) n WHERE q.name LIKE 'fill/%';";

async fn fill_with_what_is_due(filler: &mut PgConnection) {
    fill(filler).await;
    run_sql(&mut *filler, FAILURES).await;
    events::sequence(filler, Sequenced::default()).await.unwrap();
    let due = "UPDATE claims SET taken_until = now(), complete_by = now() WHERE seq % 20 = 1;
        UPDATE task_definitions SET deadline = now() WHERE seq % 50 = 2;
        UPDATE due SET deadline = now() WHERE EXISTS (SELECT FROM unnest(seqs) s WHERE s % 50 = 2);
        UPDATE pending SET receipt = 1, dequeued = 1 + ord % 12, hidden_until = now() - interval '1 s' * (ord % 2),
            reserved_until = now() - interval '1 s' WHERE ord % 10 = 0;
        WITH gone AS (
            UPDATE due SET expires = now(), deadline = NULL WHERE ctid IN (
                SELECT x.ctid FROM due x JOIN task_definitions d ON d.seq = x.seqs[1] JOIN tasks t ON t.id = d.id
                WHERE t.state = 3 LIMIT 40) RETURNING seqs
        )
        UPDATE task_definitions SET expires = now()
        WHERE seq IN (SELECT unnest(seqs) FROM gone) AND id IN (SELECT id FROM tasks WHERE state = 3)";
    sqlx::raw_sql(due).execute(filler).await.unwrap();
}

#[tokio::test]
async fn passes_read_few_rows_of_full_tables() {
    let database = TestDatabase::create().await;
    let mut filler = database.connect().await;
    fill_with_what_is_due(&mut filler).await;
    let mut faults = measure(&database, &mut filler, &COLD, "without").await.faults;
    sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    faults.extend(measure(&database, &mut filler, &COLD, "with").await.faults);
    assert!(faults.is_empty(), "reads too much: {faults:#?}");
    database.finish().await;
}
