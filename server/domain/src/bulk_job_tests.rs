use chrono::TimeDelta;
use serde_json::{Value, json};
use tenure_api::errors::ErrorCode;
use tenure_api::ids::RunId;
use tenure_api::states::{ReasonCreated, ReasonResolved};

use super::*;
use crate::lifecycle::{Outcome, RUNS_MAX};
use crate::policy::ending::{Allowance, RetryRule};
use crate::task::{EndedRun, Last, OpenRun, Tenancy};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
}

fn id(number: u128) -> TaskId {
    TaskId::from_random(number.to_be_bytes())
}

fn read(body: &Value) -> Result<NewJob, String> {
    let sent: StartJobRequest = serde_json::from_str(&body.to_string()).map_err(|error| error.to_string())?;
    NewJob::from_request(&sent).map_err(|refused| match refused {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })
}

fn open(run: u16) -> OpenRun {
    OpenRun { run: RunId::new(run).unwrap(), reason: ReasonCreated::Scheduled, scheduled: at(0) }
}

fn task(last: Last, ended: Vec<EndedRun>) -> Task {
    Task {
        id: id(1),
        seq: 1,
        queue: "acme/linux".parse().unwrap(),
        scheduler: "-".to_owned(),
        project: "none".to_owned(),
        group: id(1),
        priority: Priority::Low,
        deadline: at(100),
        expires: at(200),
        retries_left: 5,
        last,
        ended,
    }
}

fn resolved(state: RunState, reason: ReasonResolved) -> Task {
    let ended = EndedRun { run: open(0), state, reason, ended_by: None, resolved: at(5), tenancy: None };
    task(Last::Ended, vec![ended])
}

fn stored_job() -> Job {
    Job {
        id: id(1),
        seq: 1,
        client_id: "ann".to_owned(),
        order: None,
        which: None,
        found: 1,
        more: false,
        started: at(0),
        ended: None,
        stopped_by: None,
        error: None,
        progress: Progress::default(),
    }
}

fn running_job(which: Which) -> RunningJob {
    RunningJob {
        id: id(1),
        client_id: "ann".to_owned(),
        trace_id: None,
        audit: 1,
        order: Order::Cancel,
        which,
        found: 1,
        started: at(0),
        newest: 1,
        progress: Progress::default(),
    }
}

#[test]
fn request_has_one_kind_of_tasks_and_fitting_priority() {
    let ids = [id(1), id(2)];
    let named = |order| Ok(NewJob { order, which: Which::Tasks(ids.to_vec()) });
    let twice = [ids[0], ids[1], ids[0]];
    assert_eq!(read(&json!({"action": "cancel", "taskIds": twice})), named(Order::Cancel));
    let raised = json!({"action": "priority", "priority": "high", "taskIds": ids});
    assert_eq!(read(&raised), named(Order::Priority(Priority::High)));
    let many: Vec<TaskId> = (0..1_001).map(id).collect();
    for (wrong, part) in [
        (json!({"action": "cancel"}), "`filter` or `taskIds` is missing"),
        (json!({"action": "cancel", "taskIds": []}), "1 to 1,000"),
        (json!({"action": "cancel", "taskIds": many}), "1 to 1,000"),
        (json!({"action": "cancel", "taskIds": ids, "filter": {"state": "pending"}}), "must not both be given"),
        (json!({"action": "priority", "taskIds": ids}), "`priority` is missing"),
        (json!({"action": "rerun", "priority": "low", "taskIds": ids}), "leave it out"),
        (json!({"action": "cancel", "filter": {}}), "at least one condition"),
        (json!({"action": "cancel", "filter": {"tag": "x"}}), "`filter`: `tag` must be"),
        (json!({"action": "rerun", "filter": {"taskQueueId": "acme/linux"}}), "completed, failed or exception"),
        (json!({"action": "rerun", "filter": {"state": "running"}}), "completed, failed or exception"),
    ] {
        let refused = read(&wrong).unwrap_err();
        assert!(refused.contains(part), "{wrong}: {refused}");
    }
    for wrong in
        [json!({"action": "frob"}), json!({"action": "cancel", "filter": []}), json!({"action": "cancel", "x": 1})]
    {
        assert!(read(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn rerun_takes_a_filter_of_resolved_tasks() {
    let sent = json!({"taskQueueId": "acme/linux", "state": "failed", "since": "2027-01-15T08:00:00.000Z"});
    let job = read(&json!({"action": "rerun", "filter": sent})).unwrap();
    let Which::Filter(filter) = job.which else { panic!("a filter was sent") };
    assert_eq!((filter.task_queue_id.as_deref(), filter.state), (Some("acme/linux"), Some(ListState::Failed)));
    assert_eq!(filter.since, Some(at(0)));
}

#[test]
fn changed_task_matches_no_longer() {
    let failed = TaskFilter { state: Some(ListState::Failed), ..TaskFilter::default() };
    let of_state = |state| TaskFilter { state: Some(state), ..TaskFilter::default() };
    let ended = resolved(RunState::Failed, ReasonResolved::Failed);
    assert!(still_matches(&failed, &ended, at(10)));
    assert!(!still_matches(&failed, &ended, at(4)), "it failed after the job began");
    assert!(!still_matches(&failed, &task(Last::Pending(open(1)), ended.ended.clone()), at(10)), "it was rerun");
    let reason = TaskFilter { reason: Some("canceled".to_owned()), ..TaskFilter::default() };
    assert!(!still_matches(&reason, &ended, at(10)));
    assert!(still_matches(&reason, &resolved(RunState::Exception, ReasonResolved::Canceled), at(10)));
    for (state, task) in [
        (ListState::Unscheduled, task(Last::Unscheduled, Vec::new())),
        (ListState::Pending, task(Last::Pending(open(0)), Vec::new())),
        (ListState::Held, task(Last::Pending(open(0)), Vec::new())),
        (ListState::Completed, resolved(RunState::Completed, ReasonResolved::Completed)),
        (ListState::Exception, resolved(RunState::Exception, ReasonResolved::ClaimExpired)),
    ] {
        assert!(still_matches(&of_state(state), &task, at(10)));
        assert!(!still_matches(&of_state(ListState::Running), &task, at(10)));
    }
}

#[test]
fn task_that_another_worker_has_matches_no_longer() {
    let tenancy = |id: &str| Tenancy {
        worker_group: "rack".to_owned(),
        worker_id: id.to_owned(),
        started: at(1),
        taken_until: at(9),
    };
    let mut ended = resolved(RunState::Failed, ReasonResolved::Failed);
    ended.ended[0].tenancy = Some(tenancy("one"));
    let of_worker = TaskFilter { worker: Some("rack/one".to_owned()), ..TaskFilter::default() };
    for (task, matches) in [
        (task(Last::Running(open(0), tenancy("one")), Vec::new()), true),
        (task(Last::Running(open(0), tenancy("two")), Vec::new()), false),
        (task(Last::Pending(open(1)), ended.ended.clone()), false),
        (ended, true),
        (task(Last::Unscheduled, Vec::new()), false),
    ] {
        assert_eq!(still_matches(&of_worker, &task, at(10)), matches, "{task:?}");
    }
}

#[test]
fn verdict_depends_on_state_and_deadline() {
    let left = Allowance { retries_left: 0, free_runs: 0, requeues: 0, losses: 0 };
    let life = |state| Life { state, rule: RetryRule::NONE, left };
    let run = |number| RunId::new(number).unwrap();
    let (pending, running) = (State::Pending(run(0), None), State::Running(run(0)));
    let failed = State::Resolved(run(0), Outcome::Failed);
    let worn = State::Resolved(run(RUNS_MAX - 1), Outcome::Failed);
    let rerun = Event::Rerun { retries: 3, hold: None };
    let change = |retries_left| Verdict::Change { retries_left };
    let used_up = Verdict::Refused(Refusal::RunsUsedUp);
    for (state, event, in_time, overdue) in [
        (State::Unscheduled, Event::Cancel, change(0), Verdict::Overdue),
        (pending, Event::Cancel, change(0), Verdict::Overdue),
        (running, Event::Cancel, change(0), Verdict::Overdue),
        (failed, Event::Cancel, Verdict::Unchanged, Verdict::Unchanged),
        (pending, rerun, Verdict::Unchanged, Verdict::Unchanged),
        (running, rerun, Verdict::Unchanged, Verdict::Unchanged),
        (failed, rerun, change(3), Verdict::Overdue),
        (worn, rerun, used_up, Verdict::Overdue),
    ] {
        assert_eq!(judge(life(state), event, false), in_time, "{state:?} {event:?}");
        assert_eq!(judge(life(state), event, true), overdue, "{state:?} {event:?}");
    }
    let same = task(Last::Pending(open(0)), Vec::new());
    assert_eq!(why_unmoved(&same, Priority::Low, false), Verdict::Unchanged);
    assert_eq!(why_unmoved(&same, Priority::Low, true), Verdict::Overdue);
    let resolved_before = Verdict::Refused(Refusal::AlreadyResolved);
    assert_eq!(why_unmoved(&same, Priority::High, false), resolved_before);
    let ended = resolved(RunState::Failed, ReasonResolved::Failed);
    assert_eq!(why_unmoved(&ended, Priority::Low, false), resolved_before);
}

#[test]
fn listed_refusals_are_bounded() {
    let mut progress = Progress::default();
    for _ in 0..REFUSED_MAX + 5 {
        let message = "no".to_owned();
        progress.refuse(RefusedTask { task_id: id(1), code: ErrorCode::RequestConflict, message });
    }
    assert_eq!((progress.refused as usize, progress.refusals.len()), (REFUSED_MAX + 5, REFUSED_MAX));
}

#[test]
fn state_follows_from_the_end() {
    let running = stored_job();
    let completed = Job { ended: Some(at(0) + TimeDelta::seconds(9)), ..running.clone() };
    let stopped = Job { stopped_by: Some("bob".to_owned()), ..completed.clone() };
    let failed = Job { error: Some("the client is disabled".to_owned()), ..completed.clone() };
    let states = [running, completed, stopped, failed].map(|job| job.state());
    assert_eq!(states, [JobState::Running, JobState::Completed, JobState::Stopped, JobState::Failed]);
}

#[test]
fn unreadable_job_fails_unless_it_has_ended() {
    let running = stored_job();
    let completed = Job { ended: Some(at(9)), ..running.clone() };
    let failed = Job { error: Some("the client is disabled".to_owned()), ..completed.clone() };
    let read = |job: &Job| {
        let job = job.clone().unreadable("it is unknown".to_owned());
        (job.state(), job.error)
    };
    assert_eq!(read(&running), (JobState::Failed, Some("it is unknown".to_owned())));
    assert_eq!(read(&completed), (JobState::Completed, None));
    assert_eq!(read(&failed), (JobState::Failed, failed.error.clone()));
}

#[test]
fn job_with_a_filter_leaves_out_later_tasks() {
    let old = task(Last::Unscheduled, Vec::new());
    let new = Task { seq: 2, ..old.clone() };
    let filtered = running_job(Which::Filter(Box::default()));
    assert!(filtered.covers(&old) && !filtered.covers(&new));
    assert!(running_job(Which::Tasks(vec![id(1)])).covers(&new));
}

#[test]
fn slice_that_always_fails_ends_its_job() {
    for (failure, most) in [(SliceFailure::Fault, FAULTS_MAX), (SliceFailure::Delay, DELAYS_MAX)] {
        let after = |times: u32| (0..times).fold(SliceFailures::default(), |all, _| all.count(3, failure));
        assert_eq!(after(most - 1).give_up(), None, "{failure:?}");
        assert!(after(most).give_up().is_some_and(|why| why.contains(&format!("failed {most} times"))), "{failure:?}");
        assert_eq!(after(most - 1).count(4, failure).give_up(), None, "the slice before was done: {failure:?}");
    }
}
