"""The lease of a claim on the local monotonic clock.

Only differences of the server's dates are used, so a wrong local clock changes nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

GRACE = 30.0
"""Seconds between the request to stop an unrenewed handler and the end of its lease, at most."""
_GRACE_SHARE = 3
_HEARTBEAT = 0.75
# At least an eighth of the lease is left for repeats of a renewal.
_REPEAT_SHARE = 8


def date_of(text: str) -> datetime.datetime:
    """Read a date of the API."""
    # Python 3.10 does not read a Z.
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


@dataclass(frozen=True)
class Lease:
    """When a claim ends, and when to renew it. Times are seconds of the monotonic clock.

    Attributes:
        since: Begin of the lease.
        ends: End without a renewal.
        duration: Seconds from a claim or renewal to the end.
        taken_until: End by the server's clock.
    """

    since: float
    ends: float
    duration: float
    taken_until: datetime.datetime

    @classmethod
    def of_claim(
        cls, taken_until: datetime.datetime, claimed: datetime.datetime, received: float
    ) -> Lease:
        """Return the lease of a new claim.

        Args:
            taken_until: End by the server's clock.
            claimed: Time of the claim by the server's clock.
            received: When the answer arrived.
        """
        duration = max(0.0, (taken_until - claimed).total_seconds())
        return cls(received, received + duration, duration, taken_until)

    def renewed(self, taken_until: datetime.datetime, sent: float) -> Lease:
        """Return the lease after a renewal that was sent at ``sent``.

        The end moves as far as the server moved it, and at most to one lease from now: a jump of
        the server's clock never makes it longer.
        """
        moved = max(0.0, (taken_until - self.taken_until).total_seconds())
        ends = min(self.ends + moved, sent + self.duration)
        return Lease(sent, ends, self.duration, taken_until)

    @property
    def stop_at(self) -> float:
        """When to ask the handler to stop, if no renewal was answered."""
        length = self.ends - self.since
        return self.ends - min(GRACE, length / _GRACE_SHARE)

    @property
    def renew_at(self) -> float:
        """When to renew."""
        length = self.ends - self.since
        latest = self.stop_at - self.since - length / _REPEAT_SHARE
        return self.since + max(0.0, min(length * _HEARTBEAT, latest))
