"""Connection strings of the nodes of a cluster."""

from __future__ import annotations

import os
from typing import Protocol

from psycopg.conninfo import make_conninfo

from pgflow._db.dsn import resolve_dsn


class Address(Protocol):
    """Number of a node, and where its database is."""

    @property
    def node(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> str: ...
    @property
    def dbname(self) -> str: ...


def dsn_of_node(dsn: str, node: Address) -> str:
    """Return the connection string of a node: the address that it joined the cluster with, and all
    else as of another node. ``PGFLOW_NODE_2_DSN`` takes its place for node 2.

    Args:
        dsn: Connection string of any node.
        node: The node.

    Raises:
        InvalidArgument: The variable is set and empty, or names another kind of database.
    """
    given = os.environ.get(f"PGFLOW_NODE_{node.node}_DSN")
    if given is not None:
        return resolve_dsn(given) or given
    return make_conninfo(dsn, host=node.host, port=node.port, dbname=node.dbname, hostaddr=None)
