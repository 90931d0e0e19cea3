"""Runs the rows of `scripts/bench peers` on every peer in turn, and prints the table.

docs/internals/peers.md describes rows and columns. The servers run already; files of descriptions
name them, as `scripts/bench-services` writes them. The programs of the peers are installed.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import urllib.parse

HERE = pathlib.Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
# Time that a program may take besides its warm-up and its window, to start and to finish its jobs.
SLACK_SECONDS = 180

ROWS = {
    "enqueue": "Enqueue one by one, 64 producers",
    "batches": "Enqueue by 100, 16 producers",
    "life16": "Whole life, 16 workers",
    "life64": "Whole life, 64 workers",
    "pickup": "Pick-up by an idle worker",
}
BRIEF = {
    "enqueue": "enqueued /s",
    "batches": "by 100 /s",
    "life16": "16 workers /s",
    "life64": "64 workers /s",
    "pickup": "pick-up p50 / p99 ms",
}
# Arguments of a peer's program: its row, and the number of workers.
PEER_ROWS = {
    "enqueue": ("enqueue", "0"),
    "batches": ("batches", "0"),
    "life16": ("life", "16"),
    "life64": ("life", "64"),
    "pickup": ("pickup", "8"),
}
TENURE_ROWS = {
    "enqueue": ("create", "--connections", "64"),
    "batches": ("create100", "--connections", "16"),
    "life16": ("shift", "--workers", "16"),
    "life64": ("shift", "--workers", "64"),
    "pickup": ("pickup", "--connections", "8"),
}
WORK_ROWS = {row: ("shift-work", *TENURE_ROWS[row][1:]) for row in ("life16", "life64")}


class Failed(Exception):
    pass


def stat(pid):
    """Returns the parent and the processor seconds of a process and of its reaped children."""
    # The name may contain spaces and parentheses.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[1]), sum(map(int, fields[11:15])) / TICKS


def processor_seconds(root):
    """Returns the processor seconds of a process and its descendants. The sum never falls."""
    parents, seconds = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)], seconds[int(entry)] = stat(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                continue
    family, found = {root}, 0
    while len(family) > found:
        found = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sum(seconds.get(pid, 0) for pid in family)


class Postgres:
    """A cluster with an empty database for each measurement."""

    def __init__(self, description):
        self.pid = description["pgPid"]
        url = urllib.parse.urlsplit(description["databaseUrl"])
        query = dict(urllib.parse.parse_qsl(url.query))
        self.owner = {
            "PGHOST": query["host"],
            "PGPORT": query["port"],
            "PGUSER": url.username,
            "PGPASSWORD": url.password,
            "PGDATABASE": url.path[1:],
        }
        self.environment = {**self.owner, "PGDATABASE": "peers"}

    def ask(self, statement):
        found = sorted(pathlib.Path("/").glob("usr/lib/postgresql/*/bin/psql"))
        psql = shutil.which("psql") or (found and found[-1])
        if not psql:
            raise Failed("psql is missing; install PostgreSQL's client")
        command = [psql, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
        done = subprocess.run(
            [*command, f"--command={statement}"],
            env={**os.environ, **self.owner, "PGOPTIONS": "--client-min-messages=warning"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Failed(f"PostgreSQL refuses {statement!r}: {done.stderr.strip()}")
        return done.stdout.strip()

    def empty(self):
        self.ask("DROP DATABASE IF EXISTS peers WITH (FORCE)")
        self.ask("CREATE DATABASE peers")
        self.ask("CHECKPOINT")

    def settings(self):
        names = "'fsync', 'full_page_writes', 'server_version', 'synchronous_commit'"
        listed = "string_agg(name || '=' || setting, ' ' ORDER BY name)"
        return self.ask(f"SELECT {listed} FROM pg_settings WHERE name IN ({names})")


class Redis:
    def __init__(self, description):
        self.pid = description["serverPid"]
        self.port = description["port"]
        self.environment = {"REDIS_PORT": str(self.port)}

    def ask(self, command):
        with socket.create_connection(("127.0.0.1", self.port), timeout=SLACK_SECONDS) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(1 << 16).decode()

    def empty(self):
        if not self.ask("FLUSHALL").startswith("+OK"):
            raise Failed("Redis does not empty its database")

    def settings(self):
        version = re.search(r"redis_version:(\S+)", self.ask("INFO server"))[1]
        return f"{version} appendonly=yes appendfsync={self.ask('CONFIG GET appendfsync').split()[-1]}"


class RabbitMq:
    """Its program makes a queue of its own and deletes it."""

    def __init__(self, description):
        self.pid = description["serverPid"]
        self.environment = {"AMQP_URL": description["amqpUrl"]}

    def empty(self):
        pass

    def settings(self):
        folders = pathlib.Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
        version = ", ".join(folder.name.partition("-")[2] for folder in folders)
        return f"{version} durable quorum queue, persistent messages, publisher confirms"


class Peer:
    """A queue whose program makes the load, counts, and tells when its window begins and ends."""

    def __init__(self, name, command, store, version, environment=None):
        self.name, self.command, self.store, self.version = name, command, store, version
        self.environment = environment or {}
        self.rows = PEER_ROWS

    def measure(self, row, options):
        self.store.empty()
        arguments = [*self.command, *PEER_ROWS[row], str(options.seconds), str(options.warmup)]
        environment = {**os.environ, **self.store.environment, **self.environment, "PYTHONDONTWRITEBYTECODE": "1"}
        with open(options.folder / "peer.err", "w+") as errors:
            process = subprocess.Popen(
                arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            limit = threading.Timer(options.seconds + options.warmup + SLACK_SECONDS, process.kill)
            limit.start()
            try:
                figures = self.follow(process)
            finally:
                limit.cancel()
                process.kill()
                process.wait()
            errors.seek(0)
            if figures is None:
                raise Failed(f"{self.name} failed: {errors.read()[-2000:].strip() or 'no result'}")
            return figures

    def follow(self, process):
        spent, end, result = {}, None, None
        for line in process.stdout:
            told = json.loads(line)
            if told["event"] in ("begin", "end"):
                spent[told["event"]] = processor_seconds(self.store.pid), processor_seconds(process.pid)
            end = told if told["event"] == "end" else end
            result = told if told["event"] == "result" else result
        if end is None or result is None:
            return None
        if end["jobs"] == 0:
            raise Failed(f"{self.name} did nothing within the window")
        store, generator = (after - before for before, after in zip(spent["begin"], spent["end"]))
        return {
            "jobsPerSecond": end["jobs"] / end["seconds"],
            "storeMicros": store / end["jobs"] * 1e6,
            "serverMicros": None,
            "generatorMicros": generator / end["jobs"] * 1e6,
            "p50Millis": result.get("p50"),
            "p99Millis": result.get("p99"),
            "lost": result["lost"],
        }


class Tenure:
    """Measured by the benchmark program, which fails if a task is lost."""

    version = None

    def __init__(self, name, rows, description, program):
        self.name, self.rows, self.program = name, rows, program
        self.store = Postgres(description)
        self.description = description

    def measure(self, row, options):
        self.store.ask("CHECKPOINT")
        command = [self.program, *self.rows[row], "--seconds", str(options.seconds), "--warmup", str(options.warmup)]
        described = self.description
        command += ["--credentials", described["credentials"], "--server-pid", str(described["serverPid"])]
        command += ["--pg-pid", str(described["pgPid"])]
        environment = {**os.environ, "TENURE_BENCH_DATABASE_URL": described["databaseUrl"]}
        limit = options.seconds + options.warmup + SLACK_SECONDS
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
        if done.returncode or len(lines) != 3:
            raise Failed(f"{self.name} failed: {done.stderr.strip()}")
        return self.read(lines)

    def read(self, lines):
        names, values = ([cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], lines[2]))
        cells = dict(zip(names, values))
        rate = float(cells["tasks/s"])
        tasks = rate * float(cells["seconds"])
        if tasks == 0:
            raise Failed(f"{self.name} did nothing within the window")
        micros = lambda name: float(cells[name]) / tasks * 1e6
        p50, p99 = map(float, cells.get("pickup p50 / p99 ms", "nan / nan").split(" / "))
        if int(cells["failed"]):
            print(f"{self.name}: {cells['failed']} requests failed", file=sys.stderr)
        return {
            "jobsPerSecond": rate,
            "storeMicros": micros("PostgreSQL CPU s"),
            "serverMicros": micros("server CPU s"),
            "generatorMicros": micros("generator CPU s"),
            "p50Millis": None if p50 != p50 else p50,
            "p99Millis": None if p99 != p99 else p99,
            "lost": 0,
        }


def contestants(options):
    describe = lambda name: json.loads((options.folder / f"{name}.json").read_text())
    node = json.loads((HERE / "node/package.json").read_text())["dependencies"]
    river = re.search(r"riverqueue/river (\S+)", (HERE / "go/go.mod").read_text())[1]
    procrastinate = re.search(r"^procrastinate==(\S+)", (HERE / "procrastinate/requirements.txt").read_text(), re.M)[1]
    program = lambda name: [options.node, options.installed / "node" / f"{name}.mjs"]
    postgres = Postgres(describe("postgres"))
    bench = options.programs / "tenure-bench"
    tenure = describe("tenure")
    return [
        Tenure("Tenure", TENURE_ROWS, tenure, bench),
        Tenure("Tenure, work", WORK_ROWS, tenure, bench),
        Peer("RabbitMQ", [options.installed / "bin/rabbitmq"], RabbitMq(describe("rabbitmq")), None),
        *(
            Peer(f"BullMQ, {policy}", program("bullmq"), Redis(describe(f"redis-{policy}")), node["bullmq"])
            for policy in ("everysec", "always")
        ),
        Peer("graphile-worker", program("graphile-worker"), postgres, node["graphile-worker"]),
        Peer("pg-boss", program("pg-boss"), postgres, node["pg-boss"]),
        Peer("pg-boss, notify", program("pg-boss"), postgres, node["pg-boss"], {"PG_BOSS_NOTIFY": "yes"}),
        Peer("River", [options.installed / "bin/river"], postgres, river),
        Peer("procrastinate", [options.python, HERE / "procrastinate/peer.py"], postgres, procrastinate),
    ]


def merit(row, figures):
    """Returns what Tenure and a peer are compared by; more is better."""
    return 1 / figures["p50Millis"] if row == "pickup" else figures["jobsPerSecond"]


def median(rounds, figure):
    values = [each[figure] for each in rounds if each[figure] is not None]
    return statistics.median(values) if values else None


def ratio(row, results, name):
    """Returns the median over the rounds of Tenure's better figure divided by the peer's."""
    ratios = []
    for number, figures in results[name].items():
        own = [results[each][number] for each in results if each.startswith("Tenure") and number in results[each]]
        if own:
            ratios.append(max(merit(row, each) for each in own) / merit(row, figures))
    return statistics.median(ratios) if ratios else None


def shown(value, digits=0):
    return "–" if value is None else f"{value:,.{digits}f}"


def render(row, results):
    latency = row == "pickup"
    lines = [f"### {ROWS[row]}", ""]
    head = "p50 ms | p99 ms" if latency else "jobs/s"
    lines.append(f"| queue | {head} | Tenure against it | µs of store | of server | of program |")
    lines.append("|---|" + "---|" * (6 if latency else 5))
    for name, rounds in results.items():
        each = list(rounds.values())
        if not each:
            continue
        if latency:
            cells = [shown(median(each, "p50Millis"), 2), shown(median(each, "p99Millis"), 2)]
        else:
            cells = [shown(median(each, "jobsPerSecond"))]
        against = None if name.startswith("Tenure") else ratio(row, results, name)
        cells.append(shown(against, 2))
        cells += [shown(median(each, f"{part}Micros")) for part in ("store", "server", "generator")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def summary(results):
    """Returns one table of all rows, with Tenure's figure against each in brackets."""
    rows = list(results)
    lines = [f"| queue | {' | '.join(BRIEF[row] for row in rows)} |", "|---|" + "---|" * len(rows)]
    names = dict.fromkeys(name for by_name in results.values() for name in by_name)
    for name in names:
        cells = []
        for row in rows:
            each = list(results[row].get(name, {}).values())
            if not each:
                cells.append("–")
                continue
            cell = shown(median(each, "jobsPerSecond"))
            if row == "pickup":
                cell = f"{shown(median(each, 'p50Millis'), 2)} / {shown(median(each, 'p99Millis'), 2)}"
            against = None if name.startswith("Tenure") else ratio(row, results[row], name)
            cells.append(cell if against is None else f"{cell} ({against:.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def losses(results):
    """Lists where Tenure is slower, by row."""
    lines = []
    for row, by_name in results.items():
        ratios = {name: ratio(row, by_name, name) for name in by_name if not name.startswith("Tenure")}
        slower = [f"{name} ({value:.2f})" for name, value in ratios.items() if value is not None and value < 1]
        missing = [name for name, value in ratios.items() if value is None]
        lines.append(f"- {ROWS[row]}: {', '.join(slower) or 'to none'}")
        if missing:
            lines[-1] += f"; without a figure for {', '.join(missing)}"
    return ["### Where Tenure loses", "", *lines]


def measure_all(options, queues):
    """Runs every row in rounds, each of which begins with another queue."""
    results, failures = {}, []
    for row in options.rows:
        taking = [queue for queue in queues if row in queue.rows]
        results[row] = {queue.name: {} for queue in taking}
        for number in range(options.rounds):
            for turn in range(len(taking)):
                queue = taking[(number + turn) % len(taking)]
                print(f"{row}, round {number + 1}: {queue.name}", file=sys.stderr, flush=True)
                try:
                    figures = queue.measure(row, options)
                except (Failed, subprocess.TimeoutExpired) as error:
                    failures.append(f"{row}, round {number + 1}: {error}")
                    continue
                if figures["lost"]:
                    failures.append(f"{row}, round {number + 1}: {queue.name} lost {figures['lost']} jobs")
                if row == "pickup" and figures["p50Millis"] is None:
                    failures.append(f"{row}, round {number + 1}: {queue.name} has no latency")
                    continue
                results[row][queue.name][number] = figures
    return results, failures


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench peers")
    names = lambda text: text.split(",")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each queue")
    parser.add_argument("--seconds", type=int, default=5, help="seconds of each measurement")
    parser.add_argument("--warmup", type=int, default=3, help="seconds before each measurement")
    parser.add_argument("--rows", type=names, default=list(ROWS), help=f"of {','.join(ROWS)}")
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures of all rounds")
    for name in ("folder", "programs", "installed", "node", "python"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown or options.rounds < 1 or options.seconds < 1 or options.warmup < 0:
        parser.error(f"there is no row {unknown[0]}" if unknown else "a number is too small")
    return options


def main():
    options = arguments()
    queues = contestants(options)
    stores = {queue.name: queue.store.settings() for queue in queues}
    results, failures = measure_all(options, queues)
    about = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "warmup": options.warmup,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {queue.name: queue.version for queue in queues if queue.version},
        "stores": stores,
    }
    if options.json:
        listed = {
            row: {name: list(rounds.values()) for name, rounds in by_name.items()} for row, by_name in results.items()
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**about, "rows": listed, "failures": failures}, indent=1) + "\n")
    print(f"Rounds: {options.rounds}, of {options.seconds} s; medians. Processors: {os.cpu_count()}.")
    print("", *summary(results), sep="\n")
    for row in options.rows:
        print("", *render(row, results[row]), sep="\n")
    print("", *losses(results), sep="\n")
    print("", "### Versions and settings", "", sep="\n")
    for name, settings in stores.items():
        version = about["versions"].get(name)
        print(f"- {name}: {f'{version}; ' if version else ''}{settings}")
    for failure in failures:
        print(f"scripts/bench peers: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
