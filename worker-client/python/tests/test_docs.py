"""The programs of docs/python.md, as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import WorkerProcess

from tenure import Tenure
from tenure.testing import Server

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
MARKED = re.compile(r"^<!-- tour: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, in a folder of their own."""
    text = PAGE.read_text()
    blocks = MARKED.findall(text)
    assert len(blocks) == len(re.findall(r"^```\w", text, re.MULTILINE)), "a block has no mark"
    for name, code in blocks:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        # The jobs of other tests are in other queues.
        path.write_text(code.replace("acme/", f"acme-{tmp_path.name[:20]}/"))
    return tmp_path


def _environ(server: Server) -> dict[str, str]:
    # The settings of other tests' Django must not leak.
    others = {k: v for k, v in os.environ.items() if not k.startswith(("TENURE_", "DJANGO"))}
    kept = {k: v for k, v in os.environ.items() if k in ("TENURE_BIN", "TENURE_TEST_DATABASE_URL")}
    return {**others, **kept, **server.environ}


def _run(folder: Path, server: Server, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environ(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _worker(folder: Path, server: Server, app: str) -> WorkerProcess:
    return WorkerProcess(folder, _environ(server), app=app, cwd=folder)


def test_five_minutes(folder: Path, live_server: Server) -> None:
    worker = _worker(folder, live_server, "jobs:app")
    try:
        shown = _run(folder, live_server, sys.executable, "first.py").splitlines()
        assert shown[1:] == ["sent 'hi' to a@example.com", "the mail server does not answer"]
        assert "failed (attempt 1, retries left: 5): ConnectionError" in worker.text
        answer = _run(folder, live_server, "sh", "-e", "other.sh")
        made = re.search(r'"taskId":"([^"]+)"', answer)
        assert made is not None
        app = Tenure()
        live_server.connect(app)
        assert app.handle(made[1]).result(timeout=60) == "sent 'hi' to a@example.com"
    finally:
        worker.kill()


def test_enqueue_and_long(folder: Path, live_server: Server) -> None:
    shown = _run(folder, live_server, sys.executable, "enqueue.py")
    assert shown.split() == ["2000", "pending", "True"]
    _run(folder, live_server, sys.executable, "-c", "import long; long.report.enqueue(3)")
    worker = _worker(folder, live_server, "long:app")
    try:
        code = "import long; print(long.report.enqueue(5).result(timeout=60))"
        assert _run(folder, live_server, sys.executable, "-c", code) == "5\n"
    finally:
        worker.kill()


def test_names_and_schedules(folder: Path, live_server: Server) -> None:
    shown = _run(folder, live_server, sys.executable, "unique.py")
    assert shown.split() == ["True", "pending", "True", "unscheduled"]
    shown = _run(folder, live_server, sys.executable, "nightly.py")
    assert shown.split() == ["pending", "5"]
    live_server.call("DELETE", "/api/tenure/v1/schedules/nightly")


def test_subscription(folder: Path, live_server: Server) -> None:
    shown = _run(folder, live_server, sys.executable, "billing.py")
    assert shown.split() == ["whsec_", "active"]


def test_tests_of_users(folder: Path, live_server: Server) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_jobs.py"]
    assert "3 passed" in _run(folder, live_server, *command)


def test_django(folder: Path, live_server: Server) -> None:
    _run(folder, live_server, sys.executable, "-m", "django", "startproject", "mysite", ".")
    _run(folder, live_server, sys.executable, "manage.py", "migrate", "--verbosity", "0")
    (folder / "use.py").write_text(
        "import os, django\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'\n"
        "django.setup()\n"
        "from django.test import RequestFactory\n"
        "from shop import jobs, views\n"
        "handles = []\n"
        "original = jobs.app.enqueue_many\n"
        "jobs.app.enqueue_many = lambda jobs: handles.extend(original(jobs)) or handles\n"
        "response = views.sign_up(RequestFactory().get('/', {'name': 'ada'}))\n"
        "print(response.status_code, handles[0].result(timeout=60))\n"
    )
    worker = _worker(folder, live_server, "shop.worker:app")
    try:
        assert _run(folder, live_server, sys.executable, "use.py") == "201 hello ada\n"
    finally:
        worker.kill()


def test_fastapi(folder: Path, live_server: Server) -> None:
    (folder / "use.py").write_text(
        "import time\n"
        "from fastapi.testclient import TestClient\n"
        "from web import web\n"
        "with TestClient(web) as client:\n"
        "    made = client.post('/mails', params={'to': 'a@example.com', 'subject': 'hi'})\n"
        "    assert made.status_code == 202, made.text\n"
        "    for _ in range(600):\n"
        "        status = client.get(f'/mails/{made.json()[\"id\"]}').json()['status']\n"
        "        if status == 'completed':\n"
        "            break\n"
        "        time.sleep(0.1)\n"
        "    print(status)\n"
    )
    worker = _worker(folder, live_server, "jobs:app")
    try:
        assert _run(folder, live_server, sys.executable, "use.py").endswith("completed\n")
    finally:
        worker.kill()
