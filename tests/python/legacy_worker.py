"""A worker of the days of signed URLs, as a program: the clients taskcluster 3.0.1 and scriptworker 3.1.2, unmodified.

It reads commands from its standard input, a line of JSON each, and answers each with a line. What is ours is what
scriptworker leaves to its caller: the loop over the URLs, and the function that sends requests, because scriptworker's own
wants an aiohttp of that time. The first line says where the server is and who the worker is.
"""

import asyncio
import base64
import json
import logging
import sys
import time
import types
from pathlib import Path

# Python 3.9 dropped a name that taskcluster 3 calls for every signed request.
base64.encodestring = base64.encodebytes
LEGACY = Path(sys.prefix) / "legacy"
sys.path.insert(0, str(LEGACY))

import aiohttp  # noqa: E402
import scriptworker.poll as poll  # noqa: E402
import taskcluster  # noqa: E402
from scriptworker.exceptions import ScriptWorkerException, ScriptWorkerRetryException  # noqa: E402
from scriptworker.utils import retry_async  # noqa: E402

for module in (poll, taskcluster):
    assert Path(module.__file__).is_relative_to(LEGACY), module.__file__


def read():
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def write(answer):
    print(json.dumps(answer), flush=True)


class Kept(logging.Handler):
    """What the clients would have written to a log."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")


class AsyncQueue:
    """The client as scriptworker wants it: the asynchronous one of that version does not load in today's Python."""

    def __init__(self, queue):
        self.queue = queue
        self.stops_before_claims = False

    async def pollTaskUrls(self, *args):
        return self.queue.pollTaskUrls(*args)

    async def claimTask(self, task_id, run_id, payload):
        if self.stops_before_claims:
            write({"claiming": [task_id, run_id]})
            read()
        return self.queue.claimTask(task_id, run_id, payload)


class Worker:
    def __init__(self, setup):
        self.root_url = setup["rootUrl"]
        self.queue = self.client(setup["credentials"])
        self.log = Kept()
        logging.getLogger().addHandler(self.log)
        logging.getLogger().setLevel(logging.INFO)
        self.sent = []
        self.context = types.SimpleNamespace(
            config={key: setup[key] for key in ("provisioner_id", "worker_type", "worker_group", "worker_id")},
            queue=AsyncQueue(self.queue),
            poll_task_urls=None,
            session=None,
        )

    def client(self, credentials):
        return taskcluster.Queue({"baseUrl": self.root_url + "/api/queue/v1", "credentials": credentials})

    async def request(self, context, url, method="get", good=(200,)):
        """Sends a request as scriptworker does, with the same errors for the same answers."""
        async with context.session.request(method, url) as response:
            text = await response.text()
            sent = {"method": method.upper(), "asked": url, "sent": str(response.request_info.url)}
            self.sent.append({**sent, "status": response.status, "body": text})
        if 500 <= response.status < 512:
            raise ScriptWorkerRetryException(f"Bad status {response.status}")
        if response.status not in good:
            raise ScriptWorkerException(f"Bad status {response.status}")
        return text

    async def request_again(self, *args, **options):
        return await retry_async(
            self.request, retry_exceptions=(ScriptWorkerRetryException,), args=args, kwargs=options
        )

    async def update_urls(self, **options):
        asks_for = (self.context.config["provisioner_id"], self.context.config["worker_type"])
        await poll.update_poll_task_urls(self.context, self.context.queue.pollTaskUrls, args=asks_for, **options)
        return self.context.poll_task_urls

    async def find(self, stop_before_claims=False):
        """One round of scriptworker's loop: the first run that can be claimed, from the highest priority down."""
        self.log.lines.clear()
        self.sent.clear()
        self.context.queue.stops_before_claims = stop_before_claims
        began = time.monotonic()
        await self.update_urls()
        claimed = None
        async with aiohttp.ClientSession() as self.context.session:
            for poll_url, delete_url in poll.get_azure_urls(self.context):
                claimed = await poll.find_task(self.context, poll_url, delete_url, self.request_again)
                if claimed:
                    break
        seconds = time.monotonic() - began
        return {"claimed": claimed, "seconds": seconds, "log": self.log.lines, "sent": self.sent}

    def call(self, method, args, credentials=None):
        """Any method of the client."""
        queue = self.client(credentials) if credentials else self.queue
        try:
            return {"answer": getattr(queue, method)(*args)}
        except taskcluster.exceptions.TaskclusterRestFailure as failure:
            return {"status": failure.status_code, "code": failure.body["code"]}

    async def obey(self, command, arguments):
        match command:
            case "find":
                return await self.find(**arguments)
            case "urls":
                return await self.update_urls(**arguments)
            case "call":
                return self.call(**arguments)
        raise ValueError(command)


async def main():
    worker = Worker(read())
    while (line := read()) is not None:
        [(command, arguments)] = line.items()
        write(await worker.obey(command, arguments))


asyncio.run(main())
