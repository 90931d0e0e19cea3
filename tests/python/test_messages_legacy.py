"""The poll API with a worker of its time: legacy_worker.py, with the scopes of workers then."""

import json
import random
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
import taskcluster

from azure_messages import PAST_THE_RESERVATION, PRIORITIES
from tasks import WORKER, claim_one, create, definition, instant

PROVISIONER = "python-tests"
LEGACY_WORKER = {"worker_group": "old-group", "worker_id": "old-worker"}
# scriptworker waits at least ten seconds before a retry.
WITHOUT_A_RETRY_SECONDS = 8
STOPPED_WITHIN_SECONDS = 20


class LegacyWorker:
    """The program legacy_worker.py, with credentials and a task queue."""

    def __init__(self, server, queue_id, credentials, **changes):
        provisioner, worker_type = queue_id.split("/")
        program = Path(__file__).with_name("legacy_worker.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._write(
            {
                "rootUrl": server.root_url,
                "credentials": credentials,
                "provisioner_id": provisioner,
                "worker_type": worker_type,
                **LEGACY_WORKER,
                **changes,
            }
        )

    def _write(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def _read(self):
        line = self.process.stdout.readline()
        assert line, "the worker ended; its last words are above"
        return json.loads(line)

    def find(self, before_the_claim=None):
        """One round over all URLs. Calls `before_the_claim` between getting each message and claiming its run."""
        self._write({"find": {"stop_before_claims": before_the_claim is not None}})
        answer = self._read()
        while "claiming" in answer:
            before_the_claim(*answer["claiming"])
            self._write({})
            answer = self._read()
        assert answer["seconds"] < WITHOUT_A_RETRY_SECONDS
        return answer

    def urls(self, **arguments):
        self._write({"urls": arguments})
        return self._read()

    def call(self, method, *args, credentials=None):
        self._write({"call": {"method": method, "args": args, "credentials": credentials}})
        return self._read()

    def stop(self):
        self.process.stdin.close()
        try:
            assert self.process.wait(STOPPED_WITHIN_SECONDS) == 0
        finally:
            self.process.kill()
            self.process.wait()


def worker_scopes(queue_id):
    worker = f"{LEGACY_WORKER['worker_group']}/{LEGACY_WORKER['worker_id']}"
    return [
        "queue:poll-task-urls",
        f"assume:worker-type:{queue_id}",
        "queue:claim-task",
        f"assume:worker-id:{worker}",
    ]


@pytest.fixture
def start(queue_id):
    """Starts workers of this test's queue, with exactly these scopes, and ends them after the test."""
    started = []

    def start(server, scopes, **changes):
        credentials = server.create_client(f"legacy-{taskcluster.slugId()}", *scopes)
        started.append(LegacyWorker(server, queue_id, credentials, **changes))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def worker(start, server, queue_id):
    return start(server, worker_scopes(queue_id))


def statuses(answer, method):
    return [sent["status"] for sent in answer["sent"] if sent["method"] == method]


def legacy_definition(queue_id, **changes):
    """A task as it was written then: no taskQueueId, and a scheduler and a group only if the submitter set them."""
    task = definition(queue_id, **changes)
    del task["taskQueueId"]
    provisioner, worker_type = queue_id.split("/")
    return {"provisionerId": provisioner, "workerType": worker_type, **task}


def test_the_old_worker_finds_a_task_of_each_priority_highest_first(queue, queue_id, worker):
    tasks = {}
    for priority in random.sample(PRIORITIES, len(PRIORITIES)):
        tasks[priority] = create(queue, queue_id, priority=priority)
    for place, priority in enumerate(PRIORITIES):
        found = worker.find()
        claimed = found["claimed"]
        assert (claimed["status"]["taskId"], claimed["runId"]) == (tasks[priority], 0)
        assert claimed["task"]["priority"] == priority
        assert [claimed["workerGroup"], claimed["workerId"]] == list(LEGACY_WORKER.values())
        # It checked the queues of all higher priorities first.
        assert statuses(found, "GET") == [200] * (place + 1)
        assert len(statuses(found, "DELETE")) == 1
    found = worker.find()
    assert (found["claimed"], found["log"]) == (None, [])
    assert statuses(found, "GET") == [200] * len(PRIORITIES)
    assert queue.pendingTasks(queue_id)["pendingTasks"] == 0


def test_the_old_worker_takes_a_404_for_a_failed_deletion_logs_it_and_goes_on(queue, queue_id, worker):
    task_id = create(queue, queue_id)
    found = worker.find()
    assert found["claimed"]["status"]["taskId"] == task_id
    # The claim removed the message, so nothing was left to delete.
    assert found["log"] == ["ERROR scriptworker.poll: Unable to delete from Azure: Bad status 404"]
    [deletion] = [sent for sent in found["sent"] if sent["method"] == "DELETE"]
    assert deletion["status"] == 404
    assert "<Code>MessageNotFound</Code>" in deletion["body"]


def test_the_old_worker_sends_urls_in_a_form_of_its_own_and_they_are_accepted(queue, queue_id, worker):
    create(queue, queue_id)
    found = worker.find()
    [got] = [sent for sent in found["sent"] if "<QueueMessage>" in sent["body"]]
    [deletion] = [sent for sent in found["sent"] if sent["method"] == "DELETE"]
    # scriptworker leaves the slashes of a receipt unescaped, and aiohttp the colons of dates.
    assert "popreceipt=%2B/%2B/" in deletion["asked"]
    assert got["sent"] != got["asked"]
    assert ":" in urllib.parse.urlsplit(got["sent"]).query
    assert "{" not in deletion["sent"]


def test_the_old_worker_carries_a_task_to_its_end(server, queue, queue_id, worker):
    task_id = create(queue, queue_id)
    claimed = worker.find()["claimed"]
    renewed = worker.call("reclaimTask", task_id, 0, credentials=claimed["credentials"])["answer"]
    assert instant(renewed["takenUntil"]) >= instant(claimed["takenUntil"])
    done = worker.call("reportCompleted", task_id, 0, credentials=renewed["credentials"])["answer"]
    assert done["status"]["state"] == "completed"
    assert queue.status(task_id)["status"]["runs"][0]["workerId"] == LEGACY_WORKER["worker_id"]


def test_a_run_that_another_worker_claims_first_is_a_conflict_and_no_task(queue, queue_id, worker):
    lost, other = create(queue, queue_id, priority="high"), create(queue, queue_id, priority="low")
    seen = []

    def claim_it_first(task_id, run_id):
        seen.append(task_id)
        if task_id == lost:
            queue.claimTask(task_id, run_id, WORKER)

    found = worker.find(before_the_claim=claim_it_first)
    assert seen == [lost, other]
    assert found["claimed"]["status"]["taskId"] == other
    assert statuses(found, "DELETE") == [404, 404]


def test_a_run_that_claim_work_gave_away_meanwhile_is_a_conflict_and_no_task(timed_server, queue_id, start):
    server, queue = timed_server, timed_server.queue()
    task_id = create(queue, queue_id, now=server.now())
    worker = start(server, worker_scopes(queue_id))

    def claim_work(*message):
        assert message == (task_id, 0)
        server.advance(PAST_THE_RESERVATION)
        assert claim_one(queue, queue_id)["status"]["taskId"] == task_id

    found = worker.find(before_the_claim=claim_work)
    assert found["claimed"] is None
    assert statuses(found, "GET") == [200] * len(PRIORITIES)
    assert statuses(found, "DELETE") == [404]
    [run] = queue.status(task_id)["status"]["runs"]
    assert (run["state"], run["workerId"]) == ("running", WORKER["workerId"])


def test_a_task_whose_claim_ran_out_is_found_again(timed_server, queue_id, start):
    server, queue = timed_server, timed_server.queue()
    task_id = create(queue, queue_id, now=server.now())
    worker = start(server, worker_scopes(queue_id))
    for run in range(2):
        claimed = worker.find()["claimed"]
        assert (claimed["status"]["taskId"], claimed["runId"]) == (task_id, run)
        server.advance(61)


def test_urls_are_kept_until_they_have_too_little_time_left(queue, queue_id, worker):
    first = worker.urls()
    assert len(first["queues"]) == len(PRIORITIES)
    assert worker.urls() == first
    # They are valid for half an hour, which is less than an hour.
    second = worker.urls(min_seconds_left=3600)
    assert instant(second["expires"]) >= instant(first["expires"])
    task_id = create(queue, queue_id)
    assert worker.find()["claimed"]["status"]["taskId"] == task_id


@pytest.mark.parametrize("missing", [0, 1])
def test_urls_take_both_scopes(server, queue_id, start, missing):
    scopes = worker_scopes(queue_id)
    del scopes[missing]
    provisioner, worker_type = queue_id.split("/")
    refused = start(server, scopes).call("pollTaskUrls", provisioner, worker_type)
    assert refused == {"status": 403, "code": "InsufficientScopes"}


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_claim_takes_all_three_scopes(server, queue, queue_id, start, missing):
    scopes = worker_scopes(queue_id)
    del scopes[missing]
    task_id = create(queue, queue_id)
    body = {"workerGroup": LEGACY_WORKER["worker_group"], "workerId": LEGACY_WORKER["worker_id"]}
    refused = start(server, scopes).call("claimTask", task_id, 0, body)
    assert refused == {"status": 403, "code": "InsufficientScopes"}
    assert queue.status(task_id)["status"]["runs"][0]["state"] == "pending"


def test_a_claim_in_another_workers_name_is_refused(queue, queue_id, worker):
    task_id = create(queue, queue_id)
    refused = worker.call("claimTask", task_id, 0, {"workerGroup": "old-group", "workerId": "somebody-else"})
    assert refused == {"status": 403, "code": "InsufficientScopes"}


def test_urls_of_another_queue_are_refused(worker):
    refused = worker.call("pollTaskUrls", PROVISIONER, "another-queue")
    assert refused == {"status": 403, "code": "InsufficientScopes"}


def test_the_old_scope_creates_tasks_of_the_lowest_priority(server, queue_id, start, worker):
    submitter = start(server, [f"queue:create-task:{queue_id}"])
    task_id = taskcluster.slugId()
    task = legacy_definition(queue_id)
    for _ in range(2):
        # A repeat is harmless.
        status = submitter.call("createTask", task_id, task)["answer"]["status"]
        assert (status["taskId"], status["state"]) == (task_id, "pending")
    assert worker.find()["claimed"]["task"]["workerType"] == queue_id.split("/")[1]


@pytest.mark.parametrize("priority", PRIORITIES[:-1])
def test_the_old_scope_creates_nothing_of_a_higher_priority(server, queue, queue_id, start, priority):
    submitter = start(server, [f"queue:create-task:{queue_id}"])
    task_id = taskcluster.slugId()
    refused = submitter.call("createTask", task_id, legacy_definition(queue_id, priority=priority))
    assert refused == {"status": 403, "code": "InsufficientScopes"}
    with pytest.raises(taskcluster.exceptions.TaskclusterRestFailure) as missing:
        queue.status(task_id)
    assert missing.value.status_code == 404


def test_the_old_scope_is_for_one_queue(server, queue_id, start):
    submitter = start(server, [f"queue:create-task:{queue_id}"])
    refused = submitter.call("createTask", taskcluster.slugId(), legacy_definition(f"{PROVISIONER}/another"))
    assert refused == {"status": 403, "code": "InsufficientScopes"}
