"""The nodes of a cluster, and the letters that one has for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgflow._db.calls import cluster
from pgflow._db.nodes import dsn_of_node as dsn_of_node  # noqa: PLC0414 - offered here
from pgflow._db.query import Query
from pgflow.errors import SetupError
from pgflow.inspect.question import Question, Steps, all_rows, once, only_row, question

T = TypeVar("T")

CONNECT_SECONDS = 3
ANSWER_MILLISECONDS = 5000

_LETTERS: LiteralString = """
select pgflow_cluster.me() as node, (l->>'waiting')::bigint, (l->>'oldest_at')::timestamptz,
  (l->>'dead')::bigint, (l->>'open_runs')::bigint, (l->>'couriers')::bigint, l->>'version',
  l->>'layer', (l->>'read_at')::timestamptz
from pgflow_cluster.standing() l
"""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of a cluster.

    Attributes:
        node: Its number.
        host: Host by which other nodes reach it.
        port: Port of it.
        dbname: Name of its database.
        state: `open`, or `closed` for one that gets no new keys.
    """

    node: int
    host: str
    port: str
    dbname: str
    state: str


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """Letters and open runs of a node.

    Attributes:
        node: Its number.
        letters: Letters to other nodes that are not known to have arrived.
        oldest_at: Time of the oldest of these; None if there is none.
        dead: Letters that no node will take.
        open_runs: Runs that have not ended.
        couriers: Living workers of apps of the cluster, which bring letters to other nodes.
        version: Version of the schema ``pgflow``, as `migrate` has left it.
        layer: Version of the schema ``pgflow_cluster``, as `init` or `join` has left it.
        read_at: Time of this answer.
    """

    node: int
    letters: int
    oldest_at: datetime | None
    dead: int
    open_runs: int
    couriers: int
    version: str
    layer: str | None
    read_at: datetime


_IS_NODE: LiteralString = """
select has_schema_privilege(p.pronamespace, 'usage') and has_function_privilege(p.oid, 'execute')
from pg_proc p where p.pronamespace = to_regnamespace('pgflow_cluster') and p.proname = 'me'
"""


@question
def this_node() -> Steps[int | None]:
    """Ask for the number of the node; None if the database is not one of a cluster."""
    if not (yield Query(_IS_NODE, (), lambda rows: bool(rows and rows[0][0]))):
        return None
    number: int = yield cluster.this_node()
    return number


def list_nodes() -> Question[list[NodeRow]]:
    """Ask for the nodes of the cluster that the database is a node of, by number."""
    return all_rows(NodeRow, cluster.list_nodes().sql)


def node_of(key: str) -> Question[int | None]:
    """Ask for the node that a key was given to; None if it is in no directory.

    Args:
        key: The key.
    """
    return once(cluster.node_of(key, ""))


def read_standing() -> Question[NodeStanding]:
    """Ask a node for its letters and its open runs."""
    return only_row(NodeStanding, _LETTERS)


class Asked(NamedTuple):
    """Answer of a node, or the reason why it is silent."""

    node: NodeRow
    answer: Any
    silence: str | None


def ask_nodes(
    known: str, nodes: Sequence[NodeRow], question: Callable[[str], T]
) -> Iterator[Asked]:
    """Ask each of these nodes, in turn. Each has a deadline, so that a silent one costs seconds.

    Args:
        known: Connection string of a node.
        nodes: The nodes.
        question: Asks the node at a connection string.
    """
    for node in nodes:
        dsn = dsn_of_node(known, node)
        given = conninfo_to_dict(dsn).get("options") or ""
        options = f"{given} -c statement_timeout={ANSWER_MILLISECONDS}".strip()
        timed = make_conninfo(dsn, connect_timeout=CONNECT_SECONDS, options=options)
        try:
            answer = question(timed)
        except (psycopg.Error, SetupError, OSError, TimeoutError) as error:
            yield Asked(node, None, " ".join(str(error).split())[:200])
        else:
            yield Asked(node, answer, None)
