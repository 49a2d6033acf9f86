"""Who may answer a gate, by the rights of the database: `pgflow_approver` answers in its own name,
`pgflow_speaker` for the users of an application, and nobody who may only start runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import clikit
import psycopg
import pytest
import sqlkit
from psycopg.conninfo import make_conninfo
from records import SOON, settle

import pgflow
from pgflow import App, workflow
from pgflow.authority import Approve
from pgflow.errors import NotAllowed
from pgflow.testing import Harness

ROLES = {
    "gate_starter": ["pgflow_client"],
    "gate_worker": ["pgflow_worker"],
    "gate_chief": ["pgflow_operator"],
    "gate_reader": ["pgflow_auditor"],
    "gate_ann": ["pgflow_approver", "gate_desk"],
    "gate_bob": ["pgflow_approver", "gate_desk"],
    "gate_app": ["pgflow_client", "pgflow_speaker"],
}


@workflow
def ask(approvers: list[str], quorum: int) -> str:
    return str(pgflow.sync.gate("leave", "ship", approvers=approvers, quorum=quorum))


@pytest.fixture
def login(dsn: str, conn: psycopg.Connection) -> Iterator[Any]:
    """A session of one of the roles, by its name."""
    with conn.transaction():
        conn.execute("select pg_advisory_xact_lock(4713)")  # roles are of the whole server
        for name in ("gate_desk", *ROLES):
            kind = "nologin" if name == "gate_desk" else "login password 'x'"
            if not sqlkit.one(conn, "select 1 from pg_roles where rolname = %s", name):
                conn.execute(f"create role {name} {kind}")
                for granted in ROLES.get(name, ()):
                    conn.execute(f"grant {granted} to {name}")
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(
            psycopg.connect(login_dsn(dsn, name), autocommit=True)
        )


def login_dsn(dsn: str, name: str) -> str:
    return make_conninfo(dsn, user=name, password="x")


ANSWER = "select pgflow.answer_gate(%s, 'approve', by => %s, acting_as => %s)"
DELEGATE = "select pgflow.delegate_gate(%s, %s, %s)"


def refusal(session: psycopg.Connection, statement: str, *said: Any) -> str:
    with pytest.raises(psycopg.Error) as refused:
        session.execute(statement, said)  # type: ignore[arg-type]
    return refused.value.sqlstate or ""


@pytest.fixture
def gate(flow: Harness, conn: psycopg.Connection) -> Any:
    """Opens a gate that asks these; its run, and its key."""

    def opened(approvers: list[str], quorum: int = 1) -> tuple[Any, str]:
        run = settle(flow, ask, approvers, quorum)
        return run, sqlkit.one(conn, "select gate from pgflow.gates where key = %s", run.key)

    return opened


@pytest.mark.parametrize("who", ["gate_starter", "gate_worker", "gate_chief", "gate_reader"])
def test_who_may_start_work_or_give_orders_answers_no_gate(login, gate, conn, who):
    _, key = gate([])
    for by, roles in ((None, None), (who, None), ("ann", ["ops"]), ("pgflow_approver", None)):
        assert refusal(login(who), ANSWER, key, by, roles) == "42501"
    assert refusal(login(who), DELEGATE, key, who, "eve") == "42501"
    for inner in ("say_at_gate_(%s, 'approve', null, null, null, 'ann', null, null)",):
        assert refusal(login(who), f"select pgflow.{inner}", key) == "42501"
    assert sqlkit.rows(conn, "select * from pgflow.gate_answers") == []


def test_an_approver_answers_in_its_own_name_and_as_the_roles_that_it_has(login, gate, conn):
    run, key = gate(["gate_ann", "gate_desk", "cfo"], 2)
    ann, bob = login("gate_ann"), login("gate_bob")
    assert refusal(ann, ANSWER, key, "gate_bob", None) == "PF021"
    assert refusal(ann, ANSWER, key, "cfo", None) == "PF021"
    assert refusal(ann, ANSWER, key, None, ["cfo"]) == "PF021"
    assert refusal(ann, ANSWER, key, "gate_desk", None) == "PF021"  # nobody has two votes
    assert refusal(ann, DELEGATE, key, "cfo", "gate_bob") == "PF021"
    assert refusal(ann, "select pgflow.start_run(workflow => 'ask', input => '{}')") == "42501"
    ann.execute(ANSWER, (key, None, None))
    assert refusal(ann, ANSWER, key, None, ["gate_desk"]) == "PF006"
    assert refusal(ann, DELEGATE, key, "gate_desk", "gate_bob") == "PF006"
    bob.execute(ANSWER, (key, "gate_bob", None))
    said = "select answered_by, acting_as, sent_by from pgflow.gate_answers order by n"
    assert sqlkit.rows(conn, said) == [
        ("gate_ann", ["gate_desk"], "gate_ann"),
        ("gate_bob", ["gate_desk"], "gate_bob"),
    ]
    assert "gate_ann" in run.result(SOON)


def test_an_approver_delegates_what_it_is_asked(login, gate):
    run, key = gate(["gate_ann"])
    login("gate_ann").execute(DELEGATE, (key, "gate_ann", "gate_bob"))
    login("gate_bob").execute(ANSWER, (key, None, None))
    assert "gate_bob" in run.result(SOON)


def test_an_application_that_speaks_for_its_users_names_them(login, gate, dsn, conn):
    run, key = gate(["ops"])
    login("gate_app")
    with App(login_dsn(dsn, "gate_app")) as app:
        with pytest.raises(NotAllowed, match="'eve' may not answer"):
            app.answer(key, Approve(), by="eve")
        app.answer(key, Approve(), by="ann", acting_as=["ops"])
    assert "ann" in run.result(SOON)
    found = sqlkit.rows(conn, "select answered_by, sent_by from pgflow.gate_answers")
    assert found == [("ann", "gate_app")]


def test_a_missing_right_is_one_clear_line_in_python_and_at_the_terminal(login, gate, dsn):
    run, key = gate([])
    login("gate_starter")
    wants = "may not answer gates. Let a database administrator grant it pgflow_approver"
    with App(login_dsn(dsn, "gate_starter")) as app, pytest.raises(NotAllowed, match=wants):
        app.answer(key, Approve(), by="ann")
    said = clikit.pgflow(login_dsn(dsn, "gate_starter"), "approve", key)
    assert said.code == 2
    assert wants in said.err
    said = clikit.pgflow(login_dsn(dsn, "gate_ann"), "approve", key, "--by", "cfo")
    assert said.code == 2
    assert "'gate_ann' may not answer gate" in said.err
    assert "grant pgflow_speaker to gate_ann" in said.err
    said = clikit.pgflow(login_dsn(dsn, "gate_ann"), "approve", key)
    assert (said.code, said.data["by"]) == (0, "gate_ann")
    assert "gate_ann" in run.result(SOON)


def test_where_one_role_owns_and_does_everything_it_names_whom_it_likes(gate, conn):
    run, key = gate(["ann"])
    owner = sqlkit.one(
        conn, "select nspowner::regrole::text from pg_namespace where nspname = 'pgflow'"
    )
    with conn.transaction():
        conn.execute(f"set local role {owner}")
        conn.execute(ANSWER, (key, "ann", None))
    assert "ann" in run.result(SOON)
