"""The load of the trial and its accountant: which task was acknowledged when, which was completed, and what callers got."""

import base64
import http.client
import json
import secrets
import threading
import time
from datetime import datetime, timedelta, timezone

#: How many tasks are created a second, by how many callers at most, for how many workers.
CREATES_PER_SECOND, CALLERS, WORKERS = 40, 128, 6
#: How many runs a worker claims at once.
CLAIM = 16
#: No request takes longer than 60 s, claimWork with its wait 80 s.
TIMEOUT_SECONDS = 90
#: How long a caller waits before it repeats a request: what Retry-After says.
PAUSE_SECONDS = 1
QUEUE = "failover/trial"
API = "/api/queue/v1"


def identifier():
    """A slug id as the official clients make them."""
    raw = bytearray(secrets.token_bytes(16))
    raw[0] &= 0x7F
    raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def definition():
    now = datetime.now(timezone.utc)
    return {
        "taskQueueId": QUEUE,
        "created": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "deadline": (now + timedelta(hours=2)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "payload": {"command": [["true"]]},
        "metadata": {"name": "t", "description": "t", "owner": "t@example.com", "source": "https://example.com"},
    }


class Caller:
    """One connection to the balancer, made again when it breaks."""

    def __init__(self, host, port, token):
        self.at, self.connection = (host, port), None
        basic = base64.b64encode(f"root:{token}".encode()).decode()
        self.headers = {"Authorization": "Basic " + basic, "Content-Type": "application/json"}

    def call(self, method, path, body=None):
        """The status (0: the connection broke), and the body."""
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection(*self.at, timeout=TIMEOUT_SECONDS)
            self.connection.request(method, path, None if body is None else json.dumps(body), self.headers)
            answer = self.connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return 0, None
        if answer.status >= 400:
            return answer.status, {"retry": answer.getheader("Retry-After"), "text": text[:300].decode(errors="replace")}
        return answer.status, json.loads(text or b"{}")

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class Load:
    """Creates, claims and reports until `stop`."""

    def __init__(self, host, port, token):
        self.caller = lambda: Caller(host, port, token)
        self.lock = threading.Lock()
        self.acknowledged = {}  # task id -> when its creation was acknowledged
        self.completed = {}  # task id -> the run of each report that was acknowledged
        self.successes = []  # (what, when the request began, when it was answered)
        self.answers = []  # (when, what, status, retry, text) of all that were no success
        self.stopping = threading.Event()
        self.slots = threading.Semaphore(CALLERS)
        self.free = []
        self.threads = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(WORKERS)]
        self.threads.append(threading.Thread(target=self._submit, daemon=True))
        for thread in self.threads:
            thread.start()

    def _submit(self):
        """At a steady rate, whatever the servers do, as long as there are callers left."""
        due = time.monotonic()
        while not self.stopping.is_set():
            due += 1 / CREATES_PER_SECOND
            time.sleep(max(0, due - time.monotonic()))
            if self.slots.acquire(blocking=False):
                threading.Thread(target=self._create, daemon=True).start()

    def _create(self):
        task, body = identifier(), definition()
        with self.lock:
            caller = self.free.pop() if self.free else self.caller()
        try:
            while not self.stopping.is_set():
                began = time.monotonic()
                status, answer = caller.call("PUT", f"{API}/task/{task}", body)
                if status == 200:
                    with self.lock:
                        self.acknowledged[task] = time.monotonic()
                    return self._success("create", began)
                self._other("create", status, answer)
                time.sleep(PAUSE_SECONDS)
        finally:
            with self.lock:
                self.free.append(caller)
            self.slots.release()

    def _work(self, number):
        caller = self.caller()
        worker = {"workerGroup": "trial", "workerId": f"worker-{number}", "tasks": CLAIM}
        while not self.stopping.is_set():
            began = time.monotonic()
            status, answer = caller.call("POST", f"{API}/claim-work/{QUEUE.replace('/', '%2F')}", worker)
            if status != 200:
                self._other("claim", status, answer)
                time.sleep(PAUSE_SECONDS)
                continue
            if answer["tasks"]:
                self._success("claim", began)
            for claim in answer["tasks"]:
                self._report(caller, claim["status"]["taskId"], claim["runId"])

    def _report(self, caller, task, run):
        while not self.stopping.is_set():
            began = time.monotonic()
            status, answer = caller.call("POST", f"{API}/task/{task}/runs/{run}/completed", {})
            if status == 200:
                with self.lock:
                    self.completed.setdefault(task, []).append(run)
                return self._success("report", began)
            self._other("report", status, answer)
            # Refused: the lease was lost, or the run has been resolved since.
            if 400 <= status < 500:
                return None
            time.sleep(PAUSE_SECONDS)
        return None

    def _success(self, what, began):
        with self.lock:
            self.successes.append((what, began, time.monotonic()))

    def _other(self, what, status, answer):
        answer = answer or {}
        with self.lock:
            self.answers.append((time.monotonic(), what, status, answer.get("retry"), answer.get("text")))

    def first_success(self, what, since):
        """Seconds from `since` to the first answer of a request that began after it."""
        with self.lock:
            ends = [end for kind, began, end in self.successes if kind == what and began > since]
        return min(ends) - since if ends else None

    def longest_pause(self, what, since):
        """The longest time after `since` without a success: how long it was, and how long after `since` it ended."""
        with self.lock:
            ends = sorted(end for kind, _, end in self.successes if kind == what and end > since)
        pauses = ((b - a, b - since) for a, b in zip([since, *ends], [*ends, time.monotonic()]))
        return max(pauses, default=(0, 0))

    def window(self, since, until):
        """The tasks whose creation was acknowledged then."""
        with self.lock:
            return {task for task, when in self.acknowledged.items() if since <= when < until}

    def twice(self, tasks):
        """How many of them had two reports acknowledged: if of one run, the first was lost after that."""
        with self.lock:
            return sum(len(self.completed.get(task, ())) > 1 for task in tasks)

    def incomplete(self, tasks):
        with self.lock:
            return {task for task in tasks if task not in self.completed}

    def states(self, tasks):
        """What the service says of them: task id -> state, or none if it does not know them."""
        caller, tasks, states = self.caller(), sorted(tasks), {}
        for at in range(0, len(tasks), 500):
            part = tasks[at : at + 500]
            for _ in range(60):
                status, answer = caller.call("POST", f"{API}/tasks/status", {"taskIds": part})
                if status == 200:
                    break
                time.sleep(PAUSE_SECONDS)
            else:
                raise SystemExit(f"try-failover: the statuses cannot be read: {status} {answer}")
            states.update({task: None for task in part})
            states.update({each["taskId"]: each["status"]["state"] for each in answer["statuses"]})
        caller.close()
        return states

    def stop(self):
        self.stopping.set()
