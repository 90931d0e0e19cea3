"""The counter that partition groups replace."""

from __future__ import annotations


class Incr:
    """Shares by a counter such as Redis' ``INCR``, without a server of Tenure: for comparison.

    In each interval every member increments the counter of the interval's number, and reads the
    counter of the previous one: its first increment gave it an index, and the number of increments
    is the number of shares. This works only while members keep different phases: with the same
    phase the order of the increments changes, and so do the shares. A repeated increment counts
    twice, a late one is missed by the others, and nobody waits for work in progress. A ``Member``
    has none of these faults.

    Example:
        ```python
        incr, redis = Incr(10, skew=random.uniform(0, 5)), Redis()
        while True:
            time.sleep(incr.pause(time.time()))
            number = incr.number(time.time())
            count = redis.incr(f"mail:{number}")
            share = incr.counted(count, redis.get(f"mail:{number - 1}"))
        ```
    """

    def __init__(self, interval: float, skew: float) -> None:
        """Prepare a member.

        Args:
            interval: Seconds in which each member increments the counter once.
            skew: Phase of this member, less than an interval; each member has another one.

        Raises:
            ValueError: The interval is not positive, or the phase is no part of it.
        """
        if not 0 <= skew < interval:
            raise ValueError("skew must be at least 0 and less than the interval")
        self._interval = interval
        self._skew = skew
        self._index: int | None = None

    def number(self, now: float) -> int:
        """Return the number of the interval at this time since 1970, whose counter to increment."""
        return int(now // self._interval)

    def pause(self, now: float) -> float:
        """Return how long to wait from this time since 1970 until the next increment."""
        return self._interval - now % self._interval + self._skew

    def counted(self, count: int, previous: int | None) -> tuple[int, int] | None:
        """Take in the incremented counter and that of the previous interval.

        Returns:
            Index and number of shares of the previous interval, or None after the first increment.
        """
        index, self._index = self._index, count - 1
        return None if index is None or previous is None else (index, previous)
