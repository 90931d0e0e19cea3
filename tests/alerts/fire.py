"""Makes each alert of ops/alerts.yml fire in a real Prometheus, by its trouble on real servers."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode, urlsafe_b64encode
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

# The times and limits that are cut, each with the number of its occurrences.
CUT = [
    (r"for: [15]m$", "for: 1s", 6),
    (r"\[15m\]", "[1m]", 4),
    (r"> 900$", "> 5", 1),
    (r"> 14400$", "> 3", 1),
    (r"> 600$", "> 5", 1),
]
FIRES_WITHIN = 240
# Servers whose database is frozen answer after 3 s.
CONFIGURATION = """
global: {{scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
- job_name: tenure
  static_configs:
  - targets: {targets}
"""


def cut(rules):
    """Returns the rules with short times and low limits."""
    for pattern, replacement, times in CUT:
        rules, found = re.subn(pattern, replacement, rules, flags=re.M)
        if found != times:
            raise SystemExit(f"alerts: {pattern} occurs {found} times in the rules instead of {times}")
    return rules


def eventually(what, ask, seconds=FIRES_WITHIN):
    """Returns the first result that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ask()
        if found:
            return found
        time.sleep(0.5)
    raise SystemExit(f"alerts: waited {seconds} s in vain for {what}")


class Prometheus:
    """A Prometheus that scrapes these servers."""

    def __init__(self, rules, targets):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        Path("rules.yml").write_text(cut(Path(rules).read_text()))
        Path("prometheus.yml").write_text(CONFIGURATION.format(rules="rules.yml", targets=json.dumps(targets)))
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=prometheus-data"]
        command.append(f"--web.listen-address={self.address}")
        with open("prometheus.err", "w") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)
        eventually("Prometheus", self.is_ready, 60)

    def is_ready(self):
        """True if it answers queries."""
        try:
            return self.ask("query", query="vector(1)")
        except (urllib.error.URLError, ConnectionError):
            return None

    def ask(self, path, **parameters):
        """Returns the data of an answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def has(self, expression):
        """True if the expression has a sample."""
        return bool(self.ask("query", query=expression)["result"])

    def firing(self):
        """Returns firing alerts: name, and the label that tells them apart."""
        alerts = [alert for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"]
        return {(labels["alertname"], which(labels)) for labels in (alert["labels"] for alert in alerts)}

    def stop(self):
        """Ends the process."""
        self.process.terminate()
        self.process.wait(60)


def which(labels):
    """Returns the queue, the server or the job of an alert."""
    return labels.get("task_queue") or labels.get("instance") or labels.get("job")


class Queue:
    """Calls of one server, as a client with all scopes."""

    def __init__(self, address, token):
        self.root = f"http://{address}"
        self.credentials = b64encode(f"tests:{token}".encode()).decode()

    def call(self, method, path, body=None):
        """Returns the body of an answer."""
        headers = {"Authorization": f"Basic {self.credentials}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def create(self, queue, count):
        """Creates tasks, and returns the last one."""
        now = datetime.now(timezone.utc)
        metadata = {"name": "t", "description": "t", "owner": "me@example.com", "source": "https://example.com"}
        task = {"taskQueueId": queue, "created": now.isoformat(), "payload": {}, "metadata": metadata}
        task["deadline"] = (now + timedelta(hours=1)).isoformat()
        for _ in range(count):
            slug = urlsafe_b64encode(uuid4().bytes)[:22].decode()
            self.call("PUT", f"/api/queue/v1/task/{slug}", task)
        return slug

    def claim(self, queue, count):
        """Claims tasks, as a worker that has just started."""
        name = {"workerGroup": "tests", "workerId": f"worker-{uuid4().hex[:8]}", "tasks": count}
        path = f"/api/queue/v1/claim-work/{urllib.parse.quote(queue, safe='')}"
        return self.call("POST", path, name)["tasks"]

    def claim_all(self, queue, count):
        """Claims this many tasks."""
        claimed = []

        def claim_more():
            claimed.extend(self.claim(queue, count - len(claimed)))
            return len(claimed) == count

        eventually(f"{count} claims of {queue}", claim_more, 60)
        return claimed


def freeze(cluster):
    """Stops every process of an embedded PostgreSQL, and returns them."""
    [file] = Path(cluster).rglob("postmaster.pid")
    postmaster = int(file.read_text().split()[0])
    # Stopped first, so that it starts no more.
    os.kill(postmaster, signal.SIGSTOP)
    children = subprocess.run(["pgrep", "-P", str(postmaster)], stdout=subprocess.PIPE, text=True).stdout.split()
    processes = [postmaster, *map(int, children)]
    for process in processes[1:]:
        os.kill(process, signal.SIGSTOP)
    return processes


def main():
    """Makes the troubles, and waits for the alerts."""
    parser = argparse.ArgumentParser()
    for name in ["rules", "killed", "database", "cluster", "token"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--servers", nargs=3, required=True)
    settings = parser.parse_args()
    first, second, _embedded = settings.servers
    queue = Queue(first, Path(settings.token).read_text())
    prometheus, frozen, holder = Prometheus(settings.rules, settings.servers), [], None
    try:
        # Counters must be seen at 0 before they grow. The worker of alerts/gone lives.
        queue.claim("alerts/gone", 1)
        queue.create("alerts/fails", 25)
        queue.create("alerts/lost", 8)
        canceled = queue.create("alerts/paused", 2)
        # So that every metric of tasks has a sample.
        queue.call("POST", f"/api/queue/v1/task/{canceled}/cancel")
        for seen in [
            'tenure_tasks_resolved_total{task_queue="alerts/fails",state="failed"} == 0',
            'tenure_runs_lost_total{task_queue="alerts/lost",ended_by="lease"} == 0',
            'tenure_workers{task_queue="alerts/gone",state="idle"} == 1',
            'up{instance="%s"} == 1' % second,
            "min(tenure_database_up) == 1",
        ]:
            eventually(seen, lambda expression=seen: prometheus.has(expression))
        for claim in queue.claim_all("alerts/fails", 25):
            queue.call("POST", f"/api/queue/v1/task/{claim['status']['taskId']}/runs/{claim['runId']}/failed", {})
        queue.claim_all("alerts/lost", 8)
        queue.call("POST", "/api/tenure/v1/queues/alerts%2Fpaused/pause", {"reason": "a test"})
        # Nobody claims them: the worker is gone.
        queue.create("alerts/gone", 3)
        sleep = ["psql", "--quiet", "--no-psqlrc", "--command=SELECT pg_sleep(600)", settings.database]
        holder = subprocess.Popen(sleep, stdout=subprocess.DEVNULL)
        os.kill(int(settings.killed), signal.SIGKILL)
        frozen = freeze(settings.cluster)
        expected = {
            ("TenureServerDown", second),
            ("TenureCommitsNothing", "tenure"),
            ("TenureWorkersGone", "alerts/gone"),
            ("TenureWaitsLong", "alerts/gone"),
            ("TenureManyFailures", "alerts/fails"),
            ("TenureWorkersLost", "alerts/lost"),
            ("TenurePauseForgotten", "alerts/paused"),
            ("TenureDatabaseAtRisk", "tenure"),
        }
        # Each need not fire as long as the last one takes.
        fired = set()

        def all_fired():
            for alert in sorted((prometheus.firing() & expected) - fired):
                print("alerts: {} of {} fires".format(*alert), flush=True)
                fired.add(alert)
            return fired == expected

        try:
            eventually("all alerts", all_fired)
        except SystemExit as failure:
            raise SystemExit(f"{failure}: {sorted(expected - fired)} did not fire") from failure
    finally:
        for process in frozen:
            os.kill(process, signal.SIGCONT)
        if holder:
            holder.terminate()
            holder.wait(60)
        prometheus.stop()


if __name__ == "__main__":
    main()
