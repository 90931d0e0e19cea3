"""Jobs that the Python and the Rust library enqueue for each other, on a real server.

The program in Rust is tests/src/bin/rust_jobs.rs. It has handlers of the same names as jobs.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Bench, bench_of

from tenure import JobFailed, JobRequest, Options, Tenure
from tenure.lease import date_of
from tenure.testing import Server

SOON = 60
DUE = datetime.datetime(2026, 12, 24, 18, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


def _command(bench: Bench, *arguments: str) -> tuple[list[str], dict[str, str]]:
    names = {
        "TASKCLUSTER_ROOT_URL": bench.server.url,
        "TASKCLUSTER_CLIENT_ID": bench.server.client_id,
        "TASKCLUSTER_ACCESS_TOKEN": bench.server.access_token,
    }
    return [os.environ["TENURE_TEST_RUST_JOBS"], *arguments], {**bench.environ, **names}


def _rust(bench: Bench, *arguments: str) -> Any:
    """Run the program in Rust, and return what it prints."""
    command, environ = _command(bench, *arguments)
    done = subprocess.run(
        command, env=environ, capture_output=True, encoding="utf-8", timeout=SOON, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _add(bench: Bench, kind: str, args: Any = None, **options: Any) -> str:
    """Enqueue a job by the library for Rust, and return its id."""
    made: str = _rust(bench, "add", bench.queue, kind, json.dumps(args), json.dumps(options))
    return made


@pytest.fixture(scope="module")
def rust_worker(live_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench whose worker is in Rust."""
    with pytest.MonkeyPatch.context() as patch:
        for bench in bench_of(live_server, tmp_path_factory.mktemp("rust"), patch):
            command, environ = _command(bench, "work", bench.queue)
            worker = subprocess.Popen(command, env=environ)
            bench.app()
            try:
                yield bench
            finally:
                worker.terminate()
                assert worker.wait(SOON) == 0


def _pause(bench: Bench, job_id: str) -> float:
    """Return the seconds between the first and the second attempt of a job."""
    first, second = bench.status(job_id)["runs"][:2]
    return (date_of(second["started"]) - date_of(first["resolved"])).total_seconds()


def test_rust_enqueues_typed_job_for_python(working: Bench) -> None:
    tea, cup = {"name": "tea", "count": 2, "price": 1.25}, {"name": "cup", "count": 1, "price": 3}
    args = {
        "customer": "Åsa",
        "items": [tea, cup],
        "due": "2026-12-24T18:00:00+02:00",
        "urgency": "high",
    }
    job_id = _add(working, "order", args)
    assert _rust(working, "receipt", job_id) == {
        "customer": "Åsa",
        "total": 5.5,
        "due": "2026-12-24T16:00:00Z",
        "urgent": True,
        "note": None,
    }
    assert _rust(working, "result", _add(working, "sweep")) == {"result": None}


def test_python_enqueues_typed_job_for_rust(rust_worker: Bench) -> None:
    jobs = rust_worker.jobs
    items = [jobs.Item("tea", 2, 1.25), jobs.Item("cup", 1, 3)]
    handle = jobs.order.enqueue("Åsa", items, due=DUE, urgency=jobs.Urgency.HIGH)
    receipt = handle.result(timeout=SOON)
    assert dataclasses.asdict(receipt) == {
        "customer": "Åsa",
        "total": 5.5,
        "due": DUE,
        "urgent": True,
        "note": None,
    }
    assert jobs.sweep.enqueue().result(timeout=SOON) is None


def test_rust_reads_failure_of_python(working: Bench) -> None:
    job_id = _add(working, "sell", {"item": "tea"}, retries=0)
    ended = _rust(working, "result", job_id)
    assert (ended["state"], ended["reason"]) == ("failed", "failed")
    assert ended["failure"].keys() == {"kind", "message"}
    assert ended["failure"]["kind"] == "OutOfStock"
    message = ended["failure"]["message"]
    assert message.startswith("no tea is left\n\nTraceback (most recent call last):\n")
    assert 'raise OutOfStock(f"no {item} is left")' in message
    assert working.reasons(job_id) == ["failed"]


def test_python_reads_failure_of_rust(rust_worker: Bench) -> None:
    handle = rust_worker.jobs.sell.enqueue("tea")
    with pytest.raises(JobFailed) as failed:
        handle.result(timeout=SOON)
    error = failed.value
    assert (error.state, error.reason) == ("failed", "failed")
    assert (error.kind, error.message, error.exit_code) == ("OutOfStock", "no tea is left", 3)
    # It is final, although the job has retries.
    assert rust_worker.reasons(handle.id) == ["failed"]


def test_backoff_of_rust_is_followed_by_python(working: Bench) -> None:
    job_id = _add(working, "busy", retries=1, backoff=[1, 9])
    assert _rust(working, "result", job_id) == {"result": 2}
    assert working.reasons(job_id) == ["intermittent-task", "completed"]
    # The task says 0.
    assert _pause(working, job_id) >= 1
    failure = working.jobs.app.handle(job_id).failure(0)
    assert failure is not None
    assert failure["kind"] == "ConnectionError"


def test_backoff_of_python_is_followed_by_rust(rust_worker: Bench) -> None:
    handle = rust_worker.jobs.busy.options(retries=1, backoff=(1, 9)).enqueue()
    assert handle.result(timeout=SOON) == 2
    assert rust_worker.reasons(handle.id) == ["intermittent-task", "completed"]
    assert _pause(rust_worker, handle.id) >= 1
    assert handle.failure(0) == {"message": "the shop is closed"}


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("sell", {"item": 5}, "item: expected text, got an integer '5'"),
        ("sell", {}, "the argument 'item' is missing"),
        ("sell", ["tea"], "args must be an object, not a list"),
        ("sale", {"item": "tea"}, 'unknown kind "sale"; this worker has "anote", "asleep", '),
    ],
)
def test_wrong_job_of_rust_is_malformed_for_python(
    working: Bench, kind: str, args: Any, message: str
) -> None:
    ended = _rust(working, "result", _add(working, kind, args))
    assert (ended["state"], ended["reason"]) == ("exception", "malformed-payload")
    assert ended["failure"]["kind"] == "malformed-payload"
    assert ended["failure"]["message"].startswith(f"malformed payload: {message}")


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("sell", {"item": 5}, "invalid type: integer `5`, expected a string"),
        ("sell", {}, "missing field `item`"),
        ("sale", {"item": "tea"}, 'unknown kind "sale"; this worker has "busy", "order", "sell", '),
    ],
)
def test_wrong_job_of_python_is_malformed_for_rust(
    rust_worker: Bench, kind: str, args: Any, message: str
) -> None:
    app = Tenure()
    rust_worker.server.connect(app)

    @app.task(queue=rust_worker.queue, name=kind)
    def task() -> None: ...

    [handle] = app.enqueue_many([JobRequest(task, args, Options())])
    with pytest.raises(JobFailed) as failed:
        handle.result(timeout=SOON)
    error = failed.value
    assert (error.state, error.reason) == ("exception", "malformed-payload")
    assert error.kind == "malformed-payload"
    assert error.message is not None
    assert error.message.startswith(f"malformed payload: {message}")


def test_both_write_the_same_job(bench: Bench) -> None:
    options: dict[str, Any] = {"delay": 3600, "key": "customer-7", "priority": "high", "retries": 3}
    options.update(unique="customer-7", on_duplicate="queue")
    handle = bench.app().sell.options(**options, backoff=(2, 300)).enqueue("tea")
    job_id = _add(bench, "sell", {"item": "tea"}, **options, backoff=[2, 300])

    def definition(task_id: str) -> dict[str, Any]:
        task: dict[str, Any] = bench.server.call("GET", f"/api/queue/v1/task/{task_id}")
        # Ids and dates differ.
        task["metadata"]["source"] = task["metadata"]["source"].replace(task_id, "")
        own = ("taskGroupId", "created", "deadline", "expires")
        return {name: value for name, value in task.items() if name not in own}

    assert definition(job_id) == definition(handle.id)
    task = definition(job_id)
    assert task["payload"] == {"kind": "sell", "args": {"item": "tea"}}
    assert (task["priority"], task["retries"]) == ("high", 3)
    backoff = {"first": 2, "factor": 2, "most": 300}
    assert task["extra"]["tenure"] == {
        "delay": 3600,
        "key": "customer-7",
        "unique": "customer-7",
        "onDuplicate": "queue",
        "retryDelay": backoff,
    }
    why = bench.server.call("GET", f"/api/tenure/v1/tasks/{handle.id}/why")
    assert why["reasons"][0]["code"] == "delay"
    why = bench.server.call("GET", f"/api/tenure/v1/tasks/{job_id}/why")
    assert why["reasons"][0]["code"] == "dependencies"
