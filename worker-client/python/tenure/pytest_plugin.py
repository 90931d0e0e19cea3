"""The pytest fixture ``tenure_server``: a server for the whole test run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testserver import Server


@pytest.fixture(scope="session")
def tenure_server() -> Iterator[Server]:
    """Start a Tenure server with a manual clock; see ``tenure.testing.Server``."""
    # Not at the top: most test runs of a machine with this library need no server.
    from .testserver import Server

    server = Server()
    try:
        yield server
    finally:
        server.close()
