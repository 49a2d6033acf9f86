"""`pgflow sql`: questions are answered, anything else is refused, and nothing is ever changed."""

from __future__ import annotations

import pytest
import servers
from clikit import pgflow

from pgflow.inspect.sheet import VARIABLE


@pytest.fixture(scope="module")
def shared(shared_dsn):
    """The shared database by the login of an auditor."""
    return servers.as_auditor(shared_dsn)


def test_an_answer_in_each_form(dsn, conn):
    conn.execute("select pgflow.start_run('greet', '{\"name\": \"Ada\"}', 'k-1')")
    dsn = servers.as_auditor(dsn)
    question = "select key, input, 1.50::numeric as price from runs"
    assert pgflow(dsn, "sql", question).data == [
        {"key": "k-1", "input": {"name": "Ada"}, "price": "1.50"}
    ]
    assert (
        pgflow(dsn, "sql", question, "--csv").out
        == 'key,input,price\nk-1,"{""name"": ""Ada""}",1.50\n'
    )
    assert [line.split() for line in pgflow(dsn, "sql", question, tty=True).out.splitlines()] == [
        ["key", "input", "price"],
        ["k-1", '{"name":', '"Ada"}', "1.50"],
    ]


@pytest.mark.parametrize(
    "question",
    [
        "select 1 as a, 2 as a",
        "with x as (select 1 as n) select * from x union all select 2",
        "(select 1) order by 1",
        "values (1), (2)",
        "table pgflow.runs",
        "select 'a % b', ';' -- a comment; with a semicolon",
        "select 1;",
        "select count(*) from pgflow.check()",
    ],
)
def test_questions(shared, question):
    for tty in (False, True):
        answer = pgflow(shared, "sql", question, tty=tty)
        assert (answer.code, answer.err.replace("no rows\n", "")) == (0, "")


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("insert into t values (9)", "a statement begins with select"),
        ("how many runs are there", "a statement begins with select"),
        ("select 1; delete from t", "one statement at a time"),
        ("", "a statement has 1 to"),
        ("select kee from runs", 'column "kee" does not exist (at: kee from runs)'),
        ("select * from rums", 'relation "rums" does not exist (at: rums)'),
        ("select 1/0", "division by zero"),
        ("select pg_sleep(60)::text", "a statement may not use this: pg_sleep"),
    ],
)
def test_anything_else_is_refused_with_a_reason(shared, statement, line):
    answer = pgflow(shared, "sql", statement)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"pgflow: {line}")
    assert answer.err.count("\n") == 1


def test_only_an_auditors_login_asks(dsn, conn, monkeypatch):
    conn.execute("create view innocent as select set_config('a.b', 'c', false) as key")
    for arguments in (["sql", "select 1 as n"], ["sql", "select key from public.innocent"]):
        answer = pgflow(dsn, *arguments)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert "create role pgflow_reader login" in answer.err
    monkeypatch.setenv(VARIABLE, servers.as_auditor(dsn))
    assert pgflow(dsn, "sql", "select session_user as me").data == [{"me": "pgflow_test_reader"}]
    assert "public is a schema" in pgflow(dsn, "sql", "select key from public.innocent").err
    assert "is a superuser" in pgflow(dsn, "sql", "select 1 as n", "--dsn", dsn).err
    monkeypatch.setenv(VARIABLE, " ")
    assert f"{VARIABLE} is set and empty" in pgflow(dsn, "sql", "select 1 as n").err


def test_long_answers_are_cut_and_say_so(shared):
    many = "select n from generate_series(1, 1500) n"
    answer = pgflow(shared, "sql", many, "--limit", "3")
    assert [row["n"] for row in answer.data] == [1, 2, 3]
    assert answer.err == "The first 3 rows; there are more: --limit 0 gives all.\n"
    assert len(pgflow(shared, "sql", many, "-n", "0").data) == 1500


def test_a_question_that_takes_too_long_is_given_up(shared):
    long = "select count(*) from generate_series(1, 1000000000) n"
    answer = pgflow(shared, "sql", long, "--timeout", "100ms")
    assert (answer.code, answer.out) == (3, "")
    assert "no answer within 0.1 s" in answer.err


def test_a_question_from_a_file_or_standard_input(shared, tmp_path):
    path = tmp_path / "question.sql"
    path.write_text("select 1 as n\n")
    assert (
        pgflow(shared, "sql", f"@{path}").data
        == pgflow(shared, "sql", "-", typed="select 1 as n").data
        == [{"n": 1}]
    )
