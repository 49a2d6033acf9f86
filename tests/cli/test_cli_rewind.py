"""`pgflow fork`, `rewind`, `restart` and `retry --from-step`: a part of a run is done again, and
one line says what became of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from clikit import pgflow, statuses
from sqlkit import begin, claim_one, commit, finish, flush, one, unit

if TYPE_CHECKING:
    import psycopg

STEP = '[[2,"s","charge",1,77]]'
FAILED = '{"type": "ValueError", "mro": [], "args": [], "message": "no"}'


@pytest.fixture
def ended(dsn: str, conn: psycopg.Connection[Any]) -> str:
    """A run that has completed after a read and a step, and one that failed in its step."""
    for key, kind, payload, status in (
        ("order-1", "c", '"receipt"', "completed"),
        ("order-2", "f", FAILED, "failed"),
    ):
        run = begin(conn, key=key, input='{"cents": 5}')
        commit(
            conn,
            flush(run, unit("c", 1, "look", "7", starts=STEP), unit(kind, 2, "charge", payload)),
        )
        finish(conn, run, status)
    return dsn


def journal(conn: psycopg.Connection[Any], key: str) -> list[tuple[str, str | None, Any]]:
    return conn.execute(
        "select event, t.name, payload from pgflow.timeline t join pgflow.runs using (run_id) "
        "where runs.key = %s order by seq",
        (key,),
    ).fetchall()


def test_the_units_of_a_journal_are_numbered(ended: str) -> None:
    answer = pgflow(ended, "timeline", "order-1", "--units")
    assert [(row["seq"], row["event"], row["name"]) for row in answer.data] == [
        (1, "step_completed", "look"),
        (2, "step_completed", "charge"),
    ]
    assert (
        "step completed" in pgflow(ended, "timeline", "order-1", "--units", tty=True, width=120).out
    )


def test_a_run_is_rewound(ended: str, conn: psycopg.Connection[Any]) -> None:
    answer = pgflow(
        ended,
        "rewind",
        "order-1",
        "--to",
        "1",
        "--effects",
        "repeat",
        "--edit",
        "8",
        "--why",
        "the price was wrong",
        tty=True,
    )
    assert (answer.code, answer.out) == (0, "order-1 is rewound to unit 1, as generation 2.\n")
    (_, _, price), (event, name, said) = journal(conn, "order-1")
    assert (price, event, name, said["why"], said["effects"]) == (
        8,
        "operator",
        "rewind",
        "the price was wrong",
        "repeat",
    )
    assert "@" in said["by"]
    shown = pgflow(ended, "show", "order-1", tty=True, width=120).out
    assert "anew after generation 1, at unit 1" in shown


def test_a_run_is_restarted_with_another_input(ended: str, conn: psycopg.Connection[Any]) -> None:
    answer = pgflow(
        ended,
        "restart",
        "order-1",
        "--effects",
        "reuse",
        "--input",
        '{"cents": 6}',
        "--deadline",
        "1h",
    )
    assert answer.data == {
        "key": "order-1",
        "is_new": True,
        "status": "queued",
        "generation": 2,
        "origin_key": "order-1",
        "origin_generation": 1,
        "origin_seq": 0,
    }
    assert one(
        conn, "select input, deadline_at is not null from pgflow.runs where key = 'order-1'"
    ) == ({"cents": 6}, True)
    assert (
        pgflow(ended, "restart", "order-1", "--effects", "repeat", tty=True).out
        == "order-1 is restarted, as generation 3.\n"
    )


def test_a_run_is_forked_and_asked_twice_it_is_one(
    ended: str, conn: psycopg.Connection[Any]
) -> None:
    arguments = (
        "fork", "order-1", "copy", "--from-step", "charge", "--effects", "repeat", "--label",
        "team=a", "--attempts", "7",
    )  # fmt: skip
    assert pgflow(ended, *arguments, tty=True).out == "copy is forked from order-1 at unit 1.\n"
    assert (
        pgflow(ended, *arguments, tty=True).out
        == "copy was forked from order-1 at unit 1 before; it is queued.\n"
    )
    assert "forked from order-1 at unit 1" in pgflow(ended, "show", "copy", tty=True, width=120).out
    assert one(conn, "select labels from pgflow.runs where key = 'copy'") == {"team": "a"}
    assert claim_one(conn).extra["heritage"]["attempts"] == 7
    made_up = pgflow(ended, "fork", "order-1", "--generation", "1", "--with-mail").data["key"]
    assert statuses(conn)[made_up] == "queued"


def test_a_failed_run_is_retried_from_its_step(ended: str, conn: psycopg.Connection[Any]) -> None:
    assert (
        pgflow(ended, "retry", "--all", "--yes", tty=True).err
        == "No run to retry: nothing was done.\n"
    )
    answer = pgflow(ended, "retry", "--status", "failed", "--yes", "--why", "the bank is back")
    assert [(row["key"], row["before"], row["status"]) for row in answer.data] == [
        ("order-2", "failed", "queued")
    ]
    assert [event for event, _, _ in journal(conn, "order-2")] == ["step_completed", "operator"]
    carried = claim_one(conn).extra["heritage"]["carried"]
    assert [(name, is_done) for name, _, is_done, _, _ in carried] == [("charge", False)]


def test_a_run_that_is_completed_is_retried_from_a_step_that_is_named(
    ended: str, conn: psycopg.Connection[Any]
) -> None:
    assert (
        pgflow(
            ended,
            "retry",
            "order-1",
            "--from-step",
            "charge",
            "--attempts",
            "3",
            "--effects",
            "repeat",
        ).code
        == 0
    )
    assert json.loads(json.dumps(journal(conn, "order-1")[-1][2]))["attempts"] == 3


@pytest.mark.parametrize(("arguments", "line"), [
    (["rewind", "order-1"],
        "where to? Pass --to UNIT or --from-step STEP; `pgflow restart` begins anew"),
    (["rewind", "nobody", "--to", "0"], "no run has the key 'nobody'"),
    (["rewind", "order-1", "--to", "3"],
        "there is no unit 3: the journal has units 1 to 2. Say 0 to keep nothing of it"),
    (["rewind", "order-1", "--to", "1"],
        ("what would be dropped has acted: step charge (unit 2, completed). Say effects: reuse "
            "hands")),
    (["rewind", "order-1", "--from-step", "pay"], "the journal of run "),
    (["rewind", "order-1", "--to", "0", "--effects", "again"],
        "--effects is reuse, repeat or compensate, not 'again'"),
    (["fork", "order-1", "--at", "0", "--effects", "compensate"],
        "a fork leaves its origin as it is: what that has done is its own to take back"),
    (["rewind", "order-1", "--to", "1", "--edit", "{"], "--edit is not JSON"),
    (["restart", "order-1", "--effects", "repeat", "--input", "[]"],
        "the input must be an object of parameter names"),
    (["restart", "running"],
        "run 'running' is running. Pause it first, and restart it once it is paused"),
    (["fork", "order-1", "order-2", "--at", "2"],
        "key 'order-2' already names another run. Use another key"),
    (["fork", "order-1", "--generation", "4"], "run 'order-1' has no generation 4"),
    (["retry", "order-1"],
        ("run 'order-1' is completed: only runs that are stuck or failed can be retried; "
            "nothing was done")),
    (["retry", "--status", "failed", "--attempts", "3"],
        "--attempts and --effects require run keys or --from-step"),
])  # fmt: skip
def test_mistakes_are_one_line_and_do_nothing(
    ended: str, conn: psycopg.Connection[Any], arguments: list[str], line: str
) -> None:
    begin(conn, key="running")
    answer = pgflow(ended, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"pgflow: {line}"), answer.err
    assert answer.err.count("\n") == 1
    assert one(conn, "select count(*) from pgflow.run") == 3
