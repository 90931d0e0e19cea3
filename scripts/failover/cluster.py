"""The set-up of the document as processes of this machine: three nodes with etcd, Patroni and PostgreSQL, three HAProxy, two
servers. Everything listens on addresses of 127.0.0.0/8 that nothing else uses, with the ports of the document."""

import base64
import json
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import psycopg2

from configuration import NODES, SERVERS, write
from wait import until

PORTS = (2379, 2380, 5000, 5432, 8008, 8080)


def free_network():
    """The first three numbers of addresses on which nothing listens."""
    while True:
        network = f"127.{random.randint(20, 250)}.{random.randint(1, 250)}."
        try:
            for host in range(1, 7):
                for port in PORTS:
                    with socket.socket() as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((f"{network}{host}", port))
        except OSError:
            continue
        return network


def pg_bin():
    """The newest PostgreSQL of Debian's packages from 15 on."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres") if int(path.parts[4]) >= 15]
    if not found:
        raise SystemExit("try-failover: PostgreSQL 15 or later is missing; on Debian: apt-get install postgresql")
    return max(found, key=lambda path: int(path.parts[4]))


class Cluster:
    """All processes, and what they know of each other."""

    def __init__(self, folder):
        self.folder, self.network, self.processes = folder, free_network(), {}
        self.commands = {}
        # PostgreSQL refuses to run as root.
        self.as_postgres = []
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            self.as_postgres = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
        self.pg_bin = pg_bin()
        self.files = write(folder, self.network, self.pg_bin, watchdog=False)
        for name in [f"etcd{n}" for n in NODES] + [f"node{n}" for n in NODES]:
            (folder / name).mkdir(mode=0o700)
            if self.as_postgres:
                shutil.chown(folder / name, "postgres", "postgres")

    def start(self, name, command, as_postgres=False, environment=None):
        """Starts a program of the set-up; its output goes to a file with its name."""
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(
            [*(self.as_postgres if as_postgres else []), *map(str, command)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def start_patroni(self, node):
        command = [sys.executable, Path(sys.executable).parent / "patroni", self.files[f"patroni{node}.yml"]]
        # It keeps a file of passwords in its home.
        home = {"HOME": str(self.folder / f"node{node}")}
        self.start(f"patroni{node}", command, as_postgres=True, environment=home)

    def start_all(self, tenure):
        for node in NODES:
            self.start_etcd(node)
        until("etcd", lambda: self.get(f"{self.network}1:2379/health")[1].get("health") == "true")
        for node in NODES:
            self.start_patroni(node)
        until("three nodes", self.healthy)
        self.make_database()
        for server in SERVERS:
            self.start(f"haproxy-database{server}", ["haproxy", "-db", "-f", self.files[f"haproxy-database{server}.cfg"]])
            # It takes all nodes for good until it has asked them.
            until("HAProxy to have found the primary", lambda: self.takes_writes(f"{self.network}{server}"))
        self.secret = base64.b64encode(secrets.token_bytes(32)).decode()
        self.start_servers(tenure)
        self.start("haproxy-tenure", ["haproxy", "-db", "-f", self.files["haproxy-tenure.cfg"]])
        until("the balancer", lambda: self.get(f"{self.network}6:8080/__heartbeat__")[0] == 200)

    def environment(self, server):
        """What a server is given, and the command that makes the client."""
        return {
            "DATABASE_URL": f"postgres://tenure:{self.password}@{self.network}{server}:5000/tenure",
            "TENURE_SECRET_KEY": self.secret,
        }

    def start_servers(self, tenure):
        (self.folder / "artifacts").mkdir()
        for server in SERVERS:
            address = f"{self.network}{server}:8080"
            flags = ["--listen", address, "--root-url", f"http://{self.network}6:8080"]
            flags += ["--data-dir", self.folder / f"tenure{server}", "--artifacts-url", f"file://{self.folder}/artifacts"]
            # A claim whose answer was lost together with a server's memory of it is claimable again within the trial.
            flags += ["--claim-timeout", "60s"]
            self.commands[f"tenure{server}"] = [tenure, "serve", *flags]
            self.start_server(server)
            until(f"the server {address}", lambda: self.get(f"{address}/__heartbeat__")[0] == 200)
        command = [tenure, "client", "create", "root", "--scope", "*", "--json"]
        environment = {**os.environ, **self.environment(SERVERS[0])}
        made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        self.token = json.loads(made.stdout)["accessToken"]

    def start_server(self, server):
        name = f"tenure{server}"
        self.start(name, self.commands[name], environment=self.environment(server))

    def start_etcd(self, node):
        self.start(f"etcd{node}", ["etcd", "--config-file", self.files[f"etcd{node}.yml"]], as_postgres=True)

    def sql(self, node, database, *statements):
        session = psycopg2.connect(
            host=f"{self.network}{node}", dbname=database, user="postgres", password="choose-a-password", connect_timeout=5
        )
        session.autocommit = True
        with session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        session.close()

    def make_database(self):
        self.password = secrets.token_hex(8)
        self.sql(
            self.leader(), "postgres",
            f"CREATE ROLE tenure LOGIN PASSWORD '{self.password}'",
            "CREATE DATABASE tenure OWNER tenure ENCODING 'UTF8' TEMPLATE template0",
        )

    def get(self, address):
        """Status and JSON; status 0 if nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{address}", timeout=5) as answer:
                return answer.status, self.parsed(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, {}
        except OSError:
            return 0, {}

    @staticmethod
    def parsed(text):
        try:
            return json.loads(text)
        except ValueError:
            return {}

    def takes_writes(self, host):
        """Whether HAProxy there leads to the primary, several times in a row."""

        def once():
            session = psycopg2.connect(
                host=host, port=5000, dbname="tenure", user="tenure", password=self.password, connect_timeout=5
            )
            with session.cursor() as cursor:
                cursor.execute("SELECT pg_is_in_recovery()")
                standby = cursor.fetchone()[0]
            session.close()
            return not standby

        try:
            return all(once() for _ in range(3))
        except psycopg2.OperationalError:
            return False

    def members(self):
        """What the first Patroni that answers says of all nodes: number -> its entry."""
        for node in NODES:
            status, answer = self.get(f"{self.network}{node}:8008/cluster")
            if status and answer.get("members"):
                return {int(member["name"].removeprefix("node")): member for member in answer["members"]}
        return {}

    def with_role(self, role):
        """The one node in this role, if there is one."""
        found = [node for node, member in self.members().items() if member.get("role") == role]
        return found[0] if len(found) == 1 else None

    def leader(self):
        return until("a primary", lambda: self.with_role("leader"))

    def standby(self):
        return until("a synchronous standby", lambda: self.with_role("sync_standby"))

    def healthy(self):
        """All nodes run on one timeline, and one standby is synchronous."""
        members = self.members().values()
        roles = sorted(member.get("role") for member in members)
        # Older releases say `running` of standbys too.
        run = all(member.get("state") in ("running", "streaming") for member in members)
        synchronous = roles in (["leader", "replica", "sync_standby"], ["leader", "quorum_standby", "quorum_standby"])
        return synchronous and run and len({member.get("timeline") for member in members}) == 1

    def patroni(self, node):
        return psutil.Process(self.processes[f"patroni{node}"].pid)

    def postgres(self, node):
        """The postmaster of a node and its children; none if it does not run."""
        data = self.folder / f"node{node}" / "data"
        try:
            postmaster = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
            # The number may have gone to another program.
            if str(data) not in " ".join(postmaster.cmdline()):
                return []
            return [postmaster, *postmaster.children(recursive=True)]
        except (OSError, ValueError, IndexError, psutil.Error):
            return []

    def signal_all(self, processes, number):
        for process in processes:
            try:
                process.send_signal(number)
            except (psutil.NoSuchProcess, ProcessLookupError):
                pass

    def reap(self, name):
        """Waits until a program has ended."""
        self.processes[name].wait(30)

    def patronictl(self, *arguments):
        program = Path(sys.executable).parent / "patronictl"
        command = [sys.executable, program, "-c", self.files["patroni1.yml"], *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, cwd="/")
        if done.returncode:
            raise SystemExit(f"try-failover: patronictl {arguments[0]}: {done.stdout}{done.stderr}")

    def repair(self):
        """Starts what a fault has ended, and waits until all nodes are well."""
        again = {f"patroni{node}": (self.start_patroni, node) for node in NODES}
        again |= {f"etcd{node}": (self.start_etcd, node) for node in NODES}
        again |= {f"tenure{server}": (self.start_server, server) for server in SERVERS}

        def well():
            for name, (start, number) in again.items():
                if self.processes[name].poll() is not None:
                    start(number)
            return self.healthy()

        return until("three nodes that are well", well, 300)

    def stop(self):
        """Ends what this cluster started, and nothing else."""
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in [*running, *(p for node in NODES for p in self.postgres(node))]:
            self.signal_all([process], signal.SIGCONT)
        for kind in ("haproxy-tenure", "tenure", "haproxy-database", "patroni", "etcd"):
            for name in [name for name in self.processes if name.startswith(kind)]:
                # Patroni would stop PostgreSQL in good order, which waits for standbys that are gone.
                self.processes[name].send_signal(signal.SIGKILL if kind == "patroni" else signal.SIGTERM)
                try:
                    self.processes[name].wait(15)
                except subprocess.TimeoutExpired:
                    self.processes[name].kill()
            if kind == "patroni":
                stopped = [self.postgres(node)[:1] for node in NODES]
                for postmaster in stopped:
                    self.signal_all(postmaster, signal.SIGQUIT)
                psutil.wait_procs([process for postmaster in stopped for process in postmaster], timeout=15)
