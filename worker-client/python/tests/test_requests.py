"""Requests of the library, and what it makes of answers, without a server."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tenure import CatchUp, DuplicateJob, RequestRefused, Tenure
from tenure.client import AsyncClient, Client
from tenure.task import Task

URL = "http://127.0.0.1:1"
HOLDER = "9HrBC1jMQ3KlZw4CssPUeQ"
FULL = {"code": "BacklogLimitReached", "message": "queue test/test has 5 tasks"}


class Scripted:
    """A server that sends these answers in turn, and then the last one again."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        # A response is read once.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    @property
    def calls(self) -> list[str]:
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    @property
    def keys(self) -> list[str]:
        return [request.headers["idempotency-key"] for request in self.requests]


Script = Callable[..., tuple[Task[..., Any], Scripted]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    def make(*answers: httpx.Response | Exception) -> tuple[Task[..., Any], Scripted]:
        server = Scripted(*answers)
        app = Tenure(URL)

        async def sleep(seconds: float) -> None:
            server.pauses.append(seconds)

        monkeypatch.setattr(time, "sleep", server.pauses.append)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        transport = httpx.MockTransport(server.answer)
        client = Client(app.settings)
        client._http = httpx.Client(transport=transport)
        async_client = AsyncClient(app.settings)
        async_client._http = httpx.AsyncClient(transport=transport)
        monkeypatch.setattr(Tenure, "client", client)
        monkeypatch.setattr(Tenure, "async_client", async_client)

        def handler(text: str = "") -> str: ...

        return app.task(queue="test/test")(handler), server

    return make


def _created(jobs: int) -> httpx.Response:
    return httpx.Response(200, json={"tasks": [{"taskId": HOLDER}] * jobs})


def _full(after: str = "5") -> httpx.Response:
    return httpx.Response(429, json=FULL, headers={"retry-after": after})


def test_unique_name_is_an_option_of_the_task(script: Script) -> None:
    task, server = script(_created(1))
    task.options(unique="nightly", key="k").enqueue()
    handle = task.options(unique="nightly", on_duplicate="coalesce").enqueue()
    assert handle.id == HOLDER
    options = [body["options"] for body in server.bodies]
    assert options[0] == {"unique": "nightly", "key": "k"}
    assert options[1] == {"unique": "nightly", "onDuplicate": "coalesce"}


def test_request_has_at_most_200_names(script: Script) -> None:
    task, server = script(*(_created(jobs) for jobs in (200, 3)))
    named = [task.options(unique=f"name-{n}").job() for n in range(201)]
    assert len(task.app.enqueue_many([*named, task.job(), task.job()])) == 203
    assert [len(body["tasks"]) for body in server.bodies] == [200, 3]


@pytest.mark.parametrize(("entry", "named"), [(7, "7"), ("nightly", "nightly"), (None, None)])
def test_duplicate_names_its_holder(script: Script, entry: Any, named: str | None) -> None:
    refusal = {"code": "DuplicateTask", "message": "the name is taken\nmore", "taskId": HOLDER}
    task, server = script(httpx.Response(409, json={**refusal, "entry": entry}))
    with pytest.raises(DuplicateJob) as refused:
        task.options(unique="nightly").enqueue()
    error = refused.value
    assert (error.holder, error.entry, error.message) == (HOLDER, named, "the name is taken")
    assert len(server.requests) == 1


def test_duplicate_without_holder_is_a_refusal(script: Script) -> None:
    task, _ = script(httpx.Response(409, json={"code": "DuplicateTask", "taskId": 7}))
    with pytest.raises(RequestRefused) as refused:
        task.options(unique="nightly").enqueue()
    assert not isinstance(refused.value, DuplicateJob)
    assert (refused.value.status, refused.value.code) == (409, "DuplicateTask")


def test_full_queue_is_retried_when_it_says(script: Script) -> None:
    task, server = script(_full(), _full("7"), _created(1))
    assert task.enqueue().id == HOLDER
    assert server.pauses == [5, 7]
    assert len(set(server.keys)) == 1

    task, server = script(_full(), _created(1))
    assert asyncio.run(task.aenqueue()).id == HOLDER
    assert server.pauses == [5]


def test_queue_that_stays_full_is_an_error_within_half_a_minute(script: Script) -> None:
    task, server = script(_full())
    with pytest.raises(RequestRefused) as refused:
        task.enqueue()
    assert (refused.value.status, refused.value.code) == (429, "BacklogLimitReached")
    assert refused.value.retry_after == 5
    assert server.pauses == [5] * 5


def test_schedule_has_pattern_and_job(script: Script) -> None:
    task, server = script(httpx.Response(200, json={"next": []}))
    job = task.options(unique="nightly", deadline=datetime.timedelta(seconds=59.5)).job("hi")
    schedule = task.app.schedule("nightly/1")
    assert schedule.set(job, cron="0 3 * * *", timezone="Europe/Berlin", catch_up="all") == {
        "next": []
    }
    asyncio.run(schedule.aset(task.job(), cron="@daily"))
    assert server.calls == ["PUT /api/tenure/v1/schedules/nightly%2F1"] * 2
    definition = {
        "taskQueueId": "test/test",
        "payload": {"kind": "handler", "args": {"text": "hi"}},
        "metadata": {"name": "handler"},
        "retries": 5,
        "options": {"unique": "nightly"},
    }
    assert server.bodies[0] == {
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "catchUp": "all",
        "deadlineAfter": 60,
        "task": definition,
    }
    assert server.bodies[1].keys() == {"cron", "timezone", "catchUp", "task"}


@pytest.mark.parametrize(
    ("options", "catch_up", "message"),
    [
        ({"after": [HOLDER]}, "last", "cannot wait for other jobs"),
        (
            {"deadline": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)},
            "last",
            "must be seconds, not a date",
        ),
        ({}, "some", "catch_up must be one of none, last, all"),
    ],
)
def test_wrong_schedule_is_refused(
    script: Script, options: dict[str, Any], catch_up: CatchUp, message: str
) -> None:
    task, server = script(_created(1))
    with pytest.raises(ValueError, match=message):
        task.app.schedule("nightly").set(
            task.options(**options).job(), cron="@daily", catch_up=catch_up
        )
    assert server.requests == []


def test_lost_trigger_is_repeated_with_its_key(script: Script) -> None:
    triggered = httpx.Response(200, json={"taskId": HOLDER})
    task, server = script(httpx.ReadError("the connection was cut"), triggered)
    schedule = task.app.schedule("nightly")
    assert schedule.trigger().id == HOLDER
    assert asyncio.run(schedule.atrigger()).id == HOLDER
    first, again, other = server.keys
    assert first == again != other
    assert server.calls == ["POST /api/tenure/v1/schedules/nightly/trigger"] * 3


def test_schedule_is_shown_paused_and_deleted(script: Script) -> None:
    task, server = script(httpx.Response(200, json={"name": "nightly"}))
    schedule = task.app.schedule("nightly")
    assert schedule.show() == {"name": "nightly"}
    schedule.pause()
    schedule.resume()
    schedule.delete()
    path = "/api/tenure/v1/schedules/nightly"
    assert server.calls == [
        f"GET {path}",
        f"POST {path}/pause",
        f"POST {path}/resume",
        f"DELETE {path}",
    ]
