"""Runs Schemathesis against a real server: see scripts/test-schemathesis.

TENURE_BIN names the server's program, TENURE_TEST_DATABASE_URL a PostgreSQL whose user may create databases. The server
gets a database of its own, an account for Schemathesis that may do everything, and a manual clock.
"""

import argparse
import base64
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
READY = "tenure ready: "
READY_WITHIN_SECONDS = 60
STOPPED_WITHIN_SECONDS = 20
# The server's flags. advanceClock moves its clock; no wait may make the run long.
FLAGS = ["--clock", "manual", "--claim-work-wait", "50ms"]
# Forbidden in the server's log for any request.
FAULTS = re.compile(r"\b(ERROR|panicked)\b")
# These need a Hawk signature, which Schemathesis cannot make; tests/python has a client that can.
NEED_HAWK = {"testAuthenticate", "testAuthenticateGet"}
DEFAULT_SEED = 20250131


class Server:
    """A running server with its own database."""

    def __init__(self, folder):
        self.log = folder / "server.log"
        self.admin_url = os.environ["TENURE_TEST_DATABASE_URL"]
        self.database = "tenure_schemathesis_" + secrets.token_hex(8)
        self._psql(f"CREATE DATABASE {self.database}")
        url = urllib.parse.urlunsplit(urllib.parse.urlsplit(self.admin_url)._replace(path="/" + self.database))
        self.env = {
            **os.environ,
            "DATABASE_URL": url,
            "TENURE_SECRET_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        }
        command = [os.environ["TENURE_BIN"], "serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, *FLAGS], env=self.env, stdout=log, stderr=subprocess.STDOUT)
        try:
            self.root_url = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _psql(self, statement):
        subprocess.run(["psql", self.admin_url, "-qXc", statement], check=True, stdout=subprocess.DEVNULL)

    def _wait_until_ready(self):
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while time.monotonic() < deadline:
            lines = self.log.read_text().split("\n")[:-1]
            ready = [line for line in lines if line.startswith(READY)]
            if ready:
                return ready[0].removeprefix(READY).strip()
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise SystemExit("test-schemathesis: the server did not start:\n" + self.log.read_text())

    def create_client(self, client_id, *scopes):
        """Creates a client with these scopes; returns its access token."""
        flags = [flag for scope in scopes for flag in ("--scope", scope)]
        command = [os.environ["TENURE_BIN"], "client", "create", client_id, *flags, "--json"]
        printed = subprocess.run(command, env=self.env, check=True, stdout=subprocess.PIPE).stdout
        return json.loads(printed)["accessToken"]

    def operations(self):
        """The names of all operations of the server's document."""
        with urllib.request.urlopen(self.root_url + "/openapi.json") as answer:
            paths = json.load(answer)["paths"]
        return {one["operationId"] for methods in paths.values() for one in methods.values()}

    def faults(self):
        """Lines of the log that report an internal error."""
        return [line for line in self.log.read_text(errors="replace").split("\n") if FAULTS.search(line)]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOPPED_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            return "no end"
        finally:
            self.process.kill()
            self.process.wait()
            self._psql(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")


def not_reached(operations, tally):
    """Operations that never succeeded, with their answers: they were not really tested."""
    answers = json.loads(tally.read_text()) if tally.exists() else {}
    met = {name for name, counts in answers.items() if any(status.startswith(("2", "3")) for status in counts)}
    return [f"{name} {answers.get(name, {})}" for name in sorted(operations - met - NEED_HAWK)]


def run(server, options, tally):
    """Runs Schemathesis with unchanged standard output; returns its exit code."""
    client_id = "fuzzer"
    environment = {
        **os.environ,
        "FUZZ_ROOT_URL": server.root_url,
        "FUZZ_CLIENT_ID": client_id,
        "FUZZ_ACCESS_TOKEN": server.create_client(client_id, "*"),
        "FUZZ_TALLY": str(tally),
        "PYTHONPATH": str(HERE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    program = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(HERE / "schemathesis.toml")]
    program += ["run", server.root_url + "/openapi.json"]
    program += ["--seed", str(options.seed), "--max-examples", str(options.examples)]
    if options.seconds:
        program += ["--max-time", str(options.seconds)]
    if options.report:
        program += ["--report", "ndjson", "--report-dir", str(Path(options.report).resolve())]
    with tempfile.TemporaryDirectory(prefix="tenure-schemathesis.") as folder:
        return subprocess.run([*program, *options.more], env=environment, cwd=folder).returncode


def main():
    parser = argparse.ArgumentParser(prog="scripts/test-schemathesis")
    parser.add_argument("--examples", type=int, default=10, help="cases for each operation and phase, at most")
    parser.add_argument("--seconds", type=int, help="begin nothing new after so long")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--report", help="leave every request and answer in this folder")
    parser.add_argument("more", nargs="*", help="further arguments of `schemathesis run`, after --")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tenure-schemathesis."))
    # As root the server runs PostgreSQL as another user, who needs access.
    folder.chmod(0o755)
    server = Server(folder)
    try:
        print(f"test-schemathesis: seed {options.seed}, {options.examples} examples, {server.root_url}", flush=True)
        operations = server.operations()
        code = run(server, options, folder / "tally.json")
        alive = server.process.poll() is None
    finally:
        ended = server.stop()
    faults = server.faults()
    unreached = [] if options.more else not_reached(operations, folder / "tally.json")
    if code == 0 and alive and ended == 0 and not faults and not unreached:
        shutil.rmtree(folder)
        return 0
    for fault in faults[:20]:
        print(f"test-schemathesis: the server's log has: {fault}", file=sys.stderr)
    if unreached:
        print(f"test-schemathesis: never answered with success: {'; '.join(unreached)}", file=sys.stderr)
    if not alive or ended != 0:
        print(f"test-schemathesis: the server ended with {ended}", file=sys.stderr)
    print(f"test-schemathesis: the server's log is {server.log}", file=sys.stderr)
    return code or 1


if __name__ == "__main__":
    sys.exit(main())
