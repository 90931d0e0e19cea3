"""Handles of enqueued jobs: status, result, cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from .api import QUEUE_API, TENURE_API, TIMEOUT, Call, parameter
from .errors import JobCancelled, JobFailed, Seconds, seconds_of

if TYPE_CHECKING:
    from .app import Tenure

R = TypeVar("R")

Status = Literal["unscheduled", "pending", "running", "completed", "failed", "exception"]
"""State of a job: it waits for other jobs, waits for a worker, is worked on, or has ended."""

_WAIT_MAX = 50.0
_FOREVER = 366.0 * 86_400
_CANCELED = "canceled"


class Handle(Generic[R]):
    """A job that was enqueued."""

    def __init__(self, app: Tenure, id: str, decode: Callable[[Any], Any] | None = None) -> None:
        self._app = app
        self._id = id
        self._decode = decode

    def __repr__(self) -> str:
        return f"<Handle {self._id}>"

    @property
    def id(self) -> str:
        """Id of the job: 22 characters. ``app.handle(id)`` makes a handle again."""
        return self._id

    def status(self) -> Status:
        """Return the state of the job.

        Raises:
            RequestRefused: The server refused the call, or no longer has the job.
            ServerUnavailable: No server answered.
        """
        return _state(self._app.client.call(self._status_call()))

    async def astatus(self) -> Status:
        """Do the same as ``status`` in asynchronous code."""
        return _state(await self._app.async_client.call(self._status_call()))

    def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the end of the job, and return its result.

        Args:
            timeout: Seconds to wait. Default: without a limit. 0 asks once.

        Raises:
            JobFailed: The job has failed, with the failure of its handler.
            JobCancelled: The job was cancelled.
            PayloadError: The result has another type than annotated, for example because a worker
                in another language returned it.
            TimeoutError: The job has not ended in time.
            RequestRefused: The server refused the call, or no longer has the job.
            ServerUnavailable: No server answered.
        """
        ends = _ends(timeout)
        while True:
            wait = _wait(ends)
            waited = self._app.client.call(self._wait_call(wait))
            if waited["resolved"]:
                return self._result_of(waited)
            self._check_time(ends, timeout)
            if wait < 1:
                time.sleep(min(0.1, max(0.0, ends - time.monotonic())))

    async def aresult(self, timeout: Seconds | None = None) -> R:
        """Do the same as ``result`` in asynchronous code."""
        ends = _ends(timeout)
        while True:
            wait = _wait(ends)
            waited = await self._app.async_client.call(self._wait_call(wait))
            if waited["resolved"]:
                return self._result_of(waited)
            self._check_time(ends, timeout)
            if wait < 1:
                await asyncio.sleep(min(0.1, max(0.0, ends - time.monotonic())))

    def cancel(self) -> bool:
        """Cancel the job. Its handler is stopped within a second.

        Returns:
            False if the job had ended before.

        Raises:
            RequestRefused: The server refused the call, or no longer has the job.
            ServerUnavailable: No server answered.
        """
        return _was_cancelled(self._app.client.call(self._cancel_call()))

    async def acancel(self) -> bool:
        """Do the same as ``cancel`` in asynchronous code."""
        return _was_cancelled(await self._app.async_client.call(self._cancel_call()))

    def failure(self, run_id: int) -> dict[str, Any] | None:
        """Return the failure of one run: ``message``, ``kind`` and ``exitCode``, as far as known.

        Args:
            run_id: Number of the run, from 0.

        Raises:
            RequestRefused: The run has no result and no failure, or is unknown.
            ServerUnavailable: No server answered.
        """
        path = f"{TENURE_API}/tasks/{parameter(self._id)}/result?runId={run_id}"
        failure: dict[str, Any] | None = self._app.client.call(Call("GET", path)).get("failure")
        return failure

    def _status_call(self) -> Call:
        return Call("GET", f"{QUEUE_API}/task/{parameter(self._id)}/status")

    def _wait_call(self, seconds: int) -> Call:
        path = f"{TENURE_API}/tasks/{parameter(self._id)}/wait?seconds={seconds}"
        return Call("GET", path, timeout=TIMEOUT + seconds)

    def _cancel_call(self) -> Call:
        return Call("POST", f"{QUEUE_API}/task/{parameter(self._id)}/cancel")

    def _check_time(self, ends: float, timeout: Seconds | None) -> None:
        if time.monotonic() >= ends:
            raise TimeoutError(f"job {self._id} has not ended within {timeout} s")

    def _result_of(self, waited: dict[str, Any]) -> R:
        status = waited["status"]
        result = waited.get("result")
        if status["state"] == "completed":
            decoded = result if self._decode is None else self._decode(result)
            return cast(R, decoded)
        run = status["runs"][-1] if status["runs"] else {}
        reason = run.get("reasonResolved", status["state"])
        failed = JobCancelled if reason == _CANCELED else JobFailed
        raise failed(self._id, status["state"], reason, waited.get("failure"), result)


def _ends(timeout: Seconds | None) -> float:
    wait = _FOREVER if timeout is None else seconds_of(timeout, "timeout", _FOREVER)
    return time.monotonic() + wait


def _wait(ends: float) -> int:
    return int(min(_WAIT_MAX, max(0.0, ends - time.monotonic())))


def _state(answer: dict[str, Any]) -> Status:
    state: Status = answer["status"]["state"]
    return state


def _was_cancelled(answer: dict[str, Any]) -> bool:
    status = answer["status"]
    last = status["runs"][-1] if status["runs"] else {}
    return bool(last.get("reasonResolved") == _CANCELED)
