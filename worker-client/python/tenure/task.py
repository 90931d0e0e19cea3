"""Tasks: handlers that can be enqueued, and the jobs made from them."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from .arguments import Signature
from .errors import ConfigurationError, Seconds, seconds_of
from .handle import Handle
from .settings import queue_id

if TYPE_CHECKING:
    from .app import Tenure

P = ParamSpec("P")
R = TypeVar("R")

Priority = Literal["highest", "very-high", "high", "medium", "low", "very-low", "lowest", "normal"]
"""Priority of a job within its queue. ``normal`` is another name of ``lowest``, the default."""

OnDuplicate = Literal["reject", "coalesce", "queue"]
"""What happens to a job whose unique name is taken: it is refused, the handle is that of the job
which has the name, or it waits for the end of that job."""

RunsIn = Literal["thread", "asyncio", "process"]
"""Where a handler runs."""

RETRIES_MAX = 49
_DAY = 86_400.0
_YEAR = 366 * _DAY
_NAME_MAX = 255
# The server's limit for the backoff of one job.
_BACKOFF_FIRST_MAX = 3_600.0
_PRIORITIES = Priority.__args__  # type: ignore[attr-defined]
_ON_DUPLICATE = OnDuplicate.__args__  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one job. Absent ones follow the task, then the policy of the queue.

    Attributes:
        delay: Seconds until the job may start, at most 366 days.
        not_before: The same as a date. Not together with ``delay``.
        key: Key for limits and fair sharing of the queue: 1 to 255 characters.
        unique: Name that at most one unresolved job of the queue has: 1 to 255 characters.
        on_duplicate: What happens while another job has the name. Only with ``unique``.
        priority: Priority within the queue.
        retries: How often the job is tried again, 0 to 49.
        backoff: Seconds before the second attempt, at most an hour, and the longest pause.
        deadline: Seconds until the server ends the job, or a date. Default: 366 days, or what the
            policy of the queue says.
        after: Jobs, or their ids, which must be completed before this one may start.
        tags: Texts by which people find jobs.
    """

    delay: Seconds | None = None
    not_before: datetime.datetime | None = None
    key: str | None = None
    unique: str | None = None
    on_duplicate: OnDuplicate | None = None
    priority: Priority | None = None
    retries: int | None = None
    backoff: tuple[Seconds, Seconds] | None = None
    deadline: Seconds | datetime.datetime | None = None
    after: Sequence[Handle[Any] | str] = ()
    tags: dict[str, str] | None = None

    def check(self) -> None:
        """Check the values that the server would refuse only later.

        Raises:
            ValueError: A value is out of range, or the date has no time zone.
        """
        if self.delay is not None:
            seconds_of(self.delay, "delay", _YEAR)
            if self.not_before is not None:
                raise ValueError("give delay or not_before, not both")
        for name, date in (("not_before", self.not_before), ("deadline", self.deadline)):
            if isinstance(date, datetime.datetime) and date.tzinfo is None:
                raise ValueError(f"{name} must have a time zone, such as datetime.timezone.utc")
        if self.deadline is not None and not isinstance(self.deadline, datetime.datetime):
            seconds_of(self.deadline, "deadline", _YEAR)
        if self.priority is not None and self.priority not in _PRIORITIES:
            raise ValueError(f"priority must be one of {', '.join(_PRIORITIES)}")
        self._check_names()
        if self.retries is not None:
            _check_retries(self.retries)
        if self.backoff is not None:
            _backoff(self.backoff, _BACKOFF_FIRST_MAX)

    def _check_names(self) -> None:
        for name, text in (("key", self.key), ("unique", self.unique)):
            if text is not None and not 1 <= len(text) <= 255:
                raise ValueError(f"{name} must have 1 to 255 characters")
        if self.on_duplicate is not None:
            if self.unique is None:
                raise ValueError("on_duplicate needs unique, the name of the job")
            if self.on_duplicate not in _ON_DUPLICATE:
                raise ValueError(f"on_duplicate must be one of {', '.join(_ON_DUPLICATE)}")


def _check_retries(retries: int) -> None:
    if not 0 <= retries <= RETRIES_MAX:
        raise ValueError(f"retries must be from 0 to {RETRIES_MAX}, not {retries!r}")


@dataclasses.dataclass(frozen=True)
class JobRequest(Generic[R]):
    """A job that was not enqueued yet: made by ``task.job(…)``, for ``app.enqueue_many``.

    Attributes:
        task: The task.
        args: Arguments by name, as JSON.
        options: Options of the job.
    """

    task: Task[..., R]
    args: dict[str, Any]
    options: Options

    def definition(self, now: Callable[[], datetime.datetime]) -> dict[str, Any]:
        """Return the definition of the task for the server.

        Args:
            now: Returns the time by the server's clock.
        """
        task, options = self.task, self.options
        retries = task.retries if options.retries is None else options.retries
        definition: dict[str, Any] = {
            "taskQueueId": task.queue,
            "payload": {"kind": task.name, "args": self.args},
            "metadata": {"name": task.name},
            "retries": retries,
        }
        if options.priority is not None:
            definition["priority"] = options.priority
        if isinstance(options.deadline, datetime.datetime):
            definition["deadline"] = _date(options.deadline)
        elif options.deadline is not None:
            seconds = seconds_of(options.deadline, "deadline", _YEAR)
            definition["deadline"] = _date(now() + datetime.timedelta(seconds=seconds))
        if options.after:
            ids = [job if isinstance(job, str) else job.id for job in options.after]
            definition["dependencies"] = ids
        if options.tags:
            definition["tags"] = options.tags
        runs = self._runs()
        if runs:
            definition["options"] = runs
        return definition

    def _runs(self) -> dict[str, Any]:
        task, options = self.task, self.options
        runs: dict[str, Any] = {}
        if options.delay is not None:
            runs["delay"] = math.ceil(seconds_of(options.delay, "delay", _YEAR))
        if options.not_before is not None:
            runs["notBefore"] = _date(options.not_before)
        if options.key is not None:
            runs["key"] = options.key
        if options.unique is not None:
            runs["unique"] = options.unique
        if options.on_duplicate is not None:
            runs["onDuplicate"] = options.on_duplicate
        if options.backoff is not None:
            first, most = _backoff(options.backoff, _BACKOFF_FIRST_MAX)
            pauses = {"first": math.ceil(first), "factor": 2, "most": math.ceil(most)}
            runs["retryDelay"] = pauses
        if task.timeout is not None:
            runs["completeTime"] = math.ceil(task.timeout)
        return runs


def _date(date: datetime.datetime) -> str:
    utc = date.astimezone(datetime.timezone.utc)
    return utc.strftime("%Y-%m-%dT%H:%M:%S.") + f"{utc.microsecond // 1000:03}Z"


class Enqueuer(Generic[P, R]):
    """A task with options for its jobs: what ``task.options(…)`` returns."""

    def __init__(self, task: Task[P, R], options: Options) -> None:
        self._task = task
        self._options = options

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """Make a job with these arguments, for ``app.enqueue_many``.

        Raises:
            TypeError: Arguments are missing, or too many.
            PayloadError: An argument is no JSON, or does not match its annotation.
        """
        return JobRequest(self._task, self._task.signature.encode(args, kwargs), self._options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a job with these arguments.

        Raises:
            TypeError: Arguments are missing, or too many.
            PayloadError: An argument is no JSON, or does not match its annotation.
            DuplicateJob: Another job has the unique name.
            RequestRefused: The server refused the job, for example without the scope. A full queue
                refuses it with the status 429, after several attempts in half a minute.
            ServerUnavailable: No server answered, after several attempts.
        """
        [handle] = self._task.app.enqueue_many([self.job(*args, **kwargs)])
        return handle

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Do the same as ``enqueue`` in asynchronous code."""
        [handle] = await self._task.app.aenqueue_many([self.job(*args, **kwargs)])
        return handle


class Task(Enqueuer[P, R]):
    """A handler that can be enqueued: what the decorator ``@app.task`` makes.

    Attributes:
        app: The application.
        name: Name of the task, the ``kind`` in payloads.
        queue: Full id of its queue.
        retries: How often a failed job is tried again.
        backoff: First and longest pause between attempts, in seconds.
        timeout: Seconds after which the server ends a run. None: no limit.
        runs_in: Where the handler runs.
        signature: Parameters of the handler.
    """

    def __init__(
        self,
        app: Tenure,
        function: Callable[..., Any],
        *,
        queue: str,
        name: str | None,
        retries: int,
        backoff: tuple[Seconds, Seconds],
        timeout: Seconds | None,
        cpu: bool,
    ) -> None:
        super().__init__(self, Options())
        self.app = app
        self.function = function
        self.name = function.__name__ if name is None else name
        self.queue = queue_id(queue)
        self.signature = Signature(function)
        try:
            _check_retries(retries)
            self.retries = retries
            self.backoff = _backoff(backoff, _DAY)
            self.timeout = None if timeout is None else seconds_of(timeout, "timeout", 5 * _DAY)
        except ValueError as error:
            raise ConfigurationError(f"{self.name}: {error}") from None
        is_async = inspect.iscoroutinefunction(function)
        if not 1 <= len(self.name) <= _NAME_MAX:
            raise ConfigurationError(f"the name of a task must have 1 to {_NAME_MAX} characters")
        if self.timeout is not None and self.timeout < 1:
            raise ConfigurationError("timeout must be at least a second")
        if is_async and cpu:
            raise ConfigurationError(f"{self.name}: a handler with cpu=True cannot be async")
        if "<locals>" in function.__qualname__ and cpu:
            raise ConfigurationError(
                f"{self.name}: a handler with cpu=True must be a function of a module, which other "
                "processes can import"
            )
        self.runs_in: RunsIn = "asyncio" if is_async else "process" if cpu else "thread"
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name} of queue {self.queue}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler itself, without a queue."""
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        delay: Seconds | None = None,
        not_before: datetime.datetime | None = None,
        key: str | None = None,
        unique: str | None = None,
        on_duplicate: OnDuplicate | None = None,
        priority: Priority | None = None,
        retries: int | None = None,
        backoff: tuple[Seconds, Seconds] | None = None,
        deadline: Seconds | datetime.datetime | None = None,
        after: Sequence[Handle[Any] | str] = (),
        tags: dict[str, str] | None = None,
    ) -> Enqueuer[P, R]:
        """Return this task with options for the jobs that it enqueues.

        Args:
            delay: Seconds until the job may start, at most 366 days.
            not_before: The same as a date with a time zone. Not together with ``delay``.
            key: Key for limits and fair sharing of the queue: 1 to 255 characters.
            unique: Name of the job, 1 to 255 characters. At most one unresolved job of the queue
                has it, through all its attempts.
            on_duplicate: What happens while another job has the name: ``reject`` raises
                ``DuplicateJob``, ``coalesce`` returns the handle of that job, and with ``queue``
                this job waits for its end. Default: what the policy of the queue says, or
                ``reject``.
            priority: Priority within the queue.
            retries: How often the job is tried again, 0 to 49.
            backoff: Seconds before the second attempt, at most an hour, and the longest pause. It
                is in place of the task's, and workers in other languages follow it too.
            deadline: Seconds until the server ends the job, or a date with a time zone. Default:
                366 days, or what the policy of the queue says.
            after: Jobs, or their ids, which must be completed before this one may start.
            tags: Texts by which people find jobs.

        Raises:
            ValueError: A value is out of range.
        """
        options = Options(
            delay=delay,
            not_before=not_before,
            key=key,
            unique=unique,
            on_duplicate=on_duplicate,
            priority=priority,
            retries=retries,
            backoff=backoff,
            deadline=deadline,
            after=tuple(after),
            tags=tags,
        )
        options.check()
        return Enqueuer(self, options)

    def pause_after(self, attempt: int, jitter: float) -> int:
        """Return the seconds before the next attempt, at most the longest pause.

        The server accepts whole seconds, so pauses of the backoff are rounded up.

        Args:
            attempt: The attempt that failed, from 1.
            jitter: From 0 to 1; adds up to a tenth, so that jobs that failed together spread. Less
                than half a second adds nothing.
        """
        first, longest = self.backoff
        pause: float = min(longest, first * 2 ** min(attempt - 1, 30))
        spread = max(math.ceil(pause), round(pause * (1 + jitter / 10)))
        return min(math.ceil(longest), spread)


def _backoff(backoff: tuple[Seconds, Seconds], first_max: float) -> tuple[float, float]:
    first = seconds_of(backoff[0], "the first pause of backoff", first_max)
    longest = seconds_of(backoff[1], "the longest pause of backoff", _DAY)
    if first > longest:
        raise ValueError("backoff is (first pause, longest pause), in seconds")
    return first, longest
