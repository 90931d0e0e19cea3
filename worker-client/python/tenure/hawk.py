"""Hawk signatures: a request is signed with the access token, which is never sent."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import NamedTuple


class Credentials(NamedTuple):
    """Credentials of a client.

    Attributes:
        client_id: Name of the client.
        access_token: Its secret.
        certificate: JSON text of temporary credentials; None of permanent ones.
    """

    client_id: str
    access_token: str
    certificate: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(client_id={self.client_id!r})"


class Target(NamedTuple):
    """The part of a request that its signature covers.

    Attributes:
        method: HTTP method, in capitals.
        resource: Path and query, exactly as sent.
        host: Host without the port, in lower case.
        port: Port of the connection.
    """

    method: str
    resource: str
    host: str
    port: int


def authorization(
    credentials: Credentials,
    target: Target,
    *,
    timestamp: int,
    content_type: str = "",
    body: bytes | None = None,
    nonce: str | None = None,
) -> str:
    """Return the value of the header ``Authorization``.

    Args:
        credentials: Who signs.
        target: The request.
        timestamp: Time of the signature by the server's clock, in seconds since 1970.
        content_type: Media type of the body.
        body: Bytes of the body; None without a body.
        nonce: Random text; drawn by default.
    """
    nonce = nonce or secrets.token_urlsafe(9)
    digest = "" if body is None else payload_hash(content_type, body)
    ext = _ext(credentials.certificate)
    lines = ["hawk.1.header", str(timestamp), nonce, target.method, target.resource, target.host]
    text = "\n".join([*lines, str(target.port), digest, ext, ""])
    mac = _base64(hmac.digest(credentials.access_token.encode(), text.encode(), "sha256"))
    fields = {"id": credentials.client_id, "ts": str(timestamp), "nonce": nonce}
    optional = {"hash": digest, "ext": ext}
    fields.update({name: value for name, value in optional.items() if value})
    fields["mac"] = mac
    return "Hawk " + ", ".join(f'{name}="{value}"' for name, value in fields.items())


def payload_hash(content_type: str, body: bytes) -> str:
    """Return the hash of a body."""
    media_type = content_type.partition(";")[0].strip().lower().encode()
    return _base64(hashlib.sha256(b"hawk.1.payload\n" + media_type + b"\n" + body + b"\n").digest())


def _ext(certificate: str | None) -> str:
    if not certificate:
        return ""
    return _base64(f'{{"certificate":{certificate}}}'.encode())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
