"""The files of docs/high-availability.md, changed as little as a trial on one machine needs."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "high-availability.md"
#: The network of the document: nodes are .1 to .3, servers .4 and .5, the balancer .6.
NETWORK = "10.0.0."
NODES = (1, 2, 3)
SERVERS = (4, 5)
#: Lines that differ between nodes have this comment.
THIS_NODE = "# this node"


def block(name):
    """The block of code after the mark with this name."""
    found = re.search(rf"^<!-- tour: {re.escape(name)} -->\n```\w*\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    if found is None:
        raise SystemExit(f"try-failover: {DOCUMENT} has no block {name!r}")
    return found.group(1)


def replaced(text, old, new):
    """The text with another word in every place; there must be one."""
    if old not in text:
        raise SystemExit(f"try-failover: {DOCUMENT} does not have {old!r} where it is looked for")
    return text.replace(old, new)


def of_node(name, node):
    """A file of the document, which shows that of node 1, as it is on another node."""
    lines = block(name).splitlines()
    mine = [line for line in lines if THIS_NODE in line]
    if not mine:
        raise SystemExit(f"try-failover: {name} of {DOCUMENT} has no line {THIS_NODE!r}")
    for at, line in enumerate(lines):
        if THIS_NODE in line:
            lines[at] = line.replace("node1", f"node{node}").replace(f"{NETWORK}1", f"{NETWORK}{node}")
    return "\n".join(lines) + "\n"


def write(folder, network, pg_bin, watchdog):
    """Writes all files; gives back their paths by name. `network` is the trial's, such as `127.83.0.`."""
    folder, paths = Path(folder), {}

    def keep(name, text):
        text = replaced(text, NETWORK, network)
        paths[name] = folder / name
        paths[name].write_text(text)
        paths[name].chmod(0o644)

    for node in NODES:
        keep(f"etcd{node}.yml", replaced(of_node("etcd.yml", node), "/var/lib/etcd/tenure", f"{folder}/etcd{node}"))
        text = of_node("patroni.yml", node)
        text = replaced(text, "/var/lib/postgresql/15/tenure", f"{folder}/node{node}/data")
        text = replaced(text, "/usr/lib/postgresql/15/bin", str(pg_bin))
        text = replaced(text, "/var/run/postgresql", f"{folder}/node{node}")
        # HAProxy and the servers are on the loopback network too.
        text = replaced(text, f"{NETWORK}0/24", f"{network}0/24").replace(f"{network}0/24", "127.0.0.0/8")
        if not watchdog:
            text = replaced(text, "mode: required", "mode: off")
        keep(f"patroni{node}.yml", text)
    for server in SERVERS:
        text = replaced(block("haproxy-database.cfg"), "127.0.0.1:", f"{network}{server}:")
        keep(f"haproxy-database{server}.cfg", text)
    keep("haproxy-tenure.cfg", block("haproxy-tenure.cfg"))
    return paths
