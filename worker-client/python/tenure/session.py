"""The session of a worker in one queue: started, renewed by reading its inbox, and closed.

Unreachable: some time before the session may expire, all handlers are asked to stop, and nothing
is claimed. When the server answers again, the session goes on unless it has ended. Ended: its runs
are lost at once, and a new session is started, unless another process took over the name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from .api import TENURE_API, Call, backoff, parameter
from .client import words_of
from .errors import NameTaken, RequestRefused, ServerUnavailable, WorkerRefused
from .lease import GRACE
from .link import Link, may_pass, refuses_worker

log = logging.getLogger("tenure")

Member = Literal["waiting", "live", "alone"]
"""``waiting``: there is no session, or it cannot be reached; ``alone``: works without one."""

_ANSWER_WITHIN = 10.0
_CLOSE_WITHIN = 3.0
_CLOSE_IN_ALL = 10.0
_GRACE_SHARE = 3
# Timeout of the inbox beyond its wait, as a share of the time to live.
_ANSWER_SHARE = 6
_LONGEST_PAUSE = 1.0
_LONGEST_PAUSE_TO_START = 5.0


class Attended(Protocol):
    """What a session tells its queue."""

    def joined(self, member: Member, session_id: str | None) -> None:
        """Take a changed state of the session."""

    def receive(self, item: dict[str, Any], server_time: str) -> None:
        """Handle an item of the inbox."""

    def session_ended(self) -> None:
        """Lose all runs of the session."""

    def session_unreachable(self) -> None:
        """Stop all handlers: the session may expire soon."""

    def policy_version(self, version: int) -> None:
        """Take the version of the queue's policy."""


def grace_of(ttl: float) -> float:
    """Return how long before a session may expire all handlers are asked to stop."""
    return min(GRACE, ttl / _GRACE_SHARE)


def wait_of(ttl: float) -> int:
    """Return the wait of an inbox request.

    Before all handlers must stop there is time for two waits, a late answer, and another request.
    """
    return int((ttl - grace_of(ttl) - 2 * ttl / _ANSWER_SHARE) / 2)


class Session:
    """Keeps a session until it is closed."""

    def __init__(
        self,
        link: Link,
        attended: Attended,
        worker: dict[str, str],
        ttl: int,
        said: Callable[[], dict[str, Any]],
    ) -> None:
        """Prepare a session.

        Args:
            link: Sends calls.
            attended: The queue.
            worker: Fields ``taskQueueId``, ``workerGroup`` and ``workerId``.
            ttl: Time to live without a renewal, in seconds.
            said: Returns what the server should know: ``frozen`` and ``capacity``.
        """
        self._link = link
        self._attended = attended
        self._worker = worker
        self._ttl = ttl
        self._said = said
        self._id: str | None = None
        self._renewed = 0.0
        self._read = 0
        self._failures = 0
        self._has_said: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._is_live = False

    def say(self) -> None:
        """Tell the server soon that capacity or freeze have changed."""
        self._changed.set()

    async def attend(self) -> None:
        """Keep a session, until the task is cancelled.

        Raises:
            NameTaken: Another process took over the session.
            WorkerRefused: The server refused the first session.
        """
        while True:
            await self._start()
            await self._keep()

    async def _start(self) -> None:
        """Start a session, repeating without limit."""
        failures = 0
        while True:
            said = self._said()
            capacity = 0 if said["frozen"] else said["capacity"]
            body = {**self._worker, "ttl": self._ttl, "takeover": True, "capacity": capacity}
            call = Call("POST", f"{TENURE_API}/sessions", body, timeout=_ANSWER_WITHIN)
            sent = time.monotonic()
            try:
                answer = await self._link.call(call)
            except (RequestRefused, ServerUnavailable) as error:
                if refuses_worker(error) and not self._link.has_worked:
                    raise WorkerRefused(str(error)) from error
                failures += 1
                if not may_pass(error) and failures == 1:
                    log.warning("no session could be started; trying again: %s", words_of(error))
            else:
                self._id = str(answer["sessionId"])
                self._renewed, self._read, self._failures = sent, 0, 0
                self._has_said = None if said["frozen"] else said
                self._is_live = True
                log.debug("session %s of %s started", self._id, self._worker["taskQueueId"])
                self._attended.policy_version(answer["policyVersion"])
                self._attended.joined("live", self._id)
                return
            await asyncio.sleep(min(_LONGEST_PAUSE_TO_START, backoff(failures)))

    async def _keep(self) -> None:
        """Renew the session until it has ended."""
        while True:
            asking = asyncio.ensure_future(self._ask())
            try:
                answer = await self._answer_of(asking)
            except (RequestRefused, ServerUnavailable) as error:
                if _has_ended(error):
                    self._end(error)
                    return
                self._failures += 1
                continue
            finally:
                asking.cancel()
            if answer is None:
                continue
            if not self._is_live:
                self._is_live = True
                log.info("the session of %s goes on", self._worker["taskQueueId"])
                self._attended.joined("live", self._id)
            if "policyVersion" in answer:
                self._attended.policy_version(answer["policyVersion"])
            for item in answer.get("items", ()):
                if item["id"] > self._read:
                    self._read = item["id"]
                    self._attended.receive(item, answer["serverTime"])

    async def _answer_of(self, asking: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
        """Wait for an answer. None: there is something else to say, or the time is over."""
        stop_at = self._renewed + self._ttl - grace_of(self._ttl)
        timeout = max(0.0, stop_at - time.monotonic()) if self._is_live else None
        # The answer to a change in progress is awaited: many jobs may end in a row.
        may_interrupt = self._has_said is not None
        waits: set[asyncio.Future[Any]] = {asking}
        changed = asyncio.ensure_future(self._changed.wait())
        if may_interrupt:
            waits.add(changed)
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if asking.done():
            return asking.result()
        if self._changed.is_set() and may_interrupt:
            self._changed.clear()
            if self._said() != self._has_said:
                self._has_said = None
            return None
        self._is_live = False
        log.warning("the session of %s cannot be reached: jobs stop", self._worker["taskQueueId"])
        self._attended.joined("waiting", None)
        self._attended.session_unreachable()
        return None

    async def _ask(self) -> dict[str, Any]:
        """Renew the session once, after a pause if the last attempt failed."""
        wait = wait_of(self._ttl)
        if self._failures:
            await asyncio.sleep(min(_LONGEST_PAUSE, backoff(self._failures)))
            wait = 0
        path = f"{TENURE_API}/sessions/{parameter(self._id or '')}"
        answer_within = self._ttl / _ANSWER_SHARE
        said = self._said()
        sent = time.monotonic()
        if self._has_said == said:
            call = Call("GET", f"{path}/inbox?after={self._read}&wait={wait}")
            call = call._replace(timeout=wait + answer_within)
        else:
            call = Call("POST", f"{path}/renew", said, timeout=answer_within)
        answer: dict[str, Any] = await self._link.call(call)
        self._renewed, self._failures, self._has_said = sent, 0, said
        return answer

    def _end(self, error: Exception) -> None:
        queue = self._worker["taskQueueId"]
        self._id = None
        self._is_live = False
        self._attended.joined("waiting", None)
        self._attended.session_ended()
        # The message names the kind of end in parentheses.
        if "(takeover)" in str(error):
            group, worker = self._worker["workerGroup"], self._worker["workerId"]
            raise NameTaken(
                f"another process with the name {group}/{worker} took over the session in {queue}: "
                "give each process a worker id of its own"
            )
        log.warning("the session of %s has ended: %s", queue, words_of(error))

    async def close(self) -> None:
        """Close the session: its runs go to other workers at once, without using a retry."""
        if self._id is None:
            return
        path = f"{TENURE_API}/sessions/{parameter(self._id)}"
        ends, failures = time.monotonic() + _CLOSE_IN_ALL, 0
        while (left := ends - time.monotonic()) > 0:
            within = min(left, _CLOSE_WITHIN if failures == 0 else _CLOSE_IN_ALL)
            try:
                await self._link.call(Call("DELETE", path, timeout=within))
                return
            except (RequestRefused, ServerUnavailable) as error:
                if not may_pass(error):
                    log.warning("the session could not be closed: %s", words_of(error))
                    return
            failures += 1
            await asyncio.sleep(min(_LONGEST_PAUSE, backoff(failures)))
        log.warning("the session could not be closed in time; its jobs wait until it expires")


def _has_ended(error: Exception) -> bool:
    if not isinstance(error, RequestRefused):
        return False
    # A proxy may answer 404 without the code.
    return error.status == 410 or (error.status == 404 and error.code == "ResourceNotFound")
