"""What becomes of a job: results, retries, failures, cancellations. On a real server."""

from __future__ import annotations

import asyncio

import pytest
from conftest import Bench, wait_for

from tenure import JobCancelled, JobFailed

SOON = 60


def test_thread_and_coroutine_return_results(working: Bench) -> None:
    jobs = working.jobs
    handles = [jobs.note.enqueue("one"), jobs.anote.enqueue("two")]
    assert [handle.result(timeout=SOON) for handle in handles] == ["one", "two"]
    assert handles[0].status() == "completed"
    assert {"one", "two"} <= set(working.records())


def test_async_handle_waits_and_cancels(working: Bench) -> None:
    jobs = working.jobs

    async def use() -> None:
        handle = await jobs.anote.aenqueue("one")
        assert await handle.aresult(timeout=SOON) == "one"
        assert await handle.astatus() == "completed"
        assert not await handle.acancel()
        late = await jobs.note.options(delay=60).aenqueue("late")
        with pytest.raises(TimeoutError):
            await late.aresult(timeout=0)
        assert await late.acancel()
        with pytest.raises(JobCancelled):
            await late.aresult(timeout=SOON)

    asyncio.run(use())


def test_exception_is_retried_until_success(working: Bench) -> None:
    jobs = working.jobs
    handle = jobs.fails.enqueue(2)
    assert handle.result(timeout=SOON) == 3
    assert working.reasons(handle.id) == ["intermittent-task"] * 2 + ["completed"]
    failure = handle.failure(1)
    assert failure is not None
    assert failure["kind"] == "ValueError"
    assert failure["message"].startswith("attempt 2 has failed\n\nTraceback")


def test_last_failure_has_type_message_and_traceback(working: Bench) -> None:
    jobs = working.jobs
    handle = jobs.fails.options(retries=1).enqueue(5)
    with pytest.raises(JobFailed) as failed:
        handle.result(timeout=SOON)
    error = failed.value
    assert (error.state, error.reason, error.kind) == ("failed", "failed", "ValueError")
    assert error.message is not None
    assert error.message.startswith("attempt 2 has failed\n\nTraceback")
    assert 'raise ValueError(f"attempt {job.attempt} has failed")' in error.message
    assert "outcome.py" not in error.message
    assert working.reasons(handle.id) == ["intermittent-task", "failed"]


@pytest.mark.parametrize(
    ("how", "reasons", "kind", "message"),
    [
        ("retry", ["intermittent-task"] * 3 + ["failed"], "Retry", "later"),
        ("fail", ["failed"], "Fail", "never again"),
        ("exit", ["intermittent-task"] * 3 + ["failed"], "SystemExit", "4"),
        ("large", ["internal-error"], "ResultError", "the result has 70002 bytes"),
        ("no-json", ["internal-error"], "ResultError", "the result is no JSON: object"),
    ],
)
def test_handler_decides_how_job_ends(
    working: Bench, how: str, reasons: list[str], kind: str, message: str
) -> None:
    jobs = working.jobs
    handle = jobs.ends.enqueue(how)
    with pytest.raises(JobFailed) as failed:
        handle.result(timeout=SOON)
    assert working.reasons(handle.id) == reasons
    assert failed.value.kind == kind
    assert failed.value.message is not None
    assert failed.value.message.startswith(message)


def test_released_job_keeps_its_retries(working: Bench) -> None:
    jobs = working.jobs
    handle = jobs.released_once.enqueue()
    assert handle.result(timeout=SOON) == 1
    status = working.status(handle.id)
    assert status["retriesLeft"] == 5
    assert len(status["runs"]) == 2


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"kind": "note", "args": {"text": 5}}, "text: expected text, got an integer '5'"),
        ({"kind": "note", "args": {}}, "the argument 'text' is missing"),
        ({"kind": "note", "args": {"text": "a", "more": 1}}, "unknown argument 'more'"),
        ({"kind": "note", "args": None}, "the argument 'text' is missing"),
        ({"kind": "note", "args": ["a"]}, "args must be an object, not a list"),
        ({"kind": "nothing"}, 'unknown kind "nothing"; this worker has "anote", '),
        ({"command": ["true"]}, "the payload must be"),
    ],
)
def test_malformed_payload_ends_with_message(
    working: Bench, payload: dict[str, object], message: str
) -> None:
    jobs = working.jobs
    body = {"taskQueueId": working.queue, "payload": payload}
    made = working.server.call("POST", "/api/tenure/v1/tasks", body)["tasks"][0]["taskId"]
    with pytest.raises(JobFailed) as failed:
        jobs.app.handle(made).result(timeout=SOON)
    assert (failed.value.reason, failed.value.kind) == ("malformed-payload", "malformed-payload")
    assert failed.value.message is not None
    assert failed.value.message.startswith(f"malformed payload: {message}")
    assert "a" not in working.records()


def test_payload_of_another_language_is_run(working: Bench) -> None:
    jobs = working.jobs
    body = {"taskQueueId": working.queue, "payload": {"kind": "note", "args": {"text": "hi"}}}
    made = working.server.call("POST", "/api/tenure/v1/tasks", body)["tasks"][0]["taskId"]
    assert jobs.app.handle(made).result(timeout=SOON) == "hi"


@pytest.mark.parametrize("name", ["sleep", "asleep"])
def test_cancellation_reaches_handler(bench: Bench, name: str) -> None:
    jobs = bench.app()
    handle = jobs.app.tasks[name].enqueue(300)
    bench.worker("--concurrency", "1")
    bench.wait_for_record(f"{name} begins")
    assert handle.cancel()
    # A second is promised; ten times as much on a busy machine.
    wait_for(lambda: f"{name} cancelled" in bench.records(), "the cancellation", within=10)
    with pytest.raises(JobCancelled):
        handle.result(timeout=SOON)
    # The slot is free again.
    assert jobs.note.enqueue("next").result(timeout=SOON) == "next"


def test_progress_checkpoint_and_log_survive_retry(working: Bench) -> None:
    jobs = working.jobs
    handle = jobs.steps.enqueue(6)
    assert handle.result(timeout=SOON) == [3, 4, 5]
    path = f"/api/tenure/v1/tasks/{handle.id}"
    assert working.server.call("GET", f"{path}/checkpoint")["checkpoint"] == {
        "progress": {"done": 6, "total": 6},
        "checkpoint": 6,
    }
    log = jobs.app.client._http.get(f"{working.server.url}{path}/runs/1/live-log").text
    assert log == "step 3\nstep 4\nstep 5\n"


def test_options_reach_server(bench: Bench) -> None:
    jobs = bench.app()
    first = jobs.note.options(delay=3600, tags={"a": "b"}).enqueue("first")
    options = {"key": "customer-7", "priority": "high", "retries": 9, "after": [first]}
    handle = jobs.note.options(**options, deadline=7200).enqueue("second")
    task = bench.server.call("GET", f"/api/queue/v1/task/{handle.id}")
    assert task["payload"] == {"kind": "note", "args": {"text": "second"}}
    assert task["extra"]["tenure"] == {"key": "customer-7"}
    assert (task["priority"], task["retries"]) == ("high", 9)
    assert task["dependencies"] == [first.id]
    assert task["metadata"]["name"] == "note"
    assert handle.status() == "unscheduled"
    why = bench.server.call("GET", f"/api/tenure/v1/tasks/{first.id}/why")
    assert why["reasons"][0]["code"] == "delay"
    assert bench.server.call("GET", f"/api/queue/v1/task/{first.id}")["tags"] == {"a": "b"}


def test_clients_with_few_scopes_enqueue_and_work(bench: Bench) -> None:
    jobs = bench.app()
    submitter = [f"queue:create-task:{bench.queue}", f"tenure:get-result:{bench.queue}"]
    worker = [f"queue:claim-work:{bench.queue}", "queue:worker-id:default/*"]
    tokens = {}
    for name, scopes in (("submitter", submitter), ("worker", worker)):
        body = {"expires": "3000-01-01T00:00:00Z", "description": "", "scopes": scopes}
        path = f"/api/auth/v1/clients/{name}-{bench.queue.replace('/', '-')}"
        made = bench.server.call("PUT", path, body)
        tokens[name] = made["clientId"], made["accessToken"]
    jobs.app.configure(bench.server.url, *tokens["submitter"])
    handle = jobs.steps.enqueue(4)
    client_id, token = tokens["worker"]
    started = bench.worker(
        "--queue", bench.queue, TENURE_CLIENT_ID=client_id, TENURE_ACCESS_TOKEN=token
    )
    assert handle.result(timeout=SOON) == [2, 3]
    assert started.stop() == 0


def test_handler_in_process_works_crashes_and_is_killed(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker("--processes", "1", "--concurrency", "4").wait_until_ready()
    assert jobs.cpu.enqueue("checkpoint").result(timeout=SOON) == "checkpoint"
    # Killed by the kernel, for example for lack of memory.
    crash = jobs.cpu.enqueue("crash")
    assert crash.result(timeout=SOON) == "crash"
    assert bench.reasons(crash.id) == ["intermittent-task", "completed"]
    assert "the process of the handler was killed by signal 9" in worker.text
    with pytest.raises(JobFailed, match="ValueError: in a process"):
        jobs.cpu.enqueue("fail").result(timeout=SOON)
    spin = jobs.cpu.enqueue("spin")
    wait_for(lambda: [r for r in bench.records() if r.startswith("spin")], "the loop")
    assert spin.cancel()
    # The only process is killed, and another one takes the next job.
    assert jobs.cpu.enqueue("after").result(timeout=SOON) == "after"
    assert worker.stop() == 0
