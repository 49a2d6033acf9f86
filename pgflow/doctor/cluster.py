"""The nodes of a cluster, of which the database is one, and of Citus."""

from __future__ import annotations

from collections.abc import Iterator

from pgflow import inspect
from pgflow.console.output import duration, many
from pgflow.doctor.finding import Findings, Patient, fail, ok, warn
from pgflow.inspect.connecting import connect
from pgflow.inspect.nodes import ask_nodes

LATE_SECONDS = 60
"""Age of a letter that should have arrived. Couriers look ten times in a second."""


def check_cluster(patient: Patient) -> Findings:
    """Yield a line for each node: whether it answers, its versions, its letters and couriers."""
    own = patient.ask(inspect.this_node())
    if own is None:
        yield ok("this database is not a node of a cluster")
        return
    version = patient.ask(inspect.read_standing()).version
    nodes = patient.ask(inspect.list_nodes())
    for asked in ask_nodes(patient.dsn, nodes, _read_standing):
        if isinstance(asked.answer, inspect.NodeStanding):
            yield from _check_node(asked.node, asked.answer, version)
        else:
            remedy = "start its server; runs of other nodes go on, and letters to it wait"
            yield warn(f"{_name(asked.node)} is silent: {asked.silence}", remedy)


def _read_standing(dsn: str) -> inspect.NodeStanding:
    with connect(dsn) as connection:
        return inspect.ask(connection, inspect.read_standing())


def _name(node: inspect.NodeRow) -> str:
    closed = ", closed" if node.state == "closed" else ""
    return f"node {node.node} ({node.host}:{node.port}/{node.dbname}{closed})"


def _check_node(node: inspect.NodeRow, found: inspect.NodeStanding, version: str) -> Findings:
    troubles = [*_check_versions(found, version), *_check_letters(node, found)]
    for what, remedy in troubles:
        yield warn(f"{_name(node)} {what}", remedy)
    if not troubles:
        release = found.version.partition(" (")[0]
        letters, couriers = many(found.letters, "letter"), many(found.couriers, "courier")
        yield ok(f"{_name(node)} answers: {release}, {letters} waiting, {couriers}")


def _check_versions(found: inspect.NodeStanding, version: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the versions of a node, and the remedy."""
    if found.version != version:
        both = f"has the schema of {found.version}, and this database that of {version}"
        yield both, "pgflow migrate, with the newer version, on the other"
    if found.layer != found.version:
        layer = found.layer or "an older version"
        both = f"has the cluster layer of {layer}, and the schema of {found.version}"
        yield both, "pgflow cluster init or pgflow cluster join again, with that version"


def _check_letters(node: inspect.NodeRow, found: inspect.NodeStanding) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the letters of a node, and the remedy."""
    waiting = many(found.letters, "letter")
    late = (found.read_at - (found.oldest_at or found.read_at)).total_seconds()
    if found.letters and not found.couriers:
        remedy = f"pgflow workers MODULE --node {node.node}, with an app of the cluster"
        yield f"has no courier, and {waiting} to other nodes", remedy
    elif late > LATE_SECONDS:
        remedy = "the column error of pgflow_cluster.outbox there has the reasons"
        yield f"has had {waiting} for up to {duration(late)}", remedy
    if found.dead:
        reasons = "pgflow_cluster.dead there has the reasons"
        remedy = f"{reasons}; delete its rows when you have seen to them"
        yield f"has {many(found.dead, 'letter')} that no node will take", remedy


RECOVERY_SECONDS = 5.0
"""Longest time for which a committed row may be invisible after the death of a node. Citus's
default is a minute.
"""

_NODE = """
select exists (select from pg_extension where extname = 'citus') as is_node,
  (select count(*) from pg_class c where c.relnamespace = 'pgflow'::regnamespace
    and c.relkind in ('r', 'p') and not c.relispartition
    and not exists (select from pg_trigger t where t.tgrelid = c.oid and t.tgname = 'two_phase')
  ) as unguarded,
  current_setting('max_prepared_transactions')::int as prepared,
  extract(epoch from current_setting('citus.recover_2pc_interval', true)::interval)::float8
    as recovery_seconds
"""


def check_citus(patient: Patient) -> Findings:
    """On a node of Citus, a transaction commits on all nodes or on none, and soon everywhere."""
    row = patient.row(_NODE)
    if not row["is_node"] or not patient.row("select count(*) as nodes from pg_dist_node")["nodes"]:
        yield ok("this server is not a node of Citus")
        return
    if row["unguarded"]:
        yield fail(
            f"{row['unguarded']} tables of pgflow commit in one phase beside a remote shard: a "
            "step may happen twice after a crash",
            "pgflow migrate, on the coordinator first",
        )
    if row["prepared"] == 0:
        yield fail(
            "max_prepared_transactions is 0: no transaction of several nodes can commit",
            "alter system set max_prepared_transactions = 200, and restart the server",
        )
    seconds = row["recovery_seconds"]
    if seconds is not None and not 0 < seconds <= RECOVERY_SECONDS:
        interval = duration(seconds) if seconds > 0 else "off"
        text = "after the death of a node, the next step may not see committed rows for as long"
        yield warn(
            f"citus.recover_2pc_interval is {interval}: {text}",
            "alter system set citus.recover_2pc_interval = '5s'; select pg_reload_conf()",
        )
    if not row["unguarded"] and row["prepared"]:
        yield ok("transactions of several nodes commit in two phases")
