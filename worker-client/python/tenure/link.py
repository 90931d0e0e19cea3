"""The worker's calls to the server, and what it says about a server that is away."""

from __future__ import annotations

import logging
import time
from typing import Any

from .api import Call
from .client import AsyncClient, words_of
from .errors import RequestRefused, ServerUnavailable

log = logging.getLogger("tenure")

# A single failure may be a hiccup.
_AWAY_AFTER = 2


class Link:
    """Sends calls once. Says once, not at each call, that the server is away, and when it is back.

    Attributes:
        has_worked: True if the server has ever answered this worker.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.has_worked = False
        self._failures = 0
        self._away_since: float | None = None

    async def call(self, call: Call) -> Any:
        """Send a call once and return its answer.

        Raises:
            RequestRefused: The server refused the call.
            ServerUnavailable: No server answered.
        """
        try:
            answer = await self.client.call(call, retries=0)
        except ServerUnavailable as error:
            self._failed(error.__cause__ or error)
            raise
        except RequestRefused as error:
            if error.is_transient:
                self._failed(error)
            else:
                self._answered()
            raise
        self._answered()
        self.has_worked = True
        return answer

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        log.debug("no answer from %s: %s", self.client.url, words_of(error))
        if self._away_since is None and self._failures >= _AWAY_AFTER:
            self._away_since = time.monotonic()
            log.warning(
                "the server %s is away (%s); jobs go on, and reports are kept until it is back",
                self.client.url,
                words_of(error),
            )

    def _answered(self) -> None:
        self._failures = 0
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            log.info("the server %s answers again, after %.1f s", self.client.url, seconds)


def may_pass(error: Exception) -> bool:
    """Return True if a repeat may succeed: no answer, an overloaded server, or a proxy's answer."""
    if isinstance(error, RequestRefused):
        return error.is_transient or error.is_unclear
    return isinstance(error, ServerUnavailable)


def refuses_worker(error: Exception) -> bool:
    """Return True if the server refuses this worker, rather than one call."""
    return isinstance(error, RequestRefused) and error.status in (400, 401, 403, 404, 405)
