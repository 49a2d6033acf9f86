"""`pgflow show` of runs with many calls, decisions and effects; `wait`, `result` and `logs`; who
gets a table.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import textwrap

import cli_jobs
import clikit
import pytest
from clikit import APPS, pgflow
from pgflow_cli.runs import waiting
from servers import HANG_SECONDS
from sqlkit import begin, commit, flush, unit

import pgflow as flow
from pgflow import AsyncApp, step, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import effect

ITEMS = 40


class Refused(Exception):
    """The other side's no."""


@step(retries=1, raises=[Refused])
async def fetch(number: int) -> int:
    if number % 10 == 9:
        raise Refused(f"no {number}")
    return number


@decision()
async def pick() -> Choice[str]:
    return Choice("lamp", why="it is dark")


@effect(risk="irreversible")
async def order(what: str) -> str:
    return f"order of a {what}"


@workflow
async def busy(items: int) -> str:
    done = await flow.map(fetch, range(items), tolerated_failures=items)
    chosen = await pick()
    return f"{await order.because(chosen)(chosen.value)}, {len(done.values)} fetched"


@pytest.fixture
def worked(dsn: str) -> str:
    """A database with one long run and one short one."""

    async def work() -> None:
        app = AsyncApp(dsn, include=[busy])
        async with app, app.worker(poll_seconds=0.1):
            for key, items in (("long-1", ITEMS), ("short-1", 2)):
                await (await app.start(busy.options(key=key), items)).result()

    asyncio.run(work())
    return dsn


def test_a_run_shows_its_decisions_and_effects_among_its_steps(worked):
    calls = pgflow(worked, "show", "short-1").data["calls"]
    assert [(call["kind"], call["name"], call["status"]) for call in calls] == [
        ("step", "fetch", "completed"),
        ("step", "fetch", "completed"),
        ("decision", "pick", "completed"),
        ("effect", "order", "confirmed"),
    ]
    assert calls[3]["idempotency_key"].endswith("/order/1")
    assert [call["output"] for call in calls] == [0, 1, "lamp", "order of a lamp"]
    shown = pgflow(worked, "show", "short-1", tty=True, width=160).out
    assert re.search(r"^ +\d+ +decision: pick +completed +1 .*\"lamp\"", shown, re.MULTILINE)
    assert re.search(
        r"^ +\d+ +effect: order +confirmed +1 .*\"order of a lamp\"", shown, re.MULTILINE
    )


def test_many_calls_of_one_name_are_one_line_that_counts_them(worked):
    shown = pgflow(worked, "show", "long-1", tty=True).out
    assert re.search(rf"^ +1 +fetch x {ITEMS} +36 done, 4 failed +{ITEMS} ", shown, re.MULTILINE)
    assert re.search(r"^ +\d+ +effect: order +confirmed ", shown, re.MULTILINE)
    assert len(re.findall(r"^ +\d+ +fetch", shown, re.MULTILINE)) == 1


def test_a_limit_of_nothing_shows_each_call(worked):
    shown = pgflow(worked, "show", "long-1", "--limit", "0", tty=True).out
    assert len(re.findall(r"^ +\d+ +fetch +(?:completed|failed) ", shown, re.MULTILINE)) == ITEMS
    assert "Refused: no 19" in shown


def test_a_run_is_shown_as_it_was_at_a_unit(dsn, conn, monkeypatch):
    monkeypatch.setattr("pgflow_cli.runs.following.AT_ONCE", 2)
    claim = begin(conn, key="told")
    units = [
        unit("v", 0, None, '{"at": 1}'),
        unit("c", 1, "first", '"a"'),
        unit("v", 0, None, '{"at": 2, "more": true}'),
        unit("c", 2, "second", '"b"'),
    ]
    commit(conn, flush(claim, *units))
    states = []
    for seq, calls, state in (
        (1, 0, {"at": 1}),
        (2, 1, {"at": 1}),
        (4, 2, {"at": 2, "more": True}),
    ):
        found = pgflow(dsn, "show", "told", "--at", str(seq), "--json").data
        assert (len(found["calls"]), found["state"]) == (calls, state)
        assert (found["unit"], found["units"]) == (seq, 4)
        states.append([(one["name"], one["status"]) for one in found["calls"]])
    assert states[-1] == [("first", "completed"), ("second", "completed")]
    table = pgflow(dsn, "show", "told", "--at", "3", "--limit", "1", tty=True)
    assert "first" in table.out
    assert "more = true" in table.out
    assert "at unit 3 of 4" in table.err
    beyond = pgflow(dsn, "show", "told", "--at", "5")
    assert (beyond.code, "has 4 units" in beyond.err) == (2, True)


def test_more_lines_than_the_limit_are_counted(worked):
    run = pgflow(worked, "show", "long-1", "--limit", "2").data
    assert [(call["name"], call.get("counts")) for call in run["calls"]] == [
        ("fetch", {"completed": 36, "failed": 4}),
        ("pick", None),
    ]
    assert run["more_calls"] == 1
    assert (
        "… and 1 more: --limit 0 shows each call"
        in pgflow(worked, "show", "long-1", "-n", "2", tty=True).out
    )
    assert len(pgflow(worked, "show", "long-1").data["calls"]) == ITEMS + 2, (
        "a program gets all unless it asks for less"
    )


# ---------------------------------------------------------------- list KEY


@pytest.mark.full
def test_keys_may_be_listed_by_name_and_by_pattern(worked):
    assert [row["key"] for row in pgflow(worked, "list", "long-1", "nobody").data] == ["long-1"]
    assert [row["key"] for row in pgflow(worked, "list", "short-*", "long-1").data] == [
        "short-1",
        "long-1",
    ]
    assert pgflow(worked, "list", "long_1", "short_*").data == []


# ---------------------------------------------------------------- wait, result


def test_waiting_ends_with_the_runs(worked):
    answer = pgflow(worked, "wait", "long-1", "short-1")
    assert (answer.code, [(row["key"], row["status"]) for row in answer.data]) == (
        0,
        [("long-1", "completed"), ("short-1", "completed")],
    )
    assert pgflow(worked, "result", "short-1").out == '"order of a lamp, 2 fetched"\n'


@pytest.mark.full
def test_what_has_not_ended_in_time_is_exit_code_three(dsn, conn):
    conn.execute("""select pgflow.start_run('greet', '{"name": "Ada"}', 'slow-1')""")
    answer = pgflow(dsn, "wait", "slow-1", "--timeout", "200ms")
    assert (answer.code, answer.data[0]["status"], answer.err) == (
        3,
        "queued",
        "1 of 1 run has not ended.\n",
    )
    answer = pgflow(dsn, "result", "slow-1", "--timeout", "200ms")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("pgflow: run 'slow-1' is queued: ")


def test_a_wait_that_is_over_first_says_so_on_one_line(dsn, conn, caplog):
    conn.execute("select pgflow.start_run('nobody', '{}', key => k) from unnest('{a,b}'::text[]) k")
    answer = pgflow(dsn, "wait", "a", "b", "--timeout", "10ms")
    gc.collect()
    assert (answer.code, answer.err) == (3, "2 of 2 runs have not ended.\n")
    assert [record.getMessage() for record in caplog.records] == []


def test_a_run_that_ends_while_somebody_waits_is_told_at_once(dsn, conn):
    conn.execute("""select pgflow.start_run('greet', '{"name": "Ada"}', 'late-1')""")
    command = clikit.process(dsn, "result", "late-1", "--timeout", "60s")

    async def work() -> None:
        app = AsyncApp(dsn, include=[cli_jobs])
        async with app, app.worker(poll_seconds=0.1):
            await app.get("late-1", cli_jobs.greet).result()

    try:
        asyncio.run(work())
        answer = clikit.finish(command)
    finally:
        command.kill()
        command.communicate()
    assert (answer.code, answer.out) == (0, '"Hello Ada"\n')
    # It may have waited for a second until the worker was there.
    assert answer.err == "" or answer.err.startswith("pgflow: waiting for run 'late-1', which is ")


def test_an_order_that_no_worker_has_taken_is_shown_until_one_has(dsn, conn):
    conn.execute("""select pgflow.start_run('greet', '{"name": "Ada"}', 'told-1')""")
    conn.execute("select pgflow.pause_run('told-1', 'a look first', sent_by => 'ann')")
    seen = (
        conn.execute(
            "select verb, why, sent_by from pgflow.orders where key = 'told-1'"
        ).fetchall(),
        [(one["verb"], one["why"]) for one in pgflow(dsn, "show", "told-1").data["asked"]],
        re.search("asked +to .*", pgflow(dsn, "show", "told-1", tty=True).out)[0],
    )
    assert seen[0] == [("pause", "a look first", "ann (postgres)")]
    assert seen[1] == [("pause", "a look first")]
    assert re.fullmatch(r"asked +to pause, \S+ ago by ann \(postgres\): a look first\s*", seen[2])
    conn.execute("select pgflow.wake()")
    assert conn.execute("select count(*) from pgflow.orders").fetchone() == (0,)
    assert pgflow(dsn, "show", "told-1").data["asked"] == []


@pytest.mark.full
@pytest.mark.parametrize("tty", [True, False])
def test_whoever_waits_for_long_is_told_once_what_for(dsn, conn, monkeypatch, tty):
    conn.execute("""select pgflow.start_run('greet', '{"name": "Ada"}', 'slow-1')""")
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.05)
    answer = pgflow(dsn, "result", "slow-1", "--timeout", "1s", tty=tty)
    assert (answer.code, answer.out) == (3, "")
    told, ended = answer.err.splitlines()
    assert re.fullmatch(
        "pgflow: waiting for run 'slow-1', which is queued: .*no worker.*default.*", told
    )
    assert ended.startswith("pgflow: run 'slow-1' is queued: ")


def test_a_reason_of_several_lines_forges_none(dsn, conn):
    conn.execute("select pgflow.start_run('greet', '{}', 'forged-1')")
    conn.execute("select pgflow.cancel_run('forged-1', e'no\\npgflow: run x is completed')")
    conn.execute("select pgflow.wake()")
    for tty in (True, False):
        assert pgflow(dsn, "result", "forged-1", tty=tty).err == (
            "pgflow: run 'forged-1' is cancelled: no pgflow: run x is completed\n"
        )


def test_a_run_that_failed_or_is_stuck_has_its_exit_code(dsn, conn):
    clikit.make_stuck(conn, "stuck-1")
    conn.execute("""select pgflow.start_run('greet', '{"name": "gone"}', 'gone-1')""")
    conn.execute("select pgflow.cancel_run('gone-1', 'not needed')")
    conn.execute("select pgflow.wake()")
    assert pgflow(dsn, "wait", "gone-1").code == 1
    assert pgflow(dsn, "wait", "gone-1", "stuck-1").code == 4
    answer = pgflow(dsn, "result", "stuck-1")
    assert (answer.code, answer.out) == (4, "")
    assert answer.err.startswith("pgflow: run 'stuck-1' is stuck: poison")
    assert pgflow(dsn, "result", "gone-1").err == "pgflow: run 'gone-1' is cancelled: not needed\n"


# ---------------------------------------------------------------- logs


def test_logs_are_the_journal_line_by_line(worked):
    lines = pgflow(worked, "logs", "short-1", "--table").out.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ +#\d+ ", lines[0])
    assert any(re.search(r"#3 decision recorded pick ", line) for line in lines)
    assert (
        pgflow(worked, "logs", "short-1", "--table", "--tail", "2").out.splitlines() == lines[-2:]
    )
    assert len(pgflow(worked, "logs", "short-1").out.splitlines()) == len(lines), (
        "JSON has an object a line"
    )


def test_following_goes_on_until_the_run_has_ended(dsn, conn):
    conn.execute("""select pgflow.start_run('counting', '{"n": 1}', 'count-1')""")
    following = clikit.process(dsn, "logs", "count-1", "--follow", "--table", "--every", "0.1s")

    async def work() -> None:
        app = AsyncApp(dsn, include=[cli_jobs])
        async with app, app.worker(poll_seconds=0.1):
            await app.get("count-1", cli_jobs.counting).result()

    try:
        asyncio.run(work())
        answer = clikit.finish(following)
    finally:
        following.kill()
        following.communicate()
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == "completed"
    assert "step completed rest" in answer.out


# ---------------------------------------------------------------- who reads


def in_a_shell(dsn: str, script: str, **variables: str) -> str:
    """Return the output of a script in which ``pgflow`` is this one, as a log has it."""
    command = f'pgflow() {{ "{sys.executable}" -m pgflow_cli "$@"; }}\n{textwrap.dedent(script)}'
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "GITHUB_ACTIONS")
    }
    done = subprocess.run(
        ["bash", "-c", command],
        env=env | {"PGFLOW_DSN": dsn} | variables,
        cwd=APPS,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    return done.stdout


@pytest.fixture
def begun(dsn, conn):
    """A database with a run."""
    conn.execute("""select pgflow.start_run('greet', '{"name": "Ada"}', 'hello-1')""")
    return dsn


def test_a_pipe_and_a_log_get_the_table_that_a_terminal_gets_and_json_is_asked_for(begun):
    said = in_a_shell(begun, "pgflow queues | cat; pgflow queues --json | cat")
    assert re.match(r"QUEUE .*\ndefault .*\n\[\n\{", said)
    assert pgflow(begun, "queues", tty=True).out.startswith("QUEUE ")
    assert (
        pgflow(begun, "list", "--table", "--csv").err
        == "pgflow: --table and --csv exclude each other: pass one of them\n"
    )
