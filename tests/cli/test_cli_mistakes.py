"""Mistakes: one clear line, the right exit code, and never a password."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import clikit
import psycopg
import pytest
import servers
from clikit import as_role, pgflow
from pgflow_cli.commands import app
from pgflow_cli.look import failures
from pgflow_cli.look.failures import Mistake, explain
from psycopg import sql
from psycopg.conninfo import make_conninfo
from servers import HANG_SECONDS
from typer.main import get_command

from pgflow.texts import hide_secrets

UNREACHABLE = "postgresql://app:hunter2@127.0.0.1:1/orders?connect_timeout=1"


def line(answer, code):
    """The only line of standard error."""
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err
    assert "hunter2" not in answer.err
    return answer.err.rstrip("\n")


def test_a_server_that_is_down():
    said = line(pgflow(UNREACHABLE, "list"), 69)
    assert said.startswith("pgflow: the database cannot be reached: ")
    assert said.endswith("Check --dsn, PGFLOW_DSN and the server")


def test_a_server_that_has_no_such_database(dsn):
    named = make_conninfo(dsn, dbname="nope", connect_timeout=1)
    assert line(pgflow(named, "list"), 69) == (
        'pgflow: the server refuses the connection: database "nope" does not exist. '
        "Check --dsn and PGFLOW_DSN"
    )


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("connect_timeout=abc", "bad value for connect_timeout: 'abc'"),
        ("sslmode=foo", 'invalid sslmode value: "foo"'),
        ("port=99999", 'invalid port number: "99999"'),
        ("keepalives=x", 'invalid integer value "x" for connection option "keepalives"'),
    ],
)
def test_an_option_of_the_connection_string_that_no_server_can_take(option, why):
    assert line(pgflow(f"postgresql://app:hunter2@127.0.0.1/orders?{option}", "list"), 2) == (
        f"pgflow: the connection string is wrong: {why}. Check --dsn and PGFLOW_DSN"
    )


def test_what_libpq_asks_back_is_left_out():
    assert "?" not in line(pgflow(UNREACHABLE, "list"), 69)


def test_a_server_that_is_down_for_every_command_that_needs_one():
    for command in (
        ["show", "k"],
        ["doctor"],
        ["migrate"],
        ["sql", "select 1"],
        ["queues"],
        ["cancel", "k"],
        ["start", "x"],
        ["workers"],
    ):
        line(pgflow(UNREACHABLE, *command), 69)


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        (
            "nonsense",
            (
                "cannot be read as a connection string, and is not shown, since it may hold a "
                "password: pass a URL"
            ),
        ),
        ("app:hunter2@db/orders", "pass a URL"),
        ("host=x pasword=hunter2", "it has 'pasword' where 'password' may be meant"),
        ("postgresql://app:hunter2@hunter2@db/orders", "write @ as %40"),
        ("postgresql://app:hunter2@db:54x/orders", "cannot be read"),
        ("postgresql://app:hunter2@[db/orders", "cannot be read"),
        ("mysql://app:hunter2@db/orders", "names a mysql database"),
    ],
)
def test_a_connection_string_that_is_none(dsn, words):
    answer = pgflow(None, "list", "--dsn", dsn)
    said = line(answer, 2)
    assert words in said
    assert "hunter2" not in said


def test_a_database_that_does_not_exist(server_dsn):
    said = line(pgflow(servers.dsn_of(server_dsn, "there_is_none"), "list"), 69)
    assert 'database "there_is_none" does not exist' in said


def test_the_database_may_be_named_before_the_command_and_the_command_has_the_last_word(dsn):
    assert pgflow(None, "--dsn", dsn, "list", "--json").data == []
    nowhere = make_conninfo(dsn, port=1)
    assert pgflow(None, "--dsn", nowhere, "list", "--json", "--dsn", dsn).code == 0
    assert "--dsn is empty" in line(pgflow(None, "--dsn", "", "list"), 2)


def test_a_server_that_was_reached_and_is_broken_is_not_one_that_cannot_be_reached(dsn, conn):
    conn.execute(
        "create or replace function pgflow.now_() returns timestamptz language plpgsql as $$ begin "
        "raise 'could not load library \"plpgsql.so\"' using errcode = '58P01'; end $$"
    )
    said = line(pgflow(dsn, "start", "greet", "--new"), 69)
    assert said.startswith("pgflow: the database was reached, and is in trouble: could not load")


def test_a_missing_schema(empty_dsn):
    assert "has no schema pgflow: run `pgflow migrate`" in line(pgflow(empty_dsn, "list"), 2)


def test_a_schema_of_somebody_else(empty_dsn):
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("create schema pgflow")
    assert "is not of pgflow-engine: rename or drop it" in line(pgflow(empty_dsn, "list"), 2)


@pytest.mark.parametrize(
    ("stamp", "words"),
    [
        ("pgflow-engine 99.0.0 (schema 99, breaking 99, files 0)", "upgrade pgflow-engine"),
        ("pgflow-engine 0.0.1 (schema 0, breaking 0, files 0)", "run `pgflow migrate`"),
    ],
)
def test_a_schema_of_another_version(dsn, conn, stamp, words):
    conn.execute(sql.SQL("comment on schema pgflow is {}").format(sql.Literal(stamp)))
    assert words in line(pgflow(dsn, "list"), 2)


def test_a_role_without_rights(dsn, conn):
    conn.execute(
        "create role cli_nobody login password 'secret'; grant connect on database postgres to "
        "cli_nobody"
    )
    try:
        assert "grant pgflow_client to cli_nobody" in line(
            pgflow(as_role(dsn, "cli_nobody"), "list"), 2
        )
    finally:
        conn.execute("drop owned by cli_nobody; drop role cli_nobody")


@pytest.mark.parametrize(("arguments", "words"), [
    (["lst"], "No such command 'lst'"),
    (["list", "--sttus", "x"], "No such option: --sttus"),
    (["show"], "Missing argument 'KEY'"),
    (["list", "--limit", "many"], "Invalid value for '--limit'"),
    (["list", "--since", "yesterday"],
        ("--since is a time, like 2026-03-01T09:30Z, or a duration, like 90s, 10m, 1h30m or 7d, "
            "not 'yesterday'")),
    (["list", "--since", "2026-01-01"],
        "--since needs a time of day and a time zone: 2026-01-01T00:00Z"),
    (["list", "--since", "10000000000d"], "--since is too long"),
    (["list", "--dsn", ""], "--dsn is empty: pass one, or leave it out"),
    (["start", "greet", "--key", ""], "--key is empty: pass one, or leave it out"),
    (["start", "cli_jobs:greet", "name=Ada", "--queue", ""],
        "the name of a queue must be 1 to 255 bytes long"),
    (["signal", "k", "approved", "Ada"], "Strings need double quotes, as in '\"Ada\"'"),
    (["list", "--limit", "9" * 30], "the database cannot take that: "),
    (["list", "--since", "2026-01-01T00:00:00"], "--since needs a time zone"),
    (["list", "--label", "acme"], "--label is written NAME=VALUE, not 'acme'"),
    (["list", "--json", "--csv"], "--json and --csv exclude each other"),
    (["workers", "nowhere"], "no module named 'nowhere'"),
    (["workers", "json"], "module json holds no App, AsyncApp or @workflow"),
    (["tick", "json"], "module json holds no App, AsyncApp or @workflow"),
    (["tick", "cli_jobs", "--max-runtime", "soon"], "--max-runtime is written like 90s"),
    (["workers", "cli_jobs", "--log-level", "loud"],
        "--log-level is debug, info, warning or error, not 'loud'"),
])  # fmt: skip
def test_usage(shared_dsn, arguments, words):
    assert words in line(pgflow(shared_dsn, *arguments), 2)


# ---------------------------------------------------------------- what is no text


def commands(command, *path):
    """Every command there is, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in command.commands:
        yield from commands(command.commands[name], *path, name)


def lines_with(text):
    """For each place in which a command takes a text, two command lines that have this one there:
    as it is, and inside another.
    """
    shapes = itertools.cycle(["x={}", "{}=x", "@{}", '"{}"'])
    for path, command in commands(get_command(app)):
        wanted = [param for param in command.params if param.param_type_name == "argument"]
        for param in command.params:
            texts = [text, next(shapes).format(text)]
            if param in wanted:
                before = [["x"] * (each.required and each is not param) for each in wanted]
                at = wanted.index(param)
                yield from (
                    [*path, "--", *sum(before[:at], []), one, *sum(before[at:], [])]
                    for one in texts
                )
            elif not getattr(param, "is_flag", False):
                needed = sum((["x"] for each in wanted if each.required), [])
                yield from ([*path, max(param.opts, key=len), one, "--", *needed] for one in texts)


@pytest.mark.full
@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
def test_what_is_no_text_is_refused_wherever_a_text_is_taken(dsn, text):
    """Neither can be the name of a file, so that no command leaves anything behind."""
    lines = list(lines_with(text))
    assert {"list", "queues", "signal", "cancel", "start", "workers", "sql"} < {
        words[0] for words in lines
    }
    for words in lines[text == "a\0b" :: 5]:
        answer = pgflow(dsn, *words)
        said = answer.err.count("\n")
        is_refused = (answer.code, said) == (2, 1) or words[0] == "validate"
        assert is_refused or said == 0 or answer.code == 0, (words, answer)
        assert "Traceback" not in answer.err, (words, answer)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "words"),
    [(b"caf\xe9", "it holds the byte 0xe9"), (b"\xed\xa0\x80", "it holds the byte 0xed")],
)
def test_bytes_that_are_no_text_are_named(dsn, name, words):
    program = [
        sys.executable,
        "-X",
        "utf8",
        "-m",
        "pgflow_cli",
        "list",
        "--dsn",
        dsn,
        "--key",
        name,
    ]
    done = subprocess.run(program, capture_output=True, text=True, cwd=clikit.APPS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"pgflow: a text that was given is not UTF-8: {words}\n",
    )


def test_a_connection_string_that_is_no_text_is_not_repeated():
    assert line(pgflow(None, "list", "--dsn", "postgresql://app:hunter2\udce9@db/x"), 2).endswith(
        "is not UTF-8: it holds the byte 0xe9"
    )


@pytest.mark.parametrize(
    "arguments", [["signal", "k", "go", "-"], ["start", "greet", "--input", "-"], ["sql", "-"]]
)
def test_standard_input_that_is_no_text(dsn, arguments):
    program = [sys.executable, "-X", "utf8", "-m", "pgflow_cli", *arguments, "--dsn", dsn]
    done = subprocess.run(
        program,
        input=b'"caf\xe9"',
        capture_output=True,
        cwd=clikit.APPS,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"cannot be read: 'utf-8' codec can't decode byte 0xe9" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("host", ["caf\udce9", "x" * 64])
def test_an_address_for_metrics_that_is_none(dsn, host):
    answer = clikit.finish(
        clikit.process(dsn, "workers", "cli_jobs", "--metrics-port", "0", "--metrics-host", host)
    )
    assert "no metrics at " in line(answer, 2)


@pytest.mark.parametrize("command", ["apply", "check", "compile", "init", "run"])
def test_a_name_that_no_file_can_have(shared_dsn, command):
    name = "x" * 300
    assert "xxx" in line(pgflow(shared_dsn, command, name), 2)


def test_nothing_at_all_shows_the_help():
    answer = pgflow(None)
    assert answer.code == 2
    assert "Usage: pgflow" in answer.out


def test_a_bug_of_ours_keeps_its_traceback(shared_dsn, monkeypatch):
    monkeypatch.setattr("pgflow_cli.runs.listing._Listing.read", lambda *_: 1 // 0)
    answer = pgflow(shared_dsn, "list")
    assert answer.code == 1
    assert "ZeroDivisionError" in answer.err


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (
            'cannot parse "postgresql://app:hunter2@db/x": why',
            'cannot parse "postgresql://app:***@db/x": why',
        ),
        ("user=app password=hunter2 host=db", "user=app password=*** host=db"),
        ("app:hunter2@db/orders", "app:***@db/orders"),
        ("at 12:30 there was nothing", "at 12:30 there was nothing"),
        ("run 'a@b' is stuck", "run 'a@b' is stuck"),
    ],
)
def test_passwords_are_hidden_wherever_they_stand(text, hidden):
    assert hide_secrets(text) == hidden


def test_every_exit_code_has_a_meaning():
    codes = {
        value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)
    }
    assert codes == set(failures.MEANINGS)
    assert explain(Mistake("this")) == (failures.USAGE, "this")


@pytest.mark.full
@pytest.mark.parametrize("form", ["--table", "--json", "--csv"])
def test_a_reader_who_leaves_early_is_no_error_in_any_form(dsn, conn, form):
    conn.execute(
        "select pgflow.start_run('greet', '{}', 'k-' || i) from generate_series(1, 3000) i"
    )
    listing = clikit.process(dsn, "list", "-n", "0", *([form] if form != "--table" else []))
    listing.stdout.readline()
    listing.stdout.close()
    assert (listing.stderr.read(), listing.wait(HANG_SECONDS)) == ("", 0)
    listing.stderr.close()


def test_watching_ends_when_nobody_reads_though_nothing_changes(dsn):
    watching = clikit.process(dsn, "list", "--watch", "--every", "0.1s")
    assert watching.stdout.readline() == "[]\n"
    watching.stdout.close()
    assert (watching.stderr.read(), watching.wait(HANG_SECONDS)) == ("", 0)
    watching.stderr.close()


def test_ctrl_c_before_there_is_a_command_is_no_traceback():
    program = "import sys; import pgflow_cli; sys.modules['pgflow_cli.commands'] = type(sys)('late'); sys.modules['pgflow_cli.commands'].run = lambda words: (_ for _ in ()).throw(KeyboardInterrupt); pgflow_cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=clikit.APPS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_at_a_question_does_nothing(dsn, conn, monkeypatch):
    conn.execute("select pgflow.start_run('greet', '{}', 'k')")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("typer._click.termui.visible_prompt_func", interrupt)
    answer = pgflow(dsn, "cancel", "--all", tty=True, typed="")
    assert (answer.code, answer.err.splitlines()[-1]) == (130, "pgflow: nothing was done")
    assert clikit.statuses(conn) == {"k": "queued"}


@pytest.mark.parametrize(
    "command",
    [
        ["prune", "--older-than", "90"],
        ["outbox", "prune", "--older-than", "7"],
        ["cleanup", "--older-than", "30"],
        ["workers", "cli_jobs", "--grace", "30"],
        ["tick", "cli_jobs", "--dead-after", "10"],
        ["tick", "cli_jobs", "--max-runtime", "60"],
        ["migrate", "--lock-timeout", "5"],
        ["wait", "a-1", "--timeout", "1.5"],
        ["list", "--since", "90"],
        ["list", "--watch", "--every", "2"],
    ],
)
def test_a_duration_without_a_unit_is_refused(dsn: str, command: list[str]) -> None:
    answer = pgflow(dsn, *command)
    assert answer.code == 2
    assert "like 90s, 10m, 1h30m or 7d" in " ".join(answer.err.split()), answer.err


@pytest.mark.parametrize(
    ("value", "said"),
    [("0.2s", "at least 0.5s"), ("never", "like 90s"), ("99999999999w", "is too long")],
)
def test_a_duration_has_bounds(dsn: str, value: str, said: str) -> None:
    answer = pgflow(dsn, "tick", "cli_jobs", "--dead-after", value)
    assert (answer.code, said in " ".join(answer.err.split())) == (2, True), answer.err
