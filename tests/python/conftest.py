"""Real servers for the official client.

TENURE_BIN names the server's program (default: the debug build), TENURE_TEST_DATABASE_URL a PostgreSQL whose user may
create databases. Each server gets a database of its own, made and dropped with psql.
"""

import base64
import json
import os
import secrets
import signal
import subprocess
import time
import urllib.parse
from pathlib import Path

import mohawk
import pytest
import requests
import taskcluster

ROOT = Path(__file__).resolve().parents[2]
READY = "tenure ready: "
READY_WITHIN_SECONDS = 60
STOPPED_WITHIN_SECONDS = 20


def tenure_binary():
    build = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    binary = Path(os.environ.get("TENURE_BIN", build / "debug" / "tenure"))
    assert binary.is_file(), f"{binary} does not exist: build it, or set TENURE_BIN"
    return str(binary)


class Database:
    def __init__(self):
        self.admin_url = os.environ["TENURE_TEST_DATABASE_URL"]
        self.name = "tenure_python_" + secrets.token_hex(8)
        self._psql(f"CREATE DATABASE {self.name}")

    @property
    def url(self):
        return urllib.parse.urlunsplit(urllib.parse.urlsplit(self.admin_url)._replace(path="/" + self.name))

    def drop(self):
        self._psql(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")

    def _psql(self, statement):
        subprocess.run(["psql", self.admin_url, "-qXc", statement], check=True, stdout=subprocess.DEVNULL)


class Server:
    """A running server and the client `root`, who may do everything."""

    def __init__(self, folder, *flags):
        self.log = folder / "server.log"
        self.database = Database()
        self.env = {
            **os.environ,
            "DATABASE_URL": self.database.url,
            "TENURE_SECRET_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        }
        command = [tenure_binary(), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder / "data"), *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=subprocess.STDOUT)
        self.root_url = self._wait_until_ready()
        self.root = self.create_client("root", "*")

    def _wait_until_ready(self):
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while time.monotonic() < deadline:
            lines = self.log.read_text().split("\n")[:-1]
            ready = [line for line in lines if line.startswith(READY)]
            if ready:
                return ready[0].removeprefix(READY).strip()
            assert self.process.poll() is None, "the server ended instead of serving:\n" + self.log.read_text()
            time.sleep(0.02)
        raise AssertionError("the server was not ready in time:\n" + self.log.read_text())

    def create_client(self, client_id, *scopes):
        """Makes a client with these scopes; gives back its credentials."""
        flags = [flag for scope in scopes for flag in ("--scope", scope)]
        command = [tenure_binary(), "client", "create", client_id, *flags, "--json"]
        printed = subprocess.run(command, env=self.env, check=True, stdout=subprocess.PIPE).stdout
        account = json.loads(printed)
        return {"clientId": account["clientId"], "accessToken": account["accessToken"]}

    def queue(self, credentials=None, **options):
        """The official client; as root unless other credentials are given."""
        # The client changes the dictionary that it is given.
        credentials = dict(self.root if credentials is None else credentials)
        return taskcluster.Queue({"rootUrl": self.root_url, "credentials": credentials, "maxRetries": 0, **options})

    def anonymous_queue(self):
        return taskcluster.Queue({"rootUrl": self.root_url, "maxRetries": 0})

    def now(self):
        """What the server's clock shows, as the text of a date."""
        return self.call("GET", "/api/tenure/v1/clock")["now"]

    def advance(self, seconds):
        self.call("POST", "/api/tenure/v1/clock/advance", {"seconds": seconds})

    def poll_urls(self, queue_id):
        """What pollTaskUrls answers, which today's client does not know."""
        return self.call("GET", f"/api/queue/v1/poll-task-url/{queue_id}")

    def call(self, method, path, body=None):
        """Calls what the official client has no method for, as root."""
        content = "" if body is None else json.dumps(body)
        content_type = "" if body is None else "application/json"
        credentials = {"id": self.root["clientId"], "key": self.root["accessToken"], "algorithm": "sha256"}
        url = self.root_url + path
        sender = mohawk.Sender(credentials, url, method, content=content, content_type=content_type)
        headers = {"Authorization": sender.request_header, "Content-Type": content_type}
        response = requests.request(method, url, data=content, headers=headers, timeout=60)
        assert response.ok, response.text
        return response.json()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOPPED_WITHIN_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.database.drop()


def running_server(tmp_path_factory, *flags):
    server = Server(tmp_path_factory.mktemp("server"), *flags)
    try:
        yield server
    except BaseException:
        server.stop()
        raise
    assert server.stop() == 0, "a server that is asked to stop ends with success:\n" + server.log.read_text()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """For whatever needs no other time than now."""
    yield from running_server(tmp_path_factory, "--claim-work-wait", "1s")


@pytest.fixture(scope="module")
def timed_server(tmp_path_factory):
    """Its clock can be moved; claims last a minute."""
    flags = ["--clock", "manual", "--claim-timeout", "60s", "--claim-work-wait", "1s"]
    yield from running_server(tmp_path_factory, *flags)


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory):
    """Its clock is the real one; claims last two seconds."""
    yield from running_server(tmp_path_factory, "--claim-timeout", "2s", "--claim-work-wait", "10s")


@pytest.fixture
def queue(server):
    return server.queue()


@pytest.fixture
def queue_id():
    """A task queue that no other test uses."""
    return "python-tests/q" + secrets.token_hex(6)
