"""`pgflow bench`: a database of its own, figures, and what limits them."""

from __future__ import annotations

import psycopg
import pytest
from clikit import as_role, pgflow
from pgflow_cli.ops import selftest

FIGURES = {
    "commit_ms": 5.0,
    "sync_ms": 0.1,
    "round_trip_ms": 0.1,
    "client_busy": 0.3,
    "fsync": "on",
    "synchronous_commit": "on",
}


def scratch_databases(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        return [
            name
            for (name,) in conn.execute(
                r"select datname from pg_database where datname like 'pgflow\_bench\_%'"
            )
        ]


@pytest.mark.full
def test_it_measures_beside_the_database_and_leaves_nothing(empty_dsn):
    before = set(scratch_databases(empty_dsn))
    answer = pgflow(empty_dsn, "bench", "--time", "0.5s")
    assert answer.code == 0, answer.err
    assert all(
        answer.data[name] > 0
        for name in (
            "steps_per_second",
            "steps_per_second_alone",
            "starts_per_second",
            "start_latency_p50_ms",
        )
    )
    assert answer.data["limit_alone"] in {"disk", "network", "server"}
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select to_regnamespace('pgflow')").fetchone() == (None,)
    assert set(scratch_databases(empty_dsn)) <= before


@pytest.mark.full
def test_a_person_reads_the_verdict_below_the_figures(empty_dsn):
    answer = pgflow(empty_dsn, "bench", "--time", "0.5s", tty=True)
    assert "steps a second, 100 runs at once" in answer.out
    assert "A run alone waits for" in answer.out


@pytest.mark.parametrize(
    ("measured", "alone", "together"),
    [
        ({"sync_ms": 4.0}, "disk", "disk"),
        ({"sync_ms": 4.0, "client_busy": 0.9}, "disk", "python"),
        ({"round_trip_ms": 3.0}, "network", "network"),
        ({}, "server", "server"),
    ],
)
def test_the_verdict_names_what_takes_most_of_the_time(measured, alone, together):
    judged = selftest.judge({**FIGURES, **measured})
    assert (judged["limit_alone"], judged["limit_together"]) == (alone, together)
    assert "not synced" not in judged["verdict"]


def test_a_server_that_syncs_nothing_is_named():
    assert "not synced" in selftest.judge({**FIGURES, "fsync": "off"})["verdict"]


def test_a_role_that_may_make_no_database_is_told_so(dsn, conn):
    if conn.execute("select from pg_roles where rolname = 'cli_bench'").fetchone() is None:
        conn.execute("create role cli_bench login password 'secret'")
    answer = pgflow(as_role(dsn, "cli_bench"), "bench", "--time", "0.5s")
    assert answer.code == 2
    assert "createdb" in answer.err
