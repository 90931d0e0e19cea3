"""Subscriptions: the server sends events to a webhook or an AMQP broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .api import TENURE_API, Call, parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .app import Tenure


class Subscription:
    """A subscription by its name: what ``app.subscription(…)`` returns.

    Attributes:
        name: Its name.
    """

    def __init__(self, app: Tenure, name: str) -> None:
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<Subscription {self.name}>"

    def set(
        self,
        url: str,
        *,
        exchanges: Sequence[str] = (),
        result: bool = False,
        batch: int | None = None,
        secret: str | None = None,
        prefix: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Store the subscription, in place of the one of this name, which keeps its position.

        Args:
            url: Where messages are posted, or a broker: ``amqps://user:password@broker.example/vhost``.
            exchanges: Events to send, such as ``["task-completed"]``; without any, all.
            result: Send ends of tasks with their results.
            batch: Maximum events per message, up to 100; without one 1. For a broker maximum
                unconfirmed messages; without one 100.
            secret: Secret that signs messages, ``whsec_…``. Without one, a new subscription gets a
                generated one.
            prefix: For a broker: prefix of the names of its exchanges.
            **fields: Further fields of the API, such as ``routingKeyPattern``, ``after`` and
                ``giveUpAfter``.

        Returns:
            The subscription, as ``show`` does. ``["to"]["webhook"]["secret"]`` has a generated
            secret, which is not shown again.

        Raises:
            RequestRefused: The server refused the subscription, for example its URL.
            ServerUnavailable: No server answered, after several attempts.
        """
        receiver = {"url": url} if secret is None else {"url": url, "secret": secret}
        if prefix is not None:
            receiver["prefix"] = prefix
        to = {"amqp" if url.startswith("amqp") else "webhook": receiver}
        body: dict[str, Any] = {"to": to, "result": result, **fields}
        if batch is not None:
            body["batch"] = batch
        if exchanges:
            body["exchange"] = list(exchanges)
        stored: dict[str, Any] = self._app.client.call(self._call("PUT", body=body))
        return stored

    def test(self) -> dict[str, Any]:
        """Send a test message. Return ``delivered``, ``status``, ``body``, ``error``, ….

        Raises:
            RequestRefused: The server has no such subscription.
            ServerUnavailable: No server answered, after several attempts.
        """
        result: dict[str, Any] = self._app.client.call(self._call("POST", "/test"))
        return result

    def show(self) -> dict[str, Any]:
        """Return the subscription: ``state``, ``position``, ``lagSeconds``, ``lastError``, ….

        Raises:
            RequestRefused: The server has no such subscription.
            ServerUnavailable: No server answered, after several attempts.
        """
        shown: dict[str, Any] = self._app.client.call(self._call("GET"))
        return shown

    def resume(self, after: int | Literal["latest"] | None = None) -> None:
        """Continue where a suspended subscription stopped, or after a position of the log.

        Raises:
            RequestRefused: The next events are no longer retained.
            ServerUnavailable: No server answered, after several attempts.
        """
        body: dict[str, Any] = {} if after is None else {"after": after}
        self._app.client.call(self._call("POST", "/resume", body))

    def delete(self) -> None:
        """Delete the subscription. Its receiver gets no more events."""
        self._app.client.call(self._call("DELETE"))

    def _call(self, method: str, rest: str = "", body: Any = None) -> Call:
        return Call(method, f"{TENURE_API}/subscriptions/{parameter(self.name)}{rest}", body)
