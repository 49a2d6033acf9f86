"""``pgflow export --since-last``: each run once it has ended, and once, whatever was committed in which order."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
from clikit import pgflow
from sqlkit import begin, finish, one, set_clock, start

from pgflow.replay.histories import export_ended

if TYPE_CHECKING:
    from pathlib import Path


def keys(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def test_each_run_is_exported_once_after_its_end(dsn, conn, tmp_path):
    cursor, output = tmp_path / "c", tmp_path / "runs.jsonl"
    words = ("export", "--since-last", str(cursor), "--output", str(output))
    finish(conn, begin(conn, key="a"))
    late = begin(conn, key="late")
    with psycopg.connect(dsn) as slow:
        start(slow, key="slow")  # its number is drawn, and it is committed after others
        finish(conn, begin(conn, key="b"))
        assert pgflow(dsn, *words).code == 0
        assert keys(output) == []  # nothing may appear behind the place
    assert pgflow(dsn, *words).code == 0
    assert pgflow(dsn, *words).code == 0
    assert sorted(keys(output)) == ["a", "b"]
    finish(conn, late)
    conn.execute("select pgflow.cancel_run('slow', 'no more')")
    conn.execute("select pgflow.wake(array(select chain_id from pgflow.run))")
    assert pgflow(dsn, *words).code == 0
    assert pgflow(dsn, *words).code == 0
    assert sorted(keys(output)) == ["a", "b", "late", "slow"]
    # A kill between the output and the cursor leaves lines that the next export cuts off.
    before = output.read_text()
    with output.open("a") as file:
        file.write('{"half a li')
    assert pgflow(dsn, *words).code == 0
    assert output.read_text() == before


def test_pages_join(conn, tmp_path, monkeypatch):
    monkeypatch.setattr("pgflow.replay.histories._ENDED_AT_ONCE", 2)  # type: ignore[attr-defined]
    for number in range(7):
        claim = begin(conn, key=f"r{number}")
        if number % 3:
            finish(conn, claim)
    with (tmp_path / "out").open("w") as out:
        first = export_ended(conn, None, out)
        again = export_ended(conn, first.place, out)
    assert (first.runs, again.runs) == (4, 0)
    assert len(again.place["open"]) == 3  # type: ignore[index]


def test_a_session_of_a_tenant_exports_its_own(dsn, conn, tmp_path):
    for tenant in ("acme", "beta"):
        finish(conn, begin(conn, key=tenant, tenant=tenant))
    output = tmp_path / "runs.jsonl"
    words = ("export", "--since-last", str(tmp_path / "c"), "--output", str(output))
    assert pgflow(dsn, "--tenant", "acme", *words).code == 0
    assert keys(output) == ["acme"]


def test_runs_that_were_removed_before_an_export_had_them_are_counted(dsn, conn, tmp_path):
    words = ("export", "--since-last", str(tmp_path / "c"), "--output", str(tmp_path / "runs"))
    begun = one(conn, "select pgflow.now_()")

    def clock(hours: int) -> None:
        set_clock(conn, begun + timedelta(hours=hours))

    def removed(before_hours: int) -> int:
        before = begun + timedelta(hours=before_hours)
        return one(conn, "select runs from pgflow.drop_history(%s)", before)

    clock(0)
    finish(conn, begin(conn, key="had"))
    clock(1)
    late = begin(conn, key="late")
    assert "removed" not in pgflow(dsn, *words).err
    clock(2)
    assert removed(1) == 1  # the export has had it
    assert "removed" not in pgflow(dsn, *words).err
    finish(conn, late)
    finish(conn, begin(conn, key="between"))  # began and ended unseen
    clock(3)
    assert removed(3) == 2
    assert "up to 2 runs were removed before they were exported" in pgflow(dsn, *words).err
    assert "removed" not in pgflow(dsn, *words).err
    assert keys(tmp_path / "runs") == ["had"]


def test_what_is_listed_is_not_removed_before_it_is_written(dsn, conn):
    finish(conn, begin(conn))
    conn.execute("select pgflow.set_retention('all', 0)")
    with psycopg.connect(dsn) as exporting:
        assert len(one(exporting, "select chains from pgflow.list_ended()")) == 1
        assert one(conn, "select runs from pgflow.retire_runs()") == 0
    assert one(conn, "select runs from pgflow.retire_runs()") == 1
