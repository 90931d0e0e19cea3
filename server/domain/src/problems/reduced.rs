//! Problems without numbers and names, for readers who may list a queue and not read it.

use tenure_api::problems::{Problem, ProblemKind, ProblemObject};

/// Keeps the kind, the queue and the time. Problems without a queue are unchanged.
#[must_use]
pub fn reduce(problem: &Problem) -> Problem {
    let Some(queue) = &problem.object.queue else { return problem.clone() };
    let what = match problem.kind {
        ProblemKind::Scheduler => "has no scheduler",
        ProblemKind::Refile => "has a changed policy that is not applied to all tasks yet",
        ProblemKind::NoWorker => "has no worker",
        ProblemKind::WaitsLong => "has tasks that have waited long for a worker",
        ProblemKind::HeldLong => "has tasks that have been held long by a limit",
        ProblemKind::Fails => "has far more failing tasks than before",
        ProblemKind::LosesWorkers => "loses runs with their workers",
        ProblemKind::Never => "has a failed task that others need",
        ProblemKind::Deadlines => "has tasks that miss their deadlines",
        ProblemKind::Paused => "is paused",
        ProblemKind::Quarantined => "has no worker that is not quarantined or frozen",
        ProblemKind::Database | ProblemKind::Server | ProblemKind::Pass | ProblemKind::Subscription => "has a problem",
    };
    let object = ProblemObject { queue: Some(queue.clone()), ..ProblemObject::default() };
    Problem { object, message: format!("{queue} {what}."), action: None, ..problem.clone() }
}
