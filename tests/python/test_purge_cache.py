"""Requests to purge workers' caches, with the official client's PurgeCache, as an operator and as a worker call it."""

import datetime

import pytest
import taskcluster
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import instant

DAY_SECONDS = 24 * 3600


def purge_cache_of(server, credentials=None):
    options = {"rootUrl": server.root_url, "maxRetries": 0}
    if credentials:
        options["credentials"] = dict(credentials)
    return taskcluster.PurgeCache(options)


@pytest.fixture
def operator(timed_server):
    return purge_cache_of(timed_server, timed_server.root)


def names(answer):
    return [request["cacheName"] for request in answer["requests"]]


def refused(status, code, call, *arguments, **options):
    with pytest.raises(TaskclusterRestFailure) as failure:
        call(*arguments, **options)
    assert (failure.value.status_code, failure.value.body["code"]) == (status, code)


def test_a_worker_hears_which_caches_to_purge_for_a_day(timed_server, operator, queue_id):
    worker = purge_cache_of(timed_server)
    assert operator.ping()["alive"] is True
    assert worker.purgeRequests(queue_id) == {"requests": []}, "which generic-worker asks before each task"
    asked = instant(timed_server.now())
    assert operator.purgeCache(queue_id, {"cacheName": "b"}) is None
    provisioner_id, worker_type = queue_id.split("/")
    [request] = worker.purgeRequests(queue_id)["requests"]
    before = request.pop("before")
    assert request == {"provisionerId": provisioner_id, "workerType": worker_type, "cacheName": "b"}
    assert abs(instant(before) - asked) < datetime.timedelta(minutes=1)

    # A request for purges since a time includes that time; a repeated request has a later one.
    timed_server.advance(60)
    operator.purgeCache(queue_id, {"cacheName": "a"})
    assert names(worker.purgeRequests(queue_id)) == ["a", "b"]
    assert names(worker.purgeRequests(queue_id, query={"since": before})) == ["a", "b"]
    later = (instant(before) + datetime.timedelta(seconds=30)).isoformat()
    assert names(worker.purgeRequests(queue_id, query={"since": later})) == ["a"]
    operator.purgeCache(queue_id, {"cacheName": "b"})
    assert names(worker.purgeRequests(queue_id, query={"since": later})) == ["a", "b"]
    assert worker.purgeRequests(queue_id + "-other") == {"requests": []}

    timed_server.advance(DAY_SECONDS - 30)
    assert names(worker.purgeRequests(queue_id)) == ["a", "b"]
    operator.purgeCache(queue_id, {"cacheName": "b"})
    timed_server.advance(60)
    assert names(worker.purgeRequests(queue_id)) == ["b"]
    timed_server.advance(DAY_SECONDS)
    assert worker.purgeRequests(queue_id) == {"requests": []}
    assert names(worker.allPurgeRequests()) == []


def test_all_requests_are_listed_in_pages(timed_server, operator, queue_id):
    for number in range(5):
        operator.purgeCache(f"{queue_id}-{number % 2}", {"cacheName": f"cache:{number}"})
    pages = []
    operator.allPurgeRequests(query={"limit": 2}, paginationHandler=pages.append)
    ours = [
        (request["workerType"][-1], request["cacheName"])
        for page in pages
        for request in page["requests"]
        if request["workerType"].startswith(queue_id.split("/")[1])
    ]
    assert ours == [("0", "cache:0"), ("0", "cache:2"), ("0", "cache:4"), ("1", "cache:1"), ("1", "cache:3")]
    assert all(len(page["requests"]) <= 2 for page in pages)


def test_each_call_needs_its_scope(timed_server, queue_id):
    anonymous = purge_cache_of(timed_server)
    refused(403, "InsufficientScopes", anonymous.purgeCache, queue_id, {"cacheName": "a"})
    one = timed_server.create_client("purger-" + queue_id.split("/")[1], f"purge-cache:{queue_id}:a")
    purger = purge_cache_of(timed_server, one)
    purger.purgeCache(queue_id, {"cacheName": "a"})
    for pool, cache in ((queue_id, "b"), (queue_id, "a:b"), (queue_id + "-x", "a")):
        refused(403, "InsufficientScopes", purger.purgeCache, pool, {"cacheName": cache})
    assert names(anonymous.purgeRequests(queue_id)) == ["a"]


def test_what_cannot_be_is_refused(operator, queue_id):
    for body in ({}, {"cacheName": ""}, {"cacheName": "ä"}, {"cacheName": 1}, {"cacheName": "a", "more": 1}):
        refused(400, "InputValidationError", operator.purgeCache, queue_id, body)
    refused(400, "InvalidRequestArguments", operator.purgeRequests, queue_id, query={"since": "yesterday"})
    refused(400, "InvalidRequestArguments", operator.purgeRequests, queue_id, query={"until": "2026-01-01T00:00:00Z"})
    refused(400, "InvalidRequestArguments", operator.purgeRequests, "no-slash")
    assert operator.purgeRequests(queue_id) == {"requests": []}
