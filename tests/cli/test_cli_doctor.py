"""`pgflow doctor`: what is wrong is found, and each finding says what to do."""

from __future__ import annotations

import re
import secrets
import shlex

import psycopg
import pytest
from clikit import as_role, make_stuck, pgflow
from poolers import bouncer

from pgflow.doctor import examining as doctor_module
from pgflow.doctor import server
from pgflow.doctor.finding import Finding

CHECKS = {*doctor_module.SERVER, *doctor_module.WITH_SCHEMA}


def findings(dsn, *options):
    """Check -> [(level, found, do)], and the exit code."""
    answer = pgflow(dsn, "doctor", *options)
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for row in answer.data:
        rows.setdefault(row["check"], []).append((row["level"], row["found"], row["do"]))
        assert (row["do"] != "") == (row["level"] != "ok"), "each finding says what to do"
    return rows, answer.code


def only(dsn, check, *options):
    """The findings of one check, which make the exit code 1."""
    rows, code = findings(dsn, *options)
    assert code == 1
    return [(level, found, do) for level, found, do in rows[check] if level != "ok"]


@pytest.mark.full
def test_a_sound_database_passes_every_check(dsn):
    rows, _ = findings(dsn, "--deep")
    assert set(rows) == {*CHECKS, "invariants"}
    environmental = {
        "durability",
        "connections",
        "long transactions",
    }  # a test server may have none of these in order
    assert [
        (name, row)
        for name, found in rows.items()
        for row in found
        if row[0] != "ok" and name not in environmental
    ] == []


@pytest.mark.full
@pytest.mark.unsound
def test_a_function_planted_beside_ours_is_named_with_the_remedy(dsn, conn):
    conn.execute(
        "create function pgflow.check(planted text default '') returns text language sql "
        "as $$ select 'x' $$"
    )
    conn.execute(
        "create function public.pg_total_relation_size(oid) returns bigint language plpgsql "
        "as $$ begin raise 'planted'; end $$"
    )
    rows, code = findings(dsn, "--deep")
    wrong = {
        name: [row for row in found if row[0] == "fail"]
        for name, found in rows.items()
        if any(row[0] == "fail" for row in found)
    }
    assert (code, set(wrong)) == (1, {"schema drift", "invariants"})
    _, said, remedy = wrong["schema drift"][0]
    assert "check(text) is not pgflow's, and calls of check may find it" in said.replace('"', "")
    assert remedy.startswith("drop function pgflow.")
    assert "is not unique: the search path has another function" in wrong["invariants"][0][1]


def test_commands_of_remedies_quote_the_names_in_them(dsn, conn):
    name = "o'neil's 1"
    make_stuck(conn, name)
    conn.execute("select pgflow.start_run('greet', '{}', queue => %s)", [name])
    conn.execute("select pgflow.pause_queue(%s)", [name])
    conn.execute("select pgflow.declare_relay(%s, '{orders}', 'https://hook')", [name])
    conn.execute("select pgflow.pause_relay(%s)", [name])
    rows, _ = findings(dsn)
    for check, command in (("stuck runs", "show"), ("queues", "resume"), ("relays", "resume")):
        remedies = " ".join(remedy or "" for _, _, remedy in rows[check])
        assert f"{command} {shlex.quote(name)}" in remedies, (check, remedies)


@pytest.mark.full
def test_a_person_sees_what_to_do_under_each_finding(dsn, conn):
    make_stuck(conn, "stuck-1")
    answer = pgflow(dsn, "doctor", tty=True, width=80)
    assert answer.code == 1
    assert re.search(r"^✓ schema drift +\S", answer.out, re.MULTILINE)
    assert re.search(
        r"^! stuck runs +1 run stuck: poison *\n +→ pgflow show stuck-1; fix the cause",
        answer.out,
        re.MULTILINE,
    )
    assert re.search(r"\d+ findings? of \d+ needs? attention", answer.err)


def test_without_the_schema_it_says_so_and_looks_no_further(empty_dsn):
    rows, code = findings(empty_dsn)
    ((level, found, do),) = rows["schema"]
    assert (code, level, do) == (1, "fail", "pgflow migrate")
    assert "has no schema pgflow" in found
    assert set(rows) == set(doctor_module.SERVER)


@pytest.mark.full
@pytest.mark.parametrize(("change", "found"), [
    (("create or replace function pgflow.find_chain(key text, tenant text default '') "
        "returns bigint language sql as 'select 1::bigint'"), "find_chain was changed"),
    (("create or replace function pgflow.micros_(at timestamptz) returns bigint immutable "
        "strict language sql as 'select 1::bigint'"), "micros_ was changed"),
    ("drop function pgflow.resume_queue", "resume_queue is missing"),
    ("create function pgflow.mine() returns int language sql as 'select 1'",
        "mine is not of this version"),
    ("drop index pgflow.run_parent_idx", "index pgflow.run_parent_idx is missing"),
    ("drop view pgflow.workers", "view pgflow.workers is missing"),
])  # fmt: skip
@pytest.mark.unsound
def test_what_was_changed_by_hand_is_found(dsn, conn, change, found):
    conn.execute(change)
    rows = [row for checks in findings(dsn)[0].values() for row in checks]
    assert [row for row in rows if found in row[1]], rows


@pytest.mark.full
def test_a_worker_that_has_gone_silent_and_leases_of_nobody(dsn, conn):
    conn.execute("select pgflow.register_worker('far', 7, '{default}', 3, '0')")
    conn.execute("update pgflow.worker set beat_at = clock_timestamp() - interval '3 minutes'")
    ((_, found, do),) = only(dsn, "workers")
    assert found == "worker 1 (pid 7 on far) is silent for 3m and holds 0 runs"
    assert "pgflow tick" in do


@pytest.mark.full
def test_a_worker_that_an_upgrade_has_left_behind(dsn, conn):
    conn.execute(
        "select pgflow.register_worker('far', 7, '{default}', 3, '0.9', 'pgflow-engine 0.9 (schema "
        "6, breaking 1, files 1234)')"
    )
    ((_, found, do),) = only(dsn, "workers")
    assert found == "worker 1 (pid 7 on far) has the code of an older schema (0.9)"
    assert "start a worker of the version that migrated" in do


def test_a_schema_that_is_newer_is_named_and_compared_with_nothing(dsn, conn):
    conn.execute(
        "comment on schema pgflow is 'pgflow-engine 999.0 (schema 999, breaking 1, files 1234)'"
    )
    conn.execute("drop function pgflow.resume_queue")
    rows, code = findings(dsn)
    assert (code, rows["schema"][0][0], rows["schema"][0][2]) == (
        1,
        "warn",
        "upgrade pgflow-engine here",
    )
    assert rows["schema drift"] == [
        ("ok", "not compared: the schema is newer than this version", "")
    ]


@pytest.mark.full
def test_queues_that_nobody_serves(dsn, conn):
    conn.execute(
        "select pgflow.start_run('greet', '{}', queue => q) from unnest('{paused,lonely}'::text[]) "
        "q"
    )
    conn.execute("select pgflow.pause_queue('paused')")
    conn.execute("update pgflow.ready set ready_at = clock_timestamp() - interval '1 hour'")
    assert [(found, do.split(",")[0]) for _, found, do in only(dsn, "queues")] == [
        ("queue lonely has 1 run queued for up to 60m, and no worker", "pgflow workers MODULE"),
        ("queue paused is paused with 1 run queued", "pgflow queues resume paused"),
    ]


@pytest.mark.full
def test_a_transaction_that_holds_the_dead_rows(dsn, monkeypatch):
    monkeypatch.setattr(server, "LONG_SECONDS", 0)
    with psycopg.connect(dsn, application_name="forgotten") as other:
        other.execute("begin isolation level repeatable read")
        other.execute("select count(*) from pgflow.runs")
        found = [row for row in only(dsn, "long transactions") if "forgotten" in row[1]]
        assert len(found) == 1
        assert found[0][2] == f"end it: select pg_terminate_backend({other.info.backend_pid})"


@pytest.mark.full
def test_workers_that_may_want_more_connections_than_there_are(dsn, conn, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_OF_A_WORKER", 1_000_000)
    assert findings(dsn)[0]["connections"][0][1].endswith("in use")
    conn.execute("select pgflow.register_worker('far', 7, '{default}', 3, '0')")
    ((level, found, do),) = only(dsn, "connections")
    assert (level, found.partition("; ")[2]) == (
        "warn",
        "1 worker may want 1000000, up to 1000000 each",
    )
    assert "max_connections" in do


@pytest.mark.full
def test_a_hot_table_without_its_vacuum_settings(dsn, conn):
    conn.execute("alter table pgflow.ready set (autovacuum_enabled = false)")
    ((level, found, do),) = only(dsn, "autovacuum")
    assert (level, found) == ("warn", "pgflow.ready has lost its vacuum settings")
    conn.execute(do.encode())
    assert findings(dsn)[0]["autovacuum"][0][0] == "ok"


def test_a_clock_that_is_wrong(dsn, monkeypatch):
    real = server.time.time
    monkeypatch.setattr(server.time, "time", lambda: real() - 90)
    ((_, found, _),) = only(dsn, "clock")
    assert found == "the database is 90s ahead of this machine"


def test_notifications_that_do_not_arrive(dsn, monkeypatch):
    monkeypatch.setattr(server, "_hears", lambda *_: False)
    ((_, found, do),) = only(dsn, "listen")
    assert "by polling" in found
    assert "listen=False" in do


@pytest.mark.full
def test_what_a_role_may_do(dsn, conn):
    roles = {name: f"cli_{name}_{secrets.token_hex(3)}" for name in ("operator", "nobody")}
    conn.execute(
        "".join(f"create role {role} login password 'secret';" for role in roles.values())
        + f"grant pgflow_operator to {roles['operator']}"
    )
    try:
        seen, _ = findings(as_role(dsn, roles["operator"]))
        assert seen["privileges"][0][1] == (
            f"{roles['operator']} may read, start and signal runs, pause, resume and retry runs, "
            "declare pools and queues, audit; not work on runs, answer gates"
        )
        nobody, code = findings(as_role(dsn, roles["nobody"]))
        assert code == 1
        assert nobody["privileges"] == [
            (
                "fail",
                f"{roles['nobody']} may not use pgflow here",
                f"grant pgflow_client (or _worker, _operator, _auditor, _approver, _declarer) to {roles['nobody']}",
            )
        ]
    finally:
        conn.execute("".join(f"drop owned by {role}; drop role {role};" for role in roles.values()))


def test_the_role_that_made_the_roles_gets_their_rights_by_the_remedy(dsn, conn):
    """Since Postgres 16 it is a member that inherits nothing, which a plain grant leaves so."""
    if conn.info.server_version < 160000:
        pytest.skip("no role is made a member by making a role")
    role = f"cli_maker_{secrets.token_hex(3)}"
    conn.execute(
        f"create role {role} login password 'secret';"
        f"grant pgflow_client to {role} with admin true, inherit false, set false"
    )
    try:
        mine = as_role(dsn, role)
        ((_, _, remedy),) = only(mine, "privileges")
        refused = pgflow(mine, "list")
        assert refused.err.startswith(
            f"pgflow: role {role} may use nothing of the schema pgflow: grant pgflow_client to {role}"
        )
        conn.execute(remedy.replace(" (or _worker, _operator, _auditor, _approver, _declarer)", ""))
        assert pgflow(mine, "list").code == 0
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.full
def test_a_check_that_breaks_on_a_missing_right_is_a_finding(dsn, monkeypatch):
    def refused(_patient):
        raise psycopg.errors.InsufficientPrivilege("no")

    monkeypatch.setitem(doctor_module.SERVER, "clock", refused)
    ((level, found, _),) = only(dsn, "clock")
    assert (level, found.startswith("this role may not look")) == ("warn", True)


def test_an_old_server(dsn, monkeypatch):
    monkeypatch.setattr(server, "OLDEST", 99)
    ((level, _, do),) = only(dsn, "server version")
    assert (level, do) == ("fail", "pgflow needs Postgres 99 or newer: upgrade the server")
    assert Finding("ok", "x").do == ""


# ---------------------------------------------------------------- PgBouncer


@pytest.mark.full
def test_a_pooler_in_transaction_mode_is_recognised(dsn, monkeypatch):
    monkeypatch.setattr(server, "LISTEN_SECONDS", 0.5)
    with bouncer(dsn, "transaction") as address:
        ((level, found, do),) = only(address, "pooler")
        assert (level, found) == (
            "warn",
            (
                "a pooler in transaction mode is in between: LISTEN and prepared statements may not "
                "work through it"
            ),
        )
        assert "App(listen=False, prepare_threshold=None)" in do


@pytest.mark.full
def test_a_pooler_in_session_mode_is_well(dsn):
    with bouncer(dsn, "session") as address:
        assert findings(address)[0]["pooler"] == [
            ("ok", "a pooler in session mode is in between", "")
        ]


@pytest.mark.full
def test_a_tick_works_through_a_pooler_in_transaction_mode(dsn, conn):
    from clikit import finish, process

    conn.execute("select pgflow.start_run('greet', '{\"name\": \"Ada\"}')")
    with bouncer(dsn, "transaction") as address:
        answer = finish(process(address, "tick", "cli_jobs", "--exclusive"))
    assert (answer.code, answer.data["completed"], answer.err) == (0, 1, "")


def test_warnings_fail_a_check_unless_it_is_to_fail_on_failures_only(dsn, conn):
    make_stuck(conn, "stuck-1")
    assert {level for level, _, _ in only(dsn, "stuck runs")} == {"warn"}
    rows, code = findings(dsn, "--fail-on", "fail")
    assert any(level == "warn" for level, _, _ in rows["stuck runs"])
    assert code == int(any(level == "fail" for found in rows.values() for level, _, _ in found))
    assert pgflow(dsn, "doctor", "--fail-on", "never").code == 2
