use std::collections::BTreeMap;

use chrono::TimeDelta;
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};
use tenure_api::problems::ProblemKind as Kind;
use tenure_api::problems::ProblemSeverity;
use tenure_api::states::ReasonResolved as Reason;
use tenure_api::states::SuspendedBy;

use super::*;
use crate::policy::pause::Paused;

const TASK: &str = "9HrBC1jMQ3KlZw4CssPUeQ";
const GROUP: &str = "yZ3B_2rBS5WUxDDuPPqkqg";

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn ago(seconds: i64) -> DateTime<Utc> {
    now() - TimeDelta::seconds(seconds)
}

fn queue() -> TaskQueueId {
    "acme/linux".parse().unwrap()
}

/// A queue with a task that has waited for two minutes, and an idle worker.
fn healthy() -> QueueFacts {
    QueueFacts {
        queue: queue(),
        runnable: 1,
        held: 0,
        pending: 1,
        oldest_runnable: Some(ago(120)),
        oldest_held: None,
        paused: None,
        has_worker: false,
        last_contact: Some(ago(5)),
        barred: None,
    }
}

fn of_queue(queue: QueueFacts) -> Facts {
    Facts { now: now(), queues: vec![queue], ..Facts::default() }
}

fn paused() -> Option<Paused> {
    Some(Paused { since: ago(600), by: "acme/ops".to_owned(), reason: Some("Xcode update".to_owned()), until: None })
}

fn barred(quarantined: i64, frozen: i64) -> Option<Barred> {
    Some(Barred { quarantined, frozen, since: ago(30), until: None, only: None })
}

fn ended(of: &[(Reason, i64)]) -> Ends {
    let count = |number| Count { number, since: ago(300) };
    let resolved = of.iter().map(|&(reason, number)| (reason, count(number))).collect();
    Ends { resolved, lost: None }
}

fn of_ends(recent: &[(Reason, i64)], before: &[(Reason, i64)]) -> Facts {
    let ends = QueueEnds { queue: queue(), recent: ended(recent), before: ended(before), examples: Vec::new() };
    Facts { now: now(), ends: vec![ends], ..Facts::default() }
}

fn lost(number: i64) -> Facts {
    let recent = Ends { resolved: BTreeMap::new(), lost: Some(Count { number, since: ago(60) }) };
    let ends = QueueEnds { queue: queue(), recent, before: Ends::default(), examples: Vec::new() };
    Facts { now: now(), ends: vec![ends], ..Facts::default() }
}

fn of_database(database: DatabaseFacts) -> Facts {
    Facts { now: now(), database, ..Facts::default() }
}

fn silent(seconds: i64) -> Facts {
    let server = SilentServer { name: "rack-1".to_owned(), beat: ago(seconds) };
    Facts { now: now(), silent_servers: vec![server], ..Facts::default() }
}

fn failing_for(seconds: i64) -> Facts {
    let pass = FailingPass { pass: "expiry", server: "rack-1".to_owned(), since: ago(seconds) };
    Facts { now: now(), failing_passes: vec![pass], ..Facts::default() }
}

fn blocked(tasks: i64) -> Facts {
    let group: TaskGroupId = GROUP.parse().unwrap();
    let required: TaskId = TASK.parse().unwrap();
    let reason = Reason::Failed;
    let blocked = Blocked { group, required, queue: queue(), reason, failed: ago(3_600), tasks, at_least: false };
    Facts { now: now(), blocked: vec![blocked], ..Facts::default() }
}

fn kinds(facts: &Facts) -> Vec<Kind> {
    find(facts).iter().map(|problem| problem.kind).collect()
}

#[test]
fn waiting_tasks_of_queue_have_these_problems() {
    let table = [
        (healthy(), vec![]),
        // Silent workers are gone; the last one has been for 61 seconds.
        (QueueFacts { last_contact: Some(ago(61)), ..healthy() }, vec![Kind::NoWorker]),
        (QueueFacts { last_contact: Some(ago(60)), ..healthy() }, vec![]),
        (QueueFacts { last_contact: None, ..healthy() }, vec![Kind::NoWorker]),
        // The task came later than the last contact.
        (QueueFacts { last_contact: Some(ago(600)), oldest_runnable: Some(ago(60)), ..healthy() }, vec![]),
        (QueueFacts { last_contact: None, has_worker: true, ..healthy() }, vec![]),
        (QueueFacts { last_contact: None, runnable: 0, oldest_runnable: None, ..healthy() }, vec![]),
        (QueueFacts { oldest_runnable: Some(ago(901)), ..healthy() }, vec![Kind::WaitsLong]),
        (QueueFacts { oldest_runnable: Some(ago(900)), ..healthy() }, vec![]),
        // The missing worker is the cause.
        (QueueFacts { oldest_runnable: Some(ago(901)), last_contact: None, ..healthy() }, vec![Kind::NoWorker]),
        (QueueFacts { held: 3, oldest_held: Some(ago(3_601)), ..healthy() }, vec![Kind::HeldLong]),
        (QueueFacts { held: 3, oldest_held: Some(ago(3_600)), ..healthy() }, vec![]),
        (
            QueueFacts { oldest_runnable: Some(ago(901)), oldest_held: Some(ago(3_601)), ..healthy() },
            vec![Kind::WaitsLong, Kind::HeldLong],
        ),
        // A paused queue starts nothing on purpose.
        (
            QueueFacts { paused: paused(), last_contact: None, oldest_held: Some(ago(9_999)), ..healthy() },
            vec![Kind::Paused],
        ),
        (QueueFacts { barred: barred(1, 0), last_contact: None, ..healthy() }, vec![Kind::Quarantined]),
        // Long waits need somebody even then.
        (
            QueueFacts { barred: barred(1, 1), oldest_runnable: Some(ago(901)), ..healthy() },
            vec![Kind::WaitsLong, Kind::Quarantined],
        ),
        (QueueFacts { barred: barred(0, 2), paused: paused(), ..healthy() }, vec![Kind::Paused, Kind::Quarantined]),
    ];
    for (number, (queue, expected)) in table.into_iter().enumerate() {
        assert_eq!(kinds(&of_queue(queue)), expected, "{number}");
    }
}

#[test]
fn ends_of_tasks_have_these_problems() {
    let (ok, bad, late) = (Reason::Completed, Reason::Failed, Reason::DeadlineExceeded);
    let table = [
        (of_ends(&[(ok, 18), (bad, 2)], &[]), vec![]),
        (of_ends(&[(ok, 17), (bad, 3)], &[]), vec![Kind::Fails]),
        (of_ends(&[(ok, 16), (bad, 3)], &[]), vec![]),
        (of_ends(&[(ok, 17), (Reason::ClaimExpired, 3)], &[]), vec![Kind::Fails]),
        // Canceled tasks tell nothing.
        (of_ends(&[(ok, 17), (Reason::Canceled, 30), (bad, 3)], &[]), vec![Kind::Fails]),
        (of_ends(&[(ok, 1), (Reason::Canceled, 30)], &[]), vec![]),
        // More than three times the share of the hour before.
        (of_ends(&[(ok, 85), (bad, 15)], &[(ok, 95), (bad, 5)]), vec![]),
        (of_ends(&[(ok, 84), (bad, 16)], &[(ok, 95), (bad, 5)]), vec![Kind::Fails]),
        (of_ends(&[(bad, 20)], &[(ok, 100)]), vec![Kind::Fails]),
        (of_ends(&[(ok, 100), (late, 6)], &[]), vec![Kind::Deadlines]),
        (of_ends(&[(ok, 100), (late, 5)], &[]), vec![]),
        (lost(5), vec![Kind::LosesWorkers]),
        (lost(4), vec![]),
        (blocked(1), vec![Kind::Never]),
    ];
    for (number, (facts, expected)) in table.into_iter().enumerate() {
        assert_eq!(kinds(&facts), expected, "{number}");
    }
}

#[test]
fn installation_has_these_problems() {
    let mut facts = Facts { now: now(), ..Facts::default() };
    facts.without_scheduler = vec![(queue(), ago(11))];
    let vacant = facts.clone();
    facts.without_scheduler = vec![(queue(), ago(10))];
    let electing = facts;
    let refiling = |seconds| Facts { now: now(), refiling: vec![(queue(), ago(seconds))], ..Facts::default() };
    let minutes =
        |minutes| DatabaseFacts { oldest_transaction: TimeDelta::minutes(minutes), ..DatabaseFacts::default() };
    let all = DatabaseFacts {
        oldest_transaction: TimeDelta::minutes(11),
        replication: vec![("no standby is synchronous".to_owned(), ago(1))],
        disk_free: Some((0.07, ago(1))),
        skew: Some((TimeDelta::seconds(-7), ago(1))),
        live_logs: Some((0.95, ago(1))),
        artifacts: Some(ago(61)),
    };
    let table = [
        (Facts { now: now(), ..Facts::default() }, vec![]),
        (silent(16), vec![Kind::Server]),
        (silent(15), vec![]),
        (vacant, vec![Kind::Scheduler]),
        (electing, vec![]),
        (refiling(61), vec![Kind::Refile]),
        (refiling(60), vec![]),
        (failing_for(11), vec![Kind::Pass]),
        (failing_for(10), vec![]),
        (of_database(minutes(10)), vec![]),
        (of_database(minutes(11)), vec![Kind::Database]),
        (of_database(all), vec![Kind::Database; 6]),
    ];
    for (number, (facts, expected)) in table.into_iter().enumerate() {
        assert_eq!(kinds(&facts), expected, "{number}");
    }
}

/// Returns the only problem.
fn one(facts: &Facts) -> Problem {
    let mut problems = find(facts);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

#[test]
fn sentences_name_object_time_number_and_way_out() {
    let gone = one(&of_queue(QueueFacts {
        runnable: 84,
        last_contact: Some(ago(2_050)),
        oldest_runnable: Some(ago(3_000)),
        ..healthy()
    }));
    assert_eq!(
        gone.message,
        "acme/linux has had no worker for 34 m 10 s: 84 tasks can start; the last contact of one was 34 m 10 s ago."
    );
    assert!(gone.action.unwrap().contains("tenure-worker run --task-queue acme/linux"));
    assert_eq!((gone.since, gone.object.queue), (ago(2_050).into(), Some(queue())));
    let never_any = one(&of_queue(QueueFacts { last_contact: None, ..healthy() }));
    assert_eq!(
        never_any.message,
        "acme/linux has had no worker for 2 m: 1 task can start; no worker of this queue is known."
    );
    let until = Some(DateTime::from_timestamp(1_800_003_600, 0).unwrap());
    let pause = paused().map(|paused| Paused { until, ..paused });
    let paused = one(&of_queue(QueueFacts { paused: pause, pending: 12, ..healthy() }));
    assert_eq!(
        paused.message,
        "acme/linux is paused by acme/ops until 2027-01-15 09:00 UTC (12 tasks wait): Xcode update"
    );
    assert_eq!(paused.action.as_deref(), Some("Resume it: tenure queue resume acme/linux"));
    assert_eq!(paused.severity, ProblemSeverity::Known);
    let only = Barred { only: Some(("here".to_owned(), "mac-1".to_owned())), ..barred(1, 0).unwrap() };
    let quarantined = one(&of_queue(QueueFacts { barred: Some(only), ..healthy() }));
    assert_eq!(quarantined.message, "acme/linux: its only worker, here/mac-1, is quarantined; 1 task waits.");
    assert_eq!(quarantined.object.worker.as_deref(), Some("here/mac-1"));
    let never = one(&blocked(12));
    let message =
        format!("12 tasks of group {GROUP} can never run: they need task {TASK} of acme/linux, which failed 1 h ago.");
    assert_eq!(never.message, message);
    assert_eq!(never.object.group, Some(GROUP.parse().unwrap()));
}

#[test]
fn subscription_has_problem_from_half_its_limit_on() {
    let found = |suspended, age| {
        let (name, limit) = ("billing".to_owned(), TimeDelta::days(5));
        let error = Some("the receiver answered 500".to_owned());
        let subscription = SubscriptionFacts { name, suspended, age, limit, error };
        find(&Facts { now: now(), subscriptions: vec![subscription], ..Facts::default() }).pop()
    };
    assert_eq!(found(None, TimeDelta::hours(60)), None);
    let late = found(None, TimeDelta::hours(61)).unwrap();
    assert_eq!(
        late.message,
        "Subscription billing: its oldest undelivered event is 2 d 13 h old; at 5 d it is suspended. The last error: \
         the receiver answered 500."
    );
    assert_eq!((late.kind, late.severity), (Kind::Subscription, ProblemSeverity::Now));
    assert_eq!((late.object.subscription.as_deref(), late.since), (Some("billing"), ago(61 * 3_600).into()));
    for (by, why, way_out) in [
        (SuspendedBy::Age, "an event was not accepted in time", "then: tenure subscription resume billing"),
        (SuspendedBy::Gone, "its receiver wants no more events", "resume it: tenure subscription resume billing"),
        (SuspendedBy::EventsLost, "its next events are no longer retained", "resume billing --after latest"),
    ] {
        let suspended = found(Some((ago(90), by)), TimeDelta::zero()).unwrap();
        let start = format!("Subscription billing has been suspended for 1 m 30 s, because {why}: ");
        assert!(suspended.message.starts_with(&start), "{}", suspended.message);
        assert!(suspended.action.is_some_and(|action| action.ends_with(way_out)), "{by:?}");
        assert_eq!((suspended.kind, suspended.since), (Kind::Subscription, ago(90).into()));
    }
}

#[test]
fn failures_name_commonest_cause_and_worker() {
    let mut facts =
        of_ends(&[(Reason::Completed, 258), (Reason::Failed, 42)], &[(Reason::Completed, 99), (Reason::Failed, 1)]);
    let example = |code, worker: &str, number| Example {
        reason: Reason::Failed,
        exit_code: code,
        worker: Some(("here".to_owned(), worker.to_owned())),
        number,
    };
    facts.ends[0].examples = vec![
        example(Some(1), "linux-1", 38),
        example(Some(1), "linux-2", 2),
        example(None, "linux-2", 2),
        Example { reason: Reason::Canceled, ..example(None, "linux-3", 99) },
    ];
    let problem = one(&facts);
    assert_eq!(
        problem.message,
        "acme/linux: 42 of 300 tasks failed in the last 15 minutes (14 %; 1 % in the hour before); most often with exit \
         code 1, 40 of the last 42 failed runs; 38 of them on worker here/linux-1."
    );
    assert_eq!(problem.object.worker.as_deref(), Some("here/linux-1"));
    facts.ends[0].examples = vec![example(Some(1), "linux-1", 5), example(Some(1), "linux-2", 5)];
    let problem = one(&facts);
    assert_eq!(problem.object.worker, None, "no worker has most of them");
}

#[test]
fn urgent_problems_come_first_and_lists_are_bounded() {
    let mut facts = of_queue(QueueFacts { paused: paused(), ..healthy() });
    facts.silent_servers = vec![SilentServer { name: "rack-1".to_owned(), beat: ago(60) }];
    for n in 0..150 {
        let queue = format!("acme/q{n}").parse().unwrap();
        let (last_contact, oldest_runnable) = (Some(ago(100 + n)), Some(ago(900)));
        facts.queues.push(QueueFacts { queue, last_contact, oldest_runnable, ..healthy() });
    }
    let problems = find(&facts);
    let of = |kind| problems.iter().filter(|problem| problem.kind == kind).count();
    assert_eq!([of(Kind::Server), of(Kind::NoWorker), of(Kind::Paused)], [1, LISTED_MAX, 1]);
    assert_eq!((problems[0].kind, problems.last().unwrap().kind), (Kind::Server, Kind::Paused));
    // The oldest first.
    assert!(problems[1].since < problems[2].since, "{:?}", &problems[1..3]);
}

#[test]
fn first_problem_of_each_kind_precedes_others() {
    let of = |(n, kind): (usize, Kind)| problem(kind, ProblemObject::default(), ago(60), n.to_string(), "Look.");
    let all = [Kind::Server, Kind::Server, Kind::NoWorker, Kind::NoWorker, Kind::NoWorker, Kind::Paused, Kind::Paused];
    let sorted = each_kind_first(all.into_iter().enumerate().map(of).collect());
    let order: Vec<&str> = sorted.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(order, ["0", "2", "5", "1", "3", "4", "6"]);
    let many = Kind::ALL.into_iter().flat_map(|kind| [kind; LISTED_MAX]).enumerate().map(of).collect();
    let first: Vec<Kind> = each_kind_first(many).iter().take(Kind::ALL.len()).map(|problem| problem.kind).collect();
    assert_eq!(first, Kind::ALL);
}
