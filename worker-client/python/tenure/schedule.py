"""Schedules: the server enqueues a job at each time of a cron pattern."""

from __future__ import annotations

import dataclasses
import datetime
import math
import uuid
from typing import TYPE_CHECKING, Any, Literal

from .api import TENURE_API, Call, parameter
from .errors import seconds_of
from .handle import Handle

if TYPE_CHECKING:
    from .app import Tenure
    from .task import JobRequest

CatchUp = Literal["none", "last", "all"]
"""What happens to times at which no server ran: no job, one for the latest, or one for each of up
to 100."""

_CATCH_UP = CatchUp.__args__  # type: ignore[attr-defined]
_YEAR = 366 * 86_400.0


class Schedule:
    """A schedule by its name: what ``app.schedule(…)`` returns.

    Attributes:
        name: Its name.
    """

    def __init__(self, app: Tenure, name: str) -> None:
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<Schedule {self.name}>"

    def set(
        self, job: JobRequest[Any], *, cron: str, timezone: str = "UTC", catch_up: CatchUp = "last"
    ) -> dict[str, Any]:
        """Store the schedule, in place of the one of this name.

        Args:
            job: Job made by ``task.job(…)``. Its ``unique`` name keeps the jobs of the schedule
                from running at the same time. Its ``deadline`` is in seconds.
            cron: Minute, hour, day of month, month and day of week, or a word such as ``@daily``.
            timezone: Time zone of the pattern, such as ``Europe/Berlin``.
            catch_up: What happens to times at which no server ran.

        Returns:
            The schedule, as ``show`` does.

        Raises:
            ValueError: The job has a date as its deadline, or waits for other jobs.
            RequestRefused: The server refused the schedule, for example its pattern.
            ServerUnavailable: No server answered, after several attempts.
        """
        call = self._set(job, cron, timezone, catch_up)
        stored: dict[str, Any] = self._app.client.call(call)
        return stored

    async def aset(
        self, job: JobRequest[Any], *, cron: str, timezone: str = "UTC", catch_up: CatchUp = "last"
    ) -> dict[str, Any]:
        """Do the same as ``set`` in asynchronous code."""
        call = self._set(job, cron, timezone, catch_up)
        stored: dict[str, Any] = await self._app.async_client.call(call)
        return stored

    def trigger(self) -> Handle[Any]:
        """Enqueue the job now, also while the schedule is paused. Its times stay as they are.

        Returns:
            The handle of the job.

        Raises:
            DuplicateJob: Another job has the unique name.
            RequestRefused: The server refused the job, or has no such schedule.
            ServerUnavailable: No server answered, after several attempts.
        """
        return self._app.handle(self._app.client.call(self._trigger())["taskId"])

    async def atrigger(self) -> Handle[Any]:
        """Do the same as ``trigger`` in asynchronous code."""
        return self._app.handle((await self._app.async_client.call(self._trigger()))["taskId"])

    def show(self) -> dict[str, Any]:
        """Return the schedule: ``cron``, ``task``, five ``next`` times, ``last``, ``error``, ….

        Raises:
            RequestRefused: The server has no such schedule.
            ServerUnavailable: No server answered, after several attempts.
        """
        shown: dict[str, Any] = self._app.client.call(self._call("GET"))
        return shown

    def pause(self) -> None:
        """Enqueue no jobs until the schedule is resumed."""
        self._app.client.call(self._call("POST", "/pause"))

    def resume(self) -> None:
        """Enqueue jobs again, from the next time on."""
        self._app.client.call(self._call("POST", "/resume"))

    def delete(self) -> None:
        """Delete the schedule. Its jobs stay."""
        self._app.client.call(self._call("DELETE"))

    def _call(self, method: str, rest: str = "", body: Any = None) -> Call:
        return Call(method, f"{TENURE_API}/schedules/{parameter(self.name)}{rest}", body)

    def _trigger(self) -> Call:
        # The key makes it safe to repeat the request.
        return self._call("POST", "/trigger")._replace(idempotency_key=str(uuid.uuid4()))

    def _set(self, job: JobRequest[Any], cron: str, timezone: str, catch_up: CatchUp) -> Call:
        if catch_up not in _CATCH_UP:
            raise ValueError(f"catch_up must be one of {', '.join(_CATCH_UP)}")
        options = job.options
        if options.after:
            raise ValueError("a job of a schedule cannot wait for other jobs: leave out after")
        body: dict[str, Any] = {"cron": cron, "timezone": timezone, "catchUp": catch_up}
        if isinstance(options.deadline, datetime.datetime):
            raise ValueError("the deadline of a job of a schedule must be seconds, not a date")
        if options.deadline is not None:
            seconds = seconds_of(options.deadline, "deadline", _YEAR)
            body["deadlineAfter"] = math.ceil(seconds)
        # The deadline counts from the creation of each job.
        repeated = dataclasses.replace(job, options=dataclasses.replace(options, deadline=None))
        body["task"] = repeated.definition(self._app._now or self._app.client.now)
        return self._call("PUT", body=body)
