"""The whole life of a task, through the unmodified official client."""

import datetime

import pytest
import taskcluster
from dateutil.relativedelta import relativedelta
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import WORKER, claim, claim_one, create, definition, in_millis, instant, runs


def test_the_server_answers_a_ping(server):
    answer = server.anonymous_queue().ping()
    assert answer["alive"] is True
    assert answer["uptime"] >= 0


def test_a_task_that_is_created_waits_with_its_first_run(queue, queue_id):
    task_id = taskcluster.slugId()
    task = definition(queue_id)
    status = queue.createTask(task_id, task)["status"]
    provisioner_id, worker_type = queue_id.split("/")
    assert status["taskId"] == task_id
    assert (status["provisionerId"], status["workerType"]) == (provisioner_id, worker_type)
    assert status["taskQueueId"] == queue_id
    assert status["taskGroupId"] == task_id
    assert (status["schedulerId"], status["projectId"]) == ("-", "none")
    assert (status["state"], status["retriesLeft"]) == ("pending", 5)
    assert instant(status["deadline"]) == in_millis(task["deadline"])
    assert instant(status["expires"]) == in_millis(task["deadline"]) + relativedelta(years=1)
    [run] = status["runs"]
    assert (run["runId"], run["state"], run["reasonCreated"]) == (0, "pending", "scheduled")
    assert "takenUntil" not in run and "resolved" not in run
    assert queue.status(task_id)["status"] == status


def test_a_task_is_given_back_with_its_defaults(queue, queue_id):
    task_id = taskcluster.slugId()
    task = definition(queue_id)
    queue.createTask(task_id, task)
    stored = queue.task(task_id)
    for name in ("payload", "metadata", "taskQueueId"):
        assert stored[name] == task[name]
    provisioner_id, worker_type = queue_id.split("/")
    defaults = {
        "provisionerId": provisioner_id,
        "workerType": worker_type,
        "schedulerId": "-",
        "projectId": "none",
        "taskGroupId": task_id,
        "dependencies": [],
        "requires": "all-completed",
        "routes": [],
        "priority": "lowest",
        "retries": 5,
        "scopes": [],
        "tags": {},
        "extra": {},
    }
    assert {name: stored[name] for name in defaults} == defaults
    assert "taskId" not in stored


def test_a_queue_can_be_named_by_its_two_halves(queue, queue_id):
    provisioner_id, worker_type = queue_id.split("/")
    task = definition(queue_id, provisionerId=provisioner_id, workerType=worker_type)
    del task["taskQueueId"]
    task_id = taskcluster.slugId()
    assert queue.createTask(task_id, task)["status"]["taskQueueId"] == queue_id


def test_an_exact_repeat_of_a_create_is_harmless(queue, queue_id):
    task_id = taskcluster.slugId()
    task = definition(queue_id)
    first = queue.createTask(task_id, task)
    assert queue.createTask(task_id, task) == first
    # The same time in another client's format, and an explicit default.
    respelt = {**task, "deadline": instant(task["deadline"]).isoformat(), "priority": "lowest"}
    assert queue.createTask(task_id, respelt) == first
    claim_one(queue, queue_id)
    assert queue.createTask(task_id, task)["status"]["state"] == "running"


def test_another_task_under_the_same_id_is_a_conflict(queue, queue_id):
    task_id = taskcluster.slugId()
    task = definition(queue_id)
    queue.createTask(task_id, task)
    with pytest.raises(TaskclusterRestFailure) as refusal:
        queue.createTask(task_id, {**task, "payload": {"command": ["false"]}})
    assert refusal.value.status_code == 409
    assert refusal.value.body["code"] == "RequestConflict"
    assert queue.task(task_id)["payload"] == task["payload"]


def test_a_worker_claims_renews_and_completes(server, queue, queue_id):
    task_id = create(queue, queue_id, scopes=["python-test:thing"])
    claimed = claim_one(queue, queue_id)
    assert (claimed["status"]["taskId"], claimed["runId"]) == (task_id, 0)
    assert {name: claimed[name] for name in WORKER} == WORKER
    assert claimed["task"] == queue.task(task_id)
    assert claimed["status"]["state"] == "running"
    run = claimed["status"]["runs"][0]
    assert run["takenUntil"] == claimed["takenUntil"] and "started" in run
    term = instant(claimed["takenUntil"]) - datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(minutes=19) < term <= datetime.timedelta(minutes=20, seconds=1)

    worker = server.queue(claimed["credentials"])
    renewed = worker.reclaimTask(task_id, 0)
    assert "task" not in renewed
    assert instant(renewed["takenUntil"]) >= instant(claimed["takenUntil"])
    worker = server.queue(renewed["credentials"])
    status = worker.reportCompleted(task_id, 0)["status"]
    assert status["state"] == "completed"
    [run] = status["runs"]
    assert (run["state"], run["reasonResolved"]) == ("completed", "completed")
    assert "resolved" in run and run["workerId"] == WORKER["workerId"]
    assert worker.reportCompleted(task_id, 0)["status"] == status, "a repeat is answered again"


def test_a_worker_reports_a_failure(server, queue, queue_id):
    task_id = create(queue, queue_id)
    worker = server.queue(claim_one(queue, queue_id)["credentials"])
    status = worker.reportFailed(task_id, 0)["status"]
    assert (status["state"], len(status["runs"])) == ("failed", 1)
    assert status["runs"][0]["reasonResolved"] == "failed"
    for contradiction in (
        lambda: worker.reportCompleted(task_id, 0),
        lambda: worker.reportException(task_id, 0, {"reason": "internal-error"}),
        lambda: worker.reclaimTask(task_id, 0),
    ):
        with pytest.raises(TaskclusterRestFailure) as refusal:
            contradiction()
        assert (refusal.value.status_code, refusal.value.body["code"]) == (409, "RequestConflict")
    assert queue.status(task_id)["status"] == status


def test_a_run_that_was_not_claimed_cannot_be_reported(queue, queue_id):
    task_id = create(queue, queue_id)
    with pytest.raises(TaskclusterRestFailure) as refusal:
        queue.reportCompleted(task_id, 0)
    assert refusal.value.status_code == 409
    with pytest.raises(TaskclusterRestFailure) as refusal:
        queue.reportCompleted(task_id, 1)
    assert refusal.value.status_code == 404


def test_higher_priorities_are_claimed_first_and_equal_ones_in_order(queue, queue_id):
    priorities = ["low", "highest", "lowest", "low", "very-high", "medium", "high", "very-low"]
    created = [(priority, create(queue, queue_id, priority=priority)) for priority in priorities]
    order = ["highest", "very-high", "high", "medium", "low", "very-low", "lowest"]
    expected = [task_id for _, task_id in sorted(created, key=lambda pair: order.index(pair[0]))]
    claimed = claim(queue, queue_id, tasks=5) + claim(queue, queue_id, tasks=32)
    assert [one["status"]["taskId"] for one in claimed] == expected


def test_a_queue_with_nothing_in_it_gives_nothing(queue, queue_id):
    assert claim(queue, queue_id) == []


def test_a_particular_task_can_be_claimed(queue, queue_id):
    task_id = create(queue, queue_id)
    first = queue.claimTask(task_id, 0, WORKER)
    assert (first["status"]["taskId"], first["runId"]) == (task_id, 0)
    assert first["credentials"]["clientId"].startswith(f"task-client/{task_id}/0/on/python/worker-1/until/")
    again = queue.claimTask(task_id, 0, WORKER)
    assert again["takenUntil"] == first["takenUntil"]
    with pytest.raises(TaskclusterRestFailure) as refusal:
        queue.claimTask(task_id, 0, {**WORKER, "workerId": "worker-2"})
    assert refusal.value.status_code == 409
    assert claim(queue, queue_id) == []
    for missing in (taskcluster.slugId(), task_id):
        with pytest.raises(TaskclusterRestFailure) as refusal:
            queue.claimTask(missing, 1, WORKER)
        assert refusal.value.status_code == 404


def test_counts_follow_the_tasks(server, queue, queue_id):
    def counts():
        counts = queue.taskQueueCounts(queue_id)
        assert queue.pendingTasks(queue_id)["pendingTasks"] == counts["pendingTasks"]
        provisioner_id, worker_type = queue_id.split("/")
        assert (counts["taskQueueId"], counts["provisionerId"], counts["workerType"]) == (queue_id, provisioner_id, worker_type)
        return counts["pendingTasks"], counts["claimedTasks"]

    assert counts() == (0, 0)
    for _ in range(3):
        create(queue, queue_id)
    assert counts() == (3, 0)
    claims = claim(queue, queue_id, tasks=2)
    assert counts() == (1, 2)
    task_id = claims[0]["status"]["taskId"]
    queue.reportCompleted(task_id, 0)
    assert counts() == (1, 1)
    queue.reportException(claims[1]["status"]["taskId"], 0, {"reason": "worker-shutdown"})
    assert counts() == (2, 0)


def test_many_queues_are_counted_at_once(queue, queue_id):
    other = queue_id + "-other"
    create(queue, queue_id)
    answer = queue.taskQueueCountsBatch({"taskQueueIds": [queue_id, other]})
    counts = {one["taskQueueId"]: (one["pendingTasks"], one["claimedTasks"]) for one in answer["taskQueueCounts"]}
    assert counts == {queue_id: (1, 0), other: (0, 0)}


def test_a_worker_that_shuts_down_gives_its_task_to_another(server, queue, queue_id):
    task_id = create(queue, queue_id)
    first = server.queue(claim_one(queue, queue_id)["credentials"])
    first.reportException(task_id, 0, {"reason": "worker-shutdown"})
    second = claim_one(queue, queue_id, worker={**WORKER, "workerId": "worker-2"})
    assert (second["status"]["taskId"], second["runId"]) == (task_id, 1)
    with pytest.raises(TaskclusterRestFailure) as refusal:
        first.reportCompleted(task_id, 0)
    assert refusal.value.status_code == 409
    server.queue(second["credentials"]).reportCompleted(task_id, 1)
    assert [run["state"] for run in runs(queue, task_id)] == ["exception", "completed"]
