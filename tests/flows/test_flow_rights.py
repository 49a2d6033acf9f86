"""A step has the rights of whoever made its workflow, whoever drives: no more, no less, and no way out."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
import sqlkit
from flowkit import begin, ended, work
from sqlkit import one, rows

Conn = psycopg.Connection[Any]
pytestmark = pytest.mark.alone  # with roles of its own


def make(conn: Conn, body: str, signature: str = "w()") -> str:
    return one(conn, "select pgflow.create_workflow(%s, %s)", signature, body)


def play(admin: Conn, definer: Conn, body: str, key: str = "k") -> Any:
    """What a run of a workflow comes to that ``definer`` made and a superuser drives."""
    make(definer, body)
    begin(admin, key=key)
    work(admin)
    return ended(admin, key)


def test_a_step_runs_as_its_definer_and_row_security_applies(admin, alice):
    admin.execute(
        "create table docs (owner name); insert into docs values ('alice'), ('mallory'); grant select on docs to public;"
        "alter table docs enable row level security; create policy own on docs using (owner = current_user)"
    )
    body = "declare n int; begin a: select count(*) into n from docs; return jsonb_build_array(current_user, session_user, n); end"
    assert play(admin, alice, body) == ("completed", ["alice", "postgres", 1], None)


ESCAPES = {
    "select x into n from secret;": "permission denied for table secret",
    "execute 'reset role'; select x into n from secret;": 'cannot set parameter "role" within security-definer function',
    "execute 'set role postgres';": 'cannot set parameter "role" within security-definer function',
    "execute 'set local role postgres';": 'cannot set parameter "role" within security-definer function',
    "perform set_config('role', 'postgres', true);": 'cannot set parameter "role" within security-definer function',
    "perform set_config('role', 'none', false);": 'cannot set parameter "role" within security-definer function',
    "execute 'set session authorization postgres';": 'cannot set parameter "session_authorization" within security-definer function',
    "execute 'reset session authorization';": 'cannot set parameter "session_authorization" within security-definer function',
    "perform set_config('search_path', 'mallory, pg_catalog', false);": "a step must not SET search_path or standard_conforming_strings for its session",
    "execute 'set search_path = mallory, pg_catalog';": "a step must not SET search_path or standard_conforming_strings for its session",
    "perform set_config('standard_conforming_strings', 'off', false);": "a step must not SET search_path or standard_conforming_strings for its session",
    "execute 'reset all'; execute 'set search_path = mallory';": "a step must not SET search_path or standard_conforming_strings for its session",
    "execute 'discard all';": "DISCARD ALL cannot run inside a transaction block",
    "do $x$ begin commit; end $x$;": "invalid transaction termination",
    "do $x$ begin rollback; end $x$;": "invalid transaction termination",
    "insert into pgflow.outcome select 1;": "permission denied for table outcome",
    "update pgflow.flow_frame set vars = '{}';": "permission denied for table flow_frame",
    "perform pgflow.advance(1, 1, 1, 1);": "permission denied for function advance",
    "perform pgflow.alter_workflow('w', 1);": "permission denied for function alter_workflow",
    "copy secret to program 'true';": "permission denied to COPY to or from an external program",
    'alter function mallory."w@N"(int, jsonb, jsonb) owner to postgres;': 'must be able to SET ROLE "postgres"',
    'alter function mallory."w@N"(int, jsonb, jsonb) security invoker;': 'the function mallory."w@N" was altered meanwhile',
}  # fmt: skip


def test_no_step_leaves_its_definer(admin, mallory):
    mallory.execute(
        "create function mallory.spoil(jsonb, jsonb) returns boolean language plpgsql as $$ begin"
        " raise exception 'an operator of mine runs as %', current_user; end $$;"
        "create operator mallory.<> (leftarg = jsonb, rightarg = jsonb, function = mallory.spoil)"
    )
    path = one(admin, "show search_path")
    for version, (code, message) in enumerate(ESCAPES.items(), 1):
        key = f"k{version}"
        status, _, said = play(
            admin,
            mallory,
            f"declare n int; begin a: {code.replace('w@N', f'w@{version}')} end",
            key,
        )
        expected = message.replace("w@N", f"w@{version}")
        said = re.sub(
            r"^must be superuser or .* role to COPY", "permission denied to COPY", said
        )  # 15
        said = re.sub(r"^must be member of role", "must be able to SET ROLE", said)
        assert (code, status, said) == (code, "failed", expected)
        found = one(admin, "select array[current_user::text, current_setting('search_path')]")
        assert found == ["postgres", path]
    assert rows(admin, "select x from secret") == [42]


def test_settings_of_a_step_that_are_local_end_with_it(admin, alice):
    body = "begin a: set local search_path = public; return current_setting('search_path'); end"
    assert play(admin, alice, body) == ("completed", "alice, public, pg_temp", None)


def test_temporary_objects_of_the_driver_are_not_seen_first(admin, alice):
    alice.execute("create table mine (x int); insert into mine values (1)")
    admin.execute("create temp table mine (x int); insert into mine values (666)")
    admin.execute(
        "create function pg_temp.lower(text) returns text language sql as $$ select 'spoilt' $$"
    )
    body = "declare n int; begin a: select x into n from mine; return n || lower('A'); end"
    assert play(admin, alice, body) == ("completed", "1a", None)


def test_a_function_that_would_run_with_our_rights_is_not_called(admin, mallory):
    make(mallory, "begin a: perform 1; end")
    mallory.execute(
        'create or replace function mallory."w@1"(_node int, _in jsonb, run jsonb) returns jsonb language plpgsql security'
        " invoker as $$ begin update pgflow.flow set definer = 10; return '{}'; end $$"
    )
    begin(admin)
    work(admin)
    assert (
        ended(admin)[2]
        == 'the function mallory."w@1"(int, jsonb, jsonb) is gone, or does not run with the rights of mallory any more'
    )
    assert rows(admin, "select definer from pgflow.workflows") == ["mallory"]


def test_only_its_definer_replaces_and_drops_a_workflow(admin, alice, mallory):
    make(alice, "begin return 1; end")
    for attack in (
        "select pgflow.create_workflow('w()', 'begin return 2; end')",
        "select pgflow.drop_workflow('w')",
        "select pgflow.forget_flow('w')",
        "select pgflow.record_flow(pgflow.compile_workflow('w()', 'begin return 2; end'), 'alice.\"w@1\"(int, jsonb, jsonb)')",
        "select alice.\"w@1\"(1, '{}', '{}')",
        "select body from pgflow.flow",
    ):
        with pytest.raises(psycopg.Error):
            mallory.execute(attack)
    assert rows(mallory, "select workflow, body from pgflow.workflows") == [("w", None)]
    found = rows(alice, "select workflow, body from pgflow.workflows")
    assert found == [("w", "begin return 1; end")]
    found = one(admin, "select pgflow.create_workflow('w()', 'begin return 3; end')")
    assert found == "w is version 2"


def test_what_is_signed_for_one_function_is_of_no_use_for_another(admin, alice, mallory):
    make(alice, "begin a: return 1; end" if False else "begin a: null; return 1; end")
    # mallory signs, as the owner of a function of hers, a program whose nodes are alice's function
    mallory.execute(
        "create function mallory.f(int, jsonb, jsonb) returns jsonb security definer language sql as 'select $2'"
    )
    mallory.execute(
        "do $$ declare p jsonb := pgflow.compile_workflow('x()', 'begin return 1; end') || '{\"hash\": \"h\"}'; begin"
        " execute format('comment on function mallory.f(int, jsonb, jsonb) is %L', 'Made by pgflow.create_workflow: '"
        " || encode(sha256(convert_to(jsonb_build_array(p, 'alice.\"w@1\"(int, jsonb, jsonb)')::text, 'UTF8')), 'hex')); end $$"
    )
    with pytest.raises(psycopg.Error, match="a workflow is made by"):
        mallory.execute(
            "select pgflow.record_flow(pgflow.compile_workflow('x()', 'begin return 1; end') || '{\"hash\": \"h\"}',"
            " 'alice.\"w@1\"(int, jsonb, jsonb)')"
        )


def record(conn: Conn, function: str, change: str = "p") -> str:
    """Record a program that its own maker has signed; what the server says to it."""
    try:
        conn.execute(
            """
            do $do$
            declare
              p jsonb := pgflow.compile_workflow('x()', 'begin set state jsonb_build_object(''p'', 1); return 1; end') || '{"hash": "h"}';
              f text := %f;
            begin
              p := %p;
              execute format('comment on function %s is %L', to_regprocedure(f), 'Made by pgflow.create_workflow: '
                || encode(sha256(convert_to(jsonb_build_array(p, f)::text, 'UTF8')), 'hex'));
              perform pgflow.record_flow(p, f);
            end $do$
            """.replace("%f", psycopg.sql.quote(function)).replace("%p", change)
        )
    except psycopg.Error as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "function",
    [
        'alice."w@1"(int4range, jsonb, jsonb)',
        "mallory.f(int --, jsonb /*\n), alice.f(int --*/, jsonb /*(\n) --*/)",
        "mallory.f(pg_catalog.int4 --, jsonb /*\n) from (select 1 as int4) pg_catalog; update pgflow.flow set definer = 10; select mallory.f(int --*/, jsonb /*(\n) --*/)",
        "mallory.f(integer, jsonb, jsonb)",
        "mallory.f(int, jsonb, jsonb[])",
    ],
)  # fmt: skip
def test_a_function_has_one_name(admin, alice, mallory, function):
    """A text that means one function where it is looked up, and another, or more, where it is called."""
    admin.execute("grant usage, create on schema alice to mallory; grant all on secret to alice")
    make(alice, "begin a: delete from secret; return 1; end")
    mallory.execute("""
      grant usage on schema mallory to public;
      create function mallory.f(int, jsonb, jsonb) returns jsonb security definer language sql as 'select $2';
      create function mallory.f(int) returns jsonb language sql as 'select null::jsonb';
      create function mallory.f(int, jsonb, jsonb[]) returns jsonb security definer language sql as 'select $2';
      create function alice."w@1"(int4range, jsonb, jsonb) returns jsonb security definer language sql as 'select $2'
    """)
    assert "is made by pgflow.create_workflow" in record(mallory, function)
    begin(admin, workflow="x")
    work(admin)
    assert rows(admin, "select x from secret") == [42]


def test_a_program_is_what_its_text_compiles_to(admin, mallory):
    """Else a run could write any unit into its journal, such as the answer of somebody to a gate."""
    mallory.execute(
        "grant usage on schema mallory to public;"
        "create function mallory.f(int, jsonb, jsonb) returns jsonb security definer language sql as 'select $2'"
    )
    function = "mallory.f(int, jsonb, jsonb)"
    for change in (
        """jsonb_set(p, '{nodes,0,opts}', '{"kind": "P"}')""",
        "p || '{\"parameters\": [1]}'",
        'p || \'{"body": "begin return 2; end"}\'',
        "p - 'schemas'",
        "p || '{\"more\": 1}'",
    ):
        assert "is made by pgflow.create_workflow" in record(mallory, function, change), change
    assert record(mallory, function) == ""


def test_who_may_not_create_functions_makes_no_workflow(admin, alice):
    admin.execute(
        "create schema lent; grant usage on schema lent to alice; create schema shut; grant all on schema shut to alice"
    )
    alice.execute("set search_path = lent")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        make(alice, "begin end")
    alice.execute("set search_path = shut")
    with pytest.raises(psycopg.Error, match="may not look into schema shut"):
        make(alice, "begin end")
    alice.execute("set search_path = nowhere")
    with pytest.raises(psycopg.Error, match="no schema is there"):
        make(alice, "begin end")


def test_names_are_data(admin, alice):
    name = "o'\"; drop table secret; --"
    quoted = '"' + name.replace('"', '""') + '"'
    make(
        alice,
        f"declare {quoted} text; begin {quoted}: {quoted} := 'x'; undo {quoted}: null; wait for {quoted} timeout '0 s' into {quoted};"
        f" run {quoted}({quoted} => 1) into {quoted}; return {quoted}; end",
    )
    make(alice, "begin return 'child'; end", f"{quoted}({quoted} int)")
    begin(admin)
    work(admin)
    assert ended(admin) == ("completed", "child", None)
    assert rows(admin, "select x from secret") == [42]
    assert name in rows(admin, "select name from pgflow.timeline where event = 'step_completed'")


def test_inputs_and_signals_are_values(admin, alice):
    evil = "'; drop table secret; --$$"
    make(
        alice,
        "declare s text; begin wait for x into s; a: perform a || s; return a || s; end",
        "w(a text)",
    )
    begin(admin, a=evil)
    work(admin)
    admin.execute("select pgflow.deliver_signal('k', 'x', to_json(%s::text))", (evil,))
    work(admin)
    assert (ended(admin)[1], rows(admin, "select x from secret")) == (evil * 2, [42])


def test_an_overloaded_function_is_not_mistaken(admin, mallory, alice):
    admin.execute("grant create on schema alice to mallory")
    make(alice, "begin return 'mine'; end")
    mallory.execute(
        'create function alice."w@1"(int, json, json) returns jsonb language sql as $$ select \'"theirs"\'::jsonb $$'
    )
    mallory.execute(
        'create function alice."w@1"(anyelement, jsonb, jsonb) returns jsonb language sql as $$ select \'"theirs"\'::jsonb $$'
    )
    begin(admin)
    work(admin)
    assert ended(admin)[1] == "mine"


def test_a_role_that_only_drives_needs_no_rights_on_what_steps_touch(admin, alice, mallory):
    admin.execute("grant pgflow_worker to mallory")
    make(alice, "begin a: create table alice.made (x int); return current_user; end")
    begin(admin)
    work(mallory)
    assert ended(admin)[:2] == ("completed", "alice")


def test_a_workflow_outlives_its_role(admin, server_dsn, mallory):
    with sqlkit.connect(server_dsn) as server:
        admin.execute(
            "create role gone; grant pgflow_client to gone; grant create on schema public to gone"
        )
        admin.execute("set role gone")
        make(admin, "begin return 1; end")
        admin.execute("reset role; drop owned by gone")
        server.execute("drop role gone")
    assert rows(mallory, "select workflow, body from pgflow.workflows") == [("w", None)]
    assert make(mallory, "begin return 2; end") == "w is version 2"
    begin(admin)
    work(admin)
    assert ended(admin)[1] == 2


def test_a_lock_that_others_see_makes_nobody_its_definer(admin, alice, mallory):
    alice.execute("create table seen (number bigint); grant select on seen to mallory")
    alice.execute("grant usage on schema alice to mallory")
    noted = """begin a: insert into alice.seen select l.classid::bigint << 32 | l.objid::bigint
      from pg_locks l where l.locktype = 'advisory' and l.pid = pg_backend_pid(); return 1; end"""
    assert play(admin, alice, noted) == ("completed", 1, None)
    with mallory.transaction(force_rollback=True):
        assert rows(mallory, "select pg_advisory_xact_lock_shared(number)::text from alice.seen")
        with pytest.raises(psycopg.Error, match="role mallory does not own"):
            mallory.execute("select pgflow.grant_workflow('w', 'mallory', 'see')")
