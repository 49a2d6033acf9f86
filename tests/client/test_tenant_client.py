"""Clients of one tenant: what they start, find and read is of that tenant, whatever the app does beside them."""

from __future__ import annotations

import psycopg
import pytest
import servers
from psycopg.conninfo import make_conninfo
from sqlkit import rows

import pgflow
from pgflow import inspect, workflow
from pgflow._db.tenants import OWN_VIEWS
from pgflow.errors import InvalidArgument, NotAllowed, RunNotFound

GO = pgflow.Signal("go", str)


@workflow
async def welcome(name: str) -> str:
    return f"{name} {pgflow.run_info().tenant} {await GO.wait()}"


@workflow
async def parent(name: str) -> str:
    return await pgflow.run_child(child, name)


@workflow
async def child(name: str) -> str:
    return f"{name} of {pgflow.run_info().tenant}"


def test_the_views_of_tenants_are_those_that_have_a_tenant(conn):
    found = "select relname from pg_class where relnamespace = 'pgflow'::regnamespace and relname like 'own\\_%' and relkind = 'v'"
    assert {f"own_{name}" for name in OWN_VIEWS} == set(rows(conn, found))


async def test_a_client_of_a_tenant_finds_its_own_runs_only(aflow):
    app = aflow.app
    app.include(welcome)
    acme, beta = app.tenant("acme"), app.tenant("beta")
    async with app.worker():
        mine = await acme.start(welcome.options(key="one"), "ann")
        theirs = await beta.start(welcome.options(key="one"), "bob")
        plain = await app.start(welcome.options(key="one"), "eve")
        for client in (acme, beta, app):
            await client.send("one", GO, "go")
        assert await mine.result() == "ann acme go"
        assert await theirs.result() == "bob beta go"
        assert await plain.result() == "eve  go"
        assert await acme.get("one", welcome).result() == "ann acme go"
    await acme.start(welcome.options(key="two"), "ann")
    with pytest.raises(RunNotFound):
        await beta.cancel("two")
    with pytest.raises(RunNotFound):
        await app.cancel("two")
    listed = await inspect.ask_async(acme, inspect.list_runs())
    assert {run.key for run in listed} == {"one", "two"}
    assert len(await inspect.ask_async(beta, inspect.list_runs())) == 1
    assert (await inspect.ask_async(acme, inspect.find_run("two"))).workflow == "welcome"
    with pytest.raises(RunNotFound):
        await inspect.ask_async(beta, inspect.find_run("two"))
    await acme.cancel("two")
    assert await (acme.get("two", welcome)).status() in ("queued", "cancelled")


def test_a_sync_client_of_a_tenant_starts_many_and_waits(flow):
    app = flow.app
    app.include(child, parent)
    acme = app.tenant("acme")
    with app.worker():
        runs = acme.start_many(child, [("a",), ("b",)], keys=["a", "b"])
        assert [run.result() for run in runs] == ["a of acme", "b of acme"]
        assert acme.start(parent.options(key="p"), "kid").result() == "kid of acme"
    assert len(inspect.ask(acme, inspect.list_runs())) == 4
    assert not inspect.ask(app.tenant("beta"), inspect.list_runs()).items


def test_a_client_of_a_tenant_works_in_an_open_transaction(flow, dsn):
    app = flow.app
    app.include(child)
    with psycopg.connect(dsn) as connection:
        run = app.tenant("acme").using(connection).start(child.options(key="in"), "x")
        app.using(connection).start(child.options(key="out"), "y")
    with app.worker():
        assert run.result() == "x of acme"
    found = "select key, tenant from pgflow.runs order by key"
    with psycopg.connect(dsn) as connection:
        assert connection.execute(found).fetchall() == [("in", "acme"), ("out", "")]


def test_a_tenant_has_a_name(flow):
    for name in ("", "x" * 256):
        with pytest.raises(InvalidArgument, match="1 to 255 bytes"):
            flow.app.tenant(name)


@pytest.mark.alone
def test_an_app_on_the_login_of_a_tenant_is_an_app_of_that_tenant(flow, dsn, conn, server_dsn):
    flow.app.include(child, welcome)
    secret = str(servers.HANG_SECONDS)
    with psycopg.connect(server_dsn, autocommit=True) as server:
        server.execute(f"create role py_acme login password '{secret}' in role pgflow_tenant")
        try:
            conn.execute("select pgflow.grant_tenant('py_acme', 'acme')")
            flow.app.tenant("beta").start(child.options(key="theirs"), "x")
            login = make_conninfo(dsn, user="py_acme", password=secret)
            with pgflow.App(login, include=[child, welcome]) as app:
                waits = app.start(welcome.options(key="waits"), "ann")
                with pytest.raises(TimeoutError):
                    waits.result(1)
                with flow.app.worker():
                    assert app.start(child.options(key="mine"), "x").result() == "x of acme"
                    waits.send(GO, "go")
                    assert waits.result() == "ann acme go"
                with pytest.raises(RunNotFound):
                    app.get("theirs", child).result(1)
                with pytest.raises(NotAllowed, match="may not act for tenant 'beta'"):
                    app.tenant("beta").start(child, "x")
                assert len(inspect.ask(app.tenant("acme"), inspect.list_runs()).items) == 2
        finally:
            server.execute("drop role py_acme")
