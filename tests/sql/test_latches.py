"""`sql/core/latch.sql`: a role without any right holds nobody up, since it cannot compute the numbers
of our advisory locks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
import sqlkit
from psycopg.conninfo import make_conninfo
from servers import wait_until

from pgflow.schema import own_assets

STRANGER = "latch_stranger"

NAMES = (
    "retention", "seal", "policy", "page", "schedules", "drop_events", "shrink_journal",
    "add_unit_partitions", "add_event_partitions", "lock", "lock_circle", "worker", "gate", "chain",
)  # fmt: skip


@pytest.fixture
def stranger(dsn: str, conn: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A session of a role that may do nothing but connect."""
    conn.execute(
        f"do $$ begin create role {STRANGER} login password 'x'; "
        "exception when duplicate_object then null; end $$"
    )
    with psycopg.connect(
        make_conninfo(dsn, user=STRANGER, password="x"), autocommit=True
    ) as session:
        yield session


def guesses(details: list[str]) -> list[str]:
    """Numbers as whoever has read the source would compute them."""
    names = [f"{dot}{name}{more}" for dot in ("pgflow.", "") for name in NAMES for more in details]
    numbers = [
        f"{function}('{name}'{seed})"
        for name in names
        for function, seed in (("hashtextextended", ", 0"), ("hashtext", ""))
    ]
    pairs = [f"hashtext('pgflow.{n}'), {x}" for n in NAMES for x in ("0", "1", "hashtext('a')")]
    hashed = [f"hashtextextended(encode(sha256('{name}'), 'hex'), 0)" for name in names]
    return [*numbers, *pairs, *hashed]


def test_a_role_without_rights_holds_nothing_up_with_numbers_that_it_guesses(conn, stranger):
    run = sqlkit.begin(conn)
    tries = guesses(["", f" {run.run_id}", f" {run.chain_id}", " a", " g", " 1"])
    for number in tries:
        stranger.execute(f"select pg_advisory_lock({number})")  # type: ignore[arg-type]
    conn.execute("set lock_timeout = '5s'")
    conn.execute("select pgflow.set_policy('[]', 'none')")
    conn.execute("select pgflow.drop_history(pgflow.now_())")
    conn.execute("select pgflow.set_sealing(true)")
    conn.execute("select * from pgflow.seal_units(at_once => true)")
    conn.execute("select * from pgflow.claim_pages()")
    conn.execute("select pgflow.drop_events('1 day')")
    assert sqlkit.one(conn, "select pgflow.share_worker_(1)")
    assert sqlkit.one(conn, "select pgflow.take_lock('a', 'one', '1 hour')") == 1
    assert sqlkit.one(conn, "select pgflow.begin_tick('default')")
    sqlkit.finish(conn, run)
    assert len(tries) > 300


@pytest.mark.parametrize(
    "peek", ["select salt from pgflow.salt", "select pgflow.latch_('retention')"]
)
def test_the_secret_is_the_owners_alone(stranger, peek):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stranger.execute(peek)  # type: ignore[arg-type]


def test_whoever_has_the_lock_of_a_gate_is_named_and_waited_for_with_patience(dsn, conn, stranger):
    number = sqlkit.one(conn, "select pgflow.latch_('gate g')")
    stranger.execute(f"select pg_advisory_lock({number})")  # type: ignore[arg-type]
    with sqlkit.connect(dsn, "-c lock_timeout=20ms") as own:
        with pytest.raises(psycopg.Error) as refused:
            own.execute("select pgflow.answer_gate('g', 'approve')")
        assert own.execute("show lock_timeout").fetchone() == ("20ms",)
    assert refused.value.sqlstate == "PF006"
    assert refused.value.diag.message_primary == (
        "gate g is held up: its lock has been with another session for 20ms: "
        f"process {stranger.info.backend_pid} (role {STRANGER})"
    )
    stranger.close()
    free = "select not exists (select from pg_locks where locktype = 'advisory')"
    wait_until(lambda: sqlkit.one(conn, free), "the end of that session")
    with pytest.raises(psycopg.Error, match="no open gate"):
        conn.execute("select pgflow.answer_gate('g', 'approve')")


def test_every_advisory_lock_has_a_number_of_the_installation():
    calls = [
        found[1]
        for file in own_assets().sources
        for found in re.finditer(r"pg_(?:try_)?advisory_\w+\(([^)]{0,14})", file.text)
    ]
    assert len(calls) > 25
    assert {call for call in calls if not call.startswith(("pgflow.latch_", "number"))} == set()
