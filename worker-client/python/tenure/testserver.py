"""A Tenure server for tests, with a manual clock."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .api import TENURE_API, Call
from .client import Client
from .errors import ConfigurationError, TenureError
from .lease import date_of
from .settings import Settings, read_settings

if TYPE_CHECKING:
    from .app import Tenure

_READY = "tenure ready: "
_READY_WITHIN = 60.0
_STOPPED_WITHIN = 30.0
_ROOT = "root"
# Settings of a server that do not begin with TENURE_.
_SETTINGS = (
    "CREDENTIALS_DIRECTORY",
    "DATABASE_URL",
    "DATABASE_URL_FILE",
    "NOTIFY_SOCKET",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
# Delayed jobs become ready at most about a second after their time.
_DELAYS_END_WITHIN = 1.5


class Server:
    """A running server. The program is ``TENURE_BIN``, or ``tenure`` in ``PATH``.

    Its database is created in the PostgreSQL of ``TENURE_TEST_DATABASE_URL``, whose user may create
    databases (this needs ``psql``). Without that variable the server starts a PostgreSQL of its
    own.

    Attributes:
        url: URL of the server.
        client_id: A client with all scopes.
        access_token: Its secret.
    """

    def __init__(self, *flags: str, clock: str = "manual") -> None:
        """Start a server.

        Args:
            flags: More arguments of ``tenure serve``.
            clock: ``manual``: only ``advance`` moves the time. ``database``: the real time.

        Raises:
            TenureError: The server did not start; the message has its log.
        """
        self._program = _program()
        self._folder = Path(tempfile.mkdtemp(prefix="tenure-"))
        # As root, the server runs PostgreSQL as another user, who must be able to enter.
        self._folder.chmod(0o755)
        self._admin_url = os.environ.get("TENURE_TEST_DATABASE_URL")
        self._database = "tenure_python_" + secrets.token_hex(8)
        self._environ = _inherited(os.environ)
        self._flags = [*flags, "--clock", clock]
        self._port = "0"
        self._advanced = 0.0
        if self._admin_url:
            self._psql(f"CREATE DATABASE {self._database}")
            parts = urllib.parse.urlsplit(self._admin_url)
            self._environ["DATABASE_URL"] = parts._replace(path=f"/{self._database}").geturl()
            key = base64.b64encode(secrets.token_bytes(32)).decode()
            self._environ["TENURE_SECRET_KEY"] = key
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
            self.client_id = _ROOT
            self.access_token = self._root_token()
        except BaseException:
            self.close()
            raise

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which programs find the server: ``TENURE_URL`` and the credentials."""
        return {
            "TENURE_URL": self.url,
            "TENURE_CLIENT_ID": self.client_id,
            "TENURE_ACCESS_TOKEN": self.access_token,
        }

    @property
    def log(self) -> str:
        """What the server has logged."""
        return (self._folder / "log").read_text(errors="replace")

    def connect(self, app: Tenure) -> None:
        """Connect an application to this server."""
        app.configure(self.url, self.client_id, self.access_token)
        app._now = self.now

    def work(self, app: Tenure, *, concurrency: int = 16) -> int:
        """Run the jobs of an application that may start now, and return the number of runs.

        The worker has no session, which a jump of the clock would end.
        """
        # Not at the top: programs that only enqueue need no worker.
        from .worker import Worker

        worker = Worker(app, concurrency=concurrency, session_ttl=None, burst=True)
        worker._linger_until = self._advanced + _DELAYS_END_WITHIN
        errors: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(worker.serve())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return worker.done

    def now(self) -> datetime.datetime:
        """Return the time by the server's clock, in UTC."""
        return date_of(self.call("GET", f"{TENURE_API}/clock")["now"])

    def advance(self, seconds: float) -> None:
        """Move the manual clock forward by some seconds: delays, leases and deadlines end.

        Their jobs are ready about a second later; ``work`` waits for that.
        """
        self.call("POST", f"{TENURE_API}/clock/advance", {"seconds": seconds})
        self._advanced = time.monotonic()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API, and return the answer.

        Args:
            method: HTTP method.
            path: Path below the URL of the server.
            body: Body to send as JSON.
        """
        client = Client(self._settings())
        try:
            return client.call(Call(method, path, body))
        finally:
            client.close()

    def _settings(self) -> Settings:
        return read_settings(self.url, self.client_id, self.access_token)

    def start(self) -> None:
        """Start the server again, on the same address, after ``kill`` or ``stop``."""
        listen = ["--listen", f"127.0.0.1:{self._port}", "--data-dir", str(self._folder / "data")]
        with (self._folder / "log").open("ab") as log, (self._folder / "out").open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - the program of the tester
                [self._program, "serve", *listen, *self._flags],
                env=self._environ,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        self.url = self._wait_until_ready()
        self._port = self.url.rpartition(":")[2]

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + _READY_WITHIN
        while time.monotonic() < deadline:
            for line in (self._folder / "out").read_text().split("\n")[:-1]:
                if line.startswith(_READY):
                    return line.removeprefix(_READY).strip()
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise TenureError("the server did not start:\n" + self.log)

    def stop(self) -> None:
        """Stop the server as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server, as a power failure would."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop the server, and remove its data."""
        self._end(signal.SIGTERM)
        if self._admin_url:
            self._psql(f"DROP DATABASE IF EXISTS {self._database} WITH (FORCE)")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _psql(self, statement: str) -> None:
        command = ["psql", self._admin_url or "", "-qXc", statement]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603

    def _root_token(self) -> str:
        if not self._admin_url:
            text = (self._folder / "data" / "root-credentials.json").read_text()
        else:
            command = [self._program, "client", "create", _ROOT, "--scope", "*", "--json"]
            text = subprocess.run(  # noqa: S603 - the program of the tester
                command, env=self._environ, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        token: str = json.loads(text)["accessToken"]
        return token


def _program() -> str:
    program = os.environ.get("TENURE_BIN") or shutil.which("tenure")
    if program is None:
        raise ConfigurationError("no server: set TENURE_BIN to the program tenure")
    return program


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return these variables without settings of the tester's own server."""
    return {name: value for name, value in environ.items() if not _is_setting(name)}


def _is_setting(name: str) -> bool:
    if name == "TENURE_PG_BIN" or name.startswith("TENURE_TEST"):
        return False
    return name in _SETTINGS or name.startswith("TENURE_")
