"""Roles that make workflows in SQL: alice, mallory, and a superuser who drives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flowkit
import psycopg
import pytest
import servers
import sqlkit
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Conn = psycopg.Connection[Any]


@pytest.fixture
def admin(server_dsn: str, dsn: str) -> Iterator[Conn]:
    """A superuser's connection, which drives. alice and mallory each have a schema, and may make workflows."""
    with sqlkit.connect(server_dsn) as server, sqlkit.connect(dsn) as conn:
        conn.execute("set client_min_messages = warning")
        for role in ("alice", "mallory"):
            server.execute(f"create role {role} login password '{servers.HANG_SECONDS}'")
            conn.execute(
                f"grant pgflow_client to {role}; create schema {role} authorization {role}"
            )
        conn.execute(flowkit.TABLES)
        conn.execute("create table secret (x int); insert into secret values (42)")
        yield conn
        conn.execute("drop owned by alice, mallory cascade")
        server.execute("drop role alice, mallory")


@pytest.fixture
def as_role(dsn: str, admin: Conn) -> Iterator[Callable[[str], Conn]]:
    opened: list[Conn] = []

    def connect(role: str) -> Conn:
        address = make_conninfo(dsn, user=role, password=str(servers.HANG_SECONDS))
        opened.append(sqlkit.connect(address))
        opened[-1].execute("set client_min_messages = warning")
        opened[-1].execute(f"set search_path = {role}, public")
        return opened[-1]

    yield connect
    for conn in opened:
        conn.close()


@pytest.fixture
def alice(as_role: Callable[[str], Conn]) -> Conn:
    return as_role("alice")


@pytest.fixture
def mallory(as_role: Callable[[str], Conn]) -> Conn:
    return as_role("mallory")
