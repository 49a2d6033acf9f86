"""The oracle of plans itself, on a small database. A full proof plays it on a million runs."""

from __future__ import annotations

import plans
import psycopg
import pytest
import servers

SIZES = plans.Sizes(
    finished=2_000, unclaimable=500, ready=1_000, parked=1_000, leased=200, held=100, kin=100
)


def test_the_database_that_is_measured_is_sound(dsn: str) -> None:
    ids = plans.build(dsn, SIZES)
    assert servers.unsound(dsn) == []
    with psycopg.connect(dsn) as conn:
        assert conn.execute(
            "select count(*) from pgflow.run where run_id >= %s", (ids.finished,)
        ).fetchone() == (4_800,)


@pytest.mark.unsound
def test_a_statement_that_leaves_its_index_is_noticed(
    conn: psycopg.Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "LARGE_ROWS", 100)
    monkeypatch.setattr(plans, "STATISTICS", ("small",))
    ids = plans.build(dsn, SIZES)
    conn.execute("drop index pgflow.run_key_idx")
    chosen = [case for case in plans.CASES if case.name == "steps of a key"]
    complaints = [line for one in plans.measure_all(dsn, ids, chosen) for line in one.complaints]
    assert any("reads by run:whole" in line for line in complaints)
