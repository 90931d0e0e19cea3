"""A real scriptworker as a process of its own, beside the server that the environment names."""

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import taskcluster

HERE = Path(__file__).parent
ROOT_URL = os.environ["TASKCLUSTER_ROOT_URL"]
ROOT = {"clientId": os.environ["TASKCLUSTER_CLIENT_ID"], "accessToken": os.environ["TASKCLUSTER_ACCESS_TOKEN"]}
PROGRAM = Path(sys.executable).parent / "scriptworker"
WITHIN_SECONDS = 60
STOPPED_WITHIN_SECONDS = 30
RECLAIM_SECONDS = 1
POLL_SECONDS = 1


def queue(credentials=None):
    return taskcluster.Queue({"rootUrl": ROOT_URL, "credentials": dict(credentials or ROOT)})


def anonymous_queue():
    return taskcluster.Queue({"rootUrl": ROOT_URL})


def wait_for(look, within=WITHIN_SECONDS):
    """Waits until there is something to see, and returns it."""
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


class Worker:
    """A scriptworker with a queue and credentials of its own: it may claim from its queue, and no more."""

    def __init__(self, folder):
        self.folder, self.worker_id = folder, "scriptworker-1"
        self.worker_type = "sw-" + secrets.token_hex(6)
        self.queue_id = f"interop/{self.worker_type}"
        self.log = folder / "scriptworker.out"
        self.credentials = self._credentials()
        self.config = folder / "scriptworker.json"
        self.config.write_text(json.dumps(self._config()))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TASKCLUSTER_")}
        with self.log.open("wb") as log:
            # In a session of its own, so that a Ctrl-C reaches the tests first.
            self.process = subprocess.Popen(
                [str(PROGRAM), str(self.config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def _credentials(self):
        name = f"interop/{self.worker_type}"
        scopes = [f"queue:claim-work:{self.queue_id}", f"queue:worker-id:interop/{self.worker_id}"]
        auth = taskcluster.Auth({"rootUrl": ROOT_URL, "credentials": dict(ROOT)})
        expires = taskcluster.fromNowJSON("1 day")
        made = auth.createClient(name, {"description": "A worker.", "expires": expires, "scopes": scopes})
        return {"clientId": made["clientId"], "accessToken": made["accessToken"]}

    def _config(self):
        key = self.folder / "ed25519"
        key.write_text(base64.b64encode(secrets.token_bytes(32)).decode())
        work, artifacts, log = self.folder / "work", self.folder / "artifacts", self.folder / "log"
        for made in (work, artifacts, log):
            made.mkdir()
        return {
            "taskcluster_root_url": ROOT_URL,
            "provisioner_id": "interop",
            "worker_type": self.worker_type,
            "worker_group": "interop",
            "worker_id": self.worker_id,
            "credentials": self.credentials,
            "work_dir": str(work),
            "artifact_dir": str(artifacts),
            "task_log_dir": str(artifacts / "public" / "logs"),
            "log_dir": str(log),
            "ed25519_private_key_path": str(key),
            "sign_chain_of_trust": True,
            "verify_chain_of_trust": False,
            "task_script": ["bash", str(HERE / "run-task.sh"), str(work), str(artifacts), sys.executable],
            "poll_interval": POLL_SECONDS,
            "reclaim_interval": RECLAIM_SECONDS,
        }

    def submit(self, script, **changes):
        task_id = taskcluster.slugId()
        definition = {
            "taskQueueId": self.queue_id,
            "created": taskcluster.fromNowJSON("0 seconds"),
            "deadline": taskcluster.fromNowJSON("1 hour"),
            "payload": {"script": script, "maxRunTime": 60},
            "metadata": {
                "name": "a task of scriptworker",
                "description": "Runs a script.",
                "owner": "nobody@example.com",
                "source": "https://example.com/source",
            },
            **changes,
        }
        queue().createTask(task_id, definition)
        return task_id

    def wait_for_end(self, task_id):
        """The status when the first run has ended. The worker still runs then."""

        def ended():
            assert self.process.poll() is None, "scriptworker ended:\n" + self.output()
            status = queue().status(task_id)["status"]
            return status if status["runs"][0]["state"] not in ("pending", "running") else None

        return wait_for(ended)

    def wait_until_running(self, task_id):
        return wait_for(lambda: queue().status(task_id)["status"]["state"] == "running")

    def output(self):
        return self.log.read_text() + "".join(log.read_text() for log in (self.folder / "log").glob("*.log"))

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOPPED_WITHIN_SECONDS)

    def stop(self):
        if self.process.poll() is None:
            try:
                self.terminate()
            finally:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("scriptworker"))
    yield worker
    worker.stop()


@pytest.fixture
def another_worker(tmp_path):
    worker = Worker(tmp_path)
    yield worker
    worker.stop()
