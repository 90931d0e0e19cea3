"""The application: its tasks, and its connection to the server."""

from __future__ import annotations

import base64
import datetime
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import urlencode

from .api import TENURE_API, Call, parameter, to_json
from .errors import ConfigurationError, Seconds, seconds_of
from .handle import Handle
from .job import Job
from .outcome import Around
from .partition import Partition
from .schedule import Schedule
from .settings import Settings, queue_id, read_settings
from .subscription import Subscription
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
# In seconds.
_STATISTICS_MAX = 90 * 86_400.0
_COPY_MAX = 366 * 86_400.0
_PROBLEMS = Call("GET", f"{TENURE_API}/problems")
# Rough size of a definition without its payload, in bytes.
_DEFINITION = 500


def _new_id() -> str:
    """Return a slug id, which does not begin with a dash."""
    raw = bytearray(uuid.uuid4().bytes)
    raw[0] &= 0x7F
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


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

    def subscription(self, name: str) -> Subscription:
        """Return a subscription by its name, to set, test or delete it. Sends no request."""
        return Subscription(self, name)

    def partition(self, name: str) -> Partition:
        """Return a partition group by its name, to set, join or delete it. Sends no request."""
        return Partition(self, name)

    def statistics(
        self, queue: str | None = None, *, since: Seconds = 3_600, step: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the numbers of a queue over time, or of all queues together, oldest first.

        Each point has ``at``, ``created``, ``started``, ``completed``, ``failed``, ``exception``,
        ``lost``, ``pendingMost`` and ``claimedMost``, and in seconds ``waitP50``, ``waitP95``,
        ``runP50`` and ``runP95`` unless nothing was counted.

        Args:
            queue: Queue; None for all queues together.
            since: How far back to begin, up to 90 days.
            step: Seconds per point: 60, 600 or 3600. By default the smallest that is possible.

        Raises:
            ValueError: ``since`` is negative or too long.
            RequestRefused: The server refused it, for example because ``step`` is too small.
            ServerUnavailable: No server answered, after several attempts.
        """
        begin = (self._now or self.client.now)() - datetime.timedelta(
            seconds=seconds_of(since, "since", _STATISTICS_MAX)
        )
        path = "" if queue is None else f"/queues/{parameter(queue_id(queue))}"
        query = f"from={parameter(begin.isoformat())}" + (f"&step={step}" if step else "")
        answer = self.client.call(Call("GET", f"{TENURE_API}{path}/statistics?{query}"))
        points: list[dict[str, Any]] = answer["points"]
        return points

    def audit(
        self,
        *,
        client: str | None = None,
        object: str | None = None,
        kind: str | None = None,
        action: str | None = None,
        after: datetime.datetime | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Return who changed what, newest first. Requests pages as they are needed.

        Args:
            client: Only changes of this client.
            object: Only changes of the object with this id.
            kind: Only changes of this kind of object, such as ``task`` or ``queue``.
            action: Only changes by this operation, such as ``cancelTask``.
            after: Only changes after this time, which has a time zone.

        Raises:
            ValueError: ``after`` has no time zone.
            RequestRefused: The client may not list the audit.
            ServerUnavailable: No server answered, after several attempts.
        """
        given = {
            "client": client,
            "object": object,
            "kind": kind,
            "action": action,
            "after": None if after is None else _utc(after, "after"),
        }
        query = {name: value for name, value in given.items() if value is not None}
        return self._pages("/audit", "audit", query)

    def list_tasks(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        state: str | None = None,
        reason: str | None = None,
        worker: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        owner: str | None = None,
        project: str | None = None,
        since: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Return the tasks that meet all conditions. Requests pages as they are needed.

        Each task has ``taskId``, ``taskQueueId``, ``state``, ``priority``, ``runs`` and more.

        Args:
            queue: Only tasks of this queue.
            group: Only tasks of the group with this id.
            state: ``unscheduled``, ``pending``, ``held``, ``running``, ``completed``, ``failed`` or
                ``exception``. ``held`` needs a queue.
            reason: Only tasks whose last run ended for this reason, such as ``claim-expired``.
            worker: Only tasks whose last run is or was of this worker, ``group/id``.
            name: Only tasks with this text in their names.
            tag: Only tasks with this tag, ``key=value``.
            owner: Only tasks of this owner.
            project: Only tasks of this project.
            since: Only tasks created since this time, which has a time zone; failed tasks by the
                time of the failure.
            until: Only tasks until this time, likewise.

        Raises:
            ValueError: A time has no time zone.
            RequestRefused: A condition is wrong, or the client may not read the status of tasks.
            ServerUnavailable: No server answered, after several attempts.
        """
        given = {
            "taskQueueId": None if queue is None else queue_id(queue),
            "taskGroupId": group,
            "state": state,
            "reason": reason,
            "worker": worker,
            "name": name,
            "tag": tag,
            "owner": owner,
            "projectId": project,
            "since": None if since is None else _utc(since, "since"),
            "until": None if until is None else _utc(until, "until"),
        }
        query = {name: value for name, value in given.items() if value is not None}
        return self._pages("/tasks", "tasks", query)

    def dead_letters(
        self, queue: str, *, reason: str | None = None, before: datetime.datetime | None = None
    ) -> Iterator[dict[str, Any]]:
        """Return the failed tasks of a queue that wait to be run again, oldest first.

        Requests pages as they are needed. Each task has ``taskId``, ``runId``, ``name``, ``state``,
        ``reasonResolved``, ``resolved`` and ``deadline``.

        Args:
            queue: Queue, whose policy has ``deadLetters``.
            reason: Only tasks that ended for this reason, such as ``failed``.
            before: Only tasks that failed before this time, which has a time zone.

        Raises:
            ValueError: ``before`` has no time zone.
            RequestRefused: The client may not read the queue.
            ServerUnavailable: No server answered, after several attempts.
        """
        until = None if before is None else _utc(before, "before")
        given = {"reason": reason, "before": until}
        query = {name: value for name, value in given.items() if value is not None}
        path = f"/queues/{parameter(queue_id(queue))}/dead-letters"
        return self._pages(path, "deadLetters", query)

    def redrive(
        self,
        queue: str,
        *,
        tasks: Sequence[str] | None = None,
        reason: str | None = None,
        before: datetime.datetime | None = None,
        limit: int | None = None,
        copy: Seconds | None = None,
        continuation_token: str | None = None,
    ) -> dict[str, Any]:
        """Run failed tasks of a queue again, the oldest first, in one request.

        The answer has the numbers ``redriven``, ``copied`` and ``refusedCount``, the first
        ``refused`` tasks with ``code`` and ``message``, and ``continuationToken`` if there are
        more.

        Args:
            queue: Queue.
            tasks: Only these tasks, up to 1,000. Not with the conditions below.
            reason: Only tasks that ended for this reason, such as ``failed``.
            before: Only tasks that failed before this time, which has a time zone.
            limit: Number of tasks to try, up to 10,000. Default: 1,000.
            copy: Copy tasks whose deadline has passed, with a deadline after this time. Default:
                they are refused.
            continuation_token: That of the previous answer, to continue behind its tasks.

        Raises:
            ValueError: ``before`` has no time zone, or ``copy`` is negative or too long.
            RequestRefused: The client may not manage the queue, or an argument is wrong.
            ServerUnavailable: No server answered, after several attempts.
        """
        after = None if copy is None else round(seconds_of(copy, "copy", _COPY_MAX))
        given = {
            "taskIds": None if tasks is None else list(tasks),
            "reason": reason,
            "before": before and _utc(before, "before"),
            "limit": limit,
            "copy": None if after is None else {"deadlineAfter": after},
            "continuationToken": continuation_token,
        }
        body = {name: value for name, value in given.items() if value is not None}
        path = f"{TENURE_API}/queues/{parameter(queue_id(queue))}/redrive"
        answer: dict[str, Any] = self.client.call(Call("POST", path, body))
        return answer

    def _pages(self, path: str, name: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        while True:
            whole = f"{TENURE_API}{path}" + (f"?{urlencode(query)}" if query else "")
            page = self.client.call(Call("GET", whole))
            # A page with a token may be empty.
            yield from page[name]
            if "continuationToken" not in page:
                return
            query["continuationToken"] = page["continuationToken"]

    def start_job(
        self,
        action: str,
        *,
        filter: dict[str, Any] | None = None,
        tasks: Sequence[str] | None = None,
        priority: str | None = None,
    ) -> dict[str, Any]:
        """Cancel, rerun or reprioritise many tasks in the background.

        The answer has ``jobId``, and the number ``found`` of tasks. A repeated request starts one
        job.

        Args:
            action: ``cancel``, ``rerun`` or ``priority``.
            filter: Conditions for tasks, with the names of the API, such as ``{"taskQueueId":
                "acme/mail", "state": "failed"}``. A rerun needs a ``state``.
            tasks: In place of conditions: these tasks, up to 1,000.
            priority: The new priority, for the action ``priority``.

        Raises:
            RequestRefused: The client may not start jobs, an argument is wrong, or too many jobs
                run.
            ServerUnavailable: No server answered, after several attempts.
        """
        given = {
            "action": action,
            "filter": filter,
            "taskIds": None if tasks is None else list(tasks),
            "priority": priority,
            "jobId": _new_id(),
        }
        body = {name: value for name, value in given.items() if value is not None}
        answer: dict[str, Any] = self.client.call(Call("POST", f"{TENURE_API}/jobs", body))
        return answer

    def read_job(self, job_id: str) -> dict[str, Any]:
        """Return a job with its ``state``, its numbers and the first refused tasks.

        Raises:
            RequestRefused: The job does not exist, or the client may not read it.
            ServerUnavailable: No server answered, after several attempts.
        """
        path = f"{TENURE_API}/jobs/{parameter(job_id)}"
        job: dict[str, Any] = self.client.call(Call("GET", path))
        return job

    def stop_job(self, job_id: str) -> dict[str, Any]:
        """Stop a job, and return it. Changed tasks stay changed.

        Raises:
            RequestRefused: The job does not exist, or the client may not stop it.
            ServerUnavailable: No server answered, after several attempts.
        """
        path = f"{TENURE_API}/jobs/{parameter(job_id)}/stop"
        job: dict[str, Any] = self.client.call(Call("POST", path))
        return job

    def problems(self) -> list[dict[str, Any]]:
        """Return what needs somebody, the most urgent first.

        Each problem has ``kind``, ``severity`` (``now`` or ``known``), ``object``, ``since``,
        ``message`` and ``action``.

        Raises:
            RequestRefused: The client may not list queues.
            ServerUnavailable: No server answered, after several attempts.
        """
        listed: list[dict[str, Any]] = self.client.call(_PROBLEMS)["problems"]
        return listed

    async def aproblems(self) -> list[dict[str, Any]]:
        """Do the same as ``problems`` in asynchronous code."""
        listed: list[dict[str, Any]] = (await self.async_client.call(_PROBLEMS))["problems"]
        return listed

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


def _utc(time: datetime.datetime, what: str) -> str:
    """Return a time as the API takes it."""
    if time.tzinfo is None:
        raise ValueError(f"{what} must have a time zone")
    return time.astimezone(datetime.timezone.utc).isoformat()


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
