"""Databases for the tests of peers, each with the schema, on the server of `python -m tests.others`.

Adapters import this module by its bare name, in the environment of their peer.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = os.environ["PGFLOW_OTHERS_SERVER"]
"""Connection string of the server, up to the name of a database."""
IS_OURS = os.environ["PGFLOW_OTHERS_AS"] == "ours"
"""True if the tests run on the parts of pgflow, False if on the peer's own."""


@cache
def template() -> str:
    """Return the name of a database with the schema."""
    from pgflow.schema import migrate

    name = _create("")
    with psycopg.connect(SERVER + name, autocommit=True) as conn:
        migrate(conn)
    return name


def _create(options: str) -> str:
    name = f"others_{uuid4().hex[:12]}"
    with psycopg.connect(SERVER + "postgres", autocommit=True) as admin:
        admin.execute(f"create database {name} {options}")
    return name


def create() -> str:
    """Create a database with the schema, and return its connection string."""
    return SERVER + _create(f"template {template()}")


@contextmanager
def database() -> Iterator[str]:
    """A database with the schema, while the test lasts."""
    dsn = create()
    try:
        yield dsn
    finally:
        with psycopg.connect(SERVER + "postgres", autocommit=True) as admin:
            admin.execute(f"drop database {dsn.removeprefix(SERVER)} with (force)")


@cache
def _shared() -> str:
    return create()


def emptied() -> str:
    """Empty the documents of the one database of this process, and return its connection string."""
    with psycopg.connect(_shared(), autocommit=True) as conn:
        conn.execute("delete from pgflow.document")
    return _shared()
