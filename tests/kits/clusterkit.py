"""Clusters in tests: databases of one server, joined by postgres_fdw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
            if number == 1:
                init_cluster(connection, address=dsn)
            else:
                join_cluster(connection, dsns[0], node=number, address=dsn)
        assert given["dbname"]


@contextmanager
def cluster_of(server_dsn: str, template: str, count: int) -> Iterator[list[str]]:
    """DSNs of the nodes of a new cluster. The books of each balance at the end, and no letter is
    left."""
    names = [servers.create_database(server_dsn, template) for _ in range(count)]
    dsns = [servers.dsn_of(server_dsn, name) for name in names]
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
