"""The job that a handler works on."""

from __future__ import annotations

import asyncio
import datetime
import threading
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .api import to_json
from .errors import Cancelled
from .plain import plain

Cancellation = Literal["cancelled", "deadline-exceeded", "lost", "shutdown", "command"]
"""Why a handler must stop: the task was cancelled; its deadline has passed; the run is another
worker's, or soon may be; the worker stops, and the time of its handlers is over; an operator
stopped the task."""


class Channel(Protocol):
    """How a job reaches its worker."""

    def put_checkpoint(self, value: Any) -> None:
        """Store the checkpoint. Blocks until the server has answered."""

    def get_checkpoint(self) -> Any:
        """Return the stored checkpoint, or None. Blocks until the server has answered."""

    def post_progress(self, progress: dict[str, Any]) -> None:
        """Store the progress soon, without waiting. A later one replaces it."""

    def append_log(self, text: str) -> None:
        """Append text to the log, without waiting."""


@dataclass(frozen=True)
class JobInfo:
    """What is known of a job when its handler starts.

    Attributes:
        id: Id of the job: the ``taskId`` of the server.
        name: Name of the task.
        queue: Queue of the job.
        run_id: Number of this run, from 0. Releases count too.
        attempt: Number of this attempt, from 1. Releases do not count.
        retries_left: How many attempts may follow.
        created: When the job was enqueued, by the clock of its creator.
        deadline: When the server ends the job.
        key: Key for the limits of the queue, if it has one.
        traceparent: Header for requests of the handler, if the server sends traces.
    """

    id: str
    name: str
    queue: str
    run_id: int
    attempt: int
    retries_left: int
    created: datetime.datetime
    deadline: datetime.datetime
    key: str | None
    traceparent: str | None = None


class Job:
    """The job that a handler works on: give the handler a parameter of this type."""

    def __init__(self, info: JobInfo, channel: Channel) -> None:
        self._info = info
        self._channel = channel
        self._cancelled = threading.Event()
        self._cancellation: Cancellation | None = None
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name} attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """Id of the job, the ``taskId`` of the server: 22 characters."""
        return self._info.id

    @property
    def name(self) -> str:
        """Name of the task."""
        return self._info.name

    @property
    def queue(self) -> str:
        """Queue of the job, such as ``acme/mail``."""
        return self._info.queue

    @property
    def run_id(self) -> int:
        """Number of this run, from 0. Releases count too."""
        return self._info.run_id

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1. Releases do not count."""
        return self._info.attempt

    @property
    def retries_left(self) -> int:
        """How many attempts may follow this one."""
        return self._info.retries_left

    @property
    def created(self) -> datetime.datetime:
        """When the job was enqueued, in UTC, by the clock of its creator."""
        return self._info.created

    @property
    def deadline(self) -> datetime.datetime:
        """When the server ends the job, in UTC."""
        return self._info.deadline

    @property
    def key(self) -> str | None:
        """Key for the limits of the queue, if the job has one."""
        return self._info.key

    @property
    def traceparent(self) -> str | None:
        """Header ``traceparent`` for requests of the handler; None if the server sends no traces.

        Handlers in processes of their own have it as ``TRACEPARENT`` in their environment, too.
        """
        return self._info.traceparent

    @property
    def cancelled(self) -> bool:
        """True if the handler must stop. Then its result no longer counts.

        An ``async def`` handler gets ``asyncio.CancelledError`` instead.
        """
        return self._cancelled.is_set()

    @property
    def cancellation(self) -> Cancellation | None:
        """Why the handler must stop; None if it need not."""
        return self._cancellation

    @property
    def stopping(self) -> bool:
        """True if the worker is shutting down. The handler still has most of 30 s to finish.

        Handlers that take longer may store a checkpoint and raise ``Release()``.
        """
        return self._stopping

    def raise_if_cancelled(self) -> None:
        """Do nothing unless the handler must stop.

        Raises:
            Cancelled: The handler must stop.
        """
        if self.cancelled:
            raise Cancelled(f"job {self.id} must stop: {self._cancellation}")

    def wait_cancelled(self, timeout: float) -> bool:
        """Sleep for ``timeout`` seconds, or until the handler must stop. Return ``cancelled``."""
        return self._cancelled.wait(timeout)

    def log(self, text: str) -> None:
        """Write a line to the log of the job, which people can follow while it runs.

        Never blocks and never fails. Of more than 4 MiB the server keeps the end.
        """
        self._channel.append_log(text if text.endswith("\n") else text + "\n")

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Show progress on the page of the job.

        Never blocks. The latest one is sent, at most every two seconds.

        Args:
            done: Amount of work done, in any unit.
            total: Amount of all work, in the same unit.
            message: A few words for people.

        Raises:
            TypeError: A value is no JSON, such as a number of another library.
            ValueError: A number is not finite.
        """
        fields = {"done": done, "total": total, "message": message}
        progress = {name: value for name, value in fields.items() if value is not None}
        to_json(progress)
        self._channel.post_progress(progress)

    def checkpoint(self, value: Any) -> None:
        """Store a checkpoint: the next run of this job, on any worker, can go on from it.

        Args:
            value: Any JSON of up to 64 KiB. It replaces the checkpoint before.

        Raises:
            RunLost: The job is no longer this worker's.
            TypeError: The value is no JSON.
            RequestRefused: The server refused it, for example because it is too large.
            ServerUnavailable: No server answered.
        """
        self._channel.put_checkpoint(plain(value, "checkpoint"))

    async def acheckpoint(self, value: Any) -> None:
        """Do the same as ``checkpoint`` in an ``async def`` handler."""
        await asyncio.to_thread(self.checkpoint, value)

    def last_checkpoint(self) -> Any:
        """Return the last checkpoint, also of an earlier run. None if there is none.

        Raises:
            RequestRefused: The server refused the call.
            ServerUnavailable: No server answered.
        """
        return self._channel.get_checkpoint()

    async def alast_checkpoint(self) -> Any:
        """Do the same as ``last_checkpoint`` in an ``async def`` handler."""
        return await asyncio.to_thread(self.last_checkpoint)

    def _cancel(self, why: Cancellation) -> None:
        """Ask the handler to stop. The first reason stays."""
        if self._cancellation is None:
            self._cancellation = why
        self._cancelled.set()

    def _stop_soon(self) -> None:
        self._stopping = True
