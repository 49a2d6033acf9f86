"""Connections for questions, and readers of single answers."""

from __future__ import annotations

import pytest

from pgflow import InvalidArgument, RunNotFound, inspect


def test_a_connection_has_a_name_and_takes_no_transaction(dsn):
    assert inspect.resolve_dsn(dsn) is not None
    with inspect.connect(dsn, name="report") as connection:
        assert connection.autocommit
        found = connection.execute("select current_setting('application_name')").fetchone()
        assert found == ("report",)


def test_what_was_not_published_or_asked_is_not_found(conn):
    conn.execute("select pgflow.start_run('greet', '{}', 'greet-1')")
    with pytest.raises(InvalidArgument, match="published nothing under the name 'items'"):
        inspect.ask(conn, inspect.read_published("greet-1", "items"))
    with pytest.raises(RunNotFound):
        inspect.ask(conn, inspect.read_reply("greet-1", "u-1"))


def test_a_superuser_speaks_for_others(conn):
    assert inspect.ask(conn, inspect.speaks_for_others()) is True


def test_a_reason_is_in_words():
    assert inspect.describe_reason({"reason": "asking_failed"}) == "asking failed"
