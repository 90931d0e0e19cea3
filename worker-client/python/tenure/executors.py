"""Where handlers run: threads, and an event loop of their own.

The worker's event loop renews leases and reports, so no handler runs in it. A handler that blocks
the event loop of the handlers delays other handlers, but loses no job.
"""

from __future__ import annotations

import asyncio
import collections
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from . import outcome
from .outcome import Ended
from .run import Run

OnEnd = Callable[[Run, Ended, float], None]
"""Called in the worker's loop with the end of a handler and its duration in seconds."""


class Executor(Protocol):
    """Runs handlers."""

    def submit(self, run: Run) -> None:
        """Start the handler of a run."""

    def cancel(self, run: Run) -> None:
        """Stop the handler of a run that was asked to stop, if that is possible."""

    def close(self) -> None:
        """Drop what is left. Threads may go on until the process ends."""


class Mailbox:
    """Passes items to an event loop: many items that arrive together wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[Any], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._items: collections.deque[Any] = collections.deque()
        self._is_woken = False

    def put(self, item: Any) -> None:
        """Pass an item. Any thread may call it. After the end of the loop it is dropped."""
        self._items.append(item)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._items.clear()

    def _drain(self) -> None:
        self._is_woken = False
        while self._items:
            self._receive(self._items.popleft())


class Threads:
    """Runs handlers in threads, which are started as needed."""

    def __init__(self, size: int, on_end: OnEnd) -> None:
        self._size = size
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._threads = 0
        self._pending = 0
        self._on_end = on_end
        self._ends = Mailbox(asyncio.get_running_loop(), self._end)

    def submit(self, run: Run) -> None:
        """Start the handler of a run."""
        self._pending += 1
        self._queue.put(run)
        if self._threads < min(self._size, self._pending):
            self._threads += 1
            # Daemons: a handler that does not stop must not keep the process alive.
            name = f"tenure-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            if run.task is None:
                continue
            arguments = run.call_arguments(run.task.signature)
            began = time.monotonic()
            ended = outcome.call(run.task.function, run.job, arguments, run.task.app.contexts)
            self._ends.put((run, ended, time.monotonic() - began))
            # A waiting thread must not keep the last run alive.
            del run, arguments, ended

    def _end(self, item: tuple[Run, Ended, float]) -> None:
        self._pending -= 1
        self._on_end(*item)

    def cancel(self, run: Run) -> None:
        """Do nothing: a thread sees ``job.cancelled``."""

    def close(self) -> None:
        """End the idle threads."""
        for _ in range(self._threads):
            self._queue.put(None)


class Coroutines:
    """Runs coroutine functions in an event loop of their own, in one thread."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._ends = Mailbox(asyncio.get_running_loop(), lambda item: self._on_end(*item))
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orders: Mailbox | None = None

    def submit(self, run: Run) -> None:
        """Start the handler of a run."""
        self._order((run, True))

    def cancel(self, run: Run) -> None:
        """Raise ``asyncio.CancelledError`` in the handler."""
        self._order((run, False))

    def _order(self, order: tuple[Run, bool]) -> None:
        if self._orders is None:
            self._loop = asyncio.new_event_loop()
            self._orders = Mailbox(self._loop, self._obey)
            threading.Thread(target=self._work, name="tenure-asyncio", daemon=True).start()
        self._orders.put(order)

    def _work(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101 - set before the thread starts
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def _obey(self, order: tuple[Run, bool]) -> None:
        run, starts = order
        if not starts:
            task = self._tasks.get(run.key)
            if task is not None and self._loop is not None:
                # Later: a coroutine cancelled before its first step would never report its end.
                self._loop.call_soon(task.cancel)
        elif self._loop is not None:
            # Kept: the loop itself refers to tasks weakly.
            self._tasks[run.key] = self._loop.create_task(self._run(run))

    async def _run(self, run: Run) -> None:
        if run.task is None:
            return
        arguments = run.call_arguments(run.task.signature)
        began = time.monotonic()
        try:
            ended = await outcome.acall(
                run.task.function, run.job, arguments, run.task.app.contexts
            )
        finally:
            del self._tasks[run.key]
        self._ends.put((run, ended, time.monotonic() - began))

    def close(self) -> None:
        """Stop the event loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
