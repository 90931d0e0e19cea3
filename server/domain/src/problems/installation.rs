//! Problems of servers, passes and the database.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::ids::TaskQueueId;
use tenure_api::problems::{Problem, ProblemKind, ProblemObject};

use super::facts::{Facts, FailingPass, SilentServer};
use super::problem;
use crate::verdict::span;

/// Older transactions keep dead rows for so long that claims become slower.
const OLD_TRANSACTION: TimeDelta = TimeDelta::minutes(10);
/// A started server beats each second, and a database may be away for some.
const BEAT_WITHIN: TimeDelta = TimeDelta::seconds(15);
/// A takeover takes a few seconds.
const SCHEDULER_WITHIN: TimeDelta = TimeDelta::seconds(10);
const REFILED_WITHIN: TimeDelta = TimeDelta::seconds(60);
/// A failed pass is retried each second.
const PASS_WITHIN: TimeDelta = TimeDelta::seconds(10);

pub(super) fn find(facts: &Facts) -> Vec<Problem> {
    let mut problems = database(facts);
    let is_over = |since: DateTime<Utc>, limit: TimeDelta| facts.now - since > limit;
    let silent = facts.silent_servers.iter().filter(|server| is_over(server.beat, BEAT_WITHIN));
    problems.extend(silent.map(|server| silent_server(server, facts)));
    let vacant = facts.without_scheduler.iter().filter(|(_, since)| is_over(*since, SCHEDULER_WITHIN));
    problems.extend(vacant.map(|(queue, since)| {
        let time = span(facts.now - *since);
        let message = format!("{queue} has had no scheduler for {time}: its tasks are assigned to no worker.");
        let action = "Start a server whose --scheduler-weight is above 0.";
        problem(ProblemKind::Scheduler, of_queue(queue), *since, message, action)
    }));
    let refiling = facts.refiling.iter().filter(|(_, since)| is_over(*since, REFILED_WITHIN));
    problems.extend(refiling.map(|(queue, since)| {
        let time = span(facts.now - *since);
        let message = format!("{queue}: its changed policy has been applied to its tasks for {time} and is not done.");
        let action = "Look for an old transaction in pg_stat_activity, and for errors of the pass refile in the log.";
        problem(ProblemKind::Refile, of_queue(queue), *since, message, action)
    }));
    let failing = facts.failing_passes.iter().filter(|pass| is_over(pass.since, PASS_WITHIN));
    problems.extend(failing.map(|pass| failing_pass(pass, facts)));
    problems
}

fn of_queue(queue: &TaskQueueId) -> ProblemObject {
    ProblemObject { queue: Some(queue.clone()), ..ProblemObject::default() }
}

fn silent_server(server: &SilentServer, facts: &Facts) -> Problem {
    let SilentServer { name, beat } = server;
    let time = span(facts.now - *beat);
    let message = format!("Server {name} died or was cut off; its last heartbeat was {time} ago.");
    let action = "Start it again under this name; otherwise it is forgotten a day after its last heartbeat.";
    let object = ProblemObject { server: Some(name.clone()), ..ProblemObject::default() };
    problem(ProblemKind::Server, object, *beat, message, action)
}

fn failing_pass(failing: &FailingPass, facts: &Facts) -> Problem {
    let FailingPass { pass, server, since } = failing;
    let time = span(facts.now - *since);
    let message = format!("The background pass {pass} of server {server} has failed for {time}.");
    let action = "The log of the server has its error; docs/metrics.md says what the pass does.";
    let object =
        ProblemObject { pass: Some((*pass).to_owned()), server: Some(server.clone()), ..ProblemObject::default() };
    problem(ProblemKind::Pass, object, *since, message, action)
}

fn database(facts: &Facts) -> Vec<Problem> {
    let risk = |since, message: String, action: &str| {
        problem(ProblemKind::Database, ProblemObject::default(), since, message, action)
    };
    let percent = |part: f64| (part * 100.0).round();
    let mut problems = Vec::new();
    let risks = &facts.database;
    if risks.oldest_transaction > OLD_TRANSACTION {
        let message = format!(
            "A transaction in the database has been open for {}: dead rows stay, and claims become slower.",
            span(risks.oldest_transaction)
        );
        let action = "End it: SELECT pid, xact_start, state, query FROM pg_stat_activity ORDER BY xact_start";
        problems.push(risk(facts.now - risks.oldest_transaction, message, action));
    }
    for (advice, since) in &risks.replication {
        let message = format!("Replication of the database is not safe: {advice}.");
        problems.push(risk(*since, message, "docs/database.md has the settings."));
    }
    if let Some((free, since)) = risks.disk_free {
        let message = format!("The disk of the database has {} % free.", percent(free));
        problems.push(risk(since, message, "Free or add space; docs/troubleshooting.md says what takes it."));
    }
    if let Some((ahead, since)) = risks.skew {
        let place = if ahead < TimeDelta::zero() { "behind" } else { "ahead of" };
        let message = format!("The clock of the database is {} {place} that of this server.", span(ahead));
        problems.push(risk(since, message, "Synchronise both machines with NTP."));
    }
    if let Some((used, since)) = risks.live_logs {
        let message = format!("Live logs take {} % of their space; once it is full, no more are kept.", percent(used));
        problems.push(risk(since, message, "Raise --live-log-max, or let tasks log less."));
    }
    if let Some(since) = risks.artifacts {
        let message = format!("The artifact store has been unusable for {}.", span(facts.now - since));
        problems.push(risk(
            since,
            message,
            "Check --artifacts-url, its credentials and its rights; the log has the error.",
        ));
    }
    problems
}
