"""The Python programs of docs/enqueue-from-sql.md, with a database role that has no other right."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import wait_for

from tenure.errors import TenureError
from tenure.testing import Server

PAGE = Path(__file__).resolve().parents[3] / "docs" / "enqueue-from-sql.md"
MARKED = re.compile(r"^<!-- tour: (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

DJANGO = """
import sys
from urllib.parse import urlsplit

import django
from django.conf import settings

url = urlsplit(sys.argv[1])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": url.username,
            "PASSWORD": url.password,
            "HOST": url.hostname,
            "PORT": url.port,
        }
    }
)
django.setup()

from django.db import transaction

from django_enqueue import enqueue, place_order

try:
    with transaction.atomic():
        print(enqueue("acme/mail", {}))
        raise KeyError
except KeyError:
    pass
print(place_order("a@example.com"))
"""

SQLALCHEMY = """
import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sqlalchemy_enqueue import enqueue, place_order

engine = create_engine(sys.argv[1].replace("postgresql://", "postgresql+psycopg://"))
with Session(engine) as session:
    print(enqueue(session, "acme/mail", {}))
    session.rollback()
print(place_order(engine, "a@example.com"))
"""


@pytest.fixture
def role_url(live_server: Server) -> Iterator[str]:
    """The URL of the database for a role that may only enqueue and insert orders."""
    admin = live_server._environ.get("DATABASE_URL")
    if admin is None:
        pytest.skip("the server has a PostgreSQL of its own")
    role, password = "app_" + secrets.token_hex(6), secrets.token_hex(12)
    with psycopg.connect(admin, autocommit=True) as database:
        database.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        database.execute("CREATE TABLE IF NOT EXISTS orders (customer text)")
        database.execute(f"GRANT INSERT ON orders TO {role}")
        allow = [os.environ["TENURE_BIN"], "enqueue", "allow", role, "--client", "root"]
        subprocess.run(allow, env=live_server._environ, check=True, stdout=subprocess.DEVNULL)
        parts = urllib.parse.urlsplit(admin)
        netloc = f"{role}:{password}@{parts.netloc.rpartition('@')[2]}"
        yield parts._replace(scheme="postgresql", netloc=netloc).geturl()
        database.execute("DROP TABLE orders")
        database.execute(f"DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")


def _status(server: Server, task: str) -> Any:
    try:
        return server.call("GET", f"/api/queue/v1/task/{task}/status")["status"]
    except TenureError as error:
        if "does not exist" not in str(error):
            raise
        return None


@pytest.mark.parametrize("program", [DJANGO, SQLALCHEMY], ids=["django", "sqlalchemy"])
def test_committed_order_has_task(
    live_server: Server, role_url: str, tmp_path: Path, program: str
) -> None:
    blocks = MARKED.findall(PAGE.read_text())
    assert [name for name, _ in blocks] == ["django_enqueue.py", "sqlalchemy_enqueue.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    (tmp_path / "use.py").write_text(program)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("DJANGO")}
    done = subprocess.run(
        [sys.executable, "use.py", role_url],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    rolled_back, placed = done.stdout.split()
    status = wait_for(lambda: _status(live_server, placed), "the task")
    assert (status["taskQueueId"], status["retriesLeft"]) == ("acme/mail", 3)
    assert _status(live_server, rolled_back) is None


def test_role_cannot_read_tables(role_url: str) -> None:
    with psycopg.connect(role_url, autocommit=True) as database:
        for table in ["enqueued", "enqueue_roles", "tasks", "clients"]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                database.execute(f"SELECT FROM {table}")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match='"retries" must be'):
            database.execute("SELECT tenure_enqueue('acme/mail', '{}', '{\"retries\": 50}')")
