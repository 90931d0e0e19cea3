"""HTTP clients: sign requests, repeat them where that helps, and decode answers."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from . import __version__
from .api import LONGEST_PAUSE, RETRIES, Call, backoff, to_json
from .errors import DUPLICATE, DuplicateJob, RequestRefused, ServerUnavailable
from .hawk import Target, authorization
from .settings import Settings

_CONNECT_TIMEOUT = 10.0
# Below the 90 s after which servers close an idle connection.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=50, keepalive_expiry=60)
# Dates of answers have whole seconds, and an answer takes time to arrive.
_SMALLEST_OFFSET = 5.0
_MESSAGE_MAX = 500
_JSON = "application/json"


class _ServerClock:
    """The local clock plus an offset learned from answers, so that a wrong clock can sign."""

    def __init__(self) -> None:
        self.offset = 0.0

    def now(self) -> float:
        return time.time() + self.offset

    def learn(self, date: str | None) -> None:
        if not date:
            return
        try:
            measured = parsedate_to_datetime(date).timestamp() - time.time()
        except ValueError:
            return
        self.offset = measured if abs(measured) >= _SMALLEST_OFFSET else 0.0


class _Signer:
    """What the synchronous and the asynchronous client share."""

    def __init__(self, settings: Settings) -> None:
        self.url = settings.url
        self._credentials = settings.credentials
        self._clock = _ServerClock()
        self._parsed = httpx.URL(settings.url)
        port = {"http": 80, "https": 443}[self._parsed.scheme]
        self._port = self._parsed.port or port

    def request(self, call: Call) -> httpx.Request:
        if call.text is not None:
            body, content_type = call.text, "text/plain"
        else:
            body, content_type = (b"" if call.body is None else to_json(call.body)), _JSON
        has_body = bool(body) or call.body is not None or call.text is not None
        headers = {"User-Agent": f"tenure-python/{__version__}"}
        if has_body:
            headers["Content-Type"] = content_type
        if call.idempotency_key:
            headers["Idempotency-Key"] = call.idempotency_key
        timeout = httpx.Timeout(call.timeout, connect=_CONNECT_TIMEOUT, pool=None)
        request = httpx.Request(
            call.method,
            self.url + call.path,
            headers=headers,
            content=body if has_body else None,
            extensions={"timeout": timeout.as_dict()},
        )
        credentials = call.credentials or self._credentials
        if credentials is not None:
            resource = request.url.raw_path.decode()
            target = Target(call.method, resource, self._parsed.host, self._port)
            request.headers["Authorization"] = authorization(
                credentials,
                target,
                timestamp=int(self._clock.now()),
                content_type=content_type,
                body=body if has_body else None,
            )
        return request

    def read(self, response: httpx.Response) -> Any:
        """Decode an answer.

        Raises:
            RequestRefused: The server refused the call.
        """
        self._clock.learn(response.headers.get("date"))
        if response.is_success:
            try:
                return json.loads(response.content)
            except ValueError:
                raise RequestRefused(502, "", "the answer is no JSON") from None
        raise _refusal(response)

    def pause_after(self, tried: int, retries: int, error: Exception) -> float | None:
        """Return the pause before the next attempt, or None if no attempt follows."""
        if tried > retries:
            return None
        if isinstance(error, RequestRefused):
            if not error.is_transient:
                return None
            requested = min(error.retry_after or 0.0, LONGEST_PAUSE)
            return max(requested, backoff(tried))
        return backoff(tried)

    def wrong_clock(self, error: Exception, offset: float) -> bool:
        """Return True if a signature with this offset may be the cause."""
        moved = abs(self._clock.offset - offset) >= _SMALLEST_OFFSET
        return isinstance(error, RequestRefused) and error.status == 401 and moved

    @property
    def offset(self) -> float:
        return self._clock.offset

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._clock.now(), datetime.timezone.utc)

    def unavailable(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(f"no answer from {self.url}: {words_of(error)}")


class _Attempts:
    """The attempts of one call."""

    def __init__(self, signer: _Signer, retries: int) -> None:
        self._signer = signer
        self._retries = retries
        self._tried = 0
        self._clock_mended = False

    def sign(self, call: Call) -> httpx.Request:
        """Make the request of the next attempt."""
        self._tried += 1
        self._offset = self._signer.offset
        return self._signer.request(call)

    def pause_after(self, error: RequestRefused | httpx.RequestError) -> float:
        """Return the pause before the next attempt.

        Raises:
            RequestRefused: The server refused the call.
            ServerUnavailable: No server answered.
        """
        if not self._clock_mended and self._signer.wrong_clock(error, self._offset):
            self._clock_mended = True
            return 0
        pause = self._signer.pause_after(self._tried, self._retries, error)
        if pause is not None:
            return pause
        if isinstance(error, RequestRefused):
            raise error
        raise self._signer.unavailable(error) from error


def words_of(error: BaseException) -> str:
    """Return the message of an error, or its type if it has none."""
    return str(error) or type(error).__name__


def _refusal(response: httpx.Response) -> RequestRefused:
    try:
        answer = json.loads(response.content)
    except ValueError:
        answer = None
    answer = answer if isinstance(answer, dict) else {}
    message = str(answer.get("message") or response.reason_phrase)
    # Further lines repeat the call.
    message = (message.splitlines() or [""])[0][:_MESSAGE_MAX]
    retry_after = response.headers.get("retry-after", "")
    pause = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    code = str(answer.get("code") or "")
    holder = answer.get("taskId")
    if code == DUPLICATE and isinstance(holder, str):
        entry = None if answer.get("entry") is None else str(answer["entry"])
        return DuplicateJob(message, holder, entry)
    return RequestRefused(response.status_code, code, message, pause)


class Client:
    """A synchronous client. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._signer = _Signer(settings)
        self._http = httpx.Client(limits=_LIMITS)

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._signer.url

    def now(self) -> datetime.datetime:
        """Return the time by the server's clock, as its last answer said."""
        return self._signer.now()

    def call(self, call: Call, retries: int = RETRIES) -> Any:
        """Send a call until it is answered, refused, or out of retries. Return its answer.

        Raises:
            RequestRefused: The server refused the call.
            ServerUnavailable: No server answered.
        """
        attempts = _Attempts(self._signer, retries)
        while True:
            try:
                return self._signer.read(self._http.send(attempts.sign(call)))
            except (RequestRefused, httpx.RequestError) as error:
                pause = attempts.pause_after(error)
            time.sleep(pause)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncClient:
    """An asynchronous client, for one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._signer = _Signer(settings)
        self._http = httpx.AsyncClient(limits=_LIMITS)

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._signer.url

    def now(self) -> datetime.datetime:
        """Return the time by the server's clock, as its last answer said."""
        return self._signer.now()

    async def call(self, call: Call, retries: int = RETRIES) -> Any:
        """Send a call until it is answered, refused, or out of retries. Return its answer.

        Raises:
            RequestRefused: The server refused the call.
            ServerUnavailable: No server answered.
        """
        attempts = _Attempts(self._signer, retries)
        while True:
            try:
                return self._signer.read(await self._http.send(attempts.sign(call)))
            except (RequestRefused, httpx.RequestError) as error:
                pause = attempts.pause_after(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class ClientCache:
    """The clients of an application: one for all threads, and one for each event loop.

    A process that was forked makes its own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._sync: tuple[int, Client] | None = None
        self._async: dict[asyncio.AbstractEventLoop, tuple[int, AsyncClient]] = {}

    def sync(self, pid: int) -> Client:
        """Return the client of this process."""
        with self._lock:
            if self._sync is None or self._sync[0] != pid:
                self._sync = (pid, Client(self._settings))
            return self._sync[1]

    def of_loop(self, pid: int) -> AsyncClient:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._async if other.is_closed()]:
                del self._async[other]
            found = self._async.get(loop)
            if found is None or found[0] != pid:
                found = (pid, AsyncClient(self._settings))
                self._async[loop] = found
            return found[1]
