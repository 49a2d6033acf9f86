"""Random workflows in SQL do what a plain interpreter does, whoever is killed meanwhile."""

from __future__ import annotations

import flowpoints
import flowprograms
import pytest
from ownserver import OwnServer
from servers import install_schema


def test_random_programs_do_what_a_plain_interpreter_does(dsn):
    result = flowprograms.campaign(dsn, programs=4, kills=0, sessions=1, seed="default")
    assert result.wrong == []
    assert result.rows > 8


@pytest.mark.full
def test_many_random_programs_do_what_a_plain_interpreter_does(dsn):
    result = flowprograms.rehearse(dsn, programs=300, seed="full")
    assert result.wrong == []
    assert result.runs == 300


@pytest.mark.full
@pytest.mark.parametrize(("sessions", "workers", "programs"), [(2, 0, 50), (4, 0, 50), (1, 1, 30)])
def test_no_step_is_lost_or_doubled_by_kills(sessions, workers, programs):
    with OwnServer(fsync="off") as server:
        install_schema(server.dsn)
        result = flowprograms.campaign(
            server.dsn,
            programs=programs,
            kills=20,
            sessions=sessions,
            workers=workers,
            seed="full",
            copies=200 // programs if workers == 0 else 2,
        )
        assert result.wrong == []
        assert result.kills.total() == 20


@pytest.mark.full
def test_no_step_is_lost_or_doubled_by_deaths_between_statements_of_the_driver():
    with OwnServer(fsync="off") as server:
        result, atlas = flowpoints.play(server.dsn, 10, 2, 0, "full", programs=3)
    assert result.wrong == []
    assert len(atlas.places) > 200
    assert atlas.met.total() >= 5


@pytest.mark.full
def test_what_commits_effect_and_record_apart_doubles():
    with OwnServer(fsync="off") as server:
        install_schema(server.dsn)
        assert flowprograms.control(server.dsn, jobs=300, kills=40, seed="full") > 0


@pytest.mark.full
def test_random_programs_go_on_from_every_unit(dsn):
    flowprograms.campaign(dsn, programs=15, kills=0, sessions=1, seed="forks")
    result = flowprograms.Result()
    keys = flowprograms.without_locks(dsn)
    assert len(keys) > 4
    flowprograms.play_again(dsn, keys, result)
    assert result.wrong == []
