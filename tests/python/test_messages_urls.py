"""Permissions of the poll API's URLs, through Azure's own client of storage queues."""

import asyncio
import re
import uuid

import pytest
import requests
from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from azure.storage.queue import QueueClient
from azure.storage.queue.aio import QueueClient as AsyncQueueClient

from azure_messages import (
    URL_VALID_SECONDS,
    VISIBILITY_SECONDS,
    account_url,
    assert_refused,
    content,
    create_now,
    messages_of,
    refusal_of,
)
from tasks import create


def changed(url, pattern, replacement):
    made = re.sub(pattern, replacement, url)
    assert made != url
    return QueueClient.from_queue_url(account_url(made))


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"sig=..", "sig=AA"),
        (r"&sig=[^&]*", ""),
        (r"sp=[^&]*", "sp=raup"),
        (r"se=20", "se=21"),
        (r"st=20", "st=19"),
        (r"/queue-(\d+)-1/", r"/queue-\1-2/"),
        (r"/queue-(\d+)-1/", r"/queue-1\1-1/"),
    ],
    ids=["signature", "no signature", "permissions", "expiry", "start", "priority", "queue"],
)
def test_a_url_that_was_changed_is_not_accepted(server, queue, queue_id, pattern, replacement):
    create(queue, queue_id)
    url = server.poll_urls(queue_id)["queues"][-1]["signedPollUrl"]
    messages = changed(url, pattern, replacement)
    for call in [messages.receive_message, messages.peek_messages, messages.get_queue_properties]:
        assert_refused(refusal_of(call), 403, "AuthenticationFailed", ClientAuthenticationError)
    assert messages_of(server, queue_id).peek_messages()[0].dequeue_count == 0


def test_a_url_ends(timed_server, queue_id):
    server = timed_server
    create_now(server, queue_id, deadline_in="2 hours")
    messages = messages_of(server, queue_id)
    server.advance(URL_VALID_SECONDS - 60)
    message = messages.receive_message()
    server.advance(61)
    for call in [messages.receive_message, lambda: messages.delete_message(message)]:
        assert_refused(refusal_of(call), 403, "AuthenticationFailed", ClientAuthenticationError)
    # The message itself has no URLs.
    messages_of(server, queue_id).delete_message(message)


def test_a_delete_url_gets_and_deletes_but_does_not_look_or_update(server, queue, queue_id):
    create(queue, queue_id)
    urls = server.poll_urls(queue_id)["queues"][-1]
    messages = QueueClient.from_queue_url(account_url(urls["signedDeleteUrl"]))
    message = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    for call in [
        messages.peek_messages,
        messages.get_queue_properties,
        lambda: messages.update_message(message, visibility_timeout=0),
    ]:
        assert_refused(refusal_of(call), 403, "AuthorizationPermissionMismatch")
    messages.delete_message(message)


def test_no_client_puts_or_clears_messages(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    for call in [
        lambda: messages.send_message("something"),
        messages.clear_messages,
        messages.create_queue,
        messages.delete_queue,
        lambda: messages.set_queue_metadata({"a": "b"}),
        lambda: messages.set_queue_access_policy({}),
    ]:
        assert_refused(refusal_of(call), 403, "AuthorizationPermissionMismatch")
    assert len(messages.peek_messages(max_messages=32)) == 1


def test_an_answer_names_the_request_that_it_is_for(server, queue, queue_id):
    create(queue, queue_id)
    answers = []
    options = {"raw_response_hook": answers.append, "client_request_id": "mine-17"}
    messages = messages_of(server, queue_id)
    message = messages.receive_message(**options)
    messages.delete_message(message, **options)
    with pytest.raises(ResourceNotFoundError):
        messages.delete_message(message, client_request_id="mine-17", raw_response_hook=answers.append)
    assert [answer.http_response.status_code for answer in answers] == [200, 204, 404]
    for answer in answers:
        headers = answer.http_response.headers
        assert headers["x-ms-client-request-id"] == "mine-17"
        assert headers["x-ms-version"] == answer.http_request.headers["x-ms-version"]
        assert uuid.UUID(headers["x-ms-request-id"])
        assert headers["cache-control"] == "no-cache"


# Other ways to send the same


def test_the_asynchronous_client_does_the_same(server, queue, queue_id):
    task_id = create(queue, queue_id)
    url = account_url(server.poll_urls(queue_id)["queues"][-1]["signedPollUrl"])

    async def receive_and_delete():
        async with AsyncQueueClient.from_queue_url(url) as messages:
            message = await messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
            await messages.delete_message(message)
            with pytest.raises(ResourceNotFoundError):
                await messages.delete_message(message)
            return content(message)

    assert asyncio.run(receive_and_delete()) == {"taskId": task_id, "runId": 0}


def test_an_empty_list_has_azures_form(server, queue_id):
    answer = requests.get(server.poll_urls(queue_id)["queues"][0]["signedPollUrl"], timeout=60)
    assert answer.content == b'<?xml version="1.0" encoding="utf-8"?><QueueMessagesList />'
    assert answer.headers["content-type"] == "application/xml"
