"""Effects of time on tasks: expired claims and passed deadlines."""

import time

import pytest
import taskcluster
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import WORKER, claim, claim_one, create, definition, instant

PAST_THE_CLAIM = 61


def create_now(server, queue, queue_id, **changes):
    return create(queue, queue_id, now=server.now(), **changes)


def assert_conflict(call, *args):
    with pytest.raises(TaskclusterRestFailure) as refusal:
        call(*args)
    assert refusal.value.status_code == 409


def test_a_claim_that_is_not_renewed_goes_to_another_worker(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue, queue_id)
    first = claim_one(queue, queue_id)
    server.advance(PAST_THE_CLAIM)
    status = queue.status(task_id)["status"]
    lost, waiting = status["runs"]
    assert (lost["state"], lost["reasonResolved"]) == ("exception", "claim-expired")
    assert lost["takenUntil"] == first["takenUntil"]
    assert (waiting["state"], waiting["reasonCreated"]) == ("pending", "retry")
    assert (status["state"], status["retriesLeft"]) == ("pending", 4)
    for report in (queue.reportCompleted, queue.reportFailed, queue.reclaimTask):
        assert_conflict(report, task_id, 0)
    second = claim_one(queue, queue_id)
    assert (second["status"]["taskId"], second["runId"]) == (task_id, 1)
    server.queue(second["credentials"]).reportCompleted(task_id, 1)
    assert queue.status(task_id)["status"]["state"] == "completed"


def test_a_claim_that_is_renewed_lasts(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue, queue_id)
    claimed = claim_one(queue, queue_id)
    for _ in range(3):
        server.advance(40)
        renewed = server.queue(claimed["credentials"]).reclaimTask(task_id, 0)
        assert instant(renewed["takenUntil"]) > instant(claimed["takenUntil"])
        claimed = renewed
    status = server.queue(claimed["credentials"]).reportCompleted(task_id, 0)["status"]
    assert (status["state"], len(status["runs"])) == ("completed", 1)


def test_a_task_without_retries_ends_with_its_claim(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue, queue_id, retries=0)
    claim_one(queue, queue_id)
    server.advance(PAST_THE_CLAIM)
    status = queue.status(task_id)["status"]
    assert (status["state"], status["runs"][0]["reasonResolved"]) == ("exception", "claim-expired")
    assert claim(queue, queue_id) == []
    assert queue.taskQueueCounts(queue_id)["claimedTasks"] == 0


def test_a_task_that_waits_past_its_deadline_is_resolved(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue, queue_id, deadline_in="2 minutes")
    # Resolvers may give a task a little time beyond its deadline.
    server.advance(121)
    assert claim(queue, queue_id) == []
    assert queue.pendingTasks(queue_id)["pendingTasks"] == 0
    server.advance(120)
    status = queue.status(task_id)["status"]
    [run] = status["runs"]
    assert (status["state"], run["state"], run["reasonResolved"]) == ("exception", "exception", "deadline-exceeded")
    assert "started" not in run


def test_a_task_that_runs_past_its_deadline_is_taken_from_its_worker(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue, queue_id, deadline_in="90 seconds")
    claimed = claim_one(queue, queue_id)
    server.advance(50)
    claimed = server.queue(claimed["credentials"]).reclaimTask(task_id, 0)
    server.advance(50)
    assert_conflict(queue.reclaimTask, task_id, 0)
    server.advance(120)
    status = queue.status(task_id)["status"]
    assert (status["state"], len(status["runs"])) == ("exception", 1)
    assert status["runs"][0]["reasonResolved"] == "deadline-exceeded"
    assert_conflict(queue.reportCompleted, task_id, 0)


def test_an_exact_repeat_is_harmless_long_after(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = taskcluster.slugId()
    task = definition(queue_id, now=server.now(), deadline_in="1 hour")
    queue.createTask(task_id, task)
    server.advance(1200)
    assert queue.createTask(task_id, task)["status"]["state"] == "pending"


def test_in_real_time_a_lost_claim_reaches_a_worker_that_is_waiting(hasty_server, queue_id):
    queue = hasty_server.queue()
    task_id = create(queue, queue_id)
    first = claim_one(queue, queue_id)
    began = time.monotonic()
    second = claim_one(queue, queue_id)
    assert (second["status"]["taskId"], second["runId"]) == (task_id, 1)
    # Two seconds of claim, a quarter of a second until the expiry is noticed, and a margin for a
    # busy machine.
    assert time.monotonic() - began < 6
    assert second["status"]["runs"][0]["reasonResolved"] == "claim-expired"
    assert_conflict(hasty_server.queue(first["credentials"]).reportCompleted, task_id, 0)
    hasty_server.queue(second["credentials"]).reportCompleted(task_id, 1)


def test_options_in_extra_delay_a_task(timed_server, queue_id):
    """Options beyond Taskcluster are in a task's `extra`, with the unmodified client."""
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue, queue_id, extra={"tenure": {"delay": 300}})
    assert queue.status(task_id)["status"]["state"] == "pending"
    assert queue.pendingTasks(queue_id)["pendingTasks"] == 0
    server.advance(290)
    assert claim(queue, queue_id) == []
    server.advance(10)
    assert claim_one(queue, queue_id)["status"]["taskId"] == task_id
    with pytest.raises(TaskclusterRestFailure) as refusal:
        create_now(server, queue, queue_id, extra={"tenure": {"delai": 30}})
    assert refusal.value.status_code == 400 and "delai" in refusal.value.body["message"]


def test_a_task_with_options_is_held_and_its_definition_stays_as_it_is(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = taskcluster.slugId()
    extra = {"note": [1, {"b": None}], "tenure": {"delay": 2, "delivery": "at-least-once"}}
    task = definition(queue_id, now=server.now(), extra=extra)
    status = queue.createTask(task_id, task)["status"]
    assert (status["state"], [run["state"] for run in status["runs"]]) == ("pending", ["pending"])
    assert_conflict(queue.claimTask, task_id, 0, WORKER)
    assert claim(queue, queue_id) == []
    stored = queue.task(task_id)
    for name in ("extra", "payload", "metadata"):
        assert stored[name] == task[name]
    assert queue.createTask(task_id, task)["status"] == status, "an exact repeat"
    server.advance(2)
    claimed = claim_one(queue, queue_id)
    assert (claimed["status"]["taskId"], claimed["runId"]) == (task_id, 0)
    assert claimed["task"] == stored == queue.task(task_id)
    # A lost worker costs such a task no retry.
    server.advance(PAST_THE_CLAIM)
    status = queue.status(task_id)["status"]
    assert ([run["state"] for run in status["runs"]], status["retriesLeft"]) == (["exception", "pending"], 5)
    assert claim_one(queue, queue_id)["task"] == stored
