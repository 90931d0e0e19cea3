//! Workers that are created, register, and are removed.

use serde_json::json;
use tenure_api::errors::ErrorCode::{InputError, InputValidationError, RequestConflict, ResourceNotFound};

use crate::endpoints::row::{OperationRows, State, Who, operation, refused, succeeds, with};

pub fn entries() -> Vec<OperationRows> {
    [workers(), interface()].concat()
}

fn wrong_secret() -> String {
    "0".repeat(44)
}

fn workers() -> Vec<OperationRows> {
    let worker = json!({"expires": "<expires>", "providerInfo": {"staticSecret": "<secret>"}});
    let with = |fields| with(worker.clone(), fields);
    let other = with(json!({"providerInfo": {"staticSecret": wrong_secret()}}));
    let no_secret = json!({"expires": "<expires>"});
    let of_one = |name| operation(name, State::WorkerCreated).row(refused(ResourceNotFound, "there is no such worker"));
    vec![
        operation("createWorker", State::Nothing)
            .takes(worker.clone())
            .gives("/workerPoolId", "<workerPoolId>")
            .gives("/workerId", "worker")
            .gives("/state", "running")
            .gives("/capacity", 1)
            .gives("/expires", "<expires>")
            .row(succeeds("the same worker again").on(State::WorkerCreated).gives("/state", "running"))
            .row(refused(InputError, "an end in the past").body(with(json!({"expires": "<past>"}))))
            .row(refused(InputValidationError, "no secret").body(no_secret.clone()))
            .row(refused(InputValidationError, "a capacity of 0").body(with(json!({"capacity": 0}))))
            .row(refused(RequestConflict, "a worker with another secret").on(State::WorkerCreated).body(other))
            .row(refused(RequestConflict, "a worker that was removed").on(State::Removed)),
        of_one("updateWorker")
            .takes(with(json!({"capacity": 3})))
            .gives("/capacity", 3)
            .row(
                succeeds("without a secret, which stays")
                    .on(State::WorkerCreated)
                    .body(no_secret)
                    .gives("/capacity", 1),
            )
            .row(refused(RequestConflict, "a worker that was removed").on(State::Removed)),
        of_one("worker")
            .gives("/workerPoolId", "<workerPoolId>")
            .gives("/providerId", "static")
            .gives("/state", "running")
            .row(succeeds("a worker that was removed").on(State::Removed).gives("/state", "stopped")),
        of_one("removeWorker")
            .gives("", json!({}))
            .row(succeeds("a worker that was removed").on(State::Removed).gives("", json!({}))),
        operation("shouldWorkerTerminate", State::Registered)
            .gives("/terminate", false)
            .row(succeeds("a worker that was removed").on(State::Removed).gives("/terminate", true))
            .row(succeeds("there is no such worker").gives("/terminate", true)),
    ]
}

fn interface() -> Vec<OperationRows> {
    let name = json!({"workerPoolId": "<workerPoolId>", "workerGroup": "group", "workerId": "worker"});
    let with = |fields| with(name.clone(), fields);
    let by = |provider: &str, secret: &str| {
        with(json!({"providerId": provider, "workerIdentityProof": {"staticSecret": secret}}))
    };
    let wrong = wrong_secret();
    vec![
        operation("registerWorker", State::WorkerCreated)
            .by(Who::Anonymous)
            .takes(by("static", "<secret>"))
            .gives("/credentials/clientId", "worker/static/<workerPoolId>/group/worker")
            .gives("/expires", "<expires>")
            .gives("/workerConfig", json!({}))
            .row(refused(InputError, "another secret").on(State::WorkerCreated).body(by("static", &wrong)))
            .row(refused(InputError, "a worker that was removed").on(State::Removed))
            .row(refused(ResourceNotFound, "the worker was not created"))
            .row(refused(ResourceNotFound, "another provider").on(State::WorkerCreated).body(by("google", "<secret>")))
            .row(refused(InputValidationError, "a secret that is too short").body(by("static", "short"))),
        operation("reregisterWorker", State::Registered)
            .takes(with(json!({"secret": "<secret>"})))
            .gives("/credentials/clientId", "worker/static/<workerPoolId>/group/worker")
            .gives("/expires", "<expires>")
            .row(refused(InputError, "another secret").on(State::Registered).body(with(json!({"secret": wrong}))))
            .row(refused(InputError, "a worker that was removed").on(State::Removed))
            .row(refused(InputError, "there is no such worker")),
    ]
}
