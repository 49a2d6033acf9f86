"""`pgflow list`, `show`, `timeline`, `queues` and `workers`: what is read, in each form."""

from __future__ import annotations

import csv
import io
import json
import re
import secrets
import shlex
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import clikit
import psycopg
import pytest
import servers
from clikit import pgflow

from pgflow import Signal, workflow
from pgflow.console.output import duration
from pgflow.inspect import UnitRow, fold

NEWEST_FIRST = ["queued-1", "cancelled-1", "paused-1", "later-1", "stuck-1"]


@pytest.fixture(scope="module")
def prepared(server_dsn, template):
    """A database with some of everything, for tests that only read."""
    name = servers.create_database(server_dsn, template)
    dsn = servers.dsn_of(server_dsn, name)
    clikit.prepare(dsn)
    yield dsn
    assert servers.unsound(dsn) == []
    servers.drop_database(server_dsn, name)


def keys(answer):
    assert (answer.code, answer.err) == (0, "")
    return [row["key"] for row in answer.data]


# ---------------------------------------------------------------- list


def test_the_newest_runs_come_first(prepared):
    assert keys(pgflow(prepared, "list"))[:5] == NEWEST_FIRST


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--status", "stuck"], ["stuck-1"]),
        (["--status", "paused,stuck"], ["paused-1", "stuck-1"]),
        (["-s", "completed", "-w", "checkout"], ["order-1"]),
        (["--label", "customer=acme"], ["order-2", "order-1"]),
        (["-l", "customer=acme", "-l", "region=us"], ["order-2"]),
        (["--queue", "unserved"], ["queued-1"]),
        (["--error", "valueerror"], ["bad-1"]),
        (["--key", "order-*"], ["order-2", "order-1"]),
        (["--key", "order-1"], ["order-1"]),
        (["--key", "order_1*"], []),
        (["--until", "1h"], []),
        (["--since", "1h", "-w", "failing"], ["bad-1"]),
        (["--since", "2020-01-01T00:00:00Z", "-s", "cancelled"], ["cancelled-1"]),
    ],
)
def test_filters_choose_runs(prepared, filters, found):
    assert keys(pgflow(prepared, "list", *filters)) == found


def test_what_is_typed_is_never_sql(prepared):
    for words in (
        ["--key", "x' or true --"],
        ["--workflow", "'; drop table x --"],
        ["--label", "a=') or ('1'='1"],
    ):
        assert keys(pgflow(prepared, "list", *words)) == []


def test_a_table_on_a_terminal_says_why_a_run_is_where_it_is(prepared):
    shown = pgflow(prepared, "list", tty=True, width=160).out
    assert re.search(r"^KEY +STATUS +SINCE +WORKFLOW +QUEUE +TRIES +LABELS +WHY", shown)
    assert re.search(
        r"^bad-1 +failed +\S+ +failing +default +ValueError: no 7 *$", shown, re.MULTILINE
    )
    assert re.search(r"^order-2 +waiting .* signal paid, until 2\d{3}-", shown, re.MULTILINE)
    assert re.search(r"^stuck-1 +stuck .* poison: 1 workers died", shown, re.MULTILINE)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_fits_its_terminal_one_row_a_line(prepared, width):
    lines = pgflow(prepared, "list", tty=True, width=width).out.splitlines()
    assert len(lines) == 1 + len(keys(pgflow(prepared, "list")))
    assert max(map(len, lines)) <= width
    assert any(line.startswith("order-1 ") for line in lines)


def test_csv_has_a_heading_even_without_rows(prepared):
    rows = list(
        csv.DictReader(io.StringIO(pgflow(prepared, "list", "--csv", "-l", "region=us").out))
    )
    assert [(row["key"], row["status"], row["labels"]) for row in rows] == [
        ("order-2", "waiting", '{"region": "us", "customer": "acme"}')
    ]
    assert pgflow(prepared, "list", "--csv", "-w", "nobody").out.startswith("key,status,workflow,")


def test_more_than_the_limit_is_said_beside_the_answer(prepared):
    answer = pgflow(prepared, "list", "-n", "2")
    assert len(answer.data) == 2
    assert "--limit 0 shows all" in answer.err
    assert len(keys(pgflow(prepared, "list", "-n", "0"))) > 5


def test_counting_by_status(prepared):
    counts = {row["status"]: row["runs"] for row in pgflow(prepared, "list", "--count").data}
    assert counts == {
        "completed": 5,
        "waiting": 3,
        "failed": 1,
        "queued": 1,
        "cancelled": 1,
        "paused": 1,
        "stuck": 1,
    }


def test_an_empty_list_says_what_to_do(dsn):
    assert (
        pgflow(dsn, "list", tty=True).err
        == "There are no runs yet: start one with `pgflow start` or `pgflow run`.\n"
    )
    assert pgflow(dsn, "list").out == "[]\n"


def test_a_queue_that_there_is_not_is_named(dsn):
    assert (
        pgflow(dsn, "list", "--queue", "mial", tty=True).err
        == "No runs match: queue 'mial' does not exist.\n"
    )
    assert pgflow(dsn, "list", "--key", "k", tty=True).err == "No runs match.\n"


@pytest.mark.full
def test_watching_answers_again_when_something_has_changed(dsn, conn):
    watching = clikit.process(dsn, "list", "--watch", "--every", "0.1s")
    try:
        assert watching.stdout.readline() == "[]\n"
        conn.execute("select pgflow.start_run('greet', '{}', 'seen-1')")
        assert '"seen-1"' in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        assert clikit.finish(watching).code == 0
    finally:
        watching.kill()
        watching.communicate()


# ---------------------------------------------------------------- show


def test_everything_about_a_run(prepared):
    run = pgflow(prepared, "show", "order-2").data
    assert (run["status"], run["input"], run["state"]) == (
        "waiting",
        {"order": {"sku": "desk", "amount": 2}},
        {"phase": "paying"},
    )
    assert [(call["name"], call["status"], call["attempts"]) for call in run["calls"]] == [
        ("price", "completed", 1),
        ("charge", "completed", 2),
    ]
    shown = pgflow(prepared, "show", "order-2", tty=True).out
    assert "pgflow signal order-2 paid JSON" in shown
    assert re.search(r"charge +completed +2 ", shown)


async def test_what_to_do_is_a_command_that_a_shell_takes_as_it_stands(aflow, conn):
    """Names may hold whatever stands between others in a sentence, and whatever a shell reads."""
    answer = Signal("yes, or no?", str)

    @workflow
    async def asking() -> str:
        return await answer.wait()

    aflow.include(asking)
    run = await aflow.start(asking.options(key="it's $HOME"))
    await aflow.until_idle()
    shown = " ".join(pgflow(aflow.app.dsn, "show", run.key, tty=True, width=200).out.split())
    command = re.search(r"`pgflow (.*) JSON` answers it", shown)
    assert command, shown
    assert shlex.split(command[1]) == ["signal", "it's $HOME", "yes, or no?"]
    assert pgflow(aflow.app.dsn, "signal", "it's $HOME", "yes, or no?", '"yes"').code == 0
    await aflow.until_idle()
    assert await run.status() == "completed"


def test_a_failed_run_shows_its_error_and_where_it_was_raised(prepared):
    shown = pgflow(prepared, "show", "bad-1", tty=True).out
    assert "ValueError: no 7" in shown
    assert "cli_jobs.py" in shown


def test_parents_and_children_name_each_other(prepared):
    (child,) = pgflow(prepared, "show", "family-1").data["children"]
    assert (child["status"], child["workflow"]) == ("completed", "greet")
    assert pgflow(prepared, "show", child["key"]).data["parent"] == "family-1"


def test_a_stuck_run_says_how_to_go_on(prepared):
    assert "`pgflow retry stuck-1`" in pgflow(prepared, "show", "stuck-1", tty=True, width=200).out


def test_an_unknown_key_names_keys_like_it(prepared):
    answer = pgflow(prepared, "show", "order-11")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "pgflow: no run has the key 'order-11': there are order-1, order-2\n"


# ---------------------------------------------------------------- timeline


def test_the_timeline_has_attempts_and_waits(prepared):
    entries = {entry["name"]: entry for entry in pgflow(prepared, "timeline", "order-1").data}
    assert entries["charge"]["attempts"] == 2
    assert entries["charge"]["errors"] == ["ConnectionError: the bank is out [to lunch]"]
    assert (entries["paid"]["kind"], entries["paid"]["status"]) == ("signal", "received")
    assert entries["state set"]["detail"] == "phase: paying"


def test_an_open_wait_reaches_to_now(prepared):
    entry = pgflow(prepared, "timeline", "order-2").data[-1]
    assert (entry["kind"], entry["name"], entry["status"], entry["ended_at"]) == (
        "signal",
        "paid",
        "open",
        None,
    )
    shown = pgflow(prepared, "timeline", "order-2", tty=True, width=100).out
    assert re.search(r"signal: paid +\+\S+ +… .*─▸$", shown, re.MULTILINE)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_waterfall_fits_its_terminal(prepared, width):
    shown = pgflow(prepared, "timeline", "order-1", tty=True, width=width).out
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "✗" in shown
    assert "call 3 charge, try 1: ConnectionError: the bank is out [to lunch]" in " ".join(
        shown.split()
    )


def test_children_and_failures_are_entries_too(prepared):
    assert [(e["kind"], e["status"]) for e in pgflow(prepared, "timeline", "family-1").data] == [
        ("child", "finished")
    ]
    assert "failed: ValueError: no 7" in pgflow(prepared, "timeline", "bad-1", tty=True).out


def test_earlier_generations_have_timelines_of_their_own(prepared):
    assert pgflow(prepared, "show", "count-1").data["generation"] == 3
    first = pgflow(prepared, "timeline", "count-1", "--generation", "1", tty=True).out
    assert re.search(r"^count-1 +counting +continued ", first)
    assert "· continued" in first
    assert "generation 3" in pgflow(prepared, "timeline", "count-1", tty=True).out


def test_an_auditor_who_reads_views_only_sees_as_much(prepared):
    role = f"cli_auditor_{secrets.token_hex(3)}"
    with psycopg.connect(prepared, autocommit=True) as conn:
        conn.execute(f"create role {role} login password 'secret'; grant pgflow_auditor to {role}")
        try:
            theirs = clikit.as_role(prepared, role)
            assert keys(pgflow(theirs, "list"))[:5] == NEWEST_FIRST
            assert pgflow(theirs, "show", "order-1").data["status"] == "completed"
            assert pgflow(theirs, "timeline", "order-1").code == pgflow(theirs, "queues").code == 0
            assert pgflow(theirs, "cancel", "nap-1").err.startswith(
                f"pgflow: role {role} may not use pgflow.cancel_run: grant pgflow_client to {role}"
            )
        finally:
            conn.execute(f"drop owned by {role}; drop role {role}")


def test_a_generation_that_is_not_there(prepared):
    answer = pgflow(prepared, "timeline", "order-1", "--generation", "2")
    assert (answer.code, answer.err) == (2, "pgflow: run 'order-1' has 1 generation, not 2\n")


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def unit(seconds, event, call=1, name=None, token=1, starts=None, payload=None):
    at = NOON + timedelta(seconds=seconds)
    return UnitRow(0, call, event, name, at, at, None, payload, starts, token, is_inherited=False)


def test_a_lease_that_goes_on_without_having_been_woken_is_a_recovery():
    units = [
        unit(0, "step_completed", 1, "a", starts=[[2, "s", "b", 1, 0]]),
        unit(9, "step_completed", 2, "b", token=2),
        unit(10, "timer_started", 3, None, token=2),
        unit(20, "timer_fired", 3, None, token=3),
    ]
    entries = fold(units, NOON)
    assert [entry.name for entry in entries] == ["a", "b", "recovered", "sleep"]
    assert (entries[1].began_at, entries[1].is_known, entries[0].is_known) == (NOON, True, False)
    assert (entries[1].attempts, entries[1].cut_off) == (2, 1)
    # Where the first lease was last heard of, and not where the second had done the step again.
    assert (entries[2].began_at, entries[2].ended_at) == (NOON, NOON + timedelta(seconds=9))


def test_a_question_about_an_effect_is_no_try_of_it():
    units = [
        unit(0, "effect_intended", 1, "pay", starts=[[1, "e", "pay", "k", 0]], payload={}),
        unit(1, "effect_unknown", 1, "pay", payload={"reason": "raised"}),
        unit(2, "effect_unknown", 1, "pay", payload={"reason": "asking_failed"}),
        unit(3, "effect_unknown", 1, "pay", payload={"reason": "absent_too_early"}),
    ]
    (asked,) = fold(units, NOON)
    assert (asked.status, asked.attempts) == ("open", 1)
    assert [failure.attempt for failure in asked.failures] == [1, 0, 0]
    units += [
        unit(4, "effect_attempted", 1, "pay", starts=[[1, "e", "pay", "k", 0]], payload={}),
        unit(5, "effect_confirmed", 1, "pay", payload=7),
    ]
    (done,) = fold(units, NOON)
    assert (done.status, done.attempts) == ("completed", 2)


def test_no_call_begins_before_the_end_of_the_one_before_it():
    """The commit that lets a step start may be later than the time which its run knows."""
    started = replace(
        unit(0, "step_started", 1, "reserve"), recorded_at=NOON + timedelta(seconds=3)
    )
    units = [
        replace(started, starts=[[1, "s", "reserve", 1, 0]]),
        unit(1, "step_completed", 1, "reserve"),
        unit(2, "decision_recorded", 2, "pick"),
        unit(4, "step_completed", 3, "book"),
    ]
    entries = fold(units, NOON)
    assert [entry.name for entry in entries] == ["reserve", "pick", "book"]
    spans = [((e.began_at - NOON).seconds, (e.ended_at - NOON).seconds) for e in entries]
    assert spans == [(3, 3), (3, 3), (3, 4)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0ms"),
        (0.012, "12ms"),
        (0.4, "0.4s"),
        (42, "42s"),
        (150, "2m"),
        (7200, "2h"),
        (400_000, "5d"),
        (99.9, "2m"),
    ],
)
def test_durations_have_few_digits(seconds, text):
    assert duration(seconds) == text


# ---------------------------------------------------------------- queues and workers


def test_queues_count_what_stands_runs_and_waits(prepared):
    queues = {row["queue"]: row for row in pgflow(prepared, "queues").data}
    assert (
        queues["default"]["waiting"],
        queues["fragile"]["stuck"],
        queues["unserved"]["queued"],
    ) == (3, 1, 1)
    assert re.search(
        r"^unserved +1 +0 +0 +0 +0 ", pgflow(prepared, "queues", tty=True).out, re.MULTILINE
    )


@pytest.mark.full
def test_a_queue_is_paused_limited_and_resumed(dsn, conn):
    conn.execute("select pgflow.start_run('greet', '{}', 'k', 'mail')")
    assert pgflow(dsn, "queues", "pause", "mail").data[0]["paused_at"] is not None
    assert pgflow(dsn, "queues", "resume", "mail").data[0]["paused_at"] is None
    limited = pgflow(dsn, "queues", "set", "mail", "--concurrency", "7").data[0]
    assert (limited["max_running"], limited["max_deaths"]) == (7, 5)
    limited = pgflow(dsn, "queues", "set", "mail", "--max-deaths", "2").data[0]
    assert (limited["max_running"], limited["max_deaths"]) == (7, 2)
    limited = pgflow(dsn, "queues", "set", "mail", "--concurrency", "none").data[0]
    assert limited["max_running"] is None
    assert (
        pgflow(dsn, "queues", "pause", "male").err
        == "pgflow: queue 'male' does not exist: there are mail\n"
    )


def test_workers_without_a_module_are_listed(dsn):
    assert "No worker is registered" in pgflow(dsn, "workers", tty=True).err
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(
            "select pgflow.register_worker('here', 7, '{mail}', 3, '1.0', "
            "obj_description('pgflow'::regnamespace, 'pg_namespace'))"
        )
    (row,) = pgflow(dsn, "workers").data
    assert (row["host"], row["pid"], row["queues"], row["running"]) == ("here", 7, ["mail"], 0)
    assert re.search(
        r"here +7 +0/3 +\S+ +alive +1.0 +mail *$",
        pgflow(dsn, "workers", tty=True).out,
        re.MULTILINE,
    )


def test_a_worker_of_an_older_version_is_listed_as_outdated(dsn):
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("select pgflow.register_worker('here', 7, '{mail}', 3, '1.0')")
    (row,) = pgflow(dsn, "workers").data
    assert row["is_outdated"] is True
    assert re.search(
        r"here +7 +0/3 +\S+ +outdated +1.0 +mail *$",
        pgflow(dsn, "workers", tty=True).out,
        re.MULTILINE,
    )


# ---------------------------------------------------------------- texts of somebody else


HOSTILE = "k\x1b]0;title\x07\x1b[2J\x9b31m\u202eevil\u2066\n2026-01-01 INFO forged"


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]], ids=["table", "json", "csv"])
@pytest.mark.parametrize("command", ["list", "show", "timeline"])
def test_what_others_have_named_reaches_a_terminal_harmless(dsn, conn, command, form):
    labels = json.dumps({"customer": HOSTILE})
    conn.execute(
        "select pgflow.start_run('greet', %s, %s, labels => %s, queue => 'q')",
        [json.dumps({"name": HOSTILE}), HOSTILE, labels],
    )
    if command != "list" and form == ["--csv"]:
        form = []
    answer = pgflow(
        dsn, command, *([] if command == "list" else [HOSTILE]), *form, tty=True, width=200
    )
    assert answer.code == 0, answer.err
    drawn = re.sub(r"\x1b\[[\d;]*m", "", answer.out)  # our own colours
    assert not [char for char in drawn if char != "\n" and not char.isprintable()], repr(drawn)
    assert (
        form == ["--csv"] or "\n2026-01-01 INFO forged" not in drawn
    )  # a row of CSV may hold a newline in quotes


def test_programs_get_texts_as_they_are(dsn, conn):
    key = "k\x07\x9b\u202eevil\u2066\n2026-01-01 INFO forged"
    conn.execute("select pgflow.start_run('greet', '{}', %s)", [key])
    assert pgflow(dsn, "list", "--json").data[0]["key"] == key
    [row] = csv.DictReader(io.StringIO(pgflow(dsn, "list", "--csv").out, newline=""))
    assert row["key"] == key


def test_a_mistake_quotes_nothing_that_a_terminal_obeys(dsn):
    answer = pgflow(dsn, "show", HOSTILE)
    assert answer.code == 2
    assert answer.err.removesuffix("\n").isprintable()
