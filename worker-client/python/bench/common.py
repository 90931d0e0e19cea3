"""What the jobs of all libraries do, and the commands by which compare.py enqueues them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

FOLDER = os.environ.get("BENCH_FOLDER", "/tmp")
TICKS = os.path.join(FOLDER, "ticks")
LATENCIES = os.path.join(FOLDER, "latencies")
PICKUP_EVERY = 0.02


def _append(path: str, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, data)
    os.close(file)


def tick() -> None:
    """Count a job: one byte, the same for all libraries."""
    _append(TICKS, b"x")


def picked_up(sent: float) -> None:
    """Record the seconds from before the call that enqueued a job to the begin of its handler."""
    _append(LATENCIES, f"{time.time() - sent}\n".encode())


def main(
    one: Callable[[], object],
    many: Callable[[int], object],
    pickup: Callable[[float], object],
    prepare: Callable[[], object] = lambda: None,
) -> None:
    """Carry out a command, and print the seconds that it took."""
    command, count = sys.argv[1], int(sys.argv[2])
    prepare()
    if command == "pickup":
        for _ in range(count):
            pickup(time.time())
            time.sleep(PICKUP_EVERY)
        return
    # Connections and caches, as in a program that runs for long.
    (many(1) if command == "many" else one())
    began = time.monotonic()
    if command == "one":
        for _ in range(count):
            one()
    else:
        for begin in range(0, count, 1000):
            many(min(1000, count - begin))
    print(time.monotonic() - began)
