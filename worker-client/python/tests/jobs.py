"""The jobs of the tests. Most write a line to the file TEST_RECORD when they have begun."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import os
import signal
import time
from typing import Any

from tenure import Fail, Job, Release, Retry, Tenure

app = Tenure()
QUEUE = os.environ.get("TEST_QUEUE", "python/none")
OTHER = QUEUE + "-other"


def record(line: str) -> None:
    with open(os.environ["TEST_RECORD"], "a") as file:
        file.write(line + "\n")


@app.task(queue=QUEUE)
def note(text: str) -> str:
    record(text)
    return text


@app.task(queue=OTHER)
def other(text: str) -> None:
    record(text)


@app.task(queue=QUEUE)
async def anote(text: str) -> str:
    record(text)
    return text


@app.task(queue=QUEUE, retries=3, backoff=(0, 1))
def fails(job: Job, times: int) -> int:
    record(f"attempt {job.attempt}")
    if job.attempt <= times:
        raise ValueError(f"attempt {job.attempt} has failed")
    return job.attempt


@app.task(queue=QUEUE, retries=3, backoff=(0, 1))
def ends(how: str) -> Any:
    record(how)
    if how == "retry":
        raise Retry("later", after=0)
    if how == "fail":
        raise Fail("never again")
    if how == "exit":
        raise SystemExit(4)
    if how == "large":
        return "x" * 70_000
    if how == "no-json":
        return object()
    return how


@app.task(queue=QUEUE)
def released_once(job: Job) -> int:
    record(f"run {job.run_id}")
    if job.run_id == 0:
        raise Release()
    return job.run_id


@app.task(queue=QUEUE)
def sleep(job: Job, seconds: float, name: str = "sleep") -> str:
    """Sleeps until it is cancelled."""
    record(f"{name} begins")
    if job.wait_cancelled(seconds):
        record(f"{name} {job.cancellation}")
        job.raise_if_cancelled()
    return name


@app.task(queue=QUEUE)
async def asleep(job: Job, seconds: float, name: str = "asleep") -> str:
    record(f"{name} begins")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        record(f"{name} {job.cancellation}")
        raise
    return name


@app.task(queue=QUEUE)
def slow_once(job: Job, seconds: float, fails: bool = False) -> int:
    """Takes so long in its first run."""
    record(f"run {job.run_id} begins")
    if job.run_id == 0:
        job.wait_cancelled(seconds)
        record(f"run 0 {job.cancellation or 'ends'}")
        job.raise_if_cancelled()
        # The next run has the task, so this is not stored.
        job.log("late")
        job.progress(1, 1)
        job.checkpoint("late")
        if fails:
            raise ValueError("too late")
    return job.run_id


@app.task(queue=QUEUE)
def stubborn(seconds: float, name: str = "stubborn") -> str:
    """Does not look whether it was cancelled."""
    record(f"{name} begins")
    time.sleep(seconds)
    record(f"{name} ends")
    return name


@app.task(queue=QUEUE)
def steps(job: Job, count: int) -> list[int]:
    """Stores a checkpoint after each step, and fails in the middle of the first attempt."""
    done: int = job.last_checkpoint() or 0
    made = []
    for step in range(done, count):
        job.progress(step, count, "working")
        if job.attempt == 1 and step == count // 2:
            raise Retry(after=0)
        job.checkpoint(step + 1)
        job.log(f"step {step}")
        made.append(step)
    job.progress(count, count)
    return made


@app.task(queue=QUEUE, cpu=True, retries=1, backoff=(0, 0))
def cpu(job: Job, what: str) -> str:
    record(f"{what} {os.getpid()}")
    if what == "crash" and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "checkpoint":
        job.log("in a process")
        job.checkpoint({"pid": os.getpid()})
        assert job.last_checkpoint() == {"pid": os.getpid()}
    if what == "spin":
        while True:
            pass
    if what == "fail":
        raise ValueError("in a process")
    return what


@app.task(queue=QUEUE, cpu=True)
def cpu_waits(name: str, gate: str) -> str:
    """Does not look whether it was cancelled, and ends when the file exists."""
    record(f"{name} begins")
    while not os.path.exists(gate):
        time.sleep(0.02)
    record(f"{name} ends")
    return name


# Tasks that have a handler in Rust too: tests/src/bin/rust_jobs.rs.


class Urgency(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass
class Item:
    name: str
    count: int
    price: float


@dataclasses.dataclass
class Receipt:
    customer: str
    total: float
    due: datetime.datetime
    urgent: bool
    note: str | None


class OutOfStock(Exception):
    pass


@app.task(queue=QUEUE)
def order(
    customer: str,
    items: list[Item],
    due: datetime.datetime,
    urgency: Urgency,
    note: str | None = None,
) -> Receipt:
    total = sum(item.count * item.price for item in items)
    return Receipt(customer, total, due, urgency is Urgency.HIGH, note)


@app.task(queue=QUEUE)
def sell(item: str) -> None:
    raise OutOfStock(f"no {item} is left")


@app.task(queue=QUEUE, backoff=(0, 0))
def busy(job: Job) -> int:
    if job.attempt == 1:
        raise ConnectionError("the shop is closed")
    return job.attempt


@app.task(queue=QUEUE)
def sweep() -> None: ...
