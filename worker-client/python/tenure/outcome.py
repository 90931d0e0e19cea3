"""How a handler ended, and the report about it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .api import to_json
from .errors import Cancelled, Fail, Release, ResultError, Retry, described
from .plain import plain

if TYPE_CHECKING:
    from .job import Job
    from .task import Task

FAILURE_MAX = 4_096
"""Bytes of the message of a failure."""
RESULT_MAX = 65_536
"""Bytes of a result, as compact JSON."""
MALFORMED = "malformed-payload"
"""Reason of a job with wrong arguments, and the kind of its failure."""
_KIND_MAX = 255
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

How = Literal[
    "completed", "error", "retry", "fail", "release", "cancelled", "malformed", "internal"
]
"""How a handler ended: with a result, an exception, one of the exceptions of this library, or as
it was asked to stop. ``malformed``: its arguments are wrong. ``internal``: its result is wrong."""


@dataclass(frozen=True)
class Ended:
    """The end of a handler. It can be sent to another process.

    Attributes:
        how: How it ended.
        result: Result as JSON; None without one.
        failure: ``kind`` and ``message``; None without one.
        after: Seconds until the next attempt, if the handler said so.
    """

    how: How
    result: Any = None
    failure: dict[str, str] | None = None
    after: float | None = None


def failure_of(error: BaseException, message: str | None = None) -> dict[str, str]:
    """Return the failure of an exception: its type, message, and the end of its traceback."""
    kind = _text(type(error).__qualname__)[:_KIND_MAX]
    if message is None:
        words = _text(str(error)) or kind
        message = _cut(words, FAILURE_MAX)
        frames = _traceback(error)
        room = FAILURE_MAX - len(message.encode()) - 2
        if frames and room > len(_GAP) + 80:
            message += "\n\n" + _cut_start(frames, room)
    return {"kind": kind, "message": _cut(_text(message) or kind, FAILURE_MAX)}


_GAP = "…\n"


def _text(text: str) -> str:
    # Half a character, as in names of files, is no JSON. Servers refuse U+0000.
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _cut(text: str, most: int) -> str:
    data = text.encode()
    return text if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "…"


def _cut_start(text: str, most: int) -> str:
    """Keep the end of a text, from the start of a line."""
    data = text.encode()
    if len(data) <= most:
        return text
    end = data[len(data) - most + len(_GAP.encode()) :].decode("utf-8", "ignore")
    return _GAP + end.partition("\n")[2]


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    if frames is None:
        return ""
    return _text("".join(traceback.format_exception(type(error), error, frames)).rstrip())


def malformed(problem: str) -> Ended:
    """Return the end of a job with wrong arguments. Workers in Rust report the same failure."""
    message = _cut(_text(f"malformed payload: {problem}"), FAILURE_MAX)
    return Ended("malformed", failure={"kind": MALFORMED, "message": message})


def ended_with(result: Any) -> Ended:
    """Return the end of a handler that returned a value."""
    try:
        value = plain(result, "the result")
        if value is not None:
            size = len(to_json(value))
            if size > RESULT_MAX:
                raise ResultError(f"the result has {size} bytes of JSON, more than {RESULT_MAX}")
    except Exception as error:
        # A user's type may raise anything. The handler was not the one that failed.
        words = str(error)
        if not isinstance(error, (TypeError, ValueError, RecursionError, ResultError)):
            words = f"the result is no JSON: {described(error)}"
        failure = {"kind": "ResultError", "message": _cut(_text(words), FAILURE_MAX)}
        return Ended("internal", failure=failure)
    return Ended("completed", result=value)


def ended_by(error: BaseException, job: Job) -> Ended:
    """Return the end of a handler that raised an exception."""
    if isinstance(error, (Cancelled, asyncio.CancelledError)) and job.cancelled:
        return Ended("cancelled")
    if isinstance(error, Release):
        return Ended("release", after=error.after)
    if isinstance(error, Fail):
        return Ended("fail", failure=failure_of(error, str(error) or None))
    if isinstance(error, Retry):
        cause = error.__cause__
        failure = failure_of(error, str(error)) if cause is None else failure_of(cause)
        return Ended("retry", failure=failure, after=error.after)
    return Ended("error", failure=failure_of(error))


Around = Callable[["Job"], contextlib.AbstractContextManager[Any]]
"""Makes a context manager that is entered around a handler."""


def _entered(around: Sequence[Around], job: Job) -> contextlib.AbstractContextManager[Any]:
    if not around:
        return _NOTHING
    stack = contextlib.ExitStack()
    with stack:
        for context in around:
            stack.enter_context(context(job))
        return stack.pop_all()


_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def call(
    function: Callable[..., Any],
    job: Job,
    arguments: dict[str, Any],
    around: Sequence[Around] = (),
) -> Ended:
    """Call a handler that is no coroutine function."""
    try:
        with _entered(around, job):
            result = function(**arguments)
        return ended_with(result)
    except BaseException as error:
        return ended_by(error, job)


async def acall(
    function: Callable[..., Any],
    job: Job,
    arguments: dict[str, Any],
    around: Sequence[Around] = (),
) -> Ended:
    """Call a handler that is a coroutine function."""
    try:
        with _entered(around, job):
            result = await function(**arguments)
        return ended_with(result)
    except BaseException as error:
        return ended_by(error, job)


def report_of(
    ended: Ended, task: Task[..., Any] | None, attempt: int, retries_left: int, jitter: float
) -> dict[str, Any]:
    """Return the report of a run, without the run. Not for cancelled handlers.

    Args:
        ended: How the handler ended.
        task: The task, for its backoff. None: the server decides on the pause before the next
            attempt.
        attempt: Number of this attempt, from 1.
        retries_left: How many attempts may follow.
        jitter: From 0 to 1, for the pause before the next attempt.
    """
    with_failure = {} if ended.failure is None else {"failure": ended.failure}
    if ended.how == "completed":
        result = {} if ended.result is None else {"result": ended.result}
        return {"outcome": "completed", **result}
    if ended.how == "release":
        delay = math.ceil(ended.after or 0)
        return {"outcome": "released", **({"delay": delay} if delay else {})}
    if ended.how in ("malformed", "internal"):
        reason = MALFORMED if ended.how == "malformed" else "internal-error"
        return {"outcome": "exception", "reason": reason, **with_failure}
    if ended.how in ("error", "retry") and retries_left > 0:
        pause = None if task is None else task.pause_after(attempt, jitter)
        if ended.after is not None:
            pause = math.ceil(ended.after)
        return {
            "outcome": "exception",
            "reason": "intermittent-task",
            **({} if pause is None else {"retryAfter": pause}),
            **with_failure,
        }
    return {"outcome": "failed", "retry": False, **with_failure}
