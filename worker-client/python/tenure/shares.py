"""The share of a worker in a partition group: joined, kept by a call per interval, and left.

The worker claims only jobs of its share. A share moves to another member after the jobs that it
loses have ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from .api import TENURE_API, Call, parameter
from .client import words_of
from .errors import RequestRefused, ServerUnavailable, WorkerRefused
from .link import Link, may_pass, refuses_worker
from .partition import CALL_LEAST, LONGEST_PAUSE, Shares, pause_after, phase_of, slot_of_task

log = logging.getLogger("tenure")

_CLOSE_WITHIN = 3.0
# Seconds, before the first answer.
_USUAL_INTERVAL = 10.0


class Claiming:
    """A request for jobs. While it is open, the worker acknowledges no map that it did not know."""

    def __init__(self, share: WorkerShare, wire: dict[str, Any], key: int) -> None:
        self.wire = wire
        """The share as the request names it."""
        self._share = share
        self._key = key

    def hold(self, task_id: str, run_id: int) -> None:
        """Hold a claimed job until ``release``."""
        self._share._hold(task_id, run_id)

    def close(self) -> None:
        """End the request, whose jobs are held by now."""
        self._share._end_claim(self._key)


class WorkerShare:
    """Keeps the share of a worker. Only the worker's loop uses it."""

    def __init__(self, link: Link, group: str, changed: Callable[[], None]) -> None:
        """Prepare the share.

        Args:
            link: Sends calls.
            group: Name of the partition group.
            changed: Called when the share has changed, or is about to.
        """
        self._link = link
        self._group = group
        self._changed = changed
        self._path = f"{TENURE_API}/partitions/{parameter(group)}"
        self._name = str(uuid.uuid4())
        self._shares = Shares()
        self._held: dict[tuple[str, int], int] = {}
        self._wanted = asyncio.Event()
        self._has_joined = False
        self._is_stale = False
        self._shown: Any = None
        self._waited = 0

    async def attend(self) -> None:
        """Keep the share, until the task is cancelled.

        Raises:
            WorkerRefused: The server refused the first call: there is no such group, or the scope
                is missing.
        """
        pause, failures, interval = 0.0, 0, _USUAL_INTERVAL
        while True:
            await self._sleep(pause)
            self._wanted.clear()
            sent = time.monotonic()
            try:
                answer = await self._tick(max(CALL_LEAST, interval / 2))
            except (RequestRefused, ServerUnavailable) as error:
                if refuses_worker(error) and not self._has_joined:
                    raise WorkerRefused(f"partition group {self._group}: {error}") from error
                failures += 1
                if failures == 1 and not may_pass(error):
                    text = "the share of partition group %s cannot be kept: %s"
                    log.warning(text, self._group, words_of(error))
                pause = min(LONGEST_PAUSE, interval / 8)
            else:
                failures, interval = 0, answer["interval"]
                pause = self._take(answer, sent)

    async def _sleep(self, pause: float) -> None:
        """Wait, or until a call is worth it."""
        timer = asyncio.get_running_loop().call_later(pause, self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            timer.cancel()

    async def _tick(self, within: float) -> dict[str, Any]:
        body: dict[str, Any] = {"memberId": self._name}
        acked = self._shares.acked
        if acked is not None:
            body["acked"] = acked
        call = Call("POST", f"{self._path}/tick", body, timeout=within)
        # Not by the link: it tells a refused worker from one that has worked.
        answer: dict[str, Any] = await self._link.client.call(call, retries=0)
        return answer

    def _take(self, answer: dict[str, Any], sent: float) -> float:
        """Take in an answer, and return the pause until the next call."""
        now = time.monotonic()
        self._shares.take(answer, sent, now)
        self._has_joined = True
        share = self._shares.share(now)
        shown = (share, self._shares.proposal)
        if shown != self._shown or self._is_stale:
            if share is not None and self._shown != shown:
                text = "partition group %s: index %d of %d shares"
                log.info(text, self._group, share.index, share.replicas)
            self._shown, self._is_stale = shown, False
            self._changed()
        self._waited = 0 if share is not None else self._waited + 1
        return pause_after(answer, self._waited, phase_of(self._name))

    @property
    def is_ready(self) -> bool:
        """True if jobs of the share can be claimed."""
        return not self._is_stale and self._shares.share(time.monotonic()) is not None

    def begin_claim(self) -> Claiming | None:
        """Begin a request for jobs of the share."""
        begun = self._shares.begin_claim(time.monotonic())
        if begun is None:
            return None
        share, key = begun
        wire = {"name": self._group, "epoch": share.epoch, "index": share.index}
        return Claiming(self, wire, key)

    def refresh(self) -> None:
        """Ask for the current map: the known one is no longer active."""
        self._is_stale = True
        self._wanted.set()

    def keeps(self, task_id: str) -> bool:
        """Return True if a job is in the share, and stays in it."""
        return self._shares.keeps(slot_of_task(task_id))

    def release(self, task_id: str, run_id: int) -> None:
        """End a job. Others may get its slot."""
        slot = self._held.pop((task_id, run_id), None)
        if slot is not None and self._shares.release(slot):
            self._wanted.set()

    def _hold(self, task_id: str, run_id: int) -> None:
        slot = slot_of_task(task_id)
        self._held[task_id, run_id] = slot
        self._shares.hold_claimed(slot)

    def _end_claim(self, key: int) -> None:
        if self._shares.end_claim(key):
            self._wanted.set()

    async def close(self) -> None:
        """Leave the group, so that others get the share at once, unless a job is still running."""
        if not self._has_joined or not self._shares.leave():
            return
        call = Call("DELETE", f"{self._path}/members/{parameter(self._name)}")
        try:
            await self._link.call(call._replace(timeout=_CLOSE_WITHIN))
        except (RequestRefused, ServerUnavailable) as error:
            log.debug("partition group %s could not be left: %s", self._group, error)
