"""Runs handlers in processes of their own, for work that needs the processor.

Each process has a pipe to a thread of the worker. It gets one run after the other, and asks by the
pipe for checkpoints. A handler that was asked to stop and does not is killed with its process.
Messages have the number of their run in the process: threads that a handler left behind may speak
when the next one is working. Arguments cross the pipe as JSON, so a type of a user whose pickling
fails cannot silence either side.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
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
from .errors import Cancelled, PayloadError, RunLost
from .executors import Mailbox, OnEnd
from .job import Cancellation, Job, JobInfo
from .outcome import Ended
from .run import Run
from .task import Task

KILL_AFTER = 5.0
"""Seconds after which a handler that was asked to stop is killed."""
_LOOK_EVERY = 0.2
# Between the end of the pipe and the end of its process.
_EXITS_WITHIN = 2.0


class _Start(NamedTuple):
    """A run for a process."""

    number: int
    module: str
    function: str
    args: Any
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
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(self, run: Run) -> None:
        """Start the handler of a run."""
        self._pending += 1
        self._queue.put(run)
        if self._threads < min(self._size, self._pending):
            self._threads += 1
            name = f"tenure-process-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def withdraw(self) -> list[Run]:
        """Return the runs whose handlers have not begun, and forget them."""
        runs: list[Run] = []
        with contextlib.suppress(queue.Empty):
            while (run := self._queue.get_nowait()) is not None:
                runs.append(run)
        self._pending -= len(runs)
        return runs

    def cancel(self, run: Run) -> None:
        """Do nothing: the thread of the process sees that the run was cancelled."""

    def close(self) -> None:
        """Kill the processes, also one that is being started."""
        with self._lock:
            self._is_closed = True
            children = list(self._children)
        for _ in range(self._threads):
            self._queue.put(None)
        for child in children:
            child.kill()

    def _end(self, item: tuple[Run, Ended, float]) -> None:
        self._pending -= 1
        self._on_end(*item)

    def _work(self) -> None:
        child: _Child | None = None
        while (run := self._queue.get()) is not None and not self._is_closed:
            began = time.monotonic()
            try:
                if child is None:
                    child = self._start_child()
                ended = child.work(run)
            except Exception as error:
                # No process could be started, or it sent what cannot be read. It may still work on
                # the run, so it gets no other one.
                ended = outcome.ended_by(error, run.job)
                if child is not None:
                    child.kill()
            if child is not None and not child.is_alive:
                with self._lock:
                    self._children.discard(child)
                child = None
            self._ends.put((run, ended, time.monotonic() - began))
            del run, ended
        if child is not None:
            child.kill()

    def _start_child(self) -> _Child:
        child = _Child()
        with self._lock:
            self._children.add(child)
            is_late = self._is_closed
        if is_late:
            # The worker would wait for it at its exit.
            child.kill()
        return child


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
        self._number = 0

    def kill(self) -> None:
        self.is_alive = False
        self._process.kill()

    def work(self, run: Run) -> Ended:
        """Run a handler to its end, or to the end of its process."""
        if run.task is None:
            return Ended("internal")
        if run.job.cancelled:
            return Ended("cancelled")
        function = run.task.function
        self._number += 1
        module = _module_of(function.__module__)
        start = _Start(self._number, module, function.__qualname__, run.args, run.info)
        try:
            self._pipe.send(start)
            return self._attend(run)
        except (EOFError, OSError):
            code = self._exit_code()
            if run.job.cancelled:
                return Ended("cancelled")
            how = f"was killed by signal {-code}" if code and code < 0 else f"exited with {code}"
            if code is None:
                how = "closed its pipe to the worker"
            message = f"the process of the handler {how}"
            return Ended("error", failure={"kind": "ProcessEnded", "message": message})

    def _attend(self, run: Run) -> Ended:
        """Pass messages between a handler and its worker until one of them ends."""
        told: set[str] = set()
        kill_at = float("inf")
        # What the handler asked for, and waits for. The server may be away.
        asked: concurrent.futures.Future[Any] | None = None
        while True:
            # Before the poll: a process may speak and end at once. Its own children keep the pipe
            # open, so its end is not always that of the pipe.
            is_running = self._process.is_alive()
            if asked is not None:
                if _is_done(asked, _LOOK_EVERY):
                    self._reply(asked)
                    asked = None
                elif not is_running:
                    raise EOFError
            elif self._pipe.poll(_LOOK_EVERY):
                number, what, value = self._pipe.recv()
                if what == "ended" and number == self._number:
                    ended: Ended = value
                    return ended
                asked = self._take(run, number, what, value)
            elif not is_running:
                raise EOFError
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

    def _take(
        self, run: Run, number: int, what: str, value: Any
    ) -> concurrent.futures.Future[Any] | None:
        """Take a message. Return the answer that its sender waits for, if it does."""
        if number != self._number:
            if what in ("put", "get"):
                self._pipe.send(("error", RunLost("the handler of this job has ended")))
        elif what == "log":
            run.append_log(value)
        elif what == "progress":
            run.post_progress(value)
        elif what == "put":
            return run.ask(run.checkpoints.put(value))
        else:
            return run.ask(run.checkpoints.get())
        return None

    def _reply(self, asked: concurrent.futures.Future[Any]) -> None:
        try:
            message = ("answer", asked.result())
        except Exception as error:
            message = ("error", error)
        self._pipe.send(message)

    def _exit_code(self) -> int | None:
        """Return the exit code, or None for a process that had to be killed.

        Not by `join`, which never returns for a process that only closed its pipes.
        """
        ends = time.monotonic() + _EXITS_WITHIN
        while self._process.is_alive() and time.monotonic() < ends:
            time.sleep(0.01)
        code = self._process.exitcode
        self.kill()
        return code


def _is_done(future: concurrent.futures.Future[Any], within: float) -> bool:
    return bool(concurrent.futures.wait([future], within).done)


def _module_of(name: str) -> str:
    """Return the name by which another process can import a module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if name == "__main__" and spec is not None else name


# What follows runs in the process of the handler.


class _Wire:
    """The pipe of a process, which the channels of its jobs share."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.sending = threading.Lock()
        self.asking = threading.Lock()
        self.answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()


class _PipeChannel:
    """The channel of a job in a process."""

    def __init__(self, wire: _Wire, number: int) -> None:
        self._wire = wire
        self._number = number

    def send(self, what: str, value: Any) -> None:
        with self._wire.sending:
            self._wire.pipe.send((self._number, what, value))

    def _ask(self, what: str, value: Any) -> Any:
        with self._wire.asking:
            self.send(what, value)
            kind, answer = self._wire.answers.get()
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
    wire = _Wire(pipe)
    starts: queue.SimpleQueue[tuple[_Start, _PipeChannel, Job]] = queue.SimpleQueue()

    def read() -> None:
        job: Job | None = None
        while True:
            try:
                message = pipe.recv()
            except Exception:
                # Without its reader the process would wait for ever.
                os._exit(1)
            if isinstance(message, _Start):
                channel = _PipeChannel(wire, message.number)
                job = Job(message.info, channel)
                starts.put((message, channel, job))
                continue
            what, value = message
            if what in ("answer", "error"):
                wire.answers.put((what, value))
            elif job is not None:
                _tell(job, what, value)

    threading.Thread(target=read, daemon=True).start()
    while True:
        start, channel, job = starts.get()
        channel.send("ended", _run(start, job))


def _tell(job: Job, what: str, value: Cancellation) -> None:
    if what == "stopping":
        job._stop_soon()
    else:
        job._cancel(value)


def _run(start: _Start, job: Job) -> Ended:
    # Of this run, or of none.
    os.environ.pop("TRACEPARENT", None)
    if job.traceparent is not None:
        os.environ["TRACEPARENT"] = job.traceparent
    try:
        found: Any = importlib.import_module(start.module)
        for name in start.function.split("."):
            found = getattr(found, name)
        if not isinstance(found, Task):
            raise TypeError(f"{start.module}.{start.function} is no task")
        arguments = found.signature.decode(start.args)
    except PayloadError as error:
        return outcome.malformed(str(error))
    except Exception as error:
        return outcome.ended_by(error, job)
    if found.signature.job_parameter is not None:
        arguments[found.signature.job_parameter] = job
    if job.cancelled:
        return outcome.ended_by(Cancelled(), job)
    return outcome.call(found.function, job, arguments, found.app.contexts)
