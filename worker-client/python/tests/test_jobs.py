"""What becomes of a job: results, retries, failures, cancellations. On a real server."""

from __future__ import annotations

import asyncio

import pytest
from conftest import Bench, wait_for

from tenure import DuplicateJob, JobCancelled, JobFailed, RequestRefused, Tenure
from tenure.api import TENURE_API, Call
from tenure.testing import Server

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


def test_unique_name_is_taken_until_its_job_ends(bench: Bench) -> None:
    jobs = bench.app()
    named = jobs.note.options(unique="nightly")
    first = named.enqueue("first")
    with pytest.raises(DuplicateJob) as refused:
        named.enqueue("second")
    assert (refused.value.holder, refused.value.status) == (first.id, 409)
    with pytest.raises(DuplicateJob) as refused:
        jobs.app.enqueue_many([jobs.note.job("other"), named.job("second")])
    assert (refused.value.holder, refused.value.entry) == (first.id, "1")
    coalesced = jobs.note.options(unique="nightly", on_duplicate="coalesce").enqueue("third")
    assert coalesced.id == first.id
    queued = jobs.note.options(unique="nightly", on_duplicate="queue").enqueue("fourth")
    assert queued.status() == "unscheduled"
    bench.worker()
    assert queued.result(timeout=SOON) == "fourth"
    assert bench.records() == ["first", "fourth"]
    assert named.enqueue("fifth").result(timeout=SOON) == "fifth"


def test_full_queue_takes_job_once_there_is_room(bench: Bench) -> None:
    jobs = bench.app()
    bench.set_policy(backlog={"tasks": 2})
    for text in ("one", "two"):
        jobs.note.enqueue(text)
    call = Call("POST", f"{TENURE_API}/tasks", {"taskQueueId": bench.queue})
    with pytest.raises(RequestRefused) as refused:
        jobs.app.client.call(call, retries=0)
    assert (refused.value.code, refused.value.retry_after) == ("BacklogLimitReached", 5)
    bench.worker()
    assert jobs.note.enqueue("three").result(timeout=SOON) == "three"


def test_problems_are_listed(bench: Bench) -> None:
    jobs = bench.app()
    listed = jobs.app.problems()
    assert all(problem["message"] and problem["severity"] in ("now", "known") for problem in listed)
    assert isinstance(asyncio.run(jobs.app.aproblems()), list)


def test_schedule_is_set_triggered_and_deleted(bench: Bench) -> None:
    jobs = bench.app()
    schedule = jobs.app.schedule(bench.queue.partition("/")[2])
    job = jobs.note.options(unique="yearly", deadline=3600).job("happy new year")
    stored = schedule.set(job, cron="0 0 1 1 *", timezone="Europe/Berlin")
    assert len(stored["next"]) == 5
    assert stored["next"][0].endswith("-12-31T23:00:00.000Z")
    triggered = schedule.trigger()
    with pytest.raises(DuplicateJob) as refused:
        schedule.trigger()
    assert refused.value.holder == triggered.id
    bench.worker()
    assert triggered.result(timeout=SOON) == "happy new year"
    schedule.pause()
    assert schedule.show()["paused"]

    async def change() -> None:
        await schedule.aset(jobs.note.job("hello"), cron="@daily", catch_up="none")
        triggered = await schedule.atrigger()
        assert await triggered.aresult(timeout=SOON) == "hello"

    asyncio.run(change())
    schedule.resume()
    shown = schedule.show()
    assert (shown["cron"], shown["timezone"], shown["paused"]) == ("@daily", "UTC", False)
    schedule.delete()
    with pytest.raises(RequestRefused) as missing:
        schedule.trigger()
    assert missing.value.status == 404


def test_schedule_enqueues_job_at_each_time(
    tenure_server: Server, timed_app: Tenure, queue: str
) -> None:
    written: list[str] = []

    @timed_app.task(queue=queue)
    def write(text: str) -> None:
        written.append(text)

    schedule = timed_app.schedule(queue.partition("/")[2])
    schedule.set(write.job("an hour"), cron="@hourly")
    for hour in (1, 2):
        tenure_server.advance(3600)
        wait_for(lambda: tenure_server.work(timed_app), "the job")
        assert len(written) == hour
    assert schedule.show()["last"]["outcome"] == "created"
    schedule.delete()
