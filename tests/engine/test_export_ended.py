"""``pgflow export --since-last``: each run once it has ended, and once, whatever was committed in which order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
from clikit import pgflow
from sqlkit import begin, finish, start

from pgflow.replay.histories import export_ended

if TYPE_CHECKING:
    from pathlib import Path


def keys(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def test_each_run_is_exported_once_after_its_end(
    dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
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


def test_pages_join(conn: psycopg.Connection, tmp_path: Path, monkeypatch: object) -> None:
    monkeypatch.setattr("pgflow.replay.histories._ENDED_AT_ONCE", 2)  # type: ignore[attr-defined]
    for number in range(7):
        claim = begin(conn, key=f"r{number}")
        if number % 3:
            finish(conn, claim)
    with (tmp_path / "out").open("w") as out:
        runs, _, place = export_ended(conn, None, out)
        again, _, _ = export_ended(conn, place, out)
    assert (runs, again) == (4, 0)
    assert len(place["open"]) == 3


def test_a_session_of_a_tenant_exports_its_own(
    dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    for tenant in ("acme", "beta"):
        finish(conn, begin(conn, key=tenant, tenant=tenant))
    output = tmp_path / "runs.jsonl"
    words = ("export", "--since-last", str(tmp_path / "c"), "--output", str(output))
    assert pgflow(dsn, "--tenant", "acme", *words).code == 0
    assert keys(output) == ["acme"]
