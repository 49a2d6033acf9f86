"""Databases on a Citus cluster that runs: PGFLOW_CITUS_DSN names its coordinator, as a superuser."""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import psycopg
import servers

from pgflow.schema import migrate_dsn

CLUSTER = os.environ.get("PGFLOW_CITUS_DSN", "")
PLACES = "select nodename, nodeport from pg_dist_node where noderole = 'primary' order by groupid"
PREPARED = "select count(*) from pg_prepared_xacts where database = current_database()"
LOCK_OUT = """
alter database {0} allow_connections false;
select pg_terminate_backend(pid) from pg_stat_activity where datname = '{0}'
"""


def execute(dsn: str, statement: str) -> list[tuple[object, ...]]:
    """Execute a statement, and return its rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def members(dsn: str) -> list[str]:
    """DSNs of the coordinator and the other nodes, by group, with the database of this one."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    return [
        servers.dsn_of(psycopg.conninfo.make_conninfo(dsn, host=host, port=port), str(name))
        for host, port in execute(dsn, PLACES)
    ]


def _servers(count: int | None) -> list[str]:
    return members(CLUSTER)[: None if count is None else count + 1]


@cache
def template_of(count: int | None) -> str:
    """Name of databases that are a Citus cluster with pgflow on each node. They take no connections:
    Citus's daemon would keep others from copying them.
    """
    name = f"pgflow_test_{secrets.token_hex(5)}"
    made = []
    for server in _servers(count):
        servers.create_database(server, name=name)
        made.append(servers.dsn_of(server, name))
        execute(made[-1], "create extension citus")
    for group, dsn in enumerate(made):
        place = psycopg.conninfo.conninfo_to_dict(dsn)
        verb = "citus_add_node" if group else "citus_set_coordinator_host"
        execute(made[0], f"select {verb}('{place['host']}', {place['port']})")
    for dsn in made:
        migrate_dsn(dsn)
    for server in _servers(count):
        for statement in LOCK_OUT.format(name).split(";"):
            execute(server, statement)
        atexit.register(servers.drop_database, server, name)
    return name


@contextmanager
def citus_of(count: int | None = None) -> Iterator[list[str]]:
    """DSNs of databases that are a Citus cluster of their own, with pgflow on each node: that of
    the coordinator, and of so many other nodes, or of all. The place of each is its group. Their
    books balance at the end, and no prepared transaction is left.
    """
    name = f"pgflow_test_{secrets.token_hex(5)}"
    made = []
    with ExitStack() as stack:
        for server in _servers(count):
            servers.create_database(server, template_of(count), name)
            stack.callback(servers.drop_database, server, name)
            made.append(servers.dsn_of(server, name))
        yield made
        for dsn in made:
            assert servers.unsound(dsn) == []
            servers.wait_until(
                lambda dsn=dsn: execute(dsn, PREPARED) == [(0,)], "nothing stays prepared"
            )
