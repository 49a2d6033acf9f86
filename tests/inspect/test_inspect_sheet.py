"""Statements that somebody has written: one that reads pgflow is run by an auditor, nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
import servers
from psycopg.conninfo import make_conninfo
from sqlkit import one

from pgflow.errors import InvalidArgument, NotAllowed, SetupError
from pgflow.inspect import list_queues, list_runs, sheet
from pgflow.inspect.sheet import Sheet, read_sheet, read_text, shown_statement

HARM = """
create schema if not exists {schema};
grant usage on schema {schema} to public;
create function {schema}.harm(text) returns text language plpgsql {kind} as $f$
begin
  raise warning 'harm was done by %', $1;
  return $1;
end $f$;
create function {schema}.harmless(text) returns boolean language sql as $f$ select {schema}.harm($1) is not null $f$;
create view {schema}.innocent as select {schema}.harm('a view') as key;
grant select on {schema}.innocent to public;
create domain {schema}.vicious as text check ({schema}.harmless(value));
create type {schema}.pair as (one {schema}.vicious, two int);
create type {schema}.span as range (subtype = {schema}.vicious);
create function {schema}.both(text, text) returns text language sql {kind} as $f$ select {schema}.harm($1) $f$;
create operator {schema}.=! (leftarg = text, rightarg = text, function = {schema}.both);
create aggregate {schema}.gather (text) (sfunc = {schema}.both, stype = text);
create function {schema}.harmä() returns text language sql as $f$ select {schema}.harm('a letter') $f$;
create table {schema}.notes (whose {schema}.vicious[]);
create function {schema}.hashed(text, bigint) returns bigint language sql {kind} as $f$ select length({schema}.harm($1)) $f$;
create operator class {schema}.ops for type text using hash as operator 1 =, function 2 {schema}.hashed(text, bigint);
create table {schema}.parts (a text) partition by hash (a {schema}.ops);
create type {schema}.mood as enum ('a', 'b');
create function {schema}.moody({schema}.mood) returns json language sql as $f$ select to_json({schema}.harm('a cast')) $f$;
create cast ({schema}.mood as json) with function {schema}.moody({schema}.mood);
create table {schema}.moods as select '{a,a}'::{schema}.mood[] as felt, 'b'::{schema}.mood as now from generate_series(1, 9);
analyze {schema}.moods;
alter table {schema}.moods add column later {schema}.mood default 'a';
grant select on {schema}.moods to public;
"""


def read(dsn: str, text: str, **options: Any) -> Sheet:
    return read_sheet(dsn, text, auditor_dsn=servers.as_auditor(dsn), **options)


@pytest.fixture
def infested(dsn: str) -> str:
    """The database of an application that has left everything open to PUBLIC, some of it in the
    name of a superuser.
    """
    kinds = {"public": "security definer", "shop": "immutable security definer"}
    with psycopg.connect(dsn, autocommit=True) as conn:
        for schema, kind in kinds.items():
            conn.execute(HARM.replace("{schema}", schema).replace("{kind}", kind).encode())
    return dsn


ATTACKS = [
    "select {s}.harm('x')",
    'select "{s}"."harm"(\'x\')',
    "select {s} . harm ('x')",
    "select {s}/**/./**/harm('x')",
    "select {s}.harmä()",
    "select {s}.harm/* ( */('x')",
    "select key from {s}.innocent",
    "table {s}.innocent",
    "select 'x'::{s}.vicious",
    "select cast('x' as {s}.vicious)",
    "select {s}.vicious 'x'",
    "select '{{x}}'::{s}.vicious[]",
    "select '(x,1)'::{s}.pair",
    "select '[a,b]'::{s}.span",
    "select 1 where null::{s}.vicious[] = '{{x}}'",
    "select 1 from {s}.notes where whose = '{{x}}'",
    "select 'a' operator({s}.=!) 'b'",
    "select {s}.gather(key) from pgflow.runs",
    "select {s}.gather('x') over ()",
    "select * from json_to_record('{{\"a\": \"x\"}}') as t (a {s}.vicious)",
    "select * from json_populate_record(null::{s}.pair, '{{\"one\": \"x\"}}')",
    "select * from xmltable('/a' passing xml '<a>x</a>' columns b {s}.vicious path '.')",
    "select (select max(k) from lateral (select {s}.harm('x') as k) q) from (values (1)) v",
    "with recursive w as (select {s}.harm('x') as a union all select a from w where false) select a from w",
    "select 1 order by {s}.harm('x')",
    "select 1 limit length({s}.harm('x'))",
    "select count(*) filter (where {s}.harmless('x')) from pgflow.runs",
    "select case when {s}.harmless('x') then 1 end",
    "values ({s}.harm('x'))",
    "select query_to_xml('select {s}.harm(1::text)', true, true, '')",
    "select cursor_to_xml('c', 1, true, true, '')",
    "select table_to_xml('{s}.innocent', true, true, '')",
    "select schema_to_xml('{s}', true, true, '')",
    "select database_to_xml(true, true, '')",
    "select ts_stat('select {s}.harm(1::text)::tsvector')",
    "select ts_rewrite('a'::tsquery, 'select {s}.harm(1::text)::tsquery, null')",
    "select domain_in('x'::cstring, '{s}.vicious'::regtype, -1)",
    "select array_in('{{x}}'::cstring, '{s}.vicious'::regtype, -1)",
    "select record_in('(x,1)'::cstring, '{s}.pair'::regtype, -1)",
    "select pg_input_is_valid('x', '{s}.vicious')",
    "select satisfies_hash_partition(oid, 2, 0, 'x'::text) from pg_class where relname = 'parts' and relnamespace = '{s}'::regnamespace",
    "select to_json(most_common_vals) from pg_stats where schemaname = '{s}'",
    "select array_to_json(most_common_elems) from pg_stats where schemaname = '{s}'",
    "select json_build_object('a', most_common_vals) from pg_stats where schemaname = '{s}'",
    "select jsonb_agg(felt) from (select most_common_vals as felt from pg_stats where schemaname = '{s}') q",
    "select row_to_json(s) from pg_stats s where schemaname = '{s}'",
    "select to_jsonb(q) from (select s from pg_stats s where schemaname = '{s}') q",
    "select to_json((s).most_common_vals) from (select s from pg_stats s where schemaname = '{s}') q",
    "select row_to_json(j) from (pg_stats s cross join generate_series(1, 2)) j where schemaname = '{s}'",
    "select json_agg(attmissingval) from pg_attribute where attmissingval is not null",
    "select to_json(a) from pg_attribute a where attmissingval is not null",
    "select 1) q; select {s}.harm('x'); select * from (select 1",
    "select 1) q union all select {s}.harm('x') from (select 1",
    "select 1 as a -- */ \n, {s}.harm('x') /*",
    "select 'a' 'b', \n 'c\\' || {s}.harm('x') || '\\'",
    "select E'\\'' || {s}.harm('x') --'",
    "select U&'\\0027' || {s}.harm('x')",
    "select $$a$$ || {s}.harm('x')",
    'select U&"\\0070ublic".harm(\'x\')',
]  # fmt: skip


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Warnings of the server, one for each harm that is done."""
    heard: list[str] = []
    opened = sheet._open

    def heeded(dsn: str) -> Any:
        connection = opened(dsn)
        connection.add_notice_handler(lambda said: heard.append(str(said.message_primary)))
        return connection

    monkeypatch.setattr(sheet, "_open", heeded)
    return heard


def let_in(dsn: str, attacks: list[str]) -> list[str]:
    """Return those of the attacks that have an answer."""
    auditor, found = servers.as_auditor(dsn), []
    for attack in [text.format(s=schema) for schema in ("public", "shop") for text in attacks]:
        try:
            read_sheet(dsn, attack, auditor_dsn=auditor)
        except (InvalidArgument, psycopg.Error):
            continue
        found.append(attack)
    return found


def test_nothing_of_the_application_is_run(infested, warnings):
    with sheet._open(infested) as connection:
        connection.execute("select shop.harm('x')")
    assert len(warnings) == 1
    warnings.clear()
    assert let_in(infested, ATTACKS) == []
    assert warnings == []


LITERALS = ("{{x}}", "(x,1)", "[a,b]")
UNREADABLE = ("$$", "U&", "E'", "\\' ||")


def test_the_server_alone_would_know_what_is_not_ours(infested, warnings, monkeypatch):
    """Names before a dot are looked at only for the sake of literals, which are read early."""
    monkeypatch.setattr(sheet, "read_text", lambda text: (text, set()))
    signs = (*LITERALS, *UNREADABLE)
    judged = [one for one in ATTACKS if not any(sign in one for sign in signs)]
    assert len(judged) > 30
    assert let_in(infested, judged) == []
    assert warnings == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("select set_config('role', 'none', true)", "set_config"),
        ("select set_config('statement_timeout', '0', true)", "set_config"),
        ("select \"set_config\"('role', 'none', true)", "set_config"),
        ("select pg_catalog.set_config('role', 'none', true)", "set_config"),
        ("select * from set_config('role', 'none', true)", "set_config"),
        ("select 1 from pgflow.runs where set_config('a.b', key, true) = ''", "set_config"),
        ("select pg_sleep(10)::text", "pg_sleep"),
        ("select pg_advisory_lock(1)::text", "pg_advisory_lock"),
        ("select pg_try_advisory_xact_lock(1)", "advisory"),
        ("select pg_notify('pgflow', '1')::text", "pg_notify"),
        ("select pg_terminate_backend(pid) from pg_stat_activity", "pg_terminate_backend"),
        ("select pg_cancel_backend(1)", "pg_cancel_backend"),
        ("select pg_read_file('/etc/passwd')", "pg_read_file"),
        ("select pg_ls_dir('.')", "pg_ls_dir"),
        ("select lo_export(1, '/tmp/x')", "lo_export"),
        ("select lo_from_bytea(0, 'x')", "lo_from_bytea"),
        ("select pg_logical_emit_message(false, 'a', 'b')", "emit_message"),
        ("select nextval('pgflow.run_id_seq')", "nextval"),
        ("select pg_reload_conf()", "pg_reload_conf"),
        ("select dblink('', 'drop table t')", "dblink"),
        ("select run_id from pgflow.start_run('w', '{}')", "permission denied"),
        ("select * from pgflow.run", "permission denied"),
        ("select rolpassword from pg_authid", "permission denied"),
        ("with gone as (delete from pgflow.run returning 1) select * from gone", "WITH clause"),
        ("select 1 into x", "."),
        ("select key from pgflow.runs for update", "permission denied"),
        ("select nothing", "does not exist"),
        ("select * from information_schema.tables", "information_schema is a schema"),
        ("select * from pg_temp.pgflow_sheet", "pg_temp"),
        ("select * from pgflow_sheet", "does not exist"),
        ("select", "column"),
        ("select row(1, 2)", "pseudo-type"),
        ("", "characters"),
        ("/* nothing", "comment"),
        ("select 1; select 2", "semicolon"),
        ("select 1) q, (select 2", "syntax error|."),
        ("select (1", "syntax error"),
        ("select 'a", "quotation mark"),
        ("select \\ 1", "outside of quotation"),
        ("select E'a'", "letter"),
        ("select U&'a'", "escapes"),
        ("select $1", "outside of quotation"),
        ("delete from pgflow.run", "begins with"),
        ("set role none", "begins with"),
        ("set session authorization postgres", "begins with"),
        ("reset role", "begins with"),
        ("do 'begin end'", "begins with"),
        ("copy pgflow.run to program 'sh'", "begins with"),
        ("copy (select 1) to program 'sh'", "begins with"),
        ("create temp table t (a int)", "begins with"),
        ("listen pgflow", "begins with"),
        ("explain select 1", "begins with"),
        ("begin", "begins with"),
    ],
)
def test_what_is_more_than_a_look_is_refused_in_one_line(shared_dsn, text, says):
    if says == ".":
        with pytest.raises(InvalidArgument):
            read(shared_dsn, text)
        return
    with pytest.raises(InvalidArgument, match=says) as refused:
        read(shared_dsn, text)
    assert "\n" not in str(refused.value)


def test_a_statement_is_read_with_the_names_and_values_of_its_columns(dsn, conn):
    for n in range(5):
        one(conn, "select run_id from pgflow.start_run('w', '{}', key => %s)", f"k;--'{n}")
    found = read(
        dsn, "select key, 1 as n, null as n from runs order by key; -- the first", most_rows=3
    )
    assert (found.columns, len(found.rows), found.has_more) == (("key", "n", "n"), 3, True)
    assert found.rows[0] == ("k;--'0", "1", None)
    found = read(
        dsn,
        "select session_user as me, current_user, 'a; b % -- $1 ä' as said, \"n\" /* b /* c */ */ from (values (1.50)) v(n)",
        most_chars=None,
    )
    assert found.columns == ("me", "current_user", "said", "n")
    assert [str(value) for value in found.rows[0]] == [
        "pgflow_test_reader",
        "pgflow_test_reader",
        "a; b % -- $1 ä",
        "1.50",
    ]
    assert read(dsn, "select key from pgflow.runs where false") == Sheet(
        ("key",), (), False, pytest.approx(0, abs=60)
    )
    assert read(dsn, "select repeat('x', 3000) as x").rows == (("x" * 2000,),)
    assert read(dsn, "select count(*) from pg_stat_activity, pgflow.check()").rows == (("0",),)
    joined = "pg_class c join pg_attribute a on a.attrelid = c.oid"
    text = f"select attname from {joined} where relname = 'runs' and attnum = 1"
    assert read(dsn, text).rows == (("key",),)
    with pytest.raises(psycopg.errors.QueryCanceled):
        slow = ", ".join(f"pg_catalog.pg_class c{n}" for n in range(8))
        read(dsn, f"select count(*) from {slow}", seconds=0.05)


def test_a_statement_leaves_nothing_behind(dsn, conn):
    read(dsn, "select 1 as a")
    assert one(conn, "select count(*) from pg_class where relname = 'pgflow_sheet'") == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("alter role {0} superuser", "is a superuser"),
        ("alter role {0} createrole", "may make roles"),
        ("alter role {0} bypassrls", "row security"),
        ("grant pgflow_operator to {0}", "is a member of pgflow_operator"),
        ("grant pg_read_server_files to {0}", "is a member of pg_read_server_files"),
        ("grant {1} to {0}; grant pg_execute_server_program to {1}", "is a member of"),
        ("revoke pgflow_auditor from {0}", "is not a member of pgflow_auditor"),
    ],
)
def test_a_login_that_could_be_more_is_refused(dsn, conn, change, says):
    login, between = (
        f"reader_{Path(dsn).name[-8:]}{n}".replace("=", "_").replace(" ", "_") for n in "ab"
    )
    conn.execute(
        f"create role {login} login password 'reader' in role pgflow_auditor; create role {between}"
    )
    try:
        named = make_conninfo(dsn, user=login, password="reader")
        assert read_sheet(dsn, "select 1 as a", auditor_dsn=named).rows == (("1",),)
        assert read_sheet(named, "select session_user as a").rows == ((login,),)
        conn.execute(change.format(login, between))
        with pytest.raises(NotAllowed, match=says) as refused:
            read_sheet(dsn, "select 1 as a", auditor_dsn=named)
        assert "create role pgflow_reader login" in str(refused.value)
        assert "\n" not in str(refused.value)
    finally:
        conn.execute(f"drop role {login}; drop role {between}")


def test_a_superuser_never_runs_it(dsn):
    with pytest.raises(NotAllowed, match="is a superuser.*PGFLOW_AUDITOR_DSN"):
        read_sheet(dsn, "select 1 as a")


def test_a_login_without_temporary_views_says_so(dsn, conn):
    auditor = servers.as_auditor(dsn)
    name = conn.info.dbname
    conn.execute(f"revoke temporary on database {name} from public")
    with pytest.raises(
        SetupError, match=f"grant temporary on database {name} to pgflow_test_reader"
    ):
        read_sheet(dsn, "select 1 as a", auditor_dsn=auditor)


def test_statements_of_readers_are_shown_with_their_values():
    text = shown_statement(list_queues("it's").first)
    assert "q.queue = 'it''s'" in text
    assert "%s" not in text
    read_text(text)
    read_text(shown_statement(list_runs(limit=5).first))
