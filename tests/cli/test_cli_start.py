"""`pgflow start`, `run`, `init`, `migrate`: runs begin, and so do projects."""

from __future__ import annotations

import json
import re
import signal
import sys

import clikit
import pytest
from clikit import APPS, pgflow, statuses
from processes import one
from servers import wait_until


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(APPS)
    monkeypatch.setattr(sys, "path", [*sys.path])


# ---------------------------------------------------------------- start


def test_a_run_is_started_with_what_was_typed(dsn, conn):
    answer = pgflow(
        dsn,
        "start",
        "cli_jobs:greet",
        "name=7",
        "times:=2",
        "--key",
        "k-1",
        "--priority",
        "3",
        "-l",
        "team=a",
        "--deadline",
        "2h",
        "--at",
        "10m",
    )
    assert answer.data == {"key": "k-1", "workflow": "greet", "queue": "default", "new": True}
    row = conn.execute(
        "select input, priority, labels, run_at - created_at, deadline_at - run_at, status from "
        "pgflow.runs"
    ).fetchone()
    assert row[:3] == ({"name": "7", "times": 2}, 3, {"team": "a"})
    assert [round(part.total_seconds()) for part in row[3:5]] == [600, 7200]
    assert row[5] == "waiting"


def test_the_same_key_is_the_same_run(dsn):
    assert pgflow(dsn, "start", "cli_jobs.py:greet", "name=Ada", "-k", "k-1").data["new"] is True
    assert pgflow(dsn, "start", "cli_jobs.py:greet", "name=Ada", "-k", "k-1").data["new"] is False
    answer = pgflow(dsn, "start", "cli_jobs.py:greet", "name=Bob", "-k", "k-1")
    assert (answer.code, answer.out) == (2, "")
    assert "already names a run" in answer.err


def test_a_run_of_a_pinned_workflow_is_pinned_to_the_code_that_was_named(dsn, conn, tmp_path):
    (tmp_path / "bills.py").write_text(
        "import pgflow\n\n@pgflow.workflow(version='2', pinned=True)\n"
        "def bill(n: int) -> int:\n    return n\n"
    )
    pgflow(dsn, "start", f"{tmp_path / 'bills.py'}:bill", "n:=1")
    assert one(conn, "select version from pgflow.runs") == "2"


def test_a_run_that_is_started_by_name_is_pinned_to_the_version_that_is_said(dsn, conn):
    more = ("--new", "-k", "k-1", "--version", "2")
    assert pgflow(dsn, "start", "invoice", "n:=1", *more).data["new"]
    assert not pgflow(dsn, "start", "invoice", "n:=1", *more).data["new"]
    assert one(conn, "select version from pgflow.runs") == "2"
    for target, version, says in (
        ("cli_jobs:greet", "2", "the code of cli_jobs:greet decides whether its runs are pinned"),
        ("invoice", "", "--version is empty"),
        ("invoice", "v" * 256, "255 bytes"),
    ):
        answer = pgflow(dsn, "start", target, "n:=1", "--version", version)
        assert (answer.code, says in answer.err) == (2, True), answer.err


def test_a_name_alone_is_enough_once_the_database_knows_it(dsn, conn):
    conn.execute("select pgflow.start_run('greet', '{\"name\": \"Ada\"}', queue => 'hellos')")
    assert pgflow(dsn, "start", "greet", "name=Bob").data["queue"] == "hellos"


def test_a_workflow_nobody_knows_is_not_started(dsn, conn):
    conn.execute("select pgflow.start_run('greet', '{}')")
    answer = pgflow(dsn, "start", "great")
    assert answer.code == 2
    assert (
        answer.err
        == "pgflow: no run and no worker has named a workflow 'great': did you mean greet? (--new "
        "starts it all the same)\n"
    )
    assert pgflow(dsn, "start", "great", "--new", "-q", "q").data["queue"] == "q"


def test_a_person_is_told_that_nobody_serves_the_queue(dsn):
    answer = pgflow(dsn, "start", "cli_jobs:greet", "name=Ada", "-k", "k-1", tty=True)
    assert answer.out.strip() == "Started k-1 (greet, queue default)"
    assert (
        answer.err
        == "No worker serves the queue 'default' now: it begins once one does (`pgflow workers "
        "MODULE`).\n"
    )


# ---------------------------------------------------------------- run


def test_a_run_is_worked_on_here_and_answers(dsn, conn):
    answer = pgflow(
        dsn, "run", "cli_jobs.py:greet", "name=Ada", "times:=2", "-k", "k-1", "-l", "a=b"
    )
    assert answer.data == {"key": "k-1", "status": "completed", "output": "Hello Ada, Hello Ada"}
    assert one(conn, "select labels from pgflow.runs") == {"a": "b"}
    assert (
        pgflow(
            dsn, "run", "cli_jobs:greet", "-i", '{"name": "Ada", "times": 2}', "-k", "k-1", tty=True
        ).out
        == 'k-1 completed: "Hello Ada, Hello Ada"\n'
    )


def test_a_failed_run_is_exit_code_one(dsn):
    answer = pgflow(dsn, "run", "cli_jobs:failing", "n:=7", "-k", "bad-1")
    assert (answer.code, answer.out) == (1, "")
    assert re.fullmatch(r"pgflow: run 'bad-1' failed: .*ValueError: no 7\n", answer.err)


def test_running_out_of_time_is_exit_code_three(dsn, conn):
    answer = pgflow(
        dsn, "run", "cli_jobs:napping", "seconds:=3600", "-k", "nap-1", "--max-runtime", "300ms"
    )
    assert answer.code == 3
    assert re.fullmatch(
        r"pgflow: run 'nap-1' is \w+ after 0.3 s. Go on here with:\n  pgflow run cli_jobs:napping "
        r"seconds:=3600 -k nap-1 --max-runtime 300ms --json\nor with a worker:\n"
        r"  pgflow workers cli_jobs\n",
        answer.err,
    )
    assert statuses(conn)["nap-1"] in ("waiting", "queued")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("cli_jobs:greet", "greet needs parameter 'name': it takes (name: str, times: int = 1)"),
        ("cli_jobs:greet name=Ada times=many",
            "the input of greet does not fit: times: Input should be a valid integer"),
        ("cli_jobs:greet nme=Ada", "greet has no parameter 'nme': it takes"),
        ("cli_jobs:greet name=Ada name=Eve",
            "parameter name is given twice, as name=Ada and name=Eve: a list is name:='[...]'"),
        ("cli_jobs:greet name=Ada name:=1",
            "parameter name is given twice, as name=Ada and name:=1"),
        ("cli_jobs:greet name=Ada --label a=1 --label a=2",
            "--label a is given twice: a=1 and a=2"),
        (f"cli_jobs:greet name:={'[' * 50_000}",
            "parameter name is nested too deeply: 200 levels can be stored"),
        ("cli_jobs:greet Ada", "a parameter is written NAME=TEXT or NAME:=JSON, not 'Ada'"),
        ("cli_jobs:greet name:=Ada", "parameter name is not JSON"),
        ("cli_jobs:greet -i [1]", "--input must be an object of the workflow's parameters"),
        ("cli_jobs:greet -i @nowhere.json", "--input cannot be read: "),
        ("cli_jobs:great", "module cli_jobs has no workflow 'great': did you mean greet?"),
        ("cli_jobs", "which workflow? cli_jobs has "),
        ("nowhere:greet", "no module named 'nowhere'"),
        ("nowhere.py:greet", "file nowhere.py does not exist"),
        ("json:dumps", "module json holds no @workflow"),
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_what_was_typed_is_checked_against_the_annotations(dsn, conn, typed, line):
    answer = pgflow(dsn, "run", *typed.split())
    assert (answer.code, answer.out) == (2, "")
    assert line in answer.err
    assert answer.err.count("\n") == 1
    assert statuses(conn) == {}


def test_a_word_that_names_nothing_is_told_where_was_looked(dsn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARCHON_HOME", str(tmp_path / "home"))
    answer = pgflow(dsn, "run", "nosuchname", "--path", str(tmp_path))
    assert (answer.code, answer.err) == (
        2,
        (
            "pgflow: nothing here is named 'nosuchname': no workflow in .archon/workflows, "
            f"{tmp_path} or {tmp_path}/home/workflows, no SOP in ., sops, agent-sops, .agents/sops "
            f"or {tmp_path}, and no module importable from {tmp_path}. Pass a FILE, or "
            "MODULE:WORKFLOW; `pgflow start nosuchname` starts a workflow that the database "
            "knows\n"
        ),
    )


def test_a_module_that_cannot_be_imported_says_where(dsn, tmp_path):
    for name, text, line in (
        ("broken.py", "x = (\n", "SyntaxError"),
        ("raising.py", "\n1 / 0\n", "raising.py, line 2"),
        ("lacking.py", "import nope_nope\n", "imports nope_nope"),
        (
            "tireless.py",
            "import pgflow\n\n@pgflow.step(retries=0)\ndef never(): ...\n",
            f"not 0: it counts the first try too ({tmp_path / 'tireless.py'}, line 3)",
        ),
    ):
        (tmp_path / name).write_text(text)
        answer = pgflow(dsn, "run", str(tmp_path / name))
        assert answer.code == 2
        assert line in answer.err


@pytest.mark.full
def test_sigterm_hands_the_run_back(dsn, conn):
    started = clikit.process(dsn, "run", "cli_jobs:napping", "seconds:=3600", "-k", "nap-1")
    try:
        wait_until(lambda: statuses(conn).get("nap-1") == "waiting", "the run waits")
        started.send_signal(signal.SIGTERM)
        answer = clikit.finish(started)
    finally:
        started.kill()
    assert answer.code == 130
    assert (
        answer.err
        == "pgflow: run 'nap-1' was handed back. Go on here with:\n  pgflow run cli_jobs:napping "
        "seconds:=3600 -k nap-1 --json\nor with a worker:\n  pgflow workers cli_jobs\n"
    )
    assert one(conn, "select count(*) from pgflow.worker") == 0


# ---------------------------------------------------------------- migrate, init


@pytest.mark.full
def test_migrate_installs_and_then_has_nothing_to_do(empty_dsn):
    first = pgflow(empty_dsn, "migrate").data
    assert (first["up_to_date"], first["owner"]) == (False, "pgflow_owner")
    assert pgflow(empty_dsn, "migrate", tty=True).out.startswith("pgflow is up to date in ")


def test_migrate_prints_what_it_would_run(empty_dsn):
    script = pgflow(empty_dsn, "migrate", "--sql").out
    assert "create table pgflow.run (" in script
    assert pgflow(empty_dsn, "list").code == 2


@pytest.mark.full
def test_a_new_project_runs_at_once(empty_dsn, tmp_path, monkeypatch):
    begun = pgflow(empty_dsn, "init", str(tmp_path / "shop")).data
    assert begun["file"] == str(tmp_path / "shop" / "flows.py")
    assert begun["migrated"]["up_to_date"] is False
    monkeypatch.chdir(tmp_path / "shop")
    assert pgflow(empty_dsn, "run", "flows.py:greet", "name=Ada").data["output"] == "Hello, Ada!"


def test_init_overwrites_nothing(dsn, tmp_path):
    (tmp_path / "flows.py").write_text("mine")
    answer = pgflow(dsn, "init", str(tmp_path), "--no-migrate")
    assert answer.code == 2
    assert "is there already: nothing was written" in answer.err
    assert (tmp_path / "flows.py").read_text() == "mine"
    assert (
        json.loads(pgflow(dsn, "init", str(tmp_path / "new"), "--no-migrate").out)["migrated"]
        is None
    )
