"""How many jobs a worker claims beyond its slots.

Jobs of a few milliseconds would spend most of their time on waiting for the next claim. So a queue
whose jobs are that short is claimed ahead, for a tenth of a second of work. A claim that then waits
for a slot for a second is given back, and nothing is claimed ahead for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from .slots import ASK_MAX

AHEAD = 0.1
"""Seconds of work to claim ahead."""
GIVE_BACK_AFTER = 1.0
"""Seconds after which a claim without a slot is given back."""
_SHORT = 0.05
_PAUSE = 30.0
_SAMPLES = 16
_SMOOTHING = 0.1
# One batch is worked on while a request has the next one.
_MOST = 2 * ASK_MAX


class Prefetch:
    """The prefetch of one queue."""

    def __init__(self, capacity: int, clock: Callable[[], float], fixed: int | None) -> None:
        self._capacity = capacity
        self._clock = clock
        self._fixed = fixed
        self._duration = 0.0
        self._samples = 0
        self._not_before = 0.0
        self.allowed = False
        """False in queues where a claim costs something: limits, and delivery at most once."""

    def ended(self, duration: float) -> None:
        """Count a handler that took this many seconds."""
        self._samples += 1
        weight = max(_SMOOTHING, 1 / self._samples)
        self._duration += weight * (duration - self._duration)

    def given_back(self) -> None:
        """Claim nothing ahead for a while."""
        self._not_before = self._clock() + _PAUSE

    def count(self) -> int:
        """Return how many jobs may be claimed beyond the slots."""
        if self._fixed is not None:
            return self._fixed
        if not self.allowed or self._samples < _SAMPLES or self._duration > _SHORT:
            return 0
        if self._clock() < self._not_before:
            return 0
        return min(_MOST, int(self._capacity * AHEAD / max(self._duration, 1e-4)))
