"""Errors of this library, and the exceptions by which a handler decides about its job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

Seconds = float | timedelta
"""A duration: seconds, or a timedelta."""


def seconds_of(duration: Seconds, what: str, most: float) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: It is negative or longer than ``most``.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= seconds <= most:
        raise ValueError(f"{what} must be from 0 to {most:.0f} seconds, not {duration!r}")
    return seconds


DUPLICATE = "DuplicateTask"
"""Error code of the API for a unique name that is taken."""


def described(error: BaseException) -> str:
    """Return the type and message of an error that is not of this library."""
    return f"{type(error).__qualname__}: {error}"


class TenureError(Exception):
    """Base class of all errors of this library."""


class ConfigurationError(TenureError):
    """A setting is missing or wrong."""


class ServerUnavailable(TenureError):
    """No server answered, after all retries of the call."""


class RequestRefused(TenureError):
    """The server refused a call.

    Attributes:
        status: HTTP status.
        code: Error code of the API, such as ``InsufficientScopes``. Empty if a proxy answered.
        message: What happened, to which object, and what to do.
        retry_after: Pause requested by the server, in seconds.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after

    def __reduce__(self) -> Any:
        return type(self), (self.status, self.code, self.message, self.retry_after)

    @property
    def is_transient(self) -> bool:
        """True if a repeat may succeed."""
        return self.status in (408, 429) or self.status >= 500

    @property
    def is_unclear(self) -> bool:
        """True if a proxy may have answered instead of the server."""
        return not self.code


class DuplicateJob(RequestRefused):
    """The unique name of a job is taken, and the job was not enqueued.

    Attributes:
        holder: Id of the unresolved job that has the name. ``app.handle(holder)`` is its handle.
        entry: Index of the refused job in its request, from 0. None if the server named none.
    """

    def __init__(self, message: str, holder: str, entry: str | None = None) -> None:
        super().__init__(409, DUPLICATE, message)
        self.holder = holder
        self.entry = entry

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.holder, self.entry)


class PayloadError(TenureError, ValueError):
    """Arguments of a job are no JSON, or do not match the signature of its handler."""


class ResultError(TenureError):
    """The result of a handler is no JSON, or larger than 64 KiB."""


class RunLost(TenureError):
    """The job is no longer this worker's: it was cancelled, or given to another worker."""


class NameTaken(TenureError):
    """Another process with the name of this worker took over its session."""


class WorkerRefused(TenureError):
    """The server refused the worker before it had ever worked: a wrong token, missing scopes."""


class JobFailed(TenureError):
    """A job has ended without success.

    Attributes:
        id: Id of the job.
        state: ``failed`` or ``exception``.
        reason: Reason of the server, such as ``failed``, ``malformed-payload`` or
            ``deadline-exceeded``.
        kind: Type of the handler's exception, such as ``ValueError``. None without a failure, or if
            a worker in another language named none.
        message: Message and end of the traceback, at most 4 KiB. None without a failure.
        exit_code: Exit code of a command. None otherwise.
        result: Result that the worker reported beside the failure. None without one.
    """

    def __init__(
        self,
        id: str,
        state: str,
        reason: str,
        failure: dict[str, Any] | None = None,
        result: Any = None,
    ) -> None:
        failure = failure or {}
        self.id = id
        self.state = state
        self.reason = reason
        self.kind: str | None = failure.get("kind")
        self.message: str | None = failure.get("message")
        self.exit_code: int | None = failure.get("exitCode")
        self.result = result
        kind = None if self.kind == reason else self.kind
        words = ": ".join(word for word in (kind, self.message) if word)
        super().__init__(f"job {id} ended as {state} ({reason})" + (f": {words}" if words else ""))

    def __reduce__(self) -> Any:
        named = {"kind": self.kind, "message": self.message, "exitCode": self.exit_code}
        return type(self), (self.id, self.state, self.reason, named, self.result)


class JobCancelled(JobFailed):
    """A job was cancelled before it had ended."""


class Retry(Exception):
    """Raised by a handler: try the job again. Uses up a retry; without one left the job fails.

    Args:
        message: Reason, for people.
        after: Seconds until the next attempt, at most a day. Default: the backoff of the task.
    """

    def __init__(
        self, message: str = "the handler asked for a retry", *, after: Seconds | None = None
    ) -> None:
        super().__init__(message)
        self.after = None if after is None else seconds_of(after, "`after`", 86_400)


class Fail(Exception):
    """Raised by a handler: the job has failed and is not tried again."""


class Release(Exception):
    """Raised by a handler: give the job back without using up a retry, 200 times per job.

    Args:
        after: Seconds until the next attempt, at most 366 days. Default: at once, on any worker.
    """

    def __init__(self, *, after: Seconds = 0) -> None:
        super().__init__("the handler released the job")
        self.after = seconds_of(after, "`after`", 31_622_400)


class Cancelled(Exception):
    """Raised by ``Job.raise_if_cancelled``: the handler must stop."""
