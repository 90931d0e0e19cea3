"""Runs handlers in processes of their own, for work that needs the processor.

Each process has a pipe to a thread of the worker. It gets one run after the other, and asks by the
pipe for checkpoints. A handler that was asked to stop and does not is killed with its process.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from . import outcome
from .errors import Cancelled
from .executors import Mailbox, OnEnd
from .job import Cancellation, Job, JobInfo
from .outcome import Ended
from .run import Run
from .task import Task

KILL_AFTER = 5.0
"""Seconds after which a handler that was asked to stop is killed."""
_LOOK_EVERY = 0.2


class _Start(NamedTuple):
    """A run for a process."""

    module: str
    function: str
    arguments: dict[str, Any]
    job_parameter: str | None
    info: JobInfo


class Processes:
    """Runs handlers in up to ``size`` processes, which are started as needed."""

    def __init__(self, size: int, on_end: OnEnd) -> None:
        self._size = size
        self._on_end = on_end
        self._ends = Mailbox(asyncio.get_running_loop(), self._end)
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._threads = 0
        self._pending = 0
        self._children: set[_Child] = set()

    def submit(self, run: Run) -> None:
        """Start the handler of a run."""
        self._pending += 1
        self._queue.put(run)
        if self._threads < min(self._size, self._pending):
            self._threads += 1
            name = f"tenure-process-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def cancel(self, run: Run) -> None:
        """Do nothing: the thread of the process sees that the run was cancelled."""

    def close(self) -> None:
        """Kill the processes."""
        for _ in range(self._threads):
            self._queue.put(None)
        for child in list(self._children):
            child.kill()

    def _end(self, item: tuple[Run, Ended, float]) -> None:
        self._pending -= 1
        self._on_end(*item)

    def _work(self) -> None:
        child: _Child | None = None
        while (run := self._queue.get()) is not None:
            began = time.monotonic()
            try:
                if child is None:
                    child = _Child()
                    self._children.add(child)
                ended = child.work(run)
            except Exception as error:
                # No process could be started, or the arguments cannot be sent to it.
                ended = outcome.ended_by(error, run.job)
            if child is not None and not child.is_alive:
                self._children.discard(child)
                child = None
            self._ends.put((run, ended, time.monotonic() - began))
            del run, ended
        if child is not None:
            child.kill()


class _Child:
    """A process, used by one thread of the worker."""

    def __init__(self) -> None:
        # A fork would copy the threads' locks.
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, list(sys.path)), daemon=True)
        self._process.start()
        other.close()
        self.is_alive = True

    def kill(self) -> None:
        self.is_alive = False
        self._process.kill()

    def work(self, run: Run) -> Ended:
        """Run a handler to its end, or to the end of its process."""
        task, signature = run.task, run.task.signature if run.task is not None else None
        if task is None or signature is None:
            return Ended("internal")
        if run.job.cancelled:
            return Ended("cancelled")
        function = task.function
        start = _Start(
            _module_of(function.__module__),
            function.__qualname__,
            run.arguments,
            signature.job_parameter,
            run.info,
        )
        told: set[str] = set()
        kill_at = float("inf")
        try:
            self._pipe.send(start)
            while True:
                if self._pipe.poll(_LOOK_EVERY):
                    ended = self._answer(run, self._pipe.recv())
                    if ended is not None:
                        return ended
                if run.job.stopping and "stopping" not in told:
                    told.add("stopping")
                    self._pipe.send(("stopping", None))
                if run.job.cancelled and "cancelled" not in told:
                    told.add("cancelled")
                    self._pipe.send(("cancelled", run.job.cancellation))
                    kill_at = time.monotonic() + KILL_AFTER
                if time.monotonic() >= kill_at:
                    self.kill()
                    return Ended("cancelled")
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.kill()
            if run.job.cancelled:
                return Ended("cancelled")
            how = f"was killed by signal {-code}" if code and code < 0 else f"exited with {code}"
            message = f"the process of the handler {how}"
            return Ended("error", failure={"kind": "ProcessEnded", "message": message})

    def _answer(self, run: Run, message: tuple[str, Any]) -> Ended | None:
        what, value = message
        if what == "ended":
            ended: Ended = value
            return ended
        if what == "log":
            run.append_log(value)
        elif what == "progress":
            run.post_progress(value)
        else:
            try:
                if what == "put":
                    run.put_checkpoint(value)
                answer = run.get_checkpoint() if what == "get" else None
                self._pipe.send(("answer", answer))
            except Exception as error:
                self._pipe.send(("error", error))
        return None


def _module_of(name: str) -> str:
    """Return the name by which another process can import a module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if name == "__main__" and spec is not None else name


# What follows runs in the process of the handler.


class _PipeChannel:
    """The channel of a job in a process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self.answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def send(self, what: str, value: Any) -> None:
        with self._sending:
            self._pipe.send((what, value))

    def _ask(self, what: str, value: Any) -> Any:
        with self._asking:
            self.send(what, value)
            kind, answer = self.answers.get()
        if kind == "error":
            raise answer
        return answer

    def put_checkpoint(self, value: Any) -> None:
        self._ask("put", value)

    def get_checkpoint(self) -> Any:
        return self._ask("get", None)

    def post_progress(self, progress: dict[str, Any]) -> None:
        self.send("progress", progress)

    def append_log(self, text: str) -> None:
        self.send("log", text)


def _serve(pipe: Connection, path: list[str]) -> None:
    """Run what the worker sends, until it is gone."""
    # The worker decides when a handler stops; a terminal signals all processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.path[:] = path
    channel = _PipeChannel(pipe)
    starts: queue.SimpleQueue[tuple[_Start, Job]] = queue.SimpleQueue()

    def read() -> None:
        job: Job | None = None
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                os._exit(1)
            if isinstance(message, _Start):
                job = Job(message.info, channel)
                starts.put((message, job))
                continue
            what, value = message
            if what in ("answer", "error"):
                channel.answers.put((what, value))
            elif job is not None:
                _tell(job, what, value)

    threading.Thread(target=read, daemon=True).start()
    while True:
        start, job = starts.get()
        channel.send("ended", _run(start, job))


def _tell(job: Job, what: str, value: Cancellation) -> None:
    if what == "stopping":
        job._stop_soon()
    else:
        job._cancel(value)


def _run(start: _Start, job: Job) -> Ended:
    try:
        found: Any = importlib.import_module(start.module)
        for name in start.function.split("."):
            found = getattr(found, name)
        if not isinstance(found, Task):
            raise TypeError(f"{start.module}.{start.function} is no task")
    except Exception as error:
        return outcome.ended_by(error, job)
    arguments = dict(start.arguments)
    if start.job_parameter is not None:
        arguments[start.job_parameter] = job
    if job.cancelled:
        return outcome.ended_by(Cancelled(), job)
    return outcome.call(found.function, job, arguments, found.app.contexts)
