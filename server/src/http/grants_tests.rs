//! Operations that the grants of `tenure client create` permit.

use std::collections::BTreeSet;

use tenure_api::states::Priority;
use tenure_domain::grants::QueuePattern;
use tenure_domain::scopes::ScopeSet;

use super::access::Access;
use super::routes;
use super::scopes::Values;

const TASK: &str = "fN1SbArXTPSVFNUvaOlinQ";

/// Operations on a task of a queue that need one of these scopes.
fn permitted(scopes: &[String], queue: &str) -> BTreeSet<&'static str> {
    let (provisioner, worker_type) = queue.split_once('/').unwrap();
    let path = Values::of_path()
        .text("taskQueueId", queue)
        .text("workerPoolId", queue)
        .text("provisionerId", provisioner)
        .text("workerType", worker_type)
        .text("taskId", TASK)
        .text("taskGroupId", TASK)
        .text("jobId", TASK)
        .text("runId", "0")
        .text("schedulerId", "-")
        .text("projectId", "none")
        .text("workerGroup", "here")
        .text("workerId", "worker-1")
        .text("clientId", "ci")
        .text("roleId", "ci")
        .text("scheduleName", "nightly")
        .text("subscriptionName", "billing")
        .text("partitionName", "mail")
        .text("memberId", "sender-1")
        .text("name", "private/build.log")
        .text("cacheName", "cache");
    let values = Values::of_path()
        .list("scopes", Vec::<&str>::new())
        .list("scopesThatAreNew", Vec::<&str>::new())
        .list("routes", Vec::<&str>::new())
        .list("names", ["private/build.log"])
        .list("taskIds", [TASK])
        .list("taskQueueIds", [queue])
        .list("prioritiesFromHighestToThatOfTheTask", Priority::ALL.iter().map(ToString::to_string))
        .condition("priorityIsLowest", true)
        .condition("resultIsAskedFor", true)
        .condition("optionsHaveDelivery", false)
        .condition("callerStartedTheJob", true);
    let held = ScopeSet::new(scopes.iter().cloned());
    let mut names = BTreeSet::new();
    for route in routes() {
        let Access::Scopes(template) = route.endpoint.access else { continue };
        let holds = |held: &ScopeSet| template.is_held(held, &values, &path).unwrap();
        if holds(&held) && !holds(&ScopeSet::default()) {
            names.insert(route.endpoint.name);
        }
    }
    names
}

#[test]
fn grants_permit_the_listed_operations_of_their_queues() {
    let pattern: QueuePattern = "acme/*".parse().unwrap();
    let submit = permitted(&pattern.submit_scopes(), "acme/linux");
    let by_task = BTreeSet::from(["listTasks", "status", "statuses", "waitForTask", "whyTask"]);
    let by_queue =
        BTreeSet::from(["createTask", "createTasks", "getTaskResult", "getCheckpoint", "cancelTask", "rerunTask"]);
    assert_eq!(submit, &by_task | &by_queue);
    assert_eq!(permitted(&pattern.submit_scopes(), "other/linux"), by_task);
    let work = permitted(&pattern.work_scopes(), "acme/linux");
    let expected = [
        "claimTask",
        "claimWork",
        "endSession",
        "pollTaskUrls",
        "renewSession",
        "sessionInbox",
        "startSession",
        "work",
    ];
    assert_eq!(work, BTreeSet::from(expected));
    assert_eq!(permitted(&pattern.work_scopes(), "other/linux"), BTreeSet::new());
    let of_run = ["reclaim-task", "resolve-task", "create-artifact"].map(|verb| format!("queue:{verb}:{TASK}/0"));
    let expected = [
        "appendLiveLog",
        "createArtifact",
        "finishArtifact",
        "getCheckpoint",
        "getTaskCommand",
        "putCheckpoint",
        "reclaimTask",
        "releaseTask",
        "reportCompleted",
        "reportException",
        "reportFailed",
    ];
    assert_eq!(permitted(&of_run, "acme/linux"), BTreeSet::from(expected), "credentials of a claim");
    let one: QueuePattern = "mail".parse().unwrap();
    assert!(permitted(&one.submit_scopes(), "default/mail").contains("createTasks"));
    assert_eq!(permitted(&one.submit_scopes(), "default/mail-2"), by_task);
}
