"""Statements that somebody has written: one that reads is run as an auditor, nothing else is."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from sqlkit import one

from pgflow.errors import InvalidArgument
from pgflow.inspect import list_queues, list_runs
from pgflow.inspect.sheet import Sheet, check_statement, read_sheet, shown_statement


def read(dsn: str, text: str, **options: Any) -> Sheet:
    return asyncio.run(read_sheet(dsn, text, **options))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "characters"),
        ("select 1; select 2", "semicolon"),
        ("select 1; drop table t", "semicolon"),
        ("select 1 -- all", "comment"),
        ("select 1 /* all */", "comment"),
        ("select set_config('role', 'none', true)", "set_config"),
        ("select SET_CONFIG ('role', 'none', true)", "SET_CONFIG"),
        ("select pg_catalog.set_config('role', 'none', true)", "set_config"),
        ("select \"set_config\"('role', 'none', true)", "set_config"),
        ('select pgflow."x"()', "list"),
        ("select count.set_config('a')", "set_config"),
        ("select query_to_xml('drop table t', true, true, '')", "query_to_xml"),
        ("select pg_sleep(10)", "pg_sleep"),
        ("select pg_read_file('/etc/passwd')", "pg_read_file"),
        ("select * from dblink('', 'drop table t') as t(a int)", "dblink"),
        ("select pg_terminate_backend(pid) from pg_stat_activity", "pg_terminate_backend"),
        ("select 1) q, (select 2", "parenthesis"),
        ("select (1", "parenthesis"),
        ("select 'a", "quotation mark"),
        ("select \\ 1", "backslash"),
        ("select E'a'", "letter"),
        ("select U&'a'", "letter"),
        ('select U&"a"', "escapes"),
        ("select $$a$$", "dollar"),
        ("delete from pgflow.run", "begins with"),
        ("set role none", "begins with"),
        ("copy pgflow.run to program 'sh'", "begins with"),
        ("explain select 1", "begins with"),
    ],
)
def test_what_is_not_one_select_is_refused_before_the_server_sees_it(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        check_statement(text)


def test_a_statement_is_read_as_an_auditor_who_only_reads(
    dsn: str, conn: psycopg.Connection
) -> None:
    for n in range(5):
        one(conn, "select run_id from pgflow.start_run('w', '{}', key => %s)", f"k;--'{n}")
    sheet = read(dsn, "select key, 1 as n, null as x from pgflow.runs order by key", most_rows=3)
    assert (sheet.columns, len(sheet.rows), sheet.has_more) == (("key", "n", "x"), 3, True)
    assert sheet.rows[0] == ("k;--'0", "1", None)
    sheet = read(dsn, "select current_user as me, 'a; b % --' = 'x' as same".replace(" --", ""))
    assert sheet.rows == (("pgflow_auditor", "false"),)
    for refused in (
        "select * from pgflow.run",  # a table
        "select pgflow.start_run('w', '{}')",
        "with gone as (delete from pgflow.run returning 1) select * from gone",
        "select 1 into x",
        "select key from pgflow.runs for update",
        "select nothing",
    ):
        with pytest.raises(psycopg.Error):
            read(dsn, refused)
    with pytest.raises(psycopg.errors.QueryCanceled):
        slow = ", ".join(f"pg_catalog.pg_class c{n}" for n in range(8))
        read(dsn, f"select count(*) from {slow}", seconds=0.05)


def test_the_server_refuses_a_second_statement_by_itself(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgflow.inspect.sheet.check_statement", lambda _: None)
    with pytest.raises(psycopg.errors.SyntaxError):
        read(dsn, "select 1) q limit 1) s; select (select 1 from (select 1 from (select 1")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        read(dsn, "select set_config('role', 'none', true), nextval('pgflow.run_id_seq')")


def test_statements_of_readers_are_shown_with_their_values() -> None:
    text = shown_statement(list_queues("it's").first)
    assert "q.queue = 'it''s'" in text
    assert "%s" not in text
    check_statement(text)
    check_statement(shown_statement(list_runs(limit=5).first))
