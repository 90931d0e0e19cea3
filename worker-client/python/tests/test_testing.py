"""What the library has for the tests of its users, and its command line."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import Fail, Job, JobFailed, Release, RequestRefused, Retry, Tenure, testing
from tenure.testing import Server

UTC = datetime.timezone.utc
SOON = 30


def test_inline_runs_job_in_the_call() -> None:
    app = Tenure()

    @app.task(queue="test/test")
    def double(number: int) -> int:
        return 2 * number

    @app.task(queue="test/test")
    async def quadruple(job: Job, number: int) -> int:
        return 2 * int(await double.enqueue(number).aresult())

    with testing.inline(app) as jobs:
        handle = quadruple.enqueue(5)
        assert handle.status() == "completed"
        assert handle.result(timeout=1) == 20
        assert [made.request.task.name for made in jobs] == ["quadruple", "double"]
        assert not handle.cancel()

        async def use() -> int:
            [made] = await app.aenqueue_many([quadruple.job(7)])
            return await made.aresult()

        assert asyncio.run(use()) == 28


def test_inline_retries_without_waiting() -> None:
    app = Tenure()

    @app.task(queue="test/test", retries=3, backoff=(300, 300))
    def flaky(job: Job, until: int) -> int:
        job.checkpoint(job.attempt)
        if job.attempt < until:
            raise ValueError(f"attempt {job.attempt}")
        return job.attempt

    @app.task(queue="test/test")
    def never() -> None:
        raise Fail("no")

    with testing.inline(app) as jobs:
        assert flaky.enqueue(3).result() == 3
        with pytest.raises(JobFailed, match="ValueError: attempt 4") as failed:
            flaky.enqueue(9).result()
        assert isinstance(failed.value.__cause__, ValueError)
        with pytest.raises(JobFailed, match="Fail: no"):
            never.enqueue().result()
    assert [made.attempts for made in jobs] == [3, 4, 1]


def test_inline_handle_has_failure_of_each_run() -> None:
    app = Tenure()

    @app.task(queue="test/test", retries=1)
    def flaky(job: Job) -> int:
        if job.run_id == 0:
            raise Release
        if job.attempt == 1:
            raise ValueError("first")
        return job.attempt

    @app.task(queue="test/test")
    def never() -> None:
        raise Fail("no")

    with testing.inline(app):
        handle = flaky.enqueue()
        failed = never.enqueue()
    assert handle.result() == 2
    failure = handle.failure(run_id=1)
    assert failure is not None
    assert failure["kind"] == "ValueError"
    assert failure["message"].startswith("first\n\nTraceback")
    assert handle.failure(2) is None
    # As a server does: a released run has neither result nor failure, and there is no fourth.
    for run_id in (0, 3, -1):
        with pytest.raises(RequestRefused, match="ResourceNotFound"):
            handle.failure(run_id)
    failure = failed.failure(0)
    assert failure is not None
    assert failure["kind"] == "Fail"


def test_inline_release_uses_up_no_retry() -> None:
    app = Tenure()

    @app.task(queue="test/test", retries=1)
    def patient(job: Job, releases: int) -> tuple[int, int]:
        if job.run_id < releases:
            raise Release(after=60)
        if job.attempt == 1:
            raise Retry
        return job.attempt, job.run_id

    with testing.inline(app) as jobs:
        assert patient.enqueue(3).result() == (2, 4)
        with pytest.raises(JobFailed):
            patient.enqueue(201).result()
    assert [made.attempts for made in jobs] == [2, 1]


def test_context_is_entered_around_each_handler() -> None:
    app = Tenure()
    entered: list[str] = []

    @app.around
    @contextlib.contextmanager
    def context(job: Job) -> Iterator[None]:
        entered.append(f"enter {job.name}")
        try:
            yield
        finally:
            entered.append("leave")

    @app.task(queue="test/test", retries=0)
    def fails() -> None:
        raise ValueError("no")

    @app.task(queue="test/test")
    async def works() -> int:
        return len(entered)

    with testing.inline(app):
        assert works.enqueue().result() == 1
        with pytest.raises(JobFailed, match="ValueError: no"):
            fails.enqueue().result()
    assert entered == ["enter works", "leave", "enter fails", "leave"]


def test_job_for_unit_test_records_calls() -> None:
    app = Tenure()

    @app.task(queue="test/test")
    def handler(job: Job, steps: int) -> str:
        for step in range(job.last_checkpoint() or 0, steps):
            if job.cancelled or job.stopping:
                raise Retry("stopped")
            job.checkpoint(step)
            job.progress(step, steps, "going")
            job.log(f"step {step}")
        return "done"

    job = testing.job(attempt=2, last_checkpoint=1)
    assert handler(job, 3) == "done"
    assert job.checkpoints == [1, 2]
    assert job.progresses[-1] == {"done": 2, "total": 3, "message": "going"}
    assert job.logged == "step 1\nstep 2\n"
    cancelled, stopping = testing.job(), testing.job()
    cancelled.cancel()
    stopping.stop()
    for stopped in (cancelled, stopping):
        with pytest.raises(Retry):
            handler(stopped, 3)


@pytest.mark.parametrize("done", [float("nan"), 1j])
def test_progress_that_is_no_json_is_refused(done: float) -> None:
    with pytest.raises((TypeError, ValueError)):
        testing.job().progress(done)


def test_server_with_manual_clock_runs_delayed_jobs(
    tenure_server: Server, timed_app: Tenure, queue: str
) -> None:
    app = timed_app

    @app.task(queue=queue, retries=2, backoff=(600, 600))
    def flaky(job: Job) -> int:
        if job.attempt == 1:
            raise ValueError("first")
        return job.attempt

    handle = flaky.options(delay=3600).enqueue()
    assert tenure_server.work(app) == 0
    tenure_server.advance(3600)
    assert tenure_server.work(app) == 1
    assert handle.status() == "pending"
    tenure_server.advance(700)
    assert tenure_server.work(app) == 1
    assert handle.result(timeout=SOON) == 2


def test_deadline_follows_clock_of_server(
    tenure_server: Server, timed_app: Tenure, queue: str
) -> None:
    tenure_server.advance(10 * 86_400)

    @timed_app.task(queue=queue)
    def nothing() -> None: ...

    nothing.enqueue()
    handle = nothing.options(deadline=3600).enqueue()
    assert handle.status() == "pending"
    tenure_server.advance(3700)
    with pytest.raises(JobFailed, match="deadline-exceeded"):
        handle.result(timeout=SOON)
    tenure_server.work(timed_app)


def test_many_jobs_are_enqueued_in_requests_of_thousand(
    tenure_server: Server, timed_app: Tenure, queue: str
) -> None:
    @timed_app.task(queue=queue)
    def nothing(text: str) -> None: ...

    calls = []
    client = timed_app.client
    original = client.call
    client.call = lambda call, retries=5: calls.append(call) or original(call, retries)  # type: ignore[method-assign]
    handles = timed_app.enqueue_many(nothing.job(str(n)) for n in range(2001))
    assert len(handles) == 2001
    assert [len(call.body.get("tasks", [1])) for call in calls] == [1000, 1000, 1]
    # Large payloads are split by size.
    calls.clear()
    timed_app.enqueue_many(nothing.job("x" * 3_000_000) for _ in range(4))
    assert [len(call.body.get("tasks", [1])) for call in calls] == [2, 2]
    assert len({call.idempotency_key for call in calls}) == 2


def _run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    import os

    settings = {k: v for k, v in os.environ.items() if not k.startswith(("TENURE_", "TASKCLUSTER"))}
    return subprocess.run(
        [sys.executable, "-m", "tenure", *arguments],
        cwd=folder,
        env={**settings, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_command_line_names_the_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from tenure import Tenure\napp = Tenure()\n")
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    url = {"TENURE_URL": "http://127.0.0.1:1"}
    for arguments, environ, message in (
        (["worker", "nothing:app"], {}, "there is no module nothing in"),
        (["worker", "empty:main"], {}, "empty has no Tenure() in the variable main"),
        (["worker", "empty"], {}, "no server: set TENURE_URL"),
        (["worker", "empty"], url, "the application has no tasks"),
        (["worker", "empty", "--queue", "a=b"], url, "'a=b' must be QUEUE or QUEUE=WEIGHT"),
    ):
        done = _run(tmp_path, *arguments, **environ)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    broken = _run(tmp_path, "worker", "broken")
    assert "No module named 'no_such_module'" in broken.stderr
    assert _run(tmp_path, "--version").stdout.strip()
