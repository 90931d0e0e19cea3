//! Specialised statements have the same effect as the general ones, in random states.

use tenure_api::states::Requires;
use tenure_domain::work::Holder;
use tenure_store::dependencies::{self, Edge, Wanted};
use tenure_store::hot::statement::{Run as _, Statement};
use tenure_store::transitions::create::{Guarded, Ids};
use tenure_store::transitions::{claim, create, end};

use crate::support::*;

const ROUNDS: usize = 60;
const QUEUES: [&str; 2] = ["same/one", "same/two"];

/// All contents without times and sequence numbers.
const CONTENTS: &str = "
    SELECT 'task ' || (to_jsonb(t) - 'seq')::text AS line FROM tasks t
    UNION ALL SELECT 'definition ' || concat_ws(' ', t.id = d.id, d.id, scheduler, project, d.task_group, deadline, expires,
                                                scopes, routes, tags, md5(definition))
    FROM task_definitions d JOIN tasks t ON t.seq = d.seq
    UNION ALL SELECT 'due ' || concat_ws(' ', t.id, x.deadline <= d.deadline, x.expires)
    FROM due x, unnest(x.seqs) AS s(seq) JOIN tasks t ON t.seq = s.seq JOIN task_definitions d ON d.seq = s.seq
    UNION ALL SELECT 'group ' || concat_ws(' ', id, scheduler, expires, sealed) FROM task_groups
    UNION ALL SELECT 'pending ' || concat_ws(' ', t.id = p.id, p.id, p.run, p.queue, p.priority, rank() OVER (ORDER BY p.ord),
                                             p.deadline, p.reason_created, p.retries_left, p.traits,
                                             p.hold, p.held_until - p.scheduled)
    FROM pending p JOIN tasks t ON t.seq = p.seq
    UNION ALL SELECT 'claim ' || concat_ws(' ', t.id = c.id, c.id, c.run, c.queue, rank() OVER (ORDER BY c.ord), c.deadline,
                                           c.reason_created, c.retries_left, c.taken_until - c.started, worker_group,
                                           worker_id)
    FROM claims c JOIN tasks t ON t.seq = c.seq
    UNION ALL SELECT 'run ' || concat_ws(' ', t.id, r.run, r.state, reason_created, reason_resolved, worker_group, worker_id,
                                         resolved > started)
    FROM runs r JOIN tasks t ON t.seq = r.seq
    UNION ALL SELECT 'event ' || concat_ws(' ', t.id, e.kind, e.run, e.retries, e.priority, n.taken_until - n.at)
    FROM outbox_new n, unnest(n.kinds, n.seqs, n.runs, n.retries_left, n.priorities) AS e(kind, seq, run, retries, priority)
    JOIN tasks t ON t.seq = e.seq
    UNION ALL SELECT 'events ' || COALESCE(sum(events), 0) FROM outbox_new
    UNION ALL SELECT 'count ' || concat_ws(' ', d.queue, sum(d.pending), sum(d.claimed), COALESCE(sum(d.delayed), 0))
    FROM outbox_new n, unnest(n.queues, n.pending, n.claimed, n.delayed) AS d(queue, pending, claimed, delayed) GROUP BY d.queue";

/// Returns the results of a statement and the contents afterwards.
async fn effect(conn: &mut PgConnection, statement: impl AsyncFnOnce(&mut PgConnection) -> Vec<String>) -> Effect {
    let mut transaction = conn.begin().await.unwrap();
    let mut answers = statement(&mut transaction).await;
    answers.sort();
    let mut contents: Vec<String> = sqlx::query_scalar(CONTENTS).fetch_all(&mut *transaction).await.unwrap();
    contents.sort();
    transaction.rollback().await.unwrap();
    (answers, contents)
}

type Effect = (Vec<String>, Vec<String>);

fn described(stored: &[create::Created]) -> Vec<String> {
    stored.iter().map(|row| format!("{} {} {} {}", row.member, row.waits, row.held, row.ruled)).collect()
}

async fn effect_of(conn: &mut PgConnection, statement: &Statement) -> Effect {
    effect(conn, async |conn| described(&create::decode(&conn.run_one(statement).await.unwrap()).unwrap().stored)).await
}

async fn effect_of_general(conn: &mut PgConnection, members: &[create::Member<'_>]) -> Effect {
    effect(conn, async |conn| described(&create::create_any(conn, members, Guarded::No).await.unwrap().stored)).await
}

fn assert_same(case: &str, (answers, contents): &Effect, (general_answers, general_contents): &Effect) {
    assert_eq!(answers, general_answers, "{case}");
    let only = |of: &[String], not: &[String]| -> Vec<String> {
        of.iter().filter(|line| !not.contains(line)).cloned().collect()
    };
    let (ours, theirs) = (only(contents, general_contents), only(general_contents, contents));
    assert!(ours.is_empty() && theirs.is_empty(), "{case}: {ours:#?} instead of {theirs:#?}");
}

fn below(limit: usize) -> usize {
    usize::try_from(Uuid::new_v4().as_u128() % limit as u128).unwrap()
}

/// Tasks in all kinds of states.
struct World {
    database: TestDatabase,
    queue: Queue,
    conn: PgConnection,
    tasks: Vec<TaskId>,
    keys: [i32; 2],
}

async fn world() -> World {
    let (database, queue) = start().await;
    let mut tasks = Vec::new();
    for n in 0..60 {
        let priority = ["lowest", "low", "highest"][below(3)];
        let fields = json!({"priority": priority, "retries": below(2), "extra": {"n": n}});
        let task = new_task(QUEUES[below(2)], &fields);
        queue.create(&task).await.unwrap();
        tasks.push(task.id);
        match below(4) {
            0 => {}
            1 => {
                let held = queue.claim_work(task.queue.as_str(), "worker", 1, std::time::Duration::ZERO).await.unwrap();
                held.delivery.delivered();
            }
            _ => {
                for granted in
                    queue.claim_work(task.queue.as_str(), "worker", 1, std::time::Duration::ZERO).await.unwrap().claims
                {
                    let report = if below(2) == 0 {
                        Report::Completed
                    } else {
                        Report::Exception(ExceptionReason::WorkerShutdown)
                    };
                    queue.report(granted.task.id, granted.run, report).await.unwrap();
                }
            }
        }
    }
    let keys = [queue.key(QUEUES[0]).await, queue.key(QUEUES[1]).await];
    let conn = database.connect_hot().await;
    World { database, queue, conn, tasks, keys }
}

impl World {
    async fn run(&self, sql: &str) {
        run_sql(self.database.pool(), sql).await;
    }

    /// Creates a group for each scheduler.
    async fn create_groups(&self, schedulers: &[&str]) -> Vec<TaskId> {
        let mut groups = Vec::new();
        for scheduler in schedulers {
            let group = new_task(QUEUES[0], &json!({})).id;
            let fields = json!({"taskGroupId": group, "schedulerId": scheduler});
            self.queue.create(&new_task(QUEUES[0], &fields)).await.unwrap();
            groups.push(group);
        }
        groups
    }

    /// Its policy sends the tasks of the queue to the general statement.
    async fn delay_second_queue(&self) {
        self.run(&format!("UPDATE task_queues SET traits = 1, delay = 60 WHERE id = {}", self.keys[1])).await;
    }

    fn any_task(&self) -> TaskId {
        self.tasks[below(self.tasks.len())]
    }

    /// Returns the key of the queue; once in `rarity` times the key of the other queue, as after a
    /// failover.
    fn key(&self, queue: usize, rarity: usize) -> i32 {
        self.keys[if below(rarity) == 0 { 1 - queue } else { queue }]
    }

    async fn end(self) {
        drop(self.conn);
        self.queue.stop().await;
        self.database.finish().await;
    }
}

/// Every third round has one member, because a statement exists for that.
fn members_of(round: usize, most: usize) -> usize {
    if round.is_multiple_of(3) { 1 } else { 1 + below(most) }
}

fn members(new: &[(NewTask, i32)]) -> Vec<create::Member<'_>> {
    new.iter().map(|(task, queue)| create::Member { task, queue: *queue, waits: false, ruled: false }).collect()
}

/// Changes the times of a task, in the cases 0 and 1.
fn distort(task: &mut NewTask, case: usize) {
    match case {
        0 => task.created -= TimeDelta::days(1),
        1 => task.deadline = task.created,
        _ => {}
    }
}

#[tokio::test]
async fn create_statements_have_same_effect() {
    let mut world = world().await;
    // Tasks may be named after these groups.
    let groups = world.create_groups(&["-", "another", "-", "another"]).await;
    world.run(&format!("UPDATE task_groups SET sealed = now() WHERE id = '{}'", groups[0].uuid())).await;
    world.delay_second_queue().await;
    for round in 0..ROUNDS {
        let mut new: Vec<(NewTask, i32)> = Vec::new();
        for _ in 0..members_of(round, 7) {
            let queue = below(2);
            let fields = json!({"extra": {"size": "x".repeat(below(3_000))}, "retries": below(5)});
            let id = match below(5) {
                0 => world.any_task(),
                1 => groups[below(groups.len())],
                _ => new_task(QUEUES[queue], &fields).id,
            };
            if new.iter().any(|(task, _)| task.id == id) {
                continue;
            }
            let mut task = new_task_with_id(id, QUEUES[queue], &fields);
            distort(&mut task, below(8));
            new.push((task, world.key(queue, 8)));
        }
        // Members of the general statement come last.
        new.sort_by_key(|(task, key)| groups.contains(&task.id) || *key == world.keys[1]);
        let members = members(&new);
        let ordinary = effect(&mut world.conn, async |conn| {
            described(&create::create(conn, &members, Guarded::No).await.unwrap().stored)
        })
        .await;
        let general = effect_of_general(&mut world.conn, &members).await;
        let ids: Vec<String> = new.iter().map(|(task, key)| format!("{} in {key}", task.id.uuid())).collect();
        assert_same(&format!("{ids:?}"), &ordinary, &general);
    }
    world.end().await;
}

/// One submission: tasks of one group, some of which cannot be stored.
fn submission(world: &World, group: TaskId) -> Vec<(NewTask, i32)> {
    let place = below(2);
    let mut new: Vec<(NewTask, i32)> = Vec::new();
    for _ in 0..=below(3) {
        let fields = json!({"taskGroupId": group, "extra": {"size": "x".repeat(below(3_000))}, "retries": below(5)});
        let id = match below(10) {
            0 => world.any_task(),
            1 => group,
            _ => new_task(QUEUES[place], &fields).id,
        };
        if new.iter().any(|(task, _)| task.id == id) {
            continue;
        }
        let mut task = new_task_with_id(id, QUEUES[place], &fields);
        match below(16) {
            2 => task.deadline += TimeDelta::days(9),
            case => distort(&mut task, case),
        }
        new.push((task, world.key(place, 16)));
    }
    new
}

#[tokio::test]
async fn group_statement_stores_all_as_general_or_none() {
    let mut world = world().await;
    let groups = world.create_groups(&["-", "another", "-", "-"]).await;
    // One is sealed, one expires too early.
    world.run(&format!("UPDATE task_groups SET sealed = now() WHERE id = '{}'", groups[0].uuid())).await;
    world.run(&format!("UPDATE task_groups SET expires = now() WHERE id = '{}'", groups[2].uuid())).await;
    world.delay_second_queue().await;
    let (mut stored, mut left) = (0, 0);
    for _ in 0..2 * ROUNDS {
        let (group, is_new) = match below(6) {
            0 => (world.any_task(), false),
            1 | 2 => (new_task(QUEUES[0], &json!({})).id, true),
            _ => (groups[below(groups.len())], false),
        };
        let new = submission(&world, group);
        let members = members(&new);
        let statement = create::statement_of_all(&members, Ids::Given).unwrap();
        let own = effect_of(&mut world.conn, &statement).await;
        let general = effect_of_general(&mut world.conn, &members).await;
        let ids: Vec<String> = new.iter().map(|(task, key)| format!("{} in {key}", task.id.uuid())).collect();
        let case = format!("{ids:?} of {}", group.uuid());
        if own.0.is_empty() {
            left += 1;
            let nothing = effect(&mut world.conn, async |_| Vec::new()).await;
            assert_same(&case, &own, &nothing);
            let is_plain = is_new && members.iter().all(|member| member.queue == world.keys[0]);
            assert!(!is_plain || general.0.len() < members.len(), "{case}: the general statement stores it");
        } else {
            stored += 1;
            assert_eq!(own.0.len(), members.len(), "{case}");
            assert_same(&case, &own, &general);
        }
    }
    assert!(stored > 0 && left > 0, "{stored} stored, {left} left");
    world.end().await;
}

#[tokio::test]
async fn claim_statements_have_same_effect() {
    let mut world = world().await;
    let unsized_runs = "SELECT count(*) FROM pending p JOIN task_definitions d ON d.seq = p.seq
         WHERE p.run = 0 AND p.bytes IS DISTINCT FROM octet_length(d.definition)";
    assert_eq!(number(world.database.pool(), unsized_runs).await, 0);
    // Hidden or reserved by pollers, past their deadline, or without a size.
    sqlx::raw_sql(
        "UPDATE task_queues SET polled = true WHERE name = 'same/one';
         UPDATE pending p SET hidden_until = now() + interval '1 h', receipt = 1, dequeued = 1,
             reserved_until = CASE WHEN ord % 3 = 0 THEN now() + interval '1 h' END
         FROM task_queues q WHERE q.id = p.queue AND q.polled AND ord % 2 = 0;
         UPDATE pending SET deadline = now() - interval '1 s' WHERE ord % 5 = 0;
         UPDATE pending SET bytes = NULL WHERE ord % 3 = 1",
    )
    .execute(world.database.pool())
    .await
    .unwrap();
    let workers =
        [claim::Worker { group: "g", id: "a", session: None }, claim::Worker { group: "g", id: "b", session: None }];
    for _ in 0..ROUNDS {
        let place = below(2);
        let want = claim::Want {
            queue: world.keys[place],
            name: QUEUES[if below(10) == 0 { 1 - place } else { place }],
            epoch: i64::try_from(below(2)).unwrap(),
            marks: std::array::from_fn(|_| i64::try_from(below(60)).unwrap()),
            slots: (0..=below(8)).map(|_| 1 + i32::try_from(below(2)).unwrap()).collect(),
        };
        let describe = |rows: Vec<claim::Claimed>| {
            rows.iter()
                .map(|row| {
                    let claim::Claimed { worker, id, run, queue, priority, ord, .. } = row;
                    format!("{worker} {id} {run} {queue} {priority} {ord} {}", row.made)
                })
                .collect::<Vec<String>>()
        };
        let wants = std::slice::from_ref(&want);
        let ordinary = effect(&mut world.conn, async |conn| {
            describe(claim::claim(conn, wants, &workers, LEASE, Uuid::nil()).await.unwrap())
        })
        .await;
        let general = effect(&mut world.conn, async |conn| {
            describe(claim::claim_of_many(conn, wants, &workers, LEASE, Uuid::nil()).await.unwrap())
        })
        .await;
        assert_same(&format!("{want:?}"), &ordinary, &general);
    }
    world.run("UPDATE pending p SET deadline = d.deadline FROM task_definitions d WHERE d.seq = p.seq").await;
    world.end().await;
}

#[tokio::test]
async fn end_statements_have_same_effect() {
    let mut world = world().await;
    let claimed: Vec<Uuid> =
        sqlx::query_scalar("SELECT id FROM claims").fetch_all(world.database.pool()).await.unwrap();
    for round in 0..ROUNDS {
        let mut members: Vec<end::Member> = Vec::new();
        let mut holders = Vec::new();
        for _ in 0..members_of(round, 11) {
            let id = if below(2) == 0 { claimed[below(claimed.len())] } else { world.any_task().uuid() };
            let report = [
                Report::Completed,
                Report::FailedForGood,
                Report::Exception(ExceptionReason::MalformedPayload),
                Report::Exception(ExceptionReason::InternalError),
            ][below(4)];
            if members.iter().all(|member| member.id != id) {
                members.push(end::Member::new(id, i16::try_from(below(2)).unwrap(), Ending::Reported(report)));
                holders.push((below(3) > 0).then(|| Holder {
                    queue: QUEUES[below(2)].parse().unwrap(),
                    group: "group".into(),
                    id: ["worker", "other"][below(2)].into(),
                }));
            }
        }
        let describe = |rows: Vec<end::Resolved>| {
            rows.iter()
                .map(|row| format!("{} {} {} {} {:?}", row.member(), row.id, row.run, row.queue, row.next_reason))
                .collect::<Vec<String>>()
        };
        let holders: Vec<Option<&Holder>> = holders.iter().map(Option::as_ref).collect();
        let ordinary =
            effect(&mut world.conn, async |conn| describe(end::end_held(conn, &members, &holders).await.unwrap()))
                .await;
        let general =
            effect(&mut world.conn, async |conn| describe(end::end_any(conn, &members, &holders).await.unwrap())).await;
        assert_same(&format!("{members:?} {holders:?}"), &ordinary, &general);
    }
    world.end().await;
}

/// Creates tasks and their edges by general statements.
async fn create_with_edges(conn: &mut PgConnection, new: &[(NewTask, i32)]) -> Vec<create::Created> {
    let any_end = |task: &NewTask| task.requires == Requires::AllResolved;
    let wanted: Vec<Wanted<'_>> =
        new.iter().map(|(task, _)| Wanted { required: &task.dependencies, any_end: any_end(task) }).collect();
    let required = dependencies::list_required(conn, &wanted).await.unwrap();
    let of = |place: usize| required.iter().filter(move |row| row.member == place);
    let valid: Vec<usize> = (0..new.len())
        .filter(|&place| of(place).all(|row| row.expires.is_some_and(|expires| expires >= new[place].0.deadline)))
        .collect();
    let members: Vec<create::Member<'_>> = valid
        .iter()
        .map(|&place| {
            let (task, queue) = &new[place];
            create::Member { task, queue: *queue, waits: of(place).any(|row| !row.satisfied), ruled: false }
        })
        .collect();
    let mut stored = create::create_any(conn, &members, Guarded::No).await.unwrap().stored;
    let mut edges = Vec::new();
    for row in &mut stored {
        row.member = valid[row.member];
        let (task, _) = &new[row.member];
        edges.extend(of(row.member).map(|required| Edge {
            required: required.seq.unwrap(),
            dependent: task.id.uuid(),
            any_end: any_end(task),
            satisfied: required.satisfied,
            fixed: false,
        }));
    }
    dependencies::insert(conn, &edges).await.unwrap();
    stored
}

#[tokio::test]
async fn creates_of_dependents_have_same_effect() {
    let mut world = world().await;
    // One accepts tasks, one is sealed, one has another scheduler.
    let groups = world.create_groups(&["-", "-", "another"]).await;
    world.run(&format!("UPDATE task_groups SET sealed = now() WHERE id = '{}'", groups[1].uuid())).await;
    world.run("UPDATE task_groups SET expires = expires + interval '2 days'").await;
    for round in 0..ROUNDS {
        let mut new: Vec<(NewTask, i32)> = Vec::new();
        for _ in 0..members_of(round, 7) {
            let queue = below(2);
            let mut required: Vec<TaskId> = (0..=below(3)).map(|_| world.any_task()).collect();
            if below(8) == 0 {
                required.push(TaskId::from_random(tenure_store::secrets::random()));
            }
            required.sort_unstable();
            required.dedup();
            let group = groups[if below(4) == 0 { below(3) } else { 0 }];
            let requires = ["all-completed", "all-resolved"][below(2)];
            let fields =
                json!({"taskGroupId": group, "dependencies": required, "requires": requires, "retries": below(5)});
            let mut task = new_task(QUEUES[queue], &fields);
            distort(&mut task, below(8));
            if below(8) == 0 {
                task.id = world.any_task();
            }
            if task.dependencies.contains(&task.id.uuid()) || new.iter().any(|(other, _)| other.id == task.id) {
                continue;
            }
            new.push((task, world.key(queue, 8)));
        }
        if new.is_empty() {
            continue;
        }
        let members = members(&new);
        assert!(new.iter().all(|(task, _)| create::is_ordinary_dependent(task)));
        let statement = create::statement_of_dependents(&members);
        let at_once = effect_of(&mut world.conn, &statement).await;
        let general = effect(&mut world.conn, async |conn| described(&create_with_edges(conn, &new).await)).await;
        assert_same(&format!("{new:#?}"), &at_once, &general);
    }
    world.end().await;
}
