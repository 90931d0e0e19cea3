"""The worker: claims jobs of an application's queues, runs their handlers, and reports them."""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .client import AsyncClient
from .errors import ConfigurationError, NameTaken, TenureError, WorkerRefused
from .executors import Coroutines, Executor, Threads
from .feed import Feed
from .job import Cancellation
from .link import Link
from .outcome import Ended, malformed, report_of
from .prefetch import GIVE_BACK_AFTER, Prefetch
from .processes import Processes
from .run import Run
from .session import Session
from .settings import NAME_MAX, queue_id, worker_name
from .shares import WorkerShare
from .slots import Slots
from .task import RunsIn

if TYPE_CHECKING:
    from .app import Tenure

log = logging.getLogger("tenure")

CONCURRENCY = 16
SESSION_TTL = 120
"""Seconds after which the jobs of a dead worker go to others."""
HANDLER_GRACE = 30.0
"""Seconds that handlers have to finish when the worker is stopped."""
_CONCURRENCY_MAX = 1_000
_LOOK_EVERY = 0.25
# Before the end of the grace, so that handlers can tidy up.
_CANCEL_BEFORE = 5.0
_LAST_REPORTS = 10.0
# Ends of runs whose claims have not arrived yet; the oldest are dropped.
_ENDED_EARLY_MAX = 1_000
_CUT_SHORT = 1
# Most handlers stop in this time after their run is lost; the server is not told of them.
_STOPS_WITHIN = 0.25


class Worker:
    """Runs jobs of an application until it is stopped."""

    def __init__(
        self,
        app: Tenure,
        *,
        queues: Mapping[str, int] | None = None,
        concurrency: int = CONCURRENCY,
        processes: int | None = None,
        group: str = "default",
        name: str | None = None,
        session_ttl: int | None = SESSION_TTL,
        grace: float = HANDLER_GRACE,
        prefetch: int | None = None,
        burst: bool = False,
        keep_late: bool = False,
        partition: str | None = None,
    ) -> None:
        """Prepare a worker. It does nothing until ``run`` or ``serve``.

        Args:
            app: The application with the tasks.
            queues: Weights by queue, from 1. Free slots are shared by weight. Default: the queues
                of all tasks, equally.
            concurrency: Jobs at a time, 1 to 1,000.
            processes: Processes for tasks with ``cpu=True``. Default: the number of processors.
            group: Group of the worker, for people and scopes.
            name: Name of the worker, unique within its group. Default: host and process id.
            session_ttl: Seconds, 15 to 3,600, after which the jobs of a dead or disconnected worker
                go to others. None works without a session: then they go to others when their
                leases end, and a cancellation is noticed at the next renewal.
            grace: Seconds that handlers have to finish when the worker is stopped.
            prefetch: Jobs to claim beyond ``concurrency``. Default: none, unless jobs take less
                than 50 ms.
            burst: True stops the worker when its queues are empty and its jobs have ended.
            keep_late: True lets a handler go on when the queue's ``completeTime`` has ended its
                run, if the queue's ``lateResult`` is ``first-wins``. A result then counts unless
                another run was first; other ends are not reported. Needs a session.
            partition: Partition group that the policies of all queues of this worker name. The
                worker joins it, and runs only jobs of its share.

        Raises:
            ConfigurationError: A value is out of range, there is no task, or a handler's parameters
                have no form in JSON.
        """
        if not 1 <= concurrency <= _CONCURRENCY_MAX:
            raise ConfigurationError(f"concurrency must be from 1 to {_CONCURRENCY_MAX}")
        if session_ttl is not None and not 15 <= session_ttl <= 3_600:
            raise ConfigurationError("the time to live of a session must be from 15 to 3600 s")
        if keep_late and session_ttl is None:
            raise ConfigurationError("keep_late needs a session, which tells of ended runs")
        if prefetch is not None and not 0 <= prefetch <= _CONCURRENCY_MAX:
            raise ConfigurationError(f"prefetch must be from 0 to {_CONCURRENCY_MAX}")
        if processes is not None and processes < 1:
            raise ConfigurationError("processes must be 1 or more")
        if not app.tasks:
            raise ConfigurationError("the application has no tasks: import the modules that have")
        for task in app.tasks.values():
            task.signature.compile()
        weights = queues or {task.queue: 1 for task in app.tasks.values()}
        self._weights = {queue_id(queue): weight for queue, weight in weights.items()}
        if any(weight < 1 for weight in self._weights.values()):
            raise ConfigurationError("the weight of a queue must be 1 or more")
        self.app = app
        self.burst = burst
        self.group = worker_name(group, "group of the worker")
        self.name = worker_name(name or default_name(), "name of the worker")
        self._concurrency = concurrency
        self._process_count = processes or os.cpu_count() or 1
        self._ttl = session_ttl
        self._grace = grace
        self._fixed_prefetch = prefetch
        self._keep_late = keep_late
        self._partition = partition
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._stop_early = False
        self._done = 0
        # A burst does not end before: delayed jobs become ready a moment after their time.
        self._linger_until = 0.0

    @property
    def done(self) -> int:
        """How many handlers have ended."""
        return self._done

    def run(self) -> None:
        """Work until SIGTERM, SIGINT, or a command of an operator. For the main thread.

        A second signal ends the process at once, with the code 1.

        Raises:
            WorkerRefused: The server refused the worker: a wrong token, missing scopes.
            NameTaken: Another process has the name of this worker.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()

        def obey() -> None:
            if self._is_stopping:
                log.warning("second signal: the process ends, and its jobs go to others later")
                os._exit(_CUT_SHORT)
            log.info("stopping: handlers have %.0f s to finish", self._grace)
            self._begin_stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, obey)
        await self.serve()

    def stop(self) -> None:
        """Stop the worker. Any thread may call it, also before the worker serves."""
        with self._lock:
            self._stop_early = True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._begin_stop)

    async def serve(self) -> None:
        """Do the same as ``run`` in a running event loop, without signals.

        Raises:
            WorkerRefused: The server refused the worker: a wrong token, missing scopes.
            NameTaken: Another process has the name of this worker.
        """
        self._start()
        client = AsyncClient(self.app.settings)
        self._link = Link(client)
        if self._partition is not None:
            share = WorkerShare(self._link, self._partition, self._share_changed)
            self._share: WorkerShare | None = share
        feeds = [self._feed(queue) for queue in self._weights]
        self._feeds = {feed.queue: feed for feed in feeds}
        sessions = [] if self._ttl is None else [self._session(feed) for feed in feeds]
        self._sessions = sessions
        tasks = [asyncio.ensure_future(self._watch())]
        for feed in feeds:
            tasks += [asyncio.ensure_future(feed.claim()), asyncio.ensure_future(feed.report())]
            if self._ttl is None:
                feed.joined("alone", None)
                await feed.read_policy()
        tasks += [asyncio.ensure_future(session.attend()) for session in sessions]
        if self._share is not None:
            tasks.append(asyncio.ensure_future(self._share.attend()))
        stopped = asyncio.ensure_future(self._stopping.wait())
        log.info(
            "worker %s/%s works on %s, %d at a time",
            self.group,
            self.name,
            ", ".join(self._weights),
            self._concurrency,
        )
        try:
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            failed = [task for task in tasks if task.done() and task.exception() is not None]
            await self._shut_down(is_lost=bool(failed))
        finally:
            for task in (stopped, *tasks):
                task.cancel()
            await asyncio.gather(stopped, *tasks, return_exceptions=True)
            for session in sessions:
                await session.close()
            if self._share is not None:
                await self._share.close()
            await client.close()
            self._close()
        for task in failed:
            error = task.exception()
            if isinstance(error, (NameTaken, WorkerRefused)):
                raise error
            raise TenureError("a fault of the library ended the worker") from error
        log.info("worker %s/%s has stopped", self.group, self.name)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._is_stopping = False
        self._is_frozen = False
        self._share = None
        self._held: dict[tuple[str, int], Run] = {}
        self._buffer: collections.deque[Run] = collections.deque()
        self._running = 0
        self._ended_early: collections.OrderedDict[tuple[str, int], str] = collections.OrderedDict()
        self._finishing: set[asyncio.Task[None]] = set()
        self.slots = Slots(self._concurrency, self._weights, time.monotonic)
        self._processes = Processes(self._process_count, self._ended)
        self._executors: dict[RunsIn, Executor] = {
            "thread": Threads(self._concurrency, self._ended),
            "asyncio": Coroutines(self._ended),
            "process": self._processes,
        }
        with self._lock:
            self._loop = loop
            if self._stop_early:
                loop.call_soon(self._begin_stop)

    def _close(self) -> None:
        for executor in self._executors.values():
            executor.close()
        with self._lock:
            self._loop = None

    def _feed(self, queue: str) -> Feed:
        worker = {"taskQueueId": queue, "workerGroup": self.group, "workerId": self.name}
        prefetch = Prefetch(self._concurrency, time.monotonic, self._fixed_prefetch)
        return Feed(self, self._link, worker, prefetch, self._share)

    def _session(self, feed: Feed) -> Session:
        worker = {"taskQueueId": feed.queue, "workerGroup": self.group, "workerId": self.name}
        return Session(self._link, feed, worker, self._ttl or SESSION_TTL, self._said)

    def _said(self) -> dict[str, Any]:
        """Return what the server should know: handlers of lost runs occupy their slots."""
        late = time.monotonic() - _STOPS_WITHIN
        lost = sum(
            1 for run in self._held.values() if run.hold == "late" or (run.lost_at or late) < late
        )
        frozen = self._is_frozen or self._is_stopping
        return {"frozen": frozen, "capacity": max(0, self._concurrency - lost)}

    # What feeds ask and tell.

    def claimed(self, feed: Feed, claim: dict[str, Any]) -> None:
        """Start a claimed run, or keep it until a slot is free."""
        run = Run(claim, feed.queue, self.app.tasks, self, self._link)
        run.at_most_once = run.at_most_once or feed.at_most_once is True
        run.keeps_late = self._keep_late
        self._held[run.key] = run
        reason = self._ended_early.pop(run.key, None)
        if reason is not None:
            run.lose(_cancellation_of(reason))
            self._drop(run)
        elif self._is_stopping or feed.member == "waiting":
            self._give_back(run)
        elif run.problem is not None or run.task is None:
            problem = run.problem or "unknown kind"
            log.error("%s is malformed: %s", run, problem)
            self._finish(run, malformed(problem))
        elif self._running < self._concurrency:
            self._begin(run)
        else:
            self._buffer.append(run)

    def find(self, task_id: str, run_id: int) -> Run | None:
        """Return a held run."""
        return self._held.get((task_id, run_id))

    def run_ended(self, task_id: str, run_id: int, reason: str, *, counts: bool) -> None:
        """Stop a run that ended without a report of this worker, unless its result may count."""
        run = self.find(task_id, run_id)
        if run is not None:
            goes_on = counts and run.keeps_late and run.hold == "ours"
            if goes_on and run.started_at is not None:
                run.outlive()
                self._say()
            else:
                run.lose(_cancellation_of(reason))
            return
        self._ended_early[task_id, run_id] = reason
        if len(self._ended_early) > _ENDED_EARLY_MAX:
            self._ended_early.popitem(last=False)

    def command(self, command: str, task_id: str | None) -> None:
        """Carry out a command of an operator."""
        if command == "shutdown":
            self._begin_stop()
        elif command in ("freeze", "unfreeze"):
            self._is_frozen = command == "freeze"
            for feed in self._feeds.values():
                feed.take_none(self._is_frozen or self._is_stopping)
            self._say()
        elif command == "stop-task":
            for run in [run for run in self._held.values() if run.task_id == task_id]:
                run.stop("command")

    def lose_all(self, feed: Feed, for_sure: bool) -> None:
        """Stop the runs of a queue: they are lost, or soon may be."""
        for run in [run for run in self._held.values() if run.queue == feed.queue]:
            if for_sure:
                run.lose("lost")
            elif run.hold == "ours":
                run.hold = "unrenewable"
                run.stop("lost")

    def shortest_lease(self) -> float:
        """Return the length of the shortest lease, in seconds."""
        return min((run.lease.duration for run in self._held.values()), default=60.0)

    def slots_changed(self, feed: Feed) -> None:
        """Let the other queues look again."""
        for other in self._feeds.values():
            if other is not feed:
                other.wake()

    def _share_changed(self) -> None:
        """Claim by the current share, and give back jobs that have not begun and leave it."""
        for feed in self._feeds.values():
            feed.share_changed()
        for run in list(self._buffer):
            if self._share is not None and not self._share.keeps(run.task_id):
                self._buffer.remove(run)
                self._give_back(run)

    def cancel(self, run: Run) -> None:
        """Stop a handler, if it has begun; drop the run otherwise."""
        if run.started_at is None:
            if run in self._buffer:
                self._buffer.remove(run)
                self._give_back(run)
        elif run.task is not None:
            self._executors[run.task.runs_in].cancel(run)

    # Runs.

    def _begin(self, run: Run) -> None:
        self._running += 1
        run.started_at = time.monotonic()
        if run.task is not None:
            self._executors[run.task.runs_in].submit(run)

    def _ended(self, run: Run, ended: Ended, duration: float) -> None:
        """Handle the end of a handler, and start the next run."""
        self._running -= 1
        self._done += 1
        feed = self._feeds[run.queue]
        feed.prefetch.ended(duration)
        while self._buffer and self._running < self._concurrency:
            following = self._buffer.popleft()
            if following.hold == "ours" and not self._is_stopping:
                self._begin(following)
            else:
                self._give_back(following)
        if run.checkpoints.is_waiting or run.log.is_waiting:
            task = asyncio.ensure_future(self._tell_and_finish(run, ended))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
        else:
            self._finish(run, ended)

    async def _tell_and_finish(self, run: Run, ended: Ended) -> None:
        try:
            await run.tell_rest()
        finally:
            self._finish(run, ended)

    def _finish(self, run: Run, ended: Ended) -> None:
        """Report a run, and free its slot."""
        feed = self._feeds[run.queue]
        body = self._report(run, ended)
        if run.hold == "late" and ended.how != "completed":
            log.info("%s has ended late without a result: nothing is reported", run)
        elif run.hold != "gone" and body is not None:
            feed.outbox.put(run, body)
        elif run.hold == "gone":
            log.info("%s has ended, but is no longer this worker's: nothing is reported", run)
        self._drop(run)

    def _drop(self, run: Run) -> None:
        self._held.pop(run.key, None)
        if self._share is not None:
            self._share.release(run.task_id, run.run_id)
        self.slots.release()
        for feed in self._feeds.values():
            feed.is_drained = False
            feed.wake()
        if run.has_ended:
            self._say()

    def _report(self, run: Run, ended: Ended) -> dict[str, Any] | None:
        """Return the report of a run, or None if its session or lease shall end it."""
        if ended.how == "cancelled":
            return self._report_of_cancelled(run)
        self._log_end(run, ended)
        task = None if run.has_backoff else run.task
        return report_of(ended, task, run.info.attempt, run.retries_left, random.random())

    def _report_of_cancelled(self, run: Run) -> dict[str, Any] | None:
        if run.job.cancellation == "shutdown":
            if self._ttl is not None:
                # The end of the session gives it back, as its delivery demands.
                return None
            feed = self._feeds[run.queue]
            if feed.at_most_once is False and not run.at_most_once:
                return {"outcome": "released"}
        log.info("%s was stopped: %s", run, run.job.cancellation)
        return {"outcome": "exception", "reason": "worker-shutdown"}

    def _log_end(self, run: Run, ended: Ended) -> None:
        failure = ended.failure
        if failure is None:
            log.debug("%s: %s", run, ended.how)
            return
        is_retried = ended.how in ("error", "retry") and run.retries_left > 0
        log.log(
            logging.WARNING if is_retried else logging.ERROR,
            "%s failed (attempt %d, %s): %s: %s",
            run,
            run.info.attempt,
            f"retries left: {run.retries_left}" if is_retried else "for good",
            failure["kind"],
            failure["message"],
        )

    def _give_back(self, run: Run) -> None:
        """Release a run that has not begun: another run follows at once, and no retry is used."""
        if not run.has_ended:
            self._feeds[run.queue].outbox.put(run, {"outcome": "released"})
        self._drop(run)

    def _say(self) -> None:
        for session in self._sessions:
            session.say()

    # Times.

    async def _watch(self) -> None:
        """Renew leases, and send progress and logs."""
        tasks: set[asyncio.Task[None]] = set()
        while True:
            now = time.monotonic()
            for run in list(self._held.values()):
                run.check_lease(now)
                if run.needs_renewal(now):
                    run.is_renewing = True
                    tasks.add(asyncio.ensure_future(run.renew()))
                if run.hold != "gone":
                    tasks.update(asyncio.ensure_future(telling) for telling in run.tell())
                self._warn_of_overrun(run, now)
            while self._buffer and now - self._buffer[0].claimed_at > GIVE_BACK_AFTER:
                waiting = self._buffer.popleft()
                self._feeds[waiting.queue].prefetch.given_back()
                self._give_back(waiting)
            tasks = {task for task in tasks if not task.done()}
            if self.burst and self._is_idle():
                if now >= self._linger_until:
                    self._begin_stop()
                for feed in self._feeds.values():
                    feed.is_drained = False
                    feed.wake()
            await asyncio.sleep(0.02 if self.burst else _LOOK_EVERY)

    def _warn_of_overrun(self, run: Run, now: float) -> None:
        if run.hold == "gone" and not run.had_overrun and now >= run.lease.ends:
            run.had_overrun = True
            log.warning(
                "the handler of %s is still running although its lease is over; another worker may "
                "be running the job too",
                run,
            )
            self._say()

    def _is_idle(self) -> bool:
        drained = all(feed.is_drained for feed in self._feeds.values())
        return drained and not self._held and not self._has_reports()

    # The end.

    def _begin_stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        for feed in self._feeds.values():
            feed.take_none(True)
        while self._buffer:
            self._give_back(self._buffer.popleft())
        # There may be more slots than processes.
        for run in self._processes.withdraw():
            self._running -= 1
            run.started_at = None
            self._give_back(run)
        for run in self._held.values():
            run.job._stop_soon()
        self._say()
        self._stopping.set()

    async def _shut_down(self, is_lost: bool) -> None:
        """Wait for handlers, and send the last reports."""
        self._begin_stop()
        ends = time.monotonic() + (_CANCEL_BEFORE if is_lost else self._grace)
        await self._wait_for_handlers(0.0 if is_lost else max(0.0, ends - _CANCEL_BEFORE))
        for run in list(self._held.values()):
            run.stop("shutdown")
        await self._wait_for_handlers(ends)
        for run in list(self._held.values()):
            log.warning("%s did not stop in time", run)
            if run.started_at is not None and not run.has_ended:
                body = self._report_of_cancelled(run)
                if body is not None:
                    self._feeds[run.queue].outbox.put(run, body)
        ends = time.monotonic() + (0.0 if is_lost else _LAST_REPORTS)
        while self._has_reports():
            if time.monotonic() >= ends:
                log.warning("the last reports could not be sent; their jobs may run again")
                return
            await asyncio.sleep(0.02)

    def _has_reports(self) -> bool:
        outboxes = (feed.outbox for feed in self._feeds.values())
        return bool(self._finishing) or not all(outbox.is_empty for outbox in outboxes)

    async def _wait_for_handlers(self, until: float) -> None:
        while self._held and time.monotonic() < until:
            await asyncio.sleep(0.02)


def default_name() -> str:
    """Return the name of a worker without one, as ``tenure-worker`` makes it."""
    return name_of(socket.gethostname(), os.getpid())


def name_of(host: str, process: int) -> str:
    """Return ``<host>-<process>``, without the host's domain.

    Of a long name the end is kept: it differs between the pods of a Kubernetes deployment, whose
    processes have equal numbers.
    """
    label = re.sub(r"[^a-zA-Z0-9_]", "-", host.partition(".")[0])
    room = NAME_MAX - len(f"-{process}")
    return f"{label[-room:].strip('-') or 'worker'}-{process}"


def _cancellation_of(reason: str) -> Cancellation:
    if reason == "canceled":
        return "cancelled"
    return "deadline-exceeded" if reason == "deadline-exceeded" else "lost"
