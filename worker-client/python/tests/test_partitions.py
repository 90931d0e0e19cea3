"""Partition groups: the rules of a member, and the program of docs/partitions.md."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Bench, wait_for

from tenure import RequestRefused, Tenure
from tenure.partition import (
    SLOTS,
    Incr,
    Share,
    Shares,
    pause_after,
    phase_of,
    slot_of,
    slot_of_task,
)
from tenure.testing import Server

PAGE = Path(__file__).resolve().parents[3] / "docs" / "partitions.md"
SOON = 60.0


def _answer(**more: Any) -> dict[str, Any]:
    return {
        "state": "active",
        "index": 1,
        "replicas": 3,
        "epoch": 4,
        "number": 100,
        "interval": 10,
        "validUntil": "1970-01-01T00:17:00.000Z",
        "serverTime": "1970-01-01T00:16:41.000Z",
        **more,
    }


def _draining(epoch: int, replicas: int, **index: int) -> dict[str, Any]:
    return _answer(state="draining", next={"replicas": replicas, "epoch": epoch, **index})


def test_slots_match_golden_vectors() -> None:
    for key, slot in [
        ("", 21),
        ("1", 139),
        ("2", 149),
        ("42", 121),
        ("customer-7", 17),
        ("ada@example.com", 2),
        ("Zoë", 7),
        ("東京", 92),
        ("a" * 300, 32),
    ]:
        assert slot_of(key) == slot, key
    for task, slot in [
        ("9HrBC1jMQ3KlZw4CssPUeQ", 121),
        ("fN1SbArXTPSVFNUvaOlinQ", 157),
        ("AAAAAAAAQACAAAAAAAAAAA", 0),
        ("AAAAAAAAQACAAAAA_____w", 15),
    ]:
        assert slot_of_task(task) == slot, task


def test_work_begins_only_in_share_before_its_end() -> None:
    shares = Shares()
    assert shares.hold(1, 0) is None
    shares.take(_answer(), 0, 0)
    begun = [slot for slot in range(SLOTS) if shares.hold(slot, 0) is not None]
    assert begun == list(range(1, SLOTS, 3))
    # Valid for 19 s from the call, minus half an interval.
    assert shares.hold(1, 13.9) is not None
    assert shares.hold(1, 14) is None
    assert shares.share(13.9) == Share(1, 3, 4)
    assert shares.share(14) is None


def test_next_map_is_acknowledged_once_lost_work_has_ended() -> None:
    shares = Shares()
    shares.take(_answer(), 0, 0)
    # Slot 4 is also in the next share, slot 1 is not.
    kept, lost = shares.hold(4, 0), shares.hold(1, 0)
    assert kept is not None
    assert lost is not None
    assert shares.acked is None
    shares.take(_draining(5, 2, index=0), 0, 0)
    assert shares.acked is None
    assert shares.hold(1, 0) is None
    assert shares.hold(4, 0) is not None
    assert not shares.is_lost(1, lost, 0)
    assert shares.release(1)
    assert not shares.release(4)
    assert shares.acked == 5
    shares.take(_answer(index=0, replicas=2, epoch=5), 0, 0)
    assert shares.acked is None
    assert shares.is_lost(1, lost, 0)
    assert not shares.is_lost(4, kept, 0)


def test_member_without_next_share_acknowledges_when_idle() -> None:
    shares = Shares()
    shares.take(_answer(), 0, 0)
    assert shares.hold(1, 0) is not None
    shares.take(_draining(5, 2), 0, 0)
    assert shares.acked is None
    assert shares.hold(4, 0) is None
    assert shares.release(1)
    assert shares.acked == 5


def test_work_is_lost_for_good_after_a_gap() -> None:
    shares = Shares()
    shares.take(_answer(), 0, 0)
    held = shares.hold(1, 0)
    assert held is not None
    assert shares.is_lost(1, held, 20)
    shares.take(_answer(), 20, 20)
    assert shares.is_lost(1, held, 20)
    again = shares.hold(1, 20)
    assert again is not None
    assert not shares.is_lost(1, again, 20)
    shares.take({"state": "waiting", "epoch": 4, "number": 102, "interval": 10}, 20, 20)
    assert shares.is_lost(1, again, 20)
    assert shares.share(20) is None


def test_older_request_for_work_delays_acknowledgement() -> None:
    shares = Shares()
    assert shares.begin_claim(0) is None
    shares.take(_answer(), 0, 0)
    old = shares.begin_claim(0)
    assert old is not None
    assert old[0] == Share(1, 3, 4)
    shares.take(_draining(5, 2, index=0), 0, 0)
    new = shares.begin_claim(0)
    assert new is not None
    assert shares.acked is None
    assert shares.proposal == 5
    # The request returns work on a lost slot.
    shares.hold_claimed(1)
    assert not shares.end_claim(old[1])
    assert shares.release(1)
    assert shares.acked == 5
    assert not shares.leave()
    assert not shares.end_claim(new[1])
    assert shares.leave()
    assert shares.begin_claim(0) is None


def test_leaving_member_begins_nothing() -> None:
    shares = Shares()
    shares.take(_answer(), 0, 0)
    assert shares.hold(1, 0) is not None
    assert not shares.leave()
    assert shares.hold(1, 0) is None
    shares.release(1)
    assert shares.leave()


def test_member_calls_early_in_next_interval() -> None:
    def pause(time: str, state: str = "active", waited: int = 0, **more: Any) -> float:
        answer = _answer(serverTime=f"1970-01-01T{time}.000Z", state=state, **more)
        return pause_after(answer, waited, 0.1)

    assert pause("00:16:47") == pytest.approx(4)
    assert pause("00:16:42", "waiting") == 2.5
    assert pause("00:16:42", "waiting", 12) == pytest.approx(9)
    coming = {"index": 0, "replicas": 2, "epoch": 3}
    assert pause("00:16:42", "draining", replicas=80, next=coming) == pytest.approx(1.6)
    assert (pause("01:00:00"), pause("00:00:00")) == (1.25, 12.5)
    assert all(0.05 <= phase_of(name) < 0.15 for name in ("a", "b", "sender-1"))


def _changes(*, has_skew: bool) -> int:
    """Count how often an index changes in 100 intervals.

    Members with equal phases call in an order that differs from interval to interval.
    """
    noise = random.Random(7)
    members = [Incr(10, skew=n * 0.9 if has_skew else 0) for n in range(5)]
    counters: dict[int, int] = {}
    last: dict[int, int] = {}
    changes = 0
    for interval in range(100, 200):
        phases = [(n * 0.9 if has_skew else 0.0, noise.random(), n) for n in range(5)]
        for phase, _, n in sorted(phases):
            number = members[n].number(interval * 10 + phase)
            counters[number] = counters.get(number, 0) + 1
            share = members[n].counted(counters[number], counters.get(number - 1))
            if share is not None:
                assert share[0] < share[1] == 5
                changes += last.get(n, share[0]) != share[0]
                last[n] = share[0]
    return changes


def test_indices_by_counter_churn_without_skew_only() -> None:
    assert _changes(has_skew=True) == 0
    assert _changes(has_skew=False) > 100


def test_next_increment_is_in_next_interval() -> None:
    incr = Incr(10, skew=2)
    assert [incr.pause(now) for now in (1_000, 1_001, 1_009)] == [12, 11, 3]
    with pytest.raises(ValueError, match="less than the interval"):
        Incr(10, skew=10)


def test_missing_group_is_refused(live_server: Server) -> None:
    app = Tenure()
    live_server.connect(app)
    with pytest.raises(RequestRefused) as refused:
        app.partition("nowhere").join()
    assert refused.value.status == 404


def test_member_that_leaves_hands_over_at_once(live_server: Server) -> None:
    app = Tenure()
    live_server.connect(app)
    group = app.partition("hand-over")
    # Shares are free by leaving only: the test does not wait for hours.
    assert group.set(interval=1)["state"] == "waiting"
    with group.join("first") as first:
        share = first.wait(SOON)
        assert share is not None
        assert (share.index, share.replicas) == (0, 1)
        assert group.show()["members"][0]["memberId"] == "first"
        with first.hold("a") as hold:
            assert hold
            assert not hold.is_lost
    assert group.show()["members"] == []
    assert not first.hold("a")
    group.delete()


def test_interrupt_does_not_wait_for_work_that_nobody_ends(live_server: Server) -> None:
    app = Tenure()
    live_server.connect(app)
    group = app.partition("interrupted")
    group.set(interval=1)

    def interrupted() -> None:
        with group.join("first") as first:
            assert first.wait(SOON) is not None
            # The interrupt comes before the `with` of this work.
            begun = first.hold("a")
            assert begun
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with group.join("second") as second:
        assert second.wait(SOON) is not None
    group.delete()


@pytest.fixture
def senders(live_server: Server, tmp_path: Path) -> Iterator[Callable[[], list[Sender]]]:
    """Starts five of the program in the document."""
    found = re.search(
        r"^<!-- tour: senders.py -->\n```\w+\n(.*?)^```$", PAGE.read_text(), re.M | re.S
    )
    assert found is not None
    (tmp_path / "senders.py").write_text(found[1])
    running: list[Sender] = []

    def start() -> list[Sender]:
        for n in range(5):
            running.append(Sender(tmp_path, f"{n}.txt", live_server.environ))
        return running

    yield start
    for sender in running:
        sender.kill()


class Sender:
    """A running program, and the customers that it sends to."""

    def __init__(self, folder: Path, name: str, environ: dict[str, str]) -> None:
        self._path = folder / name
        with self._path.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "senders.py"],
                cwd=folder,
                env={**os.environ, **environ},
                stdout=output,
                stderr=subprocess.STDOUT,
                # A shell that runs the tests in the background makes them ignore it.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(SOON)


def test_five_senders_of_document(senders: Callable[[], list[Sender]], live_server: Server) -> None:
    app = Tenure()
    live_server.connect(app)
    running = senders()
    group = app.partition("mail")
    _until_shared(group.show, 5)
    _check_customers(running)
    running.pop().kill()
    _until_shared(group.show, 4)
    _check_customers(running)
    running.pop().interrupt()
    _until_shared(group.show, 3)
    _check_customers(running)


def _until_shared(show: Callable[[], dict[str, Any]], replicas: int) -> None:
    ends = time.monotonic() + SOON
    while time.monotonic() < ends:
        try:
            shown = show()
            if (shown["state"], shown["replicas"]) == ("active", replicas):
                return
        except (RequestRefused, httpx.HTTPError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"no {replicas} shares: {show()}")


def _check_customers(running: list[Sender]) -> None:
    """Check that from now on each customer has one sender, and that all have one."""
    before = [len(sender.lines()) for sender in running]
    ends = time.monotonic() + SOON
    while True:
        sent = [set(s.lines()[n:]) for s, n in zip(running, before, strict=True)]
        everybody = set[str]().union(*sent)
        assert sum(len(of_one) for of_one in sent) == len(everybody), "a customer has two senders"
        if len(everybody) == 40:
            return
        assert time.monotonic() < ends, f"{len(everybody)} customers have a sender"
        time.sleep(0.1)


def _divided(bench: Bench) -> tuple[Any, Any]:
    """Return the module of the jobs, and the group that divides their queue."""
    jobs = bench.app()
    group = jobs.app.partition("workers-" + bench.queue[-12:])
    group.set(interval=3)
    bench.set_policy(partition=group.name)
    return jobs, group


def _member(bench: Bench, group: Any, name: str) -> Any:
    return bench.worker("--partition", group.name, "--queue", bench.queue, "--worker-id", name)


def test_workers_run_jobs_of_own_shares(bench: Bench) -> None:
    jobs, group = _divided(bench)
    for name in ("w0", "w1"):
        _member(bench, group, name)
    _until_shared(group.show, 2)
    epoch = group.show()["epoch"]
    handles = jobs.app.enqueue_many([jobs.note.job(f"n{n}") for n in range(30)])
    for handle in handles:
        handle.result(timeout=SOON)
    # On a busy machine a member may call too late; then shares move.
    if group.show()["epoch"] == epoch:
        of_slots: dict[int, set[str]] = {}
        for handle in handles:
            worker = bench.status(handle.id)["runs"][-1]["workerId"]
            of_slots.setdefault(slot_of_task(handle.id) % 2, set()).add(worker)
        assert sorted(map(sorted, of_slots.values())) == [["w0"], ["w1"]]


def test_share_moves_after_its_jobs_have_ended(bench: Bench) -> None:
    jobs, group = _divided(bench)
    first = _member(bench, group, "first")
    _until_shared(group.show, 1)
    handles = [jobs.sleep.enqueue(300, f"j{n}") for n in range(14)]
    for n in range(14):
        bench.wait_for_record(f"j{n} begins")
    _member(bench, group, "second")
    wait_for(lambda: group.show()["state"] == "draining", "a proposal")
    assert group.show()["replicas"] == 1
    for handle in handles:
        handle.cancel()
    _until_shared(group.show, 2)
    assert first.stop() == 0
    assert len(group.show()["members"]) == 1
    _until_shared(group.show, 1)


def test_worker_without_group_ends(bench: Bench) -> None:
    worker = bench.worker("--partition", "nowhere", "--queue", bench.queue)
    assert worker.wait() == 1
    assert "partition group nowhere: 404 ResourceNotFound" in worker.text
