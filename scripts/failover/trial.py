"""Breaks the set-up under load, fault by fault, and accounts for every task that was acknowledged. See scripts/try-failover."""

import argparse
import collections
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from configuration import write
from load import Load
from wait import until

#: How long load runs before a fault, and after the first success that follows it.
BEFORE_SECONDS, AFTER_SECONDS = 5, 10
#: How long a frozen node stays frozen: longer than `ttl`, so that another one is promoted meanwhile.
FROZEN_SECONDS = 50
#: Until when a task must be completed when nothing is broken: above `--claim-timeout`, as a claim may have been lost.
COMPLETED_WITHIN_SECONDS = 100


def kill_postgres(cluster, leader):
    """kill -9 of the primary's PostgreSQL; Patroni lives"""
    cluster.signal_all(cluster.postgres(leader), signal.SIGKILL)


def kill_node(cluster, leader):
    """kill -9 of the primary's Patroni and PostgreSQL, as when its machine is lost"""
    cluster.signal_all([cluster.patroni(leader), *cluster.postgres(leader)], signal.SIGKILL)
    cluster.reap(f"patroni{leader}")


def kill_patroni(cluster, leader):
    """kill -9 of the primary's Patroni; its PostgreSQL goes on without it"""
    cluster.signal_all([cluster.patroni(leader)], signal.SIGKILL)
    cluster.reap(f"patroni{leader}")


def stop_node(cluster, leader):
    """SIGTERM to the primary's Patroni, as at a reboot"""
    cluster.signal_all([cluster.patroni(leader)], signal.SIGTERM)
    cluster.reap(f"patroni{leader}")


def switchover(cluster, leader):
    """patronictl switchover to the synchronous standby"""
    cluster.patronictl("switchover", "tenure", "--leader", f"node{leader}", "--candidate", f"node{cluster.standby()}", "--force")


def freeze_node(cluster, leader):
    """SIGSTOP of the primary's Patroni and PostgreSQL, SIGCONT after 50 s, as when a virtual machine is suspended"""
    frozen = [cluster.patroni(leader), *cluster.postgres(leader)]
    cluster.signal_all(frozen, signal.SIGSTOP)
    return lambda: cluster.signal_all(frozen, signal.SIGCONT)


def freeze_postgres(cluster, leader):
    """SIGSTOP of the primary's PostgreSQL alone, SIGCONT after 50 s"""
    frozen = cluster.postgres(leader)
    cluster.signal_all(frozen, signal.SIGSTOP)
    return lambda: cluster.signal_all(frozen, signal.SIGCONT)


def kill_standby(cluster, _leader):
    """kill -9 of the synchronous standby's Patroni and PostgreSQL"""
    standby = cluster.standby()
    cluster.signal_all([cluster.patroni(standby), *cluster.postgres(standby)], signal.SIGKILL)
    cluster.reap(f"patroni{standby}")


def kill_etcd(cluster, leader):
    """kill -9 of the etcd beside the primary"""
    cluster.processes[f"etcd{leader}"].kill()
    cluster.reap(f"etcd{leader}")


def kill_server(cluster, _leader):
    """kill -9 of one of the two Tenure servers"""
    cluster.processes["tenure4"].kill()
    cluster.reap("tenure4")


FAILOVERS = [kill_postgres, kill_node, kill_patroni, stop_node, switchover, freeze_node, freeze_postgres]
OTHERS = [kill_standby, kill_etcd, kill_server]
BY_NAME = {fault.__name__.replace("_", "-"): fault for fault in FAILOVERS + OTHERS}


def one(cluster, load, name):
    """One fault, from load before it to nothing left to do; its row."""
    cluster.repair()
    started = time.monotonic()
    time.sleep(BEFORE_SECONDS)
    leader = cluster.leader()
    fault = time.monotonic()
    undo = BY_NAME[name](cluster, leader)
    if undo is not None:
        time.sleep(FROZEN_SECONDS)
        undo()
    if BY_NAME[name] in FAILOVERS:
        until("another primary", lambda: cluster.with_role("leader") not in (None, leader))
    until("a success", lambda: load.first_success("create", fault) and load.first_success("report", fault))
    time.sleep(AFTER_SECONDS)
    cluster.repair()
    # Load goes on through the repair: a node that comes back is part of the fault.
    time.sleep(2)
    ended = time.monotonic()
    tasks = load.window(started, ended)
    deadline = time.monotonic() + COMPLETED_WITHIN_SECONDS
    while load.incomplete(tasks) and time.monotonic() < deadline:
        time.sleep(0.5)
    states = load.states(tasks)
    others = [(what, status, retry) for when, what, status, retry, _ in load.answers if started <= when < ended]
    return {
        "fault": name,
        "create": load.longest_pause("create", fault),
        "claim": load.longest_pause("claim", fault),
        "acknowledged": len(tasks),
        "completed": sum(state == "completed" for state in states.values()),
        "twice": load.twice(tasks),
        "lost": sum(state is None for state in states.values()),
        "left": sum(state not in (None, "completed") for state in states.values()),
        "primary": f"{leader} → {cluster.leader()}",
        "answers": collections.Counter(
            f"{what} {status or 'cut'}{'' if retry or status != 503 else ' without Retry-After'}" for what, status, retry in others
        ),
    }


HEAD = ("fault", "primary", "creates again after", "paused for", "claims again after", "acknowledged", "completed", "twice", "lost", "stranded")


def cells(row):
    (paused, create), (_, claim) = row["create"], row["claim"]
    return (
        row["fault"], row["primary"], f"{create:.1f} s", f"{paused:.1f} s", f"{claim:.1f} s", row["acknowledged"], row["completed"],
        row["twice"], row["lost"], row["left"],
    )


def line(values):
    return "| " + " | ".join(map(str, values)) + " |"


def versions(cluster, tenure):
    def first(*command):
        # Some print their version to standard error.
        done = subprocess.run(command, capture_output=True, text=True)
        return (done.stdout or done.stderr).splitlines()[0].strip()

    patroni = first(sys.executable, Path(sys.executable).parent / "patroni", "--version")
    print(f"{platform.platform()}, {os.cpu_count()} processors; {first(cluster.pg_bin / 'postgres', '--version')}; {patroni};")
    print(f"{first('etcd', '--version')}; {first('haproxy', '-v')}; {first(tenure, '--version')}; watchdog off: three nodes share this machine", flush=True)


def trial(folder, faults, rounds):
    """Prints the table; gives back the exit code."""
    # Here, because it needs what is installed with Patroni; the lists do without.
    from cluster import Cluster

    tenure, cluster, rows = os.environ["TENURE_BIN"], Cluster(folder), []
    versions(cluster, tenure)
    try:
        cluster.start_all(tenure)
        load = Load(f"{cluster.network}6", 8080, cluster.token)
        print(line(HEAD) + "\n" + line("---" for _ in HEAD), flush=True)
        for name in faults * rounds:
            rows.append(one(cluster, load, name))
            print(line(cells(rows[-1])), flush=True)
        load.stop()
        time.sleep(1)
        print("\nother answers than success, repeated by the caller:")
        for row in rows:
            print(f"  {row['fault']}: " + (", ".join(f"{n} × {what}" for what, n in sorted(row["answers"].items())) or "none"))
        bad = sum(row["lost"] + row["left"] + row["twice"] for row in rows)
        total = sum(row["acknowledged"] for row in rows)
        print(f"\n{total} tasks were acknowledged; {bad} were lost, stranded or completed twice")
        return 1 if bad else 0
    finally:
        # A second signal, as of an impatient Ctrl-C, would leave what was not ended yet: each is in a session of its own.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        cluster.stop()


def main():
    parser = argparse.ArgumentParser(prog="scripts/try-failover")
    parser.add_argument("faults", nargs="*", metavar="FAULT")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--files", type=Path)
    options = parser.parse_args()
    if options.list:
        for name, fault in BY_NAME.items():
            print(f"{name:16} {fault.__doc__}")
        return 0
    if options.files:
        options.files.mkdir(parents=True, exist_ok=True)
        write(options.files, "127.83.0.", Path("/usr/lib/postgresql/15/bin"), watchdog=False)
        return 0
    unknown = [name for name in options.faults if name not in BY_NAME]
    if unknown:
        parser.error(f"there is no fault {', '.join(unknown)}; --list names them")
    folder = Path(tempfile.mkdtemp(prefix="tenure-failover."))
    # PostgreSQL's user must be able to enter.
    folder.chmod(0o755)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        return trial(folder, options.faults or list(BY_NAME), options.rounds)
    finally:
        if options.keep:
            print(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
