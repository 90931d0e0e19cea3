"""Messages through Azure's own client of storage queues: azure-storage-queue, unmodified."""

import base64
import json

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient

from tasks import create

PRIORITIES = ["highest", "very-high", "high", "medium", "low", "very-low", "lowest"]
# Default visibility of a poll URL, and the delay after which a message deleted too early is
# replaced.
VISIBILITY_SECONDS = 300
# claimWork skips a run for two seconds after a get of its message.
PAST_THE_RESERVATION = 3
URL_VALID_SECONDS = 30 * 60
# Margin for a busy machine.
AT_MOST_SECONDS = 15


def account_url(signed_url):
    """The SDK wants a queue's URL; ours name its messages."""
    path, query = signed_url.split("?", 1)
    return path.rsplit("/messages", 1)[0] + "?" + query


def messages_of(server, queue_id, priority="lowest"):
    urls = server.poll_urls(queue_id)["queues"][PRIORITIES.index(priority)]
    return QueueClient.from_queue_url(account_url(urls["signedPollUrl"]))


def create_now(server, queue_id, **changes):
    return create(server.queue(), queue_id, now=server.now(), **changes)


def content(message):
    return json.loads(base64.b64decode(message.content, validate=True))


def pending(server, queue_id):
    return server.queue().pendingTasks(queue_id)["pendingTasks"]


def refusal_of(call, *args, **options):
    with pytest.raises(HttpResponseError) as refusal:
        call(*args, **options)
    return refusal.value


def assert_refused(error, status, code, kind=HttpResponseError):
    assert (type(error), error.status_code, error.error_code) == (kind, status, code), error
    assert error.response.headers["x-ms-error-code"] == code


def receive_all(messages, **options):
    return list(messages.receive_messages(**options))
