"""Reports on their way to the server. Those that arrive during a request share the next one."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from .api import backoff, to_json
from .run import Run

log = logging.getLogger("tenure")

REPORTS_MAX = 100
"""Reports of one request, the limit of the API."""
# Of results in one request; more than the limit of a single one.
_BYTES_MAX = 1 << 20
_LONGEST_PAUSE = 2.0
# Answers of the server to a single report after which a repeat may succeed.
_TRANSIENT = ("ServiceUnavailable", "InternalServerError")
_WRONG = ("InputError", "InputValidationError", "InputTooLarge", "MalformedPayload")


@dataclass
class Report:
    """The end of a run: repeated until the server has answered, or the run is lost."""

    run: Run
    body: dict[str, Any]
    failures: int = 0
    not_before: float = 0.0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(to_json(self.body)) if len(self.body) > 1 else 0

    @property
    def frees_run(self) -> bool:
        """True if the next run may be claimed at once: such a report comes with no claim."""
        body = self.body
        released = body["outcome"] == "released" and not body.get("delay")
        return released or body.get("reason") == "worker-shutdown"

    def wire(self) -> dict[str, Any]:
        """Return the report for the server."""
        return {"taskId": self.run.task_id, "runId": self.run.run_id, **self.body}


class Outbox:
    """The reports of one queue."""

    def __init__(self) -> None:
        self._reports: collections.deque[Report] = collections.deque()
        self._in_flight = 0
        self.arrived = asyncio.Event()

    def put(self, run: Run, body: dict[str, Any]) -> None:
        """Report the end of a run."""
        self._reports.append(Report(run, body))
        self.arrived.set()

    @property
    def is_empty(self) -> bool:
        """True if every report was answered."""
        return not self._reports and not self._in_flight

    def has_due(self, with_claim: bool) -> bool:
        """Return True if a request should be sent now."""
        now = time.monotonic()
        return any(
            report.not_before <= now and not (with_claim and report.frees_run)
            for report in self._reports
        )

    def take(self, with_claim: bool) -> list[Report]:
        """Take the reports of one request, which claims jobs too or not."""
        now, size = time.monotonic(), 0
        taken: list[Report] = []
        left: collections.deque[Report] = collections.deque()
        while self._reports:
            report = self._reports.popleft()
            if report.run.hold == "gone":
                log.warning("%s is lost, and its outcome is not reported", report.run)
                continue
            fits = len(taken) < REPORTS_MAX and (not taken or size + report.size <= _BYTES_MAX)
            waits = report.not_before > now or (with_claim and report.frees_run)
            if waits or not fits:
                left.append(report)
            else:
                taken.append(report)
                size += report.size
        self._reports = left
        if not left:
            self.arrived.clear()
        self._in_flight += len(taken)
        return taken

    def next_due(self) -> float | None:
        """Return the seconds until a report is due, or None without reports."""
        if not self._reports:
            return None
        return max(0.0, min(r.not_before for r in self._reports) - time.monotonic())

    def answered(self, report: Report, answer: dict[str, Any]) -> None:
        """Handle the answer of the server to one report."""
        error = answer.get("error")
        if error is None:
            self._in_flight -= 1
            return
        code, message = str(error.get("code", "")), str(error.get("message", ""))
        body = report.body
        if code in _TRANSIENT:
            self.unanswered([report])
        elif code == "RequestConflict" and body["outcome"] == "released":
            log.info("%s cannot be released any more: %s", report.run, message)
            self._replace(report, {"outcome": "exception", "reason": "worker-shutdown"})
        elif code in _WRONG and "failure" in body:
            # Servers of earlier releases know no failures.
            log.warning("a failure is refused; %s is reported without: %s", report.run, message)
            known = {name: body[name] for name in body if name not in ("failure", "retry")}
            self._replace(report, known)
        elif code in _WRONG and body.get("reason") != "internal-error":
            log.error("the report of %s is wrong: %s", report.run, message)
            failure = {"kind": "ResultError", "message": message[:1000] or code}
            changed = {"outcome": "exception", "reason": "internal-error", "failure": failure}
            self._replace(report, changed)
        else:
            self._in_flight -= 1
            log.warning("the report of %s was refused and changed nothing: %s", report.run, message)

    def _replace(self, report: Report, body: dict[str, Any]) -> None:
        self._in_flight -= 1
        self.put(report.run, body)

    def unanswered(self, reports: list[Report]) -> None:
        """Keep reports without an answer, to repeat them after a pause."""
        self._in_flight -= len(reports)
        now = time.monotonic()
        for report in reversed(reports):
            report.failures += 1
            report.not_before = now + min(_LONGEST_PAUSE, backoff(report.failures))
            self._reports.appendleft(report)
        if reports:
            self.arrived.set()
