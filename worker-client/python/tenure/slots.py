"""Slots of a worker, shared by its queues according to their weights.

A worker never asks for more jobs than it has free slots. A queue is *hungry* while its last answer
had as many jobs as asked for: it may have more. Hungry queues share the slots by weight. Of the
other queues each keeps one slot for a request that waits for a job, up to half of all slots while
there is a hungry queue. A queue without such a slot is asked again after a second. While slots are
scarce requests wait a second only, and queues take turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ASK_MAX = 100
"""Claims of one request, the limit of the API."""
WAIT = 20
"""Longest wait of a request, in seconds."""
PROBE_EVERY = 1.0
"""Seconds after which an empty queue without a waiting request is asked again."""


@dataclass(frozen=True)
class Ask:
    """A request for jobs.

    Attributes:
        count: How many jobs.
        wait: Seconds to wait for the first one.
    """

    count: int
    wait: int


@dataclass
class _Queue:
    weight: int
    able: bool = False
    asked: int = 0
    waits: bool = False
    # When the queue was found empty; None while it is hungry.
    empty_since: float | None = None
    # Claimed jobs divided by the weight.
    spent: float = 0.0
    # When its last request ended.
    asked_at: float = float("-inf")

    def is_hungry(self, now: float) -> bool:
        if not self.able:
            return False
        since = self.empty_since
        return since is None or (not self.waits and now >= since + PROBE_EVERY)


class Slots:
    """Counts held jobs and open requests, and decides which queue may ask for how many jobs."""

    def __init__(
        self, capacity: int, weights: Mapping[str, int], clock: Callable[[], float]
    ) -> None:
        self._capacity = capacity
        self._queues = {name: _Queue(weight) for name, weight in weights.items()}
        self._clock = clock
        self.held = 0

    def set_able(self, name: str, able: bool) -> None:
        """Say whether a queue can be asked now. One that cannot must not hold up the others."""
        queue = self._queues[name]
        if able and not queue.able:
            queue.spent = max(queue.spent, self._least_spent())
        queue.able = able

    def ask(self, name: str, prefetch: int = 0, may_wait: bool = True) -> Ask | None:
        """Return the request that a queue may send now, or None.

        Args:
            name: Name of the queue.
            prefetch: How many jobs may be held beyond the slots.
            may_wait: False if the request will not wait, whatever the answer says.
        """
        asked = sum(queue.asked for queue in self._queues.values())
        free = self._capacity + prefetch - self.held - asked
        if free < 1:
            return None
        queue, now = self._queues[name], self._clock()
        if len(self._queues) == 1:
            return Ask(min(free, ASK_MAX), 0 if queue.empty_since is None else WAIT)
        hungry = [other for other in self._queues.values() if other.is_hungry(now)]
        if queue in hungry:
            return self._share(queue, hungry, free, self._capacity + prefetch)
        waiting = sum(1 for other in self._queues.values() if other.waits)
        most = self._capacity // 2 if hungry else self._capacity
        if waiting >= most:
            return None
        others = [other for other in self._queues.values() if other.able and not other.asked]
        # This queue may be first to look again after its own request.
        before = sum(1 for other in hungry if not other.asked and other.asked_at <= queue.asked_at)
        if may_wait and free <= before:
            return None
        is_scarce = free < len(others) or len(self._queues) > most
        return Ask(1, math.ceil(PROBE_EVERY) if is_scarce else WAIT)

    def _share(self, queue: _Queue, hungry: list[_Queue], free: int, total: int) -> Ask | None:
        weights = sum(other.weight for other in hungry)
        share = max(1, total * queue.weight // weights)
        least = min(other.spent for other in hungry)
        if queue.spent - least > share / queue.weight:
            return None
        return Ask(min(free, share, ASK_MAX), 0)

    def _least_spent(self) -> float:
        now = self._clock()
        hungry = [queue.spent for queue in self._queues.values() if queue.is_hungry(now)]
        return min(hungry, default=0.0)

    def begin(self, name: str, ask: Ask) -> None:
        """Reserve slots for a request."""
        queue = self._queues[name]
        queue.asked += ask.count
        queue.waits = ask.wait > 0

    def end(self, name: str, ask: Ask, claimed: int | None) -> None:
        """Count the answer to a request. None: no usable answer."""
        queue = self._queues[name]
        queue.asked -= ask.count
        queue.waits = False
        queue.asked_at = self._clock()
        if claimed is None:
            return
        self.held += claimed
        if claimed < ask.count:
            queue.empty_since = self._clock()
        elif queue.empty_since is not None:
            queue.spent = max(queue.spent, self._least_spent())
            queue.empty_since = None
        queue.spent += claimed / queue.weight

    def release(self) -> None:
        """Free the slot of a job."""
        self.held -= 1
