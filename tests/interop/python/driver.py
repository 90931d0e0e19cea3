"""Performs ../cases.json with PyPI's `taskcluster`: `driver.py sync` or `driver.py aio`."""

import asyncio
import datetime
import json
import os
import sys
from pathlib import Path

import taskcluster
import taskcluster.aio
import taskcluster.aio.download
import taskcluster.aio.upload
import taskcluster.download
import taskcluster.upload
from taskcluster.exceptions import TaskclusterAuthFailure, TaskclusterRestFailure

from table import Case, Mismatch

TEMPORARY_FOR = datetime.timedelta(hours=1)
CLASSES = {"queue": "Queue", "auth": "Auth", "object": "Object"}


class Client:
    """The blocking client."""

    name = "python"
    errors = (TaskclusterRestFailure, TaskclusterAuthFailure)

    def __init__(self, root_url):
        self.root_url = root_url

    def slugid(self):
        return taskcluster.slugId()

    def options(self, credentials, more):
        # The client changes the dictionary that it is given.
        return {"rootUrl": self.root_url, "credentials": dict(credentials or {}), **more}

    def service(self, name, credentials, more):
        return getattr(taskcluster, CLASSES[name])(self.options(credentials, more))

    def call(self, service, method, args, payload, query):
        return self._wait(self._begin(service, method, args, payload, query=query))

    def pages(self, service, method, args, payload, query):
        pages = []
        self._wait(self._begin(service, method, args, payload, query=dict(query), paginationHandler=pages.append))
        return pages

    def signed_url(self, service, method, args, query, seconds):
        return self._wait(service.buildSignedUrl(method, *args, query=query, expiration=seconds))

    def temporary_credentials(self, issuer, scopes, name):
        now = datetime.datetime.now(datetime.timezone.utc)
        made = taskcluster.createTemporaryCredentials(
            issuer["clientId"], issuer["accessToken"], now, now + TEMPORARY_FOR, scopes, name=name
        )
        return {key: taskcluster.utils.toStr(value) for key, value in made.items()}

    def download_artifact(self, queue, **what):
        return self._wait(self._download(queueService=queue, **what))

    def upload_object(self, service, content, **what):
        self._wait(self._upload(objectService=service, data=content, contentLength=len(content), **what))

    def described(self, error):
        body = error.body if isinstance(error.body, dict) else {}
        return {"status": error.status_code, "code": body.get("code")}

    def _begin(self, service, method, args, payload, **more):
        """Calls the method the short way that scripts use, if there is nothing in its query."""
        if not more.get("query") and "paginationHandler" not in more:
            return getattr(service, method)(*args, *([] if payload is None else [payload]))
        with_payload = {} if payload is None else {"payload": payload}
        return getattr(service, method)(*args, **with_payload, **more)

    def _wait(self, answer):
        return answer

    def _download(self, **what):
        return taskcluster.download.downloadArtifactToBuf(**what)

    def _upload(self, **what):
        return taskcluster.upload.uploadFromBuf(**what)


class AioClient(Client):
    """The client for asyncio, with one session for all its calls."""

    name = "python-aio"

    def __init__(self, root_url, loop):
        super().__init__(root_url)
        self.loop = loop
        self.session = self._wait(self._new_session())

    async def _new_session(self):
        return taskcluster.aio.createSession()

    def service(self, name, credentials, more):
        return getattr(taskcluster.aio, CLASSES[name])(self.options(credentials, more), session=self.session)

    def signed_url(self, service, method, args, query, seconds):
        return service.buildSignedUrl(method, *args, query=query, expiration=seconds)

    def close(self):
        self._wait(self.session.close())

    def _wait(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def _download(self, **what):
        return taskcluster.aio.download.downloadArtifactToBuf(**what)

    def _upload(self, **what):
        return taskcluster.aio.upload.uploadFromBuf(**what)


def run(client, table, without):
    root = {"clientId": os.environ["TASKCLUSTER_CLIENT_ID"], "accessToken": os.environ["TASKCLUSTER_ACCESS_TOKEN"]}
    passed = failed = skipped = 0
    for case in table["cases"]:
        reason = None
        if case.get("needs") in without:
            reason = f"the server has no {case['needs']}"
        elif {client.name, "python"} & set(case.get("lacking", [])):
            reason = "this client lacks it"
        if reason:
            print(f"skipped {case['name']}: {reason}")
            skipped += 1
            continue
        try:
            Case(case, table["templates"], client, client.root_url, root).run()
            print(f"ok {case['name']}")
            passed += 1
        except Mismatch as mismatch:
            print(f"FAILED {case['name']}: {mismatch}")
            failed += 1
        sys.stdout.flush()
    print(f"{client.name}: {passed} passed, {failed} failed, {skipped} skipped")
    return passed > 0 and failed == 0


def methods_left_out(table):
    """The table is for every method of the queue; this client is the one that has them all."""
    steps = [step for case in table["cases"] for step in case["steps"] if step.get("service", "queue") == "queue"]
    return sorted(set(taskcluster.Queue.funcinfo) - {step.get("call") or step.get("paginate") for step in steps})


def main():
    table = json.loads(Path(os.environ["TENURE_INTEROP_CASES"]).read_text(encoding="utf-8"))
    without = {area for area in os.environ.get("TENURE_INTEROP_WITHOUT", "").split(",") if area}
    root_url = os.environ["TASKCLUSTER_ROOT_URL"]
    left_out = methods_left_out(table)
    if left_out:
        print(f"FAILED no case calls {', '.join(left_out)}")
    good = not left_out
    for kind in sys.argv[1:] or ["sync", "aio"]:
        if kind == "sync":
            good &= run(Client(root_url), table, without)
        else:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            client = AioClient(root_url, loop)
            good &= run(client, table, without)
            client.close()
            loop.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
