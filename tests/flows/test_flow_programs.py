"""Random workflows in SQL do what a plain interpreter does, whoever is killed meanwhile."""

from __future__ import annotations

from typing import Any

import flowprograms
import psycopg
import pytest
from flowkit import ended, work
from ownserver import OwnServer
from servers import install_schema
from sqlkit import one

Conn = psycopg.Connection[Any]


def test_random_programs_do_what_a_plain_interpreter_does(dsn: str) -> None:
    result = flowprograms.campaign(dsn, programs=4, kills=0, sessions=1, seed="default")
    assert result.wrong == []
    assert result.rows > 15


@pytest.mark.full
def test_many_random_programs_do_what_a_plain_interpreter_does(dsn: str) -> None:
    result = flowprograms.campaign(dsn, programs=300, kills=0, sessions=2, seed="full")
    assert result.wrong == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("sessions", "workers", "programs"), [(2, 0, 100), (4, 0, 100), (1, 1, 30)]
)
def test_no_step_is_lost_or_doubled_by_kills(sessions: int, workers: int, programs: int) -> None:
    with OwnServer(fsync="off") as server:
        install_schema(server.dsn)
        result = flowprograms.campaign(
            server.dsn,
            programs=programs,
            kills=20,
            sessions=sessions,
            workers=workers,
            seed="full",
            copies=2,
        )
        assert result.wrong == []
        assert result.kills == 20


@pytest.mark.full
def test_what_commits_effect_and_record_apart_doubles() -> None:
    with OwnServer(fsync="off") as server:
        install_schema(server.dsn)
        assert flowprograms.control(server.dsn, jobs=300, kills=40, seed="full") > 0


@pytest.mark.full
def test_random_programs_go_on_from_every_unit(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        flowprograms.campaign(dsn, programs=15, kills=0, sessions=1, seed="forks")
        # A fork holds no locks of its origin.
        found = """select r.key from pgflow.runs r join pgflow.workflows w using (workflow)
          where r.key like 'p%' and w.body !~ 'lock '"""
        keys = [key for (key,) in conn.execute(found)]
        assert len(keys) > 4
        for key in keys:
            expected = ended(conn, key)
            units = one(conn, "select count(*) from pgflow.timeline where key = %s", key)
            for cut in range(1, units):
                conn.execute(
                    "select pgflow.fork_run(%s, at_seq => %s, new_key => %s, effects => 'repeat')",
                    (key, cut, f"fork {cut} of {key}"),
                )
            work(conn, seconds=600)
            for cut in range(1, units):
                assert (key, cut, ended(conn, f"fork {cut} of {key}")) == (key, cut, expected)
