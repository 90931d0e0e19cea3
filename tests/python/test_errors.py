"""Refusals: the status, the code and the body that clients act on."""

import pytest
import taskcluster
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import WORKER, create, definition, instant


def refusal_of(call, *args):
    with pytest.raises(TaskclusterRestFailure) as refusal:
        call(*args)
    return refusal.value


def test_a_refusal_repeats_the_request(queue, queue_id):
    task_id = taskcluster.slugId()
    refusal = refusal_of(queue.status, task_id)
    assert (refusal.status_code, refusal.body["code"]) == (404, "ResourceNotFound")
    assert refusal.body["message"] and str(refusal) == refusal.body["message"]
    asked = refusal.body["requestInfo"]
    assert (asked["method"], asked["params"]) == ("status", {"taskId": task_id})
    assert instant(asked["time"])
    refusal = refusal_of(queue.reportException, task_id, 0, {"reason": "internal-error"})
    asked = refusal.body["requestInfo"]
    assert (asked["method"], asked["payload"]) == ("reportException", {"reason": "internal-error"})
    assert asked["params"] == {"taskId": task_id, "runId": "0"}


def test_a_text_that_is_no_id_is_refused(queue):
    for call, args in [
        (queue.status, ["not-a-slugid"]),
        (queue.task, ["A" * 22]),
        (queue.reportCompleted, [taskcluster.slugId(), "x"]),
        (queue.claimWork, ["only-one-half", {**WORKER, "tasks": 1}]),
    ]:
        refusal = refusal_of(call, *args)
        assert (refusal.status_code, refusal.body["code"]) == (400, "InvalidRequestArguments"), args


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": "text"},
        {"priority": "normal"},
        {"retries": 50},
        {"retries": "3"},
        {"unknown": 1},
        {"metadata": {"name": "only a name"}},
        {"routes": ["twice", "twice"]},
        {"created": "yesterday"},
        {"taskQueueId": "python-tests/Not-Lower-Case"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_task_that_does_not_fit_the_schema_is_refused(queue, queue_id, changes):
    refusal = refusal_of(queue.createTask, taskcluster.slugId(), definition(queue_id, **changes))
    assert (refusal.status_code, refusal.body["code"]) == (400, "InputValidationError")


@pytest.mark.parametrize("missing", ["created", "deadline", "payload", "metadata"])
def test_a_task_without_a_required_part_is_refused(queue, queue_id, missing):
    task = definition(queue_id)
    del task[missing]
    refusal = refusal_of(queue.createTask, taskcluster.slugId(), task)
    assert (refusal.status_code, refusal.body["code"]) == (400, "InputValidationError")


@pytest.mark.parametrize(
    "changes",
    [
        {"created": taskcluster.fromNowJSON("-1 hour")},
        {"created": taskcluster.fromNowJSON("1 hour"), "deadline": taskcluster.fromNowJSON("2 hours")},
        {"deadline": taskcluster.fromNowJSON("-1 minute")},
        {"deadline": taskcluster.fromNowJSON("6 days")},
        {"expires": taskcluster.fromNowJSON("1 minute")},
        {"scopes": ["too:**"]},
        {"provisionerId": "other", "workerType": "queue"},
    ],
    ids=["too old", "from the future", "past its deadline", "deadline too far", "expires early", "scope", "queue"],
)
def test_a_task_that_makes_no_sense_is_refused(queue, queue_id, changes):
    task_id = taskcluster.slugId()
    refusal = refusal_of(queue.createTask, task_id, definition(queue_id, **changes))
    assert (refusal.status_code, refusal.body["code"]) == (400, "InputError")
    assert refusal_of(queue.status, task_id).status_code == 404


@pytest.mark.parametrize("tasks", [0, 33, 1.5])
def test_a_claim_asks_for_1_to_32_tasks(queue, queue_id, tasks):
    refusal = refusal_of(queue.claimWork, queue_id, {**WORKER, "tasks": tasks})
    assert (refusal.status_code, refusal.body["code"]) == (400, "InputValidationError")


def test_too_many_queues_cannot_be_counted_at_once(queue, queue_id):
    refusal = refusal_of(queue.taskQueueCountsBatch, {"taskQueueIds": [queue_id] * 1001})
    assert (refusal.status_code, refusal.body["code"]) == (400, "InputValidationError")


def test_a_task_that_is_there_is_not_touched_by_a_refusal(queue, queue_id):
    task_id = create(queue, queue_id)
    before = queue.status(task_id)
    refusal_of(queue.createTask, task_id, definition(queue_id, retries=1))
    refusal_of(queue.reclaimTask, task_id, 0)
    assert queue.status(task_id) == before
