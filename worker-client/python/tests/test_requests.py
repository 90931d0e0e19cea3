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


def test_subscription_has_receiver_and_filter(script: Script) -> None:
    task, server = script(httpx.Response(200, json={"name": "billing"}))
    billing = task.app.subscription("billing/1")
    assert billing.set("https://example.com/") == {"name": "billing"}
    billing.set(
        "https://example.com/",
        exchanges=["task-completed"],
        result=True,
        batch=100,
        secret="whsec_1",
        giveUpAfter=3600,
    )
    assert billing.test() == billing.show() == {"name": "billing"}
    billing.resume()
    billing.resume("latest")
    billing.delete()
    path = "/api/tenure/v1/subscriptions/billing%2F1"
    assert server.calls == [
        f"PUT {path}",
        f"PUT {path}",
        f"POST {path}/test",
        f"GET {path}",
        f"POST {path}/resume",
        f"POST {path}/resume",
        f"DELETE {path}",
    ]
    plain, full = (json.loads(request.content) for request in server.requests[:2])
    webhook = {"url": "https://example.com/"}
    assert plain == {"to": {"webhook": webhook}, "result": False}
    assert full == {
        "to": {"webhook": {**webhook, "secret": "whsec_1"}},
        "exchange": ["task-completed"],
        "result": True,
        "batch": 100,
        "giveUpAfter": 3600,
    }


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


def test_statistics_of_queue_and_all_are_read(script: Script) -> None:
    task, server = script(httpx.Response(200, json={"step": 60, "points": [{"created": 1}]}))
    app = task.app
    assert app.statistics("mail", since=7_200, step=600) == [{"created": 1}]
    app.statistics()
    of_queue, of_all = server.requests
    paths = [call.partition("?")[0] for call in server.calls]
    assert paths == [
        "GET /api/tenure/v1/queues/default%2Fmail/statistics",
        "GET /api/tenure/v1/statistics",
    ]
    assert of_queue.url.params["step"] == "600"
    assert "step" not in of_all.url.params
    begins = [datetime.datetime.fromisoformat(r.url.params["from"]) for r in server.requests]
    assert begins[1] - begins[0] > datetime.timedelta(minutes=59)


def test_wrong_time_of_statistics_is_refused(script: Script) -> None:
    task, server = script(httpx.Response(200, json={}))
    for since in (-1, 91 * 86_400):
        with pytest.raises(ValueError, match="since"):
            task.app.statistics(since=since)
    assert server.calls == []


def test_dead_letters_are_read_page_by_page(script: Script) -> None:
    first = httpx.Response(200, json={"deadLetters": [], "continuationToken": "MQ"})
    last = httpx.Response(200, json={"deadLetters": [{"taskId": "T"}]})
    task, server = script(first, last)
    before = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)
    letters = task.app.dead_letters("mail", reason="failed", before=before)
    assert [letter["taskId"] for letter in letters] == ["T"]
    path = "GET /api/tenure/v1/queues/default%2Fmail/dead-letters?reason=failed"
    path += "&before=2026-01-31T12%3A00%3A00%2B00%3A00"
    assert server.calls == [path, f"{path}&continuationToken=MQ"]
    with pytest.raises(ValueError, match="before must have a time zone"):
        task.app.dead_letters("mail", before=datetime.datetime(2026, 1, 31))


def test_redrive_sends_given_conditions_only(script: Script) -> None:
    answer = {"redriven": 1, "copied": 0, "refusedCount": 0, "refused": []}
    task, server = script(httpx.Response(200, json=answer))
    assert task.app.redrive("mail") == answer
    task.app.redrive("mail", limit=5, copy=datetime.timedelta(days=1), continuation_token="MQ")
    task.app.redrive("mail", tasks=["T"])
    assert server.calls == ["POST /api/tenure/v1/queues/default%2Fmail/redrive"] * 3
    bodies = [json.loads(request.content) for request in server.requests]
    copy = {"deadlineAfter": 86_400}
    assert bodies == [
        {},
        {"limit": 5, "copy": copy, "continuationToken": "MQ"},
        {"taskIds": ["T"]},
    ]
    with pytest.raises(ValueError, match="copy"):
        task.app.redrive("mail", copy=-1)


def test_tasks_are_listed_page_by_page(script: Script) -> None:
    first = httpx.Response(200, json={"tasks": [], "continuationToken": "MQ"})
    last = httpx.Response(200, json={"tasks": [{"taskId": "T"}]})
    task, server = script(first, last)
    since = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)
    tasks = task.app.list_tasks(queue="mail", state="failed", name="a b", since=since)
    assert [one["taskId"] for one in tasks] == ["T"]
    path = "GET /api/tenure/v1/tasks?taskQueueId=default%2Fmail&state=failed&name=a+b"
    path += "&since=2026-01-31T12%3A00%3A00%2B00%3A00"
    assert server.calls == [path, f"{path}&continuationToken=MQ"]
    with pytest.raises(ValueError, match="since must have a time zone"):
        task.app.list_tasks(since=datetime.datetime(2026, 1, 31))


def test_jobs_are_started_read_and_stopped(script: Script) -> None:
    task, server = script(httpx.Response(200, json={"jobId": "J", "found": 2, "more": False}))
    failed = {"taskQueueId": "acme/mail", "state": "failed"}
    assert task.app.start_job("rerun", filter=failed)["found"] == 2
    task.app.start_job("priority", tasks=["T"], priority="high")
    task.app.read_job("J")
    task.app.stop_job("J")
    jobs = "/api/tenure/v1/jobs"
    assert server.calls == [f"POST {jobs}", f"POST {jobs}", f"GET {jobs}/J", f"POST {jobs}/J/stop"]
    bodies = [json.loads(request.content) for request in server.requests[:2]]
    ids = {body.pop("jobId") for body in bodies}
    assert len(ids) == 2
    assert all(len(job) == 22 and not job.startswith("-") for job in ids)
    assert bodies == [
        {"action": "rerun", "filter": failed},
        {"action": "priority", "taskIds": ["T"], "priority": "high"},
    ]


def test_audit_is_read_page_by_page(script: Script) -> None:
    first = httpx.Response(200, json={"audit": [{"id": 2}], "continuationToken": "Mg"})
    empty = httpx.Response(200, json={"audit": [], "continuationToken": "MQ"})
    last = httpx.Response(200, json={"audit": [{"id": 1}]})
    task, server = script(first, empty, last)
    zone = datetime.timezone(datetime.timedelta(hours=1))
    after = datetime.datetime(2026, 1, 31, 13, tzinfo=zone)
    entries = task.app.audit(client="acme/ops", action="cancelTask", after=after)
    assert server.requests == []
    assert [entry["id"] for entry in entries] == [2, 1]
    path = "GET /api/tenure/v1/audit?client=acme%2Fops&action=cancelTask"
    path += "&after=2026-01-31T12%3A00%3A00%2B00%3A00"
    assert server.calls == [path, f"{path}&continuationToken=Mg", f"{path}&continuationToken=MQ"]
    assert list(task.app.audit()) == [{"id": 1}]
    assert server.calls[-1] == "GET /api/tenure/v1/audit"
    with pytest.raises(ValueError, match="must have a time zone"):
        task.app.audit(after=datetime.datetime(2026, 1, 31))
