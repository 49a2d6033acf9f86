"""The nodes of a cluster, as commands ask them: each with a deadline, so that a silent one costs a
line and a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.selection import exists

if TYPE_CHECKING:
    from pgflow.inspect import NodeRow
    from pgflow.inspect.nodes import Asked

T = TypeVar("T")


def nodes_of(database: Database) -> list[NodeRow]:
    """Return the nodes of the cluster that a database is a node of.

    Raises:
        Mistake: It is none.
    """
    import psycopg

    try:
        return database.ask(inspect.list_nodes())
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable) as error:
        raise Mistake(
            "the database is not a node of a cluster: see `pgflow cluster init --help`"
        ) from error


def dsn_of(database: Database, number: int) -> str:
    """Return the connection string of a node.

    Raises:
        Mistake: The cluster has no such node.
    """
    from pgflow.inspect.nodes import dsn_of_node

    nodes = nodes_of(database)
    for node in nodes:
        if node.node == number:
            return dsn_of_node(database.dsn, node)
    known = ", ".join(str(node.node) for node in nodes)
    raise Mistake(f"the cluster has no node {number}: it has {known}")


def ask_all(database: Database, question: Callable[[Database], T]) -> Iterator[Asked]:
    """Ask each node of the cluster, in turn.

    Args:
        database: A node.
        question: Asks the database of one.
    """
    from pgflow.inspect.nodes import ask_nodes

    def ask(dsn: str) -> T:
        with Database(dsn) as there:
            return question(there)

    return ask_nodes(database.dsn, nodes_of(database), ask)


def database_with(database: Database, key: str) -> Database:
    """Return the database of the node that has a run.

    Raises:
        Mistake: No node that answers has it; the message names those that are silent.
    """
    from pgflow.inspect.nodes import dsn_of_node

    silent = []
    for asked in ask_all(database, lambda there: exists(there, key)):
        if asked.silence is not None:
            silent.append(f"node {asked.node.node} is silent: {asked.silence}")
        elif asked.answer:
            return Database(dsn_of_node(database.dsn, asked.node), database.form)
    raise Mistake("; ".join([f"no node has run {key!r}", *silent]))
