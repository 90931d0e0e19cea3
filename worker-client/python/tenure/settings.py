"""Where the server is and who signs: arguments, or environment variables."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .errors import ConfigurationError
from .hawk import Credentials

_URL = re.compile(r"https?://[^/?#\s]+[^?#\s]*")
_QUEUE = re.compile(r"[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?")
NAME_MAX = 38
"""Characters of a worker's group or id."""
_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{NAME_MAX}}}")
_DEFAULT_PROVISIONER = "default"


class Settings(NamedTuple):
    """Connection to a server.

    Attributes:
        url: URL of the server, without a trailing slash.
        credentials: Who signs requests; None sends them unsigned.
    """

    url: str
    credentials: Credentials | None


def read_settings(
    url: str | None = None,
    client_id: str | None = None,
    access_token: str | None = None,
    certificate: str | None = None,
) -> Settings:
    """Return the settings: the arguments, else ``TENURE_…``, else ``TASKCLUSTER_…``.

    A variable of a certificate is read only beside an access token with the same prefix.

    Raises:
        ConfigurationError: There is no URL, it is not one, or the access token is missing.
    """
    url = url or _variable("TENURE_URL", "TASKCLUSTER_ROOT_URL")
    if not url:
        raise ConfigurationError(
            "no server: set TENURE_URL (or TASKCLUSTER_ROOT_URL), or pass url to Tenure()"
        )
    if not _URL.fullmatch(url):
        raise ConfigurationError(f"the URL of the server must be http(s)://host, not {url!r}")
    client_id = client_id or _variable("TENURE_CLIENT_ID", "TASKCLUSTER_CLIENT_ID")
    if not client_id:
        return Settings(url.rstrip("/"), None)
    # A certificate belongs to its token: one of a Taskcluster task is not for another client.
    token, own_certificate = access_token, None
    for prefix in ("TENURE", "TASKCLUSTER"):
        if not token:
            token = _variable(f"{prefix}_ACCESS_TOKEN")
            own_certificate = _variable(f"{prefix}_CERTIFICATE")
    if not token:
        raise ConfigurationError(
            f"no access token of client {client_id}: set TENURE_ACCESS_TOKEN, or pass access_token"
        )
    return Settings(url.rstrip("/"), Credentials(client_id, token, certificate or own_certificate))


def _variable(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


def queue_id(name: str) -> str:
    """Return the full id of a queue; ``mail`` is ``default/mail``.

    Raises:
        ConfigurationError: The name is invalid; the message suggests a valid one.
    """
    full = name if "/" in name else f"{_DEFAULT_PROVISIONER}/{name}"
    if _QUEUE.fullmatch(full):
        return full
    raise ConfigurationError(
        f"{name!r} is no queue: it must be like acme/send-mail, at most 38 characters on each "
        "side of the slash; before it letters, digits, - and _, behind it lower-case letters, "
        f"digits and -, from a letter on{_suggestion(full)}"
    )


def _suggestion(full: str) -> str:
    provisioner, _, worker_type = full.partition("/")
    provisioner = re.sub(r"[^a-zA-Z0-9_-]+", "-", provisioner)[:38]
    worker_type = re.sub(r"[^a-z0-9]+", "-", worker_type.lower()).lstrip("-0123456789")[:38]
    suggested = f"{provisioner}/{worker_type.rstrip('-')}"
    return f". Perhaps {suggested}" if _QUEUE.fullmatch(suggested) else ""


def worker_name(name: str, what: str) -> str:
    """Return a worker's group or id.

    Raises:
        ConfigurationError: The name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the {what} {name!r} must have 1 to {NAME_MAX} letters, digits, - and _"
        )
    return name
