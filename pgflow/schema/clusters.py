"""The cluster layer: a schema of its own, `pgflow_cluster`, on each node of a cluster.

`pgflow migrate` knows nothing of it, so a database that is not a node stays as it is. There are two
kinds. On Citus the shared tables are distributed. Elsewhere the first node has them, and the others
reach them by postgres_fdw; a cluster may also be one node alone. Everything else is the same text,
`cluster/node.sql`, applied again by each `init` and `join`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from pgflow._db.calls.cluster import Node, list_nodes
from pgflow.assets import own_assets
from pgflow.errors import InvalidArgument, SetupError
from pgflow.schema._install import _PROPAGATE_NOTHING
from pgflow.schema._state import require_schema

_GROUND = """
select exists (select from pg_extension where extname = 'citus'),
  to_regprocedure('pgflow_cluster.me()') is not null
"""
_CITUS_NODE = "select groupid from pg_dist_local_group"
_CITUS_NODES = """
select groupid, nodename, nodeport::text, current_database()::text, 'open'
from pg_dist_node where noderole = 'primary' order by groupid
"""
_HAS_TABLES = "select relkind = 'r' from pg_class where oid = 'pgflow_cluster.key'::regclass"
_IDENTITY = sql.SQL("""
create or replace function pgflow_cluster.me() returns int language sql immutable
as 'select {node}';
comment on function pgflow_cluster.me() is 'Number of this node';
""")
_LAYER = sql.SQL("comment on schema pgflow_cluster is {stamp}")
_REGISTER = """
insert into pgflow_cluster.node (node, host, port, dbname, state, joined_at)
values (%s, %s, %s, %s, 'open', clock_timestamp())
"""
_MOVE = """
update pgflow_cluster.node set host = %s, port = %s, dbname = %s, state = 'open' where node = %s
"""

_FOREIGN = sql.SQL("""
-- The shared tables, as a node without Citus reaches those of the first node.
create extension if not exists postgres_fdw;
create schema if not exists pgflow_cluster;
drop server if exists pgflow_cluster_home cascade;
create server pgflow_cluster_home foreign data wrapper postgres_fdw
options (host {host}, port {port}, dbname {dbname});
create user mapping for public server pgflow_cluster_home options ({mapping});
create foreign table pgflow_cluster.node (
  node int not null, host text not null, port text not null, dbname text not null,
  state text not null, joined_at timestamptz not null
) server pgflow_cluster_home options (schema_name 'pgflow_cluster', table_name 'node');
create foreign table pgflow_cluster.key (
  tenant text not null, key text not null, node int not null, at timestamptz not null
) server pgflow_cluster_home options (schema_name 'pgflow_cluster', table_name 'key');
""")


@dataclass(frozen=True)
class ClusterNode:
    """A node of a cluster, as `init_cluster` and `join_cluster` leave it.

    Attributes:
        node: Its number.
        kind: `citus`, or `plain`.
        is_new: True if the database has just become a node.
    """

    node: int
    kind: str
    is_new: bool


class _Ground(NamedTuple):
    has_citus: bool
    number: int | None


def init_cluster(
    connection: psycopg.Connection[Any], *, node: int | None = None, address: str | None = None
) -> ClusterNode:
    """Make a database the first node of a cluster, in one transaction. You may run it again, which
    brings the layer up to date. On Citus, run it on the coordinator.

    Args:
        connection: A connection without an open transaction, as a role that may create schemas.
        node: Number of the node; 1 by default. On Citus it is that of its group, which is 0.
        address: Connection string with the host, port and database by which others reach the node;
            those of the connection by default.

    Raises:
        InvalidArgument: The address is not a connection string.
        SetupError: The schema `pgflow` is missing, or the database is a node of another number.
    """
    ground = _begin(connection)
    with connection.transaction():
        cursor = connection.cursor(row_factory=tuple_row)
        _share(cursor, ground)
        return _finish(cursor, ground, _number(cursor, ground, node), address)


def join_cluster(
    connection: psycopg.Connection[Any], home: str | None, *, node: int, address: str | None = None
) -> ClusterNode:
    """Make a database a node of a cluster, in one transaction. You may run it again.

    Args:
        connection: A connection without an open transaction; without Citus, as a superuser.
        home: Connection string of the first node, by which this server reaches it. On Citus it is
            not used.
        node: Number of the node, which no other has. On Citus, the number of its group.
        address: As of `init_cluster`.

    Raises:
        InvalidArgument: The address is not a connection string.
        SetupError: The schema `pgflow` is missing, another database has the number, or this one
            has another.
    """
    ground = _begin(connection)
    with connection.transaction():
        cursor = connection.cursor(row_factory=tuple_row)
        if not ground.has_citus and home is None:
            raise SetupError("pass the connection string of the first node (--home)")
        if not ground.has_citus and home is not None:
            cursor.execute(_foreign(home).as_string().encode())
        return _finish(cursor, ground, _number(cursor, ground, node), address)


def find_nodes(connection: psycopg.Connection[Any]) -> list[Node]:
    """Return the nodes of the cluster that a database is a node of, else those of Citus, by number.

    Args:
        connection: As of `join_cluster`.
    """
    with connection.transaction():
        cursor = connection.cursor(row_factory=tuple_row)
        has_citus, is_node = cursor.execute(_GROUND).fetchone() or (False, False)
        asking = list_nodes().sql if is_node else _CITUS_NODES if has_citus else None
        return [Node(*row) for row in cursor.execute(asking)] if asking else []


def renew_cluster(connection: psycopg.Connection[Any]) -> bool:
    """Bring what makes a database a node up to date, in one transaction, and leave its place in the
    cluster as it is.

    Args:
        connection: As of `join_cluster`.

    Returns:
        False if the database is not a node.

    Raises:
        SetupError: The schema `pgflow` is missing, or of another version.
    """
    ground = _begin(connection)
    if ground.number is None:
        return False
    with connection.transaction():
        cursor = connection.cursor(row_factory=tuple_row)
        has_tables = cursor.execute(_HAS_TABLES).fetchone() == (True,)
        if has_tables and (ground.number == 0 or not ground.has_citus):
            _share(cursor, ground)
        _write(cursor, ground, ground.number)
    return True


def leave_cluster(connection: psycopg.Connection[Any], node: int) -> bool:
    """Close a node: it gets no new keys, and its runs go on. `join_cluster` opens it again.

    Args:
        connection: A connection with any node.
        node: Number of the node.

    Returns:
        False if no node has the number.
    """
    closed = connection.execute(
        "update pgflow_cluster.node set state = 'closed' where node = %s", (node,)
    )
    return closed.rowcount == 1


def _begin(connection: psycopg.Connection[Any]) -> _Ground:
    require_schema(connection)
    row = connection.cursor(row_factory=tuple_row).execute(_GROUND).fetchone()
    assert row is not None
    has_citus, is_node = row
    if not is_node:
        return _Ground(has_citus, None)
    own = connection.cursor(row_factory=tuple_row).execute("select pgflow_cluster.me()").fetchone()
    assert own is not None
    return _Ground(has_citus, own[0])


def _number(cursor: psycopg.Cursor[Any], ground: _Ground, wanted: int | None) -> int:
    if not ground.has_citus:
        node = 1 if wanted is None else wanted
        if ground.number not in (None, node):
            raise SetupError(f"this database is node {ground.number} of a cluster already")
        return node
    found = cursor.execute(_CITUS_NODE).fetchone()
    assert found is not None
    if wanted not in (None, found[0]):
        raise SetupError(f"Citus has numbered this node: pass {found[0]}, the number of its group")
    return int(found[0])


def _share(cursor: psycopg.Cursor[Any], ground: _Ground) -> None:
    """Make the shared tables, on the first node."""
    cursor.execute(_text("home.sql").encode())
    if ground.has_citus:
        cursor.execute(_text("citus.sql").encode())


def _write(cursor: psycopg.Cursor[Any], ground: _Ground, node: int) -> str:
    """Write the part of the layer that each node has for itself; return the kind of the cluster."""
    kind = "citus" if ground.has_citus else "plain"
    cursor.execute(_PROPAGATE_NOTHING.encode())
    identity = _IDENTITY.format(node=sql.Literal(node))
    cursor.execute(identity.as_string().encode())
    for name in (f"near_{kind}", "node", "rights", "guard"):
        cursor.execute(_text(f"{name}.sql").encode())
    layer = _LAYER.format(stamp=sql.Literal(str(own_assets().stamp)))
    cursor.execute(layer.as_string().encode())
    return kind


def _finish(
    cursor: psycopg.Cursor[Any], ground: _Ground, node: int, address: str | None
) -> ClusterNode:
    kind = _write(cursor, ground, node)
    where = _parts("the address", address) if address else {}
    info = cursor.connection.info
    parts = (
        where.get("host") or info.host,
        str(where.get("port") or info.port),
        where.get("dbname") or info.dbname,
    )
    taken = cursor.execute(
        "select (host, port, dbname) = (%s, %s, %s), state = 'open' from pgflow_cluster.node "
        "where node = %s",
        (*parts, node),
    ).fetchone()
    if taken is not None and not taken[0] and ground.number is None:
        raise SetupError(f"node {node} of the cluster is another database: pass another number")
    if taken is None:
        cursor.execute(_REGISTER, (node, *parts))
    elif not all(taken):  # on Citus, a write needs all nodes
        cursor.execute(_MOVE, (*parts, node))
    return ClusterNode(node, kind, ground.number is None)


def _foreign(home: str) -> sql.Composed:
    given = _parts("the first node", home)
    user, password = given.get("user"), given.get("password")
    mapping: list[sql.Composable] = [] if user is None else [sql.SQL("user {}").format(user)]
    mapping.append(
        sql.SQL("password_required 'false'")
        if password is None
        else sql.SQL("password {}").format(password)
    )
    return _FOREIGN.format(
        host=given.get("host") or "localhost",
        port=given.get("port") or "5432",
        dbname=given.get("dbname") or user or "postgres",
        mapping=sql.SQL(", ").join(mapping),
    )


def _parts(what: str, dsn: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError as error:
        raise InvalidArgument(f"{what} is not a connection string: {error}") from None


def _text(name: str) -> str:
    return resources.files("pgflow.schema").joinpath("cluster", name).read_text()
