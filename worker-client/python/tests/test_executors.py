"""Claimed runs and the executors of their handlers, without a server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tenure import Job, RunLost, Tenure, processes
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


@dataclass
class Local:
    """Another process cannot read what pickle makes of it."""

    number: int

    def __setstate__(self, state: object) -> None:
        raise LookupError("only here")


@app.task(queue="test/test", cpu=True)
def counts(value: Local) -> int:
    return value.number


@app.task(queue="test/test", cpu=True)
def dies_with_child(pid_file: str) -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(2 * SOON)
        os._exit(0)
    Path(pid_file).write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(queue="test/test", cpu=True)
def stores(job: Job) -> None:
    job.checkpoint(1)


@app.task(queue="test/test", cpu=True)
def leaves_thread(job: Job) -> None:
    def speak() -> None:
        time.sleep(0.3)
        job.log("late")
        with contextlib.suppress(RunLost):
            job.checkpoint("late")

    threading.Thread(target=speak, daemon=True).start()


@app.task(queue="test/test", cpu=True)
def sleeps(seconds: float) -> None:
    time.sleep(seconds)


@app.task(queue="test/test", cpu=True)
def waits_for(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.01)


@app.task(queue="test/test", cpu=True)
def shows_span(job: Job) -> Any:
    return [job.traceparent, os.environ.get("TRACEPARENT")]


class _Owner:
    def cancel(self, run: Run) -> None: ...


def _run(kind: str, **args: Any) -> Run:
    return _claimed({"kind": kind, "args": args})


def _claimed(payload: Any, traceparent: str | None = None, **options: Any) -> Run:
    credentials = {"clientId": "c", "accessToken": "t"}
    status = {"taskId": "a", "retriesLeft": 5, "runs": [{"runId": 0, "started": DATE}]}
    dates = dict.fromkeys(("created", "deadline", "expires"), DATE)
    task = {**dates, "payload": payload, "extra": {"tenure": options}}
    claim = {"status": status, "runId": 0, "task": task, "takenUntil": DATE}
    if traceparent is not None:
        claim["traceparent"] = traceparent
    link: Any = None
    return Run({**claim, "credentials": credentials}, "test/test", app.tasks, _Owner(), link)


def _ended(
    make: Callable[[OnEnd], Executor], use: Callable[[Executor], None], count: int = 1
) -> list[Ended]:
    """Return the ends of so many runs that were submitted."""

    async def end() -> list[Ended]:
        ends: list[Ended] = []
        came = asyncio.Event()

        def on_end(_run: Run, ended: Ended, _duration: float) -> None:
            ends.append(ended)
            if len(ends) == count:
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


def test_argument_that_pickle_refuses_reaches_process() -> None:
    def use(executor: Executor) -> None:
        executor.submit(_run("counts", value={"number": 5}))

    assert _ended(lambda on_end: Processes(1, on_end), use) == [Ended("completed", result=5)]


def test_process_has_span_of_its_run_alone() -> None:
    span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def use(executor: Executor) -> None:
        payload = {"kind": "shows_span", "args": {}}
        executor.submit(_claimed(payload, span))
        executor.submit(_claimed(payload))

    ends = _ended(lambda on_end: Processes(1, on_end), use, count=2)
    assert [ended.result for ended in ends] == [[span, span], [None, None]]


def test_dead_process_ends_run_while_its_child_lives(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def use(executor: Executor) -> None:
        executor.submit(_run("dies_with_child", pid_file=str(pid_file)))

    try:
        [ended] = _ended(lambda on_end: Processes(1, on_end), use)
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    message = "the process of the handler was killed by signal 9"
    assert ended == Ended("error", failure={"kind": "ProcessEnded", "message": message})


def test_process_that_waits_for_server_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "KILL_AFTER", 0.2)

    def use(executor: Executor) -> None:
        run = _run("stores")

        async def put(_value: Any) -> None:
            run.job._cancel("cancelled")
            await asyncio.sleep(2 * SOON)

        run.checkpoints.put = put  # type: ignore[method-assign]
        executor.submit(run)

    assert _ended(lambda on_end: Processes(1, on_end), use) == [Ended("cancelled")]


def test_thread_of_ended_handler_cannot_speak_for_next() -> None:
    runs: list[Run] = []
    stored: list[Any] = []

    async def put(value: Any) -> None:
        stored.append(value)

    def use(executor: Executor) -> None:
        runs.extend([_run("leaves_thread"), _run("sleeps", seconds=1)])
        for run in runs:
            run.checkpoints.put = put  # type: ignore[method-assign]
            executor.submit(run)

    ends = _ended(lambda on_end: Processes(1, on_end), use, count=2)
    assert ends == [Ended("completed")] * 2
    assert (runs[1].log.is_waiting, stored) == (False, [])


def test_process_started_while_worker_closes_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    executors: list[Executor] = []

    class Late(processes._Child):
        def __init__(self) -> None:
            super().__init__()
            executors[0].close()

    monkeypatch.setattr(processes, "_Child", Late)

    def use(executor: Executor) -> None:
        executors.append(executor)
        executor.submit(_run("sleeps", seconds=0.5))

    [ended] = _ended(lambda on_end: Processes(1, on_end), use)
    assert ended.how == "error"


def test_cancelled_run_starts_in_no_process() -> None:
    def use(executor: Executor) -> None:
        run = _run("computes", value=1)
        run.job._cancel("cancelled")
        executor.submit(run)

    assert _ended(lambda on_end: Processes(1, on_end), use) == [Ended("cancelled")]


def test_withdrawn_run_starts_in_no_process(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    withdrawn: list[Run] = []
    runs: list[Run] = []

    def use(executor: Executor) -> None:
        assert isinstance(executor, Processes)
        runs.extend([_run("waits_for", gate=str(gate)), _run("computes", value=1)])
        executor.submit(runs[0])
        # The thread of the only process has taken the first run.
        while not executor._queue.empty():
            time.sleep(0.01)
        executor.submit(runs[1])
        withdrawn.extend(executor.withdraw())
        assert executor.withdraw() == []
        gate.touch()
        # The process goes on with runs that come later.
        executor.submit(_run("computes", value=2))

    ends = _ended(lambda on_end: Processes(1, on_end), use, count=2)
    assert ends == [Ended("completed"), Ended("completed", result=2)]
    assert withdrawn == [runs[1]]


def test_error_of_argument_type_makes_payload_malformed() -> None:
    async def problem() -> str | None:
        return _run("picky", value={"number": 5}).problem

    assert asyncio.run(problem()) == "value: KeyError: 5"


def test_payload_of_another_library_is_read() -> None:
    async def read() -> None:
        for payload in ({"kind": "waits"}, {"kind": "waits", "args": None, "more": 1}):
            assert _claimed(payload).problem is None
        known = 'unknown kind "wait"; this worker has ' + ", ".join(
            f'"{name}"' for name in sorted(app.tasks)
        )
        assert _claimed({"kind": "wait"}).problem == known
        assert not _run("waits").has_backoff
        assert _claimed({"kind": "waits"}, retryDelay={"first": 5}).has_backoff

    asyncio.run(read())
