"""`pgflow demo`: the shop made visible, proven, and everything stopped that it has started."""

from __future__ import annotations

import re
import shlex
import signal
import sqlite3
from io import StringIO

import psycopg
import pytest
import servers
from clikit import finish, pgflow, process
from pgflow_cli.shop.chaos import Kill
from pgflow_cli.shop.day import Progress
from pgflow_cli.shop.stage import Stage
from processes import one
from rich.console import Console
from servers import wait_until


def descendants(pid):
    """Processes below this one that are alive."""
    import psutil

    return psutil.Process(pid).children(recursive=True)


@pytest.mark.full
@pytest.mark.unsound  # it audits itself, and what it leaves is the shop's
def test_the_fast_demo_kills_resumes_and_proves(dsn, conn, tmp_path, monkeypatch):
    monkeypatch.setenv("PGFLOW_AUDITOR_DSN", servers.as_auditor(dsn))
    answer = finish(process(dsn, "demo", "--fast", "--folder", str(tmp_path)))
    assert (answer.code, answer.err) == (0, ""), answer.out
    kill = r"^kill \d+ +worker \d+ \(pid \d+\) died, runs held [1-9]"
    assert len(re.findall(kill, answer.out, re.MULTILINE)) == 3
    assert "All 6 proofs hold: every order was fulfilled exactly once." in answer.out
    killed = r"^One of the runs whose worker was killed +\(pgflow timeline shop-1/order-"
    assert re.search(killed, answer.out, re.MULTILINE)
    assert "recovered" in answer.out
    outputs = dict(conn.execute("select output#>>'{}', count(*) from pgflow.runs group by 1"))
    assert outputs == {"card declined": 1, "refunded": 2, "received by the neighbour": 21}
    for command in re.findall(r"^(pgflow (?:list|show|sql) .*)$", answer.out, re.MULTILINE):
        looked = pgflow(dsn, *shlex.split(command)[1:])
        assert (looked.code, looked.err) == (0, ""), command
        assert looked.out.strip() != "[]", command


@pytest.mark.full
@pytest.mark.unsound
def test_a_second_demo_has_books_of_its_own_and_a_changed_cent_is_found(
    dsn, conn, tmp_path, monkeypatch
):
    monkeypatch.setenv("PGFLOW_AUDITOR_DSN", servers.as_auditor(dsn))
    words = ("demo", "--orders", "12", "--kills", "0", "--folder")
    for number in (1, 2):
        answer = finish(process(dsn, *words, str(tmp_path / str(number))))
        assert (answer.code, answer.err) == (0, "")
        assert f"12 orders, shop-{number}/order-1" in answer.out
    again = finish(process(dsn, *words, str(tmp_path / "1")))
    assert (again.code, "is the book of an earlier demo" in again.err) == (2, True)
    proven = finish(process(dsn, "demo", "--prove"))
    assert (proven.code, "All 4 proofs hold" in proven.out) == (0, True)
    conn.execute("update shop.payment set cents = cents + 1 where key = 'shop-2/order-1'")
    with sqlite3.connect(tmp_path / "2" / "provider.db") as book:
        book.execute("insert into entry (key, kind, number, cents) values ('x', 'parcel', 1, 0)")
    disproven = finish(process(dsn, "demo", "--prove"))
    assert (disproven.code, "2 of 4 proofs FAILED" in disproven.out) == (1, True)
    assert re.search(r"- only in the shop's book: P\d+, order 1, \d+\.\d1", disproven.out)
    assert "- parcel of order 1: 2 times" in disproven.out


@pytest.mark.full
@pytest.mark.unsound
def test_ctrl_c_stops_whatever_was_started(dsn, tmp_path):
    started = process(dsn, "demo", "--orders", "500", "--folder", str(tmp_path))
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
def test_a_second_demo_at_the_same_time_is_a_mistake(dsn):
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("select pg_advisory_lock(hashtextextended('pgflow shop', 0))")
        answer = finish(process(dsn, "demo", "--fast"))
    assert (answer.code, answer.err) == (
        2,
        (
            "pgflow: another demo is running in this database: wait for it, or name another one "
            "with --dsn\n"
        ),
    )


def test_there_is_nothing_to_prove_before_the_first_demo(dsn):
    answer = pgflow(dsn, "demo", "--prove")
    assert (answer.code, answer.err) == (2, "pgflow: no demo has run in this database yet\n")


class Day:
    """Day as the stage sees it."""

    def __init__(self, conn, pids, kills):
        self.conn, self.name = conn, "shop-1"
        self.chaos = type("Chaos", (), {"kills": kills, "pids": pids})()


def test_the_stage_shows_orders_workers_and_a_kill(dsn, conn):
    conn.execute(
        "select pgflow.start_run('order', '{}', n::text, labels => '{\"shop\": \"shop-1\"}') "
        "from generate_series(1, 11) n"
    )
    worker = one(conn, "select pgflow.register_worker('here', 41, '{default}', 3, '0')")
    lanes = one(conn, "select array_agg(lane_id) from pgflow.serve_lanes('{default}', '{order}')")
    conn.execute("select from pgflow.claim_runs(%s, %s, 2, '{7,8}', true)", (worker, lanes))
    screen = Console(file=StringIO(), width=80, height=40, force_terminal=True, no_color=True)
    kill = Kill(worker, 41, one(conn, "select now()"), ["1", "2"])
    with Stage(screen, 11) as stage:
        stage.say("kill 1   worker 1 (pid 41) died, runs held 2: 1, 2")
        stage.look(Day(conn, [42], [kill]), Progress(9, 2, 0, 0, 0, 1))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.file.getvalue())
    assert re.search(r"^✗✗········ · *$", shown, re.MULTILINE), "two orphans, ten in a group"
    assert re.search(r"worker 42 +idle", shown)
    assert re.search(r"worker 41 +killed +2 of its 2 runs not yet found", shown)
    assert "1 paid, 0 of 11 ended" in shown
    assert max(map(len, shown.splitlines())) <= 80
