"""reportException with every reason: which ones give the task another run, and for how long."""

import pytest
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import claim, claim_one, create

RETRIED = {"worker-shutdown": "retry", "intermittent-task": "task-retry"}
FINAL = ["malformed-payload", "resource-unavailable", "internal-error"]


def test_every_reason_is_covered():
    assert len({*RETRIED, *FINAL}) == 5


@pytest.mark.parametrize("reason", FINAL)
def test_a_final_reason_resolves_the_task(server, queue, queue_id, reason):
    task_id = create(queue, queue_id)
    worker = server.queue(claim_one(queue, queue_id)["credentials"])
    status = worker.reportException(task_id, 0, {"reason": reason})["status"]
    assert (status["state"], status["retriesLeft"]) == ("exception", 5)
    [run] = status["runs"]
    assert (run["state"], run["reasonResolved"]) == ("exception", reason)
    assert claim(queue, queue_id) == []


@pytest.mark.parametrize(("reason", "created_by"), RETRIED.items())
def test_a_retried_reason_uses_up_the_retries(server, queue, queue_id, reason, created_by):
    task_id = create(queue, queue_id, retries=2)
    for run_id in range(3):
        claimed = claim_one(queue, queue_id)
        assert (claimed["status"]["taskId"], claimed["runId"]) == (task_id, run_id)
        worker = server.queue(claimed["credentials"])
        status = worker.reportException(task_id, run_id, {"reason": reason})["status"]
        run = status["runs"][run_id]
        assert (run["state"], run["reasonResolved"]) == ("exception", reason)
        if run_id < 2:
            assert (status["state"], status["retriesLeft"]) == ("pending", 1 - run_id)
            assert (status["runs"][-1]["state"], status["runs"][-1]["reasonCreated"]) == ("pending", created_by)
    assert (status["state"], status["retriesLeft"], len(status["runs"])) == ("exception", 0, 3)
    assert claim(queue, queue_id) == []


@pytest.mark.parametrize("reason", [*RETRIED, *FINAL])
def test_a_repeat_with_the_same_reason_is_harmless_and_another_reason_is_not(server, queue, queue_id, reason):
    task_id = create(queue, queue_id)
    worker = server.queue(claim_one(queue, queue_id)["credentials"])
    first = worker.reportException(task_id, 0, {"reason": reason})
    assert worker.reportException(task_id, 0, {"reason": reason}) == first
    other = next(one for one in FINAL if one != reason)
    with pytest.raises(TaskclusterRestFailure) as refusal:
        worker.reportException(task_id, 0, {"reason": other})
    assert refusal.value.status_code == 409


@pytest.mark.parametrize("reason", ["superseded", "canceled", "claim-expired", "deadline-exceeded", "bad luck"])
def test_reasons_that_are_not_a_workers_are_refused(queue, queue_id, reason):
    task_id = create(queue, queue_id)
    claim_one(queue, queue_id)
    with pytest.raises(TaskclusterRestFailure) as refusal:
        queue.reportException(task_id, 0, {"reason": reason})
    assert (refusal.value.status_code, refusal.value.body["code"]) == (400, "InputValidationError")
    assert queue.status(task_id)["status"]["state"] == "running"
