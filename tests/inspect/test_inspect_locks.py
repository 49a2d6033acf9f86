"""Readers of locks and entities, and the commands that show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
import sqlkit
from clikit import pgflow as cli

import pgflow
from pgflow import App, inspect


@pgflow.entities.entity("inspected")
@dataclass
class Inspected:
    """A number."""

    n: int = 0

    @pgflow.entities.update
    def add(self, n: int) -> int:
        """Raises it."""
        self.n += n
        return self.n


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    with App(dsn) as opened:
        for key in ("a", "b"):
            for n in (1, 0):
                opened.update(Inspected.add, key, n)
        yield opened


def take(conn: psycopg.Connection[Any], key: str, holder: str, **options: Any) -> Any:
    named = {"key": key, "holder": holder, "ttl": "1 hour", **options}
    arguments = ", ".join(f"{name} => %s" for name in named)
    return sqlkit.one(conn, f"select pgflow.take_lock({arguments})", *named.values())


def test_holders_of_locks_come_in_pages(app, conn):
    for key in ("x", "y~z", "w"):
        take(conn, key, f"of {key}")
    take(conn, "x", "waiting", patience="1 hour")
    first = inspect.ask(app, inspect.list_locks(limit=2))
    second = inspect.ask(app, inspect.list_locks(limit=2, after=first.next))
    rows = [(row.key, row.fence, row.holder, row.waiters) for row in (*first, *second)]
    assert rows == [("x", 1, "of x", 1), ("y~z", 2, "of y~z", 0), ("w", 3, "of w", 0)]
    assert second.next is None
    assert [row.key for row in inspect.ask(app, inspect.list_locks("w"))] == ["w"]


def test_entities_and_their_updates_come_in_pages(app):
    assert inspect.ask(app, inspect.list_entity_names()) == ["inspected"]
    first = inspect.ask(app, inspect.list_entities("inspected", limit=1))
    second = inspect.ask(app, inspect.list_entities("inspected", limit=1, after=first.next))
    found = [(row.key, row.version, row.state) for row in (*first, *second)]
    assert found == [("a", 1, {"n": 1}), ("b", 1, {"n": 1})]
    one = inspect.ask(app, inspect.list_entity_updates("inspected", "a", limit=1))
    two = inspect.ask(app, inspect.list_entity_updates("inspected", "a", limit=1, after=one.next))
    found = [(row.update, row.version, row.args, row.verdict, row.state) for row in (*one, *two)]
    assert found == [("add", 1, {"n": 1}, 1, {"n": 1}), ("add", 1, {"n": 0}, 1, None)]
    assert inspect.ask(app, inspect.find_entity("inspected", "c")) is None


def test_the_command_line_shows_locks_and_takes_one_away(dsn, conn):
    assert "Nothing is locked." in cli(dsn, "locks", tty=True).err
    take(conn, "x", "night job")
    (row,) = cli(dsn, "locks").data
    assert (row["key"], row["fence"], row["holder"], row["waiters"]) == ("x", 1, "night job", 0)
    assert cli(dsn, "locks", "release", "x").code == 2
    assert cli(dsn, "locks", "release", "x", "--why", "it is gone").data["holders"] == 1
    assert cli(dsn, "locks", "release", "x", "--why", "it is gone").code == 2
    broken = "select holder, why from pgflow.broken_locks"
    assert sqlkit.one(conn, broken) == ("night job", "it is gone")


@pytest.mark.usefixtures("app")
def test_the_command_line_shows_entities(dsn):
    assert cli(dsn, "entities").data == [{"name": "inspected"}]
    assert [row["key"] for row in cli(dsn, "entities", "inspected").data] == ["a", "b"]
    updates = cli(dsn, "entities", "inspected", "a").data
    assert [(row["update"], row["verdict"]) for row in updates] == [("add", 1), ("add", 1)]
    assert "add" in cli(dsn, "entities", "inspected", "a", tty=True).out
    assert cli(dsn, "entities", "inspected", "c").code == 2
