"""`pgflow sql`: questions are answered, anything else is refused, and nothing is ever changed."""

from __future__ import annotations

import psycopg
import pytest
import servers
from clikit import pgflow
from processes import one


@pytest.fixture(scope="module")
def sandbox(server_dsn, template):
    """A database with a table of one row, and a function that would add another."""
    name = servers.create_database(server_dsn, template)
    dsn = servers.dsn_of(server_dsn, name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table t as select 1 as n; create sequence s")
        conn.execute(
            "create function public.add_row() returns int language sql as 'insert into t values "
            "(2) returning n'"
        )
    yield dsn
    servers.drop_database(server_dsn, name)


def assert_untouched(dsn):
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select n from t").fetchall() == [(1,)]


def test_an_answer_in_each_form(dsn, conn):
    conn.execute("select pgflow.start_run('greet', '{\"name\": \"Ada\"}', 'k-1')")
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
        "show server_version",
        "explain select * from runs",
        "select 'a % b', e'\\n', $$;$$ -- a comment; with a semicolon",
        "select 1;",
        "select count(*) from pgflow.check()",
    ],
)
def test_questions(shared_dsn, question):
    for tty in (False, True):
        answer = pgflow(shared_dsn, "sql", question, tty=tty)
        assert (answer.code, answer.err.replace("no rows\n", "")) == (0, "")


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("insert into t values (9)", "this inserts: `pgflow sql` only reads"),
        ("update t set n = 9", "this updates"),
        ("delete from t", "this deletes"),
        ("with gone as (delete from t returning n) select * from gone", "a part of this deletes"),
        ("select * into u from t", "a part of this makes a table"),
        ("create table u as select * from t", "this is a CREATE"),
        ("drop table t", "this is a DROP"),
        ("truncate t", "this is a TRUNCATE"),
        ("select * from t for update", "this locks rows"),
        ("copy t to program 'true'", "this is a COPY"),
        ("do $$ begin delete from t; end $$", "this "),
        ("call something()", "this "),
        ("begin", "this "),
        ("commit", "this "),
        ("set transaction read write", "this "),
        ("select 1; delete from t", "pass one statement, not several"),
        ("select 1; commit; delete from t", "pass one statement, not several"),
        ("", "pass a statement"),
        ("how many runs are there", "this "),
    ],
)
def test_anything_else_is_refused_with_a_reason(sandbox, statement, line):
    answer = pgflow(sandbox, "sql", statement)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"pgflow: {line}")
    assert answer.err.count("\n") == 1
    assert_untouched(sandbox)


WRITES = [
    "select public.add_row()",
    "select nextval('s')",
    "select set_config('transaction_read_only', 'off', true), public.add_row()",
]


@pytest.mark.parametrize("statement", WRITES)
def test_a_function_that_writes_is_stopped_by_the_transaction(sandbox, statement):
    answer = pgflow(sandbox, "sql", statement)
    assert (answer.code, answer.out) == (2, "")
    assert_untouched(sandbox)


@pytest.mark.parametrize(
    "statement", ["delete from t", "commit; delete from t", "select 1; delete from t"]
)
def test_the_transaction_alone_would_do(sandbox, statement, monkeypatch):
    """Whatever sqlglot thinks of a statement, Postgres takes one only, and takes no writes."""
    monkeypatch.setattr("pgflow_cli.ops.reading.check_reads", lambda _text: None)
    assert pgflow(sandbox, "sql", statement).code == 2
    assert_untouched(sandbox)


def test_questions_that_postgres_refuses_say_where(shared_dsn):
    answer = pgflow(shared_dsn, "sql", "select kee from runs")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith('pgflow: column "kee" does not exist (at: kee from runs)')
    assert pgflow(shared_dsn, "sql", "select * from rums").err.startswith(
        'pgflow: relation "rums" does not exist'
    )
    assert pgflow(shared_dsn, "sql", "select 1/0").err == "pgflow: division by zero\n"


@pytest.mark.full
def test_long_answers_are_cut_and_say_so(shared_dsn):
    answer = pgflow(
        shared_dsn, "sql", "select n from generate_series(1, 2000000) n", "--limit", "3"
    )
    assert [row["n"] for row in answer.data] == [1, 2, 3]
    assert answer.err == "The first 3 rows; there are more: --limit 0 gives all.\n"
    assert (
        len(pgflow(shared_dsn, "sql", "select n from generate_series(1, 1500) n", "-n", "0").data)
        == 1500
    )


def test_a_question_that_takes_too_long_is_given_up(shared_dsn):
    answer = pgflow(shared_dsn, "sql", "select pg_sleep(60)", "--timeout", "100ms")
    assert (answer.code, answer.out) == (3, "")
    assert "no answer within 0.1 s" in answer.err


def test_a_question_from_a_file_or_standard_input(shared_dsn, tmp_path):
    path = tmp_path / "question.sql"
    path.write_text("select 1 as n\n")
    assert (
        pgflow(shared_dsn, "sql", f"@{path}").data
        == pgflow(shared_dsn, "sql", "-", typed="select 1 as n").data
        == [{"n": 1}]
    )


def test_the_search_path_of_the_application_comes_first(dsn, conn):
    conn.execute("create table runs as select 'the application''s own' as whose")
    assert pgflow(dsn, "sql", "select whose from runs").data == [{"whose": "the application's own"}]
    with psycopg.connect(dsn) as other:
        assert one(other, "select count(*) from pgflow.runs") == 0
