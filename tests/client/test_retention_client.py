"""Retention, legal holds and forgetting through the client of both colours, the command line and the worker."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from clikit import pgflow
from records import eventually
from sqlkit import begin, finish, rows

from pgflow import inspect
from pgflow.errors import InvalidArgument, RunNotFound


def ended(conn: psycopg.Connection, key: str, subject: str = "ann") -> None:
    finish(conn, begin(conn, key=key, labels=f'{{"subject": "{subject}"}}'))


async def test_a_worker_removes_runs_by_the_rules(aflow, conn, monkeypatch):
    monkeypatch.setattr("pgflow._worker.upkeep.STRAYS_EVERY_SECONDS", 0.01)
    ended(conn, "old")
    ended(conn, "held")
    app = aflow.app
    await app.hold_history("held", why="case 17", by="ann")
    await app.set_retention("all", timedelta(0), by="ann")
    async with app.worker():
        await eventually(
            lambda: rows(conn, "select key from pgflow.runs") == ["held"], "the removal"
        )
    (rule,) = await inspect.ask_async(app, inspect.list_retention_rules())
    assert (rule.rule, rule.keep_seconds, rule.status) == ("all", 0, None)
    assert rule.set_by.startswith("ann (")
    (held,) = await inspect.ask_async(app, inspect.list_legal_holds())
    assert (held.key, held.why) == ("held", "case 17")
    assert await app.drop_retention("all") is True
    assert await app.release_history("held") is True
    with pytest.raises(RunNotFound):
        await app.hold_history("none", why="x")
    with pytest.raises(InvalidArgument):
        await app.set_retention("", timedelta(1))


def test_a_sync_client_forgets_a_subject(flow, conn):
    ended(conn, "one")
    ended(conn, "two", "bob")
    assert flow.app.forget_subject("ann", why="asked", dry_run=True).removed == 1
    told = flow.app.forget_subject("ann", why="asked")
    assert (told.removed, told.open, told.held, told.owing) == (1, 0, 0, 0)
    assert rows(conn, "select key from pgflow.runs") == ["two"]


def test_the_commands_of_retention(dsn, conn):
    ended(conn, "one")
    keep = ("retention", "set", "failed", "--keep", "180d", "--status", "failed")
    assert pgflow(dsn, *keep, "--label", "class=audit").code == 0
    (rule,) = pgflow(dsn, "retention", "--json").data
    assert (rule["rule"], rule["keep_seconds"], rule["labels"]) == (
        "failed",
        180 * 86400,
        {"class": "audit"},
    )
    assert "status failed, class=audit" in pgflow(dsn, "retention", tty=True).out
    assert pgflow(dsn, "retention", "drop", "failed").code == 0
    assert pgflow(dsn, "retention", "drop", "failed").code == 2
    assert pgflow(dsn, "retention", "hold", "one", "--why", "case 17").code == 0
    assert [held["key"] for held in pgflow(dsn, "retention", "holds", "--json").data] == ["one"]
    forget = ("forget", "ann", "--why", "request 4711", "--yes")
    found = pgflow(dsn, *forget).data
    assert found == {"removed": 0, "open": 0, "held": 1, "owing": 0, "is_removed": True}
    assert pgflow(dsn, "retention", "release", "one").code == 0
    assert pgflow(dsn, "forget", "ann", "--why", "x").code == 2
    assert pgflow(dsn, *forget).data["removed"] == 1
    assert rows(conn, "select why from pgflow.dropped_history") == ["request 4711"]
