"""The poll API with Azure's own client of storage queues: getting, peeking, updating, deleting."""

import base64
import concurrent.futures
import datetime
import time
import uuid

import pytest
from azure.core.exceptions import ResourceNotFoundError

from azure_messages import (
    AT_MOST_SECONDS,
    PAST_THE_RESERVATION,
    PRIORITIES,
    VISIBILITY_SECONDS,
    assert_refused,
    content,
    create_now,
    messages_of,
    pending,
    receive_all,
    refusal_of,
)
from tasks import WORKER, claim, claim_one, create, instant

# Getting


def test_a_message_names_the_pending_run(server, queue, queue_id):
    task_id = create(queue, queue_id)
    task = queue.task(task_id)
    scheduled = instant(queue.status(task_id)["status"]["runs"][0]["scheduled"])
    messages = messages_of(server, queue_id)
    [message] = receive_all(messages, visibility_timeout=100)
    assert base64.b64decode(message.content) == b'{"taskId":"%s","runId":0}' % task_id.encode()
    assert str(uuid.UUID(message.id)) == message.id
    assert message.dequeue_count == 1
    assert message.pop_receipt
    assert message.inserted_on == scheduled.replace(microsecond=0)
    assert message.expires_on == instant(task["deadline"]).replace(microsecond=0)
    hidden_for = message.next_visible_on - datetime.datetime.now(datetime.timezone.utc)
    assert 80 < hidden_for.total_seconds() <= 100
    assert messages.receive_message() is None


def test_every_priority_has_a_queue_of_its_own(server, queue, queue_id):
    tasks = {priority: create(queue, queue_id, priority=priority) for priority in reversed(PRIORITIES)}
    assert len(server.poll_urls(queue_id)["queues"]) == len(PRIORITIES)
    for priority in PRIORITIES:
        [message] = receive_all(messages_of(server, queue_id, priority))
        assert content(message)["taskId"] == tasks[priority]


def test_33_messages_are_a_page_of_32_and_one_of_1_oldest_first(server, queue, queue_id):
    tasks = [create(queue, queue_id) for _ in range(33)]
    messages = messages_of(server, queue_id)
    received = messages.receive_messages(messages_per_page=32, visibility_timeout=VISIBILITY_SECONDS)
    pages = [[content(message)["taskId"] for message in page] for page in received.by_page()]
    assert pages == [tasks[:32], tasks[32:]]


def test_max_messages_may_span_pages(server, queue, queue_id):
    for _ in range(35):
        create(queue, queue_id)
    messages = messages_of(server, queue_id)
    received = receive_all(messages, messages_per_page=32, max_messages=33, visibility_timeout=VISIBILITY_SECONDS)
    assert len({message.id for message in received}) == 33
    assert len(receive_all(messages, messages_per_page=32, visibility_timeout=VISIBILITY_SECONDS)) == 2


def test_a_page_of_33_is_refused(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    error = refusal_of(receive_all, messages, messages_per_page=33, max_messages=33)
    assert_refused(error, 400, "OutOfRangeQueryParameterValue")
    assert error.additional_info == {
        "queryparametername": "numofmessages",
        "queryparametervalue": "33",
        "minimumallowed": "1",
        "maximumallowed": "32",
    }
    # That hid nothing.
    assert messages.receive_message().dequeue_count == 1


@pytest.mark.parametrize("seconds", [0, 7 * 24 * 3600 + 1])
def test_a_message_is_hidden_for_1_second_to_7_days(server, queue, queue_id, seconds):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    error = refusal_of(messages.receive_message, visibility_timeout=seconds)
    assert_refused(error, 400, "OutOfRangeQueryParameterValue")
    assert error.additional_info["queryparametername"] == "visibilitytimeout"


def test_pollers_at_the_same_time_never_get_the_same_message(server, queue, queue_id):
    tasks = {create(queue, queue_id) for _ in range(60)}

    def poll(_):
        messages = messages_of(server, queue_id)
        received = receive_all(messages, messages_per_page=4, visibility_timeout=VISIBILITY_SECONDS)
        return [content(message)["taskId"] for message in received]

    with concurrent.futures.ThreadPoolExecutor(4) as pollers:
        got = [task for found in pollers.map(poll, range(4)) for task in found]
    # An answer may be empty while another poller's answer is in preparation, so all four may stop
    # early.
    got += poll(None)
    assert len(got) == len(set(got))
    assert set(got) == tasks


def test_a_message_comes_back_with_a_higher_count_and_another_receipt(timed_server, queue_id):
    server = timed_server
    create_now(server, queue_id)
    messages = messages_of(server, queue_id)
    seen = []
    for count in range(1, 5):
        message = messages.receive_message(visibility_timeout=100)
        assert message.dequeue_count == count
        server.advance(60)
        assert messages.receive_message() is None
        server.advance(41)
        seen.append(message)
    assert len({message.id for message in seen}) == 1
    assert len({message.pop_receipt for message in seen}) == 4


def test_in_real_time_a_message_comes_back_after_its_second(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    began = time.monotonic()
    messages.receive_message(visibility_timeout=1)
    while (again := messages.receive_message()) is None:
        assert time.monotonic() - began < AT_MOST_SECONDS
    assert again.dequeue_count == 2
    assert time.monotonic() - began >= 1


def test_messages_end_with_their_deadline(timed_server, queue_id):
    server = timed_server
    create_now(server, queue_id, deadline_in="5 minutes")
    messages = messages_of(server, queue_id)
    message = messages.receive_message(visibility_timeout=1)
    server.advance(301)
    assert messages.receive_message() is None
    assert_refused(refusal_of(messages.delete_message, message), 404, "MessageNotFound", ResourceNotFoundError)


# Peeking and counting


def test_peeking_changes_nothing(server, queue, queue_id):
    tasks = [create(queue, queue_id) for _ in range(3)]
    messages = messages_of(server, queue_id)
    for _ in range(2):
        peeked = messages.peek_messages(max_messages=32)
        assert [content(message)["taskId"] for message in peeked] == tasks
        assert [(message.dequeue_count, message.pop_receipt) for message in peeked] == [(0, None)] * 3
    assert [content(message)["taskId"] for message in messages.peek_messages()] == tasks[:1]
    assert messages.receive_message(visibility_timeout=VISIBILITY_SECONDS).dequeue_count == 1
    assert len(messages.peek_messages(max_messages=32)) == 2


def test_the_count_of_messages_includes_hidden_ones(server, queue, queue_id):
    messages = messages_of(server, queue_id)
    assert messages.get_queue_properties().approximate_message_count == 0
    for _ in range(5):
        create(queue, queue_id)
    create(queue, queue_id, priority="high")
    messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    properties = messages.get_queue_properties()
    assert (properties.approximate_message_count, properties.name) == (5, messages.queue_name)


# Updating


def test_an_update_hides_a_message_for_another_time(timed_server, queue_id):
    server = timed_server
    create_now(server, queue_id)
    messages = messages_of(server, queue_id)
    first = messages.receive_message(visibility_timeout=10)
    updated = messages.update_message(first.id, first.pop_receipt, visibility_timeout=100)
    assert updated.id == first.id
    assert updated.pop_receipt != first.pop_receipt
    now = instant(server.now())
    assert 80 < (updated.next_visible_on - now).total_seconds() <= 100
    server.advance(60)
    assert messages.receive_message() is None
    server.advance(41)
    assert messages.receive_message().dequeue_count == 2


def test_an_update_by_0_shows_a_message_at_once(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    first = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    messages.update_message(first.id, first.pop_receipt, visibility_timeout=0)
    second = messages.receive_message()
    assert (second.id, second.dequeue_count) == (first.id, 2)
    assert second.pop_receipt != first.pop_receipt


def test_a_message_that_was_shown_again_is_claimable_at_once(server, queue, queue_id):
    task_id = create(queue, queue_id)
    messages = messages_of(server, queue_id)
    message = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    messages.update_message(message, visibility_timeout=0)
    assert claim_one(queue, queue_id)["status"]["taskId"] == task_id


def test_an_update_may_repeat_the_content_but_not_change_it(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    first = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    # The SDK sends the whole content of a message.
    second = messages.update_message(first, visibility_timeout=VISIBILITY_SECONDS)
    assert second.content == first.content
    other = base64.b64encode(b'{"taskId":"AAAAAAAAQAiAAAAAAAAAAA","runId":0}').decode()
    for text in [other, "", "something else", "<&>"]:
        error = refusal_of(messages.update_message, second.id, second.pop_receipt, text, visibility_timeout=0)
        assert_refused(error, 400, "InvalidXmlNodeValue")
    # The receipt is still valid, and the message still hidden.
    assert messages.receive_message() is None
    messages.delete_message(second)


def test_an_update_makes_the_old_receipt_stale(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    first = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    second = messages.update_message(first, visibility_timeout=VISIBILITY_SECONDS)
    assert_refused(refusal_of(messages.delete_message, first), 400, "PopReceiptMismatch")
    assert_refused(refusal_of(messages.update_message, first, visibility_timeout=0), 400, "PopReceiptMismatch")
    messages.delete_message(second)
    assert_refused(refusal_of(messages.update_message, second), 404, "MessageNotFound", ResourceNotFoundError)


# Deleting


def test_a_receipt_is_valid_until_another_poller_gets_the_message(timed_server, queue_id):
    server = timed_server
    create_now(server, queue_id)
    create_now(server, queue_id)
    messages = messages_of(server, queue_id)
    late, other = receive_all(messages, messages_per_page=2, max_messages=2, visibility_timeout=10)
    server.advance(11)
    # Visible again, but not received.
    messages.delete_message(late)
    again = messages.receive_message(visibility_timeout=10)
    assert again.id == other.id
    assert_refused(refusal_of(messages.delete_message, other), 400, "PopReceiptMismatch")
    messages.delete_message(again)


def test_a_message_is_deleted_once(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    message = messages.receive_message()
    messages.delete_message(message)
    error = refusal_of(messages.delete_message, message)
    assert_refused(error, 404, "MessageNotFound", ResourceNotFoundError)
    assert messages.receive_message() is None


@pytest.mark.parametrize("made_up", ["nothing", str(uuid.UUID(int=0)), str(uuid.uuid4())])
def test_a_message_that_never_was_is_not_found(server, queue, queue_id, made_up):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    receipt = messages.receive_message().pop_receipt
    error = refusal_of(messages.delete_message, made_up, receipt)
    assert_refused(error, 404, "MessageNotFound", ResourceNotFoundError)


def test_a_made_up_receipt_deletes_nothing(server, queue, queue_id):
    create(queue, queue_id)
    messages = messages_of(server, queue_id)
    message = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    for receipt in ["nothing", message.pop_receipt.replace("+", " "), message.pop_receipt + "A"]:
        assert_refused(refusal_of(messages.delete_message, message.id, receipt), 400, "PopReceiptMismatch")
    messages.delete_message(message)


def test_a_message_deleted_too_early_takes_no_work_away(timed_server, queue_id):
    server = timed_server
    task_id = create_now(server, queue_id)
    messages = messages_of(server, queue_id)
    deleted = messages.receive_message()
    messages.delete_message(deleted)
    assert pending(server, queue_id) == 1
    server.advance(VISIBILITY_SECONDS - 60)
    assert messages.receive_message() is None
    server.advance(61)
    message = messages.receive_message()
    assert (content(message), message.dequeue_count) == ({"taskId": task_id, "runId": 0}, 1)
    assert message.id != deleted.id
    assert_refused(refusal_of(messages.delete_message, deleted), 404, "MessageNotFound", ResourceNotFoundError)


def test_a_run_whose_message_was_deleted_is_still_given_by_claim_work(server, queue, queue_id):
    task_id = create(queue, queue_id)
    messages = messages_of(server, queue_id)
    messages.delete_message(messages.receive_message())
    assert claim_one(queue, queue_id)["status"]["taskId"] == task_id


# Claiming


def test_the_message_of_a_claimed_run_is_gone(server, queue, queue_id):
    task_id = create(queue, queue_id)
    messages = messages_of(server, queue_id)
    message = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    assert pending(server, queue_id) == 1
    found = content(message)
    claimed = queue.claimTask(found["taskId"], found["runId"], WORKER)
    assert claimed["status"]["taskId"] == task_id
    # Nothing was deleted.
    assert pending(server, queue_id) == 0
    assert messages.get_queue_properties().approximate_message_count == 0
    assert messages.peek_messages() == []
    error = refusal_of(messages.delete_message, message)
    assert_refused(error, 404, "MessageNotFound", ResourceNotFoundError)
    error = refusal_of(messages.update_message, message, visibility_timeout=0)
    assert_refused(error, 404, "MessageNotFound", ResourceNotFoundError)
    assert server.queue(claimed["credentials"]).reportCompleted(task_id, 0)["status"]["state"] == "completed"


def test_claim_work_gives_a_run_whose_message_is_hidden_and_takes_the_message_away(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue_id)
    messages = messages_of(server, queue_id)
    message = messages.receive_message(visibility_timeout=VISIBILITY_SECONDS)
    assert claim(queue, queue_id) == []
    server.advance(PAST_THE_RESERVATION)
    assert claim_one(queue, queue_id)["status"]["taskId"] == task_id
    assert_refused(refusal_of(messages.delete_message, message), 404, "MessageNotFound", ResourceNotFoundError)


def test_in_real_time_claim_work_waits_for_a_poller_for_two_seconds(server, queue, queue_id):
    task_id = create(queue, queue_id)
    began = time.monotonic()
    messages_of(server, queue_id).receive_message(visibility_timeout=VISIBILITY_SECONDS)
    while not (claims := claim(queue, queue_id)):
        assert time.monotonic() - began < AT_MOST_SECONDS
    assert claims[0]["status"]["taskId"] == task_id
    assert time.monotonic() - began >= 2


def test_a_retry_is_another_message(timed_server, queue_id):
    server, queue = timed_server, timed_server.queue()
    task_id = create_now(server, queue_id)
    messages = messages_of(server, queue_id)
    first = messages.receive_message()
    queue.claimTask(task_id, 0, WORKER)
    server.advance(61)
    second = messages.receive_message()
    assert (content(second), second.dequeue_count) == ({"taskId": task_id, "runId": 1}, 1)
    assert second.id != first.id
    assert_refused(refusal_of(messages.delete_message, first), 404, "MessageNotFound", ResourceNotFoundError)
    messages.delete_message(second)
