"""Tasks as scripts make them, and the steps that most tests begin with."""

import datetime

import taskcluster

WORKER = {"workerGroup": "python", "workerId": "worker-1"}


def definition(queue_id, now=None, deadline_in="1 hour", **changes):
    """A small task, dated as the client's own functions date it. `now` is the text of a date."""
    start = None if now is None else datetime.datetime.fromisoformat(now.replace("Z", "+00:00"))
    return {
        "taskQueueId": queue_id,
        "created": taskcluster.stringDate(taskcluster.fromNow("0 seconds", start)),
        "deadline": taskcluster.stringDate(taskcluster.fromNow(deadline_in, start)),
        "payload": {"command": ["true"]},
        "metadata": {
            "name": "a task of the Python client",
            "description": "Does *nothing*.",
            "owner": "nobody@example.com",
            "source": "https://example.com/source",
        },
        **changes,
    }


def create(queue, queue_id, **changes):
    task_id = taskcluster.slugId()
    status = queue.createTask(task_id, definition(queue_id, **changes))["status"]
    assert status["taskId"] == task_id
    return task_id


def claim(queue, queue_id, tasks=1, worker=WORKER):
    return queue.claimWork(queue_id, {**worker, "tasks": tasks})["tasks"]


def claim_one(queue, queue_id, worker=WORKER):
    claims = claim(queue, queue_id, worker=worker)
    assert len(claims) == 1
    return claims[0]


def instant(text):
    """A date of the wire; the format is the one that taskgraph reads with."""
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc)


def in_millis(text):
    """The time as the server stores it."""
    time = instant(text)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def runs(queue, task_id):
    return queue.status(task_id)["status"]["runs"]
