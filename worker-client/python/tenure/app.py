"""The application: its tasks, and its connection to the server."""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from .api import TENURE_API, Call, to_json
from .errors import ConfigurationError, Seconds
from .handle import Handle
from .job import Job
from .outcome import Around
from .schedule import Schedule
from .settings import Settings, read_settings
from .task import JobRequest, Task

if TYPE_CHECKING:
    from .client import AsyncClient, Client, ClientCache

P = ParamSpec("P")
R = TypeVar("R")

TASKS_MAX = 1_000
"""Jobs of one request, the limit of the API."""
NAMES_MAX = 200
"""Jobs with a unique name in one request, the limit of the API."""
_BODY_MAX = 8 << 20
# Rough size of a definition without its payload, in bytes.
_DEFINITION = 500


class TaskDecorator(Protocol):
    """The decorator that ``app.task(…)`` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        """Make a task of a handler."""


class Runner(Protocol):
    """Runs jobs in place of a server: see ``tenure.testing.inline``."""

    def run(self, jobs: Sequence[JobRequest[Any]]) -> list[Handle[Any]]:
        """Run jobs and return their handles."""


class Tenure:
    """An application. It needs no server until a job is enqueued or a worker starts."""

    def __init__(
        self,
        url: str | None = None,
        *,
        client_id: str | None = None,
        access_token: str | None = None,
        certificate: str | None = None,
    ) -> None:
        """Make an application.

        Args:
            url: URL of the server. Default: ``TENURE_URL``, else ``TASKCLUSTER_ROOT_URL``, read
                when it is first needed. The other arguments have variables with the same prefixes.
            client_id: Client that signs requests: ``TENURE_CLIENT_ID``.
            access_token: Its secret: ``TENURE_ACCESS_TOKEN``.
            certificate: JSON text of temporary credentials: ``TENURE_CERTIFICATE``.
        """
        self.tasks: dict[str, Task[..., Any]] = {}
        """The tasks by name."""
        self.contexts: list[Around] = []
        """What ``around`` has registered."""
        self._arguments = (url, client_id, access_token, certificate)
        self._settings: Settings | None = None
        self._clients: ClientCache | None = None
        self._runner: Runner | None = None
        # Set by a test server whose clock is moved by hand.
        self._now: Callable[[], datetime.datetime] | None = None

    def configure(
        self,
        url: str,
        client_id: str | None = None,
        access_token: str | None = None,
        certificate: str | None = None,
    ) -> None:
        """Connect the application to another server, for example in tests.

        Raises:
            ConfigurationError: The URL is not one, or the access token is missing.
        """
        self._arguments = (url, client_id, access_token, certificate)
        self._settings = read_settings(*self._arguments)
        self._clients = None

    def task(
        self,
        *,
        queue: str,
        name: str | None = None,
        retries: int = 5,
        backoff: tuple[Seconds, Seconds] = (2, 300),
        timeout: Seconds | None = None,
        cpu: bool = False,
    ) -> TaskDecorator:
        """Return a decorator that makes a task of a function or an ``async def``.

        Args:
            queue: Queue of its jobs, such as ``acme/mail``; ``mail`` is ``default/mail``.
            name: Name of the task, the ``kind`` in payloads. Default: the name of the function.
            retries: How often a job is tried again after an exception or a lost worker, 0 to 49.
            backoff: Seconds before the second attempt, and the longest pause. Pauses double.
            timeout: Seconds after which the server ends a run, at most 5 days; another attempt
                follows. Default: no limit. Ignored by queues that deliver at most once.
            cpu: True runs the handler in a process of its own, for work that needs the processor.

        Raises:
            ConfigurationError: A value is out of range, the name is taken, or arguments of the
                handler cannot be passed by name.
        """

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            made: Task[..., Any] = Task(
                self,
                function,
                queue=queue,
                name=name,
                retries=retries,
                backoff=backoff,
                timeout=timeout,
                cpu=cpu,
            )
            if made.name in self.tasks:
                raise ConfigurationError(
                    f"there are two tasks {made.name!r}: give one of them another name, by name=…"
                )
            self.tasks[made.name] = made
            return made

        return decorate  # type: ignore[return-value]

    def around(self, context: Around) -> Around:
        """Enter a context manager around each handler. May be used as a decorator.

        Args:
            context: Gets the job, and returns the context manager.
        """
        self.contexts.append(context)
        return context

    def enqueue_many(self, jobs: Iterable[JobRequest[R]]) -> list[Handle[R]]:
        """Enqueue jobs, in one request for each 1,000. Each request enqueues all of them or none.

        Args:
            jobs: Jobs made by ``task.job(…)``. A request has up to 200 with a unique name, and no
                name twice.

        Raises:
            DuplicateJob: Another job has the unique name of one.
            RequestRefused: The server refused a request. Jobs of earlier requests are enqueued.
            ServerUnavailable: No server answered, after several attempts.
        """
        jobs = list(jobs)
        if self._runner is not None:
            return self._runner.run(jobs)
        handles: list[Handle[R]] = []
        for batch in _batches(jobs):
            handles += self._handles(
                batch, self.client.call(_create(batch, self._now or self.client.now))
            )
        return handles

    async def aenqueue_many(self, jobs: Iterable[JobRequest[R]]) -> list[Handle[R]]:
        """Do the same as ``enqueue_many`` in asynchronous code."""
        jobs = list(jobs)
        if self._runner is not None:
            return self._runner.run(jobs)
        handles: list[Handle[R]] = []
        for batch in _batches(jobs):
            client = self.async_client
            handles += self._handles(
                batch, await client.call(_create(batch, self._now or client.now))
            )
        return handles

    def handle(self, id: str) -> Handle[Any]:
        """Return the handle of a job by its id."""
        return Handle(self, id)

    def schedule(self, name: str) -> Schedule:
        """Return a schedule by its name, to set, trigger or delete it. Sends no request."""
        return Schedule(self, name)

    def _handles(self, jobs: Sequence[JobRequest[R]], answer: Any) -> list[Handle[R]]:
        pairs = zip(jobs, answer["tasks"], strict=True)
        return [
            Handle(self, made["taskId"], job.task.signature.decode_result) for job, made in pairs
        ]

    @property
    def settings(self) -> Settings:
        """Server and credentials.

        Raises:
            ConfigurationError: A variable is missing or wrong.
        """
        if self._settings is None:
            self._settings = read_settings(*self._arguments)
        return self._settings

    @property
    def client(self) -> Client:
        """Client for calls of the API, shared by threads."""
        return self._cache().sync(os.getpid())

    @property
    def async_client(self) -> AsyncClient:
        """Client for calls of the API, of the running event loop."""
        return self._cache().of_loop(os.getpid())

    def _cache(self) -> ClientCache:
        # Not at the top: importing an application must be quick.
        from .client import ClientCache

        if self._clients is None:
            self._clients = ClientCache(self.settings)
        return self._clients


def _batches(jobs: list[JobRequest[R]]) -> Iterator[list[JobRequest[R]]]:
    """Split jobs by the limits of one request: jobs, names, and the size of its body."""
    batch: list[JobRequest[R]] = []
    size, names = 0, 0
    for job in jobs:
        named = job.options.unique is not None
        length = _DEFINITION + len(to_json(job.args))
        is_full = len(batch) == TASKS_MAX or names + named > NAMES_MAX
        if batch and (is_full or size + length > _BODY_MAX):
            yield batch
            batch, size, names = [], 0, 0
        batch.append(job)
        size += length
        names += named
    if batch:
        yield batch


def _create(jobs: Sequence[JobRequest[Any]], now: Callable[[], datetime.datetime]) -> Call:
    tasks = [job.definition(now) for job in jobs]
    body = tasks[0] if len(tasks) == 1 else {"tasks": tasks}
    # The key makes it safe to repeat the request.
    return Call("POST", f"{TENURE_API}/tasks", body, idempotency_key=str(uuid.uuid4()))
