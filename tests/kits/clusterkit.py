"""Clusters in tests: databases of one server, joined by postgres_fdw. Where PGFLOW_CITUS_DSN names a
Citus cluster they are databases of its nodes instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import citus
import psycopg
import servers
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from pgflow.schema.clusters import init_cluster, join_cluster


def found(dsns: list[str]) -> None:
    """Make databases nodes 1, 2, ... of a cluster."""
    for number, dsn in enumerate(dsns, 1):
        given = conninfo_to_dict(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            if number == 1 and not citus.CLUSTER:
                init_cluster(connection, address=dsn)
            else:
                join_cluster(connection, dsns[0], node=number, address=dsn)
        assert given["dbname"]


@contextmanager
def cluster_of(server_dsn: str, template: str | None, count: int) -> Iterator[list[str]]:
    """DSNs of the nodes of a new cluster. The books of each balance at the end, and no letter is
    left."""
    if citus.CLUSTER:
        with citus.citus_of(count) as (coordinator, *dsns):
            citus.execute(coordinator, "create table public.orders (id int)")
            citus.execute(coordinator, "select create_distributed_table('public.orders', 'id')")
            with psycopg.connect(coordinator, autocommit=True) as connection:
                init_cluster(connection)
            found(dsns)
            ask(coordinator, "delete from pgflow_cluster.node where node = 0 returning 1")
            yield dsns
        return
    names = [servers.create_database(server_dsn, template) for _ in range(count)]
    dsns = [servers.dsn_of(server_dsn, name) for name in names]
    for dsn in dsns if template is None else []:
        servers.install_schema(dsn)
    found(dsns)
    try:
        yield dsns
        for dsn in dsns:
            assert servers.unsound(dsn) == []
    finally:
        for name in reversed(names):
            servers.drop_database(server_dsn, name)


def ask(dsn: str, query: str, *params: Any) -> list[tuple[Any, ...]]:
    """Rows of a query."""
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as connection:
        return connection.execute(query, params).fetchall()


def value(dsn: str, query: str, *params: Any) -> Any:
    """The one value of a query."""
    return ask(dsn, query, *params)[0][0]


def make_ledger(dsns: list[str]) -> None:
    """Make the books of `clusterapp`: a table of each node, or one that Citus distributes."""
    for dsn in citus.members(dsns[0])[:1] if citus.CLUSTER else dsns:
        citus.execute(dsn, "create table public.ledger (what text not null)")
        if citus.CLUSTER:
            citus.execute(dsn, "select create_distributed_table('public.ledger', 'what')")


def booked(dsns: list[str]) -> Counter[str]:
    """Rows that steps wrote, on all nodes."""
    readers = dsns[:1] if citus.CLUSTER else dsns
    return Counter(what for dsn in readers for (what,) in ask(dsn, "select what from ledger"))
