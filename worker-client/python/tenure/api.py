"""Calls of the API, without sending them."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple
from urllib.parse import quote

from .hawk import Credentials

QUEUE_API = "/api/queue/v1"
TENURE_API = "/api/tenure/v1"
TIMEOUT = 30.0
"""Seconds for an answer, beside the wait that a call asks for."""
RETRIES = 5
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0
"""Seconds between two attempts."""


class Call(NamedTuple):
    """A call of the API.

    Attributes:
        method: HTTP method.
        path: Path below the URL of the server, with encoded parameters and the query.
        body: Body to send as JSON; None sends none.
        timeout: Seconds for the answer.
        credentials: Who signs, if not the client's own credentials.
        idempotency_key: Makes a repeat of a creation safe.
        text: Plain text to send as the body, instead of JSON.
    """

    method: str
    path: str
    body: Any = None
    timeout: float = TIMEOUT
    credentials: Credentials | None = None
    idempotency_key: str | None = None
    text: bytes | None = None


def parameter(value: str) -> str:
    """Encode a parameter of a path."""
    return quote(value, safe="-_.~")


def to_json(value: Any) -> bytes:
    """Encode compact JSON.

    Raises:
        ValueError: The value has a number that is not finite, a circle, or half a character.
        TypeError: The value is no JSON.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def backoff(failures: int, first: float = FIRST_PAUSE, most: float = LONGEST_PAUSE) -> float:
    """Return the pause in seconds after consecutive failures, from 1. It doubles, with jitter."""
    pause: float = min(most, first * 2 ** min(failures - 1, 16))
    return pause * (0.5 + 0.5 * random.random())
