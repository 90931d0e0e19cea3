"""The command line: ``python -m tenure worker mymodule:app``."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys

from . import __version__
from .app import Tenure
from .errors import NameTaken, TenureError, WorkerRefused
from .worker import CONCURRENCY, HANDLER_GRACE, SESSION_TTL, Worker

REFUSED = 1
WRONG_SETTING = 2
NAME_TAKEN = 3


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(
        level=parsed.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Each request would be a line.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    try:
        worker = _worker(parsed)
    except TenureError as error:
        print(f"tenure: {error}", file=sys.stderr)
        return WRONG_SETTING
    try:
        worker.run()
    except WorkerRefused as error:
        print(f"tenure: the server refuses this worker: {error}", file=sys.stderr)
        return REFUSED
    except NameTaken as error:
        print(f"tenure: {error}", file=sys.stderr)
        return NAME_TAKEN
    return 0


def _worker(parsed: argparse.Namespace) -> Worker:
    app = find_app(parsed.app)
    _ = app.settings
    return Worker(
        app,
        queues=dict(parsed.queue) if parsed.queue else None,
        concurrency=parsed.concurrency,
        processes=parsed.processes,
        group=parsed.worker_group,
        name=parsed.worker_id,
        session_ttl=None if parsed.no_session else parsed.session_ttl,
        grace=parsed.grace,
        prefetch=parsed.prefetch,
        burst=parsed.burst,
        keep_late=parsed.keep_late,
        partition=parsed.partition,
    )


def find_app(name: str) -> Tenure:
    """Import an application.

    Args:
        name: ``module:variable``; the variable is ``app`` by default.

    Raises:
        TenureError: There is no such application.
    """
    module_name, _, variable = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise TenureError(f"there is no module {error.name} in {os.getcwd()}") from error
    app = getattr(module, variable or "app", None)
    if not isinstance(app, Tenure):
        raise TenureError(f"{module_name} has no Tenure() in the variable {variable or 'app'}")
    return app


def _queue(text: str) -> tuple[str, int]:
    name, _, weight = text.partition("=")
    try:
        return name, int(weight or 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be QUEUE or QUEUE=WEIGHT") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tenure", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    worker = commands.add_parser("worker", help="run jobs", description="Run jobs until SIGTERM.")
    add = worker.add_argument
    environ = os.environ
    add("app", metavar="MODULE:APP", help="the application, such as mymodule:app")
    add(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        metavar="N",
        help="jobs at a time [%(default)s]",
    )
    add("--queue", type=_queue, action="append", metavar="QUEUE[=WEIGHT]",
        help="queue to work on; may be repeated [the queues of all tasks]")  # fmt: skip
    add("--worker-group", default=environ.get("TENURE_WORKER_GROUP", "default"), metavar="GROUP",
        help="group of this worker [TENURE_WORKER_GROUP, default]")  # fmt: skip
    add("--worker-id", default=environ.get("TENURE_WORKER_ID"), metavar="ID",
        help="name of this worker, unique within its group [host and process]")  # fmt: skip
    add("--processes", type=int, metavar="N", help="processes for tasks with cpu=True [processors]")
    add("--session-ttl", type=int, default=SESSION_TTL, metavar="SECONDS",
        help="time after which the jobs of a dead worker go to others [%(default)s]")  # fmt: skip
    add("--no-session", action="store_true", help="work without a session")
    add("--grace", type=float, default=HANDLER_GRACE, metavar="SECONDS",
        help="time that handlers have to finish after SIGTERM [%(default).0f]")  # fmt: skip
    add("--prefetch", type=int, metavar="N", help="jobs to claim beyond --concurrency [automatic]")
    add("--burst", action="store_true", help="stop when the queues are empty")
    add("--keep-late", action="store_true",
        help="finish jobs whose completeTime is over, if their results may count")  # fmt: skip
    add("--partition", metavar="GROUP",
        help="join this partition group, and run only jobs of its share")  # fmt: skip
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"],
        help="[%(default)s]")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
