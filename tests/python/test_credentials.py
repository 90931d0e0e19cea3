"""Who may do what: temporary credentials, narrowed scopes, the credentials of a claim."""

import datetime

import pytest
import taskcluster
from taskcluster.exceptions import TaskclusterAuthFailure, TaskclusterRestFailure

from tasks import WORKER, claim_one, create, definition


def temporary(server, scopes, name=None, lasts=datetime.timedelta(hours=1), starts=datetime.timedelta(minutes=-5)):
    now = datetime.datetime.now(datetime.timezone.utc)
    issuer = server.root
    credentials = taskcluster.createTemporaryCredentials(
        issuer["clientId"], issuer["accessToken"], now + starts, now + lasts, scopes, name=name
    )
    return {key: taskcluster.utils.toStr(value) for key, value in credentials.items()}


def scopes_to_create(queue_id):
    return [f"queue:create-task:lowest:{queue_id}", "queue:create-task:project:none", "queue:scheduler-id:-"]


def assert_forbidden(call, *args):
    with pytest.raises(TaskclusterRestFailure) as refusal:
        call(*args)
    assert (refusal.value.status_code, refusal.value.body["code"]) == (403, "InsufficientScopes")
    return refusal.value.body["message"]


def assert_unknown(call, *args):
    with pytest.raises(TaskclusterAuthFailure) as refusal:
        call(*args)
    assert (refusal.value.status_code, refusal.value.body["code"]) == (401, "AuthenticationFailed")


@pytest.mark.parametrize("name", [None, "python/build-7"])
def test_temporary_credentials_can_do_what_they_say_and_no_more(server, queue_id, name):
    queue = server.queue(temporary(server, scopes_to_create(queue_id), name=name))
    task_id = create(queue, queue_id)
    assert server.queue().status(task_id)["status"]["state"] == "pending"
    message = assert_forbidden(queue.taskQueueCounts, queue_id)
    assert f"queue:claimed-count:{queue_id}" in message
    assert_forbidden(queue.createTask, taskcluster.slugId(), definition(queue_id, priority="high"))
    assert_forbidden(queue.createTask, taskcluster.slugId(), definition(queue_id, scopes=["somebody:else"]))
    assert_forbidden(queue.createTask, taskcluster.slugId(), definition(queue_id, routes=["index.somewhere"]))


def test_the_scope_of_a_higher_priority_is_enough_for_a_lower_one(server, queue_id):
    scopes = [*scopes_to_create(queue_id)[1:], f"queue:create-task:high:{queue_id}"]
    queue = server.queue(temporary(server, scopes))
    create(queue, queue_id, priority="high")
    create(queue, queue_id, priority="lowest")
    assert_forbidden(queue.createTask, taskcluster.slugId(), definition(queue_id, priority="highest"))


def test_a_scope_that_ends_in_a_star_stands_for_all_that_begin_like_it(server, queue_id):
    queue = server.queue(temporary(server, ["queue:claimed-count:python-tests/*"]))
    create(server.queue(), queue_id)
    assert queue.taskQueueCounts(queue_id)["pendingTasks"] == 1
    assert_forbidden(queue.taskQueueCounts, "other/queue")


def test_temporary_credentials_that_are_over_or_forged_are_refused(server, queue_id):
    over = temporary(
        server, ["*"], starts=datetime.timedelta(hours=-2), lasts=datetime.timedelta(hours=-1)
    )
    forged = temporary(server, ["queue:status:*"])
    forged["certificate"] = forged["certificate"].replace("queue:status:*", "queue:*")
    renamed = temporary(server, ["*"], name="python/one")
    renamed["clientId"] = "python/two"
    for credentials in (over, forged, renamed):
        assert_unknown(server.queue(credentials).pendingTasks, queue_id)


def test_temporary_credentials_cannot_say_more_than_their_issuer(server, queue_id):
    issuer = server.create_client("python/narrow", "queue:status:*")
    now = datetime.datetime.now(datetime.timezone.utc)
    hour = datetime.timedelta(hours=1)
    made = taskcluster.createTemporaryCredentials(
        issuer["clientId"], issuer["accessToken"], now, now + hour, ["queue:*"]
    )
    made = {key: taskcluster.utils.toStr(value) for key, value in made.items()}
    assert_unknown(server.queue(made).pendingTasks, queue_id)


def test_a_wrong_token_or_an_unknown_client_is_refused(server, queue_id):
    for credentials in (
        {**server.root, "accessToken": "x" * 44},
        {"clientId": "nobody", "accessToken": "x" * 44},
    ):
        assert_unknown(server.queue(credentials).pendingTasks, queue_id)


def test_without_credentials_one_may_look_and_not_touch(server, queue_id):
    anonymous = server.anonymous_queue()
    assert anonymous.ping()["alive"] is True
    # Counts of pending runs are public, counts of claimed runs are not.
    assert anonymous.pendingTasks(queue_id)["pendingTasks"] == 0
    assert_forbidden(anonymous.taskQueueCounts, queue_id)
    assert_forbidden(anonymous.createTask, taskcluster.slugId(), definition(queue_id))


def test_a_request_can_give_up_scopes(server, queue_id):
    task_id = create(server.queue(), queue_id)
    narrowed = server.queue(authorizedScopes=[f"queue:status:{task_id}"])
    assert narrowed.status(task_id)["status"]["taskId"] == task_id
    assert_forbidden(narrowed.taskQueueCounts, queue_id)
    # A caller cannot keep scopes that it does not have.
    credentials = temporary(server, ["queue:status:*"])
    grasping = server.queue(credentials, authorizedScopes=["queue:claimed-count:*"])
    assert_unknown(grasping.status, task_id)


def test_the_credentials_of_a_claim_are_for_that_run_and_the_scopes_of_its_task(server, queue, queue_id):
    other = create(queue, queue_id)
    claim_one(queue, queue_id)
    task_id = create(queue, queue_id, scopes=["queue:pending-count:*", "queue:claimed-count:*"])
    claimed = claim_one(queue, queue_id)
    assert claimed["status"]["taskId"] == task_id
    worker = server.queue(claimed["credentials"])
    assert_forbidden(worker.reportCompleted, other, 0)
    assert_forbidden(worker.reportCompleted, task_id, 1)
    assert_forbidden(worker.reclaimTask, other, 0)
    assert_forbidden(worker.claimWork, queue_id, {**WORKER, "tasks": 1})
    assert worker.taskQueueCounts(queue_id)["claimedTasks"] == 2
    worker.reportCompleted(task_id, 0)
    assert queue.status(other)["status"]["state"] == "running"


def test_claiming_needs_the_queue_and_the_worker(server, queue, queue_id):
    create(queue, queue_id)
    may_claim, may_be = f"queue:claim-work:{queue_id}", "queue:worker-id:python/worker-1"
    for scopes in ([may_claim], [may_be], [may_claim, "queue:worker-id:python/worker-2"]):
        worker = server.queue(temporary(server, scopes))
        assert_forbidden(worker.claimWork, queue_id, {**WORKER, "tasks": 1})
    claim_one(server.queue(temporary(server, [may_claim, may_be])), queue_id)


def test_counting_many_queues_needs_the_scopes_of_each(server, queue_id):
    scopes = [f"queue:pending-count:{queue_id}", f"queue:claimed-count:{queue_id}"]
    narrow = server.queue(temporary(server, scopes))
    assert len(narrow.taskQueueCountsBatch({"taskQueueIds": [queue_id]})["taskQueueCounts"]) == 1
    assert_forbidden(narrow.taskQueueCountsBatch, {"taskQueueIds": [queue_id, queue_id + "-other"]})
