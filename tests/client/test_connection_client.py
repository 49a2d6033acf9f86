"""A client on one connection: each call is a transaction, a block is one, and nothing waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgflow import App, StartOptions, inspect, workflow
from pgflow.app import ConnectionClient
from pgflow.errors import WrongState


@workflow
def greet(name: str) -> str:
    return f"hello {name}"


@pytest.fixture
def client(dsn: str) -> Iterator[ConnectionClient]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield ConnectionClient(connection)


def status(conn: psycopg.Connection[Any], key: str) -> str:
    return inspect.ask(conn, inspect.find_run(key)).status


def test_a_run_starts_by_the_name_of_its_workflow(client, conn):
    first = client.start_by_name("greet", {"name": "Ada"}, StartOptions(key="greet-1"))
    again = client.start_by_name("greet", {"name": "Ada"}, StartOptions(key="greet-1"))
    assert (first.key, first.is_new, first.has_replaced) == ("greet-1", True, False)
    assert (again.key, again.is_new) == ("greet-1", False)
    assert inspect.ask(conn, inspect.find_detail("greet-1")).input == {"name": "Ada"}
    assert client.start_by_name("greet", {"name": "Ada"}).is_new


def test_calls_in_a_block_are_one_transaction(client, conn):
    for key in ("one", "two"):
        client.start(greet.options(key=key), "Ada")
    with pytest.raises(ZeroDivisionError), client.transaction():
        client.pause("one")
        raise ZeroDivisionError
    assert status(conn, "one") == "queued"
    with client.transaction():
        client.pause("one")
        with pytest.raises(ZeroDivisionError), client.transaction():
            client.pause("two")
            raise ZeroDivisionError
        client.cancel("two", why="not needed")
    assert (status(conn, "one"), status(conn, "two")) == ("paused", "cancelled")


def test_it_does_not_wait_for_results(client):
    handle = client.start(greet.options(key="greet-1"), "Ada")
    assert handle.status() == "queued"
    with pytest.raises(WrongState, match="does not wait for run 'greet-1': use an App"):
        handle.result()


def test_an_update_is_sent_by_the_name_of_its_handler(client, conn):
    client.start(greet.options(key="greet-1"), "Ada")
    client.send_update("greet-1", "rename", {"name": "Bob"}, update_id="u-1", by="ann")
    reply = inspect.ask(conn, inspect.read_reply("greet-1", "u-1"))
    assert (reply.status, reply.value, reply.error) == ("waiting", None, None)


def test_a_policy_has_a_version(client):
    rules = [{"name": "refund", "approvers": ["desk"]}]
    first = client.set_policy(rules, why="large refunds", by="ann")
    assert client.set_policy([], why="none needed", by="ann") == first + 1


def test_a_journal_is_sealed_once_sealing_is_on(client):
    with pytest.raises(WrongState, match="sealing is off"):
        client.seal()
    client.start(greet.options(key="greet-1"), "Ada")
    client.cancel("greet-1")
    client.set_sealing(is_on=True, by="ann")
    assert client.seal() > 0


def test_an_app_opens_a_stored_value(dsn):
    assert App(dsn).open_value({"a": 1}) == {"a": 1}
