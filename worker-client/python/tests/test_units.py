"""Rules without a server: outcomes, reports, leases, slots, settings."""

from __future__ import annotations

import asyncio
import datetime
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure import (
    Cancelled,
    ConfigurationError,
    DuplicateJob,
    Fail,
    JobFailed,
    Release,
    RequestRefused,
    Retry,
    Tenure,
    testing,
)
from tenure.app import _batches
from tenure.hawk import Credentials, Target, authorization
from tenure.lease import Lease, date_of
from tenure.outbox import Outbox
from tenure.outcome import FAILURE_MAX, Ended, acall, call, failure_of, malformed, report_of
from tenure.prefetch import Prefetch
from tenure.session import grace_of, wait_of
from tenure.settings import queue_id, read_settings, worker_name
from tenure.slots import Ask, Slots
from tenure.task import Task
from tenure.testserver import _inherited
from tenure.worker import Worker, default_name, name_of

UTC = datetime.timezone.utc


def _handled(function: Any, **arguments: Any) -> Ended:
    return call(function, testing.job(), arguments)


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "left", "report"),
    [
        (
            ValueError("no"),
            2,
            {"outcome": "exception", "reason": "intermittent-task", "retryAfter": 4},
        ),
        (ValueError("no"), 0, {"outcome": "failed", "retry": False}),
        (
            Retry(after=1.2),
            2,
            {"outcome": "exception", "reason": "intermittent-task", "retryAfter": 2},
        ),
        (Retry("x"), 2, {"outcome": "exception", "reason": "intermittent-task", "retryAfter": 4}),
        (Retry("x"), 0, {"outcome": "failed", "retry": False}),
        (Fail("x"), 5, {"outcome": "failed", "retry": False}),
        (Release(), 0, {"outcome": "released"}),
        (Release(after=60), 0, {"outcome": "released", "delay": 60}),
        (
            SystemExit(3),
            1,
            {"outcome": "exception", "reason": "intermittent-task", "retryAfter": 4},
        ),
    ],
)
def test_exception_decides_report(error: BaseException, left: int, report: dict[str, Any]) -> None:
    ended = _handled(_raise, error=error)
    made = report_of(ended, _task(), 2, left, jitter=0)
    failure = made.pop("failure", None)
    assert made == report
    assert (failure is None) == isinstance(error, Release)
    if failure is not None:
        assert failure["kind"] == type(error).__name__


def test_own_backoff_of_job_is_left_to_server() -> None:
    retried = {"outcome": "exception", "reason": "intermittent-task"}
    for error, after in ((ValueError("no"), {}), (Retry(after=7), {"retryAfter": 7})):
        report = report_of(_handled(_raise, error=error), None, 2, 2, jitter=0)
        del report["failure"]
        assert report == {**retried, **after}


def test_malformed_payload_has_failure_of_other_libraries() -> None:
    report = report_of(malformed("the argument 'to' is missing"), None, 1, 5, 0)
    message = "malformed payload: the argument 'to' is missing"
    failure = {"kind": "malformed-payload", "message": message}
    assert report == {"outcome": "exception", "reason": "malformed-payload", "failure": failure}
    long = malformed("ä\0" * 3_000).failure
    assert long is not None
    assert len(long["message"].encode()) <= FAILURE_MAX
    assert "\0" not in long["message"]
    shown = str(JobFailed("id", "exception", "malformed-payload", failure))
    assert shown == f"job id ended as exception (malformed-payload): {message}"


def test_result_decides_report() -> None:
    ended = _handled(lambda: {"a": Path("red")})
    assert report_of(ended, None, 1, 5, 0) == {"outcome": "completed", "result": {"a": "red"}}
    assert report_of(_handled(lambda: None), None, 1, 5, 0) == {"outcome": "completed"}
    wrong = [float("nan"), "x" * 65_535, object(), "\ud800", _circle(), _Sealed("a")]
    for result in wrong:
        made = report_of(_handled(lambda result=result: result), None, 1, 5, 0)
        assert (made["outcome"], made["reason"]) == ("exception", "internal-error")
        assert made["failure"]["kind"] == "ResultError"
    fits = report_of(_handled(lambda: "x" * 65_534), None, 1, 5, 0)
    assert fits["outcome"] == "completed"


class _Sealed(Mapping[str, Any]):
    """A type of a user whose conversion raises what it likes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, key: str) -> Any:
        raise LookupError(key)

    def __iter__(self) -> Iterator[str]:
        yield self._name

    def __len__(self) -> int:
        return 1


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def test_cancelled_handler_is_no_failure() -> None:
    job = testing.job()
    job.cancel()

    async def handler() -> None:
        raise asyncio.CancelledError

    assert asyncio.run(acall(handler, job, {})) == Ended("cancelled")
    assert call(_raise, job, {"error": Cancelled()}) == Ended("cancelled")
    # Its own cancellation is one.
    assert asyncio.run(acall(handler, testing.job(), {})).how == "error"


@pytest.mark.parametrize("text", ["x" * 10_000, "ä" * 3_000, "\ud800" * 2_000, "a\0b", ""])
def test_failure_fits_limits(text: str) -> None:
    # Python shows frames of one line that repeat only once.
    def deep(depth: int) -> None:
        deeper(depth - 1)

    def deeper(depth: int) -> None:
        if depth < 0:
            raise ValueError(text)
        deep(depth)

    ended = _handled(deep, depth=100)
    assert ended.failure is not None
    message = ended.failure["message"]
    assert 1 <= len(message.encode()) <= FAILURE_MAX
    assert "\0" not in message
    if not text:
        # The traceback loses its begin.
        assert message.startswith("ValueError\n\n…\n")
        assert message.endswith("ValueError")


def test_cause_of_retry_is_its_failure() -> None:
    def handler() -> None:
        try:
            int("x")
        except ValueError as error:
            raise Retry(after=5) from error

    failure = _handled(handler).failure
    assert failure is not None
    assert failure["kind"] == "ValueError"
    assert failure_of(Fail("no"), "no") == {"kind": "Fail", "message": "no"}


def _refused(*codes: str, **body: Any) -> list[dict[str, Any]]:
    """Return the reports of a run, each but the last refused with the next of these codes."""
    run: Any = SimpleNamespace(task_id="a", run_id=0, hold="ours")
    outbox, sent = Outbox(), []
    outbox.put(run, body)
    for code in codes:
        [report] = outbox.take(with_claim=False)
        sent.append(report.body)
        outbox.answered(report, {"error": {"code": code, "message": "no"}})
    return sent + [report.body for report in outbox.take(with_claim=False)]


def test_refused_failure_is_left_out() -> None:
    failure = {"kind": "ValueError", "message": "no"}
    failed = {"outcome": "failed", "retry": False, "failure": failure}
    assert _refused("InputValidationError", **failed)[1:] == [{"outcome": "failed"}]
    retried = {"outcome": "exception", "reason": "intermittent-task", "retryAfter": 4}
    assert _refused("InputError", **retried, failure=failure)[1:] == [retried]


def test_refused_result_ends_as_internal_error() -> None:
    internal = {"outcome": "exception", "reason": "internal-error"}
    first, second, third = _refused("InputError", "InputError", outcome="completed", result=1)
    assert first == {"outcome": "completed", "result": 1}
    assert second == {**internal, "failure": {"kind": "ResultError", "message": "no"}}
    assert third == internal
    assert len(_refused("InputError", **internal)) == 1


def test_refused_release_ends_as_shutdown() -> None:
    assert _refused("RequestConflict", outcome="released")[1:] == [
        {"outcome": "exception", "reason": "worker-shutdown"}
    ]
    assert len(_refused("RequestConflict", outcome="completed")) == 1


def test_errors_can_be_pickled() -> None:
    refused = pickle.loads(pickle.dumps(RequestRefused(403, "InsufficientScopes", "no", 1.5)))
    assert (refused.status, refused.message, refused.retry_after) == (403, "no", 1.5)
    duplicate = pickle.loads(pickle.dumps(DuplicateJob("it is taken", "id", "7")))
    assert (str(duplicate), duplicate.status) == ("409 DuplicateTask: it is taken", 409)
    assert (duplicate.holder, duplicate.entry, duplicate.is_transient) == ("id", "7", False)
    failed = JobFailed("id", "failed", "failed", {"kind": "K", "message": "m"})
    assert str(pickle.loads(pickle.dumps(failed))) == str(failed)


def test_signature_equals_example_of_the_protocol() -> None:
    # The example of Hawk's own documentation.
    credentials = Credentials("dh37fgj492je", "werxhqb98rpaxn39848xrunpaw3489ruxnpa98w4rxn")
    target = Target("POST", "/resource/1?b=1&a=2", "example.com", 8000)
    header = authorization(
        credentials,
        target,
        timestamp=1353832234,
        nonce="j4h3g2",
        content_type="text/plain",
        body=b"Thank you for flying Hawk",
    )
    assert 'hash="Yi9LfIIFRtBEPt74PVmbTF/xVAwPn7ub15ePICfgnuY="' in header
    # Without `ext`, unlike the example.
    assert 'mac="' in header
    assert "werxhq" not in repr(credentials)


def _lease(seconds: float) -> Lease:
    begin = date_of("2026-01-01T00:00:00.000Z")
    return Lease.of_claim(begin + datetime.timedelta(seconds=seconds), begin, 1_000.0)


@pytest.mark.parametrize(
    ("seconds", "renew", "stop"), [(1200, 900, 1170), (24, 13, 16), (12, 6.5, 8), (4, 2.167, 2.667)]
)
def test_renewal_leaves_time_for_repeats(seconds: float, renew: float, stop: float) -> None:
    lease = _lease(seconds)
    assert lease.renew_at - 1_000 == pytest.approx(renew, abs=0.01)
    assert lease.stop_at - 1_000 == pytest.approx(stop, abs=0.01)


def test_renewal_moves_end_like_server() -> None:
    lease = _lease(1200)
    later = lease.taken_until + datetime.timedelta(seconds=900)
    assert lease.renewed(later, 1_900.0).ends == 3_100
    assert lease.renewed(lease.taken_until, 1_900.0).ends == lease.ends
    # The server's clock jumped by an hour.
    jumped = later + datetime.timedelta(hours=1)
    assert lease.renewed(jumped, 1_900.0).ends == 3_100


def test_session_waits_leave_time_for_another_request() -> None:
    for ttl in (15, 20, 60, 120, 3600):
        wait, answer = wait_of(ttl), ttl / 6
        assert 2 * wait + 2 * answer <= ttl - grace_of(ttl)
        assert 0 < wait <= ttl / 3


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _slots(capacity: int, **weights: int) -> tuple[Slots, _Clock]:
    clock = _Clock()
    slots = Slots(capacity, weights, clock)
    for name in weights:
        slots.set_able(name, True)
    return slots, clock


def test_single_queue_asks_for_free_slots_and_waits_when_empty() -> None:
    slots, _ = _slots(16, a=1)
    ask = slots.ask("a")
    assert ask == Ask(16, 0)
    slots.begin("a", ask)
    assert slots.ask("a") is None
    slots.end("a", ask, 3)
    assert slots.ask("a") == Ask(13, 20)
    assert slots.ask("a", prefetch=200) == Ask(100, 20)
    slots.release()
    assert slots.ask("a") == Ask(14, 20)


def test_slots_are_shared_by_weight() -> None:
    slots, _ = _slots(8, a=3, b=1)
    claimed: Counter[str] = Counter()
    for _ in range(400):
        for name in ("b", "a"):
            ask = slots.ask(name)
            if ask is not None:
                slots.begin(name, ask)
                slots.end(name, ask, ask.count)
                claimed[name] += ask.count
        slots.held = 0 if slots.held >= 8 else slots.held
    assert claimed["a"] / claimed["b"] == pytest.approx(3, rel=0.05)


def test_queue_that_cannot_be_asked_holds_up_no_other() -> None:
    slots, _ = _slots(2, a=1, b=1)
    slots.set_able("b", False)
    for _ in range(10):
        ask = slots.ask("a")
        assert ask is not None
        slots.begin("a", ask)
        slots.end("a", ask, ask.count)
        slots.held = 0


def test_empty_queue_waits_or_is_probed() -> None:
    slots, clock = _slots(2, a=1, b=1)
    for name in ("a", "b"):
        ask = slots.ask(name)
        assert ask is not None
        slots.begin(name, ask)
        slots.end(name, ask, 0)
    # Both are empty, and each waits with a slot.
    for name in ("a", "b"):
        ask = slots.ask(name)
        assert ask == Ask(1, 20)
        slots.begin(name, ask)
    slots.end("a", Ask(1, 20), 1)
    # One slot is taken, one waits for b.
    assert slots.ask("a") is None
    one, clock = _slots(1, a=1, b=1)
    one.end("b", Ask(0, 0), 0)
    one.begin("b", Ask(1, 0))
    one.end("b", Ask(1, 0), 0)
    assert one.ask("b") is None
    clock.now = 1.5
    assert one.ask("b") == Ask(1, 0)


def test_queue_that_waits_does_not_starve_the_other() -> None:
    slots, clock = _slots(2, a=1, b=1)
    slots.held = 1
    for name in ("a", "b"):
        slots.begin(name, Ask(1, 0))
        slots.end(name, Ask(1, 0), 0)
    asked: list[str] = []
    for _ in range(10):
        # The queue whose request has ended always looks first.
        for name in sorted("ab", key=lambda name: name != (asked or ["a"])[-1]):
            ask = slots.ask(name)
            if ask is not None:
                assert ask.wait <= 1
                slots.begin(name, ask)
                clock.now += 1.1
                slots.end(name, ask, 0)
                asked.append(name)
                break
    assert asked.count("a") == asked.count("b") == 5


def test_short_jobs_are_claimed_ahead() -> None:
    clock = _Clock()
    prefetch = Prefetch(4, clock, None)
    for _ in range(20):
        prefetch.ended(0.01)
    assert prefetch.count() == 0
    prefetch.allowed = True
    assert prefetch.count() == 40
    prefetch.given_back()
    assert prefetch.count() == 0
    clock.now = 31
    assert prefetch.count() == 40
    for _ in range(20):
        prefetch.ended(0.2)
    assert prefetch.count() == 0
    assert Prefetch(4, clock, 7).count() == 7


def test_batches_fit_into_requests() -> None:
    app = Tenure(url="http://localhost")

    @app.task(queue="test/test")
    def send(text: str) -> None: ...

    # A character of three bytes.
    sizes = [len(batch) for batch in _batches([send.job("€" * 1_000_000) for _ in range(5)])]
    assert sizes == [2, 2, 1]
    assert [len(batch) for batch in _batches([send.job("a")] * 2_001)] == [1000, 1000, 1]


def test_settings_come_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "CLIENT_ID", "ACCESS_TOKEN", "CERTIFICATE"):
        monkeypatch.delenv(f"TENURE_{name}", raising=False)
        monkeypatch.delenv(f"TASKCLUSTER_{name}", raising=False)
    with pytest.raises(ConfigurationError, match="set TENURE_URL"):
        read_settings()
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", "http://one:8080/")
    assert read_settings() == ("http://one:8080", None)
    monkeypatch.setenv("TENURE_URL", "https://two")
    monkeypatch.setenv("TENURE_CLIENT_ID", "me")
    with pytest.raises(ConfigurationError, match="no access token of client me"):
        read_settings()
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", "secret")
    assert read_settings() == ("https://two", Credentials("me", "secret"))
    assert read_settings("http://three").url == "http://three"
    monkeypatch.setenv("TASKCLUSTER_CERTIFICATE", "{}")
    assert read_settings().credentials == Credentials("me", "secret", "{}")
    assert read_settings(access_token="mine").credentials == Credentials("me", "mine")
    monkeypatch.setenv("TENURE_ACCESS_TOKEN", "new")
    assert read_settings().credentials == Credentials("me", "new")
    with pytest.raises(ConfigurationError, match="must be http"):
        read_settings("ftp://four")


def test_queue_names_are_checked() -> None:
    assert queue_id("mail") == "default/mail"
    assert queue_id("acme/send-mail") == "acme/send-mail"
    for wrong, suggestion in (("web/send_email", "web/send-email"), ("Mail", "default/mail")):
        with pytest.raises(ConfigurationError, match=f"Perhaps {suggestion}$"):
            queue_id(wrong)
    for wrong in ("", "a/b/c", "a/", "x/" + "y" * 39):
        with pytest.raises(ConfigurationError):
            queue_id(wrong)
    assert worker_name(default_name(), "name")
    with pytest.raises(ConfigurationError):
        worker_name("a b", "name")


def _task(**options: Any) -> Task[..., Any]:
    def handler() -> None: ...

    return Tenure().task(queue="test/test", **options)(handler)


def test_pauses_double_up_to_the_longest() -> None:
    task = _task(backoff=(2, 300))
    assert [task.pause_after(n, 0) for n in (1, 2, 3, 8, 9, 40)] == [2, 4, 8, 256, 300, 300]
    assert _task(backoff=(0, 0)).pause_after(5, 1) == 0


def test_jitter_lengthens_pause_up_to_the_longest() -> None:
    task = _task(backoff=(2, 300))
    assert [task.pause_after(n, 1) for n in (1, 2, 3, 4, 8, 9, 40)] == [2, 4, 9, 18, 282, 300, 300]
    assert _task(backoff=(1, 1)).pause_after(1, 1) == 1
    assert _task(backoff=(1, 300)).pause_after(1, 1) == 1
    assert _task(backoff=(86_400, 86_400)).pause_after(1, 1) == 86_400
    assert [_task(backoff=(1.2, 1.5)).pause_after(n, 1) for n in (1, 2)] == [2, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"retries": 50},
        {"retries": -1},
        {"backoff": (5, 2)},
        {"backoff": (0, 90_000)},
        {"timeout": 0.5},
        {"timeout": 500_000},
        {"name": ""},
        {"queue": "no queue"},
        {"cpu": True},
    ],
)
def test_wrong_options_of_task_are_refused(options: dict[str, Any]) -> None:
    def handler() -> None: ...

    with pytest.raises(ConfigurationError):
        Tenure().task(**{"queue": "test/test", **options})(handler)


def test_two_tasks_of_one_name_are_refused() -> None:
    app = Tenure()

    @app.task(queue="test/test", name="a")
    def one() -> None: ...

    with pytest.raises(ConfigurationError, match="two tasks 'a'"):
        app.task(queue="test/test", name="a")(lambda: None)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": 1, "not_before": datetime.datetime(2026, 1, 1, tzinfo=UTC)},
        {"not_before": datetime.datetime(2026, 1, 1)},
        {"deadline": datetime.datetime(2026, 1, 1)},
        {"deadline": 400 * 86_400},
        {"priority": "urgent"},
        {"key": ""},
        {"unique": ""},
        {"unique": "x" * 256},
        {"on_duplicate": "queue"},
        {"unique": "x", "on_duplicate": "wait"},
        {"retries": 50},
        {"backoff": (5, 2)},
        {"backoff": (3_601, 5_000)},
        {"backoff": (0, 90_000)},
    ],
)
def test_wrong_options_of_job_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        _task().options(**options)


def test_backoff_of_job_is_written_in_whole_seconds() -> None:
    minute = datetime.timedelta(minutes=1)
    job = _task().options(backoff=(1.5, minute)).job()
    definition = job.definition(lambda: datetime.datetime(2026, 1, 1, tzinfo=UTC))
    assert definition["options"] == {"retryDelay": {"first": 2, "factor": 2, "most": 60}}


def test_server_for_tests_ignores_settings_of_another() -> None:
    kept = {
        "PATH": "/usr/bin",
        "TENURE_PG_BIN": "/usr/lib/postgresql/18/bin",
        "TENURE_TEST_DATABASE_URL": "postgres:///test",
    }
    settings = dict.fromkeys(
        (
            "CREDENTIALS_DIRECTORY",
            "DATABASE_URL",
            "DATABASE_URL_FILE",
            "NOTIFY_SOCKET",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "TENURE_LISTEN",
            "TENURE_SECRET_KEY_FILE",
        ),
        "of another server",
    )
    assert _inherited({**kept, **settings}) == kept


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"concurrency": 1001},
        {"session_ttl": 14},
        {"session_ttl": 3601},
        {"prefetch": -1},
        {"processes": 0},
        {"name": "a b"},
        {"group": ""},
        {"queues": {"test/test": 0}},
        {"queues": {"Test": 1}},
    ],
)
def test_wrong_settings_of_worker_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Worker(_task().app, **settings)


def test_worker_without_tasks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no tasks"):
        Worker(Tenure())


@pytest.mark.parametrize(
    ("host", "process", "name"),
    [
        ("myhost", 12_345, "myhost-12345"),
        ("My_host-1", 1, "My_host-1-1"),
        ("linux-1.rack.example", 7, "linux-1-7"),
        ("büro 3", 7, "b-ro-3-7"),
        ("", 7, "worker-7"),
        ("日本", 7, "worker-7"),
        ("render-workers-of-acme-5d4f8c7b9d-x2x7z", 1, "der-workers-of-acme-5d4f8c7b9d-x2x7z-1"),
    ],
)
def test_default_name_equals_that_of_tenure_worker(host: str, process: int, name: str) -> None:
    assert name_of(host, process) == name
