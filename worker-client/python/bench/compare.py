"""Measures the libraries in turn, and prints a table. Started by `compare`, with its services."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from common import LATENCIES, TICKS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
BIN = Path(sys.executable).parent
# Each job of RQ is a process of its own.
SLOW = {"rq": 10}
PICKUPS = 250
PATIENCE = 600.0

Worker = list[list[str]]
"""The processes of a worker, as commands."""


def _workers(library: str, slots: int) -> Worker:
    celery = [str(BIN / "celery"), "-A", "with_celery", "worker", "-c", str(slots), "-l", "warning"]
    if library == "tenure":
        worker = [sys.executable, "-m", "tenure", "worker", "with_tenure:app"]
        return [[*worker, "--concurrency", str(slots), "--log-level", "warning"]]
    if library == "celery":
        return [celery]
    if library == "celery (threads)":
        return [[*celery, "-P", "threads"]]
    if library == "rq":
        worker = [str(BIN / "rq"), "worker", "-q", "-u", os.environ["BENCH_REDIS"]]
        return [worker for _ in range(slots)]
    worker = [str(BIN / "procrastinate"), "--app", "with_procrastinate.app", "worker"]
    return [[*worker, "-c", str(slots)]]


def _module(library: str) -> str:
    return f"with_{library.split(maxsplit=1)[0]}.py"


def _enqueue(library: str, command: str, count: int) -> float:
    run = [sys.executable, _module(library), command, str(count)]
    printed = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(printed) if printed.strip() else 0.0


@contextlib.contextmanager
def _running(library: str, slots: int) -> Iterator[None]:
    log = Path(os.environ["BENCH_FOLDER"]) / "workers.log"
    with log.open("ab") as output:
        processes = [
            subprocess.Popen(command, stdout=output, stderr=output)
            for command in _workers(library, slots)
        ]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def _count(path: str) -> int:
    return Path(path).stat().st_size if Path(path).exists() else 0


def _wait_for_ticks(count: int) -> float:
    """Return the time at which so many jobs had run."""
    deadline = time.monotonic() + PATIENCE
    while _count(TICKS) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {_count(TICKS)} of {count} jobs ran; see workers.log")
        time.sleep(0.005)
    return time.monotonic()


def _drain(library: str, slots: int, jobs: int) -> float:
    """Return jobs per second of a worker: from its tenth to its last job, without its start."""
    Path(TICKS).unlink(missing_ok=True)
    # One more is enqueued to connect.
    _enqueue(library, "many", jobs)
    with _running(library, slots):
        tenth = max(1, jobs // 10)
        began = _wait_for_ticks(tenth)
        done = _count(TICKS)
        ended = _wait_for_ticks(jobs + 1)
    return (jobs + 1 - done) / (ended - began)


def _pickup(library: str) -> list[float]:
    Path(TICKS).unlink(missing_ok=True)
    Path(LATENCIES).unlink(missing_ok=True)
    with _running(library, 16):
        _enqueue(library, "one", 1)
        _wait_for_ticks(2)
        time.sleep(1)
        _enqueue(library, "pickup", PICKUPS)
        deadline = time.monotonic() + PATIENCE
        while len(lines := _lines()) < PICKUPS and time.monotonic() < deadline:
            time.sleep(0.05)
    return sorted(map(float, lines))


def _lines() -> list[str]:
    return Path(LATENCIES).read_text().split("\n")[:-1] if Path(LATENCIES).exists() else []


def _empty(library: str) -> None:
    """Run what is left, so that no library measures jobs of an earlier row."""
    Path(TICKS).unlink(missing_ok=True)
    with _running(library, 16):
        last = -1
        while _count(TICKS) != last:
            last = _count(TICKS)
            time.sleep(3)


def _measure(library: str, jobs: int) -> dict[str, float]:
    jobs //= SLOW.get(library, 1)
    ones = max(100, jobs // 10)
    rows = {
        "one": (ones + 0.0) / _enqueue(library, "one", ones),
        "batch": (jobs + 0.0) / _enqueue(library, "many", jobs),
    }
    _empty(library)
    rows["1 worker"] = _drain(library, 1, jobs)
    rows["16 workers"] = _drain(library, 16, jobs)
    latencies = _pickup(library)
    rows["p50"] = 1000 * statistics.median(latencies)
    rows["p99"] = 1000 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]
    return rows


COLUMNS = {
    "one": "enqueue one by one, per s",
    "batch": "enqueue in batches, per s",
    "1 worker": "no-op jobs per s, 1 at a time",
    "16 workers": "16 at a time",
    "p50": "pick-up p50, ms",
    "p99": "p99, ms",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="tenure,celery,celery (threads),rq,procrastinate")
    parser.add_argument("--write", action="store_true")
    parsed = parser.parse_args()
    libraries = parsed.only.split(",")
    if "procrastinate" in libraries:
        subprocess.run(
            [BIN / "procrastinate", "--app", "with_procrastinate.app", "schema", "--apply"],
            check=True,
        )
    rounds: dict[str, list[dict[str, float]]] = {library: [] for library in libraries}
    for _ in range(parsed.rounds):
        for library in libraries:
            rounds[library].append(_measure(library, parsed.jobs))
            print(library, rounds[library][-1], file=sys.stderr, flush=True)
    table = _table(rounds, parsed.jobs)
    print(table)
    if parsed.write:
        text = PAGE.read_text()
        before, _, rest = text.partition("<!-- bench: begin -->\n")
        _, _, after = rest.partition("<!-- bench: end -->")
        PAGE.write_text(f"{before}<!-- bench: begin -->\n{table}<!-- bench: end -->{after}")


def _table(rounds: dict[str, list[dict[str, float]]], jobs: int) -> str:
    names = {"tenure": "Tenure"}
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for library, measured in rounds.items():
        cells = []
        for column in COLUMNS:
            median = statistics.median(rows[column] for rows in measured)
            cells.append(f"{median:,.1f}" if column.startswith("p") else f"{median:,.0f}")
        name = library.split()[0]
        label = f"{names.get(name, library)} {version(name) if name != 'tenure' else ''}".strip()
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    count = len(next(iter(rounds.values())))
    lines += [
        "",
        f"Medians of {count} rounds of {jobs:,} jobs (RQ a tenth of that, because it starts a "
        f"process for each job), on {os.cpu_count()} cores shared by everything, Python "
        f"{platform.python_version()}. Tenure and procrastinate flush every commit of PostgreSQL; "
        "Redis flushes its file once a second, so a crash loses the last second. Tenure and "
        "procrastinate run one worker process, Celery processes or threads, RQ a worker for each "
        "job at a time. Pick-up: from before the call that enqueues to the begin of the handler, "
        f"{PICKUPS} jobs, 50 per second, with idle workers.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
