"""Progress, checkpoints and logs of a run, without a server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from test_executors import _run

from tenure import RequestRefused
from tenure.api import Call, to_json
from tenure.run import Run

SLOW = 5.0


class _Client:
    url = "http://localhost"


class _Link:
    """A server whose logs are slow, or which refuses large checkpoints."""

    def __init__(self) -> None:
        self.client = _Client()
        self.checkpoints: list[Any] = []

    async def call(self, call: Call) -> Any:
        if "live-log" in call.path:
            await asyncio.sleep(SLOW)
            return {"kept": True, "next": 0}
        to_json(call.body)
        if "large" in str(call.body):
            raise RequestRefused(400, "InputError", "the checkpoint is too large")
        self.checkpoints.append(call.body["checkpoint"])
        return {}


def _linked() -> tuple[Run, _Link]:
    run, link = _run("waits"), _Link()
    run._link = link  # type: ignore[assignment]
    return run, link


def test_slow_log_delays_neither_progress_nor_report() -> None:
    async def tell() -> None:
        run, link = _linked()
        run.job.log("a")
        sending = [asyncio.ensure_future(telling) for telling in run.tell()]
        await asyncio.sleep(0)
        run.job.progress(1)
        began = time.monotonic()
        [progress] = run.tell()
        await progress
        assert link.checkpoints == [{"progress": {"done": 1}}]
        run.job.progress(2)
        await run.tell_rest()
        assert link.checkpoints[-1] == {"progress": {"done": 2}}
        assert time.monotonic() - began < SLOW / 2
        for task in sending:
            task.cancel()

    asyncio.run(tell())


def test_refused_checkpoint_leaves_last_one() -> None:
    async def store() -> None:
        run, link = _linked()
        await run.checkpoints.put(1)
        for wrong in ("large", float("nan")):
            with pytest.raises((RequestRefused, ValueError)):
                await run.checkpoints.put(wrong)
            assert await run.checkpoints.get() == 1
        run.job.progress(2)
        await run.checkpoints.flush()
        assert link.checkpoints[-1] == {"progress": {"done": 2}, "checkpoint": 1}

    asyncio.run(store())
