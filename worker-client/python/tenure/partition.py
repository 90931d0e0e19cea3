"""Partition groups: processes divide work among themselves, each with its share.

A member calls the server once per interval, in a thread. It stops by itself half an interval before
others may have its share, by the monotonic clock.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import threading
import time
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import incr
from .api import RETRIES, TENURE_API, TIMEOUT, Call, parameter
from .errors import RequestRefused, ServerUnavailable
from .lease import date_of

if TYPE_CHECKING:
    from .app import Tenure

log = logging.getLogger("tenure")

Incr = incr.Incr

SLOTS = 240
# A new member calls more often for its first intervals, so that its share comes in time.
_CALLS_PER_INTERVAL = 4
_NEW_FOR = 3 * _CALLS_PER_INTERVAL
# Seconds after a failed call, and between calls while a map waits for acknowledgements.
LONGEST_PAUSE = 1.0
# In larger groups members call less often while they wait: seconds per share.
_PAUSE_PER_SHARE = 0.02
CALL_LEAST = 1.0
"""Least timeout of a call, in seconds."""


def slot_of(key: str) -> int:
    """Return the slot of a key: the last four bytes of its SHA-256, big endian, modulo 240.

    A member has the keys whose slot leaves its index when divided by the number of shares.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[-4:], "big") % SLOTS


def slot_of_task(task_id: str) -> int:
    """Return the slot of a job in a queue that a group divides: the last four bytes of its id."""
    return int.from_bytes(base64.urlsafe_b64decode(f"{task_id}==")[-4:], "big") % SLOTS


@dataclass(frozen=True)
class Share:
    """The share of a member.

    Attributes:
        index: From 0.
        replicas: Number of shares.
        epoch: Number of the map of shares.
    """

    index: int
    replicas: int
    epoch: int

    def has(self, key: str) -> bool:
        """Return True if a key is in this share."""
        return slot_of(key) % self.replicas == self.index


class _View(NamedTuple):
    share: Share
    # Index, number of shares and number of the next map.
    coming: tuple[int | None, int, int] | None
    deadline: float


class Shares:
    """The share of a member and its work in progress, without calls and without a clock."""

    def __init__(self) -> None:
        self._view: _View | None = None
        self._held: dict[int, int] = {}
        # Requests for work in progress, each with the next map that it knew.
        self._claims: dict[int, int | None] = {}
        self._begun_claims = 0
        self._losses = 0
        self._leaving = False

    def take(self, answer: dict[str, Any], sent: float, now: float) -> None:
        """Take in the answer to a call that was sent at this time."""
        if self._view is None or now >= self._view.deadline:
            self._losses += 1
        self._view = None
        if "index" in answer and "validUntil" in answer:
            share = Share(answer["index"], answer["replicas"], answer["epoch"])
            valid = date_of(answer["validUntil"]) - date_of(answer["serverTime"])
            coming = None
            if following := answer.get("next"):
                coming = (following.get("index"), following["replicas"], following["epoch"])
            # Half an interval before others may have the share: time to stop.
            left = max(0.0, valid.total_seconds() - answer["interval"] / 2)
            self._view = _View(share, coming, sent + left)

    @property
    def acked(self) -> int | None:
        """The map to acknowledge, once no work in progress is outside both maps.

        A request for work that began before the map was known may return such work.
        """
        proposal = self.proposal
        is_drained = all(self.keeps(slot) for slot in self._held)
        knows = all(known == proposal for known in self._claims.values())
        return proposal if is_drained and knows else None

    @property
    def proposal(self) -> int | None:
        """Number of the next map, while the group drains."""
        return self._view.coming[2] if self._view and self._view.coming else None

    def begin_claim(self, now: float) -> tuple[Share, int] | None:
        """Begin a request for work. Return the share and the key of the request."""
        share = self.share(now)
        if share is None or self._leaving:
            return None
        self._begun_claims += 1
        self._claims[self._begun_claims] = self.proposal
        return share, self._begun_claims

    def end_claim(self, key: int) -> bool:
        """End a request for work. Return True if the next map can be acknowledged because of it."""
        could = self.acked is not None
        self._claims.pop(key, None)
        return not could and self.acked is not None

    def hold_claimed(self, slot: int) -> None:
        """Hold work that a request has returned, even if the share has changed meanwhile."""
        self._held[slot] = self._held.get(slot, 0) + 1

    def hold(self, slot: int, now: float) -> int | None:
        """Begin work. Return its key for ``is_lost``, or None if it is not in the share."""
        is_valid = self._view is not None and now < self._view.deadline
        if self._leaving or not is_valid or not self.keeps(slot):
            return None
        self._held[slot] = self._held.get(slot, 0) + 1
        return self._losses

    def release(self, slot: int) -> bool:
        """End work. Return True if the next map can be acknowledged because of it."""
        could = self.acked is not None
        self._held[slot] -= 1
        if not self._held[slot]:
            del self._held[slot]
        return not could and self.acked is not None

    def is_lost(self, slot: int, since: int, now: float) -> bool:
        """Return True if another member may work on this slot by now."""
        view = self._view
        if view is None or since != self._losses or now >= view.deadline:
            return True
        return slot % view.share.replicas != view.share.index

    def share(self, now: float) -> Share | None:
        """Return the current share."""
        return self._view.share if self._view and now < self._view.deadline else None

    def leave(self) -> bool:
        """Begin no more work. Return True if none is in progress."""
        self._leaving = True
        return not self._held and not self._claims

    def keeps(self, slot: int) -> bool:
        """Return True if a slot is in the share, and in the next one if there is one."""
        view = self._view
        if view is None or slot % view.share.replicas != view.share.index:
            return False
        return view.coming is None or slot % view.coming[1] == view.coming[0]


class Hold:
    """Work in progress on a key: what ``member.hold(…)`` returns.

    It is false if the key is not in the share. While it is open, no other member gets the key.
    """

    def __init__(self, member: Member, slot: int) -> None:
        self._member = member
        self._slot = slot
        self._since = member._begin(slot)
        self._is_open = self._since is not None

    def __bool__(self) -> bool:
        return self._since is not None

    @property
    def is_lost(self) -> bool:
        """True if another member may have the key by now. Then stop."""
        return self._since is None or self._member._is_lost(self._slot, self._since)

    def close(self) -> None:
        """End the work. Others may get the key."""
        if self._is_open:
            self._is_open = False
            self._member._end(self._slot)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Member:
    """A member of a partition group: what ``app.partition(…).join()`` returns.

    It calls the server in a thread until it leaves. Threads may share it, but not processes.

    Attributes:
        name: Its name in the group.
    """

    def __init__(self, app: Tenure, group: str, name: str) -> None:
        self._app = app
        self._path = f"{TENURE_API}/partitions/{parameter(group)}"
        self._group = group
        self.name = name
        self._pid = os.getpid()
        self._shares = Shares()
        self._waited = 0
        self._stopping = False
        self._wanted = False
        self._changed = threading.Condition()
        answer, sent = self._tick(None)
        pause = self._take(answer, sent)
        self._thread = threading.Thread(
            target=self._run, args=(pause, answer["interval"]), name="tenure-partition", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Member {self.name} of {self._group}>"

    @property
    def share(self) -> Share | None:
        """The current share, or None. Call ``hold`` for each key before its work."""
        with self._changed:
            return self._shares.share(time.monotonic())

    def wait(self, timeout: float | None = None) -> Share | None:
        """Wait until the member has a share, and return it. None: the timeout has passed."""
        ends = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (share := self._shares.share(time.monotonic())) is None:
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            return share

    def hold(self, key: str) -> Hold:
        """Begin work on a key, in a ``with`` statement.

        The result is false if the key is not in the share, or about to move to another member.

        Raises:
            RuntimeError: The process was forked from the one that joined.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("a forked process must join the partition group itself")
        return Hold(self, slot_of(key))

    def leave(self) -> None:
        """Wait until all work has ended, and leave, so that others get the share at once.

        Raises:
            RequestRefused: The server refused it, for example because the group is deleted.
            ServerUnavailable: No server answered. The share is free within two intervals.
        """
        with self._changed:
            while not self._shares.leave():
                self._changed.wait()
        self._stop()
        self._app.client.call(Call("DELETE", f"{self._path}/members/{parameter(self.name)}"))

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # An interrupt may come between the begin of work and its `with`: nobody would end it.
            with self._changed:
                is_idle = self._shares.leave()
            if not is_idle:
                # The share is free within two intervals.
                self._stop()
                return
        self.leave()

    def _stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _begin(self, slot: int) -> int | None:
        with self._changed:
            return self._shares.hold(slot, time.monotonic())

    def _is_lost(self, slot: int, since: int) -> bool:
        with self._changed:
            return self._shares.is_lost(slot, since, time.monotonic())

    def _end(self, slot: int) -> None:
        with self._changed:
            self._wanted |= self._shares.release(slot)
            self._changed.notify_all()

    def _run(self, pause: float, interval: float) -> None:
        # Not at the top: importing an application must be quick.
        from .client import words_of

        is_failing = False
        within = max(CALL_LEAST, interval / 2)
        while self._sleep(pause):
            with self._changed:
                self._wanted = False
                acked = self._shares.acked
            try:
                answer, sent = self._tick(acked, within, 0)
            except (RequestRefused, ServerUnavailable) as error:
                if not is_failing:
                    log.warning(
                        "member %s of partition group %s stops in time: its server is away: %s",
                        self.name,
                        self._group,
                        words_of(error),
                    )
                is_failing, pause = True, min(LONGEST_PAUSE, interval / 8)
            else:
                is_failing, pause = False, self._take(answer, sent)

    def _sleep(self, pause: float) -> bool:
        """Wait, or until a call is worth it. Return False if the member leaves."""
        ends = time.monotonic() + pause
        with self._changed:
            while not self._stopping and not self._wanted:
                left = ends - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return not self._stopping

    def _tick(
        self, acked: int | None, within: float = TIMEOUT, retries: int = RETRIES
    ) -> tuple[dict[str, Any], float]:
        body: dict[str, Any] = {"memberId": self.name}
        if acked is not None:
            body["acked"] = acked
        call = Call("POST", f"{self._path}/tick", body, timeout=within)
        # A repeated attempt is answered later: its share is valid for longer than we assume.
        sent = time.monotonic()
        answer: dict[str, Any] = self._app.client.call(call, retries)
        return answer, sent

    def _take(self, answer: dict[str, Any], sent: float) -> float:
        """Take in an answer, and return the pause until the next call."""
        with self._changed:
            now = time.monotonic()
            self._shares.take(answer, sent, now)
            has_share = self._shares.share(now) is not None
            self._changed.notify_all()
        self._waited = 0 if has_share else self._waited + 1
        return pause_after(answer, self._waited, phase_of(self.name))


def phase_of(name: str) -> float:
    """Return the part of an interval at which a member calls.

    It is early, so that a failed call can be repeated, and not for all members the same.
    """
    return 0.05 + 0.1 * slot_of(name) / SLOTS


def pause_after(answer: dict[str, Any], waited: int, phase: float) -> float:
    """Return the pause after an answer. ``waited``: calls in a row without a share."""
    interval: float = answer["interval"]
    often = interval / _CALLS_PER_INTERVAL
    if answer.get("next"):
        shares: int = answer.get("replicas", 1)
        return min(interval, max(_PAUSE_PER_SHARE * shares, min(often, LONGEST_PAUSE)))
    if answer["state"] == "waiting" and waited < _NEW_FOR:
        return often
    left: float = (answer["number"] + 1) * interval - date_of(answer["serverTime"]).timestamp()
    # A clock that goes back must not make the pause longer than an interval.
    return min(interval * 1.25, max(interval / 8, max(0.0, left) + phase * interval))


class Partition:
    """A partition group by its name: what ``app.partition(…)`` returns.

    Attributes:
        name: Its name.
    """

    def __init__(self, app: Tenure, name: str) -> None:
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<Partition {self.name}>"

    def set(
        self, *, interval: int | None = None, drain_timeout: int | None = None
    ) -> dict[str, Any]:
        """Store the group, or change the settings of the one of this name.

        Args:
            interval: Seconds in which each member shows that it is alive, from 1 to 3600; by
                default 10. It cannot be changed.
            drain_timeout: Seconds that a member may take to finish work that it loses; by default
                as long as it is alive.

        Returns:
            The group, as ``show`` does.

        Raises:
            RequestRefused: The server refused it, for example because the interval would change.
            ServerUnavailable: No server answered, after several attempts.
        """
        given = {"interval": interval, "drainTimeout": drain_timeout}
        body = {name: value for name, value in given.items() if value is not None}
        stored: dict[str, Any] = self._app.client.call(self._call("PUT", body))
        return stored

    def show(self) -> dict[str, Any]:
        """Return the group: ``state``, ``epoch``, ``replicas``, ``members``, ….

        Raises:
            RequestRefused: The server has no such group.
            ServerUnavailable: No server answered, after several attempts.
        """
        shown: dict[str, Any] = self._app.client.call(self._call("GET"))
        return shown

    def delete(self) -> None:
        """Delete the group. Its members stop within two intervals."""
        self._app.client.call(self._call("DELETE"))

    def join(self, name: str | None = None) -> Member:
        """Join the group. The first share comes within two intervals.

        Args:
            name: Name of this process in the group; by default a random one. Two processes with one
                name would work on the same share. One that is started again within two intervals
                gets its former share.

        Raises:
            RequestRefused: There is no such group, or it has 1,000 members.
            ServerUnavailable: No server answered, after several attempts.
        """
        return Member(self._app, self.name, str(uuid.uuid4()) if name is None else name)

    def _call(self, method: str, body: Any = None) -> Call:
        return Call(method, f"{TENURE_API}/partitions/{parameter(self.name)}", body)
