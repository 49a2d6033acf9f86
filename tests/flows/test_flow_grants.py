"""Who may start, see and replace a workflow in SQL is granted by role, and no step borrows another's right."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from flowkit import begin, ended, make, refusal, work
from sqlkit import one, rows

Conn = psycopg.Connection[Any]
pytestmark = pytest.mark.alone  # with roles of its own
BODY = "begin a: insert into mark (what) values (current_user); return current_user; end"


@pytest.fixture
def closed(alice: Conn) -> None:
    """alice's workflow ``pay``, which only she starts."""
    make(alice, "pay()", BODY)
    alice.execute("select pgflow.revoke_workflow('pay', 'public', 'start')")


def rights(conn: Conn, workflow: str = "pay") -> Any:
    return one(conn, "select rights from pgflow.workflows where workflow = %s", workflow)


def test_every_client_starts_a_workflow_until_that_is_revoked(alice, mallory):
    make(alice, "pay()", BODY)
    assert rights(alice) is None
    begin(mallory, "pay", "1")
    alice.execute("select pgflow.revoke_workflow('pay', 'public', 'start')")
    assert rights(alice) == {"start": ["alice"]}
    with pytest.raises(psycopg.Error, match="role mallory may not start workflow 'pay'"):
        begin(mallory, "pay", "2")
    with pytest.raises(psycopg.Error, match="role mallory may not start workflow 'pay'"):
        mallory.execute("""select pgflow.start_runs('pay', '[["2", "{}"]]')""")
    begin(alice, "pay", "3")
    alice.execute("select pgflow.grant_workflow('pay', 'mallory', 'start')")
    begin(mallory, "pay", "4")
    alice.execute("select pgflow.revoke_workflow('pay', 'mallory', 'start')")
    with pytest.raises(psycopg.Error, match="may not start"):
        begin(mallory, "pay", "5")
    alice.execute("select pgflow.grant_workflow('pay', 'public', 'start')")
    begin(mallory, "pay", "6")


@pytest.mark.usefixtures("closed")
def test_its_owner_cannot_be_shut_out(alice):
    alice.execute("select pgflow.revoke_workflow('pay', 'alice', 'start')")
    begin(alice, "pay")


@pytest.mark.usefixtures("closed")
def test_who_drives_or_operates_starts_everything(admin, mallory):
    admin.execute("grant pgflow_worker to mallory")
    begin(mallory, "pay")
    work(mallory)
    assert ended(admin)[:2] == ("completed", "alice")


@pytest.mark.usefixtures("closed")
def test_a_member_of_a_role_has_what_the_role_was_granted(admin, alice, mallory, server_dsn):
    with psycopg.connect(server_dsn, autocommit=True) as server:
        server.execute("create role clerks")
    try:
        alice.execute("select pgflow.grant_workflow('pay', 'clerks', 'start')")
        with pytest.raises(psycopg.Error, match="may not start"):
            begin(mallory, "pay")
        admin.execute("grant clerks to mallory")
        begin(mallory, "pay")
    finally:
        admin.execute("drop role clerks")


def test_the_text_is_seen_by_those_who_may(alice, mallory):
    make(alice, "pay()", BODY)
    text = "select body from pgflow.workflows"
    assert rows(mallory, text) == [None]
    alice.execute("select pgflow.grant_workflow('pay', 'mallory', 'see')")
    assert rows(mallory, text) == [BODY]
    alice.execute("select pgflow.revoke_workflow('pay', 'mallory', 'see')")
    assert rows(mallory, text) == [None]
    alice.execute("select pgflow.grant_workflow('pay', 'public', 'see')")
    assert rows(mallory, text) == [BODY]


def test_who_replaces_a_workflow_gives_its_steps_the_own_rights(admin, alice, mallory):
    make(alice, "pay()", BODY)
    found = refusal(mallory, "begin return current_user; end", "pay()")
    assert found == "workflow 'pay' belongs to alice"
    alice.execute("select pgflow.grant_workflow('pay', 'mallory', 'replace')")
    make(mallory, "pay()", "begin return current_user; end")
    begin(admin, "pay")
    work(admin)
    assert ended(admin)[1] == "mallory"
    # It is still alice's.
    make(alice, "pay()", "begin return 3; end")
    alice.execute("select pgflow.revoke_workflow('pay', 'mallory', 'replace')")
    assert refusal(mallory, "begin return 4; end", "pay()") == "workflow 'pay' belongs to alice"


def test_a_name_is_kept_for_a_role_before_it_is_taken(admin, alice, mallory):
    with pytest.raises(psycopg.Error, match="role mallory does not own workflow 'pay'"):
        mallory.execute("select pgflow.grant_workflow('pay', 'mallory', 'replace')")
    admin.execute("select pgflow.grant_workflow('pay', 'alice', 'replace')")
    assert refusal(mallory, BODY, "pay()") == "workflow 'pay' belongs to other roles"
    make(alice, "pay()", BODY)


def test_a_right_is_one_of_three_and_its_role_is_there(alice):
    make(alice, "pay()", BODY)
    with pytest.raises(psycopg.Error, match="'stop' is no right to a workflow"):
        alice.execute("select pgflow.grant_workflow('pay', 'public', 'stop')")
    with pytest.raises(psycopg.Error, match="there is no role 'eve'"):
        alice.execute("select pgflow.grant_workflow('pay', 'eve', 'start')")


def test_rights_go_with_the_workflow(alice, mallory):
    make(alice, "pay()", BODY)
    alice.execute("select pgflow.revoke_workflow('pay', 'public', 'start')")
    alice.execute("select pgflow.drop_workflow('pay')")
    make(mallory, "pay()", "begin return 1; end")
    begin(mallory, "pay")


MAY_NOT = "role mallory may not start workflow 'pay'"
STEPS = {
    "perform pgflow.start_run('pay');": MAY_NOT,
    "perform pgflow.start_runs('pay', '[[null, \"{}\"]]');": MAY_NOT,
    "execute 'select pgflow.start_run(''pay'')';": MAY_NOT,
    "perform pgflow.start_run('pay', if_taken => 'attach', key => 'x');": MAY_NOT,
    "perform pgflow.start_run('pay', key => 'x', debounce_seconds => 1);": MAY_NOT,
    "perform pgflow.start_run('pay', queue => 'other');": MAY_NOT,
    "perform pgflow.start_run('pay', version => '1');": MAY_NOT,
    "perform pgflow.start_run('pay', tenant => 'other');": MAY_NOT,
    "perform pgflow.test_run('pay');": MAY_NOT,
    "perform set_config('pgflow.definer', 'alice', true); perform pgflow.start_run('pay');": MAY_NOT,
    "perform pg_advisory_unlock_all(); perform pgflow.start_run('pay');": MAY_NOT,
    "begin perform 1 / 0; exception when others then perform pgflow.start_run('pay'); end;": MAY_NOT,
    "perform mallory.as_mallory();": MAY_NOT,
    "perform public.as_postgres();": MAY_NOT,
    "perform alice.as_alice();": MAY_NOT,
    "insert into mallory.bait values (1);": MAY_NOT,
    "perform from mallory.trap;": MAY_NOT,
    "execute 'set constraints all immediate'; perform pgflow.start_run('pay');": MAY_NOT,
    "create temp table pg_class (x int); perform pgflow.start_run('pay');": MAY_NOT,
    "create temp table pg_locks (x int); set local search_path = pg_temp, pg_catalog; perform pgflow.start_run('pay');": MAY_NOT,
    "set local search_path = mallory, pg_catalog; perform pgflow.start_run('pay');": MAY_NOT,
    "run pay();": MAY_NOT,
    "for each r in select 1 run pay();": MAY_NOT,
    "for each r in select 1 run pay() on failure continue;": MAY_NOT,
    "run PAY();": MAY_NOT,
    'run "pay"();': MAY_NOT,
    "perform pgflow.grant_workflow('pay', 'mallory', 'start');": "role mallory does not own workflow 'pay'",
    "perform pgflow.grant_workflow('pay', 'public', 'start');": "role mallory does not own workflow 'pay'",
    "perform pgflow.revoke_workflow('pay', 'alice', 'start');": "role mallory does not own workflow 'pay'",
    "perform pgflow.grant_workflow('pay', 'mallory', 'replace');": "role mallory does not own workflow 'pay'",
    "perform pgflow.create_workflow('pay()', 'begin end');": "workflow 'pay' belongs to alice",
    "perform pgflow.drop_workflow('pay');": "must be owner of function",
    "insert into pgflow.flow_right select 1;": "permission denied for table flow_right",
    "delete from pgflow.flow_right;": "permission denied for table flow_right",
    "perform alice.\"pay@1\"(1, '{}', '{}');": "permission denied for function",
    "perform pgflow.refuse_start_('pay');": "permission denied for function refuse_start_",
    "perform pgflow.insert_run_(null, null, null, null, null, 1, null, null, null, null, null, null, null, null, null);": "permission denied for function insert_run_",
    "perform pgflow.commit_units('{}');": "permission denied for function commit_units",
    "perform pgflow.fork_run('k0');": "permission denied for function fork_run",
    "perform pgflow.restart_run('k0');": "permission denied for function restart_run",
    "perform pgflow.set_schedule('s', 'pay', '{\"every\": 60}');": "permission denied for function set_schedule",
    "perform pgflow.answer_gate('g', 'approve');": "permission denied for function answer_gate",
    "execute 'alter role mallory superuser';": " to alter ",
    "execute 'grant pgflow_worker to mallory';": ' role "pgflow_worker"',
    "execute 'alter function alice.\"pay@1\"(int, jsonb, jsonb) owner to mallory';": "must be owner of function",
    "execute 'comment on function alice.\"pay@1\"(int, jsonb, jsonb) is ''x''';": "must be owner of function",
    "execute 'create or replace function alice.\"pay@1\"(_node int, _in jsonb, run jsonb) returns jsonb language sql as ''select 1''';": "permission denied for schema alice",
}  # fmt: skip
"""What a step of mallory's does, and how that is refused, while a superuser drives it."""


@pytest.mark.usefixtures("closed")
def test_no_step_borrows_the_right_of_its_driver_or_of_others(admin, alice, mallory):
    begin(alice, "pay", "k0")
    start = "returns void language plpgsql security definer as $$ begin perform pgflow.start_run('pay'); end $$"
    mallory.execute(f"create function mallory.as_mallory() {start}")
    admin.execute(f"create function public.as_postgres() {start}")
    alice.execute(
        f"create function alice.as_alice() {start}; grant usage on schema alice to public"
    )
    mallory.execute(
        "create table bait (x int); create function mallory.sprung() returns trigger language plpgsql as"
        " $$ begin perform pgflow.start_run('pay'); return new; end $$;"
        "create trigger t before insert on bait for each row execute function mallory.sprung();"
        "create view trap as select (pgflow.start_run('pay')).run_id"
    )
    outcomes = {}
    for n, code in enumerate(STEPS):
        prefix = "" if code.startswith(("run ", "for each")) else "a: "
        mallory.execute(
            "select pgflow.create_workflow(%s, %s)", (f"w{n}()", f"begin {prefix}{code} end")
        )
        begin(admin, f"w{n}", f"attack {n}")
    work(admin)
    for n, code in enumerate(STEPS):
        status, _, said = ended(admin, f"attack {n}")
        outcomes[code] = (status, said)
    assert len(STEPS) >= 40
    wrong = {
        code: outcomes[code]
        for code, message in STEPS.items()
        if outcomes[code][0] != "failed" or message not in (outcomes[code][1] or "")
    }
    assert wrong == {}
    assert rows(admin, "select key from pgflow.runs where workflow = 'pay' order by key") == ["k0"]
    assert rights(admin) == {"start": ["alice"]}


SESSIONS = {
    "select pgflow.start_run('pay')": MAY_NOT,
    "begin; set local role mallory; select pgflow.start_run('pay')": MAY_NOT,
    "set role alice": 'permission denied to set role "alice"',
    "set session authorization alice": "permission denied to set session authorization",
    "select set_config('role', 'alice', false)": 'permission denied to set role "alice"',
    "select set_config('session_authorization', 'alice', false)": "permission denied to set session authorization",
    "set session_replication_role = replica": 'permission denied to set parameter "session_replication_role"',
    "set search_path = mallory, pg_catalog; select pgflow.start_run('pay')": MAY_NOT,
    "create temp table flow_right (x int); select pgflow.start_run('pay')": MAY_NOT,
    "select pgflow.test_run('pay')": MAY_NOT,
    "select pgflow.acting_()": "permission denied for function acting_",
    "select pgflow.latch_('definer 10')": "permission denied for function latch_",
}  # fmt: skip
"""The same in a session of mallory's own."""


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("attack", SESSIONS)
def test_no_session_takes_a_right_that_it_was_not_granted(attack, admin, as_role):
    conn = as_role("mallory")
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(attack)
    said = str(refused.value).replace("must be member of role", "permission denied to set role")
    assert SESSIONS[attack] in said
    assert rows(admin, "select key from pgflow.runs") == []


def test_a_step_answers_no_gate_in_the_name_of_its_driver(admin, mallory):
    admin.execute("grant pgflow_approver to mallory")
    make(
        admin, "asks()", "declare v jsonb; begin ask g(a => 1) of 'postgres' into v; return v; end"
    )
    begin(admin, "asks", "asks")
    work(admin)
    make(
        mallory,
        "w()",
        "declare g text; begin a: select gate into g from pgflow.gates; perform pgflow.answer_gate(g, 'approve'); end",
    )
    begin(admin)
    work(admin)
    assert ended(admin)[2] == "a step of a workflow in SQL may not answer gates"
