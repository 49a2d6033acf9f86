"""`pgflow tick`: drains, ends when idle, takes up what the dead have left, and tells GitHub."""

from __future__ import annotations

import json
import re
import signal
from datetime import datetime

import clikit
import psycopg
import pytest
from clikit import finish, pgflow, process, statuses
from pgflow_cli.look.github import annotate, markdown
from pgflow_cli.ops.serving import GARBAGE_THRESHOLD
from processes import one
from servers import wait_until

FAST = ("--dead-after", "1s", "--grace", "2s")


def start(conn, workflow, key, /, **input_):
    conn.execute("select pgflow.start_run(%s, %s, %s)", (workflow, json.dumps(input_), key))


def tick(dsn, *options, **variables):
    return finish(process(dsn, "tick", "cli_jobs", *FAST, *options, **variables))


@pytest.mark.full
def test_what_is_ready_is_worked_on_and_what_sleeps_is_left(dsn, conn):
    start(conn, "greet", "a-1", name="Ada")
    start(conn, "family", "a-2")
    start(conn, "napping", "a-3", seconds=3600)
    answer = tick(dsn)
    assert (answer.code, answer.err) == (0, "")
    summary = answer.data
    assert (summary["outcome"], summary["taken"], summary["completed"], summary["waiting"]) == (
        "idle",
        4,
        3,
        1,
    )
    assert datetime.fromisoformat(summary["next_wake_at"]) == one(
        conn, "select min(due_at) from pgflow.timer"
    )
    assert one(conn, "select count(*) from pgflow.worker") == 0


@pytest.mark.full
@pytest.mark.parametrize("command", ["tick", "workers"])
def test_the_collector_is_spared_what_is_loaded(dsn, conn, command):
    start(conn, "spared", "a-1")
    working = process(dsn, command, "cli_jobs")
    wait_until(lambda: one(conn, "select count(*) from pgflow.outcome") == 1, "the run has ended")
    if command == "workers":
        working.send_signal(signal.SIGTERM)
    assert finish(working).code == 0
    frozen, threshold = one(conn, "select output::text::json from pgflow.outcome")
    assert frozen > 50_000
    assert threshold == GARBAGE_THRESHOLD


def test_with_nothing_to_do_it_ends_at_once(dsn):
    summary = tick(dsn).data
    assert (
        summary["outcome"],
        summary["taken"],
        summary["next_wake_at"],
        summary["exit_code"],
    ) == ("idle", 0, None, 0)


@pytest.mark.full
def test_a_failed_run_is_exit_code_one_and_an_annotation(dsn, conn, tmp_path):
    start(conn, "failing", "bad,1", n=7)
    page, outputs = tmp_path / "summary.md", tmp_path / "outputs"
    answer = tick(
        dsn, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(page), GITHUB_OUTPUT=str(outputs)
    )
    assert (answer.code, answer.data["failed"]) == (1, 1)
    assert answer.err.endswith("::error title=run bad%2C1 failed::failing: ValueError: no 7\n")
    assert "| bad,1 | failing | failed | ValueError: no 7 |" in page.read_text()
    assert outputs.read_text() == "outcome=idle\ntaken=1\nfailed=1\nstuck=0\nnext_wake_at=\n"


def test_queues_are_named_with_commas_or_repeated(dsn, conn):
    for queue in ("mail", "bills", "other"):
        conn.execute(
            "select pgflow.start_run('greet', '{\"name\": \"Ada\"}', %s, %s)", (queue, queue)
        )
    assert tick(dsn, "--queue", "mail,bills").data["completed"] == 2
    assert statuses(conn)["other"] == "queued"
    assert tick(dsn, "-q", "mail", "-q", "other").data["completed"] == 1


@pytest.mark.full
def test_a_limit_with_work_left_is_exit_code_three(dsn, conn):
    for number in range(5):
        start(conn, "greet", f"a-{number}", name="Ada")
    full = tick(dsn, "--max-runs", "3")
    assert (full.code, full.data["outcome"], full.data["completed"], full.data["work_left"]) == (
        3,
        "full",
        3,
        True,
    )
    start(conn, "resting", "long-1", count=1000, seconds=0.05)
    late = tick(dsn, "--max-runtime", "2s")
    assert (late.code, late.data["outcome"], late.data["queued"]) == (3, "out of time", 1)
    assert one(conn, "select count(*) from pgflow.lease") == 0


def test_sigterm_hands_back_and_exits_zero(dsn, conn):
    start(conn, "resting", "long-1", count=1000, seconds=0.05)
    ticking = process(dsn, "tick", "cli_jobs", *FAST)
    wait_until(lambda: statuses(conn)["long-1"] == "running", "the run is taken")
    ticking.send_signal(signal.SIGTERM)
    answer = finish(ticking)
    assert (answer.code, answer.data["outcome"]) == (0, "stopped")
    assert statuses(conn)["long-1"] == "queued"
    assert one(conn, "select count(*) from pgflow.worker") == 0


@pytest.mark.full
def test_what_a_killed_runner_has_left_is_taken_up_by_the_next(dsn, conn):
    start(conn, "resting", "long-1", count=4, seconds=0.3)
    killed = process(dsn, "tick", "cli_jobs", *FAST)
    wait_until(lambda: one(conn, "select count(*) from pgflow.unit") > 0, "it has begun")
    killed.kill()
    finish(killed)
    assert statuses(conn)["long-1"] == "running"
    answer = tick(dsn)
    assert (answer.code, answer.data["completed"]) == (0, 1)


@pytest.mark.full
def test_a_busy_fleet_elsewhere_does_not_keep_it_alive(dsn, conn):
    start(conn, "resting", "long-1", count=1000, seconds=0.05)
    fleet = process(dsn, "workers", "cli_jobs", "--dead-after", "1s")
    try:
        wait_until(lambda: statuses(conn)["long-1"] == "running", "the fleet is at work")
        answer = tick(dsn, "--dead-after", "60s")
        assert (answer.code, answer.data["outcome"], answer.data["taken"]) == (0, "idle", 0)
        assert statuses(conn)["long-1"] == "running"
    finally:
        fleet.send_signal(signal.SIGTERM)
        finish(fleet)


@pytest.mark.full
def test_it_waits_for_what_is_due_soon_if_asked_to(dsn, conn):
    start(conn, "napping", "nap-1", seconds=1)
    assert tick(dsn, "--linger", "30s").data["completed"] == 1


@pytest.mark.full
@pytest.mark.unsound
def test_a_run_that_becomes_stuck_is_exit_code_four(dsn, conn, tmp_path):
    """The last death of a run is noticed by the tick itself."""
    (tmp_path / "fragile.py").write_text(
        "import cli_jobs, pgflow\napp = pgflow.AsyncApp(include=[cli_jobs.poisoned])\n"
    )
    conn.execute("select pgflow.start_run('poisoned', '{}', 'stuck-1', 'fragile')")
    conn.execute("select pgflow.set_queue('fragile', jsonb_build_object('max_deaths', 1))")
    worker = one(conn, "select pgflow.register_worker('gone', 1, '{fragile}', 1, '0')")
    lanes = one(
        conn, "select array_agg(lane_id) from pgflow.serve_lanes('{fragile}', '{poisoned}')"
    )
    conn.execute("select from pgflow.claim_runs(%s, %s, 1, '{7}', true)", (worker, lanes))
    answer = finish(
        process(
            dsn,
            "tick",
            str(tmp_path / "fragile.py"),
            *FAST,
            GITHUB_ACTIONS="true",
            PYTHONPATH=str(clikit.APPS),
        )
    )
    assert (answer.code, answer.data["stuck"]) == (4, 1)
    assert "::warning title=run stuck-1 is stuck::poisoned: poison: 1 workers died" in answer.err


@pytest.mark.full
def test_an_exclusive_tick_leaves_the_field_to_another(dsn, conn):
    start(conn, "greet", "a-1", name="Ada")
    with psycopg.connect(dsn) as other:
        other.execute("select pgflow.begin_tick('default')")
        answer = tick(dsn, "--exclusive")
        assert (answer.code, answer.out) == (0, "")
        assert "Another exclusive tick" in answer.err
    assert tick(dsn, "--exclusive").data["completed"] == 1


def test_a_person_reads_a_sentence():
    shown = pgflow(None, "tick", "--help", tty=True, width=80).out
    assert re.search(r"Drains queues once, for cron", shown)


def test_nothing_in_a_run_can_forge_a_command_or_a_table(capsys):
    row = {
        "key": "k|\n::set-output",
        "status": "failed",
        "workflow": "w",
        "why": "100%\n::error::forged | <b>",
    }
    annotate([row])
    said = capsys.readouterr().err
    assert (
        said
        == "::error title=run k|%0A%3A%3Aset-output failed::w: 100%25%0A::error::forged | <b>\n"
    )
    summary = dict.fromkeys(
        ("taken", "completed", "failed", "cancelled", "waiting", "queued", "stuck", "seconds"), 0
    )
    page = markdown({**summary, "outcome": "idle", "next_wake_at": None, "work_left": False}, [row])
    assert "| k\\| ::set-output | w | failed | 100% ::error::forged \\| &lt;b> |" in page


@pytest.mark.full
def test_a_tick_takes_no_more_runs_once_its_budget_is_spent(dsn, conn):
    for number in range(4):
        start(conn, "spending", f"s-{number}", usd="2.5")
    spent = tick(dsn, "--budget", "usd=3", "--concurrency", "1")
    assert (spent.code, spent.data["outcome"], spent.data["work_left"]) == (3, "full", True)
    assert spent.data["taken"] < 4
    assert tick(dsn, "--budget", "usd=300").data["taken"] == 4 - spent.data["taken"]
    assert pgflow(dsn, "tick", "cli_jobs", "--budget", "usd=much").code == 2
