"""Workers that register, with the official client's WorkerManager: from createWorker to the end of the worker."""

import json
import secrets
import time

import pytest
import taskcluster
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import create, instant, runs

WORKER = {"workerGroup": "python", "workerId": "registered"}
LACKS_SCOPES = (403, "InsufficientScopes")


def static_secret():
    """44 characters, as Taskcluster's static provider wants them."""
    return taskcluster.slugId() + taskcluster.slugId()


class Fleet:
    """A worker pool with the clients of its provisioner and worker."""

    def __init__(self, server, pool):
        self.server, self.pool = server, pool
        self.path = (pool, WORKER["workerGroup"], WORKER["workerId"])
        self.secret = static_secret()
        self.provisioner = self.manager(server.root)

    def manager(self, credentials):
        options = {"rootUrl": self.server.root_url, "maxRetries": 0}
        if credentials:
            options["credentials"] = dict(credentials)
        return taskcluster.WorkerManager(options)

    def create_worker(self, **info):
        body = {
            "expires": taskcluster.fromNowJSON("6 hours"),
            "capacity": 2,
            "providerInfo": {"staticSecret": self.secret, **info},
        }
        return self.provisioner.createWorker(*self.path, body)

    def register(self, secret=None):
        body = {
            **WORKER,
            "workerPoolId": self.pool,
            "providerId": "static",
            "workerIdentityProof": {"staticSecret": secret or self.secret},
        }
        return self.manager(None).registerWorker(body)

    def reregister(self, credentials, secret):
        body = {**WORKER, "workerPoolId": self.pool, "secret": secret}
        return self.manager(credentials).reregisterWorker(body)


@pytest.fixture
def fleet(server, queue_id):
    return Fleet(server, queue_id)


def refused(call, *args):
    with pytest.raises(TaskclusterRestFailure) as refusal:
        call(*args)
    return refusal.value.status_code, refusal.value.body["code"]


def test_the_service_answers(fleet):
    manager = fleet.manager(None)
    assert manager.ping()["alive"] is True
    assert manager.lbheartbeat() == {} and manager.heartbeat() == {}
    assert manager.version()["version"]


def test_a_worker_registers_works_and_is_removed(fleet):
    made = fleet.create_worker(workerConfig={"genericWorker": {"config": {"idleTimeoutSecs": 5}}})
    assert (made["workerPoolId"], made["providerId"], made["state"]) == (fleet.pool, "static", "running")
    assert made["capacity"] == 2 and instant(made["expires"])
    assert fleet.provisioner.worker(*fleet.path) == made

    let_in = fleet.register()
    assert let_in["workerConfig"] == {"genericWorker": {"config": {"idleTimeoutSecs": 5}}}
    assert instant(let_in["expires"]) and len(let_in["secret"]) == 44
    credentials = let_in["credentials"]
    scopes = json.loads(credentials["certificate"])["scopes"]
    assert {
        f"assume:worker-pool:{fleet.pool}",
        "assume:worker-id:python/registered",
        "queue:worker-id:python/registered",
        f"queue:claim-work:{fleet.pool}",
        f"worker-manager:remove-worker:{fleet.pool}/python/registered",
        f"worker-manager:reregister-worker:{fleet.pool}/python/registered",
        f"worker-manager:should-worker-terminate:{fleet.pool}/python/registered",
    } <= set(scopes)

    queue = fleet.server.queue()
    task_id = create(queue, fleet.pool)
    worker = fleet.server.queue(credentials)
    [claim] = worker.claimWork(fleet.pool, {**WORKER, "tasks": 1})["tasks"]
    assert claim["status"]["taskId"] == task_id
    manager = fleet.manager(credentials)
    assert manager.shouldWorkerTerminate(*fleet.path)["terminate"] is False

    # A worker may remove itself, as worker-runner does when it shuts down.
    assert manager.removeWorker(*fleet.path) == {}
    first, second = runs(queue, task_id)
    assert (first["state"], first["reasonResolved"]) == ("exception", "worker-shutdown")
    assert (second["state"], second["reasonCreated"]) == ("pending", "retry")
    late = fleet.server.queue(claim["credentials"])
    assert refused(late.reportCompleted, task_id, 0) == (409, "RequestConflict")
    answer = manager.shouldWorkerTerminate(*fleet.path)
    assert answer["terminate"] is True and answer["reason"]
    assert refused(worker.claimWork, fleet.pool, {**WORKER, "tasks": 1}) == LACKS_SCOPES
    assert fleet.provisioner.worker(*fleet.path)["state"] == "stopped"
    assert refused(fleet.register) == (400, "InputError")
    assert refused(fleet.create_worker) == (409, "RequestConflict")


def test_what_a_role_gives_to_a_pool_its_workers_have(fleet):
    auth = taskcluster.Auth({"rootUrl": fleet.server.root_url, "credentials": dict(fleet.server.root)})
    scope = "project:" + secrets.token_hex(4)
    auth.createRole(f"worker-pool:{fleet.pool}", {"description": "", "scopes": [scope]})
    fleet.create_worker()
    credentials = fleet.register()["credentials"]

    def has_it():
        mine = taskcluster.Auth({"rootUrl": fleet.server.root_url, "credentials": dict(credentials)})
        return scope in mine.currentScopes()["scopes"]

    # Roles are cached for a second.
    deadline = time.monotonic() + 10
    while not has_it():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_worker_registers_again_with_the_secret_it_got(fleet):
    fleet.create_worker()
    let_in = fleet.register()
    again = fleet.reregister(let_in["credentials"], let_in["secret"])
    assert set(again) == {"expires", "credentials", "secret"}
    assert again["secret"] != let_in["secret"]
    third = fleet.reregister(again["credentials"], again["secret"])
    # Its successor was used, so it cannot have been lost.
    assert refused(fleet.reregister, third["credentials"], let_in["secret"]) == (400, "InputError")
    assert fleet.server.queue(third["credentials"]).claimWork(fleet.pool, {**WORKER, "tasks": 1}) == {"tasks": []}


def test_no_other_client_is_accepted(fleet):
    assert refused(fleet.register) == (404, "ResourceNotFound")
    fleet.create_worker()
    assert refused(fleet.register, static_secret()) == (400, "InputError")
    assert refused(fleet.register, "too-short") == (400, "InputValidationError")
    let_in = fleet.register()
    assert refused(fleet.reregister, let_in["credentials"], static_secret()) == (400, "InputError")
    # Its credentials are for itself only: for no other worker, and no other pool.
    worker = fleet.server.queue(let_in["credentials"])
    for pool, who in [(fleet.pool, {**WORKER, "workerId": "other"}), (fleet.pool + "x", WORKER)]:
        assert refused(worker.claimWork, pool, {**who, "tasks": 1}) == LACKS_SCOPES
    manager = fleet.manager(let_in["credentials"])
    assert refused(manager.removeWorker, fleet.pool, "python", "other") == LACKS_SCOPES


def test_a_worker_is_changed_by_its_provisioner(fleet):
    fleet.create_worker()
    body = {"expires": taskcluster.fromNowJSON("1 hour"), "capacity": 5}
    changed = fleet.provisioner.updateWorker(*fleet.path, body)
    assert changed["capacity"] == 5 and fleet.register()["workerConfig"] == {}
    fleet.secret = static_secret()
    assert refused(fleet.register) == (400, "InputError")
    fleet.provisioner.updateWorker(*fleet.path, {**body, "providerInfo": {"staticSecret": fleet.secret}})
    assert fleet.register()["secret"]
    other = (fleet.pool, "python", "unknown")
    assert refused(fleet.provisioner.updateWorker, *other, body) == (404, "ResourceNotFound")
    assert refused(fleet.provisioner.removeWorker, *other) == (404, "ResourceNotFound")
    assert fleet.provisioner.shouldWorkerTerminate(*other)["terminate"] is True
