"""The requests of a worker for one queue: claims jobs and reports their ends, in batches.

One request at a time claims jobs, and takes the reports along. While it waits for a job, or while
there is no free slot, reports are sent in requests of their own.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from typing import Any, Protocol

from .api import QUEUE_API, TENURE_API, Call, backoff, parameter
from .client import words_of
from .errors import RequestRefused, ServerUnavailable, WorkerRefused
from .lease import date_of
from .link import Link, may_pass, refuses_worker
from .outbox import Outbox, Report
from .prefetch import Prefetch
from .run import Run
from .session import Member
from .shares import Claiming, WorkerShare
from .slots import Ask, Slots

log = logging.getLogger("tenure")

_TIMEOUT = 30.0
_SHORTEST_TIMEOUT = 5.0
_LOOK_EVERY = 1.0
_WARN_EVERY = 60.0
# Longest wait of a report for a request that takes it along.
_TOGETHER = 0.1


class FeedOwner(Protocol):
    """The worker of a feed."""

    slots: Slots
    burst: bool

    def claimed(self, feed: Feed, claim: dict[str, Any]) -> None:
        """Start a claimed run."""

    def find(self, task_id: str, run_id: int) -> Run | None:
        """Return a held run."""

    def run_ended(self, task_id: str, run_id: int, reason: str, *, counts: bool) -> None:
        """Handle the end of a run without a report of this worker. Its result may count, or not."""

    def command(self, command: str, task_id: str | None) -> None:
        """Carry out a command of an operator."""

    def lose_all(self, feed: Feed, for_sure: bool) -> None:
        """Stop the runs of the queue: they are lost, or soon may be."""

    def shortest_lease(self) -> float:
        """Return the length of the shortest lease of a held run, in seconds."""

    def slots_changed(self, feed: Feed) -> None:
        """Let the other queues look again: this one has an answer."""


class Feed:
    """The requests for one queue."""

    def __init__(
        self,
        owner: FeedOwner,
        link: Link,
        worker: dict[str, str],
        prefetch: Prefetch,
        share: WorkerShare | None = None,
    ) -> None:
        self.queue = worker["taskQueueId"]
        self.outbox = Outbox()
        self.prefetch = prefetch
        self.member: Member = "waiting"
        self.at_most_once: bool | None = None
        self.is_drained = False
        self._owner = owner
        self._link = link
        self._worker = worker
        self._share = share
        self._session_id: str | None = None
        self._changed = asyncio.Event()
        self._sent = asyncio.Event()
        self._exchanges = False
        self._gathers = False
        self._poll: asyncio.Task[Any] | None = None
        self._takes_none = False
        self._failures = 0
        self._warned = float("-inf")
        self._version: int | None = None
        self._assigned: collections.OrderedDict[tuple[str, int], float] = collections.OrderedDict()

    # What the session tells.

    def joined(self, member: Member, session_id: str | None) -> None:
        """Take a changed state of the session."""
        if member == "live" and session_id != self._session_id:
            self._assigned.clear()
        self.member, self._session_id = member, session_id
        self._interrupt()
        self._update_able()

    def receive(self, item: dict[str, Any], server_time: str) -> None:
        """Handle an item of the inbox."""
        kind = item.get("kind")
        if kind == "run-ended":
            reason = str(item.get("reasonResolved"))
            counts = item.get("resultCounts") is True
            self._owner.run_ended(item["taskId"], item["runId"], reason, counts=counts)
        elif kind == "command":
            log.info("command of an operator: %s", item.get("command"))
            self._owner.command(str(item.get("command")), item.get("taskId"))
        elif kind == "assigned":
            until = float("inf")
            if "acceptBy" in item:
                left = date_of(item["acceptBy"]) - date_of(server_time)
                until = time.monotonic() + left.total_seconds()
            self._assigned[item["taskId"], item["runId"]] = until
            self._interrupt()
            self.wake()

    def session_ended(self) -> None:
        """Lose all runs of the session."""
        self._owner.lose_all(self, for_sure=True)

    def session_unreachable(self) -> None:
        """Stop all handlers."""
        self._owner.lose_all(self, for_sure=False)

    def policy_version(self, version: int) -> None:
        """Take the version of the queue's policy."""
        if version != self._version:
            self._version = version
            self._policy_task = asyncio.ensure_future(self.read_policy())

    async def read_policy(self) -> None:
        """Find out whether claims of this queue cost something."""
        path = f"{TENURE_API}/queues/{parameter(self.queue)}/policy"
        try:
            policy = (await self._link.call(Call("GET", path)))["policy"]
        except RequestRefused as error:
            if error.status != 404 or error.is_unclear:
                # Without the scope to read it, jobs are claimed one by one.
                self.prefetch.allowed = False
                log.debug("the policy of %s cannot be read: %s", self.queue, error)
                return
            policy = {}
        except ServerUnavailable:
            self._version = None
            return
        self.at_most_once = policy.get("delivery") == "at-most-once"
        limits = ("concurrency", "rate", "fair", "dispatch")
        limited = any(policy.get(name) not in (None, False, "pull") for name in limits)
        self.prefetch.allowed = not limited and not self.at_most_once

    # What the worker tells.

    def wake(self) -> None:
        """Look again: a slot is free, or something else has changed."""
        self._changed.set()

    def take_none(self, takes_none: bool) -> None:
        """Claim nothing, or claim again."""
        self._takes_none = takes_none
        self._update_able()
        if takes_none:
            self._interrupt()

    def _interrupt(self) -> None:
        """End a request that waits. The server gives claims on their way to other workers."""
        if self._poll is not None and not self._exchanges:
            self._poll.cancel()

    def share_changed(self) -> None:
        """Claim by the current share: a request that waits has the former one."""
        self._interrupt()
        self._update_able()

    def _update_able(self) -> None:
        able = self._may_claim and not self._failures
        self._owner.slots.set_able(self.queue, able)
        self.wake()
        self._owner.slots_changed(self)

    @property
    def _may_claim(self) -> bool:
        has_share = self._share is None or self._share.is_ready
        return self.member != "waiting" and not self._takes_none and has_share

    # Claims.

    async def claim(self) -> None:
        """Claim jobs, until the task is cancelled.

        Raises:
            WorkerRefused: The server refused the worker before it had ever worked.
        """
        while True:
            self._changed.clear()
            ask = self._next_ask()
            if ask is None:
                if self._gathers:
                    self._sent.clear()
                else:
                    self._sent.set()
                await self._wait_for_change()
            elif not await self._claim_assigned():
                await self._request(ask)

    def _next_ask(self) -> Ask | None:
        self._gathers = False
        if not self._may_claim or (self._owner.burst and self.is_drained):
            return None
        prefetch = self.prefetch.count()
        ask = self._owner.slots.ask(self.queue, prefetch, may_wait=not self._owner.burst)
        # Half of the jobs in hand are left: a larger request follows within milliseconds.
        half = prefetch // 2
        self._gathers = (
            ask is not None and not ask.wait and ask.count < half < self._owner.slots.held
        )
        if self._gathers:
            return None
        if ask is not None and (self._owner.burst or self.outbox.has_due(with_claim=True)):
            return Ask(ask.count, 0)
        return ask

    async def _wait_for_change(self) -> None:
        # Not by `wait_for`, which takes some rounds of the loop: `report` would be first.
        timer = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    async def _request(self, ask: Ask) -> None:
        """Send a request that claims jobs, and handle its answer."""
        slots, claimed = self._owner.slots, None
        claiming = None if self._share is None else self._share.begin_claim()
        if self._share is not None and claiming is None:
            return
        reports = self.outbox.take(with_claim=True) if ask.wait == 0 else []
        slots.begin(self.queue, ask)
        self._exchanges = ask.wait == 0
        self._sent.clear()
        if not self._exchanges:
            self._sent.set()
        poll = asyncio.ensure_future(self._work(reports, ask, claiming))
        self._poll = poll
        try:
            await asyncio.wait({poll})
            if not poll.cancelled():
                answer = poll.result()
                claims = answer["tasks"]
                claimed = len(claims)
        except (RequestRefused, ServerUnavailable) as error:
            self._claim_failed(error)
        finally:
            poll.cancel()
            self._poll, self._exchanges = None, False
            self._sent.set()
            slots.end(self.queue, ask, claimed)
            self._owner.slots_changed(self)
            if claiming is not None and claimed is None:
                claiming.close()
        if claimed is not None:
            if claiming is not None:
                for claim in claims:
                    claiming.hold(claim["status"]["taskId"], claim["runId"])
                claiming.close()
            self._has_answered(claims)
        elif self._failures:
            await asyncio.sleep(backoff(self._failures, most=_LOOK_EVERY))
            self._update_able()

    def _has_answered(self, claims: list[dict[str, Any]]) -> None:
        if self._failures:
            self._failures = 0
            self._update_able()
        self.is_drained = not claims
        for claim in claims:
            self._owner.claimed(self, claim)

    def _claim_failed(self, error: RequestRefused | ServerUnavailable) -> None:
        is_stale = isinstance(error, RequestRefused) and error.code == "StalePartition"
        if is_stale and self._share is not None:
            self._share.refresh()
            return
        self._failures += 1
        if refuses_worker(error) and not self._link.has_worked:
            raise WorkerRefused(str(error)) from error
        # An ended session is noticed by its inbox.
        ended = isinstance(error, RequestRefused) and error.status in (404, 410)
        if not may_pass(error) and not ended:
            self._warn("no jobs of %s can be claimed: %s", error)
        self._owner.slots.set_able(self.queue, False)

    def _warn(self, text: str, error: Exception) -> None:
        if time.monotonic() >= self._warned + _WARN_EVERY:
            self._warned = time.monotonic()
            log.warning(text, self.queue, words_of(error))

    async def _claim_assigned(self) -> bool:
        """Claim the next run that the server gave to this worker, by its name."""
        now = time.monotonic()
        for key in [key for key, until in self._assigned.items() if until <= now]:
            del self._assigned[key]
        if not self._assigned:
            return False
        (task_id, run_id), until = self._assigned.popitem(last=False)
        if self._owner.find(task_id, run_id) is not None:
            return True
        path = f"{QUEUE_API}/task/{parameter(task_id)}/runs/{run_id}/claim"
        names = {name: self._worker[name] for name in ("workerGroup", "workerId")}
        body = {**names, "sessionId": self._session_id}
        ask, claimed = Ask(1, 0), None
        self._owner.slots.begin(self.queue, ask)
        try:
            claim = await self._link.call(Call("POST", path, body, timeout=10.0))
            claimed = 1
        except (RequestRefused, ServerUnavailable) as error:
            if may_pass(error):
                self._assigned[task_id, run_id] = until
                await asyncio.sleep(backoff(1))
            elif isinstance(error, RequestRefused) and error.status not in (404, 409, 410):
                self._warn("assigned jobs of %s cannot be accepted: %s", error)
        finally:
            self._owner.slots.end(self.queue, ask, claimed)
            self._owner.slots_changed(self)
        if claimed:
            self._owner.claimed(self, claim)
        return True

    # Reports.

    async def report(self) -> None:
        """Send reports that no claim takes along, until the task is cancelled."""
        while True:
            await self.outbox.arrived.wait()
            due = self.outbox.next_due()
            if due is None:
                self.outbox.arrived.clear()
                continue
            # Once around the loop at least: a request for jobs may take the reports along.
            await asyncio.sleep(due)
            if self._exchanges or self._gathers:
                timer = asyncio.get_running_loop().call_later(_TOGETHER, self._stop_gathering)
                await self._sent.wait()
                timer.cancel()
            await self.send_reports()

    def _stop_gathering(self) -> None:
        if not self._exchanges:
            self._sent.set()

    async def send_reports(self) -> None:
        """Send the reports that are due, without claiming anything."""
        reports = self.outbox.take(with_claim=False)
        if not reports:
            return
        try:
            await self._work(reports, Ask(0, 0))
        except (RequestRefused, ServerUnavailable) as error:
            log.debug("reports got no answer: %s", error)
            if not may_pass(error):
                self._warn("reports about jobs of %s are refused: %s", error)

    async def _work(
        self, reports: list[Report], ask: Ask, claiming: Claiming | None = None
    ) -> dict[str, Any]:
        """Report and claim in one request. Reports without an answer are kept."""
        body: dict[str, Any] = {**self._worker, "claim": ask.count, "wait": ask.wait}
        if claiming is not None:
            body["partition"] = claiming.wire
        if reports:
            body["results"] = [report.wire() for report in reports]
        if ask.count and self._session_id is not None:
            body["sessionId"] = self._session_id
        timeout = _TIMEOUT + ask.wait
        if reports:
            # A repeat must be possible before a lease is over.
            timeout = min(timeout, max(_SHORTEST_TIMEOUT, self._owner.shortest_lease() / 3))
        unanswered = reports
        try:
            answer: dict[str, Any] = await self._link.call(
                Call("POST", f"{TENURE_API}/work", body, timeout=timeout)
            )
            unanswered = []
        except RequestRefused as error:
            # Other refusals are not about the reports.
            if reports and error.status in (400, 413) and not error.is_unclear:
                unanswered = []
                await self._report_singly(reports, error, with_claim=ask.count > 0)
            raise
        finally:
            self.outbox.unanswered(unanswered)
        for report, verdict in zip(reports, answer["results"], strict=True):
            self.outbox.answered(report, verdict)
        return answer

    async def _report_singly(
        self, reports: list[Report], error: RequestRefused, with_claim: bool
    ) -> None:
        """Handle a batch that was refused as a whole: one wrong report must not stop the others."""
        if len(reports) == 1 and not with_claim:
            refused = {"error": {"code": error.code, "message": error.message}}
            self.outbox.answered(reports[0], refused)
            return
        left = list(reports)
        try:
            while left:
                report = left.pop(0)
                try:
                    await self._work([report], Ask(0, 0))
                except (RequestRefused, ServerUnavailable) as failure:
                    log.debug("a report got no answer: %s", failure)
        finally:
            self.outbox.unanswered(left)
