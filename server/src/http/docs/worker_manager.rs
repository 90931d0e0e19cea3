//! The Taskcluster Worker Manager API, as far as there is one, described; and the removal of a worker.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{InputError, InvalidRequestArguments, RequestConflict, ResourceNotFound};
use tenure_api::worker_manager::{
    NewWorkerRequest, RegisterWorkerRequest, RegisterWorkerResponse, Removal, ReregisterWorkerRequest,
    ReregisterWorkerResponse, ShouldTerminate, Worker, WorkerRequest,
};

use super::operation::{self, Operation};
use super::sample::{QUEUE, Sample};

const NO_WORKER: &str = "nobody has made the worker known";
/// The secret of the examples.
const SECRET: &str = "44-characters-that-only-the-worker-knows-000";
const DAY_MINUTES: i64 = 24 * 60;

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [workers(sample), interface(sample), removal()].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("worker-manager", name, summary)
}

fn scope(action: &str) -> String {
    format!("worker-manager:{action}:<workerPoolId>/<workerGroup>/<workerId>")
}

fn new_worker(sample: &Sample) -> Value {
    json!({
        "expires": sample.after(30 * DAY_MINUTES),
        "capacity": 1,
        "providerInfo": {"staticSecret": SECRET, "workerConfig": {"idleTimeoutSecs": 0}},
    })
}

fn a_worker(sample: &Sample, state: &str) -> Value {
    json!({
        "workerPoolId": QUEUE,
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "providerId": "static",
        "created": sample.after(0),
        "expires": sample.after(30 * DAY_MINUTES),
        "lastModified": sample.after(0),
        "state": state,
        "capacity": 1,
    })
}

fn workers(sample: &Sample) -> Vec<Operation> {
    vec![
        operation("worker", "Show a worker")
            .scopes(scope("get-worker"))
            .answers::<Worker<'_>>("The worker; no secret of it is shown", &a_worker(sample, "running"))
            .refuses(ResourceNotFound, NO_WORKER),
        operation("createWorker", "Make a worker known, so that it can register")
            .about(
                "The worker registers with `providerInfo.staticSecret` and gets `providerInfo.workerConfig`. A worker pool is a \
                 task queue and need not be made. Whoever may call this can let in a worker, which may then claim the tasks of \
                 the queue and what the role `worker-pool:<workerPoolId>` gives. A repeat with the same secret gives the \
                 worker as it is.",
            )
            .scopes(scope("create-worker"))
            .takes::<NewWorkerRequest>(&new_worker(sample))
            .answers::<Worker<'_>>("The worker", &a_worker(sample, "running"))
            .refuses(InputError, "`expires` is past")
            .refuses(RequestConflict, "there is or was a worker of this name, with another secret or removed"),
        operation("updateWorker", "Change a worker")
            .about("What is absent of `providerInfo` stays as it is. An `expires` in the past shuts the worker out.")
            .scopes(scope("update-worker"))
            .takes::<WorkerRequest>(&new_worker(sample))
            .answers::<Worker<'_>>("The worker", &a_worker(sample, "running"))
            .refuses(ResourceNotFound, NO_WORKER)
            .refuses(RequestConflict, "the worker was removed"),
        operation("removeWorker", "Say that a worker is gone")
            .about(
                "For good. Its claims end at once as exception/worker-shutdown and are tried again while retries are left, whoever \
                 waits for work in its name gets an empty answer, and its credentials are good for shouldWorkerTerminate alone.",
            )
            .scopes(scope("remove-worker"))
            .answers_with(200, "It is gone", "application/json", &json!({"type": "object", "maxProperties": 0}), &json!({}))
            .refuses(ResourceNotFound, NO_WORKER),
    ]
}

fn interface(sample: &Sample) -> Vec<Operation> {
    let credentials = json!({
        "clientId": "worker/static/acme/linux/rack-1/worker-1",
        "accessToken": "three-dozen-characters-that-nobody-else-knows",
        "certificate": "{\"version\":1}",
    });
    let name = json!({"workerPoolId": QUEUE, "workerGroup": "rack-1", "workerId": "worker-1"});
    let mut registering = name.clone();
    registering["providerId"] = "static".into();
    registering["workerIdentityProof"] = json!({"staticSecret": SECRET});
    let mut again = name;
    again["secret"] = SECRET.into();
    let next = "0".repeat(SECRET.len());
    let expires = sample.after(4 * DAY_MINUTES);
    vec![
        operation::open("worker-manager", "registerWorker", "Let a worker in")
            .category("Worker interface")
            .about(
                "The worker proves itself with the secret that createWorker was given, and gets credentials for 96 hours, but not \
                 beyond its own end. They are for claiming tasks from the queue of its pool in its own name, for registering \
                 again, and for whatever the roles `worker-pool:<workerPoolId>`, `worker-type:<workerPoolId>` and \
                 `worker-id:<workerGroup>/<workerId>` give.",
            )
            .takes::<RegisterWorkerRequest>(&registering)
            .answers::<RegisterWorkerResponse<'_>>(
                "It is let in",
                &json!({
                    "expires": expires,
                    "credentials": credentials,
                    "workerConfig": {"idleTimeoutSecs": 0},
                    "secret": next,
                }),
            )
            .refuses(InvalidRequestArguments, "a parameter of the query, which has none")
            .refuses(InputError, "the secret is not the worker's, or the worker was removed or has expired")
            .refuses(ResourceNotFound, "nobody has made the worker known, or the provider is not `static`"),
        operation("reregisterWorker", "Let a worker in again")
            .category("Worker interface")
            .experimental()
            .about(
                "It proves itself with the secret of the last answer, which is void from then on. Only if the answer with the next \
                 one is lost may it be sent once more, within five minutes.",
            )
            .scopes(scope("reregister-worker"))
            .takes::<ReregisterWorkerRequest>(&again)
            .answers::<ReregisterWorkerResponse>(
                "It is let in",
                &json!({"expires": expires, "credentials": credentials, "secret": next}),
            )
            .refuses(InputError, "the secret is not the worker's last one, or the worker was removed, has expired, or is not known"),
        operation("shouldWorkerTerminate", "Ask whether a worker should stop")
            .experimental()
            .about("It should if it was removed, has expired, or is not known.")
            .scopes(scope("should-worker-terminate"))
            .answers::<ShouldTerminate>(
                "Whether, and why",
                &json!({"terminate": false, "reason": "the worker is wanted"}),
            ),
    ]
}

fn removal() -> Vec<Operation> {
    vec![
        operation::operation("tenure", "workerRemoved", "Say that a worker is gone, whether it has registered or not")
            .about(
                "As removeWorker. The claims that a worker had which never registered end too; if it comes back, it may claim \
                 anew.",
            )
            .scopes("worker-manager:remove-worker:<taskQueueId>/<workerGroup>/<workerId>")
            .answers::<Removal>("It is gone", &json!({"claimsEnded": 1})),
    ]
}
