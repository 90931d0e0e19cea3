"""What a running job tells people: its checkpoint with the progress, and its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .api import QUEUE_API, TENURE_API, Call, parameter
from .errors import RequestRefused, RunLost, ServerUnavailable, TenureError

log = logging.getLogger("tenure")

Send = Callable[[Call], Awaitable[Any]]
"""Sends a call of the run, with the credentials of its claim."""

PROGRESS_EVERY = 2.0
LOG_EVERY = 1.0
"""Seconds between two pieces of the log."""
_CHUNK_MAX = 64 << 10
# Bytes kept until they are sent; of more the middle is lost.
_LOG_MAX = 4 << 20
_NOT_KEPT_PAUSE = 60.0
LAST_PIECES = 5.0
"""Seconds for what is left when the handler has ended."""
LAST_PIECE = 1.0
"""Seconds for each piece of a log: the report does not wait longer for a slow one."""
_LIVE_LOG = "public/logs/live.log"
_CONTENT_TYPE = "text/plain; charset=utf-8"


class Checkpoints:
    """The checkpoint of a task, which has the progress too.

    Without progress it is the value of the handler. With progress it is
    ``{"progress": …, "checkpoint": …}``. Only the worker's loop calls it, but ``post``.
    """

    def __init__(self, task_id: str, run_id: int, send: Send) -> None:
        self._path = f"{TENURE_API}/tasks/{parameter(task_id)}"
        self._run = f"{self._path}/runs/{run_id}/checkpoint"
        self._send = send
        self._lock = asyncio.Lock()
        # The first run of a task finds no checkpoint.
        self._has_read = run_id == 0
        self._checkpoint: Any = None
        self._progress: dict[str, Any] | None = None
        self._posted: dict[str, Any] | None = None
        self._next = 0.0
        self._is_dropped = False

    def drop(self) -> None:
        """Store nothing more, without an error: the next run has the task."""
        self._is_dropped, self._posted = True, None

    def post(self, progress: dict[str, Any]) -> None:
        """Store this progress soon. Any thread may call it."""
        if not self._is_dropped:
            self._posted = progress

    @property
    def is_due(self) -> bool:
        """True if progress should be sent now, and none is on its way."""
        is_idle = not self._lock.locked()
        return self._posted is not None and is_idle and time.monotonic() >= self._next

    @property
    def is_waiting(self) -> bool:
        """True if there is progress to send."""
        return self._posted is not None

    async def flush(self) -> None:
        """Send the posted progress. Errors do not affect the job."""
        async with self._lock:
            posted, self._posted = self._posted, None
            if posted is None:
                return
            self._progress = posted
            self._next = time.monotonic() + PROGRESS_EVERY
            try:
                await self._read()
                await self._store()
            except TenureError as error:
                log.debug("progress was not stored: %s", error)
                if isinstance(error, ServerUnavailable) and self._posted is None:
                    self._posted = posted

    async def finish(self) -> None:
        """Send the last progress, within five seconds."""
        if self.is_waiting:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.flush(), LAST_PIECES)

    async def put(self, value: Any) -> None:
        """Store a checkpoint of the handler."""
        async with self._lock:
            before = self._has_read, self._checkpoint
            self._has_read, self._checkpoint = True, value
            if self._is_dropped:
                return
            if self._posted is not None:
                self._progress, self._posted = self._posted, None
            try:
                await self._store()
            except (RequestRefused, ValueError):
                # It would be refused again with the next progress.
                self._has_read, self._checkpoint = before
                raise

    async def get(self) -> Any:
        """Return the last checkpoint of a handler, also of an earlier run."""
        async with self._lock:
            await self._read()
            return self._checkpoint

    async def _read(self) -> None:
        if self._has_read:
            return
        try:
            answer = await self._send(Call("GET", f"{self._path}/checkpoint"))
            self._checkpoint = _checkpoint_in(answer["checkpoint"])
        except RequestRefused as error:
            if error.status != 404 or error.is_unclear:
                raise
        self._has_read = True

    async def _store(self) -> None:
        document = self._checkpoint
        if self._progress is not None:
            document = {"progress": self._progress}
            if self._checkpoint is not None:
                document["checkpoint"] = self._checkpoint
        await self._send(Call("PUT", self._run, {"checkpoint": document}))


def _checkpoint_in(document: Any) -> Any:
    names = document.keys() if isinstance(document, dict) else set()
    if "progress" in names and names <= {"progress", "checkpoint"}:
        return document["checkpoint"] if "checkpoint" in names else None
    return document


class LiveLog:
    """The log of a run: sent in pieces while the handler works.

    The server makes the artifact ``public/logs/live.log`` of the pieces.
    """

    def __init__(self, task_id: str, run_id: int, expires: str, send: Send) -> None:
        self._path = f"{TENURE_API}/tasks/{parameter(task_id)}/runs/{run_id}/live-log"
        task = f"{QUEUE_API}/task/{parameter(task_id)}/runs/{run_id}"
        self._artifact = f"{task}/artifacts/{parameter(_LIVE_LOG)}"
        self._expires = expires
        self._send = send
        self._lock = threading.Lock()
        self._pending = bytearray()
        # Position of the first pending byte in the whole log.
        self._offset = 0
        self._next = 0.0
        self._is_artifact = False
        self._is_dropped = False
        self._sending = asyncio.Lock()

    def drop(self) -> None:
        """Send nothing more: the run has ended."""
        with self._lock:
            self._is_dropped = True
            self._pending.clear()

    def append(self, text: str) -> None:
        """Append text. Any thread may call it."""
        data = text.encode("utf-8", "replace")
        with self._lock:
            if self._is_dropped:
                return
            self._pending += data
            beyond = len(self._pending) - _LOG_MAX
            if beyond > 0:
                del self._pending[:beyond]
                self._offset += beyond

    @property
    def is_due(self) -> bool:
        """True if a piece should be sent now, and none is on its way."""
        is_idle = not self._sending.locked()
        return bool(self._pending) and is_idle and time.monotonic() >= self._next

    @property
    def is_waiting(self) -> bool:
        """True if there is something to send."""
        return bool(self._pending)

    async def flush(self, url: str) -> None:
        """Send one piece. Errors do not affect the job.

        Args:
            url: URL of the server, for the artifact that leads to the log.
        """
        async with self._sending:
            self._next = time.monotonic() + LOG_EVERY
            with self._lock:
                offset, piece = self._offset, bytes(self._pending[:_CHUNK_MAX])
            if not piece:
                return
            call = Call("PUT", f"{self._path}?offset={offset}", text=piece, timeout=10.0)
            try:
                answer = await self._send(call)
            except (ServerUnavailable, RunLost):
                return
            except RequestRefused as error:
                if not error.is_transient:
                    log.debug("there is no live log: %s", error)
                    self._next = float("inf")
                return
            if not answer["kept"]:
                self._next = time.monotonic() + _NOT_KEPT_PAUSE
                return
            with self._lock:
                sent = max(0, min(answer["next"] - self._offset, len(self._pending)))
                del self._pending[:sent]
                self._offset += sent
            if not self._is_artifact:
                await self._refer(url)

    async def finish(self, url: str) -> None:
        """Send the rest, within five seconds, and while each piece takes less than one."""
        ends = time.monotonic() + LAST_PIECES
        while self.is_waiting and time.monotonic() < ends:
            before = self._offset
            try:
                await asyncio.wait_for(self.flush(url), LAST_PIECE)
            except asyncio.TimeoutError:
                return
            if self._offset == before:
                return

    async def _refer(self, url: str) -> None:
        body = {
            "storageType": "reference",
            "url": f"{url}{self._path}?follow=1",
            "contentType": _CONTENT_TYPE,
            "expires": self._expires,
        }
        try:
            await self._send(Call("POST", self._artifact, body))
            self._is_artifact = True
        except TenureError as error:
            log.debug("the live log is no artifact yet: %s", error)
