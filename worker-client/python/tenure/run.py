"""One claimed run from its claim to its report."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .api import QUEUE_API, Call, backoff, parameter
from .errors import PayloadError, RequestRefused, RunLost, ServerUnavailable
from .hawk import Credentials
from .job import Cancellation, Job, JobInfo
from .lease import Lease, date_of
from .notes import Checkpoints, LiveLog

if TYPE_CHECKING:
    from .arguments import Signature
    from .link import Link
    from .task import Task

log = logging.getLogger("tenure")

Hold = Literal["ours", "unrenewable", "late", "gone"]
"""``ours``; ``unrenewable``: no renewal was answered in time, so the handler is asked to stop, and
its outcome is reported until the lease ends; ``late``: the run has ended, but its handler goes on,
and only a result is reported; ``gone``: no further request is sent for the run."""

# Time of the session's inbox to tell of an ended run, twice as long as it promises.
_TOLD_WITHIN = 2.0
_LONGEST_PAUSE = 2.0
_SHORTEST_TIMEOUT = 0.5


class Owner(Protocol):
    """The worker of a run."""

    def cancel(self, run: Run) -> None:
        """Stop the handler of a run that was asked to stop."""


class Run:
    """A claimed run. Except for the methods of its channel, only the worker's loop uses it."""

    def __init__(
        self,
        claim: dict[str, Any],
        queue: str,
        tasks: dict[str, Task[..., Any]],
        owner: Owner,
        link: Link,
    ) -> None:
        status, definition = claim["status"], claim["task"]
        self.task_id: str = status["taskId"]
        self.run_id: int = claim["runId"]
        self.queue = queue
        self.claimed_at = time.monotonic()
        self.started_at: float | None = None
        self.hold: Hold = "ours"
        self.keeps_late = False
        """True if the handler goes on while its result may count late."""
        self.is_renewing = False
        self.had_overrun = False
        self.lost_at: float | None = None
        self._owner = owner
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._credentials = _credentials(claim["credentials"])
        record: dict[str, Any] = next(
            (run for run in status["runs"] if run["runId"] == self.run_id), {}
        )
        taken_until = date_of(claim["takenUntil"])
        claimed = date_of(record["started"]) if "started" in record else taken_until
        self.lease = Lease.of_claim(taken_until, claimed, self.claimed_at)
        self.retries_left: int = status["retriesLeft"]
        options = (definition.get("extra") or {}).get("tenure") or {}
        self.at_most_once = options.get("delivery") == "at-most-once"
        # The job's own backoff is in place of the task's; the server knows it.
        self.has_backoff = "retryDelay" in options
        self.problem: str | None = None
        self.args: Any = {}
        """Arguments as JSON."""
        self.arguments: dict[str, Any] = {}
        self.task = self._read(definition.get("payload"), tasks)
        info = JobInfo(
            id=self.task_id,
            name=self.task.name if self.task is not None else "",
            queue=queue,
            run_id=self.run_id,
            attempt=max(1, definition.get("retries", 0) - self.retries_left + 1),
            retries_left=self.retries_left,
            created=date_of(definition["created"]),
            deadline=date_of(definition["deadline"]),
            key=options.get("key"),
            traceparent=claim.get("traceparent"),
        )
        self.info = info
        self.checkpoints = Checkpoints(self.task_id, self.run_id, self.send)
        self.log = LiveLog(self.task_id, self.run_id, definition["expires"], self.send)
        self.job = Job(info, self)

    def __str__(self) -> str:
        name = self.info.name or "of an unknown kind"
        return f"job {self.task_id} ({name}, run {self.run_id})"

    @property
    def key(self) -> tuple[str, int]:
        """Task and run."""
        return self.task_id, self.run_id

    def _read(self, payload: Any, tasks: dict[str, Task[..., Any]]) -> Task[..., Any] | None:
        if not isinstance(payload, dict) or not isinstance(payload.get("kind"), str):
            self.problem = 'the payload must be {"kind": the name of a task, "args": {…}}'
            return None
        task = tasks.get(payload["kind"])
        if task is None:
            known = ", ".join(f'"{name}"' for name in sorted(tasks))
            self.problem = f'unknown kind "{payload["kind"]}"; this worker has {known}'
            return None
        args = payload.get("args")
        self.args = {} if args is None else args
        try:
            self.arguments = task.signature.decode(self.args)
        except PayloadError as error:
            self.problem = str(error)
        return task

    def call_arguments(self, signature: Signature) -> dict[str, Any]:
        """Return the arguments of the handler, with its job."""
        job = signature.job_parameter
        return self.arguments if job is None else {**self.arguments, job: self.job}

    # The channel of the job: other threads call these.

    def ask(self, coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Start a coroutine in the worker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def put_checkpoint(self, value: Any) -> None:
        """Store the checkpoint."""
        self.ask(self.checkpoints.put(value)).result()

    def get_checkpoint(self) -> Any:
        """Return the last checkpoint."""
        return self.ask(self.checkpoints.get()).result()

    def post_progress(self, progress: dict[str, Any]) -> None:
        """Store progress soon."""
        self.checkpoints.post(progress)

    def append_log(self, text: str) -> None:
        """Append text to the log."""
        self.log.append(text)

    async def send(self, call: Call) -> Any:
        """Send a call of this run, with a few repeats.

        Raises:
            RunLost: The run is no longer this worker's.
            RequestRefused: The server refused the call.
            ServerUnavailable: No server answered.
        """
        call = call._replace(credentials=self._credentials)
        for failures in range(1, 6):
            if self.hold == "gone":
                raise RunLost(f"{self} is lost: {self.job.cancellation or 'its lease is over'}")
            try:
                return await self._link.call(call)
            except RequestRefused as error:
                if error.status in (403, 409, 410) and not error.is_unclear:
                    raise RunLost(f"{self} is lost: {error.message}") from error
                if not error.is_transient or failures == 5:
                    raise
            except ServerUnavailable:
                if failures == 5:
                    raise
            await asyncio.sleep(backoff(failures))
        raise AssertionError("the last attempt returns or raises")

    # Ownership.

    def stop(self, why: Cancellation) -> None:
        """Ask the handler to stop."""
        self.job._cancel(why)
        self._owner.cancel(self)

    def lose(self, why: Cancellation) -> None:
        """Send nothing more for this run: it has ended, or is another worker's.

        No effect on a late run, which was lost before.
        """
        if not self.has_ended:
            self.hold = "gone"
            self.lost_at = time.monotonic()
            log.info("%s: %s", self, _LOSSES.get(why, why))
            self.stop(why)

    @property
    def has_ended(self) -> bool:
        """True if the server counts the run as ended."""
        return self.hold in ("late", "gone")

    def outlive(self) -> None:
        """Let the handler of the ended run go on: its result may count."""
        self.hold = "late"
        self.checkpoints.drop()
        self.log.drop()
        log.info("%s has ended, but its result may count: its handler goes on", self)

    def check_lease(self, now: float) -> None:
        """Stop the handler in time, if no renewal was answered."""
        if now >= self.lease.ends:
            self.lose("lost")
        elif now >= self.lease.stop_at and self.hold == "ours":
            self.hold = "unrenewable"
            log.warning("%s could not be renewed and is stopped before its lease ends", self)
            self.stop("lost")

    def needs_renewal(self, now: float) -> bool:
        """Return True if it is time to renew the lease."""
        return self.hold == "ours" and not self.is_renewing and now >= self.lease.renew_at

    async def renew(self) -> None:
        """Renew the lease: repeat until there is an answer, or the handler was asked to stop."""
        self.is_renewing = True
        path = f"{QUEUE_API}/task/{parameter(self.task_id)}/runs/{self.run_id}/reclaim"
        failures = 0
        try:
            while self.hold == "ours":
                sent = time.monotonic()
                left = max(_SHORTEST_TIMEOUT, (self.lease.ends - sent) / 3)
                call = Call("POST", path, timeout=min(30.0, left), credentials=self._credentials)
                try:
                    answer = await self._link.call(call)
                except RequestRefused as error:
                    if error.status in (403, 404, 409, 410) and not error.is_unclear:
                        if self.keeps_late:
                            # The refusal does not tell whether the result may count.
                            await asyncio.sleep(_TOLD_WITHIN)
                        return self.lose("lost")
                except ServerUnavailable:
                    pass
                else:
                    self.lease = self.lease.renewed(date_of(answer["takenUntil"]), sent)
                    self._credentials = _credentials(answer["credentials"])
                    return None
                failures += 1
                await asyncio.sleep(min(_LONGEST_PAUSE, backoff(failures)))
        finally:
            self.is_renewing = False

    def tell(self) -> list[Coroutine[Any, Any, None]]:
        """Return what sends due progress and log: by itself, so that neither delays the other."""
        due = []
        if self.checkpoints.is_due:
            due.append(self.checkpoints.flush())
        if self.log.is_due:
            due.append(self.log.flush(self._link.client.url))
        return due

    async def tell_rest(self) -> None:
        """Send the rest of progress and log before the report, at the same time."""
        await asyncio.gather(self.checkpoints.finish(), self.log.finish(self._link.client.url))


_LOSSES: dict[Cancellation, str] = {
    "cancelled": "was cancelled",
    "deadline-exceeded": "its deadline has passed",
    "lost": "is no longer this worker's",
}


def _credentials(answer: dict[str, Any]) -> Credentials:
    return Credentials(answer["clientId"], answer["accessToken"], answer.get("certificate"))
