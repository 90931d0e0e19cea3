"""For tests of programs that use this library.

``inline(app)`` runs jobs in the call, ``job()`` makes a job for a unit test of a handler, and
``Server`` is what the pytest fixture ``tenure_server`` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import secrets
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import outcome
from .api import to_json
from .errors import JobCancelled, JobFailed, PayloadError, RequestRefused, Seconds
from .handle import Handle, Status
from .job import Cancellation, Job, JobInfo
from .outcome import Ended
from .plain import plain
from .task import JobRequest

if TYPE_CHECKING:
    from .app import Tenure

from .testserver import Server

__all__ = ["InlineHandle", "RecordedJob", "Server", "inline", "job"]

_DAY = datetime.timedelta(days=1)
# The server's limit for a job.
_RELEASES_MAX = 200


class _Memory:
    """The channel of a job without a server."""

    def __init__(self, checkpoint: Any) -> None:
        self.last = checkpoint
        self.checkpoints: list[Any] = []
        self.progress: list[dict[str, Any]] = []
        self.text = ""

    def put_checkpoint(self, value: Any) -> None:
        to_json(value)
        self.last = value
        self.checkpoints.append(value)

    def get_checkpoint(self) -> Any:
        return self.last

    def post_progress(self, progress: dict[str, Any]) -> None:
        self.progress.append(progress)

    def append_log(self, text: str) -> None:
        self.text += text


class RecordedJob(Job):
    """A job for a unit test, which records what its handler does."""

    def __init__(self, info: JobInfo, memory: _Memory) -> None:
        super().__init__(info, memory)
        self._memory = memory

    @property
    def checkpoints(self) -> list[Any]:
        """Checkpoints that the handler has stored, oldest first."""
        return self._memory.checkpoints

    @property
    def progresses(self) -> list[dict[str, Any]]:
        """Progress that the handler has shown: ``done``, ``total`` and ``message``."""
        return self._memory.progress

    @property
    def logged(self) -> str:
        """Text that the handler has logged."""
        return self._memory.text

    def cancel(self, why: Cancellation = "cancelled") -> None:
        """Ask the handler to stop."""
        self._cancel(why)

    def stop(self) -> None:
        """Let the worker shut down: ``stopping`` becomes True."""
        self._stop_soon()


def job(
    *,
    name: str = "test",
    queue: str = "test/test",
    attempt: int = 1,
    retries_left: int = 5,
    last_checkpoint: Any = None,
    key: str | None = None,
) -> RecordedJob:
    """Make a job for a unit test of a handler.

    Args:
        name: Name of the task.
        queue: Queue of the job.
        attempt: Number of the attempt, from 1.
        retries_left: How many attempts may follow.
        last_checkpoint: Checkpoint of an earlier run.
        key: Key for the limits of the queue.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    info = JobInfo(
        id=secrets.token_urlsafe(16),
        name=name,
        queue=queue,
        run_id=attempt - 1,
        attempt=attempt,
        retries_left=retries_left,
        created=now,
        deadline=now + 366 * _DAY,
        key=key,
    )
    return RecordedJob(info, _Memory(last_checkpoint))


class InlineHandle(Handle[Any]):
    """The handle of a job that ran in the call.

    Attributes:
        request: The job: its task, arguments and options.
        attempts: How many attempts it had. Releases do not count.
        error: Exception of the last attempt; None if it succeeded.
    """

    def __init__(self, app: Tenure, request: JobRequest[Any]) -> None:
        super().__init__(app, secrets.token_urlsafe(16))
        self.request = request
        self.attempts = 0
        self.error: BaseException | None = None
        self._ended = Ended("cancelled")
        self._runs: list[Ended] = []

    def status(self) -> Status:
        """Return the state of the job, which has ended."""
        if self._ended.how == "completed":
            return "completed"
        return (
            "exception" if self._ended.how in ("malformed", "internal", "cancelled") else "failed"
        )

    async def astatus(self) -> Status:
        """Do the same as ``status`` in asynchronous code."""
        return self.status()

    def result(self, timeout: Seconds | None = None) -> Any:  # noqa: ARG002
        """Return the result of the job.

        Raises:
            JobFailed: The job has failed, with the exception of its handler as the cause.
        """
        if self._ended.how == "completed":
            return self.request.task.signature.decode_result(self._ended.result)
        failed = JobCancelled if self._ended.how == "cancelled" else JobFailed
        reason = {"malformed": outcome.MALFORMED, "internal": "internal-error"}
        raise failed(
            self.id,
            self.status(),
            reason.get(self._ended.how, self.status()),
            self._ended.failure,
        ) from self.error

    async def aresult(self, timeout: Seconds | None = None) -> Any:
        """Do the same as ``result`` in asynchronous code."""
        return self.result(timeout)

    def cancel(self) -> bool:
        """Return False: the job has ended."""
        return False

    async def acancel(self) -> bool:
        """Return False: the job has ended."""
        return False

    def failure(self, run_id: int) -> dict[str, Any] | None:
        """Return the failure of one run: ``message`` and ``kind``. None if it has only a result.

        Args:
            run_id: Number of the run, from 0.

        Raises:
            RequestRefused: The run has no result and no failure, or is unknown.
        """
        ended = self._runs[run_id] if 0 <= run_id < len(self._runs) else None
        if ended is None or (ended.result is None and ended.failure is None):
            message = f"run {run_id} of task {self.id} has neither result nor failure"
            raise RequestRefused(404, "ResourceNotFound", message)
        return ended.failure

    def _run(self) -> None:
        task, options = self.request.task, self.request.options
        retries = task.retries if options.retries is None else options.retries
        checkpoint = None
        self.attempts, releases = 1, 0
        while True:
            made = job(
                name=task.name,
                queue=task.queue,
                attempt=self.attempts,
                retries_left=retries + 1 - self.attempts,
                last_checkpoint=checkpoint,
                key=options.key,
            )
            # Releases count as runs, not as attempts.
            made._info = dataclasses.replace(made._info, run_id=made.run_id + releases)
            self._ended, self.error = _attempt(self.request, made)
            self._runs.append(self._ended)
            checkpoint = made.last_checkpoint()
            if self._ended.how == "release" and releases < _RELEASES_MAX:
                releases += 1
            elif self._ended.how in ("error", "retry") and self.attempts <= retries:
                self.attempts += 1
            else:
                return


def _attempt(request: JobRequest[Any], made: RecordedJob) -> tuple[Ended, BaseException | None]:
    """Run a handler once, with arguments that went through JSON."""
    signature = request.task.signature
    try:
        arguments = signature.decode(plain(request.args))
    except PayloadError as error:
        return outcome.malformed(str(error)), error
    if signature.job_parameter is not None:
        arguments[signature.job_parameter] = made
    function, around = request.task.function, request.task.app.contexts
    errors: list[BaseException] = []
    contexts = [*around, lambda _: _Remember(errors)]
    if request.task.runs_in == "asyncio":
        ended = _in_loop(outcome.acall(function, made, arguments, contexts))
    else:
        ended = outcome.call(function, made, arguments, contexts)
    return ended, errors[0] if errors else None


class _Remember(contextlib.AbstractContextManager[None]):
    """Keeps the exception of a handler, for the cause of a failure."""

    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._errors.append(error)


def _in_loop(coroutine: Coroutine[Any, Any, Ended]) -> Ended:
    """Run a coroutine to its end, also within a running event loop."""
    results: list[Ended] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(coroutine)))
    thread.start()
    thread.join()
    return results[0]


class _Inline:
    def __init__(self, app: Tenure, handles: list[InlineHandle]) -> None:
        self._app = app
        self._handles = handles

    def run(self, jobs: Sequence[JobRequest[Any]]) -> list[Handle[Any]]:
        made: list[Handle[Any]] = []
        for request in jobs:
            handle = InlineHandle(self._app, request)
            self._handles.append(handle)
            handle._run()
            made.append(handle)
        return made


@contextlib.contextmanager
def inline(app: Tenure) -> Iterator[list[InlineHandle]]:
    """Run jobs in the call that enqueues them, without a server.

    Delays are ignored, and failed attempts are repeated at once. Exceptions of handlers are raised
    by ``result()`` alone, as with a server.

    Yields:
        The handles of all jobs, in the order of their calls.
    """
    handles: list[InlineHandle] = []
    before, app._runner = app._runner, _Inline(app, handles)
    try:
        yield handles
    finally:
        app._runner = before
