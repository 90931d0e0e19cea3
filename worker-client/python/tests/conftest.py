"""Real servers, workers as processes, and a network that can be slow or cut."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy

from tenure import Tenure
from tenure.testing import Server

TESTS = Path(__file__).parent
PATIENCE = 60.0


def wait_for(condition: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
    """Wait for a true value and return it."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {within} s for {what}")


class WorkerProcess:
    """A worker as its users start it."""

    def __init__(
        self,
        folder: Path,
        environ: dict[str, str],
        *flags: str,
        app: str = "jobs:app",
        cwd: Path = TESTS,
    ):
        self.log = folder / f"worker-{secrets.token_hex(4)}.log"
        command = [sys.executable, "-m", "tenure", "worker", app, *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=environ, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_ready(self) -> WorkerProcess:
        self.wait_for_text("works on")
        return self

    def wait_for_text(self, text: str) -> None:
        wait_for(
            lambda: text in self.text or self.process.poll() is not None, f"{text!r} in {self.text}"
        )
        assert text in self.text

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        return self.process.wait(within)

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Bench:
    """A queue of its own at a server, its application, and workers for it."""

    def __init__(self, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.server = server
        self.queue = "python/q" + secrets.token_hex(6)
        self.record = folder / "record"
        self.record.touch()
        self.folder = folder
        self.workers: list[WorkerProcess] = []
        self.environ = {
            **os.environ,
            **server.environ,
            "TEST_QUEUE": self.queue,
            "TEST_RECORD": str(self.record),
        }
        self._monkeypatch = monkeypatch

    def app(self) -> Any:
        """The module of the jobs, in this process."""
        for name in ("TEST_QUEUE", "TEST_RECORD"):
            self._monkeypatch.setenv(name, self.environ[name])
        self._monkeypatch.syspath_prepend(str(TESTS))
        sys.modules.pop("jobs", None)
        import jobs

        self.server.connect(jobs.app)
        self.jobs = jobs
        return jobs

    def worker(self, *flags: str, url: str | None = None, **environ: str) -> WorkerProcess:
        settings = {**self.environ, **environ}
        if url is not None:
            settings["TENURE_URL"] = url
        worker = WorkerProcess(self.folder, settings, *flags)
        self.workers.append(worker)
        return worker

    def records(self) -> list[str]:
        """What the jobs have written, a line each."""
        return self.record.read_text().split("\n")[:-1]

    def wait_for_record(self, line: str) -> None:
        wait_for(lambda: line in self.records(), f"the record {line!r}")

    def status(self, job_id: str) -> dict[str, Any]:
        status: dict[str, Any] = self.server.call("GET", f"/api/queue/v1/task/{job_id}/status")[
            "status"
        ]
        return status

    def reasons(self, job_id: str) -> list[str]:
        """How each run of a job ended."""
        return [run.get("reasonResolved", run["state"]) for run in self.status(job_id)["runs"]]

    def set_policy(self, **policy: Any) -> None:
        path = f"/api/tenure/v1/queues/{self.queue.replace('/', '%2F')}/policy"
        self.server.call("PUT", path, policy)


@pytest.fixture(scope="session")
def live_server() -> Iterator[Server]:
    """A server with the real clock."""
    server = Server(clock="database")
    yield server
    server.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server with the real clock, for a test that kills it."""
    server = Server(clock="database")
    yield server
    server.close()


@pytest.fixture(scope="session")
def hasty_server() -> Iterator[Server]:
    """A server whose claims last four seconds."""
    server = Server("--claim-timeout", "4s", clock="database")
    yield server
    server.close()


def bench_of(server: Server, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Make a bench, and end its workers afterwards."""
    bench = Bench(server, folder, patch)
    yield bench
    for worker in bench.workers:
        worker.kill()


@pytest.fixture
def bench(live_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield from bench_of(live_server, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def working(live_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench with a worker, for tests that need neither a queue nor a worker of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for made in bench_of(live_server, tmp_path_factory.mktemp("working"), patch):
            made.worker()
            made.app()
            yield made


@pytest.fixture
def own_bench(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    yield from bench_of(own_server, tmp_path, monkeypatch)


@pytest.fixture
def hasty_bench(
    hasty_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    yield from bench_of(hasty_server, tmp_path, monkeypatch)


@pytest.fixture
def proxy_to() -> Iterator[Callable[[Server], Proxy]]:
    proxies: list[Proxy] = []

    def make(server: Server) -> Proxy:
        proxies.append(Proxy(server.url))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def timed_app(tenure_server: Server) -> Tenure:
    """An application at the server whose clock is moved by hand."""
    app = Tenure()
    tenure_server.connect(app)
    return app


@pytest.fixture
def queue() -> str:
    """Name a queue that no other test uses."""
    return "python/q" + secrets.token_hex(6)
