"""A primary and a standby: which of them is asked, and what happens to work when the primary is
frozen, killed and replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
import servers
from clikit import pgflow
from pairs import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def lasting() -> Iterator[Pair]:
    """A pair that nothing happens to, with the schema."""
    with Pair(synchronous=False) as pair:
        servers.install_schema(pair.primary.dsn)
        servers.wait_until(lambda: has_caught_up(pair), "the standby has the schema")
        yield pair


def has_caught_up(pair: Pair) -> bool:
    with psycopg.connect(pair.primary.dsn) as conn:
        return conn.execute(
            "select bool_and(replay_lsn >= pg_current_wal_flush_lsn()) from pg_stat_replication"
        ).fetchone() == (True,)


@pytest.mark.parametrize(
    "command",
    [
        ("migrate",),
        ("list",),
        ("workers",),
        ("queues",),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_of_several_hosts_every_command_finds_the_one_that_takes_writes(
    lasting: Pair, command: tuple[str, ...]
) -> None:
    answer = pgflow(lasting.dsn(standby_first=True), *command)
    assert "recovery" not in answer.out + answer.err
    assert answer.code == (1 if command == ("doctor",) else 0), answer.err


def test_a_command_on_standbys_alone_says_so_unless_it_is_told_to_read_there(lasting: Pair) -> None:
    refused = pgflow(lasting.standby.dsn, "list")
    assert refused.code == 69
    assert "no server that is named takes writes. Name the primary" in refused.err
    answer = pgflow(f"{lasting.dsn(standby_first=True)}?target_session_attrs=any", "list")
    assert answer.code == 0, answer.err


def findings(dsn: str) -> dict[str, list[tuple[str, str, str]]]:
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for row in pgflow(dsn, "doctor").data:
        rows.setdefault(row["check"], []).append((row["level"], row["found"], row["do"]))
    return rows


def test_doctor_says_what_a_failover_to_an_asynchronous_standby_would_lose(lasting: Pair) -> None:
    ((level, found, do),) = findings(lasting.dsn())["replication"]
    assert (
        level,
        found.startswith(
            "commits do not wait for the 1 standby: a fail-over loses what had not reached it (now "
        ),
    ) == ("warn", True), found
    assert "synchronous_standby_names" in do
    with psycopg.connect(lasting.primary.dsn, autocommit=True) as admin:
        admin.execute("alter system set synchronous_standby_names = 'standby'")
        admin.execute("select pg_reload_conf()")
        servers.wait_until(
            lambda: findings(lasting.dsn())["replication"][0][0] == "ok",
            "commits wait for the standby",
        )
        admin.execute("alter system set synchronous_standby_names = 'elsewhere'")
        admin.execute("select pg_reload_conf()")
        absent = "no standby is synchronous, though synchronous_standby_names has some (1 standby)"
        servers.wait_until(
            lambda: findings(lasting.dsn())["replication"][0][1].startswith(absent),
            "commits wait for nobody who is here",
        )
        admin.execute("alter system reset synchronous_standby_names")
        admin.execute("select pg_reload_conf()")


@pytest.mark.full
def test_doctor_examines_a_standby_to_its_end(lasting: Pair) -> None:
    rows = findings(lasting.standby.dsn)
    assert rows["durability"][0][:2] == ("fail", "this server is a standby, which takes no writes")
    assert rows["listen"] == [
        ("fail", "a standby cannot be asked this", "name the primary in the connection string")
    ]
