"""Views of task queues and workers, and quarantine, through the unmodified official client."""

import secrets
import time

import pytest
import taskcluster
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import claim, claim_one, create, instant


def worker(number):
    return {"workerGroup": "python", "workerId": f"worker-{number}"}


def where(queue_id, number):
    provisioner_id, worker_type = queue_id.split("/")
    return (provisioner_id, worker_type, "python", f"worker-{number}")


def soon(offset="1 hour"):
    return taskcluster.stringDate(taskcluster.fromNow(offset))


def refused(status, code, call, *arguments, **options):
    with pytest.raises(TaskclusterRestFailure) as failure:
        call(*arguments, **options)
    assert (failure.value.status_code, failure.value.body["code"]) == (status, code), failure.value.body


def pages(method, *arguments, limit):
    """Every page of a list, as scripts read them."""
    found, query = [], {"limit": str(limit)}
    while True:
        page = method(*arguments, query=query)
        found.append(page)
        if not page.get("continuationToken"):
            assert "continuationToken" not in page
            return found
        query["continuationToken"] = page["continuationToken"]


@pytest.fixture
def own_queue_id():
    """A queue of a provisioner that no other test uses."""
    return f"p-{secrets.token_hex(6)}/linux"


def test_a_worker_that_claims_is_shown_with_queue_and_provisioner(queue, own_queue_id):
    provisioner_id, worker_type = own_queue_id.split("/")
    refused(404, "ResourceNotFound", queue.getTaskQueue, own_queue_id)
    refused(404, "ResourceNotFound", queue.getProvisioner, provisioner_id)
    refused(404, "ResourceNotFound", queue.getWorkerType, provisioner_id, worker_type)
    refused(404, "ResourceNotFound", queue.getWorker, *where(own_queue_id, 1))
    assert queue.listWorkers(provisioner_id, worker_type) == {"workers": []}
    assert queue.listWorkerTypes(provisioner_id) == {"workerTypes": []}

    task_id = create(queue, own_queue_id)
    claim_one(queue, own_queue_id, worker=worker(1))
    queue_view = queue.getTaskQueue(own_queue_id)
    assert (queue_view["taskQueueId"], queue_view["stability"]) == (own_queue_id, "experimental")
    assert 86_300 < (instant(queue_view["expires"]) - instant(queue_view["lastDateActive"])).total_seconds() < 86_500
    assert queue_view in [one for page in pages(queue.listTaskQueues, limit=3) for one in page["taskQueues"]]
    assert queue.getWorkerType(provisioner_id, worker_type)["taskQueueId"] == own_queue_id
    assert queue.listWorkerTypes(provisioner_id)["workerTypes"][0]["workerType"] == worker_type
    provisioner = queue.getProvisioner(provisioner_id)
    assert provisioner["lastDateActive"] == queue_view["lastDateActive"]
    assert provisioner in [one for page in pages(queue.listProvisioners, limit=2) for one in page["provisioners"]]
    shown = queue.getWorker(*where(own_queue_id, 1))
    assert shown["recentTasks"] == [{"taskId": task_id, "runId": 0}]
    assert (shown["taskQueueId"], shown["actions"], shown["quarantineDetails"]) == (own_queue_id, [], [])
    [listed] = queue.listWorkers(provisioner_id, worker_type)["workers"]
    assert listed["latestTask"] == {"taskId": task_id, "runId": 0}
    assert listed["firstClaim"] == shown["firstClaim"]


def test_the_last_twenty_tasks_are_shown_oldest_first(queue, own_queue_id):
    claimed = []
    for _ in range(23):
        task_id = create(queue, own_queue_id)
        assert claim_one(queue, own_queue_id, worker=worker(1))["status"]["taskId"] == task_id
        claimed.append({"taskId": task_id, "runId": 0})
    assert queue.getWorker(*where(own_queue_id, 1))["recentTasks"] == claimed[-20:]


def test_lists_are_paged_and_filtered_without_short_pages(queue, own_queue_id):
    provisioner_id, worker_type = own_queue_id.split("/")
    for number in range(7):
        queue.declareWorker(*where(own_queue_id, number), {"expires": soon("2 days")})
        queue.declareWorker(*where(f"{provisioner_id}/type-{number}", 0), {"expires": soon()})
    for number in (2, 3, 6):
        queue.quarantineWorker(*where(own_queue_id, number), {"quarantineUntil": soon()})

    found = pages(queue.listWorkers, provisioner_id, worker_type, limit=3)
    assert [len(page["workers"]) for page in found] == [3, 3, 1]
    assert [one["workerId"] for page in found for one in page["workers"]] == [f"worker-{n}" for n in range(7)]
    for wanted, numbers in (("true", [2, 3, 6]), ("false", [0, 1, 4, 5])):
        query = {"quarantined": wanted, "limit": "2"}
        page = queue.listWorkers(provisioner_id, worker_type, query=query)
        assert len(page["workers"]) == 2
        query["continuationToken"] = page["continuationToken"]
        rest = queue.listWorkers(provisioner_id, worker_type, query=query)
        assert [one["workerId"] for one in page["workers"] + rest["workers"]] == [f"worker-{n}" for n in numbers]
        assert all(("quarantineUntil" in one) == (wanted == "true") for one in page["workers"])
    types = pages(queue.listWorkerTypes, provisioner_id, limit=3)
    assert [len(page["workerTypes"]) for page in types] == [3, 3, 2]
    refused(400, "InputError", queue.listTaskQueues, query={"continuationToken": "%%%"})


def test_the_client_pages_by_itself(queue, own_queue_id):
    provisioner_id, worker_type = own_queue_id.split("/")
    for number in range(5):
        queue.declareWorker(*where(own_queue_id, number), {"expires": soon()})
    found = []
    queue.listWorkers(
        provisioner_id,
        worker_type,
        query={"limit": "2"},
        paginationHandler=lambda page: found.extend(page["workers"]),
    )
    assert [one["workerId"] for one in found] == [f"worker-{number}" for number in range(5)]


def test_a_declared_date_is_never_shortened(queue, own_queue_id):
    expires = soon("3 days")
    declared = queue.declareWorker(*where(own_queue_id, 1), {"expires": expires})
    assert abs((instant(declared["expires"]) - instant(queue.getTaskQueue(own_queue_id)["expires"])).total_seconds()) < 1
    again = queue.declareWorker(*where(own_queue_id, 1), {"expires": soon("1 day")})
    assert again["expires"] == declared["expires"]
    claim(queue, own_queue_id, worker=worker(1))
    assert queue.getWorker(*where(own_queue_id, 1))["expires"] == declared["expires"]


def test_a_quarantined_worker_waits_in_vain_until_it_is_lifted(server, queue, own_queue_id):
    claim(queue, own_queue_id, worker=worker(1))
    task_id = create(queue, own_queue_id)
    body = {"quarantineUntil": soon(), "quarantineInfo": "its disk is full"}
    client_id = server.create_client("operator-" + secrets.token_hex(4), "queue:quarantine-worker:*")
    operator = server.queue(client_id)
    answer = operator.quarantineWorker(*where(own_queue_id, 1), body)
    [details] = answer["quarantineDetails"]
    assert details["clientId"] == client_id["clientId"]
    assert details["quarantineInfo"] == "its disk is full"
    assert details["quarantineUntil"] == answer["quarantineUntil"]

    begun = time.monotonic()
    assert claim(queue, own_queue_id, worker=worker(1)) == []
    assert time.monotonic() - begun >= 0.9, "it waits as long as if there were nothing"
    refused(409, "RequestConflict", queue.claimTask, task_id, 0, worker(1))
    answer = operator.quarantineWorker(*where(own_queue_id, 1), {"quarantineUntil": soon("-1 second")})
    assert answer["quarantineDetails"][1]["quarantineInfo"] == "[unspecified]"
    assert claim_one(queue, own_queue_id, worker=worker(1))["status"]["taskId"] == task_id


def test_a_quarantined_worker_renews_and_reports_what_it_has(queue, own_queue_id):
    create(queue, own_queue_id)
    held = claim_one(queue, own_queue_id, worker=worker(1))
    queue.quarantineWorker(*where(own_queue_id, 1), {"quarantineUntil": soon()})
    task_id = held["status"]["taskId"]
    assert queue.reclaimTask(task_id, 0)["workerId"] == "worker-1"
    assert queue.reportCompleted(task_id, 0)["status"]["state"] == "completed"


def test_what_cannot_be_is_refused(server, queue, own_queue_id):
    claim(queue, own_queue_id, worker=worker(1))
    place = where(own_queue_id, 1)
    for body in (
        {},
        {"quarantineUntil": "tomorrow"},
        {"quarantineUntil": soon(), "quarantineInfo": "x" * 4001},
        {"quarantineUntil": soon(), "why": "x"},
    ):
        refused(400, "InputValidationError", queue.quarantineWorker, *place, body)
    for body in ({}, {"expires": 1}):
        refused(400, "InputValidationError", queue.declareWorker, *place, body)
    refused(404, "ResourceNotFound", queue.quarantineWorker, *where(own_queue_id, 2), {"quarantineUntil": soon()})
    anonymous = server.anonymous_queue()
    for call in (
        lambda: anonymous.quarantineWorker(*place, {"quarantineUntil": soon()}),
        lambda: anonymous.declareWorker(*place, {"expires": soon()}),
        anonymous.listTaskQueues,
    ):
        with pytest.raises(taskcluster.exceptions.TaskclusterFailure) as failure:
            call()
        assert getattr(failure.value, "status_code", 403) == 403
    assert anonymous.getWorker(*place)["workerId"] == "worker-1", "reading what workers do is public"
