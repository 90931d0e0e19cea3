"""Workers, servers and networks that die, stop or are slow. No job is lost, none ends twice."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest
from conftest import Bench, wait_for
from proxy import Proxy

from tenure import JobFailed
from tenure.testing import Server

SOON = 60


def test_killed_worker_restarts_and_takes_over(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker("--worker-id", "one")
    handle = jobs.sleep.enqueue(300, "long")
    bench.wait_for_record("long begins")
    worker.kill()
    bench.worker("--worker-id", "one")
    wait_for(lambda: bench.records().count("long begins") == 2, "the second run")
    # The death of a worker uses up a retry, if the queue has no other policy.
    status = bench.status(handle.id)
    assert status["runs"][0]["reasonResolved"] == "worker-shutdown"
    assert status["retriesLeft"] == 4
    handle.cancel()


def test_first_of_two_workers_with_one_name_ends(bench: Bench) -> None:
    first = bench.worker("--worker-id", "one").wait_until_ready()
    wait_for(lambda: _sessions(bench), "a session")
    # A session younger than a second cannot be taken over.
    second = bench.worker("--worker-id", "one")
    assert first.wait() == 3
    assert "another process with the name default/one took over" in first.text
    assert second.stop() == 0
    assert _sessions(bench) == []


def _sessions(bench: Bench) -> list[object]:
    path = f"/api/tenure/v1/queues/{bench.queue.replace('/', '%2F')}/workers"
    workers: list[object] = bench.server.call("GET", path)["workers"]
    return workers


def test_killed_server_loses_no_report_and_no_job(own_bench: Bench) -> None:
    bench = own_bench
    jobs = bench.app()
    worker = bench.worker("--concurrency", "8")
    running = [jobs.stubborn.enqueue(2, f"s{n}") for n in range(4)]
    for n in range(4):
        bench.wait_for_record(f"s{n} begins")
    bench.server.kill()
    for n in range(4):
        bench.wait_for_record(f"s{n} ends")
    # Long enough for several attempts to report.
    worker.wait_for_text("is away")
    time.sleep(1)
    bench.server.start()
    handles = running + jobs.app.enqueue_many([jobs.note.job(f"n{n}") for n in range(50)])
    assert [handle.result(timeout=SOON) for handle in running] == ["s0", "s1", "s2", "s3"]
    for handle in handles:
        handle.result(timeout=SOON)
        assert len(bench.status(handle.id)["runs"]) == 1
    counts = Counter(bench.records())
    assert all(counts[f"n{n}"] == 1 for n in range(50))
    # It is said once, not in a loop.
    assert worker.text.count("is away") == 1
    assert worker.text.count("answers again") == 1
    assert worker.stop() == 0


def test_restarting_workers_run_each_job_once(bench: Bench) -> None:
    jobs = bench.app()
    handles = jobs.app.enqueue_many([jobs.stubborn.job(0.05, f"j{n}") for n in range(120)])
    worker = bench.worker("--concurrency", "4")
    for _ in range(2):
        before = len(bench.records())
        wait_for(lambda before=before: len(bench.records()) > before + 8, "some jobs")
        following = bench.worker("--concurrency", "4")
        assert worker.stop() == 0
        worker = following
    for handle in handles:
        handle.result(timeout=SOON)
    counts = Counter(bench.records())
    assert all(counts[f"j{n} begins"] == 1 for n in range(120))
    assert all(bench.status(handle.id)["retriesLeft"] == 5 for handle in handles[::10])


def test_sigterm_waits_for_handlers_and_releases_others(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker("--concurrency", "3", "--grace", "6")
    short = jobs.stubborn.enqueue(2, "short")
    waits = jobs.sleep.enqueue(300, "waits")
    coroutine = jobs.asleep.enqueue(300, "coroutine")
    for name in ("short", "waits", "coroutine"):
        bench.wait_for_record(f"{name} begins")
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 20
    assert short.result(timeout=SOON) == "short"
    assert {"waits shutdown", "coroutine shutdown"} <= set(bench.records())
    for handle in (waits, coroutine):
        status = bench.status(handle.id)
        assert [run["state"] for run in status["runs"]] == ["exception", "pending"]
        assert status["retriesLeft"] == 5


def test_sigterm_releases_jobs_without_a_process(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker("--concurrency", "4", "--processes", "1", "--grace", "30")
    gate = bench.folder / "gate"
    first = jobs.cpu_waits.enqueue("first", str(gate))
    bench.wait_for_record("first begins")
    others = [jobs.cpu_waits.enqueue(f"j{n}", str(gate)) for n in range(3)]
    for handle in others:
        wait_for(lambda handle=handle: handle.status() == "running", "the claims")
    worker.send(signal.SIGTERM)
    # While the first handler works, within the grace.
    for handle in others:
        wait_for(lambda handle=handle: handle.status() == "pending", "the releases")
        status = bench.status(handle.id)
        assert [run["state"] for run in status["runs"]] == ["exception", "pending"]
        assert status["retriesLeft"] == 5
    gate.touch()
    assert worker.wait() == 0
    assert first.result(timeout=SOON) == "first"
    assert bench.records() == ["first begins", "first ends"]


def test_claims_ahead_are_given_back(bench: Bench) -> None:
    jobs = bench.app()
    handles = [jobs.sleep.enqueue(300, "long"), *[jobs.note.enqueue(f"n{n}") for n in range(5)]]
    worker = bench.worker("--concurrency", "1", "--prefetch", "20", "--grace", "1")
    bench.wait_for_record("long begins")
    # After a second without a free slot.
    wait_for(lambda: "worker-shutdown" in bench.reasons(handles[1].id), "the release")
    other = bench.worker("--concurrency", "1", "--queue", bench.queue)
    assert [handle.result(timeout=SOON) for handle in handles[1:]] == [f"n{n}" for n in range(5)]
    assert worker.stop() == 0
    assert all(bench.status(handle.id)["retriesLeft"] == 5 for handle in handles)
    handles[0].cancel()
    assert other.stop() == 0


def test_handler_that_never_stops_is_given_back(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker("--grace", "1")
    handle = jobs.stubborn.enqueue(300)
    bench.wait_for_record("stubborn begins")
    assert worker.stop() == 0
    assert "did not stop in time" in worker.text
    status = bench.status(handle.id)
    assert [run["state"] for run in status["runs"]] == ["exception", "pending"]
    assert status["retriesLeft"] == 5


def test_sigterm_ends_unfinished_job_delivered_at_most_once(bench: Bench) -> None:
    bench.set_policy(delivery="at-most-once")
    jobs = bench.app()
    worker = bench.worker("--grace", "1")
    handle = jobs.stubborn.enqueue(300)
    bench.wait_for_record("stubborn begins")
    assert worker.stop() == 0
    assert bench.reasons(handle.id) == ["worker-shutdown"]


def test_second_signal_ends_worker_at_once(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker()
    jobs.stubborn.enqueue(300)
    bench.wait_for_record("stubborn begins")
    worker.send(signal.SIGTERM)
    worker.wait_for_text("stopping")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1


def _first_wins(bench: Bench) -> None:
    bench.set_policy(completeTime=2, lateResult="first-wins")


def test_kept_job_of_ended_run_counts_late(bench: Bench) -> None:
    _first_wins(bench)
    jobs = bench.app()
    worker = bench.worker("--concurrency", "1", "--keep-late")
    handle = jobs.slow_once.enqueue(6)
    assert handle.result(timeout=SOON) == 0
    assert bench.reasons(handle.id) == ["claim-expired", "superseded", "completed"]
    # The next run may begin before the late result is stored.
    assert bench.records()[:2] == ["run 0 begins", "run 0 ends"]
    worker.wait_for_text("its handler goes on")
    # Its slot is free again.
    assert jobs.note.enqueue("after").result(timeout=SOON) == "after"
    assert worker.stop() == 0


def test_late_failure_of_kept_job_is_not_reported(bench: Bench) -> None:
    _first_wins(bench)
    jobs = bench.app()
    worker = bench.worker("--concurrency", "1", "--keep-late")
    handle = jobs.slow_once.enqueue(6, fails=True)
    assert handle.result(timeout=SOON) == 1
    assert bench.reasons(handle.id) == ["claim-expired", "completed"]
    assert bench.records() == ["run 0 begins", "run 0 ends", "run 1 begins"]
    assert worker.stop() == 0


def test_job_of_ended_run_stops_by_default(bench: Bench) -> None:
    _first_wins(bench)
    jobs = bench.app()
    worker = bench.worker("--concurrency", "1")
    handle = jobs.slow_once.enqueue(300)
    assert handle.result(timeout=SOON) == 1
    assert bench.reasons(handle.id) == ["claim-expired", "completed"]
    assert bench.records() == ["run 0 begins", "run 0 lost", "run 1 begins"]
    assert worker.stop() == 0


def test_frozen_worker_loses_its_lease(hasty_bench: Bench) -> None:
    bench = hasty_bench
    jobs = bench.app()
    handle = jobs.stubborn.enqueue(5, "first")
    # With another slot, its waiting request would get the second run too.
    first = bench.worker("--no-session", "--worker-id", "first", "--concurrency", "1")
    bench.wait_for_record("first begins")
    first.send(signal.SIGSTOP)
    wait_for(lambda: bench.reasons(handle.id)[0] == "claim-expired", "the end of the lease")
    second = bench.worker("--no-session", "--worker-id", "second")
    wait_for(lambda: bench.records().count("first begins") == 2, "the second run")
    first.send(signal.SIGCONT)
    assert handle.result(timeout=SOON) == "first"
    # The first worker learns of the loss from its renewal or, if that comes later, its report.
    assert bench.reasons(handle.id) == ["claim-expired", "completed"]
    told = ("is no longer this worker's", "was refused and changed nothing")
    wait_for(lambda: any(text in first.text for text in told), "the loss of the lease")
    assert second.stop() == 0


def test_lease_is_renewed_while_handler_blocks(hasty_bench: Bench) -> None:
    bench = hasty_bench
    jobs = bench.app()
    bench.worker("--no-session")
    handle = jobs.stubborn.enqueue(7)
    assert handle.result(timeout=SOON) == "stubborn"
    assert bench.reasons(handle.id) == ["completed"]


def test_cut_off_worker_stops_handler_before_lease_ends(
    hasty_bench: Bench, hasty_server: Server, proxy_to: Callable[[Server], Proxy]
) -> None:
    bench, proxy = hasty_bench, proxy_to(hasty_server)
    jobs = bench.app()
    worker = bench.worker("--no-session", url=proxy.url)
    handle = jobs.sleep.enqueue(300, "cut")
    bench.wait_for_record("cut begins")
    proxy.cut()
    bench.wait_for_record("cut lost")
    # The handler was asked to stop while the run was still its worker's.
    worker.wait_for_text("is stopped before its lease ends")
    wait_for(lambda: bench.reasons(handle.id)[0] == "claim-expired", "the end of the lease")
    handle.cancel()
    proxy.mend()
    assert jobs.note.enqueue("after").result(timeout=SOON) == "after"


def test_cut_off_worker_loses_its_session_and_starts_another(
    bench: Bench, live_server: Server, proxy_to: Callable[[Server], Proxy]
) -> None:
    proxy = proxy_to(live_server)
    jobs = bench.app()
    first = bench.worker("--session-ttl", "15", "--worker-id", "first", url=proxy.url)
    handle = jobs.asleep.enqueue(300, "cut")
    bench.wait_for_record("cut begins")
    proxy.cut()
    # Before the session may expire.
    bench.wait_for_record("cut lost")
    assert bench.status(handle.id)["state"] == "running"
    second = bench.worker("--worker-id", "second", "--concurrency", "1", "--queue", bench.queue)
    wait_for(lambda: bench.records().count("cut begins") == 2, "the second run")
    proxy.mend()
    # The second worker has no free slot.
    assert jobs.note.enqueue("after").result(timeout=SOON) == "after"
    assert bench.reasons(handle.id) == ["worker-shutdown", "running"]
    handle.cancel()
    assert first.stop() == 0
    assert second.stop() == 0


def test_cut_network_loses_no_report(
    bench: Bench, live_server: Server, proxy_to: Callable[[Server], Proxy]
) -> None:
    proxy = proxy_to(live_server)
    jobs = bench.app()
    bench.worker(url=proxy.url)
    handles = [jobs.stubborn.enqueue(2, f"c{n}") for n in range(4)]
    for n in range(4):
        bench.wait_for_record(f"c{n} begins")
    proxy.cut()
    for n in range(4):
        bench.wait_for_record(f"c{n} ends")
    time.sleep(1)
    proxy.mend()
    assert [handle.result(timeout=SOON) for handle in handles] == ["c0", "c1", "c2", "c3"]
    assert all(bench.reasons(handle.id) == ["completed"] for handle in handles)


def test_slow_network_slows_nothing_but_requests(
    bench: Bench, live_server: Server, proxy_to: Callable[[Server], Proxy]
) -> None:
    proxy = proxy_to(live_server)
    proxy.delay = 0.3
    jobs = bench.app()
    worker = bench.worker(url=proxy.url)
    handles = jobs.app.enqueue_many([jobs.note.job(f"s{n}") for n in range(100)])
    for handle in handles:
        handle.result(timeout=SOON)
    assert sorted(bench.records()) == sorted(f"s{n}" for n in range(100))
    long = jobs.asleep.enqueue(300, "long")
    bench.wait_for_record("long begins")
    assert long.cancel()
    bench.wait_for_record("long cancelled")
    assert worker.stop() == 0


def test_ten_thousand_jobs_run_once_each(bench: Bench) -> None:
    jobs = bench.app()
    count = 10_000
    handles = jobs.app.enqueue_many(jobs.note.job(f"n{n}") for n in range(count))
    assert len({handle.id for handle in handles}) == count
    worker = bench.worker("--burst", "--concurrency", "16")
    assert worker.wait(within=300) == 0
    counts = Counter(bench.records())
    assert len(counts) == count
    assert set(counts.values()) == {1}
    assert handles[-1].result(timeout=SOON) == f"n{count - 1}"
    queue = bench.queue.replace("/", "%2F")
    now = bench.server.call("GET", f"/api/tenure/v1/queues/{queue}")
    assert (now["pending"], now["claimed"]) == (0, 0)


def test_weights_share_slots_of_two_queues(bench: Bench) -> None:
    jobs = bench.app()
    jobs.app.enqueue_many([jobs.note.job(f"note {n}") for n in range(400)])
    jobs.app.enqueue_many([jobs.other.job(f"other {n}") for n in range(400)])
    queues = ["--queue", f"{bench.queue}=3", "--queue", f"{bench.queue}-other=1"]
    worker = bench.worker("--burst", "--concurrency", "8", "--prefetch", "0", *queues)
    assert worker.wait() == 0
    records = bench.records()
    assert len(records) == 800
    # While both queues have jobs, three of four are of the first one.
    part = sum(record.startswith("note") for record in records[:400])
    assert 270 <= part <= 330


def test_idle_queue_answers_while_other_is_busy(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker("--concurrency", "2").wait_until_ready()
    long = jobs.sleep.enqueue(300)
    bench.wait_for_record("sleep begins")
    assert jobs.other.enqueue("quick").result(timeout=SOON) is None
    assert jobs.note.enqueue("note").result(timeout=SOON) == "note"
    long.cancel()
    assert worker.stop() == 0


def test_queue_that_assigns_gives_runs_to_session(bench: Bench) -> None:
    bench.set_policy(dispatch="assign")
    jobs = bench.app()
    worker = bench.worker("--concurrency", "2", "--queue", bench.queue)
    handles = [jobs.note.enqueue(f"a{n}") for n in range(5)]
    assert [handle.result(timeout=SOON) for handle in handles] == [f"a{n}" for n in range(5)]
    assert worker.stop() == 0


def test_operator_freezes_stops_task_and_shuts_down(bench: Bench) -> None:
    jobs = bench.app()
    worker = bench.worker("--queue", bench.queue)
    handle = jobs.sleep.options(retries=0).enqueue(300)
    bench.wait_for_record("sleep begins")
    session = bench.server.call("GET", _workers_path(bench))["workers"][0]["sessionId"]

    def command(**body: str) -> None:
        bench.server.call("POST", f"/api/tenure/v1/sessions/{session}/commands", body)

    command(command="freeze")
    wait_for(
        lambda: bench.server.call("GET", _workers_path(bench))["workers"][0]["frozen"], "the freeze"
    )
    frozen = jobs.note.enqueue("frozen")
    command(command="stop-task", taskId=handle.id)
    with pytest.raises(JobFailed, match="worker-shutdown"):
        handle.result(timeout=SOON)
    assert frozen.status() == "pending"
    command(command="unfreeze")
    assert frozen.result(timeout=SOON) == "frozen"
    command(command="shutdown")
    assert worker.wait() == 0


def _workers_path(bench: Bench) -> str:
    return f"/api/tenure/v1/queues/{bench.queue.replace('/', '%2F')}/workers"


def test_refused_worker_exits_with_one_line(bench: Bench) -> None:
    worker = bench.worker(TENURE_ACCESS_TOKEN="wrong")
    assert worker.wait() == 1
    assert "tenure: the server refuses this worker: 401" in worker.text
    assert "Traceback" not in worker.text
