"""Claimed runs and the executors of their handlers, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenure import Tenure
from tenure.executors import Coroutines, Executor, OnEnd
from tenure.outcome import Ended
from tenure.processes import Processes
from tenure.run import Run

SOON = 30
DATE = "2026-01-01T00:00:00.000Z"

app = Tenure()


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        raise KeyError(self.number)


@app.task(queue="test/test")
async def waits() -> None:
    await asyncio.sleep(SOON)


@app.task(queue="test/test")
def picky(value: Picky) -> None: ...


@app.task(queue="test/test", cpu=True)
def computes(value: Any) -> Any:
    return value


class _Owner:
    def cancel(self, run: Run) -> None: ...


def _run(kind: str, **args: Any) -> Run:
    return _claimed({"kind": kind, "args": args})


def _claimed(payload: Any, **options: Any) -> Run:
    credentials = {"clientId": "c", "accessToken": "t"}
    status = {"taskId": "a", "retriesLeft": 5, "runs": [{"runId": 0, "started": DATE}]}
    dates = dict.fromkeys(("created", "deadline", "expires"), DATE)
    task = {**dates, "payload": payload, "extra": {"tenure": options}}
    claim = {"status": status, "runId": 0, "task": task, "takenUntil": DATE}
    link: Any = None
    return Run({**claim, "credentials": credentials}, "test/test", app.tasks, _Owner(), link)


def _ended(make: Callable[[OnEnd], Executor], use: Callable[[Executor], None]) -> list[Ended]:
    """Return the ends of the runs that were submitted, of which there is at least one."""

    async def end() -> list[Ended]:
        ends: list[Ended] = []
        came = asyncio.Event()

        def on_end(_run: Run, ended: Ended, _duration: float) -> None:
            ends.append(ended)
            came.set()

        executor = make(on_end)
        use(executor)
        await asyncio.wait_for(came.wait(), SOON)
        executor.close()
        return ends

    return asyncio.run(end())


def test_coroutine_cancelled_before_its_first_step_ends() -> None:
    def use(executor: Executor) -> None:
        run = _run("waits")
        run.job._cancel("cancelled")
        # Both orders reach the loop of the handlers together.
        executor.submit(run)
        executor.cancel(run)

    assert _ended(Coroutines, use) == [Ended("cancelled")]


def test_argument_that_cannot_be_sent_to_process_is_failure() -> None:
    def use(executor: Executor) -> None:
        run = _run("computes", value=1)
        run.arguments["value"] = lambda: None
        executor.submit(run)

    [ended] = _ended(lambda on_end: Processes(1, on_end), use)
    assert ended.how == "error"
    assert ended.failure is not None
    assert "pickle" in ended.failure["message"]


def test_cancelled_run_starts_in_no_process() -> None:
    def use(executor: Executor) -> None:
        run = _run("computes", value=1)
        run.job._cancel("cancelled")
        executor.submit(run)

    assert _ended(lambda on_end: Processes(1, on_end), use) == [Ended("cancelled")]


def test_error_of_argument_type_makes_payload_malformed() -> None:
    async def problem() -> str | None:
        return _run("picky", value={"number": 5}).problem

    assert asyncio.run(problem()) == "value: KeyError: 5"


def test_payload_of_another_library_is_read() -> None:
    async def read() -> None:
        for payload in ({"kind": "waits"}, {"kind": "waits", "args": None, "more": 1}):
            assert _claimed(payload).problem is None
        known = 'unknown kind "wait"; this worker has "computes", "picky", "waits"'
        assert _claimed({"kind": "wait"}).problem == known
        assert not _run("waits").has_backoff
        assert _claimed({"kind": "waits"}, retryDelay={"first": 5}).has_backoff

    asyncio.run(read())
