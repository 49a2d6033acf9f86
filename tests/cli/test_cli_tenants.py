"""``pgflow --tenant``: a command sees and touches the runs of one tenant, and a login of a tenant uses it as its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
import servers
from clikit import pgflow
from psycopg.conninfo import make_conninfo
from sqlkit import rows

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_command_sees_and_touches_one_tenant(dsn: str, conn: psycopg.Connection) -> None:
    for tenant in ("acme", "beta"):
        assert (
            pgflow(dsn, "--tenant", tenant, "start", "ship", "--new", "--key", "order-1").code == 0
        )
    assert pgflow(dsn, "--tenant=acme", "cancel", "order-1", "--yes").code == 0
    found = "select tenant, status from pgflow.runs order by tenant"
    assert conn.execute(found).fetchall() == [("acme", "cancelled"), ("beta", "queued")]
    listed = pgflow(dsn, "--tenant", "acme", "list", "--json").data
    assert [run["key"] for run in listed] == ["order-1"]
    assert pgflow(dsn, "--tenant", "acme", "show", "order-1").code == 0
    assert pgflow(dsn, "--tenant", "other", "show", "order-1").code != 0
    assert pgflow(dsn, "--tenant", "other", "list", "--json").data == []


def test_a_run_of_a_tenant_is_listed_with_it_and_shown_under_it_only(
    dsn: str, conn: psycopg.Connection
) -> None:
    conn.execute("select pgflow.start_run('ship', key => 'order-1', tenant => 'acme')")
    heads, run = pgflow(dsn, "list", "--table").out.splitlines()
    assert (heads.split()[1], run.split()[1]) == ("TENANT", "acme")
    answer = pgflow(dsn, "show", "order-1")
    assert answer.code == 2
    assert "run 'order-1' is of tenant 'acme': pass --tenant acme before" in answer.err


def test_a_tenant_before_the_command_has_a_name(dsn: str) -> None:
    answer = pgflow(dsn, "--tenant", "", "list")
    assert answer.code == 2
    assert "--tenant is empty" in answer.err


@pytest.fixture
def login(dsn: str, conn: psycopg.Connection, server_dsn: str) -> Iterator[str]:
    with psycopg.connect(server_dsn, autocommit=True) as server:
        server.execute(
            f"create role cli_acme login password '{servers.HANG_SECONDS}' in role pgflow_tenant"
        )
        conn.execute("select pgflow.grant_tenant('cli_acme', 'acme')")
        yield make_conninfo(dsn, user="cli_acme", password=str(servers.HANG_SECONDS))
        server.execute("drop role cli_acme")


@pytest.mark.alone
def test_the_login_of_a_tenant_has_its_own_commands(
    login: str, dsn: str, conn: psycopg.Connection
) -> None:
    conn.execute("select pgflow.start_run('ship', key => 'theirs', tenant => 'beta')")
    assert pgflow(login, "--tenant", "acme", "start", "ship", "--new", "--key", "mine").code == 0
    started = pgflow(
        login, "--tenant", "acme", "start", "ship", "--new", "--key", "mine", "--table"
    )
    assert (started.code, started.err) == (0, "")  # it may not see who serves it
    assert pgflow(login, "--tenant", "acme", "signal", "mine", "go").code == 0
    assert [run["key"] for run in pgflow(login, "--tenant", "acme", "list", "--json").data] == [
        "mine"
    ]
    assert "pgflow_client" in pgflow(login, "list").err
    assert pgflow(login, "--tenant", "beta", "list", "--json").data == []
    assert pgflow(login, "--tenant", "beta", "show", "theirs").code != 0
    assert pgflow(login, "--tenant", "beta", "cancel", "theirs", "--yes").code != 0
    assert pgflow(login, "--tenant", "acme", "pause", "mine").code != 0
    assert set(rows(conn, "select status from pgflow.runs")) == {"queued"}
