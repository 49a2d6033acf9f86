"""`pgflow demo`: the treasury made visible, proven, and everything stopped that it has started."""

from __future__ import annotations

import re
import signal

import psycopg
import pytest
import servers
from clikit import finish, pgflow, process
from pgflow_cli.treasury.chaos import Kill
from pgflow_cli.treasury.quarter import Options, Progress
from pgflow_cli.treasury.stage import Stage
from processes import one
from servers import wait_until


def descendants(pid):
    """Processes below this one that are alive."""
    import psutil

    return psutil.Process(pid).children(recursive=True)


@pytest.mark.full
@pytest.mark.unsound  # it audits itself, and what it leaves is the treasury's
def test_the_fast_demo_kills_resumes_and_proves(dsn, conn, tmp_path, monkeypatch):
    monkeypatch.setenv("PGFLOW_AUDITOR_DSN", servers.as_auditor(dsn))
    answer = finish(process(dsn, "demo", "--fast", "--folder", str(tmp_path)))
    assert (answer.code, answer.err) == (0, "")
    assert (
        len(
            re.findall(
                r"^kill \d +worker \d+ \(pid \d+\) died, runs held [1-9]", answer.out, re.MULTILINE
            )
        )
        == 3
    )
    assert "All 18 proofs hold: every day was closed exactly once." in answer.out
    assert re.search(
        r"^One of the runs whose worker was killed +\(pgflow timeline treasury/2024-",
        answer.out,
        re.MULTILINE,
    )
    assert "recovered" in answer.out
    assert one(conn, "select count(*) from pgflow.worker") <= 3, (
        "those that were killed last may not have been found dead yet"
    )
    for command in re.findall(r"^(pgflow (?:list|show|sql) .*)$", answer.out, re.MULTILINE):
        looked = pgflow(dsn, *map(unquoted, re.findall(r'"[^"]*"|\S+', command)[1:]))
        assert (looked.code, looked.err) == (0, ""), command
        assert looked.out.strip() != "[]", command
    proven = finish(process(dsn, "demo", "--prove"))
    assert (proven.code, "all 16 proofs hold" in proven.out) == (0, True)


def unquoted(word):
    return word.strip('"')


@pytest.mark.full
@pytest.mark.unsound
def test_ctrl_c_stops_whatever_was_started(dsn, tmp_path):
    started = process(dsn, "demo", "--days", "60", "--folder", str(tmp_path))
    with psycopg.connect(dsn, autocommit=True) as conn:
        wait_until(
            lambda: one(conn, "select count(*) from pgflow.worker") >= 2, "the workers are there"
        )
    children = descendants(started.pid)
    assert len(children) >= 3
    started.send_signal(signal.SIGINT)
    answer = finish(started)
    assert (answer.code, "Traceback" in answer.err) == (130, False)
    assert [child for child in children if child.is_running() and child.status() != "zombie"] == []


@pytest.mark.full
def test_a_second_treasury_in_the_same_database_is_a_mistake(dsn):
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("select pg_advisory_lock(hashtextextended('pgflow treasury', 0))")
        answer = finish(process(dsn, "demo", "--fast"))
    assert (answer.code, answer.err) == (
        2,
        (
            "pgflow: another treasury is running in this database: wait for it, or name another one "
            "with --dsn\n"
        ),
    )


def test_there_is_nothing_to_prove_before_the_first_demo(dsn):
    answer = pgflow(dsn, "demo", "--prove")
    assert (answer.code, answer.err) == (
        2,
        "pgflow: this database has no treasury: run a quarter first\n",
    )


class Quarter:
    """Quarter as the stage sees it."""

    def __init__(self, conn, pids, kills):
        self.conn, self.name, self.days = conn, "books", ["2024-01-02", "2024-01-03", "2024-01-05"]
        self.workers = type("Workers", (), {"pids": pids})()
        self.chaos = type("Chaos", (), {"kills": kills})()


def test_the_stage_shows_days_workers_and_a_kill(dsn, conn):
    from io import StringIO

    from rich.console import Console

    conn.execute(
        "select pgflow.start_run('day', '{}', d, labels => jsonb_build_object('books', 'books', "
        "'day', d))"
        " from unnest('{2024-01-02,2024-01-03,2024-01-05}'::text[]) d"
    )
    worker = one(conn, "select pgflow.register_worker('here', 41, '{default}', 3, '0')")
    lanes = one(conn, "select array_agg(lane_id) from pgflow.serve_lanes('{default}', '{day}')")
    conn.execute("select from pgflow.claim_runs(%s, %s, 2, '{7,8}', true)", (worker, lanes))
    screen = Console(file=StringIO(), width=80, height=40, force_terminal=True, no_color=True)
    quarter = Quarter(
        conn, [42], [Kill(worker, 41, one(conn, "select now()"), ["2024-01-02", "2024-01-03"])]
    )
    with Stage(screen, Options()) as stage:
        stage.say("kill 1   worker 1 (pid 41) died, runs held 2: 2024-01-02, 2024-01-03")
        stage.look(quarter, Progress(1, 2, 0, 0, 0, 1))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    assert re.search(r"^✗✗ · *$", shown, re.MULTILINE), "two orphans, a day off, one that is queued"
    assert re.search(r"worker 42 +idle", shown)
    assert re.search(r"worker 41 +killed with SIGKILL +2 of its 2 runs not yet found", shown)
    assert "1 posted, 0 of 3 closed" in shown
    assert max(map(len, shown.splitlines())) <= 80
