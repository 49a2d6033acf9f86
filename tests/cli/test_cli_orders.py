"""`pgflow cancel`, `pause`, `resume`, `retry`, `signal`: what runs are told, and who is asked
first.
"""

from __future__ import annotations

import re

import psycopg
import pytest
from clikit import make_stuck, pgflow, statuses


@pytest.fixture
def runs(dsn, conn):
    """Five queued runs."""
    for number in range(1, 6):
        conn.execute(
            'select pgflow.start_run(\'greet\', \'{"name": "Ada"}\', %s, labels => \'{"team": '
            '"a"}\')',
            (f"run-{number}",),
        )
    return dsn


def rows(answer):
    assert answer.code == 0, answer.err
    return {row["key"]: (row["before"], row["status"]) for row in answer.data}


def test_a_run_named_by_key_is_not_asked_about(runs, conn):
    assert rows(pgflow(runs, "cancel", "run-2")) == {"run-2": ("queued", "cancelled")}
    assert statuses(conn)["run-1"] == "queued"


def test_the_history_says_who_and_why(runs, conn):
    assert pgflow(runs, "pause", "run-1", "--why", "a look first").code == 0
    why, by = conn.execute(
        "select payload->>'why', payload->>'by' from pgflow.timeline where key = 'run-1'"
    ).fetchone()
    assert why == "a look first"
    assert re.fullmatch(r".+@.+", by)


def test_pause_then_resume(runs, conn):
    assert rows(pgflow(runs, "pause", "run-1", "run-2")) == dict.fromkeys(
        ("run-1", "run-2"), ("queued", "paused")
    )
    assert rows(pgflow(runs, "resume", "--status", "paused", "--yes")) == dict.fromkeys(
        ("run-1", "run-2"), ("paused", "queued")
    )


def test_a_stuck_run_is_retried(dsn, conn):
    make_stuck(conn, "stuck-1")
    assert rows(pgflow(dsn, "retry", "stuck-1")) == {"stuck-1": ("stuck", "queued")}


def test_chosen_runs_are_counted_and_shown_before_they_are_told(runs, conn):
    answer = pgflow(runs, "cancel", "--label", "team=a", tty=True, typed="n\n")
    assert answer.code == 1
    assert re.search(r"^run-3 +queued", answer.err, re.MULTILINE)
    assert "Cancel these 5 runs? [y/N]" in answer.err
    assert answer.err.endswith("pgflow: nothing was done\n")
    assert set(statuses(conn).values()) == {"queued"}


def test_exactly_the_runs_that_were_shown_are_told(runs, conn, monkeypatch):
    """A run that fits the filter by the time of the answer was not asked about."""

    def answer(*_args, **_kwargs):
        with psycopg.connect(runs, autocommit=True) as other:
            other.execute(
                "select pgflow.start_run('greet', '{}', 'late-1', labels => '{\"team\": \"a\"}')"
            )
        return True

    monkeypatch.setattr("typer.confirm", answer)
    assert pgflow(runs, "cancel", "--label", "team=a", tty=True, typed="").code == 0
    found = statuses(conn)
    assert found.pop("late-1") == "queued"
    assert set(found.values()) == {"cancelled"}


def test_without_a_terminal_to_ask_at_nothing_is_done(runs, conn):
    answer = pgflow(runs, "cancel", "--all")
    assert (answer.code, answer.err) == (
        2,
        (
            "pgflow: Cancel these 5 runs? Cannot ask without a terminal: pass --yes, or look with --dry-run\n"
        ),
    )
    assert set(statuses(conn).values()) == {"queued"}


def test_a_dry_run_shows_and_does_nothing(runs, conn):
    answer = pgflow(runs, "cancel", "--key", "run-*", "--dry-run")
    assert [row["key"] for row in answer.data] == [f"run-{n}" for n in range(1, 6)]
    assert "5 runs would be cancelled; nothing was done." in answer.err
    assert set(statuses(conn).values()) == {"queued"}


def test_more_than_ten_are_summed_up(dsn, conn):
    conn.execute(
        "select pgflow.start_run('greet', '{}', 'many-' || n) from generate_series(1, 30) n"
    )
    answer = pgflow(dsn, "cancel", "-w", "greet", tty=True, typed="y\n")
    assert answer.code == 0
    assert "and 20 more" in answer.err
    assert set(statuses(conn).values()) == {"cancelled"}


def test_all_takes_only_those_it_can_be_done_to(runs):
    assert rows(pgflow(runs, "pause", "run-1")) == {"run-1": ("queued", "paused")}
    assert list(rows(pgflow(runs, "pause", "--all", "--yes"))) == [
        "run-2",
        "run-3",
        "run-4",
        "run-5",
    ]
    assert (
        pgflow(runs, "retry", "--all", "--yes", tty=True).err
        == "No run to retry: nothing was done.\n"
    )


@pytest.mark.parametrize(("arguments", "line"), [
    (["cancel"],
        ("which runs? Name them, as in `pgflow cancel KEY`, choose by --status, --workflow, "
            "--label and others, or say --all")),
    (["cancel", "run-1", "--all"], "name runs by key or choose them by options, not both"),
    (["cancel", "run-1", "run-9"], "no run has the key 'run-9': there are run-5, run-4, run-3"),
    (["resume", "run-1"],
        ("run 'run-1' is queued: only runs that are paused or stuck can be resumed; nothing was "
            "done")),
    (["retry", "run-1"],
        ("run 'run-1' is queued: only runs that are stuck or failed can be retried; nothing was "
            "done")),
    (["cancel", "--status", "runing"], "unknown status 'runing'. Did you mean running?"),
])  # fmt: skip
def test_mistakes_do_nothing(runs, conn, arguments, line):
    answer = pgflow(runs, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"pgflow: {line}")
    assert set(statuses(conn).values()) == {"queued"}


def test_what_has_ended_cannot_be_cancelled(runs):
    assert pgflow(runs, "cancel", "run-1").code == 0
    answer = pgflow(runs, "cancel", "run-1")
    assert (answer.code, answer.err) == (
        2,
        (
            "pgflow: run 'run-1' is cancelled: it has ended, so there is nothing to cancel; nothing "
            "was done\n"
        ),
    )


def test_force_ends_a_run_without_its_code(dsn, conn):
    make_stuck(conn, "stuck-1")
    assert rows(pgflow(dsn, "cancel", "stuck-1", "--force")) == {"stuck-1": ("stuck", "cancelled")}


# ---------------------------------------------------------------- signal


def test_a_signal_arrives_as_it_was_typed(runs, conn):
    answer = pgflow(runs, "signal", "run-1", "paid", '{"cents": 500, "by": "Ada"}')
    sent = {
        "key": "run-1",
        "signal": "paid",
        "payload": {"cents": 500, "by": "Ada"},
        "before": "queued",
        "status": "queued",
    }
    assert answer.data == {
        **sent,
        "message": conn.execute("select signal_id from pgflow.signal").fetchone()[0],
    }
    assert conn.execute("select name, payload from pgflow.signal").fetchone() == (
        "paid",
        {"cents": 500, "by": "Ada"},
    )


def test_a_payload_comes_from_a_file_or_from_standard_input(runs, conn, tmp_path):
    path = tmp_path / "payload.json"
    path.write_text('["from", "file"]')
    assert pgflow(runs, "signal", "run-1", "a", f"@{path}").code == 0
    assert pgflow(runs, "signal", "run-1", "b", "-", typed='"typed"').code == 0
    assert pgflow(runs, "signal", "run-1", "c").code == 0
    assert conn.execute("select payload from pgflow.signal order by name").fetchall() == [
        (["from", "file"],),
        ("typed",),
        (None,),
    ]


def test_signals_that_cannot_arrive_are_not_sent(runs, conn):
    assert pgflow(runs, "signal", "run-1", "paid", "{cents: 1}").err.startswith(
        "pgflow: the payload is not JSON: "
    )
    assert "no run has the key 'nobody'" in pgflow(runs, "signal", "nobody", "paid").err
    assert pgflow(runs, "cancel", "run-1").code == 0
    answer = pgflow(runs, "signal", "run-1", "paid")
    assert (answer.code, answer.err) == (
        2,
        (
            "pgflow: run 'run-1' is cancelled: it takes no more signals; nothing was sent. "
            "See it with: pgflow show run-1\n"
        ),
    )
    assert conn.execute("select count(*) from pgflow.signal").fetchone() == (0,)
